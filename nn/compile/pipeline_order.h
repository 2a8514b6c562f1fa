/*
 * pipeline_order.h - the order of records whose stages are known, and the sends between them.
 *
 * A schedule computes stages and micro-batches in many orders. Each keeps the order of the records
 * of an action: the forward of a stage, its backward of inputs, and, if the schedule has it apart,
 * its backward of weights. So records are grouped by action. In training values cross one boundary
 * at a time, as the messages of a schedule do.
 */
#ifndef TESS_NN_PIPELINE_ORDER_H
#define TESS_NN_PIPELINE_ORDER_H

#include "nn/record/recorder.h"

/*
 * Adds sends, and orders all records. Their stages and actions are set, but for the backward of
 * weights. nforward: number of records of the forward. By value: home, the stage that computes it,
 * or TESS_STAGES_ALL; made, the record that computes it, or -1. Failures are the recorder's.
 */
void tess_pipeline_order(struct tess_recorder *r, int32_t nforward, const int32_t *home,
                         const int32_t *made);

#endif

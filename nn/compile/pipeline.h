/*
 * pipeline.h - cuts a recorded program into the stages of a pipeline, along mesh dimension pp.
 *
 * During recording, everything is Replicate along pp. The cut assigns each record and each weight
 * to one stage, and adds records that send values to stages that read but do not compute them. The
 * computations and the order of additions stay as recorded: bits do not depend on the number of
 * stages, and the backward of a send needs no rule of its own.
 */
#ifndef TESS_NN_PIPELINE_H
#define TESS_NN_PIPELINE_H

#include "nn/record/recorder.h"

/*
 * Cuts the program. The first `nforward` records are the forward, in which stages are ranges of
 * records. If no style begins a stage, the numbered modules of the model ("model.layers.3") are
 * distributed to minimize the maximum bytes of weights in a stage's products. Records before them
 * are in the first stage, records after them in the last. A tied head has a copy of its table if
 * the two are on different ranks. A record of the backward is in the stage of its weight, else in
 * that of the forward's values that it reads. The logits end in the stage of the rank that uses
 * them, or stay in theirs, as the loss does. Fails the recording if there are fewer modules than
 * stages, or the plan begins another number of stages.
 */
void tess_pipeline_cut(struct tess_recorder *r, int32_t nforward);

#endif

/* segment.h - the steps of a segment of a pipeline's schedule. */
#ifndef TESS_NN_SEGMENT_H
#define TESS_NN_SEGMENT_H

#include "nn/compile/pipeline_schedule.h"
#include "nn/lower/lower.h"

/*
 * Finds the steps [*first, *end) of a segment of this rank; segment s->nsegments: the steps that
 * wait for sends. l: of a program with the records of the schedule.
 */
void tess_pipeline_schedule_find_steps(const struct tess_pipeline_schedule *s,
                                       const struct tess_rank_program *l, int32_t segment,
                                       int32_t *first, int32_t *end);

#endif

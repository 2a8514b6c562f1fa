/*
 * pipeline_schedule.h - in which order the stages of a pipeline compute micro-batches of a step.
 *
 * The steps of a rank are cut into segments, each of which begins with what it receives from other
 * stages: forward, backward, and the loss that it is told. A schedule is a list of segments of
 * micro-batches for each stage, computed alike on all ranks from the program alone. As soon as a
 * stage has something to compute it does, the later segment first: one forward, one backward
 * (1F1B), so that stage s keeps the values of at most `stages - s` micro-batches.
 *
 * Each segment runs the micro-batches in their order, so gradients are added in that order, and a
 * stage takes messages in the order in which they are sent. Where a weight gets gradients in two
 * segments (a tied table), or these rules leave nothing to run, micro-batches run one by one.
 */
#ifndef TESS_NN_PIPELINE_SCHEDULE_H
#define TESS_NN_PIPELINE_SCHEDULE_H

#include "nn/program/program.h"

enum { TESS_MICRO_BATCHES = 16 }; /* in a schedule, at most: each may need a program of its own */

struct tess_pipeline_item {
	int32_t micro, segment;
};

struct tess_pipeline_schedule { /* of one stage; in an arena */
	struct tess_pipeline_item *item;
	int32_t n, nsegments;
	int32_t *record; /* of each segment: its first record */
	int32_t nslots; /* micro-batches whose values it keeps at a time, at most */
};

/* For `n` micro-batches. TESS_ENOMEM. */
tess_status tess_pipeline_schedule_make(const struct tess_program *p, int32_t stage, int32_t n,
                                        struct tess_arena *arena,
                                        struct tess_pipeline_schedule *out);
/* The most slots that such a schedule has. */
int32_t tess_pipeline_schedule_count_slots(const struct tess_program *p, int32_t stage, int32_t n);
/* Whether the micro-batches of a pipeline may be computed at the same time. */
bool tess_pipeline_schedule_overlaps(const struct tess_program *p);

#endif

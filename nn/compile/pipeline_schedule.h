/*
 * pipeline_schedule.h - the order in which the stages of a pipeline compute micro-batches.
 *
 * The steps of a rank are cut into segments, which begin with receives from other stages: forward,
 * backward, and the received loss. A schedule is a list of segments of micro-batches for each
 * stage, computed from the program alone, equally on all ranks. A stage computes as soon as it can,
 * later segments first: one forward, one backward (1F1B), so that stage s keeps the values of at
 * most `stages - s` micro-batches.
 *
 * Each segment runs the micro-batches in their order, so gradients are added in that order, and a
 * stage takes messages in the order of their sends. If no segment can run by these rules,
 * micro-batches run one by one.
 */
#ifndef TESS_NN_PIPELINE_SCHEDULE_H
#define TESS_NN_PIPELINE_SCHEDULE_H

#include "nn/program/program.h"

enum { TESS_MICRO_BATCHES = 16 }; /* maximum of a schedule: each may need its own program */

struct tess_pipeline_item {
	int32_t micro, segment;
};

struct tess_pipeline_schedule { /* the schedule of one stage, in an arena */
	struct tess_pipeline_item *item;
	int32_t n, nsegments;
	int32_t *record; /* by segment: its first record */
	int32_t nslots; /* maximum number of micro-batches whose values it keeps at a time */
};

/* Makes the schedule of a stage for `n` micro-batches. TESS_ENOMEM. */
tess_status tess_pipeline_schedule_make(const struct tess_program *p, int32_t stage, int32_t n,
                                        struct tess_arena *arena,
                                        struct tess_pipeline_schedule *out);
/* Returns the maximum number of slots of such a schedule. */
int32_t tess_pipeline_schedule_count_slots(const struct tess_program *p, int32_t stage, int32_t n);
/* Returns whether the micro-batches of a pipeline may be computed at the same time. */
bool tess_pipeline_schedule_overlaps(const struct tess_program *p);

#endif

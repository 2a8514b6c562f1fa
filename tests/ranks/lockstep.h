/*
 * lockstep.h - runs a program on P ranks at once in one thread: ops by scalar.c, collectives by looking at
 * all ranks' memory. No group, no backend and no device take part.
 */
#ifndef TESS_TEST_LOCKSTEP_H
#define TESS_TEST_LOCKSTEP_H

#include "nn/plan.h"
#include "nn/record.h"

struct lockstep {
	const struct tess_model *model;
	const struct tess_source *source;
	const struct tess_plan *plan;
	int32_t nranks;
	const int32_t *ids;
	int64_t nids;
	bool all_rows; /* logits of all rows, or of the last */
};

/*
 * *logits: f32 [rows][vocabulary], yours to free; equal on all ranks, or a failed check. A refusal: its status, with
 * the sentence in tess_error().
 */
tess_status lockstep_run(const struct lockstep *how, float **logits, int64_t *count);

/* For a source whose tensors stay where they are. */
void lockstep_ignore_drop(void *self, const void *data, uint64_t bytes);

#endif

/* runner_state.h - the inside of a runner, and the memory of its steps (runner_memory.c). */
#ifndef TESS_NN_RUNNER_STATE_H
#define TESS_NN_RUNNER_STATE_H

#include "nn/device.h"
#include "nn/kv_cache.h"
#include "nn/lower.h"
#include "nn/programs.h"
#include "nn/run.h"
#include "nn/runner.h"
#include "nn/step_memory.h"
#include "nn/weights.h"

struct tess_runner {
	struct tess_runner_parts parts;
	struct tess_run_groups groups;
	int32_t rank;
	struct tess_opened_device device;
	struct tess_programs programs;
	int64_t nsteps;
	struct tess_rank_weights weights;
	struct tess_kv_cache *kv;
	struct tess_step_memory step;
	float *logits; /* that came from the device; room for nlogits rows */
	int64_t nlogits;
	bool check; /* TESSERA_CHECK */
};

/*
 * Memory for a step, by collective calls that set `step.moved` where it moves. First, pages for the
 * rows. TESS_ENOMEM: those that a slot got already stay its own.
 */
tess_status tess_runner_reserve_pages(struct tess_runner *s, const struct tess_rows *rows,
                                      int64_t n);
/* Inputs, rope tables and logits, for a step of `like` whose positions end before `end`. */
tess_status tess_runner_reserve_buffers(struct tess_runner *s, const struct tess_shape *like,
                                        int64_t end);

#endif

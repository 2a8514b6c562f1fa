/* runner_state.h - the inside of a runner, and the memory of its steps (runner_memory.c). */
#ifndef TESS_NN_RUNNER_STATE_H
#define TESS_NN_RUNNER_STATE_H

#include "nn/generate/kv_cache.h"
#include "nn/generate/runner.h"
#include "nn/lower/lower.h"
#include "nn/run/programs.h"
#include "nn/run/run.h"
#include "nn/run/step_memory.h"
#include "nn/weights/device.h"
#include "nn/weights/weights.h"

enum { TESS_CHOSEN_WORDS = sizeof(struct tess_chosen) / sizeof(int32_t) };

/* Ids that the device chooses (runner_choose.c), of the last two steps that did so by turns. */
struct tess_chooser {
	bool usable;
	void *reader; /* a stream for copies to the host that wait for no step */
	int32_t *ids[2]; /* in the device's memory, [TESS_CHOSEN_MAX][TESS_CHOSEN_WORDS] */
	struct tess_draw *draws; /* there, of the step that was queued last */
	uint32_t *seen; /* there: TESS_CHOSEN_MAX sets of bits, one for each id */
	int32_t *host; /* ids that were read last */
	struct tess_draw *host_draws; /* [2][TESS_CHOSEN_MAX] of the last two steps */
	uint32_t *host_seen; /* the sets as they were sent */
	int64_t nrows[2], ndraws; /* ndraws: of the last step, that the device has */
	int32_t turn, nqueued; /* of the next step; steps that were not read */
};

struct tess_runner {
	struct tess_runner_parts parts;
	struct tess_run_groups groups;
	int32_t rank;
	struct tess_opened_device device;
	struct tess_programs programs;
	int64_t nsteps;
	struct tess_rank_weights weights;
	int64_t packing_ns; /* that packing of weights may take before the next step */
	struct tess_kv_cache *kv;
	struct tess_step_memory step;
	float *logits; /* that came from the device; room for nlogits rows */
	int64_t nlogits;
	bool check; /* TESSERA_CHECK */
	struct tess_chooser chooser;
};

/* Collective. Where the device cannot choose ids, the chooser is not used. */
tess_status tess_chooser_open(struct tess_runner *s);
void tess_chooser_close(struct tess_runner *s);

/*
 * Memory for a step, by collective calls that set `step.moved` where it moves. First, pages for the
 * rows. TESS_ENOMEM: those that a slot got already stay its own.
 */
tess_status tess_runner_reserve_pages(struct tess_runner *s, const struct tess_rows *rows,
                                      int64_t n);
/*
 * Queues a step, whose program is *out; logits are for `root`. chosen: the ids of its rows, one for
 * each, are those that the last step chose.
 */
tess_status tess_runner_queue_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                                   int32_t root, bool chosen, struct tess_shaped_program **out);
/* Room on the host for the logits of a step of these rows. Collective. */
tess_status tess_runner_reserve_logits(struct tess_runner *s, const struct tess_rows *rows,
                                       int64_t n);
/* Its rows are queued: the next ones come after them. */
void tess_runner_advance(struct tess_runner *s, const struct tess_rows *rows, int64_t n);
/* Queues a copy of the ids that the last step chose into the inputs of the next one. */
tess_status tess_chooser_feed(struct tess_runner *s);
/*
 * After the device was opened. TESS_ENOMEM: the weights of this rank, or the KV cache that was
 * asked for, are larger than what is free for it; the sentence says how much, and what would fit.
 */
tess_status tess_runner_check_room(const struct tess_runner *s);
/* Inputs and rope tables, for a step of `like` whose positions end before `end`. */
tess_status tess_runner_reserve_buffers(struct tess_runner *s, const struct tess_shape *like,
                                        int64_t end);

#endif

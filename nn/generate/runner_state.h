/*
 * runner_state.h - the internal state of a runner: its steps (runner_step.c), and their memory
 * (runner_memory.c).
 */
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

/* Ids that the device chooses (runner_choose.c), in the last two such steps, which alternate. */
struct tess_chooser {
	bool usable;
	void *reader; /* a stream for copies to the host that do not wait for a step */
	int32_t *ids[2]; /* in device memory, [TESS_CHOSEN_MAX][TESS_CHOSEN_WORDS] */
	struct tess_draw *draws; /* in device memory, of the step queued last */
	uint32_t *seen; /* in device memory: TESS_CHOSEN_MAX sets, with a bit for each id */
	int32_t *host; /* ids read last */
	struct tess_draw *host_draws; /* [2][TESS_CHOSEN_MAX] of the last two steps */
	uint32_t *host_seen; /* the sets as sent */
	int64_t nrows[2], ndraws; /* ndraws: draws on the device, of the last step */
	int32_t turn, nqueued; /* turn of the next step; number of unread steps */
};

struct tess_runner {
	struct tess_runner_parts parts;
	struct tess_run_groups groups;
	int32_t rank;
	struct tess_opened_device device;
	struct tess_programs programs;
	int64_t nsteps;
	struct tess_rank_weights weights;
	int64_t packing_ns; /* time for packing weights before the next step */
	struct tess_kv_cache *kv;
	/*
	 * steps of inference under way at a time (runner_step.c): step i uses memory i % ahead; the
	 * program of the last step in each memory, whose sends may be under way, or NULL
	 */
	int32_t ahead;
	struct tess_step_memory *step;
	struct tess_shaped_program **begun;
	int64_t nbegun, nfinished;
	/* sends to other stages: values of stage 0, by memory; messages of stage 1, by step */
	struct tess_sends sends;
	float *logits; /* a copy of the device's logits; room for nlogits rows */
	int64_t nlogits;
	bool check; /* TESSERA_CHECK */
	char *pattern; /* of modules whose values are kept; NULL: none */
	struct tess_value_store values;
	struct tess_chooser chooser;
};

/* Opens the chooser, which stays unused if the device cannot choose ids. Collective. */
tess_status tess_chooser_open(struct tess_runner *s);
void tess_chooser_close(struct tess_runner *s);

/*
 * Reserves pages for the rows. The calls that reserve memory of a step are collective, and set
 * `step.moved` if it moves. TESS_ENOMEM: a slot keeps the pages it has got.
 */
tess_status tess_runner_reserve_pages(struct tess_runner *s, const struct tess_rows *rows,
                                      int64_t n);
/*
 * Queues a step of program *out; `root` gets the logits. chosen: its rows are one for each id that
 * the last step chose.
 */
tess_status tess_runner_queue_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                                   int32_t root, bool chosen, struct tess_shaped_program **out);
/* Reserves host memory for the logits of a step of these rows. Collective. */
tess_status tess_runner_reserve_logits(struct tess_runner *s, const struct tess_rows *rows,
                                       int64_t n);
/* Advances the slots past the rows of a queued step. */
void tess_runner_advance(struct tess_runner *s, const struct tess_rows *rows, int64_t n);
/* Queues a copy of the ids that the last step chose into the inputs of the next one. */
tess_status tess_chooser_feed(struct tess_runner *s);
/*
 * Checks free memory after the device was opened. TESS_ENOMEM: the weights of this rank, or the
 * requested KV cache, are larger; the message has the sizes, and what would fit.
 */
tess_status tess_runner_check_room(const struct tess_runner *s);
/* Reserves inputs and rope tables, for a step of `like` whose positions end before `end`. */
tess_status tess_runner_reserve_buffers(struct tess_runner *s, const struct tess_shape *like,
                                        int64_t end);

#endif

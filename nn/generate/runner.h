/*
 * runner.h - runs a model on this rank: its weights, programs, KV cache and device.
 *
 * A slot contains one sequence: the keys and values of the ids of earlier steps. A step takes rows
 * of any slots. The bits of a row do not depend on the other rows of its step.
 *
 * All calls except getters are collective: every rank of the group makes the same calls in the same
 * order, with the same arguments, in the default floating-point state (tessera/util/float.h). A
 * failure on one rank fails all ranks. The ranks of several groups open their runners together, but
 * run separately.
 */
#ifndef TESS_NN_RUNNER_H
#define TESS_NN_RUNNER_H

#include "core/world/mesh_shape.h"
#include "nn/generate/sample.h"
#include "nn/program/plan.h"
#include "nn/program/source.h"
#include "nn/run/profile.h"
#include "nn/run/values.h"
#include "nn/weights/decide.h"
#include "nn/weights/device.h"

#include <stdbool.h>
#include <tessera/tessera.h>

struct tess_runner;

struct tess_runner_parts { /* borrowed for the life of the runner */
	const struct tess_model *model;
	const struct tess_plan *plan;
	const struct tess_source *source;
	struct tess_group *group; /* the ranks of `mesh`, in its order, which run the program */
	struct tess_group *all; /* ranks that open runners together; NULL: `group` */
	struct tess_mesh_shape mesh; /* ndims 0: tp, over `group` */
	struct tess_group *along[TESS_MESH_DIMS]; /* the group of each dimension */
	int32_t threads; /* per rank; 0: TESSERA_THREADS, else this rank's share of the CPUs */
	int64_t positions; /* maximum length of a sequence; 0: no limit */
	int32_t kv_dtype; /* dtype of the KV cache: TESS_F32, TESS_BF16; 0: the device's default */
	int32_t weights; /* linear weights in memory: 0: as in the files; TESS_Q8, ... */
	int32_t math; /* dtype of linear products: 0 or TESS_F32; TESS_BF16, with bf16 weights */
	/* large weights are read from the checkpoint's files before each use: nn/weights/fetch.h */
	bool offload_weights;
	uint64_t kv_memory; /* bytes of KV cache on each rank; 0: 7/8 of its share of free memory */
	const char *values; /* see tess_session_options; copied; NULL: none */
	bool stores_values; /* the values of steps are stored; false: of another replica */
};

/* Records and checks the program, compares it between ranks, and loads this rank's weights. */
tess_status tess_runner_new(const struct tess_runner_parts *parts, struct tess_runner **out);

/* Opens the lowest slot that is not open, without ids. The number of slots is not limited. */
tess_status tess_runner_open_slot(struct tess_runner *s, int32_t *slot);
/* Drops the slot's ids, and frees its part of the KV cache. Does nothing unless it is open. */
void tess_runner_close_slot(struct tess_runner *s, int32_t slot);
/* Returns the position of the slot's next row, the number of its ids. Not open: 0. */
int64_t tess_runner_get_length(const struct tess_runner *s, int32_t slot);
/*
 * Drops the slot's ids from `length` on, which is at most their number. Returns false, without a
 * change, if a window has passed keys and values that the next row would attend to.
 */
bool tess_runner_rewind_slot(struct tess_runner *s, int32_t slot, int64_t length);

struct tess_rows { /* the next ids of one slot */
	int32_t slot;
	int64_t n; /* at least 1 */
	int64_t nselected; /* the last rows, 0 to n, whose logits are requested */
	const int32_t *ids;
};

/*
 * Runs rows of n distinct slots. *logits: f32 [selected rows, vocabulary], in the order of rows, on
 * rank `root` (-1: on all ranks), borrowed until the next step; NULL on other ranks, or if no row
 * is selected. NaNs have one bit pattern. With root TESS_LOGITS_CUT, if tess_runner_keeps_logits,
 * logits stay in the stage of the head: each rank gets its part of each row of cut logits, or the
 * first rank of the stage gets complete rows.
 *
 * A refused step changes no slot, and other steps may follow. TESS_EINVAL: a slot that is not open
 * or not distinct, an id outside the vocabulary, too many positions. TESS_ENOMEM: the KV cache has
 * no room for these rows; close a slot, or use fewer rows.
 */
tess_status tess_runner_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                             int32_t root, const float **logits);

/*
 * The parts of a step, of which tess_runner_count_ahead may be under way. Steps are finished in the
 * order in which they were begun. A slot may have rows in several of them.
 *
 * tess_runner_begin_step begins a step; its ids are read before it returns.
 *
 * tess_runner_finish_step finishes the oldest one. *logits: as for tess_runner_step.
 *
 * tess_runner_settle waits for all sends to other stages, after all steps were finished, or after a
 * failure. Their data are not in use any more.
 */
tess_status tess_runner_begin_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                                   int32_t root);
tess_status tess_runner_finish_step(struct tess_runner *s, const float **logits);
tess_status tess_runner_settle(struct tess_runner *s);
/* Returns the number of the next step: how many began before it. */
int64_t tess_runner_get_next_step(const struct tess_runner *s);
/* Returns how many steps may be under way: on a pipeline the number of stages, else 1. */
int32_t tess_runner_count_ahead(const struct tess_runner *s);

/*
 * Steps with ids chosen by the device, which can be queued before the previous step is done.
 *
 * tess_runner_choose queues a step of at most TESS_CHOSEN_MAX rows, in which selected row i chooses
 * an id by draws[i]. chosen: it has one row for each id that the last step chose, and `ids` of rows
 * are not read.
 *
 * tess_runner_read_chosen waits for the oldest unread step, of at most two. It returns ids[i] of
 * selected row i on rank 0, borrowed until the next call; NULL on other ranks.
 */
enum { TESS_CHOSEN_MAX = 1024 }; /* rows */
struct tess_chosen { /* a value: a row of the out of TESS_OP_SAMPLE */
	int32_t id;
	int32_t odd, first_odd; /* non-finite logits: their number, and the id of the first */
	int32_t is_nan; /* 1: the first one is NaN */
};
bool tess_runner_can_choose(const struct tess_runner *s);
/*
 * Sets the ids of a set, 0 to TESS_CHOSEN_MAX - 1, before a step with penalties: those of a
 * sequence. Chosen ids are added to it. There must be no unread step.
 */
tess_status tess_runner_send_seen(struct tess_runner *s, int32_t set, const int32_t *ids,
                                  int64_t n);
tess_status tess_runner_choose(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                               const struct tess_draw *draws, bool chosen);
tess_status tess_runner_read_chosen(struct tess_runner *s, const struct tess_chosen **ids);
/* Waits for unread steps after a failure, whose message stays. */
void tess_runner_drop_chosen(struct tess_runner *s);

struct tess_vocabulary_cut { /* a value: how the head cuts the logits */
	struct tess_group *group; /* ranks with the parts of a row, in order; NULL: uncut */
	const struct tess_dim *vocabulary;
	struct tess_profile *profile; /* profile of the runner, or NULL */
};
struct tess_vocabulary_cut tess_runner_get_vocabulary_cut(const struct tess_runner *s);

struct tess_group *tess_runner_group(const struct tess_runner *s);
int64_t tess_runner_vocabulary(const struct tess_runner *s);
/* Returns whether logits may stay where they are computed, see tess_runner_step. */
bool tess_runner_keeps_logits(const struct tess_runner *s);

struct tess_runner_stages { /* a value: the place of this rank among stages; n 1: no pipeline */
	struct tess_group *along; /* ranks of all stages with this rank's other coordinates */
	int32_t n, stage; /* this rank's stage */
	int32_t logits; /* the stage that computes the logits */
	bool first; /* the first rank of its stage: the other coordinates are 0 */
};
struct tess_runner_stages tess_runner_get_stages(const struct tess_runner *s);
/*
 * Messages of n 32-bit words to and from the rank of another stage with this rank's other
 * coordinates. A send is started; its data are in use until tess_runner_wait_for_messages, for
 * those of a step's number.
 */
tess_status tess_runner_send(struct tess_runner *s, int32_t stage, const void *data, int64_t n,
                             const char *where, int64_t step);
tess_status tess_runner_receive(struct tess_runner *s, int32_t stage, void *data, int64_t n,
                                const char *where);
tess_status tess_runner_wait_for_messages(struct tess_runner *s, int64_t step);
/* Broadcasts n 32-bit words from the first rank of a stage to its other ranks. */
tess_status tess_runner_broadcast_in_stage(const struct tess_runner *s, void *data, uint64_t n,
                                           const char *where);
/*
 * Returns the default number of prompt rows in a step: the device's. A pipeline has fewer, since
 * its stages compute several steps of a prompt at a time.
 */
int64_t tess_runner_get_prompt_rows(const struct tess_runner *s);
/* Returns the maximum length of a sequence; 0: no limit. */
int64_t tess_runner_positions(const struct tess_runner *s);

/* bytes allocated on this rank, and of weights that stay in files: mapped, or read in each step */
struct tess_runner_memory {
	uint64_t weights, cache, step, mapped, offloaded;
};
struct tess_runner_memory tess_runner_get_memory(const struct tess_runner *s);

/*
 * KV-cache usage and limit (kv_memory; INT64_MAX: unknown) of the most loaded rank, in bytes, for
 * the scheduler; the same on all ranks.
 */
struct tess_runner_room {
	uint64_t used, limit;
};
struct tess_runner_room tess_runner_get_room(const struct tess_runner *s);
/*
 * Returns the default number of concurrent sequences: TESS_CHOSEN_MAX, or fewer if their logits
 * would take more than half of the device memory that the KV cache leaves.
 */
int64_t tess_runner_get_batch(const struct tess_runner *s);
/* Returns the maximum room of a sequence of this length, with at most `chunk` rows in a step. */
uint64_t tess_runner_count_room(const struct tess_runner *s, int64_t positions, int64_t chunk);

/* Returns the decisions of this rank, by index of the weight; borrowed until the next step. */
const struct tess_weight_decision *tess_runner_get_weights(const struct tess_runner *s, int32_t *n);
/* Packs all weights that are still in rows (weights.h) now, not a few before each step. */
tess_status tess_runner_pack_weights(struct tess_runner *s);
/*
 * Starts adding what steps do on this rank to *p, which is borrowed; NULL: stops. All ranks of the
 * group have a profile, or none.
 */
void tess_runner_set_profile(struct tess_runner *s, struct tess_profile *p);
struct tess_profile *tess_runner_get_profile(const struct tess_runner *s);
/* Returns the number of compute threads of this rank. */
int32_t tess_runner_count_threads(const struct tess_runner *s);

/*
 * Takes the values that steps have stored (nn/run/values.h): tess_runner_get_program's `nvalues`
 * of them on rank 0. TESS_EINVAL: the runner has no pattern.
 */
tess_status tess_runner_take_values(struct tess_runner *s, struct tess_taken_value **out);
/* Returns the recorded program of one row, borrowed. */
const struct tess_program *tess_runner_get_program(const struct tess_runner *s);

void tess_runner_free(struct tess_runner *s);

#endif

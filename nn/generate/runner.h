/*
 * runner.h - runs a model on this rank: its weights, programs, KV cache and device.
 *
 * A slot holds one text: the keys and values of the ids that steps gave it. A step takes rows of
 * any slots, and a row has the same bits whatever else is in its step.
 *
 * All calls but those that get something are collective: every rank of the group makes the same
 * ones in the same order, with the same arguments, in the default floating-point state
 * (tessera/util/float.h). A failure on one rank is a failure on all. The ranks of several groups
 * open their runners together, but run apart.
 */
#ifndef TESS_NN_RUNNER_H
#define TESS_NN_RUNNER_H

#include "core/world/mesh_shape.h"
#include "nn/generate/sample.h"
#include "nn/program/plan.h"
#include "nn/program/source.h"
#include "nn/run/profile.h"
#include "nn/weights/decide.h"
#include "nn/weights/device.h"

#include <stdbool.h>
#include <tessera/tessera.h>

struct tess_runner;

struct tess_runner_parts { /* borrowed for the life of the runner */
	const struct tess_model *model;
	const struct tess_plan *plan;
	const struct tess_source *source;
	struct tess_group *group; /* that runs the program: the ranks of `mesh`, in its order */
	struct tess_group *all; /* whose ranks open runners together; NULL: `group` */
	struct tess_mesh_shape mesh; /* ndims 0: tp, over `group` */
	struct tess_group *along[TESS_MESH_DIMS]; /* the group of each dimension */
	int32_t threads; /* per rank; 0: TESSERA_THREADS, else this rank's share of the CPUs */
	int64_t positions; /* of a text, at most; 0: any */
	int32_t kv_dtype; /* of the KV cache: TESS_F32, TESS_BF16; 0: as the device prefers */
	int32_t weights; /* linear ones, in memory: 0: as in the files; TESS_Q8, TESS_BF12 */
	int32_t math; /* of linear products: 0 or TESS_F32; TESS_BF16, of bf16 weights */
	uint64_t kv_memory; /* bytes of KV cache on each rank; 0: 7/8 of its share of free memory */
};

/* Records and checks the program, compares it between ranks, and loads this rank's weights. */
tess_status tess_runner_new(const struct tess_runner_parts *parts, struct tess_runner **out);

/* A slot without text, numbered from 0: the lowest that is not open. There may be any number. */
tess_status tess_runner_open_slot(struct tess_runner *s, int32_t *slot);
/* Forgets its text, and frees its part of the KV cache for others. Not open: nothing. */
void tess_runner_close_slot(struct tess_runner *s, int32_t slot);
/* The number of ids that steps have given it: the position of its next row. Not open: 0. */
int64_t tess_runner_get_length(const struct tess_runner *s, int32_t slot);
/*
 * Forgets its ids from `length` on, at most those that it has. False: nothing has changed, since a
 * window has passed keys and values that the next row would see.
 */
bool tess_runner_rewind_slot(struct tess_runner *s, int32_t slot, int64_t length);

struct tess_rows { /* the next ids of one slot */
	int32_t slot;
	int64_t n; /* at least 1 */
	int64_t nselected; /* the last rows, 0 to n, whose logits are wanted */
	const int32_t *ids;
};

/*
 * Runs rows of n slots, each named once. *logits: f32 [selected rows, vocabulary], those of rows[0]
 * first, on rank `root` (-1: on all ranks), borrowed until the next step; NULL elsewhere, or where
 * no row is selected. NaNs have one bit pattern. TESS_LOGITS_CUT, where logits are cut: each rank
 * gets its part of each row.
 *
 * A refusal changes no slot, and a step may follow. TESS_EINVAL: a slot that is not open or named
 * twice, an id outside the vocabulary, too many positions. TESS_ENOMEM: the KV cache has no room
 * for these rows; close a slot, or take fewer rows.
 */
tess_status tess_runner_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                             int32_t root, const float **logits);

/*
 * Where the device can choose ids, a step need not be waited for before the next one is queued.
 * tess_runner_choose queues a step, each selected row of which chooses an id, as draws[i] says: at
 * most TESS_CHOSEN_MAX rows; `chosen`: its rows are one for each id that the last step chose, whose
 * `ids` are not read. tess_runner_read_chosen waits for the oldest step that was not read, two at
 * most: ids[i] of selected row i on rank 0, borrowed until the next call; NULL elsewhere.
 */
enum { TESS_CHOSEN_MAX = 1024 }; /* rows */
struct tess_chosen { /* a value: a row of the out of TESS_OP_SAMPLE */
	int32_t id;
	int32_t odd, first_odd; /* logits that are NaN or Inf: how many, and the first */
	int32_t is_nan; /* 1: the first one is NaN */
};
bool tess_runner_can_choose(const struct tess_runner *s);
/*
 * Before a step with penalties: makes set 0 to TESS_CHOSEN_MAX - 1 that of a text with these ids;
 * what a step chooses is added. Not while a step was not read.
 */
tess_status tess_runner_send_seen(struct tess_runner *s, int32_t set, const int32_t *ids,
                                  int64_t n);
tess_status tess_runner_choose(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                               const struct tess_draw *draws, bool chosen);
tess_status tess_runner_read_chosen(struct tess_runner *s, const struct tess_chosen **ids);
/* After a failure: waits for steps that were not read. Keeps the sentence. */
void tess_runner_drop_chosen(struct tess_runner *s);

struct tess_vocabulary_cut { /* a value: how the head leaves the logits */
	struct tess_group *group; /* whose ranks have the parts of a row, in order; NULL: whole */
	const struct tess_dim *vocabulary;
	struct tess_profile *profile; /* of the runner, or NULL */
};
struct tess_vocabulary_cut tess_runner_get_vocabulary_cut(const struct tess_runner *s);

struct tess_group *tess_runner_group(const struct tess_runner *s);
int64_t tess_runner_vocabulary(const struct tess_runner *s);
/* Of a pipeline; 1: it is none. */
int32_t tess_runner_count_stages(const struct tess_runner *s);
/*
 * Of prompts in a step, as the device has it by default; of a pipeline fewer, since its stages
 * compute several steps of a prompt at a time.
 */
int64_t tess_runner_get_prompt_rows(const struct tess_runner *s);
/* The most positions that a text can have; 0: any. */
int64_t tess_runner_positions(const struct tess_runner *s);

struct tess_runner_memory { /* bytes that this rank allocated, and of weights that stay in files */
	uint64_t weights, cache, step, mapped;
};
struct tess_runner_memory tess_runner_get_memory(const struct tess_runner *s);

/*
 * For who plans steps, alike on all ranks: bytes of the KV cache on the rank that needs most, in
 * use and at most (kv_memory; INT64_MAX: the device knows no limit).
 */
struct tess_runner_room {
	uint64_t used, limit;
};
struct tess_runner_room tess_runner_get_room(const struct tess_runner *s);
/*
 * Texts that run at once by default: TESS_CHOSEN_MAX, or fewer where their logits would take more
 * than half of what the KV cache leaves of the device's memory.
 */
int64_t tess_runner_get_batch(const struct tess_runner *s);
/* The most of it that a text of so many positions uses, given `chunk` rows a step at most. */
uint64_t tess_runner_count_room(const struct tess_runner *s, int64_t positions, int64_t chunk);

/* The decisions of this rank, by index of the weight; borrowed until the next step. */
const struct tess_weight_decision *tess_runner_get_weights(const struct tess_runner *s, int32_t *n);
/* Packs all weights that are left in rows (weights.h) now, not a few before each step. */
tess_status tess_runner_pack_weights(struct tess_runner *s);
/*
 * Adds what steps do on this rank to *p from now on; NULL: no more. All ranks of the group have one
 * or none. Borrowed.
 */
void tess_runner_set_profile(struct tess_runner *s, struct tess_profile *p);
struct tess_profile *tess_runner_get_profile(const struct tess_runner *s);
/* Compute threads of this rank. */
int32_t tess_runner_count_threads(const struct tess_runner *s);

void tess_runner_free(struct tess_runner *s);

#endif

/*
 * runner.h - runs a model on this rank: its weights, programs, caches and device.
 *
 * All calls are collective: every rank of the group makes the same ones in the same order.
 */
#ifndef TESS_NN_RUNNER_H
#define TESS_NN_RUNNER_H

#include "nn/plan.h"
#include "nn/source.h"

#include <stdbool.h>
#include <tessera/tessera.h>

struct tess_runner;

struct tess_runner_parts { /* borrowed for the life of the runner */
	const struct tess_model *model;
	const struct tess_plan *plan;
	const struct tess_source *source;
	struct tess_group *group;
	int32_t threads; /* per rank; 0: TESSERA_THREADS, else this rank's share of the CPUs */
};

/*
 * Checks TESSERA_DEVICE, TESSERA_THREADS (unless `threads` is given), TESSERA_CHECK and
 * TESSERA_LAYOUT as tess_runner_new does, before there is a group.
 */
tess_status tess_runner_check_options(int32_t threads);
/* TESS_EINVAL: an id outside the vocabulary. `first`: the position of ids[0], for the sentence. */
tess_status tess_ids_check(const int32_t *ids, int64_t n, int64_t first, int64_t vocab);

/* Records and checks the program, compares it between ranks, and loads this rank's weights. */
tess_status tess_runner_new(const struct tess_runner_parts *parts, struct tess_runner **out);

/* Makes room for `positions` in the caches, and empties them. */
tess_status tess_runner_reserve(struct tess_runner *s, int64_t positions);

/*
 * Runs `n` ids at the next positions. *logits: f32 [1, vocabulary] of the last id, or with `all`
 * [n, vocabulary]; borrowed until the next step. TESS_EINVAL: an id outside the vocabulary, or no
 * room in the caches.
 */
tess_status tess_runner_step(struct tess_runner *s, const int32_t *ids, int64_t n, bool all,
                             const float **logits);

struct tess_group *tess_runner_group(const struct tess_runner *s);
int64_t tess_runner_vocabulary(const struct tess_runner *s);

struct tess_runner_memory { /* bytes that this rank allocated */
	uint64_t weights, cache, step;
};
struct tess_runner_memory tess_runner_get_memory(const struct tess_runner *s);

void tess_runner_free(struct tess_runner *s);

extern const struct tess_option tess_runner_options[];

#endif

/*
 * session.h - a checkpoint that runs: this rank's weights, programs, caches and device.
 *
 * All calls are collective: every rank of the group makes the same ones in the same order.
 */
#ifndef TESS_NN_SESSION_H
#define TESS_NN_SESSION_H

#include "nn/plan.h"
#include "nn/source.h"

#include <stdbool.h>
#include <tessera/tessera.h>

struct tess_session;

struct tess_session_parts {             /* all borrowed, for the life of the session */
	const struct tess_model *model;
	const struct tess_plan *plan;
	const struct tess_source *source;
	struct tess_group *group;
	int32_t threads;                /* per rank; 0: TESSERA_THREADS, else this rank's share of the CPUs */
};

/* Records and checks the program, compares it between the ranks, loads this rank's weights. */
tess_status tess_session_new(const struct tess_session_parts *parts, struct tess_session **out);

/* Room for `positions` in the caches. What was cached is forgotten. */
tess_status tess_session_reserve(struct tess_session *s, int64_t positions);

/* Forgets positions from `at` on: the next step starts there. */
void tess_session_rewind(struct tess_session *s, int64_t at);

/*
 * Runs `n` ids (i32) at the next positions. *logits: f32 [1, vocabulary] of the last, or [n, vocabulary] with `all`; borrowed
 * until the next step. TESS_EINVAL: an id outside the vocabulary, no room.
 */
tess_status tess_session_step(struct tess_session *s, const int32_t *ids, int64_t n, bool all,
                              const float **logits);

int64_t tess_session_vocabulary(const struct tess_session *s);

struct tess_session_memory { uint64_t weights, cache, step; };         /* bytes that this rank allocated */
struct tess_session_memory tess_session_used(const struct tess_session *s);

void tess_session_free(struct tess_session *s);

extern const struct tess_option tess_session_options[];

#endif

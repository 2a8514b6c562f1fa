/*
 * world.h - the inside of a world, one rank's end of a job.
 *
 * The link (link.h) reports the job's first failure here. Then the world has failed: its groups are
 * aborted, so that pending calls return soon, and every later call returns that failure's sentence.
 */
#ifndef TESS_GROUP_WORLD_H
#define TESS_GROUP_WORLD_H

#include "core/flight/flight.h"
#include "core/rendezvous/link.h"
#include "core/rendezvous/rendezvous.h"

#include <pthread.h>
#include <stdatomic.h>
#include <tessera/tessera.h>

struct tess_rank_env;

struct tess_world {
	int32_t rank, size;
	int64_t timeout; /* of a call, ns */
	bool fast; /* TESSERA_REDUCE: sums in any order */
	bool threads, hosts; /* the ranks are threads; on several hosts */
	const struct tess_backend *backend;
	struct tess_store store; /* the link's keys, for backends */
	struct tess_link link;
	struct tess_failure_handler handler;
	struct tess_coordinator *coordinator; /* in a world of one rank; else NULL */
	struct tess_rendezvous *server; /* on rank 0, if it hosts the rendezvous; else NULL */
	struct tess_group *all;
	struct tess_flight *flight; /* of the calls in all groups; NULL: not recorded */
	atomic_int failed; /* the status; once set, `first` does not change */
	atomic_bool reported; /* a call has returned the failure */
	struct tess_failure first;
	char agreed[TESS_SENTENCE]; /* the last message of the two functions for it; "": none */
	pthread_mutex_t lock; /* for `first` and the list of groups */
	pthread_cond_t failed_cond;
	struct tess_group *groups; /* the newest first */
	atomic_uint splits; /* groups split by this rank, for ids */
	int32_t ngenerating; /* calls that run callbacks of the program */
	bool left; /* tess_world_leave was called */
	bool warned; /* that calls are emulated */
	bool staged; /* a call went through host memory, and rank 0 has said so */
};

extern const struct tess_option tess_world_options[];

/* TESS_EINVAL: an option that every world reads has an invalid value. */
tess_status tess_world_check_options(void);

/* ---- failure (world_failure.c) ------------------------------------------------------------- */

/* The handlers of the world's link: arg is the world. */
void tess_world_handle_failure(void *arg, const struct tess_failure *f);
void tess_world_handle_record(void *arg);

/* The first failure, with its sentence. */
tess_status tess_world_failure(struct tess_world *w);
/* TESS_OK, or the first failure. Inline: every call checks three times. */
static inline tess_status tess_world_check(struct tess_world *w)
{
	return atomic_load(&w->failed) ? tess_world_failure(w) : TESS_OK;
}
/* Posts a failure that names this rank; returns the job's first failure, which may be another. */
tess_status tess_world_post_failure(struct tess_world *w, tess_status why, const char *sentence);
/* This rank's deadline has passed in n calls; returns as tess_world_post_failure. */
tess_status tess_world_deadline_passed(struct tess_world *w, const struct tess_call_key *key,
                                       int32_t n, const char *sentence);
/* A backend has failed: waits briefly for a cause that names a rank, else posts its sentence. */
tess_status tess_world_backend_failed(struct tess_world *w, tess_status why, const char *sentence);
/*
 * All ranks of the group call it with one failure that they have found together: the message of
 * this thread, which names the ranks it is about, is posted without the rank that posts it.
 */
tess_status tess_group_fail_together(struct tess_group *g, tess_status why);
/*
 * All ranks of the group call it with the failure of its rank `rank`: sets "rank R: SENTENCE", R in
 * the world, which tess_world_fail posts as it is, and returns `why`. A failure that was found
 * together gets no prefix.
 */
tess_status tess_group_fail_agreed(struct tess_group *g, int32_t rank, tess_status why,
                                   const char *sentence);

/* ---- opening ------------------------------------------------------------------------------- */

/* Opens the link to the job, and on rank 0 the server if no launcher hosts it. Collective. */
tess_status tess_world_connect(struct tess_world *w, const struct tess_rank_env *env);

/* For backends, on rank 0: its address; "": one host, "?": a library connects the ranks. */
tess_status tess_world_set_meeting(struct tess_world *w, const char *address);

/* A world without a link. TESS_EINVAL: an option is invalid. */
tess_status tess_world_make(int32_t rank, int32_t size, struct tess_world **out);

/* Opens the rest of a world that has its link. Collective. */
tess_status tess_world_enter(struct tess_world *w, bool threads, bool hosts);

/*
 * Runs `fn` like tess_world_spawn, over any backend that joins threads: for tests of backends and
 * `tessera conform`.
 */
tess_status tess_world_spawn_threads(int32_t n,
                                     tess_status (*fn)(struct tess_world *world, void *arg),
                                     void *arg);

/* TESS_EINVAL: tess_world_spawn refuses the option "backend" for `n` ranks. */
tess_status tess_world_check_spawn(int32_t n);

/* Finishes the calls of its groups, and leaves the job. */
void tess_world_leave(struct tess_world *w);

void tess_world_destroy(struct tess_world *w);

/* Reports that this rank has begun to open group `id`. */
void tess_opening_post(struct tess_world *w, uint32_t id, int32_t nranks);
/* The opening failed: returns the job's first failure, after a deadline with a missing rank. */
tess_status tess_opening_failed(struct tess_world *w, uint32_t id, tess_status why,
                                const char *sentence);

#endif

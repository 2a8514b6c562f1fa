/*
 * world.h - the inside of a world, one rank's end of a job.
 *
 * Whatever goes wrong, the link (link.h) reports the job's first failure here; the world has failed then: its groups
 * are aborted, so that what waits returns soon, and every later call returns the sentence of that failure.
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
	int64_t timeout; /* ns that a call has */
	bool fast; /* TESSERA_REDUCE: sums in any order */
	const struct tess_backend *backend;
	struct tess_store store; /* the line, as backends see it */
	struct tess_link link;
	struct tess_failure_handler handler;
	struct tess_coordinator *coordinator; /* ours, where we are alone; else NULL */
	struct tess_rendezvous *server; /* ours, where rank 0 hosts it */
	struct tess_group *all;
	struct tess_flight *flight; /* of the calls in all groups; NULL: not recorded */
	atomic_int failed; /* the status; then `first` does not change any more */
	atomic_bool reported; /* a call has returned the failure */
	struct tess_failure first;
	pthread_mutex_t lock; /* of `first` and the list of groups */
	pthread_cond_t failed_cond;
	struct tess_group *groups; /* the newest first */
	atomic_uint splits; /* groups that were split here, for ids */
	bool left; /* it has said goodbye */
	bool warned; /* of calls that the backend lacks */
};

extern const struct tess_option tess_world_options[];

/* TESS_EINVAL where an option that every world reads has no value that it may have. */
tess_status tess_world_check_options(void);

/* ---- failure (world_failure.c) --------------------------------------------------------------------- */

/* The handlers of the world's link: arg is the world. */
void tess_world_handle_failure(void *arg, const struct tess_failure *f);
void tess_world_handle_record(void *arg);

/* The first failure, with its sentence. */
tess_status tess_world_failure(struct tess_world *w);
/* TESS_OK, or the first failure: inline, since every call asks three times. */
static inline tess_status tess_world_check(struct tess_world *w)
{
	return atomic_load(&w->failed) ? tess_world_failure(w) : TESS_OK;
}
/* Posts a failure that names this rank; returns the job's first failure, which may be another. */
tess_status tess_world_post_failure(struct tess_world *w, tess_status why, const char *sentence);
/* This rank's deadline has passed in these calls; returns as tess_world_post_failure. */
tess_status tess_world_deadline_passed(struct tess_world *w, const struct tess_call_key *key,
                                       int32_t n, const char *sentence);
/* A backend has failed: waits a little for a cause that names a rank, else posts the backend's sentence. */
tess_status tess_world_backend_failed(struct tess_world *w, tess_status why, const char *sentence);

/* ---- opening --------------------------------------------------------------------------------------- */

/* The link to the job, and on rank 0 the server, where no launcher hosts it. With all other ranks. */
tess_status tess_world_connect(struct tess_world *w, const struct tess_rank_env *env);

/* A world without a line, where the options are right. */
tess_status tess_world_make(int32_t rank, int32_t size, struct tess_world **out);

/* The line is there: what remains, together with all other ranks. */
tess_status tess_world_enter(struct tess_world *w, bool threads, bool hosts);

/* Says goodbye, if that is still worth it. */
void tess_world_leave(struct tess_world *w);

void tess_world_destroy(struct tess_world *w);

/*
 * This rank comes to the opening of a group of its own, as all members do; what became of it where that has
 * failed: the job's first failure, which after the deadline names a rank that has not come.
 */
void tess_opening_post(struct tess_world *w, uint32_t id, int32_t nranks);

tess_status tess_opening_failed(struct tess_world *w, uint32_t id, tess_status why,
                                const char *sentence);

#endif

/*
 * world.h - the internals of a world, one rank's end of a job.
 *
 * The link (link.h) reports the job's first failure. Then the world has failed: its groups are
 * aborted, so that pending calls return soon, and every later call returns that failure's message.
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
	int64_t timeout; /* timeout of a call, ns */
	bool fast; /* TESSERA_REDUCE: sums in any order */
	bool threads, hosts; /* the ranks are threads; on several hosts */
	const void *job; /* the coordinator of ranks that are threads (plugin_frame.h); else NULL */
	const struct tess_backend *backend;
	struct tess_store store; /* the link's keys, for backends */
	struct tess_link link;
	struct tess_failure_handler handler;
	struct tess_coordinator *coordinator; /* a world of one rank only, else NULL */
	struct tess_rendezvous *server; /* on rank 0, if it hosts the rendezvous; else NULL */
	struct tess_group *all;
	struct tess_flight *flight; /* records the calls of all groups; NULL: not recorded */
	atomic_int failed; /* the status; once set, `first` does not change */
	atomic_bool reported; /* a call has returned the failure */
	struct tess_failure first;
	char agreed[TESS_SENTENCE]; /* the last message of tess_group_fail_*; "": none */
	pthread_mutex_t lock; /* guards `first` and the list of groups */
	pthread_cond_t failed_cond;
	struct tess_group *groups; /* the newest first */
	struct tess_work *background; /* started works that nobody waits for yet (background.h) */
	struct tess_buffer *buffers; /* freed after a failure, kept for late writes */
	atomic_uint splits; /* number of groups split by this rank, for ids */
	int32_t ngenerating; /* running calls with callbacks of the program */
	bool spawned; /* tess_world_spawn closes it */
	bool left; /* tess_world_leave was called */
	bool warned; /* emulated calls were logged */
	bool staged; /* a call through host memory was logged on rank 0 */
};

extern const struct tess_option tess_world_options[];

/* Fails with TESS_EINVAL if an option that every world reads has an invalid value. */
tess_status tess_world_check_options(void);

/* ---- failure (world_failure.c) ------------------------------------------------------------- */

/* Handlers of the world's link; arg is the world. */
void tess_world_handle_failure(void *arg, const struct tess_failure *f);
void tess_world_handle_record(void *arg);

/* Returns the first failure, with its message. */
tess_status tess_world_failure(struct tess_world *w);
/* Returns TESS_OK or the first failure. Inline, since every call checks three times. */
static inline tess_status tess_world_check(struct tess_world *w)
{
	return atomic_load(&w->failed) ? tess_world_failure(w) : TESS_OK;
}
/* Posts a failure that names this rank; returns the job's first failure, which may be another. */
tess_status tess_world_post_failure(struct tess_world *w, tess_status why, const char *sentence);
/* Reports a passed deadline of this rank in n calls; returns like tess_world_post_failure. */
tess_status tess_world_deadline_passed(struct tess_world *w, const struct tess_call_key *key,
                                       int32_t n, const char *sentence);
/* Reports a failed backend: waits briefly for a cause with a rank, else posts its message. */
tess_status tess_world_backend_failed(struct tess_world *w, tess_status why, const char *sentence);
/*
 * Posts a failure that all ranks of the group have found together and pass in. The message of this
 * thread, which names the ranks concerned, is posted without the posting rank.
 */
tess_status tess_group_fail_together(struct tess_group *g, tess_status why);
/*
 * Sets the failure of rank `rank`, which all ranks of the group pass in: "rank R: MESSAGE", R in
 * the world, posted unchanged by tess_world_fail. Returns `why`. A failure that was found together
 * gets no prefix.
 */
tess_status tess_group_fail_agreed(struct tess_group *g, int32_t rank, tess_status why,
                                   const char *sentence);

/* ---- opening ------------------------------------------------------------------------------- */

/* Opens the link to the job, and on rank 0 the server if no launcher hosts it. Collective. */
tess_status tess_world_connect(struct tess_world *w, const struct tess_rank_env *env);

/* Sets rank 0's address for backends; "": one host, "?": a library connects the ranks. */
tess_status tess_world_set_meeting(struct tess_world *w, const char *address);

/*
 * Makes a world without a link. flight: memory for its flight recorder, or NULL. TESS_EINVAL: an
 * option is invalid.
 */
tess_status tess_world_make(int32_t rank, int32_t size, void *flight, struct tess_world **out);

/* Opens a world like tess_world_open. flight: memory for its flight recorder, or NULL. */
tess_status tess_world_open_recorded(void *flight, struct tess_world **out);

/* Opens the rest of a world that has its link. Collective. */
tess_status tess_world_enter(struct tess_world *w, bool threads, bool hosts);

/*
 * Runs fn(world, arg), reports its failure to all ranks, and leaves and destroys the world. Returns
 * the failure of fn, else that of the job.
 */
tess_status tess_world_run(struct tess_world *w,
                           tess_status (*fn)(struct tess_world *world, void *arg), void *arg);

/*
 * Runs `fn` on threads like tess_world_spawn, over any backend that joins them: also for tests of
 * backends, for `tessera conform`, and for commands whose ranks are threads. abandoned: whether a
 * thread may still use what `arg` points to; NULL: not needed.
 */
tess_status tess_world_run_threads(int32_t n,
                                   tess_status (*fn)(struct tess_world *world, void *arg),
                                   void *arg, bool *abandoned);
tess_status tess_world_spawn_threads(int32_t n,
                                     tess_status (*fn)(struct tess_world *world, void *arg),
                                     void *arg);

/* Fails with TESS_EINVAL if threads cannot be the ranks of the option "backend". */
tess_status tess_world_check_threads(void);

/* Returns the number of worlds of this process, which have threads. */
int32_t tess_world_count_open(void);

/* Finishes the calls of the world's groups, and leaves the job. */
void tess_world_leave(struct tess_world *w);

void tess_world_destroy(struct tess_world *w);

/* Reports that this rank has begun to open group `id`. */
void tess_opening_post(struct tess_world *w, uint32_t id, int32_t nranks);
/* Returns the job's first failure after a failed opening; at a deadline with a missing rank. */
tess_status tess_opening_failed(struct tess_world *w, uint32_t id, tess_status why,
                                const char *sentence);

#endif

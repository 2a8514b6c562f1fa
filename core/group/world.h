/*
 * world.h - the inside of worlds and groups.
 *
 * A world is one rank's end of a job. Whatever goes wrong, a line (link.h) brings the job's first failure
 * here; it poisons the world: groups are aborted, so that what waits returns soon, and every later call
 * returns that first sentence.
 */
#ifndef TESS_COMM_WORLD_H
#define TESS_COMM_WORLD_H

#include "core/flight/flight.h"
#include "core/rendezvous/link.h"
#include "core/rendezvous/rendezvous.h"
#include "shared_region.h"
#include "call_shape.h"
#include "core/base/ticks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <tessera/stream.h>
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

struct tess_group {
	struct tess_group *next; /* the world's */
	struct tess_world *world;
	const struct tess_backend *backend;
	void *self; /* the backend's; NULL: one rank, which needs none */
	void *p2p_channel; /* a second one, for what is made of messages: they must not meet the program's */
	int32_t rank, size;
	struct tess_members *members;
	char key[TESS_MEMBERS_KEY]; /* its name, unique in the job */
	uint64_t calls; /* collectives so far */
	uint64_t *sent, *received; /* messages to and from each rank so far */
	struct tess_ticks ticks; /* the time, for each call */
	struct tess_call_shape
		shape[TESS_RECV + 1]; /* of the last call of each kind that had no lists */
	struct tess_call_desc *desc; /* of the last call */
	const struct tess_call_shape *described; /* of which shape it is; NULL: not known */
	bool unreported; /* nobody was told of it */
	int64_t report_at; /* when somebody is to be told of a call again */
	struct tess_work *live, *spare;
	float *scratch; /* of exact sums, kept between them */
	size_t scratch_bytes;
	void *lists; /* the same: entries for each rank */
	struct tess_store_policy store_policy[TESS_STORE_POLICIES]; /* of exact sums in rooms */
	struct tess_shared_region *regions; /* memory that all its ranks address */
	int64_t nregions; /* so far */
};

/* TESS_EINVAL where an option that every world reads has no value that it may have. */
tess_status tess_world_check_options(void);

struct tess_work_call { /* of a batch */
	struct tess_coll coll;
	struct tess_call_key key;
	uint64_t flight;
	bool unreported; /* the others do not know of it */
};

struct tess_work {
	struct tess_work *next;
	struct tess_group *group;
	struct tess_coll coll; /* complete; what the backend was given */
	struct tess_call_key key;
	void *work; /* the backend's */
	struct tess_emulation *emulation; /* instead, where the backend lacks what it is */
	uint64_t flight; /* its number in the recorder */
	struct tess_work_call *batch; /* its calls; `coll`: the first, the earliest deadline */
	uint32_t n; /* of them */
	int64_t report_at; /* from when on the others are told where this rank is; 0: they were */
	tess_status state; /* PENDING, OK or failed */
};

extern const struct tess_option tess_world_options[];

/* TESS_OK, or the first failure with its sentence: inline, for every call asks three times. */
tess_status tess_world_failure(struct tess_world *w);
static inline tess_status tess_world_check(struct tess_world *w)
{
	return atomic_load(&w->failed) ? tess_world_failure(w) : TESS_OK;
}
/* Posts a failure that names this rank, and returns what became of it: the job's first one, poisoned. */
tess_status tess_world_post_failure(struct tess_world *w, tess_status why, const char *sentence);
/* This rank's deadline has passed in these calls. As above. */
tess_status tess_world_deadline_passed(struct tess_world *w, const struct tess_call_key *key,
                                       int32_t n, const char *sentence);
/* A backend has failed: waits a little for a cause that names a rank, else posts the backend's words. */
tess_status tess_world_backend_failed(struct tess_world *w, tess_status why, const char *sentence);

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

/* The line to the job, and on rank 0 the server, where nobody else hosts it. With all other ranks. */
tess_status tess_world_connect(struct tess_world *w, const struct tess_rank_env *seat);

/* The group of all ranks. Collective. */
tess_status tess_group_open_all(struct tess_world *w, struct tess_group **out);
/* Waits for what is under way, as the others may need this rank for it; at once after a failure. */
void tess_group_finish(struct tess_group *g);
/* Before this rank leaves: how far it came. */
void tess_group_report_last(struct tess_group *g);

/* ---- a call, step by step ------------------------------------------------------------------------- */

enum { TESS_SLOW = 5 * 1000 * 1000 }; /* ns; the others are told of a call that takes longer */

/* The shape of the last call of that kind; NULL: there is no such kind. */
static inline struct tess_call_shape *tess_group_shape(struct tess_group *g, int32_t kind)
{
	return kind > 0 && kind <= TESS_RECV ? &g->shape[kind] : NULL;
}
/* The next of its channel. A message has one channel per pair and direction, seen alike at both ends. */
static inline struct tess_call_key tess_call_number(struct tess_group *g, const struct tess_coll *c)
{
	uint32_t n = (uint32_t)g->size, me = (uint32_t)g->rank, peer = (uint32_t)c->peer;
	struct tess_call_key key = { .group = g->members->id };

	if (c->kind == TESS_SEND) {
		key.channel = 1 + me * n + peer;
		key.number = ++g->sent[peer];
	} else if (c->kind == TESS_RECV) {
		key.channel = 1 + peer * n + me;
		key.number = ++g->received[peer];
	} else {
		key.number = ++g->calls;
	}
	return key;
}
/*
 * Writes down what the call is, for others and for the recorder, where it has the number `flight`.
 * shape: it has, or NULL.
 */
static inline void tess_call_describe(struct tess_group *g, const struct tess_coll *c,
                                      const struct tess_call_key *key,
                                      const struct tess_call_shape *shape, uint64_t flight,
                                      int64_t now)
{
	if (shape && shape == g->described)
		tess_call_desc_repeat(g->desc, c->fingerprint, key->number, c->where);
	else
		tess_call_desc_write(g->desc, c, key, g->size);
	g->described = shape;
	g->unreported = true;
	tess_flight_begin(g->world->flight, flight, g->key, g->desc, now);
}
/*
 * Tells the others of the call noted last. Where the backend compares calls, they are told only of those that
 * take long, now and then (g->due) of one that does not, and of the last: who makes a call has made all
 * that come before it.
 */
void tess_call_report(struct tess_group *g, int64_t now);
/* A work for a call, among those that are under way. NULL: no memory. */
struct tess_work *tess_work_take(struct tess_group *g);
/*
 * The call has failed here, with the backend's sentence: what the job's first failure is. A backend that has
 * run out of time before `deadline` has heard so from another rank, who says it better.
 */
tess_status tess_work_failed(struct tess_work *w, tess_status why, int64_t deadline);
/* The work is over. After a failure it is kept until the group is closed: a late write must find it. */
void tess_work_drop(struct tess_work *w);
/* Gives the backend what it holds for the work; its own memory stays, for late writes. */
void tess_work_release_backend(struct tess_work *w);
void tess_work_free(struct tess_work *w); /* all but itself */
/* One wait in one of the backend's groups, that a failure of the world ends; TESS_ETIMEOUT: late. */
tess_status tess_group_wait_work(struct tess_group *g, void *self, void *work, int64_t deadline);
/* So that all that waits in the group returns soon. */
void tess_group_abort(struct tess_group *g);

#endif

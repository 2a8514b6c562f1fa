/* call.h - the steps of a call (call.c), for those who make several at once or need a part of them. */
#ifndef TESS_GROUP_CALL_H
#define TESS_GROUP_CALL_H

#include "group.h"

enum {
	TESS_SLOW = 5 * 1000 * 1000
}; /* ns; a call that takes longer is reported to the other ranks */

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
 * Checks `c` and completes it with what was left out, the deadline counted from `now`. *shape: that it has, if that is
 * kept; else NULL.
 */
tess_status tess_call_complete(struct tess_group *g, const struct tess_coll *c, int64_t now,
                               struct tess_coll *out, struct tess_call_shape **shape);
/* The fingerprint of call `key`; shape: it has, or NULL. */
uint64_t tess_call_compute_fingerprint(const struct tess_group *g, const struct tess_coll *c,
                                       const struct tess_call_key *key,
                                       const struct tess_call_shape *shape);
/* *has: the backend has such calls; else they are emulated, of which rank 0 warns once. */
tess_status tess_call_query_backend(const struct tess_group *g, const struct tess_coll *c,
                                    bool *has);

/*
 * Reports the call that was described last to the coordinator. Where the backend compares calls, only those are
 * reported that take long, from time to time (g->report_at) one that does not, and the last one: a rank that has made a
 * call has made all that come before it.
 */
void tess_call_report(struct tess_group *g, int64_t now);
/* The last call, if it is not reported yet. */
void tess_group_report_last(struct tess_group *g);
/* All calls of the work that are not reported yet. */
void tess_work_report(struct tess_work *w);

/* A work for a call, among those that are under way. NULL: no memory. */
struct tess_work *tess_work_take(struct tess_group *g);
/* How it has ended, for its caller and for the flight recorder; returns `st`. */
tess_status tess_work_settle(struct tess_work *w, tess_status st);
/*
 * The call has failed here, with the backend's sentence: returns the job's first failure. A backend that gives up
 * before `deadline` has heard of a cause on another rank, which is waited for.
 */
tess_status tess_work_failed(struct tess_work *w, tess_status why, int64_t deadline);
/* What has been started becomes the caller's; what could not be stays with the group. */
tess_status tess_work_hand_out(struct tess_work *w, tess_status st, struct tess_work **out);
/* The work is over. After a failure it is kept until the group is closed: a late write must find its buffers. */
void tess_work_drop(struct tess_work *w);
/* Gives back to the backend what it holds for the work; the memory of the work stays, for late writes. */
void tess_work_release_backend(struct tess_work *w);
/* What the work holds, but not itself. */
void tess_work_free(struct tess_work *w);

#endif

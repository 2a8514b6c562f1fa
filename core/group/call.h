/* call.h - the steps of a call (call.c), for batches and for the other files of core/group. */
#ifndef TESS_GROUP_CALL_H
#define TESS_GROUP_CALL_H

#include "core/group/group.h"

/* ns; a call that takes longer is reported to the coordinator */
enum { TESS_SLOW = 5 * 1000 * 1000 };

/* The shape of the last call of that kind; NULL: unknown kind. */
static inline struct tess_call_shape *tess_group_shape(struct tess_group *g, int32_t kind)
{
	return kind > 0 && kind <= TESS_RECV ? &g->shape[kind] : NULL;
}

/* Numbers the call. Messages have one channel per pair and direction, the same at both ends. */
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
 * Writes the descriptor of the call, and begins it in the flight recorder as number `flight`.
 * shape: that of the call, or NULL.
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
 * Checks `c` and fills in fields that are 0, the deadline counted from `now`. *shape: its shape, if
 * that is kept; else NULL.
 */
tess_status tess_call_complete(struct tess_group *g, const struct tess_coll *c, int64_t now,
                               struct tess_coll *out, struct tess_call_shape **shape);
/* The fingerprint of call `key`; shape: that of the call, or NULL. */
uint64_t tess_call_compute_fingerprint(const struct tess_group *g, const struct tess_coll *c,
                                       const struct tess_call_key *key,
                                       const struct tess_call_shape *shape);
/* *has: the backend has such calls; else they are emulated, and rank 0 warns once. */
tess_status tess_call_query_backend(const struct tess_group *g, const struct tess_coll *c,
                                    bool *has);

/*
 * Reports the call that was described last to the coordinator. If the backend compares calls, only
 * slow calls are reported, one call a second (g->report_at), and the last one: a rank that has made
 * a call has made all calls before it.
 */
void tess_call_report(struct tess_group *g, int64_t now);
/* Reports the last call, if it is unreported. */
void tess_group_report_last(struct tess_group *g);
/* Reports all unreported calls of the work. */
void tess_work_report(struct tess_work *w);

/* Reports the call, if it is to be reported at once. False: describe it while it is under way. */
bool tess_work_announce(struct tess_work *w, int64_t now);

#endif

/* call.h - the steps of a call (call.c), for batches and for the other files of core/group. */
#ifndef TESS_GROUP_CALL_H
#define TESS_GROUP_CALL_H

#include "core/world/group.h"

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

#endif

/* call.h - the steps of a call (call.c), for batches and other files of core/call. */
#ifndef TESS_GROUP_CALL_H
#define TESS_GROUP_CALL_H

#include "core/world/group.h"

/* Numbers the call. A pair's messages have one channel per direction, equal at both ends. */
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

/* Checks `c` and sets its default fields; the deadline counts from `now`. */
tess_status tess_call_complete(const struct tess_group *g, const struct tess_coll *c, int64_t now,
                               struct tess_coll *out);
/* Numbers the call, and computes the fingerprint for the comparison between ranks. */
void tess_call_identify(struct tess_group *g, struct tess_coll *c, struct tess_call_key *key);
/* Sets *has if the backend has such calls. Others are emulated; rank 0 warns once. */
tess_status tess_call_query_backend(const struct tess_group *g, const struct tess_coll *c,
                                    bool *has);

#endif

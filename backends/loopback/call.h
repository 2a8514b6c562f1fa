/* call.h - the calls of one rank: matched by number with those of other ranks, then moved. */
#ifndef LOOPBACK_CALL_H
#define LOOPBACK_CALL_H

#include "context.h"

struct member { /* one rank of a context */
	struct context *context;
	int32_t rank;
	uint64_t calls;
	uint64_t *sent, *received; /* number of messages, by rank */
};

/* tess_backend.start */
tess_status call_start_one(void *self, const struct tess_coll *c, void **work);
tess_status call_test_one(struct member *me, struct pending_call *m);
tess_status call_wait_one(struct member *me, struct pending_call *m, int64_t deadline);
void call_release_one(struct member *me, struct pending_call *m);

#endif

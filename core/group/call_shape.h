/*
 * shape.h - what is known of a call once it was looked at, so that the next one like it, of which only
 * the buffers and the place differ, is not looked at again. A program makes few calls, many times.
 */
#ifndef TESS_COMM_SHAPE_H
#define TESS_COMM_SHAPE_H

#include <stdbool.h>
#include <tessera/group.h>

struct tess_call_shape { /* zeroed: of no call */
	struct tess_coll call; /* complete; the last one's buffers, print and place */
	int32_t op, mem; /* as they were given */
	bool in_place;
	uint64_t src, dst; /* bytes that this rank reads and writes there */
	uint64_t astray; /* bits that the address of no element has */
	uint64_t what; /* for its print (note.h) */
	int32_t has; /* the backend makes such calls: -1: no, 1: yes, 0: it was not asked */
};

/*
 * A call without lists that rank `rank` of `nranks` may make, as its caller gave it, and with what was
 * left out: it was checked.
 */
void tess_call_shape_learn(struct tess_call_shape *s, const struct tess_coll *given,
                           const struct tess_coll *c, int32_t rank, int32_t nranks);

/* Whether the call, as its caller gave it, is like it, and its buffers are there, aligned, and apart or one. */
static inline bool tess_call_shape_fits(const struct tess_call_shape *s, const struct tess_coll *c)
{
	uintptr_t src = (uintptr_t)c->src, dst = (uintptr_t)c->dst;

	if (s->call.kind != c->kind || s->call.dtype != c->dtype || s->op != c->op ||
	    s->mem != c->mem || s->call.peer != c->peer || s->call.count != c->count ||
	    c->send_counts || c->recv_counts || s->in_place != (src == dst))
		return false;
	if ((s->src && !src) || (s->dst && !dst) || (src | dst) & s->astray)
		return false;
	return src == dst || src >= dst + s->dst || dst >= src + s->src;
}

#endif

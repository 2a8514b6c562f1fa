/*
 * call_shape.h - what is known of a call once it was checked, so that the next one like it, which
 * differs in buffers and `where` only, is not checked again. A program repeats few calls many
 * times.
 */
#ifndef TESS_GROUP_CALL_SHAPE_H
#define TESS_GROUP_CALL_SHAPE_H

#include <stdbool.h>
#include <tessera/group.h>

struct tess_call_shape { /* zeroed: fits no call */
	struct tess_coll call; /* complete, as the last one was */
	int32_t op, mem; /* as the caller gave them */
	bool in_place;
	uint64_t src, dst; /* bytes that this rank reads and writes */
	uint64_t align_mask; /* address bits that are 0 in aligned buffers */
	uint64_t what; /* tess_call_desc_hash, for the fingerprint */
	int32_t has; /* the backend has such calls: 1: yes, -1: no, 0: not asked yet */
};

/* Whether the call, as given, has this shape, and buffers that are valid and aligned for it. */
static inline bool tess_call_shape_fits(const struct tess_call_shape *s, const struct tess_coll *c)
{
	uintptr_t src = (uintptr_t)c->src, dst = (uintptr_t)c->dst;

	if (s->call.kind != c->kind || s->call.dtype != c->dtype || s->op != c->op ||
	    s->mem != c->mem || s->call.peer != c->peer || s->call.count != c->count ||
	    c->send_counts || c->recv_counts || s->in_place != (src == dst))
		return false;
	if ((s->src && !src) || (s->dst && !dst) || (src | dst) & s->align_mask)
		return false;
	return src == dst || src >= dst + s->dst || dst >= src + s->src;
}

#endif

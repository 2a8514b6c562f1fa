/* call_shape.c - learns the shape of a call. */
#include "core/group/call_shape.h"

#include "core/group/check.h"
#include "core/rendezvous/call_desc.h"

void tess_call_shape_learn(struct tess_call_shape *s, const struct tess_coll *given,
                           const struct tess_coll *c, int32_t rank, int32_t nranks)
{
	uint64_t width = c->kind == TESS_BARRIER ? 1 : tess_width(c->dtype);

	*s = (struct tess_call_shape){ .call = *c,
		                       .op = given->op,
		                       .mem = given->mem,
		                       .in_place = c->src == c->dst,
		                       .align_mask = width - 1,
		                       .what = tess_call_desc_hash(c, nranks) };
	tess_coll_extents(c, rank, nranks, &s->src, &s->dst);
	s->src *= width;
	s->dst *= width;
}

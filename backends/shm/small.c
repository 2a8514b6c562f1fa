#include "small.h"

#include "sum.h"

void small_add_all(const struct group *g, const struct tess_coll *c, uint64_t bytes)
{
	const void *part[RANKS_MOST];
	void *dst = c->dst;

	for (int32_t r = 0; r < g->nranks; r++)
		part[r] = r == g->rank ? c->src : small_data(g, bytes, r);
	sum_into_all(c->dtype, c->op, part, g->nranks, c->count, &dst, 1, NULL);
}

void small_gather_all(const struct group *g, const struct tess_coll *c, uint64_t bytes)
{
	char *dst = c->dst;

	for (int32_t r = 0; r < g->nranks; r++)
		if (r != g->rank || c->src != dst)
			copy_bytes(dst + (uint64_t)r * bytes,
			           r == g->rank ? c->src : small_data(g, bytes, r), bytes);
}

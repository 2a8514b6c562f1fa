/*
 * small.c - calls whose data are a few lines, in one round and one pass: each rank puts its data and its
 * notice up, waits for those of all, and takes what it needs.
 *
 * Nobody waits for anything else of a call: what its error messages need is written down while the
 * notice is on its way.
 */
#include <string.h>

#include "shm.h"

enum { ONE_BY_ONE = 16 }; /* floats that are added before wider registers are worth their call */

bool small_plan(const struct group *g, const struct tess_coll *c, struct work *w)
{
	bool gathers = c->kind == TESS_ALL_GATHER;
	uint64_t count = c->kind == TESS_BARRIER ? 0 : c->count;

	if (c->kind != TESS_BARRIER && c->kind != TESS_BROADCAST && c->kind != TESS_ALL_REDUCE &&
	    (!gathers || c->get))
		return false;
	if (count > FEW || count * w->width * (gathers ? (uint64_t)g->nranks : 1) > FEW)
		return false;
	w->bytes = count * w->width;
	w->inlined = w->bytes <= INLINE;
	return true;
}

/* A word or two, which memcpy() would go a long way for. */
static inline void copy(void *dst, const void *src, size_t n)
{
	const char *from = src;
	char *to = dst;
	uint32_t x;

	if (n > 2 * sizeof x) {
		memcpy(to, from, n);
		return;
	}
	for (; n >= sizeof x; n -= sizeof x, from += sizeof x, to += sizeof x) {
		memcpy(&x, from, sizeof x);
		memcpy(to, &x, sizeof x);
	}
	for (; n; n--)
		*to++ = *from++;
}

static char *data_of(const struct group *g, const struct work *w, int32_t r)
{
	return w->inlined ? notice_of(g, r, g->round)->data
	                  : segment_slot(g, r, g->round, true) + TABLE;
}

static const char *own_block(const struct group *g, const struct tess_coll *c, uint64_t bytes)
{
	bool in_place = c->kind == TESS_ALL_GATHER && c->src == c->dst;

	return (const char *)c->src + (in_place ? (uint64_t)g->rank * bytes : 0);
}

void small_post(struct group *g, const struct tess_coll *c, const struct work *w)
{
	struct notice *n = notice_of(g, g->rank, g->round);

	if (w->bytes && (c->kind != TESS_BROADCAST || c->peer == g->rank))
		copy(data_of(g, w, g->rank), own_block(g, c, w->bytes), w->bytes);
	n->print = c->print;
	/* Release: who sees the round sees the notice and the data. */
	atomic_store_explicit(&n->round, g->round, memory_order_release);
	work_introduce(g, c);
}

/* Two ranks' few floats; as tess_reduce does, no sum is -0. */
static void add_two(const struct group *g, const struct work *w)
{
	const float *mine = w->c.src;
	const float *theirs = (const float *)(const void *)data_of(g, w, !g->rank);
	const float *first = g->rank ? theirs : mine, *second = g->rank ? mine : theirs;
	float *dst = w->c.dst;

	for (uint64_t k = 0; k < w->c.count; k++)
		dst[k] = first[k] + second[k] + 0.0f;
}

static void add(const struct group *g, const struct work *w)
{
	const void *part[RANKS_MOST];
	void *dst = w->c.dst;

	if (g->nranks == 2 && w->c.count <= ONE_BY_ONE && w->c.dtype == TESS_F32 &&
	    w->c.op == TESS_SUM) {
		add_two(g, w);
		return;
	}
	for (int32_t r = 0; r < g->nranks; r++)
		part[r] = r == g->rank ? w->c.src : data_of(g, w, r);
	sum_to(w->c.dtype, w->c.op, part, g->nranks, w->c.count, &dst, 1, NULL);
}

void small_take(const struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;
	char *dst = c->dst;

	if (!w->bytes)
		return;
	if (c->kind == TESS_ALL_REDUCE)
		add(g, w);
	else if (c->kind == TESS_BROADCAST && (g->rank != c->peer || c->src != dst))
		copy(dst, g->rank == c->peer ? c->src : data_of(g, w, c->peer), w->bytes);
	for (int32_t r = 0; c->kind == TESS_ALL_GATHER && r < g->nranks; r++)
		if (r != g->rank || c->src != dst)
			copy(dst + (uint64_t)r * w->bytes, r == g->rank ? c->src : data_of(g, w, r),
			     w->bytes);
}

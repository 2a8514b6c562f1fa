/*
 * direct.c - collectives between buffers in memory that all ranks see: nothing is copied on the
 * way.
 *
 * The first round says where the buffers are and that they may be used; the second that nobody
 * uses them any more. Between them every rank reads what it needs of the others' src; where all
 * get the sum, each adds its own part and writes it into every dst, so that a byte crosses between
 * two ranks once to be added and once as a sum.
 */
#include <string.h>
#include <tessera/split.h>
#include <tessera/stream.h>

#include "shm.h"

enum {
	LINE = 64,
	STEP = 16 << 10
}; /* STEP: bytes that are added before they are handed on, still in cache */

static char *past(const struct work *w, const void *p, uint64_t elements)
{
	return (char *)(uintptr_t)p + elements * w->width;
}

static bool seen_by_all(const struct group *g, const struct work *w, const void *p,
                        uint64_t elements, struct ref *out)
{
	*out = room_find(g, p, elements * w->width);
	return out->room || !elements;
}

bool direct_offer(const struct group *g, const struct work *w, struct ref *src, struct ref *dst)
{
	const struct tess_coll *c = &w->c;
	bool root = c->peer == g->rank;
	uint64_t at;

	*src = *dst = (struct ref){ .room = 0 };
	if (w->bytes <= g->small)
		return false;
	switch (c->kind) {
	case TESS_BROADCAST:
		return !root || seen_by_all(g, w, c->src, c->count, src);
	case TESS_SCATTER:
		return !root || seen_by_all(g, w, c->src, w->bytes / w->width, src);
	case TESS_GATHER:
		return !root || seen_by_all(g, w, c->dst, w->bytes / w->width, dst);
	case TESS_ALL_GATHER:
		at = c->src == c->dst ? kind_begin(w, c->recv_counts, g->rank) : 0;
		return seen_by_all(g, w, past(w, c->src, at), c->count, src);
	case TESS_REDUCE_SCATTER:
		return seen_by_all(g, w, c->src, w->bytes / w->width, src);
	case TESS_ALL_TO_ALL: /* in place, what comes would lie over what is yet to be read */
		return c->src != c->dst &&
		       seen_by_all(g, w, c->src, kind_begin(w, c->send_counts, g->nranks), src);
	case TESS_REDUCE:
		return seen_by_all(g, w, c->src, c->count, src) &&
		       (!root || seen_by_all(g, w, c->dst, c->count, dst));
	default:
		return seen_by_all(g, w, c->src, c->count, src) &&
		       seen_by_all(g, w, c->dst, c->count, dst);
	}
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Elements [at, at + n) of rank r's src or dst; false: it named no memory that there is. */
static bool reach(const struct group *g, const struct work *w, int32_t r, bool dst, uint64_t at,
                  uint64_t n, char **out)
{
	const struct notice *notice = notice_of(g, r, g->round);
	char *base;

	if (!n) {
		*out = NULL;
		return true;
	}
	base = room_at(g, r, dst ? notice->at.dst : notice->at.src, (at + n) * w->width);
	*out = base ? past(w, base, at) : NULL;
	return base != NULL;
}

static bool pull(const struct group *g, const struct work *w, int32_t r, uint64_t at, uint64_t n,
                 void *dst)
{
	char *src;

	if (!reach(g, w, r, false, at, n, &src))
		return false;
	if (n)
		memcpy(dst, src, n * w->width);
	return true;
}

/* Sums of [at, at + n), to `ndst` buffers. */
static bool add(struct group *g, const struct work *w, uint64_t at, uint64_t n, char *const *dst,
                int32_t ndst)
{
	char *src[RANKS_MOST];

	for (int32_t r = 0; r < g->nranks; r++)
		if (!reach(g, w, r, false, at, n, &src[r]))
			return false;
	if (n)
		sum_to(w->c.dtype, w->c.op, (const void *const *)src, g->nranks, n,
		       (void *const *)dst, ndst,
		       ndst > 1 ? tess_store_policy_for(g->direct, w->bytes) : NULL);
	return true;
}

/*
 * This rank's part of the sums, whole lines, into every dst: its own first, while the parts are
 * read.
 */
static bool add_own_part(struct group *g, const struct work *w)
{
	uint64_t count = w->c.count, each = LINE / w->width;
	int64_t lines = tess_up((int64_t)count, (int64_t)each);
	uint64_t lo = (uint64_t)tess_edge(lines, g->nranks, g->rank) * each;
	uint64_t hi = (uint64_t)tess_edge(lines, g->nranks, g->rank + 1) * each;
	char *dst[RANKS_MOST];
	int32_t ndst = 0;

	lo = lo < count ? lo : count;
	hi = hi < count ? hi : count;
	for (int32_t i = 0; i < g->nranks; i++) {
		int32_t r = (g->rank + i) % g->nranks;

		if (w->c.kind == TESS_ALL_REDUCE || r == w->c.peer)
			if (!reach(g, w, r, true, lo, hi - lo, &dst[ndst++]))
				return false;
	}
	return add(g, w, lo, hi - lo, dst, ndst);
}

static bool pull_all(const struct group *g, const struct work *w)
{
	for (int32_t i = 1; i < g->nranks; i++) {
		int32_t r = (g->rank + i) % g->nranks;
		struct lie lie = { 0, kind_block(w, w->c.recv_counts, r) };

		if (w->c.kind == TESS_ALL_TO_ALL)
			lie = kind_lie(g, w, r);
		if (!pull(g, w, r, lie.begin, lie.count,
		          past(w, w->c.dst, kind_begin(w, w->c.recv_counts, r))))
			return false;
	}
	return true;
}

static bool move(struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;
	bool root = c->peer == g->rank;
	uint64_t begin;
	char *dst;

	switch (c->kind) {
	case TESS_BROADCAST:
		return root || pull(g, w, c->peer, 0, c->count, c->dst);
	case TESS_SCATTER:
		return root ||
		       pull(g, w, c->peer, kind_begin(w, c->send_counts, g->rank), c->count, c->dst);
	case TESS_GATHER:
		if (root)
			return true;
		if (!reach(g, w, c->peer, true, kind_begin(w, c->recv_counts, g->rank), c->count, &dst))
			return false;
		if (c->count)
			tess_stream(dst, c->src, c->count * w->width);
		return true;
	case TESS_REDUCE_SCATTER:
		begin = kind_begin(w, c->send_counts, g->rank);
		dst = past(w, c->dst, c->src == c->dst ? begin : 0);
		return add(g, w, begin, c->count, &dst, 1);
	case TESS_REDUCE:
	case TESS_ALL_REDUCE:
		return add_own_part(g, w);
	default:
		return pull_all(g, w);
	}
}

tess_status direct_move(struct group *g, const struct work *w)
{
	if (move(g, w))
		return TESS_OK;
	return work_fail(
		g, TESS_EBUG,
		"%s: a rank names memory that is not here; it was freed on some ranks only",
		w->c.where ? w->c.where : "a collective");
}

/*
 * direct.c - transfers between buffers in memory that all ranks map, without a copy in between.
 *
 * The first round publishes the buffers, and that they may be used; the second one, that no rank
 * uses them any more. Between them every rank reads the other ranks' src. If all ranks get the sum,
 * each adds its own part and writes it into every dst: a byte moves between two ranks once to be
 * added, and once as a sum.
 */
#include "direct.h"

#include <string.h>
#include <tessera/split.h>

#include "call_info.h"
#include "region.h"
#include "staged.h"
#include "sum.h"

enum { CACHELINE = 64 };

static bool find_shared_ref(const struct group *g, const struct work *w, const void *p,
                            uint64_t elements, struct region_ref *out)
{
	*out = region_find(g, p, elements * w->width);
	return out->region || !elements;
}

bool direct_offer_buffers(const struct group *g, const struct work *w, struct region_ref *src,
                          struct region_ref *dst)
{
	const struct tess_coll *c = &w->c;
	bool root = c->peer == g->rank;
	uint64_t at;

	*src = *dst = (struct region_ref){ .region = 0 };
	if (w->bytes <= g->small)
		return false;
	switch (c->kind) {
	case TESS_BROADCAST:
		return !root || find_shared_ref(g, w, c->src, c->count, src);
	case TESS_SCATTER:
		return !root || find_shared_ref(g, w, c->src, w->bytes / w->width, src);
	case TESS_GATHER:
		return !root || find_shared_ref(g, w, c->dst, w->bytes / w->width, dst);
	case TESS_ALL_GATHER:
		at = c->src == c->dst ? tess_block_begin(c->recv_counts, w->c.count, g->rank) : 0;
		return find_shared_ref(g, w, element_at(w, c->src, at), c->count, src);
	case TESS_REDUCE_SCATTER:
		return find_shared_ref(g, w, c->src, w->bytes / w->width, src);
	case TESS_ALL_TO_ALL: /* in place, received blocks would overwrite unread ones */
		return c->src != c->dst &&
		       find_shared_ref(g, w, c->src,
		                       tess_block_begin(c->send_counts, w->c.count, g->nranks),
		                       src);
	case TESS_REDUCE:
		return find_shared_ref(g, w, c->src, c->count, src) &&
		       (!root || find_shared_ref(g, w, c->dst, c->count, dst));
	default:
		return find_shared_ref(g, w, c->src, c->count, src) &&
		       find_shared_ref(g, w, c->dst, c->count, dst);
	}
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Maps elements [at, at + n) of rank r's src or dst; false: there is no such memory. */
static bool map_peer_buffer(const struct group *g, const struct work *w, int32_t r, bool dst,
                            uint64_t at, uint64_t n, char **out)
{
	const struct flag *flag = flag_of(g, r, g->round);
	char *base;

	if (!n) {
		*out = NULL;
		return true;
	}
	base = region_address(g, r, dst ? flag->dst : flag->src, (at + n) * w->width);
	*out = base ? element_at(w, base, at) : NULL;
	return base != NULL;
}

static bool pull_elements(const struct group *g, const struct work *w, int32_t r, uint64_t at,
                          uint64_t n, void *dst)
{
	char *src;

	if (!map_peer_buffer(g, w, r, false, at, n, &src))
		return false;
	if (n)
		memcpy(dst, src, n * w->width);
	return true;
}

/* Adds [at, at + n) of all ranks to `ndst` buffers. */
static bool add_all_ranks(struct group *g, const struct work *w, uint64_t at, uint64_t n,
                          char *const *dst, int32_t ndst)
{
	char *src[RANKS_MOST];

	for (int32_t r = 0; r < g->nranks; r++)
		if (!map_peer_buffer(g, w, r, false, at, n, &src[r]))
			return false;
	if (n)
		sum_into_all(w->c.dtype, w->c.op, (const void *const *)src, g->nranks, n,
		             (void *const *)dst, ndst);
	return true;
}

/* Adds this rank's part of the sums, in full cache lines, into every dst, its own first. */
static bool add_own_part(struct group *g, const struct work *w)
{
	uint64_t count = w->c.count, each = CACHELINE / w->width;
	int64_t cachelines = tess_up((int64_t)count, (int64_t)each);
	uint64_t lo = (uint64_t)tess_edge(cachelines, g->nranks, g->rank) * each;
	uint64_t hi = (uint64_t)tess_edge(cachelines, g->nranks, g->rank + 1) * each;
	char *dst[RANKS_MOST];
	int32_t ndst = 0;

	lo = lo < count ? lo : count;
	hi = hi < count ? hi : count;
	for (int32_t i = 0; i < g->nranks; i++) {
		int32_t r = (g->rank + i) % g->nranks;

		if (w->c.kind == TESS_ALL_REDUCE || r == w->c.peer)
			if (!map_peer_buffer(g, w, r, true, lo, hi - lo, &dst[ndst++]))
				return false;
	}
	return add_all_ranks(g, w, lo, hi - lo, dst, ndst);
}

static bool pull_all_blocks(const struct group *g, const struct work *w)
{
	for (int32_t i = 1; i < g->nranks; i++) {
		int32_t r = (g->rank + i) % g->nranks;
		struct block_extent extent = { 0,
			                       tess_block_size(w->c.recv_counts, w->c.count, r) };

		if (w->c.kind == TESS_ALL_TO_ALL)
			extent = staged_block_extent(g, w, r);
		if (!pull_elements(g, w, r, extent.begin, extent.count,
		                   element_at(w, w->c.dst,
		                              tess_block_begin(w->c.recv_counts, w->c.count, r))))
			return false;
	}
	return true;
}

static bool move_elements(struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;
	bool root = c->peer == g->rank;
	uint64_t begin;
	char *dst;

	switch (c->kind) {
	case TESS_BROADCAST:
		return root || pull_elements(g, w, c->peer, 0, c->count, c->dst);
	case TESS_SCATTER:
		return root || pull_elements(g, w, c->peer,
		                             tess_block_begin(c->send_counts, w->c.count, g->rank),
		                             c->count, c->dst);
	case TESS_GATHER:
		if (root)
			return true;
		if (!map_peer_buffer(g, w, c->peer, true,
		                     tess_block_begin(c->recv_counts, w->c.count, g->rank),
		                     c->count, &dst))
			return false;
		if (c->count)
			tess_stream(dst, c->src, c->count * w->width);
		return true;
	case TESS_REDUCE_SCATTER:
		begin = tess_block_begin(c->send_counts, w->c.count, g->rank);
		dst = element_at(w, c->dst, c->src == c->dst ? begin : 0);
		return add_all_ranks(g, w, begin, c->count, &dst, 1);
	case TESS_REDUCE:
	case TESS_ALL_REDUCE:
		return add_own_part(g, w);
	default:
		return pull_all_blocks(g, w);
	}
}

tess_status direct_move_call(struct group *g, const struct work *w)
{
	if (move_elements(g, w))
		return TESS_OK;
	return group_fail_call(
		g, TESS_EBUG,
		"%s: a rank uses memory that is not mapped here; it was freed on some ranks only",
		w->c.where ? w->c.where : "a collective");
}

#include "staged.h"

#include <string.h>
#include <tessera/split.h>

#include "call_info.h"
#include "segment.h"
#include "sum.h"

bool staged_sends_data(const struct group *g, const struct work *w)
{
	bool root = w->c.peer == g->rank;

	switch (w->c.kind) {
	case TESS_BROADCAST:
	case TESS_SCATTER:
		return root;
	case TESS_REDUCE:
	case TESS_GATHER:
		return !root;
	default:
		return true;
	}
}

/* ---- plans ----------------------------------------------------------------------------------- */

static uint64_t find_largest_block(const struct work *w, const uint64_t *list, int32_t n)
{
	uint64_t most = 0;

	if (!list)
		return w->c.count;
	for (int32_t r = 0; r < n; r++)
		most = list[r] > most ? list[r] : most;
	return most;
}

static void split_chunks(struct work *w, uint64_t most, uint64_t capacity)
{
	/* full cache lines, so that no line contains parts of two ranks */
	w->chunk = capacity / w->width / 64 * 64;
	w->nchunks =
		most <= w->chunk ? most != 0 : (uint32_t)(most / w->chunk + (most % w->chunk != 0));
}

void staged_plan_call(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	uint64_t n = (uint64_t)g->nranks, most = c->count;

	switch (c->kind) {
	case TESS_BROADCAST:
	case TESS_REDUCE:
	case TESS_ALL_REDUCE:
		w->bytes = most * w->width;
		/* with two ranks, all of the other's data is as much as its half of the sums */
		w->shares = c->kind != TESS_BROADCAST && n > 2 && w->bytes > g->small;
		split_chunks(w, most, w->shares ? g->chunk * n / (n + 2) : g->chunk);
		break;
	case TESS_GATHER:
	case TESS_ALL_GATHER:
		most = find_largest_block(w, c->recv_counts, g->nranks);
		w->bytes = tess_block_begin(c->recv_counts, w->c.count, g->nranks) * w->width;
		split_chunks(w, most, g->chunk);
		break;
	default:
		most = find_largest_block(w, c->send_counts, g->nranks);
		if (c->kind == TESS_ALL_TO_ALL &&
		    find_largest_block(w, c->recv_counts, g->nranks) > most)
			most = find_largest_block(w, c->recv_counts, g->nranks);
		w->bytes = tess_block_begin(c->send_counts, w->c.count, g->nranks) * w->width;
		split_chunks(w, most, g->chunk / n);
	}
}

/* ---- addresses ------------------------------------------------------------------------------- */

static char *staged_data(const struct group *g, int32_t r, uint64_t round)
{
	return segment_slot(g, r, round) + TABLE;
}

/* Returns the elements of a block of `count` in chunk k. */
static uint64_t chunk_elements(const struct work *w, uint64_t count, uint64_t k)
{
	uint64_t at = k * w->chunk;

	return at >= count ? 0 : count - at < w->chunk ? count - at : w->chunk;
}

static void copy_elements(const struct work *w, void *dst, const void *src, uint64_t elements)
{
	if (elements)
		memcpy(dst, src, elements * w->width);
}

static void fill_slot(const struct work *w, void *dst, const void *src, uint64_t elements)
{
	if (elements * w->width < TESS_STREAM_MIN)
		copy_elements(w, dst, src, elements);
	else
		tess_stream(dst, src, elements * w->width);
}

/* Returns the block that this rank sends to all. */
static char *find_own_block(const struct group *g, const struct work *w)
{
	bool all = w->c.kind == TESS_ALL_GATHER || g->rank == w->c.peer;

	return element_at(w, w->c.src,
	                  all && w->c.src == w->c.dst
	                          ? tess_block_begin(w->c.recv_counts, w->c.count, g->rank)
	                          : 0);
}

void staged_copy_own(const struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;
	bool root = c->peer == g->rank;
	uint64_t count = tess_block_size(c->recv_counts, w->c.count, g->rank);

	if (c->src == c->dst)
		return;
	if (c->kind == TESS_BROADCAST && root)
		copy_elements(w, c->dst, c->src, c->count);
	else if (c->kind == TESS_ALL_GATHER || (c->kind == TESS_GATHER && root))
		copy_elements(w,
		              element_at(w, c->dst,
		                         tess_block_begin(c->recv_counts, w->c.count, g->rank)),
		              c->src, count);
	else if (c->kind == TESS_SCATTER && root)
		copy_elements(w, c->dst,
		              element_at(w, c->src,
		                         tess_block_begin(c->send_counts, w->c.count, g->rank)),
		              c->count);
	else if (c->kind == TESS_ALL_TO_ALL)
		copy_elements(w,
		              element_at(w, c->dst,
		                         tess_block_begin(c->recv_counts, w->c.count, g->rank)),
		              element_at(w, c->src,
		                         tess_block_begin(c->send_counts, w->c.count, g->rank)),
		              count);
}

/* ---- all_to_all with lists ------------------------------------------------------------------- */

void staged_publish_extents(const struct group *g, const struct work *w)
{
	struct block_extent *extent =
		(struct block_extent *)(void *)segment_slot(g, g->rank, g->round);

	for (int32_t r = 0; r < g->nranks; r++)
		extent[r] =
			(struct block_extent){ tess_block_begin(w->c.send_counts, w->c.count, r),
			                       w->c.send_counts[r] };
}

struct block_extent staged_block_extent(const struct group *g, const struct work *w, int32_t r)
{
	if (w->c.send_counts)
		return ((const struct block_extent *)(const void *)segment_slot(g, r,
		                                                                g->round))[g->rank];
	return (struct block_extent){ w->c.count * (uint64_t)g->rank, w->c.count };
}

tess_status staged_compare_extents(struct group *g, const struct work *w)
{
	for (int32_t r = 0; r < g->nranks; r++) {
		uint64_t count = staged_block_extent(g, w, r).count,
			 expected = tess_block_size(w->c.recv_counts, w->c.count, r);

		if (count != expected)
			return group_fail_call(
				g, TESS_EMISMATCH,
				"rank %d sends %llu elements of all_to_all at %.*s to rank %d, "
				"which expects %llu at %s",
				(int)g->world[r], (unsigned long long)count, WHERE,
				rank_slot_of(g, r)->call[g->round & 1].where,
				(int)g->world[g->rank], (unsigned long long)expected,
				w->c.where ? w->c.where : "");
	}
	return TESS_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t share_edge(const struct group *g, uint64_t n, int32_t r)
{
	return (uint64_t)tess_edge((int64_t)n, g->nranks, r);
}

/*
 * Returns rank r's finished share of the previous chunk, which follows the current chunk in its
 * slot.
 */
static char *share_sums(const struct group *g, const struct work *w, int32_t r, uint64_t round)
{
	return element_at(w, staged_data(g, r, round), w->chunk);
}

/* Adds `n` elements of all ranks: at `at` in this rank's src, at `offset` in other ranks' slots. */
static void add_chunk(struct group *g, const struct work *w, uint64_t at, uint64_t offset,
                      uint64_t n, void *const *dst, int32_t ndst)
{
	const void *parts[RANKS_MOST];

	for (int32_t r = 0; r < g->nranks; r++)
		parts[r] = r == g->rank ? element_at(w, w->c.src, at)
		                        : element_at(w, staged_data(g, r, g->round), offset);
	if (n)
		sum_into_all(w->c.dtype, w->c.op, parts, g->nranks, n, dst, ndst);
}

/* Fills the slot without this rank's own share, which no other rank reads. */
static void fill_shares(struct group *g, const struct work *w, uint64_t k, char *data)
{
	uint64_t n = chunk_elements(w, w->c.count, k), lo = share_edge(g, n, g->rank),
		 hi = share_edge(g, n, g->rank + 1);
	char *src = element_at(w, w->c.src, k * w->chunk);

	fill_slot(w, data, src, lo);
	fill_slot(w, element_at(w, data, hi), element_at(w, src, hi), n - hi);
}

/*
 * Copies the sums of the previous chunk, and writes this rank's share of chunk k to the slot of the
 * next round. All flags of this round are set, so no rank reads the previous round any more.
 */
static void drain_shares(struct group *g, const struct work *w, uint64_t k)
{
	bool mine = w->c.kind == TESS_ALL_REDUCE || w->c.peer == g->rank;
	uint64_t n = k ? chunk_elements(w, w->c.count, k - 1) : 0, lo, at;
	void *dst[2];

	for (int32_t r = 0; r < g->nranks && mine; r++) {
		at = share_edge(g, n, r);
		if (r != g->rank)
			copy_elements(w, element_at(w, w->c.dst, (k - 1) * w->chunk + at),
			              share_sums(g, w, r, g->round), share_edge(g, n, r + 1) - at);
	}
	n = chunk_elements(w, w->c.count, k);
	lo = share_edge(g, n, g->rank);
	at = k * w->chunk + lo;
	dst[0] = element_at(w, w->c.dst, at);
	dst[mine] = share_sums(g, w, g->rank, g->round + 1);
	add_chunk(g, w, at, lo, share_edge(g, n, g->rank + 1) - lo, dst, 1 + mine);
}

static void drain_sums(struct group *g, const struct work *w, uint64_t k)
{
	const struct tess_coll *c = &w->c;
	uint64_t n = chunk_elements(w, c->count, k), at = k * w->chunk;
	void *dst = element_at(w, c->dst, at);

	if (c->kind == TESS_REDUCE_SCATTER) {
		at += tess_block_begin(c->send_counts, w->c.count, g->rank);
		if (c->src == c->dst)
			dst = element_at(w, c->dst, at);
		add_chunk(g, w, at, (uint64_t)g->rank * w->chunk, n, &dst, 1);
	} else if (w->shares) {
		drain_shares(g, w, k);
	} else if (c->kind == TESS_ALL_REDUCE || c->peer == g->rank) {
		add_chunk(g, w, at, 0, n, &dst, 1);
	}
}

/* ---- chunks ---------------------------------------------------------------------------------- */

void staged_fill_chunk(struct group *g, const struct work *w, uint64_t k)
{
	const struct tess_coll *c = &w->c;
	char *data = staged_data(g, g->rank, g->round);
	uint64_t at = k * w->chunk;

	if (!staged_sends_data(g, w) && !w->shares)
		return;
	switch (c->kind) {
	case TESS_BROADCAST:
	case TESS_REDUCE:
	case TESS_ALL_REDUCE:
		if (w->shares)
			fill_shares(g, w, k, data);
		else
			fill_slot(w, data, element_at(w, c->src, at),
			          chunk_elements(w, c->count, k));
		break;
	case TESS_GATHER:
	case TESS_ALL_GATHER:
		fill_slot(w, data, element_at(w, find_own_block(g, w), at),
		          chunk_elements(w, c->count, k));
		break;
	default:
		for (int32_t r = 0; r < g->nranks; r++)
			if (r != g->rank)
				fill_slot(
					w, element_at(w, data, (uint64_t)r * w->chunk),
					element_at(w, c->src,
				                   tess_block_begin(c->send_counts, w->c.count, r) +
				                           at),
					chunk_elements(
						w, tess_block_size(c->send_counts, w->c.count, r),
						k));
	}
}

void staged_drain_chunk(struct group *g, const struct work *w, uint64_t k)
{
	const struct tess_coll *c = &w->c;
	bool root = c->peer == g->rank, mine = c->kind == TESS_ALL_TO_ALL;
	uint64_t at = k * w->chunk;

	if (tess_kind_reduces(c->kind)) {
		drain_sums(g, w, k);
	} else if (c->kind == TESS_BROADCAST || c->kind == TESS_SCATTER) {
		uint64_t offset = c->kind == TESS_SCATTER ? (uint64_t)g->rank * w->chunk : 0;

		if (!root)
			copy_elements(w, element_at(w, c->dst, at),
			              element_at(w, staged_data(g, c->peer, g->round), offset),
			              chunk_elements(w, c->count, k));
	} else if (c->kind != TESS_GATHER || root) {
		for (int32_t r = 0; r < g->nranks; r++)
			if (r != g->rank)
				copy_elements(
					w,
					element_at(w, c->dst,
				                   tess_block_begin(c->recv_counts, w->c.count, r) +
				                           at),
					element_at(w, staged_data(g, r, g->round),
				                   mine ? (uint64_t)g->rank * w->chunk : 0),
					chunk_elements(
						w, tess_block_size(c->recv_counts, w->c.count, r),
						k));
	}
}

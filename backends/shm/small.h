/*
 * small.h - calls whose data are a few lines, in one round and one pass: each rank writes its data
 * and sets its flag, waits for the flags of all, and takes what it needs.
 *
 * No rank waits for anything else of a call: all bookkeeping is done while the flag is on its way.
 * The functions are inline, as a call of two ranks takes 200 ns.
 */
#ifndef SHM_SMALL_H
#define SHM_SMALL_H

#include <string.h>

#include "segment.h"

enum {
	SCALAR_MOST = 64, /* floats that are added before wider registers are worth their call */
	PREFETCH_MOST = 1024 /* bytes that are fetched ahead; of more, most would come too late */
};

/* Not inline, so that callers need not save registers for the functions that these call. */
void small_add_all(const struct group *g, const struct tess_coll *c, uint64_t bytes);
void small_gather_all(const struct group *g, const struct tess_coll *c, uint64_t bytes);

/* Whether a call is small; all ranks agree. */
static inline bool small_plan_call(const struct group *g, const struct tess_coll *c,
                                   uint64_t *bytes)
{
	bool gathers = c->kind == TESS_ALL_GATHER;

	if (c->kind == TESS_BARRIER) {
		*bytes = 0;
		return true;
	}
	if (c->kind != TESS_ALL_REDUCE && c->kind != TESS_BROADCAST && (!gathers || c->recv_counts))
		return false;
	*bytes = c->count * tess_width(c->dtype);
	return c->count <= FEW && *bytes * (gathers ? (uint64_t)g->nranks : 1) <= FEW;
}

/* For a word memcpy() would go a long way. */
static inline void copy_bytes(void *to, const void *from, size_t n)
{
	if (n == 4)
		memcpy(to, from, 4);
	else if (n == 8)
		memcpy(to, from, 8);
	else
		memcpy(to, from, n);
}

static inline char *small_data(const struct group *g, uint64_t bytes, int32_t r)
{
	return bytes <= INLINE ? flag_of(g, r, g->round)->data
	                       : segment_slot(g, r, g->round, true) + TABLE;
}

static inline const char *small_own_block(const struct group *g, const struct tess_coll *c,
                                          uint64_t bytes)
{
	bool in_place = c->kind == TESS_ALL_GATHER && c->src == c->dst;

	return (const char *)c->src + (in_place ? (uint64_t)g->rank * bytes : 0);
}

static inline void small_post_call(struct group *g, const struct tess_coll *c, uint64_t bytes)
{
	struct flag *flag = flag_of(g, g->rank, g->round);

	if (bytes && (c->kind != TESS_BROADCAST || c->peer == g->rank))
		copy_bytes(small_data(g, bytes, g->rank), small_own_block(g, c, bytes), bytes);
	flag->fingerprint = c->fingerprint;
	/* Release: a rank that sees the round sees the flag and the data. */
	atomic_store_explicit(&flag->round, g->round, memory_order_release);
	g->unnotified = true;
	g->seen = 0;
	g->events++;
}

/* Fetches a cache line to write it. */
static inline void prefetch_for_write(const char *line)
{
#if defined(__x86_64__)
	/* __builtin_prefetch() would fetch it to be read. A CPU without this does nothing. */
	__asm__ volatile("prefetchw %0" : : "m"(*line));
#else
	__builtin_prefetch(line, 1);
#endif
}

/* Two ranks' few floats; no sum is -0, as in tess_reduce. In place: read, then written. */
static inline void small_add_two(const struct group *g, const struct tess_coll *c, uint64_t bytes)
{
	const float *mine = c->src;
	const float *theirs = (const float *)(const void *)small_data(g, bytes, !g->rank);
	const float *first = g->rank ? theirs : mine, *second = g->rank ? mine : theirs;
	float *dst = c->dst;
	uint32_t saved = tess_float_enter();

#pragma GCC ivdep
	for (uint64_t k = 0; k < c->count; k++)
		dst[k] = tess_one_nan(first[k] + second[k] + 0.0f);
	tess_float_leave(saved);
}

/*
 * Fetches the cache lines that this rank writes next, if the next call is like this one: the other
 * ranks have read them, and until their copies are invalidated no store completes. With another
 * call it is in vain.
 */
static inline void prefetch_next_flag(const struct group *g, uint64_t bytes)
{
	const char *next = (const char *)flag_of(g, g->rank, g->round + 1);

	prefetch_for_write(next);
	if (bytes <= INLINE)
		return;
	next = segment_slot(g, g->rank, g->round + 1, true) + TABLE;
	for (uint64_t at = 0; at < bytes && at < PREFETCH_MOST; at += 64)
		prefetch_for_write(next + at);
}

/* When all flags are set. */
static inline void small_take_result(const struct group *g, const struct tess_coll *c,
                                     uint64_t bytes)
{
	prefetch_next_flag(g, bytes);
	if (!bytes)
		return;
	if (c->kind == TESS_ALL_REDUCE && g->nranks == 2 && c->count <= SCALAR_MOST &&
	    c->dtype == TESS_F32 && c->op == TESS_SUM)
		small_add_two(g, c, bytes);
	else if (c->kind == TESS_ALL_REDUCE)
		small_add_all(g, c, bytes);
	else if (c->kind == TESS_ALL_GATHER)
		small_gather_all(g, c, bytes);
	else if (c->kind == TESS_BROADCAST && (g->rank != c->peer || c->src != c->dst))
		copy_bytes(c->dst, g->rank == c->peer ? c->src : small_data(g, bytes, c->peer),
		           bytes);
}

#endif

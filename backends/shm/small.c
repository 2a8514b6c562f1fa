/*
 * small.c - calls whose data are a few lines, in one round and one pass: each rank puts its data and its
 * notice up, waits for those of all, and takes what it needs.
 *
 * Nobody waits for anything else of a call: all that is written down of it is written while the
 * notice is on its way.
 */
#include <string.h>

#include "shm.h"

enum {
	ONE_BY_ONE = 64, /* floats that are added before wider registers are worth their call */
	PEEKS = 40, /* one after another, as the books take about as long as a notice */
	CLAIM = 1024 /* bytes that are asked for ahead; of more, most is not there in time */
};

bool small_plan(const struct group *g, const struct tess_coll *c, uint64_t *bytes)
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
static inline void copy(void *to, const void *from, size_t n)
{
	if (n == 4)
		memcpy(to, from, 4);
	else if (n == 8)
		memcpy(to, from, 8);
	else
		memcpy(to, from, n);
}

static inline char *data_of(const struct group *g, uint64_t bytes, int32_t r)
{
	return bytes <= INLINE ? notice_of(g, r, g->round)->data
	                       : segment_slot(g, r, g->round, true) + TABLE;
}

static inline const char *own_block(const struct group *g, const struct tess_coll *c,
                                    uint64_t bytes)
{
	bool in_place = c->kind == TESS_ALL_GATHER && c->src == c->dst;

	return (const char *)c->src + (in_place ? (uint64_t)g->rank * bytes : 0);
}

inline void small_post(struct group *g, const struct tess_coll *c, uint64_t bytes)
{
	struct notice *n = notice_of(g, g->rank, g->round);

	if (bytes && (c->kind != TESS_BROADCAST || c->peer == g->rank))
		copy(data_of(g, bytes, g->rank), own_block(g, c, bytes), bytes);
	n->print = c->fingerprint;
	/* Release: who sees the round sees the notice and the data. */
	atomic_store_explicit(&n->round, g->round, memory_order_release);
	g->unrung = true;
	g->seen = 0;
	g->moves++;
}

/* Brings a line here to be written. */
static inline void own(const char *line)
{
#if defined(__x86_64__)
	/* __builtin_prefetch() would bring it to be read. Where the CPU lacks this it does nothing. */
	__asm__ volatile("prefetchw %0" : : "m"(*line));
#else
	__builtin_prefetch(line, 1);
#endif
}

/* Two ranks' few floats; as tess_reduce does, no sum is -0. In place each is read before it is written. */
static inline void add_two(const struct group *g, const struct tess_coll *c, uint64_t bytes)
{
	const float *mine = c->src;
	const float *theirs = (const float *)(const void *)data_of(g, bytes, !g->rank);
	const float *first = g->rank ? theirs : mine, *second = g->rank ? mine : theirs;
	float *dst = c->dst;
	uint32_t saved = tess_float_enter();

#pragma GCC ivdep
	for (uint64_t k = 0; k < c->count; k++)
		dst[k] = tess_one_nan(first[k] + second[k] + 0.0f);
	tess_float_leave(saved);
}

/* This and gather() stand apart, so that small_run() need not save registers for what they call. */
static __attribute__((noinline)) void add(const struct group *g, const struct tess_coll *c,
                                          uint64_t bytes)
{
	const void *part[RANKS_MOST];
	void *dst = c->dst;

	for (int32_t r = 0; r < g->nranks; r++)
		part[r] = r == g->rank ? c->src : data_of(g, bytes, r);
	sum_to(c->dtype, c->op, part, g->nranks, c->count, &dst, 1, NULL);
}

static __attribute__((noinline)) void gather(const struct group *g, const struct tess_coll *c,
                                             uint64_t bytes)
{
	char *dst = c->dst;

	for (int32_t r = 0; r < g->nranks; r++)
		if (r != g->rank || c->src != dst)
			copy(dst + (uint64_t)r * bytes,
			     r == g->rank ? c->src : data_of(g, bytes, r), bytes);
}

/*
 * Asks for the lines that this rank writes next, if the next call is like this one: the others have
 * read them, and until they are told to forget them no store gets through. With other calls it is in vain.
 */
static inline void claim(const struct group *g, uint64_t bytes)
{
	const char *next = (const char *)notice_of(g, g->rank, g->round + 1);

	own(next);
	if (bytes <= INLINE)
		return;
	next = segment_slot(g, g->rank, g->round + 1, true) + TABLE;
	for (uint64_t at = 0; at < bytes && at < CLAIM; at += 64)
		own(next + at);
}

inline void small_take(const struct group *g, const struct tess_coll *c, uint64_t bytes)
{
	claim(g, bytes);
	if (!bytes)
		return;
	if (c->kind == TESS_ALL_REDUCE && g->nranks == 2 && c->count <= ONE_BY_ONE &&
	    c->dtype == TESS_F32 && c->op == TESS_SUM)
		add_two(g, c, bytes);
	else if (c->kind == TESS_ALL_REDUCE)
		add(g, c, bytes);
	else if (c->kind == TESS_ALL_GATHER)
		gather(g, c, bytes);
	else if (c->kind == TESS_BROADCAST && (g->rank != c->peer || c->src != c->dst))
		copy(c->dst, g->rank == c->peer ? c->src : data_of(g, bytes, c->peer), bytes);
}

/* Whether the notices of all are there, before meanwhile() has no time any more, and of this call. */
static inline bool all_come(struct group *g, const struct tess_coll *c,
                            int32_t (*meanwhile)(void *), void *arg)
{
	bool more = meanwhile(arg);
	int32_t seen = 0, peeks = PEEKS;

	while (seen < g->nranks) {
		const struct notice *n = notice_of(g, seen, g->round);

		if (atomic_load_explicit(&n->round, memory_order_acquire) == g->round) {
			if (n->print != c->fingerprint)
				return false;
			seen++;
		} else if (peeks > 0) {
			peeks--;
		} else if (more) {
			if (g->fenced)
				bell_ring(g);
			bell_relax();
			more = meanwhile(arg);
		} else {
			return false;
		}
	}
	return true;
}

/* As a call that is started: it is not small, nobody can look for it, or it is up and not over. */
static tess_status go_on(struct group *g, const struct tess_coll *c, bool up,
                         int32_t (*meanwhile)(void *), void *arg, void **work)
{
	struct work *w;
	tess_status st = work_start(g, c, up, &w);

	if (!up)
		meanwhile(arg);
	if (st)
		return st;
	w->c.deadline = c->deadline;
	*work = w;
	return TESS_PENDING;
}

tess_status small_run(void *self, const struct tess_coll *c, int32_t (*meanwhile)(void *arg),
                      void *arg, void **work)
{
	struct group *g = self;
	uint64_t bytes;

	if (!g->spin || g->failed || g->calls.head || g->messages || !small_plan(g, c, &bytes))
		return go_on(g, c, false, meanwhile, arg, work);
	small_post(g, c, bytes);
	if (!all_come(g, c, meanwhile, arg))
		return go_on(g, c, true, meanwhile, arg, work);
	small_take(g, c, bytes);
	g->round++;
	bell_ring(g);
	return TESS_OK;
}

/*
 * memory_plan.c - plans the offsets of buffers in the arena of a step.
 *
 * Values that a training step keeps for its backward end in the reverse order of their beginning.
 * They are stacked: the longest lived first, each above those in use at the same time.
 *
 * The other buffers get the lowest gap that fits above the stack. They are placed in order of first
 * use, which keeps adjacent steps in cache, or the largest first, which packs tighter around the
 * loss. The best of a few plans is used.
 */
#include "nn/lower/memory_plan.h"

#include "core/base/arena.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define UNPLACED UINT64_MAX

enum { FEW = 1024 }; /* number of buffers that need no stack */

struct skyline { /* the height of the stack at each step, as a tree over [0, size) */
	int64_t size; /* a power of two */
	uint64_t *raised; /* [2 * size]: minimum height of all steps of a node */
};

struct planner {
	int32_t n;
	/* the buffers: longest lived first; by first use; largest first */
	struct tess_lifetime **by_length, **by_first, **by_bytes;
	struct tess_lifetime **live; /* scratch of list_live */
	struct skyline stack;
};

static uint64_t get_larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t align_offset(const struct tess_lifetime *l, uint64_t at)
{
	return l->align ? (at + l->align - 1) & ~(l->align - 1) : at;
}

/*
 * Returns the height over the steps of a buffer. Those in the stack are at least as long, so that
 * one in use at the same time is in use in its first or its last step.
 */
static uint64_t find_height(const struct skyline *s, const struct tess_lifetime *l)
{
	uint64_t height = 0;

	for (int64_t a = s->size + l->first, b = s->size + l->last; a; a /= 2, b /= 2)
		height = get_larger(height, get_larger(s->raised[a], s->raised[b]));
	return height;
}

/* Raises the steps of a buffer. */
static void raise_skyline(struct skyline *s, const struct tess_lifetime *l, uint64_t to)
{
	for (int64_t a = s->size + l->first, b = s->size + l->last + 1; a < b; a /= 2, b /= 2) {
		if (a % 2) {
			s->raised[a] = get_larger(s->raised[a], to);
			a++;
		}
		if (b % 2) {
			b--;
			s->raised[b] = get_larger(s->raised[b], to);
		}
	}
}

/* Finds the lowest gap for `me` above `at` between n buffers in order of offset. */
static uint64_t find_gap(struct tess_lifetime *const *live, int32_t n,
                         const struct tess_lifetime *me, uint64_t at)
{
	at = align_offset(me, at);
	for (int32_t i = 0; i < n && live[i]->offset < at + me->bytes; i++)
		at = get_larger(at, align_offset(me, live[i]->offset + live[i]->bytes));
	return at;
}

/* Finds the first buffer that may be in use at `time`, if none is longer in use than `length`. */
static int32_t find_first_live(const struct planner *p, int32_t time, int32_t length)
{
	int32_t lo = 0, hi = p->n;

	while (lo < hi) {
		int32_t mid = lo + (hi - lo) / 2;

		if (p->by_first[mid]->first < time - length)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Inserts a buffer in the order of offsets, behind equal ones. */
static void insert_live(struct tess_lifetime **live, int32_t n, struct tess_lifetime *l)
{
	for (; n > 0 && live[n - 1]->offset > l->offset; n--)
		live[n] = live[n - 1];
	live[n] = l;
}

/* Lists placed buffers of at most `length` steps that are in use with `me`, by offset. */
static int32_t list_live(struct planner *p, const struct tess_lifetime *me, int32_t length)
{
	int32_t n = 0;

	for (int32_t i = find_first_live(p, me->first, length); i < p->n; i++) {
		struct tess_lifetime *o = p->by_first[i];

		if (o->first > me->last)
			break;
		if (o->last < me->first || o->offset == UNPLACED || o->last - o->first > length)
			continue;
		insert_live(p->live, n++, o);
	}
	return n;
}

/* Stacks the buffers of more than `length` steps; returns the bytes of the stack. */
static uint64_t stack_buffers(struct planner *p, int32_t length)
{
	struct skyline *s = &p->stack;
	uint64_t bytes = 0;

	memset(s->raised, 0, 2 * (size_t)s->size * sizeof *s->raised);
	for (int32_t i = 0; i < p->n; i++) {
		struct tess_lifetime *me = p->by_length[i];

		me->offset = UNPLACED;
		if (me->last - me->first <= length)
			continue;
		me->offset = align_offset(me, find_height(s, me));
		raise_skyline(s, me, me->offset + me->bytes);
		bytes = get_larger(bytes, me->offset + me->bytes);
	}
	return bytes;
}

/* Removes buffers that are not in use from step `first` on. Returns how many stay. */
static int32_t drop_ended(struct tess_lifetime **live, int32_t n, int32_t first)
{
	int32_t kept = 0;

	for (int32_t i = 0; i < n; i++) {
		live[kept] = live[i];
		kept += live[i]->last >= first;
	}
	return kept;
}

/*
 * Makes one plan; returns the bytes of the arena. UINT64_MAX: the plan is abandoned, since it needs
 * `most` bytes at least.
 */
static uint64_t place_buffers(struct planner *p, int32_t length, struct tess_lifetime *const *order,
                              uint64_t most)
{
	uint64_t bytes = stack_buffers(p, length), floor;
	int32_t n = 0;

	for (int32_t i = 0; i < p->n && bytes < most; i++) {
		struct tess_lifetime *me = order[i];

		if (me->offset != UNPLACED)
			continue;
		floor = find_height(&p->stack, me);
		n = order == p->by_first ? drop_ended(p->live, n, me->first)
		                         : list_live(p, me, length);
		me->offset = find_gap(p->live, n, me, floor);
		if (order == p->by_first)
			insert_live(p->live, n++, me);
		bytes = get_larger(bytes, me->offset + me->bytes);
	}
	return bytes < most ? bytes : UINT64_MAX;
}

static int compare_first(const void *a, const void *b)
{
	const struct tess_lifetime *x = *(struct tess_lifetime *const *)a,
				   *y = *(struct tess_lifetime *const *)b;

	return x->first != y->first ? x->first < y->first ? -1 : 1 : x < y ? -1 : x > y;
}

static int compare_length(const void *a, const void *b)
{
	const struct tess_lifetime *x = *(struct tess_lifetime *const *)a,
				   *y = *(struct tess_lifetime *const *)b;
	int32_t n = x->last - x->first, m = y->last - y->first;

	return n != m ? n > m ? -1 : 1 : compare_first(a, b);
}

static int compare_bytes(const void *a, const void *b)
{
	const struct tess_lifetime *x = *(struct tess_lifetime *const *)a,
				   *y = *(struct tess_lifetime *const *)b;

	return x->bytes != y->bytes ? x->bytes > y->bytes ? -1 : 1 : compare_length(a, b);
}

static tess_status open_planner(struct planner *p, struct tess_arena *arena,
                                struct tess_lifetime *list, int32_t n)
{
	struct skyline *s = &p->stack;
	int32_t last = 0;

	p->by_length = TESS_NEW(arena, struct tess_lifetime *, n);
	p->by_first = TESS_NEW(arena, struct tess_lifetime *, n);
	p->by_bytes = TESS_NEW(arena, struct tess_lifetime *, n);
	p->live = TESS_NEW(arena, struct tess_lifetime *, n);
	for (int32_t i = 0; i < n; i++)
		last = list[i].last > last ? list[i].last : last;
	for (s->size = 1; s->size <= last; s->size *= 2)
		;
	s->raised = TESS_NEW(arena, uint64_t, 2 * s->size);
	if (!p->by_length || !p->by_first || !p->by_bytes || !p->live || !s->raised)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < n; i++)
		if (list[i].bytes)
			p->by_length[p->n] = p->by_first[p->n] = p->by_bytes[p->n] = &list[i],
			p->n++;
	qsort(p->by_length, (size_t)p->n, sizeof *p->by_length, compare_length);
	qsort(p->by_first, (size_t)p->n, sizeof *p->by_first, compare_first);
	qsort(p->by_bytes, (size_t)p->n, sizeof *p->by_bytes, compare_bytes);
	return TESS_OK;
}

/* Returns the peak of live bytes, a lower bound of any plan. */
static uint64_t find_peak(const struct planner *p)
{
	uint64_t *change = p->stack.raised, now = 0, peak = 0; /* change of live bytes by step */

	for (int32_t i = 0; i < p->n; i++) {
		change[p->by_first[i]->first] += p->by_first[i]->bytes;
		change[p->by_first[i]->last + 1] -= p->by_first[i]->bytes;
	}
	for (int64_t i = 0; i < p->stack.size; i++) {
		now += change[i];
		peak = get_larger(peak, now);
	}
	return peak;
}

tess_status tess_memory_plan_place(struct tess_lifetime *list, int32_t n, uint64_t *bytes)
{
	static const int32_t lengths[] = { INT32_MAX, 1024, 128, 16 };
	struct tess_arena arena = { 0 };
	struct planner p = { 0 };
	tess_status st = open_planner(&p, &arena, list, n);
	struct tess_lifetime *best = st ? NULL : TESS_NEW(&arena, struct tess_lifetime, n);
	uint64_t peak = best ? find_peak(&p) : 0, least = UINT64_MAX;

	for (int32_t i = p.n <= FEW ? 0 : 2; i < 8 && best && least > peak; i++) {
		uint64_t end =
			place_buffers(&p, lengths[i / 2], i % 2 ? p.by_bytes : p.by_first, least);

		if (end < least) {
			memcpy(best, list, sizeof *best * (size_t)n);
			least = end;
		}
	}
	if (best) {
		memcpy(list, best, sizeof *best * (size_t)n);
		*bytes = least;
	}
	tess_arena_free(&arena);
	return best ? TESS_OK : TESS_ENOMEM;
}

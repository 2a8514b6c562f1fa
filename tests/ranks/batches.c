#include "batches.h"

#include "core/base/status.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 16, MOST = 30000, LARGE = 300001, LARGE_RANKS = 5 };

/* What one rank sends to all, and gets from all. */
struct parcels {
	int32_t out[RANKS][MOST], in[RANKS][MOST], sum[2][MOST];
};

static struct tess_coll message(int32_t kind, int32_t peer, int32_t *at, uint64_t count)
{
	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = kind,
		                   .dtype = TESS_I32,
		                   .peer = peer,
		                   .src = kind == TESS_SEND ? at : NULL,
		                   .dst = kind == TESS_RECV ? at : NULL,
		                   .count = count,
		                   .where = "batches:message" };
}

static struct tess_coll sum(int32_t *from, int32_t *to, uint64_t count)
{
	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = TESS_ALL_REDUCE,
		                   .dtype = TESS_I32,
		                   .src = from,
		                   .dst = to,
		                   .count = count,
		                   .where = "batches:sum" };
}

/* Element i of what `from` sends to `to`. */
static int32_t word(int32_t from, int32_t to, uint64_t i)
{
	return from * 1000 + to * 100 + (int32_t)(i % 97);
}

/* Waits for it by looking at it, or not; then lets go of it. */
static tess_status finish(struct tess_work *w, bool look)
{
	tess_status st = TESS_PENDING;

	while (look && (st = tess_work_test(w)) == TESS_PENDING)
		;
	if (!look)
		st = tess_work_wait(w, 0);
	tess_work_release(w);
	return st;
}

/* Calls in an order of the rank's own: rotated by its number, backwards on odd ones. */
static tess_status run_shuffled(struct tess_group *g, struct tess_coll *c, uint32_t n, bool look)
{
	const struct tess_coll *list[2 * RANKS + 2];
	uint32_t me = (uint32_t)tess_group_rank(g);
	struct tess_work *w;
	tess_status st;

	for (uint32_t i = 0; i < n; i++)
		list[me % 2 ? n - 1 - i : i] = &c[(i + me) % n];
	st = tess_group_batch(g, list, n, &w);
	return st ? st : finish(w, look);
}

static tess_status all_to_all(struct tess_group *g, struct parcels *p, uint64_t count, bool look)
{
	int32_t n = tess_group_size(g), me = tess_group_rank(g);
	struct tess_coll c[2 * RANKS];
	uint32_t ncalls = 0;
	tess_status st;

	memset(p->in, -1, sizeof p->in);
	for (int32_t r = 0; r < n; r++) {
		for (uint64_t i = 0; i < count; i++)
			p->out[r][i] = word(me, r, i);
		if (r == me)
			continue;
		c[ncalls++] = message(TESS_SEND, r, p->out[r], count);
		c[ncalls++] = message(TESS_RECV, r, p->in[r], count);
	}
	st = run_shuffled(g, c, ncalls, look);
	for (int32_t r = 0; r < n && !st; r++)
		for (uint64_t i = 0; i < count && r != me && !st; i++)
			if (p->in[r][i] != word(r, me, i))
				st = tess_fail(TESS_EBUG, "element %d from rank %d is %d", (int)i,
				               r, p->in[r][i]);
	return st;
}

/* More than any buffer on the way holds, from each to all others: none may wait until another has come. */
static tess_status large(struct tess_group *g)
{
	int32_t n = tess_group_size(g), me = tess_group_rank(g);
	int32_t *mine = malloc(LARGE * sizeof *mine), *in = malloc((size_t)n * LARGE * sizeof *in);
	struct tess_coll c[2 * LARGE_RANKS];
	uint32_t ncalls = 0;
	tess_status st = mine && in ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory");

	for (uint64_t i = 0; i < LARGE && !st; i++)
		mine[i] = word(me, 0, i);
	for (int32_t r = 0; r < n && !st; r++)
		if (r != me) {
			c[ncalls++] = message(TESS_SEND, r, mine, LARGE);
			c[ncalls++] = message(TESS_RECV, r, in + r * (int64_t)LARGE, LARGE);
		}
	if (!st)
		st = run_shuffled(g, c, ncalls, false);
	if (st)
		return st; /* the buffers are the group's */
	for (int32_t r = 0; r < n && !st; r++)
		for (uint64_t i = 0; i < LARGE && r != me && !st; i++)
			if (in[(uint64_t)r * LARGE + i] != word(r, 0, i))
				st = tess_fail(TESS_EBUG, "element %d from rank %d is %d", (int)i,
				               r, in[(uint64_t)r * LARGE + i]);
	free(mine);
	free(in);
	return st;
}

/* Two sums and, between them, messages around the ring; odd ranks make the calls singly. */
static tess_status mixed(struct tess_group *g, struct parcels *p, uint64_t count)
{
	int32_t n = tess_group_size(g), me = tess_group_rank(g), last = (me + n - 1) % n;
	struct tess_coll c[4] = { sum(p->out[0], p->sum[0], count), sum(p->out[1], p->sum[1], 10),
		                  message(TESS_RECV, last, p->in[0], count),
		                  message(TESS_SEND, (me + 1) % n, p->out[2], count) };
	const struct tess_coll *list[4] = { &c[0], &c[2], &c[1], &c[3] };
	uint32_t ncalls = n > 1 ? 4 : 2;
	struct tess_work *w[4];
	tess_status st = TESS_OK;

	if (n == 1)
		list[1] = &c[1];
	for (uint64_t i = 0; i < count; i++) {
		p->out[0][i] = me;
		p->out[1][i] = 1;
		p->out[2][i] = word(me, 0, i);
	}
	for (uint32_t i = 0; i < ncalls && me % 2 && !st; i++)
		st = tess_group_start(g, list[i], &w[i]);
	for (uint32_t i = ncalls; i-- > 0 && me % 2 && !st;)
		st = finish(w[i], false);
	if (!(me % 2)) {
		st = tess_group_batch(g, list, ncalls, &w[0]);
		if (!st)
			st = finish(w[0], false);
	}
	for (uint64_t i = 0; i < count && !st; i++)
		if (p->sum[0][i] != n * (n - 1) / 2 || (i < 10 && p->sum[1][i] != n) ||
		    (n > 1 && p->in[0][i] != word(last, 0, i)))
			st = tess_fail(TESS_EBUG, "element %d is %d, %d and %d", (int)i,
			               p->sum[0][i], p->sum[1][i], p->in[0][i]);
	return st;
}

/* One that is refused lets none begin; an empty one is over. */
static tess_status odd_ones(struct tess_group *g, struct parcels *p)
{
	struct tess_coll c[2] = { sum(p->out[0], p->sum[0], 4), sum(p->out[0], p->sum[1], 4) };
	const struct tess_coll *list[2] = { &c[0], &c[1] };
	struct tess_work *w = NULL;
	tess_status st;

	c[1].dtype = 77;
	st = tess_group_batch(g, list, 2, &w);
	if (st != TESS_EINVAL || w || !strstr(tess_error(), "dtype 77"))
		return tess_fail(TESS_EBUG, "a bad call of a batch: %s", st ? tess_error() : "ok");
	st = tess_group_batch(g, NULL, 0, &w);
	if (!st)
		st = tess_work_test(w) ? TESS_EBUG : finish(w, false);
	if (!st)
		st = tess_group_batch(g, list, 1, &w);
	return st ? st : finish(w, false);
}

tess_status batches_play(struct tess_group *g)
{
	static const uint64_t counts[] = { 10, 0, MOST };
	struct parcels *p = calloc(1, sizeof *p);
	tess_status st = p ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory");

	for (int i = 0; i < 6 && !st; i++)
		st = all_to_all(g, p, counts[i % 3], i > 2);
	for (int i = 0; i < 3 && !st; i++)
		st = mixed(g, p, counts[i] + 10 * !counts[i]);
	if (!st)
		st = odd_ones(g, p);
	for (int i = 0; i < 2 && !st && tess_group_size(g) <= LARGE_RANKS; i++)
		st = large(g);
	free(p);
	return st ? st : tess_barrier(g, "batches:end");
}

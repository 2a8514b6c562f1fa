#include "batches.h"
#include "core/base/status.h"
#include "tools/conform/data.h"

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 16, COUNT_MAX = 30000, LARGE_COUNT = 300001, LARGE_RANKS = 5 };

/* The data that one rank sends to all ranks and receives from them. */
struct exchange_buffers {
	int32_t out[RANKS][COUNT_MAX], in[RANKS][COUNT_MAX], sum[2][COUNT_MAX], expected[COUNT_MAX];
};

static struct tess_coll make_message(int32_t kind, int32_t peer, int32_t *at, uint64_t count)
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

static struct tess_coll make_sum(int32_t *from, int32_t *to, uint64_t count)
{
	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = TESS_ALL_REDUCE,
		                   .dtype = TESS_I32,
		                   .src = from,
		                   .dst = to,
		                   .count = count,
		                   .where = "batches:sum" };
}

static const struct conform_case messages = { .kind = TESS_SEND, .dtype = TESS_I32 };
static const struct conform_case sums = { .kind = TESS_ALL_REDUCE,
	                                  .dtype = TESS_I32,
	                                  .op = TESS_SUM };

/* Checks that the message of `from` to `to` (-1: to all) has arrived; `scratch` has its size. */
static tess_status check_message(int32_t from, int32_t to, uint64_t count, const int32_t *got,
                                 int32_t *scratch)
{
	conform_data_write(&messages, 0, from, to, 0, count, scratch);
	return memcmp(got, scratch, count * sizeof *got)
	               ? tess_fail(TESS_EBUG, "the message from rank %d is wrong", from)
	               : TESS_OK;
}

/* Completes the work, by polling or not, and releases it. */
static tess_status finish_work(struct tess_work *w, bool poll)
{
	tess_status st = TESS_PENDING;

	while (poll && (st = tess_work_test(w)) == TESS_PENDING)
		sched_yield();
	if (!poll)
		st = tess_work_wait(w, 0);
	tess_work_release(w);
	return st;
}

/*
 * Runs the calls in an order that differs by rank: rotated by its number, backwards on odd ranks.
 */
static tess_status run_shuffled_batch(struct tess_group *g, struct tess_coll *c, uint32_t n,
                                      bool poll)
{
	const struct tess_coll *list[2 * RANKS + 2];
	uint32_t me = (uint32_t)tess_group_rank(g);
	struct tess_work *w;
	tess_status st;

	for (uint32_t i = 0; i < n; i++)
		list[me % 2 ? n - 1 - i : i] = &c[(i + me) % n];
	st = tess_group_batch(g, list, n, &w);
	return st ? st : finish_work(w, poll);
}

static tess_status exchange_with_all(struct tess_group *g, struct exchange_buffers *p,
                                     uint64_t count, bool poll)
{
	int32_t n = tess_group_size(g), me = tess_group_rank(g);
	struct tess_coll c[2 * RANKS];
	uint32_t ncalls = 0;
	tess_status st;

	memset(p->in, -1, sizeof p->in);
	for (int32_t r = 0; r < n; r++) {
		if (r == me)
			continue;
		conform_data_write(&messages, n, me, r, 0, count, p->out[r]);
		c[ncalls++] = make_message(TESS_SEND, r, p->out[r], count);
		c[ncalls++] = make_message(TESS_RECV, r, p->in[r], count);
	}
	st = run_shuffled_batch(g, c, ncalls, poll);
	for (int32_t r = 0; r < n && !st; r++)
		if (r != me)
			st = check_message(r, me, count, p->in[r], p->expected);
	return st;
}

/*
 * Sends more from each rank to all than any buffer on the way can store: none may wait for another
 * to arrive.
 */
static tess_status exchange_large(struct tess_group *g)
{
	int32_t n = tess_group_size(g), me = tess_group_rank(g);
	int32_t *mine = malloc(LARGE_COUNT * sizeof *mine),
		*in = malloc((size_t)n * LARGE_COUNT * sizeof *in); /* block `me`: expected */
	struct tess_coll c[2 * LARGE_RANKS];
	uint32_t ncalls = 0;
	tess_status st = mine && in ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory");

	if (!st)
		conform_data_write(&messages, n, me, -1, 0, LARGE_COUNT, mine);
	for (int32_t r = 0; r < n && !st; r++)
		if (r != me) {
			c[ncalls++] = make_message(TESS_SEND, r, mine, LARGE_COUNT);
			c[ncalls++] = make_message(TESS_RECV, r, in + r * (int64_t)LARGE_COUNT,
			                           LARGE_COUNT);
		}
	if (!st)
		st = run_shuffled_batch(g, c, ncalls, false);
	if (st)
		return st; /* the buffers belong to the group */
	for (int32_t r = 0; r < n && !st; r++)
		if (r != me)
			st = check_message(r, -1, LARGE_COUNT, in + r * (int64_t)LARGE_COUNT,
			                   in + me * (int64_t)LARGE_COUNT);
	free(mine);
	free(in);
	return st;
}

/* Runs two sums and, between them, messages around the ring; odd ranks make the calls singly. */
static tess_status run_mixed_batch(struct tess_group *g, struct exchange_buffers *p, uint64_t count)
{
	int32_t n = tess_group_size(g), me = tess_group_rank(g), last = (me + n - 1) % n;
	struct tess_coll c[4] = { make_sum(p->out[0], p->sum[0], count),
		                  make_sum(p->out[1], p->sum[1], 10),
		                  make_message(TESS_RECV, last, p->in[0], count),
		                  make_message(TESS_SEND, (me + 1) % n, p->out[2], count) };
	const struct tess_coll *list[4] = { &c[0], &c[2], &c[1], &c[3] };
	uint32_t ncalls = n > 1 ? 4 : 2;
	struct tess_work *w[4];
	tess_status st = TESS_OK;

	if (n == 1)
		list[1] = &c[1];
	for (int32_t k = 0; k < 2; k++)
		conform_data_write(&sums, n, me, k, 0, k ? 10 : count, p->out[k]);
	conform_data_write(&messages, n, me, -1, 0, count, p->out[2]);
	for (uint32_t i = 0; i < ncalls && me % 2 && !st; i++)
		st = tess_group_start(g, list[i], &w[i]);
	for (uint32_t i = ncalls; i-- > 0 && me % 2 && !st;)
		st = finish_work(w[i], false);
	if (!(me % 2)) {
		st = tess_group_batch(g, list, ncalls, &w[0]);
		if (!st)
			st = finish_work(w[0], false);
	}
	for (int32_t k = 0; k < 2 && !st; k++) {
		conform_data_write(&sums, n, -1, k, 0, k ? 10 : count, p->expected);
		if (memcmp(p->sum[k], p->expected, (k ? 10 : count) * sizeof *p->expected))
			st = tess_fail(TESS_EBUG, "sum %d is wrong", k);
	}
	if (!st && n > 1)
		st = check_message(last, -1, count, p->in[0], p->expected);
	return st;
}

/* Checks that a refused batch begins no call, and that an empty one is done at once. */
static tess_status check_refused_and_empty(struct tess_group *g, struct exchange_buffers *p)
{
	struct tess_coll c[2] = { make_sum(p->out[0], p->sum[0], 4),
		                  make_sum(p->out[0], p->sum[1], 4) };
	const struct tess_coll *list[2] = { &c[0], &c[1] };
	struct tess_work *w = NULL;
	tess_status st;

	c[1].dtype = 77;
	st = tess_group_batch(g, list, 2, &w);
	if (st != TESS_EINVAL || w || !strstr(tess_error(), "dtype 77"))
		return tess_fail(TESS_EBUG, "a bad call of a batch: %s", st ? tess_error() : "ok");
	st = tess_group_batch(g, NULL, 0, &w);
	if (!st)
		st = tess_work_test(w) ? TESS_EBUG : finish_work(w, false);
	if (!st)
		st = tess_group_batch(g, list, 1, &w);
	return st ? st : finish_work(w, false);
}

tess_status batches_run(struct tess_group *g)
{
	static const uint64_t counts[] = { 10, 0, COUNT_MAX };
	struct exchange_buffers *p = calloc(1, sizeof *p);
	tess_status st = p ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory");

	for (int i = 0; i < 6 && !st; i++)
		st = exchange_with_all(g, p, counts[i % 3], i > 2);
	for (int i = 0; i < 3 && !st; i++)
		st = run_mixed_batch(g, p, counts[i] + 10 * !counts[i]);
	if (!st)
		st = check_refused_and_empty(g, p);
	for (int i = 0; i < 2 && !st && tess_group_size(g) <= LARGE_RANKS; i++)
		st = exchange_large(g);
	free(p);
	return st ? st : tess_barrier(g, "batches:end");
}

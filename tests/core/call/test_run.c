/*
 * Repeated blocking calls, which take the short path of a backend that has one: two ranks, each
 * on a CPU. Their results, and failures in them.
 */
#include "tests/support/draw.h"
#include "tests/support/report.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 600, COUNT_MAX = 300, MAX_REPEATS = 20 };

/*
 * Sometimes a rank is late: by less than the time for which the other one polls, by more, or by so
 * much that the other one sleeps.
 */
static void delay_at_random(uint64_t *seed)
{
	static const useconds_t us[] = { 1, 10, 100, 1000 };
	uint64_t x = draw_below(seed, 64);

	if (x < 4)
		usleep(us[x]);
}

/* One call of the kind, and its result: small integers, exact in any order. */
static tess_status make_checked_call(struct tess_group *g, int32_t me, int32_t kind, uint64_t n,
                                     int in_place)
{
	float src[COUNT_MAX], dst[2 * COUNT_MAX], *from = in_place ? dst : src;
	struct tess_coll c = { .size = sizeof c,
		               .kind = kind,
		               .dtype = TESS_F32,
		               .src = from,
		               .dst = dst,
		               .peer = kind == TESS_BROADCAST,
		               .count = n,
		               .where = in_place ? "in/place" : "apart" };
	tess_status st;

	if (kind == TESS_ALL_GATHER && in_place)
		from = dst + (uint64_t)me * n;
	for (uint64_t i = 0; i < n; i++)
		from[i] = (float)(i + 1) * (me ? 1000 : 1);
	if (kind == TESS_BARRIER)
		c.src = c.dst = NULL;
	st = tess_group_run(g, &c);
	for (uint64_t i = 0; !st && i < n; i++) {
		float x = (float)(i + 1);

		if (kind == TESS_ALL_REDUCE)
			ck_assert_msg(dst[i] == 1001 * x, "[%d] is %g", (int)i, (double)dst[i]);
		else if (kind == TESS_BROADCAST)
			ck_assert_msg(dst[i] == 1000 * x, "[%d] is %g", (int)i, (double)dst[i]);
		else if (kind == TESS_ALL_GATHER)
			ck_assert_msg(dst[i] == x && dst[n + i] == 1000 * x, "[%d] is %g, %g",
			              (int)i, (double)dst[i], (double)dst[n + i]);
	}
	return st;
}

/* Calls of one kind and size come in series; in some series another call is under way meanwhile. */
static tess_status run_repeated_calls(struct tess_world *w, void *arg)
{
	static const int32_t kinds[] = { TESS_ALL_REDUCE, TESS_BARRIER, TESS_BROADCAST,
		                         TESS_ALL_GATHER };
	static const uint64_t counts[] = { 1, 2, 3, 10, 11, 64, 65, COUNT_MAX };
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w);
	uint64_t both = 1, own = 77 + (uint64_t)me; /* the same on all ranks, and different */
	int32_t seen = me + 1, sum;
	struct tess_coll beside = { .size = sizeof beside,
		                    .kind = TESS_ALL_REDUCE,
		                    .dtype = TESS_I32,
		                    .src = &seen,
		                    .dst = &sum,
		                    .count = 1,
		                    .where = "beside" };
	tess_status st = TESS_OK;

	(void)arg;
	for (int i = 0; i < ROUNDS && !st; i++) {
		int32_t kind = kinds[draw_below(&both, 4)];
		uint64_t n = kind == TESS_BARRIER ? 0 : counts[draw_below(&both, 8)];
		int in_place = (int)draw_below(&both, 2),
		    length = 1 + (int)draw_below(&both, MAX_REPEATS);
		struct tess_work *work = NULL;

		sum = 0;
		if (draw_below(&both, 8) == 0)
			st = tess_group_start(g, &beside, &work);
		for (int k = 0; k < length && !st; k++) {
			delay_at_random(&own);
			st = make_checked_call(g, me, kind, n, in_place);
		}
		if (work && !st)
			st = tess_work_wait(work, 0);
		ck_assert(st || !work || sum == 3);
		tess_work_release(work);
	}
	return st;
}

START_TEST(results_are_right)
{
	spawn_ranks(2, run_repeated_calls, NULL);
}
END_TEST

enum { NEVER, ENDS };

/* Rank 1 makes the last call after rank 0 has given up, or not at all. */
static tess_status miss_last_call(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	struct tess_group *g = tess_world_group(w);
	float x = 1, y;
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_REDUCE,
		               .dtype = TESS_F32,
		               .src = &x,
		               .dst = &y,
		               .count = 1,
		               .where = "the last" };
	tess_status st = TESS_OK;

	for (int i = 0; i < MAX_REPEATS && !st; i++)
		st = tess_group_run(g, &c);
	if (!st && tess_world_rank(w) == 1) {
		if (r->variant == ENDS)
			return store_report(r, w, TESS_OK);
		wait_for_reports(r, 1);
	}
	/* a busy machine may end rank 1 late */
	c.deadline = tess_now() + (r->variant == ENDS ? 20000 : 200) * (int64_t)TESS_MS;
	return store_report(r, w, st ? st : tess_group_run(g, &c));
}

START_TEST(rank_that_does_not_join)
{
	struct rank_reports r = { .variant = _i };
	int64_t began = tess_now();

	ck_assert_int_lt(tess_world_spawn_threads(2, miss_last_call, &r), 0);
	expect_soon(began);
	ck_assert_int_eq(r.st[0], _i == NEVER ? TESS_ETIMEOUT : TESS_EMISMATCH);
	expect_part(r.sentence[0], "rank 1");
	expect_part(r.sentence[0], "the last");
	ck_assert_int_eq(r.st[1], _i == NEVER ? TESS_ETIMEOUT : TESS_OK);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("run", 60, &runner);

	tcase_add_test(tcase, results_are_right);
	tcase_add_loop_test(tcase, rank_that_does_not_join, NEVER, ENDS + 1);
	return suite_end(runner);
}

/*
 * test_failures.c - failures between threads: each soon becomes an error on every rank that names
 * the rank and the place.
 */
#include "core/base/option.h"
#include "core/sum/exact.h"
#include "core/world/world.h"
#include "tests/support/report.h"
#include "tests/support/suite.h"

#include <unistd.h>

/* Returns early on rank 1. */
static tess_status return_early(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	tess_status st = tess_barrier(g, "all");

	if (tess_world_rank(w) == 1)
		return st;
	return store_report(arg, w, st ? st : tess_barrier(g, "layers.7"));
}

START_TEST(rank_returns_early)
{
	struct rank_reports r = { 0 };

	EXPECT_REPORTS(return_early, &r, 1, TESS_EMISMATCH, "rank 1", "has left the job",
	               "layers.7");
}
END_TEST

/* Fails on rank 3, while the other ranks wait in a call, or have started several. */
static tess_status fail_on_rank_3(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	struct tess_group *g = tess_world_group(w);
	struct tess_coll c = { .size = sizeof c, .kind = TESS_BARRIER, .where = "layers.2" };
	struct tess_work *a, *b;
	tess_status st = tess_barrier(g, "first");

	if (st)
		return store_report(r, w, st);
	if (tess_world_rank(w) == 3) {
		usleep(20000);
		return store_report(r, w, tess_fail(TESS_ENOMEM, "no memory for the cache"));
	}
	st = tess_group_start(g, &c, &a);
	if (!st)
		st = tess_group_start(g, &c, &b);
	if (st)
		return store_report(r, w, st);
	if (r->variant)
		while ((st = tess_work_test(b)) == TESS_PENDING)
			usleep(1000);
	else
		st = tess_work_wait(b, 0);
	store_report(r, w, st);
	/* every later call fails with the same message */
	if (tess_barrier(g, "later") != st ||
	    strcmp(tess_error(), r->sentence[tess_world_rank(w)]) || tess_work_wait(a, 0) != st)
		r->st[tess_world_rank(w)] = TESS_EBUG;
	tess_work_release(a);
	tess_work_release(b);
	return st;
}

START_TEST(rank_gives_up)
{
	struct rank_reports r = { .variant = _i };

	EXPECT_REPORTS(fail_on_rank_3, &r, 3, TESS_ENOMEM, "rank 3", "no memory", "cache");
	expect_part(tess_error(), "rank 3: no memory for the cache");
}
END_TEST

/* Fails on one rank while the other ranks may still be joining. */
static tess_status fail_before_first_call(struct tess_world *w, void *arg)
{
	const int *victim = arg;

	if (tess_world_rank(w) == *victim)
		return tess_fail(TESS_EDEVICE, "rank 9: no device");
	return tess_barrier(tess_world_group(w), "all");
}

START_TEST(rank_fails_at_once)
{
	for (int i = 0; i < 40; i++) {
		int victim = i % N;
		char expected[64];

		snprintf(expected, sizeof expected, "rank %d: rank 9: no device", victim);
		ck_assert_int_eq(tess_world_spawn_threads(N, fail_before_first_call, &victim),
		                 TESS_EDEVICE);
		expect_part(tess_error(), expected);
	}
}
END_TEST

/* Fails with an agreed message of rank 2, to which no second rank is added. */
static tess_status fail_agreed(struct tess_world *w, void *arg)
{
	(void)arg;
	return tess_group_fail_agreed(tess_world_group(w), 2, TESS_EDEVICE, "no device");
}

START_TEST(ranks_agree_on_a_failure)
{
	ck_assert_int_eq(tess_world_spawn_threads(N, fail_agreed, NULL), TESS_EDEVICE);
	ck_assert_str_eq(tess_error(), "rank 2: no device");
}
END_TEST

/* Sleeps on rank 0 past the deadline of the other ranks. */
static tess_status sleep_past_deadline(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	struct tess_coll c = { .size = sizeof c, .kind = TESS_BARRIER, .where = "layers.5" };

	meet_ranks(r);
	if (tess_world_rank(w) == 0)
		wait_for_reports(r, N - 1);
	c.deadline = get_near_deadline();
	return store_report(r, w, tess_group_run(tess_world_group(w), &c));
}

enum { OF_CALL, OF_WAIT, OF_BATCH, OF_JOB, DEADLINES };

/* Waits for rank 0 with several deadlines; the first one ends the wait of all ranks. */
static tess_status wait_with_deadlines(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	struct tess_group *g = tess_world_group(w);
	int64_t near, far;
	struct tess_coll c[2] = {
		{ .size = sizeof *c, .kind = TESS_BARRIER, .where = "layers.5" },
		{ .size = sizeof *c, .kind = TESS_BARRIER, .where = "layers.6" }
	};
	const struct tess_coll *list[] = { &c[0], &c[1] };
	struct tess_work *work;
	tess_status st;

	meet_ranks(r);
	near = get_near_deadline();
	far = near + 60000 * (int64_t)TESS_MS;
	if (tess_world_rank(w) == 0) {
		wait_for_reports(r, N - 1);
		return store_report(r, w, tess_barrier(g, "late"));
	}
	if (r->variant == OF_JOB)
		return store_report(r, w, tess_barrier(g, "layers.5"));
	c[r->variant == OF_BATCH].deadline = r->variant == OF_WAIT ? far : near;
	st = r->variant == OF_BATCH ? tess_group_batch(g, list, 2, &work)
	                            : tess_group_start(g, &c[0], &work);
	if (st)
		return store_report(r, w, st);
	st = store_report(r, w,
	                  tess_work_wait(work, r->variant == OF_CALL   ? far
	                                       : r->variant == OF_WAIT ? near
	                                                               : 0));
	tess_work_release(work);
	return st;
}

START_TEST(deadline_that_is_first)
{
	struct rank_reports r = { .variant = _i };

	if (_i == OF_JOB)
		ck_assert_int_eq(setenv("TESSERA_TIMEOUT", "1", 1), 0);
	EXPECT_REPORTS(wait_with_deadlines, &r, -1, TESS_ETIMEOUT, "rank 0", "layers.5");
}
END_TEST

/* Sleeps on rank 3; rank 1 waits for its message, and ranks 0 and 2 for both. */
static tess_status sleep_in_chain_of_waits(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	int32_t me = tess_world_rank(w);
	static float x; /* owned by the group until it is closed */
	struct tess_coll c = { .size = sizeof c, .kind = TESS_BARRIER, .where = "layers.5" };

	meet_ranks(r);
	if (me == 3)
		wait_for_reports(r, N - 1);
	if (me == 1)
		c = (struct tess_coll){ .size = sizeof c,
			                .kind = TESS_RECV,
			                .dtype = TESS_F32,
			                .peer = 3,
			                .dst = &x,
			                .count = 1 };
	else
		c.deadline = get_near_deadline();
	return store_report(r, w, tess_group_run(tess_world_group(w), &c));
}

START_TEST(deadline_of_a_chain)
{
	struct rank_reports r = { 0 };

	ck_assert_int_eq(tess_world_spawn_threads(N, sleep_in_chain_of_waits, &r), TESS_ETIMEOUT);
	expect_reports(&r, -1, TESS_ETIMEOUT, "rank 3 (one of 2 such ranks) has not joined",
	               "layers.5", "it has reported no call yet");
}
END_TEST

START_TEST(deadline)
{
	struct rank_reports r = { 0 };

	EXPECT_REPORTS(sleep_past_deadline, &r, -1, TESS_ETIMEOUT, "rank 0 has not joined",
	               "layers.5", "it has reported no call yet");
}
END_TEST

/* Never returns on rank 2 from its own code, while the other ranks wait for it. */
static tess_status never_return(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	tess_status st = tess_barrier(g, "first");

	while (!st && tess_world_rank(w) == 2)
		pause();
	return store_report(arg, w, st ? st : tess_barrier(g, "layers.4"));
}

START_TEST(rank_hangs)
{
	static struct rank_reports r; /* still used by that rank */

	ck_assert_int_eq(setenv("TESSERA_TIMEOUT", "0.5", 1), 0);
	ck_assert_int_eq(tess_world_spawn_threads(N, never_return, &r), TESS_ETIMEOUT);
	expect_part(tess_error(), "rank 2 has not joined by the deadline of rank ");
	expect_part(tess_error(), "barrier, call 2, at layers.4");
	expect_part(tess_error(), "rank 2 has not returned and is left behind");
	expect_reports(&r, 2, TESS_ETIMEOUT, "rank 2", "layers.4");
}
END_TEST

/* Checks a rank that never returns over a backend without abort. */
START_TEST(without_abort)
{
	struct rank_reports r = { 0 };
	int64_t began = tess_now();

	use_minimal_backend("minimal");
	ck_assert_int_eq(tess_world_spawn_threads(N, sleep_past_deadline, &r), TESS_ETIMEOUT);
	expect_reports(&r, -1, TESS_ETIMEOUT, "rank 0 has not joined", "layers.5", "no call yet");
	ck_assert_int_eq(tess_world_spawn_threads(N, fail_on_rank_3, &r), TESS_ENOMEM);
	expect_reports(&r, 3, TESS_ENOMEM, "rank 3", "no memory", "cache");
	expect_soon(began);
}
END_TEST

/* Receives a message from every other rank on rank 0; rank 2 sends none, or a shorter one. */
static tess_status run_incomplete_batch(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w);
	float x[N][4] = { { 0 } };
	struct tess_coll c[N - 1];
	const struct tess_coll *list[N - 1];
	struct tess_work *work;
	tess_status st = tess_barrier(g, "first");

	meet_ranks(r);
	for (int32_t i = 0; i < N - 1; i++) {
		c[i] = (struct tess_coll){ .size = sizeof c[i],
			                   .kind = me ? TESS_SEND : TESS_RECV,
			                   .dtype = TESS_F32,
			                   .peer = me ? 0 : i + 1,
			                   .src = x[0],
			                   .dst = x[i],
			                   .count = me == 2 ? 3 : 4,
			                   .where = me ? "to" : "from",
			                   .deadline = get_near_deadline() };
		list[i] = &c[i];
	}
	if (!st && me == 2 && !r->variant)
		wait_for_reports(r, N - 1);
	else if (!st)
		st = tess_group_batch(g, list, me ? 1 : N - 1, &work);
	if (!st && (me != 2 || r->variant)) {
		st = tess_work_wait(work, 0);
		tess_work_release(work);
	}
	/* a message sent before the mismatch was found makes the next call fail */
	return store_report(r, w, st ? st : tess_barrier(g, "later"));
}

START_TEST(batches)
{
	struct rank_reports r = { 0 };
	int64_t began = tess_now();

	ck_assert_int_eq(tess_world_spawn_threads(N, run_incomplete_batch, &r), TESS_ETIMEOUT);
	expect_reports(&r, -1, TESS_ETIMEOUT, "rank 2 has not joined by the deadline of rank 0",
	               "recv of 4 f32 from rank 2, message 1, at from",
	               "its last reported call is barrier");
	r.variant = 1;
	ck_assert_int_eq(tess_world_spawn_threads(N, run_incomplete_batch, &r), TESS_EMISMATCH);
	expect_reports(&r, -1, TESS_EMISMATCH, "rank 2", "send of 3 f32 to rank 0",
	               "recv of 4 f32 from rank 2");
	expect_soon(began);
}
END_TEST

enum { SUM_LATE, SUM_DIFFERS, SUM_FAILED, SUM_VARIANTS };

/* Starts two sums; in the second, rank 2 is late, has another length, or fails on its own. */
static tess_status start_incomplete_sums(struct tess_world *w, void *arg)
{
	static const int64_t n[1] = { 40 };
	static float nodes[N][3 * 20000], out[2][N][20000]; /* owned by the group after a failure */
	struct rank_reports *r = arg;
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w);
	bool odd = me == 2;
	struct tess_sum s = { .ntree = 1, .n = n, .count = 20000, .where = "layers.6" };
	struct tess_sum_work *a, *b;
	tess_status st = tess_sum_start(g, &s, nodes[me], out[0][me], &a);

	if (st)
		return store_report(r, w, st);
	while (odd && r->variant != SUM_DIFFERS && tess_sum_test(a) == TESS_PENDING)
		usleep(1000); /* until all ranks have arrived */
	if (odd && r->variant == SUM_FAILED)
		return store_report(r, w, tess_fail(TESS_ENOMEM, "no memory for the cache"));
	if (odd && r->variant == SUM_LATE)
		wait_for_reports(r, N - 1);
	if (odd && r->variant == SUM_DIFFERS)
		s.count--;
	s.where = "layers.5";
	st = tess_sum_start(g, &s, nodes[me], out[1][me], &b);
	if (!st) {
		st = tess_sum_wait(b);
		tess_sum_wait(a); /* possibly finished before */
	}
	return store_report(r, w, st);
}

START_TEST(started_sums)
{
	static const tess_status want[] = { TESS_ETIMEOUT, TESS_EMISMATCH, TESS_ENOMEM };
	static const char *const words[] = { "has not joined", "layers.5", "no memory" };
	struct rank_reports r = { .variant = _i };

	ck_assert_int_eq(setenv("TESSERA_TIMEOUT", "0.5", 1), 0);
	ck_assert_int_eq(tess_world_spawn_threads(N, start_incomplete_sums, &r), want[_i]);
	expect_reports(&r, _i == SUM_DIFFERS ? -1 : 2, want[_i], "rank 2", words[_i]);
}
END_TEST

/* Makes calls that are refused before they involve another rank; the group stays usable. */
static tess_status make_invalid_calls(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w);
	uint64_t two[N] = { 2, 2, 2, 2 };
	float x[64] = { 0 }, y[64];
	const struct tess_coll ok = { .size = sizeof ok,
		                      .kind = TESS_ALL_GATHER,
		                      .dtype = TESS_F32,
		                      .src = x,
		                      .dst = y,
		                      .count = 2,
		                      .where = "misuse" };
	struct tess_coll bad[16];
	const char *word[16];
	int n = 0;

	(void)arg;
#define BAD(text, ...) \
	do { \
		bad[n] = ok; \
		word[n] = text; \
		bad[n].__VA_ARGS__; \
		n++; \
	} while (0)
	BAD("kind 99", kind = 99);
	BAD("dtype 77", dtype = 77);
	BAD("dst is NULL", dst = NULL);
	BAD("src is NULL", src = NULL);
	BAD("overlap", dst = x + 1);
	BAD("not aligned", dst = (char *)y + 2);
	BAD("does not take", send_counts = two);
	BAD("count 3", recv_counts = two, bad[n].count = 3);
	BAD("op 55", kind = TESS_ALL_REDUCE, bad[n].op = 55);
	BAD("on bits", kind = TESS_ALL_REDUCE, bad[n].op = TESS_BXOR);
	BAD("root 4", kind = TESS_BROADCAST, bad[n].root = N);
	BAD("peer -1", kind = TESS_SEND, bad[n].peer = -1);
	BAD("itself", kind = TESS_SEND, bad[n].peer = me);
	BAD("one list", kind = TESS_ALL_TO_ALL, bad[n].send_counts = two);
	BAD("larger than", count = UINT64_C(1) << 60);
	BAD("size", size = 0);
#undef BAD
	for (int i = 0; i < n; i++)
		if (tess_group_run(g, &bad[i]) != TESS_EINVAL || !strstr(tess_error(), word[i]))
			return tess_fail(TESS_EBUG, "misuse %d (%s): %s", i, word[i], tess_error());
	bad[0] = ok;
	bad[0].mem = TESS_CUDA;
	if (tess_group_run(g, &bad[0]) != TESS_ENOTSUP)
		return tess_fail(TESS_EBUG, "device memory was taken");
	return tess_group_run(g, &ok);
}

START_TEST(refused_at_once)
{
	spawn_ranks(N, make_invalid_calls, NULL);
}
END_TEST

/* Makes a batch of a barrier and a sum, which the backend lacks, and sends to the next rank. */
static tess_status make_unsupported_calls(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	float x = 1, y = 0;
	struct tess_coll sum = { .size = sizeof sum,
		                 .kind = TESS_ALL_REDUCE,
		                 .dtype = TESS_F32,
		                 .op = TESS_SUM,
		                 .src = &x,
		                 .dst = &y,
		                 .count = 1 };
	struct tess_coll barrier = { .size = sizeof barrier, .kind = TESS_BARRIER }, send = sum;
	struct tess_work *work;
	tess_status st;

	(void)arg;
	if (strcmp(tess_option_get("backend"), "batcher")) {
		st = tess_barrier(g, "open"); /* the last rank to close frees the mailboxes */
		if (st)
			return st;
		send.kind = TESS_SEND;
		send.peer = !tess_world_rank(w);
		return tess_group_run(g, &send);
	}
	st = tess_group_batch(g, (const struct tess_coll *[]){ &barrier, &sum }, 2, &work);
	if (!st)
		st = tess_work_wait(work, 0);
	if (!st && y != 2)
		st = tess_fail(TESS_EBUG, "the sum is %g", (double)y);
	tess_work_release(work);
	return st;
}

START_TEST(backends_that_lack_something)
{
	static const struct {
		const char *backend, *says;
		tess_status st;
	} tries[] = {
		{ "forked", "the ranks of backend forked are processes, not threads", TESS_EINVAL },
		{ "mute", "backend mute lacks send, which every backend needs", TESS_ENOTSUP },
		{ "batcher", "", TESS_OK },
	};

	ck_assert_int_eq(setenv("TESSERA_TIMEOUT", "20", 1), 0);
	for (size_t i = 0; i < 3; i++) {
		use_minimal_backend(tries[i].backend);
		ck_assert_msg(tess_world_spawn_threads(2, make_unsupported_calls, NULL) ==
		                              tries[i].st &&
		                      strstr(tess_error(), tries[i].says),
		              "%s: %s", tries[i].backend, tess_error());
	}
}
END_TEST

static tess_status return_no_sentence(struct tess_world *w, void *arg)
{
	(void)w, (void)arg;
	return TESS_EIO;
}

static tess_status count_rank(struct tess_world *w, void *arg)
{
	(void)w;
	atomic_fetch_add((atomic_int *)arg, 1);
	return TESS_OK;
}

/* Checks which backends run ranks on threads of this process. */
START_TEST(spawned_backends)
{
	static const char *const forked[] = { "shm", "trace:shm" };
	static const char *const threads[] = { "auto", "loopback", "faulty:loopback" };
	atomic_int ran = 0;

	use_minimal_backend("shm");
	for (size_t i = 0; i < sizeof forked / sizeof *forked; i++) {
		ck_assert_int_eq(tess_option_set("backend", forked[i]), TESS_OK);
		tess_world_spawn(2, count_rank, &ran);
		ck_assert_int_eq(ran, 0);
	}
	for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
		ck_assert_int_eq(tess_option_set("backend", threads[i]), TESS_OK);
		ck_assert_msg(!tess_world_spawn(2, count_rank, &ran), "%s", tess_error());
	}
	ck_assert_int_eq(ran, 6);
	ck_assert_int_eq(tess_option_set("backend", "lopback"), TESS_OK);
	ck_assert_int_eq(tess_world_spawn(2, count_rank, &ran), TESS_ENOENT);
	expect_part(tess_error(),
	            "did you mean loopback?; backends that work here: auto, loopback");
	ck_assert_ptr_null(strstr(tess_error(), "loopback, shm"));
}
END_TEST

START_TEST(bad_worlds)
{
	ck_assert_int_eq(tess_world_spawn_threads(0, make_invalid_calls, NULL), TESS_EINVAL);
	ck_assert_int_eq(tess_world_spawn_threads(100000, make_invalid_calls, NULL), TESS_EINVAL);
	ck_assert_int_eq(tess_world_spawn_threads(2, NULL, NULL), TESS_EINVAL);
	ck_assert_int_eq(tess_world_spawn_threads(2, return_no_sentence, NULL), TESS_EIO);
	expect_part(tess_error(), "the function of the rank returned -12 without a sentence");
	ck_assert_int_eq(setenv("TESSERA_REDUCE", "sometimes", 1), 0);
	ck_assert_int_eq(tess_world_spawn_threads(2, make_invalid_calls, NULL), TESS_EINVAL);
	expect_part(tess_error(), "TESSERA_REDUCE=sometimes");
	ck_assert_int_eq(unsetenv("TESSERA_REDUCE"), 0);
	ck_assert_int_eq(setenv("TESSERA_BACKEND", "lopback", 1), 0);
	ck_assert_int_eq(tess_world_spawn_threads(2, make_invalid_calls, NULL), TESS_ENOENT);
	expect_part(tess_error(), "lopback");
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("failures", 60, &runner);

	tcase_add_loop_test(tcase, rank_gives_up, 0, 2);
	tcase_add_test(tcase, rank_fails_at_once);
	tcase_add_test(tcase, ranks_agree_on_a_failure);
	tcase_add_test(tcase, rank_returns_early);
	tcase_add_test(tcase, deadline);
	tcase_add_test(tcase, deadline_of_a_chain);
	tcase_add_test(tcase, rank_hangs);
	tcase_add_test(tcase, batches);
	tcase_add_loop_test(tcase, started_sums, 0, SUM_VARIANTS);
	tcase_add_test(tcase, without_abort);
	tcase_add_loop_test(tcase, deadline_that_is_first, 0, DEADLINES);
	tcase_add_test(tcase, refused_at_once);
	tcase_add_test(tcase, backends_that_lack_something);
	tcase_add_test(tcase, spawned_backends);
	tcase_add_test(tcase, bad_worlds);
	return suite_end(runner);
}

/*
 * A backend of processes: what it moves, and how it fails. This program is the ranks as well.
 * TEST_BACKEND names the backend; gloo if it does not.
 */
#include "../unit/suite.h"
#include "batches.h"
#include "data.h"
#include "entries.h"
#include "job.h"
#include "subgroups.h"

#include "core/base/status.h"
#include "core/base/clock.h"
#include "core/rendezvous/call_desc.h"
#include "core/group/world.h"
#include "core/registry/registry.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KINDS = TESS_ALL_TO_ALL - TESS_BARRIER }; /* broadcast and on, but send and recv */

/* ---- what a rank does ------------------------------------------------------------------------ */

/* Each rank sends to the next one, and both before the last one takes what came first. */
static tess_status send_around_ring(struct tess_world *w)
{
	enum { COUNT = 100000 };
	static _Thread_local int32_t out[2][COUNT], in[2][COUNT];
	int32_t n = tess_world_size(w), me = tess_world_rank(w), before = (me + n - 1) % n;
	struct tess_work *work[4] = { NULL };
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < COUNT; i++)
		for (int k = 0; k < 2; k++)
			out[k][i] = me * 10 + k + i;
	for (int k = 0; k < 4 && !st && n > 1; k++) {
		struct tess_coll c = {
			.size = sizeof c,
			.kind = k < 2 ? TESS_SEND : TESS_RECV,
			.dtype = TESS_I32,
			.peer = k < 2 ? (me + 1) % n : before,
			.count = COUNT >> k % 2,
			.where = "around",
		};

		if (k < 2)
			c.src = out[k];
		else
			c.dst = in[k - 2];
		st = tess_group_start(tess_world_group(w), &c, &work[k]);
	}
	for (int k = 3; k >= 0; k--) {
		if (!st && work[k])
			st = tess_work_wait(work[k], 0);
		tess_work_release(work[k]);
	}
	for (int k = 0; k < 2 && !st && n > 1; k++)
		for (int32_t i = 0; i < COUNT >> k && !st; i++)
			if (in[k][i] != before * 10 + k + i)
				st = tess_fail(TESS_EBUG, "message %d element %d is %d", k, i,
				               in[k][i]);
	return st;
}

/*
 * Kinds x dtypes x operations x even x in place, with roots and counts that go round, up to 512 KiB
 * a rank.
 */
static tess_status check_every_case(struct tess_world *w)
{
	static const uint64_t counts[] = { 1000, 0, 1, 70001, 5 };
	int32_t n = tess_world_size(w), turn = 0;

	for (int32_t i = 0; i < KINDS * 8 * 7 * 4; i += THIN) {
		struct conform_case c = {
			.kind = TESS_BROADCAST + i % KINDS,
			.dtype = TESS_F32 + i / KINDS % 8,
			.op = TESS_SUM + i / 64 % 7,
			.uneven = i / 448 & 1,
			.in_place = i / 896 & 1,
		};
		bool even_only = c.kind <= TESS_ALL_REDUCE, adds = tess_kind_reduces(c.kind);

		if ((c.op > TESS_SUM && !adds) || (c.uneven && even_only) ||
		    (c.op >= TESS_BAND && c.dtype <= TESS_F16))
			continue;
		for (int k = 0; k < 2; k++) {
			tess_status st;

			c.count = counts[turn++ % 5];
			c.root = tess_kind_rooted(c.kind) ? turn % n : 0;
			st = data_run(tess_world_group(w), &c);
			if (st)
				return st;
		}
	}
	return send_around_ring(w);
}

/* Several outstanding, of sizes that take one exchange or two, finished in another order. */
static tess_status overlap_collectives(struct tess_world *w)
{
	struct data_pending work[KINDS];
	tess_status st = TESS_OK;

	for (int round = 0; round < 10 && !st; round++) {
		for (int k = 0; k < KINDS && !st; k++) {
			struct conform_case c = {
				.kind = TESS_BROADCAST + k,
				.dtype = TESS_F32,
				.op = TESS_SUM,
				.count = (uint64_t)(round % 2 ? 100000 : 100),
				.uneven = k > 2,
			};

			st = data_start(tess_world_group(w), &c, &work[k]);
		}
		for (int k = KINDS - 1; k >= 0 && !st; k--)
			st = data_finish(&work[k]);
	}
	return st;
}

/* A call is looked at until it is done, or let go: it is done all the same. */
static tess_status poll_until_done(struct tess_world *w)
{
	static float src[100000], dst[100000];
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_ALL_REDUCE,
		.dtype = TESS_F32,
		.src = src,
		.dst = dst,
		.where = "look",
	};
	int n = tess_world_size(w);
	tess_status st = TESS_OK;

	for (int round = 0; round < 40 && !st; round++) {
		struct tess_work *work;

		c.count = round % 2 ? 100000 : 10;
		for (uint64_t i = 0; i < c.count; i++)
			src[i] = (float)(round + tess_world_rank(w));
		st = tess_group_start(tess_world_group(w), &c, &work);
		while (!st && round % 4 < 3 && (st = tess_work_test(work)) == TESS_PENDING)
			st = TESS_OK;
		tess_work_release(st ? NULL : work);
		for (uint64_t i = 0; i < c.count && !st; i++)
			if (dst[i] != (float)(n * round + n * (n - 1) / 2))
				st = tess_fail(TESS_EBUG, "round %d: element %d is %g", round,
				               (int)i, (double)dst[i]);
	}
	return st;
}

/*
 * Groups come and go: descriptors and threads do not add up. The second of each two has a parent.
 */
static tess_status open_and_close_groups_of_backend(struct tess_world *w)
{
	int32_t n = tess_world_size(w), member[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	int before = count_dir_entries("/proc/self/fd");
	char name[32];
	tess_status st = TESS_OK;

	for (int i = 0; i < 40 && !st; i++) {
		struct tess_join how = {
			.size = sizeof how,
			.rank = tess_world_rank(w),
			.nranks = n,
			.device = -1,
			.name = name,
			.world = member,
			.store = &w->store,
			.deadline = tess_now() + w->timeout,
			.parent = i % 2 ? w->all->self : NULL,
		};
		void *self;

		snprintf(name, sizeof name, "churn %d", i);
		st = w->backend->open(&how, &self);
		if (!st)
			w->backend->close(self);
	}
	if (!st && count_dir_entries("/proc/self/fd") != before)
		st = tess_fail(TESS_EBUG, "%d descriptors became %d", before,
		               count_dir_entries("/proc/self/fd"));
	return st;
}

/* All ranks reduce on and on, "apart" all but rank 2; rank 2 goes, as `how` says, in the middle of it. */
static tess_status sum_until_rank_2_is_lost(struct tess_world *w, const char *how, uint64_t count)
{
	float *x = calloc(count, sizeof *x);
	int64_t leave_at = tess_now() + 200 * (int64_t)TESS_MS, last = tess_now();
	struct tess_group *g = tess_world_group(w);
	tess_status st = x ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory");

	if (!st && !strcmp(how, "killed_apart"))
		st = tess_group_split(g, tess_world_rank(w) == 2, 0, "apart", &g);
	while (!st) {
		last = tess_now();
		st = tess_all_reduce(g, x, x, count, TESS_F32, TESS_SUM, "loop");
		if (tess_world_rank(w) != 2 || tess_now() < leave_at)
			continue;
		if (!strncmp(how, "killed", 6))
			raise(SIGKILL);
		else if (!strcmp(how, "stopped"))
			raise(SIGSTOP);
		else if (!strcmp(how, "exits"))
			_exit(0);
		else
			st = tess_fail(TESS_EIO, "the disk is full");
	}
	printf("failed after %.3f s: %s\n", (double)(tess_now() - last) / 1e9, tess_error());
	fflush(stdout);
	if (tess_world_rank(w) == 2)
		tess_world_fail(w, st, "the disk is full");
	free(x);
	return st;
}

/* Rank 1 asks for something else. */
static tess_status call_differently_on_rank_1(struct tess_world *w, const char *what)
{
	static float src[4096], dst[4 * 4096];
	int odd = tess_world_rank(w) == 1;
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_ALL_REDUCE,
		.dtype = TESS_F32,
		.op = TESS_SUM,
		.src = src,
		.dst = dst,
		.count = 1000,
		.where = odd ? "odd.one" : "the.others",
	};
	tess_status st = tess_barrier(tess_world_group(w), "begin");

	if (odd && !strcmp(what, "kind"))
		c.kind = TESS_ALL_GATHER;
	if (odd && !strcmp(what, "count"))
		c.count = 500;
	if (odd && !strcmp(what, "dtype"))
		c.dtype = TESS_I32;
	if (!st)
		st = tess_group_run(tess_world_group(w), &c);
	printf("%s\n", st ? tess_error() : "fine");
	return st;
}

static tess_status run_backend_scenario(struct tess_world *w, const char *what)
{
	if (!strcmp(what, "moves"))
		return check_every_case(w);
	if (!strcmp(what, "several"))
		return overlap_collectives(w);
	if (!strcmp(what, "looked_at"))
		return poll_until_done(w);
	if (!strcmp(what, "churn"))
		return open_and_close_groups_of_backend(w);
	if (!strcmp(what, "batches"))
		return batches_run(tess_world_group(w));
	if (!strcmp(what, "groups"))
		return subgroups_run_all(w);
	if (!strcmp(what, "splits"))
		return subgroups_open_and_close(w);
	if (!strcmp(what, "kind") || !strcmp(what, "count") || !strcmp(what, "dtype"))
		return call_differently_on_rank_1(w, what);
	return sum_until_rank_2_is_lost(w, what, !strcmp(what, "killed_large") ? 4 << 20 : 4096);
}

static int run_backend_rank(const char *what)
{
	struct tess_world *w;
	tess_status st = tess_world_open(&w);

	if (!st) {
		st = run_backend_scenario(w, what);
		if (st)
			fprintf(stderr, "%s\n", tess_error());
		tess_world_close(w);
	} else {
		fprintf(stderr, "open: %s\n", tess_error());
	}
	return st ? 1 : 0;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const char *get_backend_name(void)
{
	const char *name = getenv("TEST_BACKEND");

	return name ? name : "gloo";
}

static void run_backend_job(struct test_job *j, int n, const char *what, const char *timeout)
{
	char *argv[] = { "rank", (char *)(uintptr_t)what, NULL };
	struct tess_launch how = {
		.nranks = n,
		.path = "/proc/self/exe",
		.argv = argv,
		.backend = get_backend_name(),
		.timeout = timeout,
	};

	job_start(j, &how);
	job_finish(j);
}

static void expect_backend_success(int n, const char *what)
{
	struct test_job j;

	run_backend_job(&j, n, what, "60");
	ck_assert_msg(j.status == 0, "%s by %d ranks: status %d: %s", what, n, j.status, j.text);
}

START_TEST(one_rank_moves)
{
	expect_backend_success(1, "moves");
}
END_TEST
START_TEST(two_ranks_move)
{
	expect_backend_success(2, "moves");
}
END_TEST
START_TEST(three_ranks_move)
{
	expect_backend_success(3, "moves");
}
END_TEST
START_TEST(four_ranks_move)
{
	expect_backend_success(4, "moves");
}
END_TEST
static tess_status check_every_case_on_thread(struct tess_world *w, void *arg)
{
	(void)arg;
	return check_every_case(w);
}

START_TEST(ranks_may_be_threads)
{
	tess_status st;

	setenv("TESSERA_BACKEND", get_backend_name(), 1);
	st = tess_world_spawn(3, check_every_case_on_thread, NULL);
	ck_assert_msg(!st, "%s", tess_error());
}
END_TEST

START_TEST(several_at_once)
{
	expect_backend_success(3, "several");
	expect_backend_success(4, "several"); /* its sums go by halves */
	expect_backend_success(3, "batches");
}
END_TEST
START_TEST(calls_are_looked_at)
{
	expect_backend_success(3, "looked_at");
	expect_backend_success(4, "looked_at");
}
END_TEST
START_TEST(groups_of_some_ranks)
{
	expect_backend_success(3, "groups");
	expect_backend_success(4, "groups");
}
END_TEST
START_TEST(groups_leave_nothing)
{
	expect_backend_success(3, "churn");
	expect_backend_success(3, "splits");
}
END_TEST

/* Every survivor of 4 says that rank 2 is at fault; how long after its last call began the last one did. */
static double measure_failure_delay(struct test_job *j, const char *what, const char *timeout,
                                    int status)
{
	double seconds, longest = 0;

	run_backend_job(j, 4, what, timeout);
	ck_assert_msg(j->status == status, "%s: status %d: %s", what, j->status, j->text);
	for (int r = 0; r < 4; r++) {
		char text[48];
		const char *at, *end;

		if (r == 2)
			continue;
		snprintf(text, sizeof text, "[%d] failed after ", r);
		at = strstr(j->text, text);
		ck_assert_msg(at && sscanf(at + strlen(text), "%lf", &seconds) == 1,
		              "%s: rank %d: %s", what, r, j->text);
		end = strchr(at, '\n');
		at = strstr(at, "rank 2");
		ck_assert_msg(at && at < end, "%s: rank %d does not name rank 2: %s", what, r,
		              j->text);
		longest = seconds > longest ? seconds : longest;
	}
	ck_assert_msg(!strstr(j->text, "terminate called"), "%s", j->text);
	return longest;
}

/* They hear of it from `least` to `most` seconds later; one of some times, on a busy machine. */
static void expect_loss_reported(const char *what, const char *timeout, double least, double most,
                                 int status)
{
	struct test_job j;
	double longest = most;

	for (int i = 0; i < 3 && longest >= most; i++)
		longest = measure_failure_delay(&j, what, timeout, status);
	ck_assert_msg(longest >= least && longest < most, "%s: %s", what, j.text);
}

START_TEST(a_rank_is_killed)
{
	expect_loss_reported("killed", "60", 0, 1, 128 + SIGKILL);
}
END_TEST
START_TEST(a_rank_is_killed_in_a_message)
{
	expect_loss_reported("killed_large", "60", 0, 1, 128 + SIGKILL);
}
END_TEST
START_TEST(a_rank_of_another_group_is_killed)
{
	expect_loss_reported("killed_apart", "60", 0, 1, 128 + SIGKILL);
}
END_TEST
START_TEST(a_rank_exits)
{
	expect_loss_reported("exits", "60", 0, 1, 1);
}
END_TEST
START_TEST(a_rank_fails)
{
	expect_loss_reported("fails", "60", 0, 1, 1);
}
END_TEST
START_TEST(a_rank_is_stopped)
{
	expect_loss_reported("stopped", "2", 1.9, 3,
	                     1); /* long enough for a busy machine to begin in */
}
END_TEST

/* Every rank names both callers. */
static void expect_both_callers_named(const char *what)
{
	struct test_job j;

	run_backend_job(&j, 3, what, "5");
	ck_assert_int_ne(j.status, 0);
	ck_assert_msg(j.seconds < 5, "%s: %f s: %s", what, j.seconds, j.text);
	for (int r = 0; r < 3; r++) {
		char text[32];
		const char *at;
		int found = 0;

		snprintf(text, sizeof text, "[%d] ", r);
		for (at = j.text; (at = strstr(at, text)); at++) {
			char line[2048];

			snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
			found += strstr(line, "odd.one") && strstr(line, "the.others");
		}
		ck_assert_msg(found, "%s: rank %d does not name both: %s", what, r, j.text);
	}
	ck_assert_msg(!strstr(j.text, "terminate called"), "%s", j.text);
}

START_TEST(kinds_differ)
{
	expect_both_callers_named("kind");
}
END_TEST
START_TEST(counts_differ)
{
	expect_both_callers_named("count");
}
END_TEST
START_TEST(dtypes_differ)
{
	expect_both_callers_named("dtype");
}
END_TEST

int main(int argc, char **argv)
{
	if (argc > 1)
		return run_backend_rank(argv[1]);
	return suite_main(get_backend_name(), (const TTest *const[]){
						      one_rank_moves,
						      two_ranks_move,
						      three_ranks_move,
						      four_ranks_move,
						      ranks_may_be_threads,
						      several_at_once,
						      calls_are_looked_at,
						      groups_of_some_ranks,
						      groups_leave_nothing,
						      a_rank_is_killed,
						      a_rank_is_killed_in_a_message,
						      a_rank_of_another_group_is_killed,
						      a_rank_exits,
						      a_rank_fails,
						      a_rank_is_stopped,
						      kinds_differ,
						      counts_differ,
						      dtypes_differ,
						      NULL,
					      });
}

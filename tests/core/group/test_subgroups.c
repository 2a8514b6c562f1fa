/* test_subgroups.c - subgroups, meshes and batches between threads: their results and failures. */
#include "core/base/status.h"
#include "core/call/background.h"
#include "tests/support/batches.h"
#include "tests/support/report.h"
#include "tests/support/subgroups.h"
#include "tests/support/suite.h"

#include <unistd.h>

static tess_status run_all_on_thread(struct tess_world *w, void *arg)
{
	(void)arg;
	return subgroups_run_all(w);
}

static tess_status open_and_close_on_thread(struct tess_world *w, void *arg)
{
	(void)arg;
	return subgroups_open_and_close(w);
}

/* Runs the batches in the world's group and in a subgroup. */
static tess_status run_batches_in_groups(struct tess_world *w, void *arg)
{
	struct tess_group *g;
	tess_status st = batches_run(tess_world_group(w));

	(void)arg;
	if (!st)
		st = tess_group_split(tess_world_group(w), tess_world_rank(w) % 2, 0, NULL, &g);
	return st ? st : batches_run(g);
}

static void spawn_all_sizes(tess_status (*fn)(struct tess_world *, void *))
{
	static const int32_t sizes[] = { 1, 3, 4, 5, 7, 8 };

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += 1 + THIN / 2)
		spawn_ranks(sizes[i], fn, NULL);
}

START_TEST(groups_and_meshes)
{
	spawn_all_sizes(run_all_on_thread);
}
END_TEST

START_TEST(batches)
{
	spawn_all_sizes(run_batches_in_groups);
}
END_TEST

START_TEST(groups_leave_nothing)
{
	spawn_ranks(3, open_and_close_on_thread, NULL);
}
END_TEST

START_TEST(emulated_by_messages)
{
	use_minimal_backend("minimal");
	for (int32_t n = 3; n <= 6; n += 3 * THIN) {
		spawn_ranks(n, run_all_on_thread, NULL);
		spawn_ranks(n, run_batches_in_groups, NULL);
	}
}
END_TEST

static tess_status open_bad_meshes(struct tess_world *w, void *arg)
{
	static const struct {
		const char *mesh, *word;
	} bad[] = {
		{ "", "form" },
		{ "tp=", "form" },
		{ "tp=4x", "form" },
		{ "tp=-4", "form" },
		{ "dp,,tp", "form" },
		{ "dp=4,", "form" },
		{ "Dp=4", "form" },
		{ "a_name_that_is_long=4", "form" },
		{ "tp=0", "form" },
		{ "dp=2,tp=2 ", "form" },
		{ "dp=2,dp=2", "two dimensions dp" },
		{ "dp,tp", "leaves out" },
		{ "tp=99", "job of 4 ranks" },
		{ "dp=2,tp=3", "job of 4 ranks" },
		{ "dp,tp=3", "no size for dp" },
		{ "a=1000,b=1000,c=1000,d=1000,e=1000,f=1000,g=1000", "job of 4 ranks" },
		{ "a=1,b,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1,k=1,l=1,m=1,n=1,o=1,p=1,q=1", "form" },
	};
	struct tess_group *g = tess_world_group(w);
	struct tess_mesh *m;
	tess_status st;

	(void)arg;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (tess_mesh_open(w, bad[i].mesh, &m) != TESS_EINVAL ||
		    !strstr(tess_error(), bad[i].word))
			return tess_fail(TESS_EBUG, "the mesh \"%s\": %s", bad[i].mesh,
			                 tess_error());
	if (tess_group_split(g, 0, 0, "no name", &g) != TESS_EINVAL ||
	    tess_group_split(g, 0, 0, "", &g) != TESS_EINVAL ||
	    tess_group_split(g, 0, 0, "sixteen_letters_", &g) != TESS_EINVAL)
		return tess_fail(TESS_EBUG, "a bad name was taken");
	st = tess_mesh_open(w, "dp=2,tp", &m);
	if (st)
		return st;
	if (tess_mesh_slice(m, "pp") != TESS_EINVAL || tess_mesh_slice(m, "dp,dp") != TESS_EINVAL ||
	    tess_mesh_slice(m, "dp,") != TESS_EINVAL || tess_mesh_slice(m, "") != TESS_EINVAL ||
	    tess_mesh_size(m, "pp") || tess_mesh_rank(m, "tp,pp") != -1)
		st = tess_fail(TESS_EBUG, "a bad slice was taken");
	tess_mesh_close(m);
	return st ? st : tess_barrier(g, "after");
}

START_TEST(refused_at_once)
{
	spawn_ranks(N, open_bad_meshes, NULL);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

/*
 * Makes a different call, or sends a message that nobody receives, on rank 3 of dp/1 (ranks 1 and
 * 3).
 */
static tess_status make_subgroup_calls_differ(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	struct tess_group *all = tess_world_group(w), *g;
	int32_t me = tess_world_rank(w);
	float x[8] = { 0 }, y[8];
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_REDUCE,
		               .dtype = TESS_F32,
		               .src = x,
		               .dst = y,
		               .count = me == 3 ? 3 : 4,
		               .where = me == 3 ? "layers.1.odd" : "layers.0.mlp" };
	tess_status st = tess_group_split(all, me % 2, 0, "dp", &g);

	if (!st)
		st = tess_barrier(g, "first");
	if (r->variant) {
		c.kind = me == 1 ? TESS_SEND : TESS_RECV;
		c.peer = me == 1;
	}
	if (!st && me % 2)
		st = tess_group_run(g, &c);
	/* a sender may have finished: it fails at the next call */
	return store_report(r, w, st ? st : tess_barrier(all, "next"));
}

START_TEST(calls_that_differ)
{
	struct rank_reports r = { 0 };

	EXPECT_REPORTS(make_subgroup_calls_differ, &r, -1, TESS_EMISMATCH, "rank 1 ", "rank 3 ",
	               "layers.1.odd", "layers.0.mlp", "all_reduce of 3 f32 (sum)",
	               "all_reduce of 4 f32 (sum)", "call 2 in group dp/1 of ranks 1, 3, at");
	r.variant = 1;
	EXPECT_REPORTS(make_subgroup_calls_differ, &r, -1, TESS_EMISMATCH,
	               "send of 4 f32 to rank 3, message 1 in group dp/1",
	               "recv of 3 f32 from rank 1, message 1 in group dp/1 of ranks 1, 3");
}
END_TEST

/*
 * Makes a call in the world's group on rank 3 and in dp/1 on rank 1; ranks 0 and 2 are in neither.
 */
static tess_status call_in_wrong_group(struct tess_world *w, void *arg)
{
	struct tess_group *all = tess_world_group(w), *g;
	int32_t me = tess_world_rank(w);
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_BARRIER,
		               .where = me == 3 ? "wrong" : "right" };
	tess_status st = tess_group_split(all, me % 2, 0, "dp", &g);

	if (st)
		return store_report(arg, w, st);
	meet_ranks(arg);
	c.deadline = get_near_deadline();
	if (me % 2)
		return store_report(arg, w, tess_group_run(me == 3 ? all : g, &c));
	wait_for_reports(arg, 2);
	return store_report(arg, w, tess_barrier(g, "later"));
}

START_TEST(call_on_the_wrong_group)
{
	struct rank_reports r = { 0 };

	EXPECT_REPORTS(call_in_wrong_group, &r, -1, TESS_ETIMEOUT, "rank 1", "rank 3", "at right",
	               "in group dp/1 of ranks 1, 3", "barrier, call 2, at wrong");
}
END_TEST

/* Waits on rank 0 for rank 2, which sleeps; rank 3, of the other group, gives up. */
static tess_status wait_for_sleeping_rank(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	struct tess_group *g;
	int32_t me = tess_world_rank(w);
	tess_status st = tess_group_split(tess_world_group(w), me % 2, 0, "dp", &g);

	if (st)
		return store_report(r, w, st);
	if (me == 3) {
		usleep(20000);
		return store_report(r, w, tess_fail(TESS_ENOMEM, "no memory for the cache"));
	}
	if (me == 2)
		wait_for_reports(r, N - 1);
	return store_report(r, w, tess_barrier(g, "layers.2"));
}

START_TEST(rank_of_another_group_fails)
{
	struct rank_reports r = { 0 };

	EXPECT_REPORTS(wait_for_sleeping_rank, &r, 3, TESS_ENOMEM, "rank 3",
	               "no memory for the cache");
}
END_TEST

/* Closes the group on rank 2, while rank 0 makes one more call in it. */
static tess_status close_group_early(struct tess_world *w, void *arg)
{
	struct tess_group *all = tess_world_group(w), *g;
	int32_t me = tess_world_rank(w);
	tess_status st = tess_group_split(all, me % 2, 0, "dp", &g);

	for (int i = 0; i < 3 && !st; i++)
		st = tess_barrier(g, "before");
	if (!st && me == 2)
		tess_group_close(g);
	if (!st && me == 0)
		st = tess_barrier(g, "after");
	return store_report(arg, w, st ? st : tess_barrier(all, "all"));
}

START_TEST(member_leaves_early)
{
	struct rank_reports r = { 0 };

	EXPECT_REPORTS(close_group_early, &r, -1, TESS_EMISMATCH,
	               "rank 0 is in barrier, call 4 in group dp/0 of ranks 0, 2", "at after",
	               "rank 2 will not join: it has closed the group");
}
END_TEST

/* Splits by another name, makes another call or opens another mesh on rank 1. */
static tess_status make_splits_differ(struct tess_world *w, void *arg)
{
	struct rank_reports *r = arg;
	struct tess_group *all = tess_world_group(w), *g;
	bool odd = tess_world_rank(w) == 1;
	struct tess_mesh *m;
	tess_status st = tess_barrier(all, "first"); /* all ranks have arrived */

	if (st)
		return store_report(r, w, st);
	if (r->variant == 2)
		st = tess_mesh_open(w, odd ? "dp=4,tp=1" : "dp,tp=2", &m);
	else if (r->variant && odd)
		st = tess_barrier(all, "odd");
	else
		st = tess_group_split(all, 0, 0, odd ? "tp" : "dp", &g);
	return store_report(r, w, st ? st : tess_barrier(all, "next"));
}

START_TEST(splits_that_differ)
{
	struct rank_reports r = { 0 };

	EXPECT_REPORTS(make_splits_differ, &r, -1, TESS_EMISMATCH, "split of group world",
	               "named dp by rank 0", "tp by rank 1");
	r.variant = 1;
	EXPECT_REPORTS(make_splits_differ, &r, -1, TESS_EMISMATCH, "rank 1", "barrier", "at odd",
	               "tess_group_split");
	r.variant = 2;
	EXPECT_REPORTS(make_splits_differ, &r, -1, TESS_EMISMATCH, "rank 1", "\"dp=4,tp=1\" here",
	               "\"dp=2,tp=2\" on rank 0");
}
END_TEST

/*
 * Rank 0 leaves a send to rank 2 in the background, and waits in another group for rank 1, which
 * waits for rank 2.
 */
static tess_status send_in_background(struct tess_world *w, void *arg)
{
	enum { COUNT = 1 << 18 };
	struct tess_group *all = tess_world_group(w), *g;
	int32_t me = tess_world_rank(w);
	float *data = calloc(COUNT, sizeof *data);
	struct tess_coll c = {
		.size = sizeof c, .dtype = TESS_F32, .count = COUNT, .src = data, .dst = data
	};
	struct tess_work *work = NULL;
	tess_status st = tess_group_split(all, me < 2, 0, "pair", &g);

	(void)arg;
	c.kind = me ? TESS_RECV : TESS_SEND;
	c.peer = me == 2 ? 0 : 2;
	data[COUNT - 1] = me ? 0 : 7;
	if (!st && me == 0)
		st = tess_group_start(all, &c, &work);
	if (work)
		tess_background_add(work);
	if (!st && me)
		st = tess_group_run(all, &c);
	c.kind = TESS_SEND;
	c.peer = 1;
	if (!st && me == 2)
		st = tess_group_run(all, &c);
	if (!st && me < 2)
		st = tess_barrier(g, "pair");
	if (!st && data[COUNT - 1] != 7)
		st = tess_fail(TESS_EBUG, "rank %d lacks data", (int)me);
	tess_work_release(work);
	free(data);
	return st;
}

START_TEST(sends_progress_in_the_background)
{
	ck_assert_msg(!tess_world_spawn(3, send_in_background, NULL), "%s", tess_error());
}
END_TEST

static tess_status check_minimal(struct tess_world *w, void *arg)
{
	(void)arg;
	ck_assert_str_eq(tess_world_backend(w), "minimal");
	return tess_barrier(tess_world_group(w), "chosen");
}

/* Checks that auto decides by a backend's table only: an out-of-tree backend can be first. */
START_TEST(auto_chooses_from_the_list)
{
	use_minimal_backend("auto");
	ck_assert_int_eq(setenv("TESSERA_BACKENDS", "absent, mpi,minimal,loopback", 1), 0);
	ck_assert_int_eq(tess_world_spawn(3, check_minimal, NULL), TESS_OK);
	ck_assert_int_eq(setenv("TESSERA_BACKENDS", "absent,mpi", 1), 0);
	ck_assert_int_eq(tess_world_spawn(3, check_minimal, NULL), TESS_ENOENT);
	expect_part(tess_error(), "TESSERA_BACKENDS=absent,mpi has no backend that "
	                          "joins ranks that are threads");
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("subgroups", 60, &runner);

	tcase_add_test(tcase, groups_and_meshes);
	tcase_add_test(tcase, batches);
	tcase_add_test(tcase, groups_leave_nothing);
	tcase_add_test(tcase, refused_at_once);
	tcase_add_test(tcase, calls_that_differ);
	tcase_add_test(tcase, call_on_the_wrong_group);
	tcase_add_test(tcase, rank_of_another_group_fails);
	tcase_add_test(tcase, member_leaves_early);
	tcase_add_test(tcase, splits_that_differ);
	tcase_add_test(tcase, sends_progress_in_the_background);
	if (getenv("TESSERA_BACKEND"))
		return suite_end(runner);
	/* these use a backend of their own */
	tcase_add_test(tcase, emulated_by_messages);
	tcase_add_test(tcase, auto_chooses_from_the_list);
	return suite_end(runner);
}

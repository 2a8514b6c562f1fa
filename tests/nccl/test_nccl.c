/*
 * test_nccl.c - the backend nccl over this folder's driver and NCCL, with ranks that are threads.
 */
#include "core/call/captured.h"
#include "core/call/carrier.h"
#include "core/call/queue.h"
#include "core/group/device.h"
#include "core/registry/registry.h"
#include "tests/support/command.h"
#include "tests/support/report.h"

#include <dlfcn.h>
#include <fcntl.h>

enum { COUNT = 5000 };

static char log_path[64]; /* log of the fake's calls */

static void begin_test(void)
{
	snprintf(log_path, sizeof log_path, "/tmp/test-nccl-%d", (int)getpid());
	unlink(log_path); /* left by a failed test in a process of this number */
	setenv("FAKE_NCCL_LOG", log_path, 1);
	setenv("TESSERA_LOG", "info", 1);
}

static void end_test(void)
{
	unlink(log_path);
}

/* Counts the lines of the log that begin with `what`. */
static int count_fake_calls(const char *what)
{
	char text[1 << 16] = "\n";
	int fd = open(log_path, O_RDONLY);
	char line[64];
	ssize_t n = fd < 0 ? 0 : read(fd, text + 1, sizeof text - 2);

	if (fd >= 0)
		close(fd);
	text[n < 0 ? 1 : n + 1] = '\0';
	snprintf(line, sizeof line, "\n%s", what);
	return count_occurrences(text, line);
}

/* ---- a device in a group --------------------------------------------------------------------- */

static const char *card_device = "discrete_cuda";

struct opened {
	const struct tess_device *table;
	void *self, *stream;
	float *x; /* COUNT elements of device memory */
};

static tess_status open_card(struct tess_group *g, int32_t index, const struct tess_group *parent,
                             int32_t colour, struct opened *o)
{
	void *x;
	tess_status st = TESS_OK;

	if (!o->self) {
		st = tess_plugin_find_device(card_device, &o->table);
		if (!st)
			st = o->table->open(index, 1, &o->self);
		if (!st)
			st = o->table->stream_open(o->self, &o->stream);
		if (!st)
			st = o->table->alloc(o->self, COUNT * sizeof(float), &x);
		if (!st)
			o->x = x;
	}
	return st ? st : tess_group_attach_device(g, o->table, o->self, index, parent, colour);
}

static void close_card(struct opened *o)
{
	o->table->stream_close(o->self, o->stream);
	o->table->close(o->self);
}

static struct tess_coll make_card_sum(const struct opened *o)
{
	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = TESS_ALL_REDUCE,
		                   .dtype = TESS_F32,
		                   .mem = o->table->mem,
		                   .stream = o->stream,
		                   .src = o->x,
		                   .dst = o->x,
		                   .count = COUNT,
		                   .where = "here" };
}

static tess_status write_card(struct tess_group *g, const struct opened *o, float value)
{
	float host[COUNT];

	for (int i = 0; i < COUNT; i++)
		host[i] = value + (float)i;
	return tess_group_copy(g, "write", o->stream, o->x, host, sizeof host);
}

/* Waits for the stream, and fails unless element i is value + n * i. */
static tess_status check_card(struct tess_group *g, const struct opened *o, float value, int n)
{
	float host[COUNT] = { 0 };
	tess_status st = tess_group_copy(g, "read", o->stream, host, o->x, sizeof host);

	for (int i = 0; i < COUNT && !st; i++)
		HOLDS(host[i] == value + (float)(n * i));
	return st;
}

/* ---- calls on a stream ----------------------------------------------------------------------- */

static tess_status run_late_rank(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w), n = tess_world_size(w);
	struct opened o = { 0 };
	struct tess_coll c;
	int64_t begin;
	tess_status st = open_card(g, me, NULL, 0, &o);

	(void)arg;
	if (st)
		return st;
	HOLDS(g->carrier.self && !strcmp(g->carrier.backend->name, "nccl"));
	st = write_card(g, &o, (float)me);
	c = make_card_sum(&o);
	for (int i = 0; i < 2 && !st; i++) { /* after one call NCCL has connected the ranks */
		if (i && me == 1)
			usleep(300000);
		begin = tess_now();
		st = tess_group_run(g, &c);
		if (!st && i && me == 0 && tess_now() - begin > 200 * TESS_MS)
			return tess_fail(TESS_EBUG, "the host waited for rank 1");
	}
	if (!st)
		HOLDS(g->nqueued == 2);
	c.op = TESS_MAX; /* not supported by NCCL: through host memory, when the sums are done */
	if (!st)
		st = tess_group_run(g, &c);
	if (!st)
		HOLDS(g->nqueued == 0);
	if (!st)
		st = check_card(g, &o, (float)(n * (n - 1) / 2 * n), n * n);
	HOLDS(st || g->nqueued == 0);
	tess_group_detach_device(g, o.self);
	HOLDS(!g->carrier.self);
	close_card(&o);
	return st;
}

/* Checks that the host queues calls, and waits only to read: results include all calls before. */
START_TEST(host_does_not_wait)
{
	begin_test();
	spawn_ranks(3, run_late_rank, NULL);
	ck_assert_int_eq(count_fake_calls("group"), 6);
	ck_assert_int_eq(count_fake_calls("destroy"), 3);
	ck_assert_int_eq(count_fake_calls("abort"), 0);
	ck_assert_int_eq(count_fake_calls("=lo 0"), 1);
	end_test();
}
END_TEST

/* Makes calls without waiting: the host is stopped before works fill memory. */
static tess_status run_many_calls(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	struct opened o = { 0 };
	struct tess_coll c;
	tess_status st = open_card(g, tess_world_rank(w), NULL, 0, &o);

	(void)arg;
	if (st)
		return st;
	c = make_card_sum(&o);
	c.count = 1;
	for (int i = 0; i < 600 && !st; i++) {
		st = tess_group_run(g, &c);
		HOLDS(g->nqueued < 512);
	}
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

START_TEST(queue_is_bounded)
{
	setenv("FAKE_NCCL_POLLS", "0", 1);
	spawn_ranks(2, run_many_calls, NULL);
}
END_TEST

/* Starts messages between two ranks: NCCL is still putting them on the stream. */
static tess_status start_messages(struct tess_group *g, int32_t me, const struct opened *o,
                                  struct tess_work **work)
{
	tess_status st = TESS_OK;

	for (int i = 0; i < 2 && !st; i++) {
		struct tess_coll c = make_card_sum(o);

		c.kind = i ? TESS_RECV : TESS_SEND;
		c.peer = 1 - me;
		c.count = COUNT / 2;
		c.src = i ? NULL : o->x;
		c.dst = i ? o->x + COUNT / 2 : NULL;
		st = tess_group_start(g, &c, &work[i]);
	}
	if (st)
		return st;
	return tess_work_test(work[0]) == TESS_PENDING ? TESS_OK : TESS_EBUG;
}

/* Makes a sum after messages. */
static tess_status run_messages_first(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w);
	struct opened o = { 0 };
	struct tess_work *work[2] = { NULL };
	struct tess_coll c;
	tess_status st = open_card(g, me, NULL, 0, &o);

	(void)arg;
	if (!st)
		st = write_card(g, &o, (float)me);
	if (!st)
		st = start_messages(g, me, &o, work);
	c = make_card_sum(&o);
	c.src = c.dst = o.x + COUNT / 2;
	c.count = COUNT / 2;
	if (!st)
		st = tess_group_run(g, &c);
	for (int i = 0; i < 2 && !st; i++)
		st = tess_work_wait(work[i], 0);
	if (!st) {
		float host[COUNT] = { 0 };

		st = tess_group_copy(g, "read", o.stream, host, o.x, sizeof host);
		for (int i = 0; i < COUNT / 2 && !st; i++)
			HOLDS(host[COUNT / 2 + i] == (float)(1 + 2 * i));
	}
	for (int i = 0; i < 2; i++)
		tess_work_release(work[i]);
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

START_TEST(one_start_at_a_time)
{
	setenv("FAKE_NCCL_POLLS", "100", 1);
	spawn_ranks(2, run_messages_first, NULL);
}
END_TEST

/* ---- split ----------------------------------------------------------------------------------- */

/* Splits ranks 0 1 and 2 3 from the communicator of all. */
static tess_status run_split_groups(struct tess_world *w, void *arg)
{
	struct tess_group *all = tess_world_group(w), *half;
	int32_t me = tess_world_rank(w);
	struct opened o = { 0 };
	struct tess_coll c;
	tess_status st = tess_group_split(all, me / 2, -me, "half", &half);

	(void)arg;
	if (!st)
		st = open_card(all, me, NULL, 0, &o);
	if (!st)
		st = open_card(half, me, all, me / 2, &o);
	if (!st)
		st = write_card(all, &o, (float)me);
	c = make_card_sum(&o);
	if (!st)
		st = tess_group_run(half, &c);
	if (!st)
		st = tess_group_run(all, &c);
	if (!st)
		st = check_card(all, &o, 12, 8);
	if (st)
		return st;
	tess_group_detach_device(half, o.self);
	tess_group_detach_device(all, o.self);
	tess_group_close(half);
	close_card(&o);
	return st;
}

START_TEST(groups_are_split)
{
	begin_test();
	spawn_ranks(4, run_split_groups, NULL);
	ck_assert_int_eq(count_fake_calls("split"), 4);
	ck_assert_int_eq(count_fake_calls("init"), 4);
	ck_assert_int_eq(count_fake_calls("destroy"), 8);
	end_test();
}
END_TEST

/* Splits a group while NCCL is still putting messages on the stream. */
static tess_status split_after_messages(struct tess_world *w, void *arg)
{
	struct tess_group *all = tess_world_group(w), *both;
	int32_t me = tess_world_rank(w);
	struct opened o = { 0 };
	struct tess_work *work[2] = { NULL };
	tess_status st = tess_group_split(all, 0, me, "both", &both);

	(void)arg;
	if (!st)
		st = open_card(all, me, NULL, 0, &o);
	if (!st)
		st = start_messages(all, me, &o, work);
	if (!st)
		st = open_card(both, me, all, 0, &o);
	for (int i = 0; i < 2; i++) {
		if (!st)
			st = tess_work_wait(work[i], 0);
		tess_work_release(work[i]);
	}
	if (st)
		return st;
	tess_group_detach_device(both, o.self);
	tess_group_detach_device(all, o.self);
	tess_group_close(both);
	close_card(&o);
	return st;
}

START_TEST(split_awaits_messages)
{
	setenv("FAKE_NCCL_POLLS", "300", 1);
	spawn_ranks(2, split_after_messages, NULL);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

static tess_status miss_split(struct tess_world *w, void *arg)
{
	struct tess_group *all = tess_world_group(w), *both;
	int32_t me = tess_world_rank(w);
	struct opened o = { 0 };
	tess_status st = tess_group_split(all, 0, me, "both", &both);

	if (!st)
		st = open_card(all, me, NULL, 0, &o);
	if (st)
		return st;
	st = store_report(arg, w, open_card(both, me, all, 0, &o));
	wait_for_reports(arg, N);
	tess_group_detach_device(both, o.self);
	tess_group_detach_device(all, o.self);
	tess_group_close(both);
	close_card(&o);
	return st;
}

/*
 * Checks that NCCL returns the child when the parent is aborted, and that the child is ended, too.
 */
START_TEST(deadline_of_a_split)
{
	struct rank_reports r = { 0 };

	begin_test();
	setenv("FAKE_NCCL_NO_SPLIT", "1", 1);
	setenv("TESSERA_TIMEOUT", "1", 1);
	EXPECT_REPORTS(miss_split, &r, -1, TESS_ETIMEOUT,
	               "ncclCommSplit was not done by the deadline");
	ck_assert_int_eq(count_fake_calls("abort"), 8);
	ck_assert_int_eq(count_fake_calls("elsewhere"), 0);
	end_test();
}
END_TEST

/* Skips a call on rank 3; the other ranks have queued theirs, and read. */
static tess_status skip_third_rank(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	struct opened o = { 0 };
	struct tess_coll c;
	tess_status st = open_card(g, tess_world_rank(w), NULL, 0, &o);

	if (st)
		return st;
	c = make_card_sum(&o);
	meet_ranks(arg);
	c.deadline = get_near_deadline();
	if (tess_world_rank(w) == 3) {
		wait_for_reports(arg, 3);
	} else {
		st = tess_group_run(g, &c);
		st = store_report(arg, w, st ? st : check_card(g, &o, 0, 0));
	}
	o.table->sync(o.self, o.stream); /* the abort has ended its work */
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

START_TEST(deadline)
{
	struct rank_reports r = { 0 };

	begin_test();
	EXPECT_REPORTS(skip_third_rank, &r, 3, TESS_ETIMEOUT, "rank 3", "here");
	ck_assert_int_ge(count_fake_calls("abort"), 3);
	ck_assert_int_eq(count_fake_calls("elsewhere"), 0);
	end_test();
}
END_TEST

static tess_status fail_in_nccl(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	struct opened o = { 0 };
	struct tess_coll c;
	tess_status st = open_card(g, tess_world_rank(w), NULL, 0, &o);

	c = make_card_sum(&o);
	for (int i = 0; i < 4 && !st; i++)
		st = tess_group_run(g, &c);
	if (!st)
		st = check_card(g, &o, 0, 0);
	store_report(arg, w, st);
	o.table->sync(o.self, o.stream);
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

START_TEST(error_in_the_background)
{
	struct rank_reports r = { 0 };

	setenv("FAKE_NCCL_FAILS", "2 3 6", 1);
	EXPECT_REPORTS(fail_in_nccl, &r, -1, TESS_EPEER, "rank 2", "here",
	               "remote process exited (6): a failure of the fake NCCL");
}
END_TEST

/* ---- graphs ---------------------------------------------------------------------------------- */

/* Makes a graph with two sums, which runs `replays` times; the caller frees *graph. */
static tess_status run_graph(struct tess_group *g, const struct opened *o, int replays,
                             int64_t timeout, void **graph)
{
	struct tess_captured calls = { .group = g };
	struct tess_coll c = make_card_sum(o);
	tess_status st = tess_group_run(g, &c), ended; /* NCCL has connected the ranks */

	if (!st)
		st = write_card(g, o, (float)tess_world_rank(g->world));
	HOLDS(tess_captured_is_possible(g, &c));
	if (!st)
		st = o->table->capture(o->self, o->stream, 1, NULL);
	for (int i = 0; i < 2 && !st; i++)
		st = tess_captured_add(&calls, &c);
	ended = o->table->capture(o->self, o->stream, 0, graph);
	if (!st)
		st = ended ? ended : tess_captured_compare(&calls);
	if (timeout)
		g->world->timeout = timeout;
	for (int i = 0; i < replays && !st; i++) {
		st = o->table->replay(o->self, *graph, o->stream);
		if (!st)
			st = tess_captured_replay(&calls);
	}
	return st;
}

static tess_status replay_sums(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	int32_t n = tess_world_size(w);
	struct opened o = { 0 };
	uint64_t before;
	void *graph = NULL;
	tess_status st = open_card(g, tess_world_rank(w), NULL, 0, &o);

	(void)arg;
	before = g->calls;
	if (!st)
		st = run_graph(g, &o, 2, 0, &graph);
	/* a sum, the comparison of the graphs, and a call for each replay */
	HOLDS(st || g->calls - before == 4);
	HOLDS(st || g->nqueued == 2);
	if (!st)
		st = check_card(g, &o, 3 * 27, n * n * n * n);
	if (graph)
		o.table->graph_close(o.self, graph);
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

/* Checks that a replay is one call, for which the host does not wait. */
START_TEST(graph_of_calls)
{
	begin_test();
	spawn_ranks(3, replay_sums, NULL);
	ck_assert_int_eq(count_fake_calls("capture"), 6);
	ck_assert_int_eq(count_fake_calls("destroy"), 3);
	ck_assert_int_eq(count_fake_calls("abort"), 0);
	end_test();
}
END_TEST

/* Replays the graph once less on rank 2. */
static tess_status replay_less(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w);
	struct opened o = { 0 };
	void *graph = NULL;
	tess_status st = open_card(g, me, NULL, 0, &o);

	if (!st)
		st = run_graph(g, &o, me == 2 ? 1 : 2, 300 * TESS_MS, &graph);
	if (me == 2) {
		if (!st)
			wait_for_reports(arg, 3);
	} else {
		st = store_report(arg, w, st ? st : check_card(g, &o, 0, 0));
	}
	o.table->sync(o.self, o.stream);
	if (graph)
		o.table->graph_close(o.self, graph);
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

/* Checks that an abort waits in a thread until the graphs are closed, like NCCL's. */
START_TEST(deadline_of_a_graph)
{
	struct rank_reports r = { 0 };

	begin_test();
	EXPECT_REPORTS(replay_less, &r, 2, TESS_ETIMEOUT, "rank 2",
	               "at the graph of 2 calls from here");
	ck_assert_int_eq(count_fake_calls("abort"), 4);
	ck_assert_int_eq(count_fake_calls("ended"), 4);
	end_test();
}
END_TEST

/* Fails in the fourth group of calls, which is in the first replay. */
static tess_status fail_in_replay(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	struct opened o = { 0 };
	void *graph = NULL;
	tess_status st = open_card(g, tess_world_rank(w), NULL, 0, &o);

	if (!st)
		st = run_graph(g, &o, 2, 0, &graph);
	store_report(arg, w, st ? st : check_card(g, &o, 0, 0));
	o.table->sync(o.self, o.stream);
	if (graph)
		o.table->graph_close(o.self, graph);
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

START_TEST(error_in_a_graph)
{
	struct rank_reports r = { 0 };

	setenv("FAKE_NCCL_FAILS", "1 4 6", 1);
	EXPECT_REPORTS(fail_in_replay, &r, -1, TESS_EPEER, "rank 1", "the graph of 2 calls",
	               "remote process exited (6): a failure of the fake NCCL");
}
END_TEST

static tess_status compare_graphs(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	struct tess_captured calls = { .group = g, .n = 2, .hash = 7 };
	tess_status st = tess_captured_compare(&calls);

	(void)arg;
	if (st)
		return st;
	calls.n += tess_world_rank(w) == 1;
	HOLDS(tess_captured_compare(&calls) == TESS_EMISMATCH);
	expect_part(tess_error(),
	            "the graph of rank 0 has 2 calls, but rank 1's has 3 or different ones");
	calls.n = 2;
	calls.hash += tess_world_rank(w) == 2;
	HOLDS(tess_captured_compare(&calls) == TESS_EMISMATCH);
	expect_part(tess_error(), "rank 2's has 2 or different ones");
	return TESS_OK;
}

START_TEST(graphs_are_compared)
{
	spawn_ranks(3, compare_graphs, NULL);
}
END_TEST

/* ---- where it cannot be used ----------------------------------------------------------------- */

struct refusal {
	const char *version, *backend, *libraries, *device; /* NULL: unchanged */
	bool one_card;
	bool refused; /* the calls fail; else the group does not use nccl */
	const char *words; /* words of the warning or the failure; NULL: NCCL is used */
};

static tess_status use_cards(struct tess_world *w, void *arg)
{
	const struct refusal *f = arg;
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w);
	struct opened o = { 0 };
	struct tess_coll c;
	tess_status st = open_card(g, f->one_card ? 0 : me, NULL, 0, &o);

	if (st)
		return st;
	HOLDS(!f->words == (g->carrier.self != NULL));
	st = write_card(g, &o, (float)me);
	c = make_card_sum(&o);
	if (!st)
		st = tess_group_run(g, &c);
	if (!st)
		st = check_card(g, &o, 1, 2);
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

static struct refusal refusals[] = {
	{ .version = "21700", .words = "NCCL 2.17.0 is too old; 2.18.0 or newer" },
	{ .version = "2804", .words = "NCCL before 2.9 is too old" },
	{ .version = "21700",
	  .backend = "nccl",
	  .refused = true,
	  .words = "NCCL 2.17.0 is too old" },
	{ .one_card = true, .words = "ranks 0 and 1 are on one GPU (0000:00:00.0)" },
	{ .one_card = true, .backend = "nccl", .refused = true, .words = "NCCL 2.30 or newer" },
	{ .version = "23001", .one_card = true },
	{ .backend = "nccl" },
	{ .backend = "trace:nccl" },
	{ .backend = "nccl", .device = "mine:discrete_cuda" },
	{ .device = "ours:mine:discrete_cuda" },
	{ .libraries = "/nonexistent", .words = "libcuda.so.1 was not found" },
	{ .libraries = "/nonexistent",
	  .backend = "nccl",
	  .refused = true,
	  .words = "set TESSERA_CUDA_LIBS to the folder" },
};

static int refusal; /* the current one */
static tess_status spawned;

static void run_refused(void)
{
	spawned = tess_world_spawn_threads(2, use_cards, &refusals[refusal]);
}

static const char *format_moved_memory(const char *device)
{
	static char text[128];

	snprintf(text, sizeof text, "nccl moves memory of device %s", device);
	return text;
}

START_TEST(usable_or_not)
{
	const struct refusal *f = &refusals[_i];
	static char text[1 << 16];
	char trace[64];
	void *real = f->libraries ? dlopen("libcuda.so.1", RTLD_LAZY) : NULL;

	if (real)
		return; /* this machine has a driver */
	begin_test();
	refusal = _i;
	snprintf(trace, sizeof trace, "/tmp/test_nccl.%ld.json", (long)getpid());
	setenv("TESSERA_TRACE_FILE", trace, 1);
	if (f->version)
		setenv("FAKE_NCCL_VERSION", f->version, 1);
	if (f->backend)
		setenv("TESSERA_BACKEND", f->backend, 1);
	if (f->device)
		card_device = f->device;
	setenv("TESSERA_DEVICE", card_device, 1);
	if (f->libraries)
		setenv("TESSERA_CUDA_LIBS", f->libraries, 1);
	capture_stderr(run_refused, text, sizeof text);
	unlink(trace);
	ck_assert_msg((spawned != TESS_OK) == f->refused, "%s", tess_error());
	if (f->refused)
		expect_part(tess_error(), f->words);
	else if (f->words)
		expect_part(text, f->words);
	else
		expect_part(text, format_moved_memory(card_device));
	if (f->words && !f->refused)
		ck_assert_int_eq(count_occurrences(text, "go through host memory"), 2);
	end_test();
}
END_TEST

/* ---- ids that the device chooses ------------------------------------------------------------- */

enum { TEXTS = TSAN ? 2 : 4, MANY = 70, IDS = 240 };

struct told { /* rank 0 */
	int32_t id[MANY][IDS];
	int n[MANY], finish[MANY];
	int ahead, steps; /* ids delivered while the next step was queued; steps */
	atomic_int *chosen; /* steps whose ids the device chose */
	int end_at; /* ids of the last text, which on_token ends; 0: not ended */
};

static int keep_told_id(void *self, int64_t i, int32_t id, const float *logits, const char *bytes,
                        uint64_t n)
{
	struct told *t = self;

	(void)logits, (void)bytes, (void)n;
	t->id[i][t->n[i]++] = id;
	return i == TEXTS - 1 && t->n[i] == t->end_at ? TESS_END_ONE : TESS_GO_ON;
}

static int fail_with_fifth_id(void *self, int64_t i, int32_t id, const float *logits,
                              const char *bytes, uint64_t n)
{
	(void)i, (void)id, (void)logits, (void)bytes, (void)n;
	return ++*(int *)self == 5 ? tess_fail(TESS_EINVAL, "enough") : TESS_GO_ON;
}

static int keep_told_end(void *self, int64_t i, const struct tess_result *r, const char *bytes,
                         uint64_t n)
{
	(void)bytes, (void)n;
	((struct told *)self)->finish[i] = r->finish;
	return TESS_GO_ON;
}

static int keep_told_step(void *self)
{
	struct told *t = self;

	t->ahead += atomic_load(t->chosen) > ++t->steps;
	return TESS_GO_ON;
}

struct told_case {
	const char *checkpoint; /* NULL: the one in data/ */
	int ids; /* for the first text; 0: 80 */
	uint64_t flags; /* with logits, the host chooses */
	int texts, end_at;
	int stop; /* index in the first text of the id that ends texts; 0: none */
	bool sampled; /* all but the first text, each with its own settings */
	double penalty; /* for each third text; 0: none */
	int batch; /* concurrent texts; 0: all */
	bool chat; /* two turns of each text */
	bool mixed; /* text 2 has logits; it starts when text 1 ends, and ends before the others */
	struct told told;
};

/* Generates texts of several lengths, each of which crosses a page. */
static tess_status tell_texts(struct tess_session *s, struct told_case *c, bool first)
{
	static const int32_t words[] = { 1, 403, 407, 261, 378, 432, 383, 286, 261, 376 },
			     bytes[] = { 1, 2, 3, 30, 5, 77, 43, 61, 90, 12 };
	const int32_t *ids = c->checkpoint ? bytes : words; /* words may repeat */
	static const struct tess_sampling ways[] = {
		{ .temperature = 0, .top_p = 1, .repetition_penalty = 1 },
		{ .temperature = 1, .top_p = 1, .seed = 1 },
		{ .temperature = 0.9, .top_p = 0.9, .min_p = 0.01, .seed = 2 },
		{ .temperature = 3, .top_p = 1, .top_k = 40, .seed = 3 },
	};
	struct tess_sampling sampling[MANY];
	struct tess_sequence *q[MANY] = { NULL };
	struct tess_request r[MANY];
	const struct tess_request *list[MANY];
	struct tess_generation how = { .size = sizeof how, .batch = c->batch };
	tess_status st = TESS_OK;
	int calls = 0;
	int32_t stop = c->stop;
	bool stops = c->stop > 20;

	for (int i = 0; i < c->texts; i++) {
		int kind = i % TEXTS;

		sampling[i] = ways[c->sampled ? kind : 0];
		if (i % 3 == 0)
			sampling[i].repetition_penalty = c->penalty;
		r[i] = (struct tess_request){
			.size = sizeof *r,
			.ids = ids + kind,
			.nids = 3 + kind,
			.flags = c->mixed && i == 2 ? TESS_TOKEN_LOGITS : c->flags,
			.sampling = &sampling[i],
			.stop = stops ? &stop : NULL,
			.nstop = stops,
			.max_tokens = c->mixed && (i == 1 || i == 2)
			                      ? 15
			                      : (c->ids ? c->ids : 80) - 7 * kind
		};
		list[i] = &r[i];
	}
	/* a step is in flight when a callback fails */
	how.self = &calls;
	how.on_token = fail_with_fifth_id;
	HOLDS(tess_session_generate(s, list, 1, &how) == TESS_EINVAL);
	how.self = &c->told;
	how.on_token = keep_told_id;
	how.on_end = keep_told_end;
	how.on_step = keep_told_step;
	if (first)
		atomic_store(c->told.chosen, 0);
	for (int i = 0; i < c->texts && c->chat; i++) {
		HOLDS(!tess_sequence_open(s, &q[i]));
		r[i].sequence = q[i];
	}
	for (int turn = 0; turn <= c->chat && !st; turn++)
		st = tess_session_generate(s, list, c->texts, &how);
	for (int i = 0; i < c->texts; i++)
		tess_sequence_close(q[i]);
	return st;
}

static tess_status run_told_case(struct tess_world *w, void *arg)
{
	struct tess_session_options options = { .size = sizeof options, .threads = 1 };
	const struct told_case *c = arg;
	struct tess_session *s = NULL;
	struct tess_mesh *mesh = NULL;
	tess_status st = tess_mesh_open(w, "tp", &mesh);

	if (!st)
		st = tess_session_open(mesh, c->checkpoint ? c->checkpoint : DATA, &options, &s);
	if (!st)
		st = tell_texts(s, arg, tess_world_rank(w) == 0);
	tess_session_close(s);
	tess_mesh_close(mesh);
	return st;
}

static void *find_in_device(const char *symbol)
{
	char path[512];

	snprintf(path, sizeof path, "%s/tess-device-discrete_cuda.so",
	         getenv("TESSERA_PLUGIN_PATH"));
	return dlsym(dlopen(path, RTLD_NOW), symbol);
}

/*
 * Checks that the device chooses the host's ids, and delivers them while the next step is in
 * flight.
 */
START_TEST(device_chooses_ids)
{
	static struct told_case by_host, by_device;
	static const struct told_case cases[] = {
		{ .texts = 1, .penalty = 1.3 },
		{ .texts = TEXTS, .sampled = true },
		{ .texts = TEXTS, .end_at = 33 },
		{ .texts = TEXTS, .sampled = true, .penalty = 1.1, .end_at = 33 },
		{ .texts = TEXTS, .stop = 20 },
		{ .texts = TEXTS, .sampled = true, .penalty = 1.3, .batch = 2 },
		{ .texts = TEXTS, .sampled = true, .penalty = 1.3, .batch = 2, .mixed = true },
		{ .texts = TEXTS, .sampled = true, .penalty = 1.3, .chat = true },
		/* windows of 16 positions in all layers, of 12 in one of two: pages come and go */
		{ .checkpoint = GOLDENS "/mistral", .ids = IDS, .texts = TEXTS, .sampled = true },
		{ .checkpoint = GOLDENS "/gemma2", .ids = IDS, .texts = TEXTS, .sampled = true },
		{ .ids = 40, .texts = MANY, .sampled = true, .penalty = 1.1, .batch = MANY },
	};
	int n = 1 + _i % 2;

	setenv("TESSERA_DEVICE", "discrete_cuda", 1);
	by_host = by_device = cases[_i / 2];
	by_host.flags = TESS_TOKEN_LOGITS;
	by_host.told.chosen = by_device.told.chosen = find_in_device("discrete_chosen");
	by_host.told.end_at = by_device.told.end_at = by_host.end_at;
	spawn_ranks(n, run_told_case, &by_host);
	if (by_host.stop) {
		by_host.stop = by_device.stop = by_host.told.id[0][by_host.stop];
		memset(by_host.told.n, 0, sizeof by_host.told.n);
		memset(by_host.told.id, 0, sizeof by_host.told.id);
		spawn_ranks(n, run_told_case, &by_host);
		ck_assert_int_eq(by_host.told.finish[0], TESS_FINISH_STOP);
	}
	spawn_ranks(n, run_told_case, &by_device);
	for (int i = 0; i < by_host.texts; i++) {
		ck_assert_int_eq(by_device.told.n[i], by_host.told.n[i]);
		ck_assert_int_eq(by_device.told.finish[i], by_host.told.finish[i]);
		ck_assert_mem_eq(by_device.told.id[i], by_host.told.id[i],
		                 sizeof by_host.told.id[i]);
	}
	ck_assert_int_eq(by_host.told.ahead, 0);
	if (by_device.chat) /* a caller's sequence has no rows of ids that may be missing */
		ck_assert_int_gt(atomic_load(by_device.told.chosen), 100);
	else if (by_device.mixed) /* but in the steps of text 2 */
		ck_assert_int_eq(atomic_load(by_device.told.chosen),
		                 by_device.told.steps - (TEXTS > 2 ? 15 : 0));
	else if (by_device.texts == MANY) /* one of which often ends */
		ck_assert_int_ge(atomic_load(by_device.told.chosen), by_device.told.steps);
	else
		ck_assert_int_gt(by_device.told.ahead, by_device.told.steps / 2);
	if (by_device.texts == 1) { /* no step is wasted, and all but the last are ahead */
		ck_assert_int_eq(atomic_load(by_device.told.chosen), by_device.told.steps);
		ck_assert_int_eq(by_device.told.ahead, by_device.told.steps - 1);
	}
}
END_TEST

/* ---- the command ----------------------------------------------------------------------------- */

/* Prints the ops on one rank by `tessera bench`. */
static void bench_ops(const char *what, char *said, size_t bytes)
{
	int status = command_run(said, bytes,
	                         "%s bench %s %s --device discrete_cuda -n 1 --rounds 1 "
	                         "--breakdown 2>&1",
	                         TESSERA, what, DATA);

	ck_assert_msg(!status, "%s", said);
}

/* Checks that a sum of one node is computed in place. */
START_TEST(one_rank_copies_nothing)
{
	char said[8192];

	bench_ops("decode --tokens 2", said, sizeof said);
	expect_part(said, "\n    norm  ");
	ck_assert_msg(!strstr(said, "\n    copy  "), "%s", said);
}
END_TEST

/* Checks that a prompt of 200 ids is four steps of at most 64 rows, the device's limit. */
START_TEST(prompts_have_steps_of_the_device)
{
	char said[8192];

	bench_ops("prefill --tokens 200", said, sizeof said);
	expect_part(said, "\n    attention             20  "); /* of 5 layers */
}
END_TEST

/* Checks that one rank, ranks over NCCL, and a mesh give equal texts. */
START_TEST(generated_text)
{
	static const char *const ranks[] = { "-n 1", "-n 3", "-n 4 --mesh dp=2,tp=2" };
	char text[3][4096];

	begin_test();
	for (int i = TSAN; i < 3; i++) {
		int status = command_run(text[i], sizeof text[i],
		                         "%s generate %s --device discrete_cuda %s --prompt 'Once "
		                         "upon a time' --temperature 0 --max-tokens 20 2>&1",
		                         TESSERA, DATA, ranks[i]);

		ck_assert_msg(!status, "%s: %s", ranks[i], text[i]);
	}
	expect_part(text[1], strstr(text[TSAN], ", there was"));
	expect_part(text[2], strstr(text[TSAN], ", there was"));
	ck_assert_int_eq(count_fake_calls("init"), 7);
	ck_assert_int_gt(count_fake_calls("capture"), 0);
	end_test();
}
END_TEST

/* Checks that calls stay out of graphs if the user requests it, or one rank cannot capture them. */
START_TEST(graphs_without_calls)
{
	static const struct {
		const char *name, *value;
		int captured; /* on each rank that can: 12 layers of two sums */
	} settings[] = { { "TESSERA_GRAPHS", "calls", 1 },
		         { "TESSERA_GRAPHS", "ops", 0 },
		         { "TESSERA_GRAPHS", "none", 0 },
		         { "DISCRETE_NO_GRAPHS", "1", 1 } };
	char text[2][4096];

	for (size_t i = 0; i < sizeof settings / sizeof *settings; i += TSAN ? 3 : 1) {
		int status;

		begin_test();
		ck_assert_int_eq(setenv(settings[i].name, settings[i].value, 1), 0);
		status = command_run(text[i > 0], sizeof text[0],
		                     "%s generate %s --device discrete_cuda -n 2 --ids 1,2,3 "
		                     "--temperature 0 --max-tokens 5 2>/dev/null",
		                     TESSERA, DATA);
		ck_assert_msg(!status, "%s: %s", settings[i].value, text[i > 0]);
		ck_assert_str_eq(text[i > 0], text[0]);
		ck_assert_msg(!count_fake_calls("capture") == !settings[i].captured, "%s",
		              settings[i].value);
		ck_assert_int_eq(count_fake_calls("destroy"), 2);
		unsetenv(settings[i].name);
		end_test();
	}
}
END_TEST

/*
 * Checks that the arena of steps is registered with NCCL if the calls of all ranks have equal
 * offsets.
 */
START_TEST(registered_arena)
{
	static const struct {
		int ranks;
		bool alike; /* memory was planned for it */
	} cases[] = { { 2, true }, { 3, true }, { 4, false } };
	char text[4096];

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i += TSAN ? 2 : 1) {
		int n = cases[i].ranks;

		begin_test();
		ck_assert_int_eq(command_run(text, sizeof text,
		                             "%s generate %s --device discrete_cuda -n %d --ids "
		                             "1,2,3 --temperature 0 --max-tokens 5 2>&1",
		                             TESSERA, DATA, n),
		                 0);
		ck_assert_msg(!count_fake_calls("register") == !cases[i].alike, "%d ranks", n);
		ck_assert_msg(!count_fake_calls("known") == !cases[i].alike, "%d ranks", n);
		ck_assert_int_eq(count_fake_calls("register"), count_fake_calls("deregister"));
		ck_assert_int_eq(count_fake_calls("destroy"), n);
		end_test();
	}
}
END_TEST

/* Frees memory while NCCL puts messages on the stream. */
static tess_status free_during_messages(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w);
	struct opened o = { 0 };
	struct tess_work *work[2] = { NULL };
	void *memory = NULL;
	tess_status st = open_card(g, me, NULL, 0, &o);

	(void)arg;
	if (!st)
		st = tess_carrier_alloc(g, COUNT, &memory);
	if (!st)
		st = start_messages(g, me, &o, work);
	if (!st)
		tess_carrier_free(g, memory);
	for (int i = 0; i < 2; i++) {
		if (!st)
			st = tess_work_wait(work[i], 0);
		tess_work_release(work[i]);
	}
	tess_group_detach_device(g, o.self);
	close_card(&o);
	return st;
}

START_TEST(memory_is_freed_later)
{
	begin_test();
	setenv("FAKE_NCCL_POLLS", "200", 1);
	spawn_ranks(2, free_during_messages, NULL);
	ck_assert_int_eq(count_fake_calls("early"), 0);
	ck_assert_int_eq(count_fake_calls("deregister"), 2);
	end_test();
}
END_TEST

/* Checks that all ranks register their memory, or none. */
START_TEST(memory_of_one_rank)
{
	char text[4096];

	begin_test();
	setenv("FAKE_NCCL_NO_REGISTER", "1", 1);
	ck_assert_int_eq(command_run(text, sizeof text,
	                             "%s generate %s --device discrete_cuda -n 2 --ids 1,2,3 "
	                             "--temperature 0 --max-tokens 5 2>&1",
	                             TESSERA, DATA),
	                 0);
	ck_assert_int_eq(count_fake_calls("register"), 2);
	ck_assert_int_eq(count_fake_calls("known"), 0);
	ck_assert_int_eq(count_fake_calls("deregister"), 1);
	ck_assert_int_eq(count_fake_calls("destroy"), 2);
	end_test();
}
END_TEST

START_TEST(info_says_what_is_used)
{
	static char text[1 << 16];

	ck_assert_int_eq(command_run(text, sizeof text, "%s info", TESSERA), 0);
	expect_part(text, "memory of device discrete_cuda: nccl (ranks that share this host");
	setenv("FAKE_NCCL_VERSION", "21400", 1);
	ck_assert_int_eq(command_run(text, sizeof text, "%s info", TESSERA), 0);
	expect_part(text, "memory of device discrete_cuda: none (through host memory: ");
	expect_part(text, "NCCL 2.14.0 is too old");
}
END_TEST

/*
 * Checks that a group that cannot be opened is a fault with its reason; ranks do not end by a
 * signal.
 */
START_TEST(conform_without_nccl)
{
	char text[4096];

	setenv("FAKE_NCCL_VERSION", "21400", 1);
	ck_assert_int_ne(command_run(text, sizeof text,
	                             "%s conform --quick --ranks 1 --part data --device "
	                             "discrete_cuda nccl 2>&1",
	                             TESSERA),
	                 0);
	expect_part(text, "NCCL 2.14.0 is too old");
	ck_assert_msg(!strstr(text, "signal"), "%s", text);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("nccl", 60, &r);

	tcase_add_test(t, host_does_not_wait);
	tcase_add_test(t, queue_is_bounded);
	tcase_add_test(t, one_start_at_a_time);
	tcase_add_test(t, groups_are_split);
	tcase_add_test(t, split_awaits_messages);
	tcase_add_test(t, deadline_of_a_split);
	tcase_add_test(t, deadline);
	tcase_add_test(t, error_in_the_background);
	tcase_add_test(t, graph_of_calls);
	tcase_add_test(t, deadline_of_a_graph);
	tcase_add_test(t, error_in_a_graph);
	tcase_add_test(t, graphs_are_compared);
	tcase_add_loop_test(t, usable_or_not, 0, sizeof refusals / sizeof *refusals);
	/* with a sanitizer two cases: with TSan one, of fewer jobs */
	tcase_add_loop_test(t, device_chooses_ids, TSAN || THIN > 1 ? 7 : 0,
	                    TSAN       ? 8
	                    : THIN > 1 ? 9
	                               : 20);
	if (THIN == 1) { /* the counts are equal with a sanitizer */
		tcase_add_test(t, one_rank_copies_nothing);
		tcase_add_test(t, prompts_have_steps_of_the_device);
	}
	tcase_add_test(t, generated_text);
	tcase_add_test(t, graphs_without_calls);
	tcase_add_test(t, registered_arena);
	tcase_add_test(t, memory_is_freed_later);
	tcase_add_test(t, memory_of_one_rank);
	tcase_add_test(t, info_says_what_is_used);
	tcase_add_test(t, conform_without_nccl);
	return suite_end(r);
}

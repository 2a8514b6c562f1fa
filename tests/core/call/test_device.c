/* test_device.c - calls and sums in the memory of a device that the host cannot read. */
#include "core/call/carrier.h"
#include "core/group/device.h"
#include "core/registry/registry.h"
#include "core/sum/exact.h"
#include "nn/weights/device.h"
#include "tests/support/report.h"
#include "tests/support/suite.h"
#include "tools/conform/data.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

enum { RANKS_MAX = 4 };

struct opened { /* the test device, attached to a group */
	struct conform_memory memory;
	struct tess_group *group;
};

static tess_status open_test_device(struct tess_group *g, struct opened *o)
{
	struct conform_memory *m = &o->memory;
	tess_status st = tess_plugin_find_device("discrete", &m->device);

	o->group = g;
	if (!st)
		st = m->device->open(0, 1, &m->self);
	if (!st)
		st = m->device->stream_open(m->self, &m->stream);
	m->copies = m->stream;
	if (!st && g)
		st = tess_group_attach_device(g, m->device, m->self, 0, NULL, 0);
	conform_data_use_device(m);
	return st;
}

static void close_test_device(struct opened *o)
{
	const struct conform_memory *m = &o->memory;

	if (o->group)
		tess_group_detach_device(o->group, m->self);
	m->device->stream_close(m->self, m->stream);
	m->device->close(m->self);
	conform_data_use_device(NULL);
}

static tess_status copy_and_wait(const struct opened *o, void *dst, const void *src, uint64_t bytes)
{
	return conform_memory_copy(&o->memory, dst, src, bytes);
}

/* Copies these bytes to new device memory. */
static tess_status copy_to_device(const struct opened *o, const void *from, uint64_t bytes,
                                  void **out)
{
	tess_status st = o->memory.device->alloc(o->memory.self, bytes + 1, out);

	return st ? st : copy_and_wait(o, *out, from, bytes);
}

/* ---- collectives ----------------------------------------------------------------------------- */

static tess_status make_device_case(const struct opened *o, const struct conform_case *c,
                                    struct conform_data **out)
{
	return conform_data_make(c, tess_group_rank(o->group), tess_group_size(o->group), out);
}

static tess_status check_device_case(struct conform_data *d)
{
	tess_status st = conform_data_check(d);

	if (st)
		st = tess_fail_in(st, "%s%s%s", tess_kind_name(d->c.kind),
		                  d->c.uneven ? ", uneven" : "", d->c.in_place ? ", in place" : "");
	conform_data_free(d);
	return st;
}

/*
 * Runs one case: a message to the next rank as a batch or, with `apart`, a call that is started,
 * and another before it.
 */
static tess_status run_device_case(const struct opened *o, const struct conform_case *c, bool apart)
{
	struct conform_data *k, *other;
	struct tess_work *work = NULL, *before = NULL;
	tess_status st = make_device_case(o, c, &k);

	if (st)
		return st;
	if (k->ncolls == 2) {
		const struct tess_coll *both[] = { &k->coll[0], &k->coll[1] };

		st = tess_group_batch(o->group, both, 2, &work);
	} else if (k->ncolls && apart) {
		st = make_device_case(o, c, &other);
		if (!st)
			st = tess_group_start(o->group, &other->coll[0], &before);
		if (!st)
			st = tess_group_start(o->group, &k->coll[0], &work);
	} else if (k->ncolls) {
		st = tess_group_run(o->group, &k->coll[0]);
	}
	if (!st && work && c->polled)
		while ((st = tess_work_test(work)) == TESS_PENDING)
			sched_yield();
	if (!st && work)
		st = tess_work_wait(work, 0);
	tess_work_release(work);
	if (!st && before)
		st = tess_work_wait(before, 0);
	tess_work_release(before);
	if (!st && before)
		st = check_device_case(other);
	return st ? st : check_device_case(k);
}

static tess_status run_device_cases(struct tess_world *w, void *arg)
{
	struct opened o;
	tess_status st = open_test_device(tess_world_group(w), &o);

	(void)arg;
	for (int i = 0; i < 16 && !st; i++)
		for (int32_t kind = TESS_BROADCAST; kind <= TESS_SEND && !st; kind++) {
			struct conform_case c = {
				.kind = kind,
				.dtype = i & 4 ? TESS_BF16 : TESS_F32,
				.op = TESS_SUM,
				.root = tess_world_size(w) - 1,
				.count = i & 8 ? 3000 : 5,
				.uneven = i & 1,
				.in_place = i & 2,
				.polled = i & 1,
			};

			for (int again = 0; again < 2 && !st; again++)
				st = run_device_case(&o, &c, i & 4);
		}
	if (!st)
		close_test_device(&o);
	return st;
}

START_TEST(collectives)
{
	for (int32_t n = 1 + TSAN; n <= RANKS_MAX; n += 1 + THIN / 4)
		spawn_ranks(n, run_device_cases, NULL);
}
END_TEST

/* Checks a backend of messages only, which cannot add in the device's memory either. */
START_TEST(emulated_collectives)
{
	ck_assert_int_eq(setenv("TESSERA_BACKEND", "minimal", 1), 0);
	spawn_ranks(3, run_device_cases, NULL);
}
END_TEST

static void run_logged_call(void)
{
	tess_world_spawn_threads(2, run_device_cases, NULL);
}

START_TEST(staging_is_said_once)
{
	static char text[1 << 16];

	ck_assert_int_eq(setenv("TESSERA_LOG", "info", 1), 0);
	capture_stderr(run_logged_call, text, sizeof text);
	ck_assert_int_eq(count_occurrences(text, "does not move memory of device discrete"), 1);
}
END_TEST

/* ---- sums ------------------------------------------------------------------------------------ */

/* Checks that sums in the device's memory have the bits of sums in host memory. */
static tess_status compare_sums(const struct opened *o, uint64_t count, bool shared_out)
{
	static const int64_t units[] = { 14, 3 };
	int32_t n = tess_group_size(o->group), me = tess_group_rank(o->group);
	uint64_t share[RANKS_MAX] = { 0 };
	struct tess_sum s = { .ntree = 2, .n = units, .count = count, .where = "sum" };
	uint64_t floats = (uint64_t)tess_sum_nodes(&s, n, me) * count, len = count;
	float *nodes = calloc(floats + 1, sizeof *nodes), *want = calloc(count + 1, sizeof *want),
	      *got = calloc(count + 1, sizeof *got);
	void *from = NULL, *to = NULL;
	tess_status st;

	for (int32_t r = 0; r < n; r++)
		share[r] =
			r ? count / (uint64_t)n : count - count / (uint64_t)n * (uint64_t)(n - 1);
	if (shared_out) {
		s.share = share;
		len = share[me];
	}
	for (uint64_t i = 0; i < floats; i++)
		nodes[i] = 1.0f / (float)(i * 7 + (uint64_t)me + 1);
	st = tess_group_sum(o->group, &s, nodes, want);
	s.mem = o->memory.device->mem;
	s.stream = o->memory.stream;
	if (!st)
		st = copy_to_device(o, nodes, floats * sizeof *nodes, &from);
	if (!st)
		st = copy_to_device(o, got, len * sizeof *got, &to);
	if (!st)
		st = tess_group_sum(o->group, &s, from, to);
	if (!st)
		st = copy_and_wait(o, got, to, len * sizeof *got);
	if (!st && memcmp(got, want, len * sizeof *got))
		st = tess_fail(TESS_EBUG, "%d ranks: a sum of %d elements differs", n, (int)count);
	free(nodes);
	free(want);
	free(got);
	return st;
}

static tess_status run_device_sums(struct tess_world *w, void *arg)
{
	static const uint64_t counts[] = { 1, 300, 40001 };
	struct opened o;
	tess_status st = open_test_device(tess_world_group(w), &o);

	(void)arg;
	for (size_t i = 0; i < sizeof counts / sizeof *counts && !st; i++)
		for (int share = 0; share < 2 && !st; share++)
			st = compare_sums(&o, counts[i], share);
	if (!st)
		close_test_device(&o);
	return st;
}

START_TEST(sums)
{
	for (int32_t n = 1; n <= RANKS_MAX; n++)
		spawn_ranks(n, run_device_sums, NULL);
}
END_TEST

/* ---- several devices on a host --------------------------------------------------------------- */

static tess_status take_turns(struct tess_world *w, void *arg)
{
	const struct tess_device *device;
	struct tess_opened_device d;
	int32_t index, got, given = *(int32_t *)arg;
	tess_status st = tess_device_find(&device, &index);

	if (!st)
		st = tess_device_open(device, index, 1, tess_world_group(w), &d);
	if (st)
		return st;
	got = *(int32_t *)d.self;
	if (got != (given < 0 ? tess_world_rank(w) % 2 : given) || d.nranks != (given < 0 ? 2 : 3))
		st = tess_fail(TESS_EBUG, "device %d, of %d ranks", (int)got, (int)d.nranks);
	tess_device_close(&d);
	return st;
}

/* Lets 3 ranks share 2 devices. */
START_TEST(ranks_take_turns)
{
	static const char *const devices[] = { "discrete", "discrete:0", "discrete:1" };
	int32_t given = _i - 1;

	ck_assert_int_eq(setenv("TESSERA_DEVICE", devices[_i], 1), 0);
	spawn_ranks(3, take_turns, &given);
}
END_TEST

/* ---- refusals and failures ------------------------------------------------------------------- */

/* Makes calls without the device, and with host memory declared as the device's. */
static tess_status make_wrong_calls(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	struct opened o;
	float x = 1;
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_REDUCE,
		               .dtype = TESS_F32,
		               .src = &x,
		               .dst = &x,
		               .count = 1,
		               .where = "here" };
	struct tess_sum s = { .ntree = 1, .n = &(int64_t){ 4 }, .count = 1, .where = "there" };
	tess_status st = open_test_device(NULL, &o);

	(void)arg;
	if (st)
		return st;
	s.mem = c.mem = o.memory.device->mem;
	c.stream = o.memory.stream;
	if (tess_group_run(g, &c) != TESS_ENOTSUP || !strstr(tess_error(), "here: all_reduce: mem"))
		return tess_fail(TESS_EBUG, "no device: %s", tess_error());
	if (tess_group_sum(g, &s, &x, &x) != TESS_ENOTSUP || !strstr(tess_error(), "there: nodes"))
		return tess_fail(TESS_EBUG, "no device: %s", tess_error());
	c.mem = TESS_MEM_MAX + 1;
	if (tess_group_run(g, &c) != TESS_ENOTSUP)
		return tess_fail(TESS_EBUG, "kind 64: %s", tess_error());
	c.mem = 0;
	st = tess_group_run(g, &c); /* the group has not failed */
	close_test_device(&o);
	return st;
}

START_TEST(refused)
{
	spawn_ranks(2, make_wrong_calls, NULL);
}
END_TEST

/* Makes no call on rank 3: the other ranks fail at the deadline. */
static tess_status miss_rank_3(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	struct conform_case c = {
		.kind = TESS_ALL_REDUCE, .dtype = TESS_F32, .op = TESS_SUM, .count = 1000
	};
	struct opened o;
	struct conform_data *k;
	tess_status st = open_test_device(g, &o);

	if (!st)
		st = make_device_case(&o, &c, &k);
	if (st)
		return st;
	meet_ranks(arg);
	k->coll[0].deadline = get_near_deadline();
	if (tess_world_rank(w) == 3)
		wait_for_reports(arg, 3);
	else
		st = store_report(arg, w, tess_group_run(g, &k->coll[0]));
	conform_data_free(k); /* the group keeps its own copy */
	close_test_device(&o);
	return st;
}

START_TEST(deadline)
{
	struct rank_reports r = { 0 };

	EXPECT_REPORTS(miss_rank_3, &r, 3, TESS_ETIMEOUT, "rank 3", "conform");
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* Checks that the tests above can fail: the host cannot read the memory, the device can. */
START_TEST(host_read_crashes)
{
	struct opened o;
	volatile float *at;
	float x = 3, y = 0;
	void *p = NULL;
	int status;
	pid_t pid;

	ck_assert_msg(!open_test_device(NULL, &o) && !copy_to_device(&o, &x, sizeof x, &p), "%s",
	              tess_error());
	at = p;
	fflush(NULL);
	pid = fork();
	if (!pid) {
		signal(SIGSEGV, SIG_DFL); /* instead of a sanitizer's handler */
		_exit(*at > 0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	ck_assert(!copy_and_wait(&o, &y, p, sizeof y));
	ck_assert(y == x);
	close_test_device(&o);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("device", 120, &r);

	tcase_add_test(t, host_read_crashes);
	tcase_add_test(t, collectives);
	tcase_add_test(t, emulated_collectives);
	tcase_add_test(t, staging_is_said_once);
	tcase_add_test(t, sums);
	tcase_add_loop_test(t, ranks_take_turns, 0, 3);
	tcase_add_test(t, refused);
	tcase_add_test(t, deadline);
	return suite_end(r);
}

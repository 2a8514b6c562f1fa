/*
 * test_wrap.c - backends that wrap another one: trace, whose file is read here, and faulty, rule by
 * rule.
 */
#include "backends/trace/trace_file.h"
#include "core/base/option.h"
#include "core/registry/registry.h"
#include "tests/support/job.h"
#include "tests/support/scenario.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 3 };

static char trace_path[64];

static void set_trace_file(void)
{
	snprintf(trace_path, sizeof trace_path, "wrap-%d.json", (int)getpid());
	setenv("TESSERA_TRACE_FILE", trace_path, 1);
}

/* ---- trace ----------------------------------------------------------------------------------- */

static json_t *load_events(void)
{
	json_error_t why;
	json_t *root = json_load_file(trace_path, JSON_REJECT_DUPLICATES, &why), *list;

	ck_assert_msg(root != NULL, "%s: line %d: %s", trace_path, why.line, why.text);
	list = json_incref(json_object_get(root, "traceEvents"));
	ck_assert(json_is_array(list));
	json_decref(root);
	return list;
}

static double get_event_number(const json_t *event, const char *key)
{
	const json_t *at = json_object_get(event, key);

	if (!at)
		at = json_object_get(json_object_get(event, "args"), key);
	ck_assert_msg(json_is_number(at), "no number %s", key);
	return json_number_value(at);
}

static bool is_call_event(const json_t *event, int rank)
{
	return !strcmp(json_string_value(json_object_get(event, "ph")), "X") &&
	       (rank < 0 || (int)get_event_number(event, "pid") == rank);
}

/* Returns the times when the first `n` calls of a rank began and ended. */
static int find_call_times(json_t *list, int rank, double *begin, double *end, int n)
{
	json_t *event;
	size_t i;
	int found = 0;

	json_array_foreach(list, i, event) {
		int call = is_call_event(event, rank) ? (int)get_event_number(event, "call") : 0;

		if (call < 1 || call > n)
			continue;
		begin[call - 1] = get_event_number(event, "ts");
		end[call - 1] = begin[call - 1] + get_event_number(event, "dur");
		found++;
	}
	return found;
}

/* Checks that clocks are aligned: no rank completes a sum before all have begun it. */
static void expect_calls_overlap(json_t *list, int ncalls)
{
	double begin[RANKS][100], end[RANKS][100];

	for (int r = 0; r < RANKS; r++)
		ck_assert_int_eq(find_call_times(list, r, begin[r], end[r], ncalls), ncalls);
	for (int i = 0; i < ncalls; i++)
		for (int a = 0; a < RANKS; a++)
			for (int b = 0; b < RANKS; b++)
				ck_assert_msg(end[a][i] >= begin[b][i],
				              "call %d: rank %d ends at %f, rank %d begins at %f",
				              i + 1, a, end[a][i], b, begin[b][i]);
}

static void check_trace(const char *backend)
{
	static struct test_job j;
	json_t *list, *event;
	size_t i;

	job_run_self(&j, RANKS, backend, "30", "calls", "50");
	ck_assert_msg(j.status == 0, "%s: %s", backend, j.text);
	list = load_events();
	expect_calls_overlap(list, 50);
	json_array_foreach(list, i, event) {
		json_t *args = json_object_get(event, "args");

		if (!is_call_event(event, -1))
			continue;
		ck_assert_str_eq(json_string_value(json_object_get(event, "name")), "all_reduce");
		ck_assert_str_eq(json_string_value(json_object_get(args, "where")), "a.call");
		ck_assert(get_event_number(event, "bytes") == 400);
	}
	json_decref(list);
	unlink(trace_path);
}

START_TEST(traces_each_call_of_each_rank)
{
	set_trace_file();
	check_trace("trace:shm");
	check_trace("trace:faulty:shm");
	if (HAVE_GLOO)
		check_trace("trace:gloo");
}
END_TEST

static tess_status run_calls_on_thread(struct tess_world *w, void *arg)
{
	(void)arg;
	return scenario_run(w, "calls", "50");
}

START_TEST(traces_threads)
{
	json_t *list;

	set_trace_file();
	setenv("TESSERA_BACKEND", "trace:loopback", 1);
	spawn_ranks(RANKS, run_calls_on_thread, NULL);
	list = load_events();
	expect_calls_overlap(list, 50);
	json_decref(list);
	unlink(trace_path);
}
END_TEST

/*
 * Checks that overlapping calls are in different rows: in a row, each begins after the last has
 * ended.
 */
START_TEST(puts_overlapping_calls_into_lanes)
{
	static struct test_job j;
	double end[RANKS][64] = { { 0 } };
	json_t *list, *event;
	int lanes = 0, turn = 0;
	size_t i;

	set_trace_file();
	job_run_self(&j, RANKS, "trace:shm", "30", "several", "0");
	ck_assert_msg(j.status == 0, "%s", j.text);
	list = load_events();
	json_array_foreach(list, i, event) {
		int rank = (int)get_event_number(event, "pid"),
		    lane = (int)get_event_number(event, "tid");
		double ts;

		if (!is_call_event(event, -1))
			continue;
		ts = get_event_number(event, "ts");
		ck_assert_int_lt(lane, 64);
		ck_assert_msg(ts >= end[rank][lane] - 0.001, "event %d of lane %d", turn, lane);
		end[rank][lane] = ts + get_event_number(event, "dur");
		lanes = lane > lanes ? lane : lanes;
		turn++;
	}
	ck_assert_int_ge(lanes, 3);
	json_decref(list);
	unlink(trace_path);
}
END_TEST

START_TEST(keeps_events_of_a_killed_rank)
{
	static struct test_job j;
	double begin[400], end[400];
	json_t *list;

	set_trace_file();
	setenv("TESSERA_FAULTY", "every=20,do=delay:2ms;rank=1,call=300,do=kill", 1);
	job_run_self(&j, RANKS, "trace:faulty:shm", "10", "calls", "400");
	ck_assert_int_eq(j.status, 128 + SIGKILL);
	list = load_events();
	ck_assert_int_gt(find_call_times(list, 1, begin, end, 400), 20);
	ck_assert_int_ge(find_call_times(list, 0, begin, end, 400), 299);
	ck_assert_int_ge(find_call_times(list, 2, begin, end, 400), 299);
	json_decref(list);
	unlink(trace_path);
}
END_TEST

START_TEST(says_where_it_cannot_write)
{
	static struct test_job j;

	setenv("TESSERA_TRACE_FILE", "/nonexistent/trace", 1);
	job_run_self(&j, RANKS, "trace:shm", "5", "calls", "1");
	ck_assert_int_eq(j.status, 1);
	expect_part(j.text, "/nonexistent/trace");
	expect_part(j.text, "TESSERA_TRACE_FILE");
}
END_TEST

START_TEST(leaves_what_is_no_file)
{
	static struct test_job j;
	struct stat about;

	set_trace_file();
	ck_assert_int_eq(mkfifo(trace_path, 0600), 0);
	job_run_self(&j, RANKS, "trace:shm", "5", "calls", "1");
	ck_assert_int_eq(j.status, 1);
	expect_part(j.text, "TESSERA_TRACE_FILE");
	ck_assert(!lstat(trace_path, &about) && S_ISFIFO(about.st_mode));
	unlink(trace_path);
}
END_TEST

/* Checks that a write cut off anywhere is repaired by the next one; at most one event is lost. */
START_TEST(repairs_a_file)
{
	static const char more[] = ",\n{\"a\":2},\n{\"a\":3,\"s\":\"x\"}", last[] = ",\n{\"a\":4}";
	off_t whole, first;
	struct stat st;
	int fd;

	set_trace_file();
	fd = trace_file_create(trace_path, "{\"a\":1}");
	ck_assert_int_ge(fd, 0);
	fstat(fd, &st);
	first = st.st_size;
	ck_assert(trace_file_append(fd, more, sizeof more - 1, 0));
	fstat(fd, &st);
	whole = st.st_size;
	for (off_t cut = whole; cut > first + 3; cut--) {
		json_t *list;

		close(fd);
		fd = trace_file_create(trace_path, "{\"a\":1}");
		ck_assert(trace_file_append(fd, more, sizeof more - 1, 0));
		ck_assert_int_eq(ftruncate(fd, cut), 0);
		ck_assert(trace_file_append(fd, last, sizeof last - 1, 0));
		list = load_events();
		ck_assert_uint_ge(json_array_size(list), 2);
		ck_assert(get_event_number(json_array_get(list, json_array_size(list) - 1), "a") ==
		          4);
		json_decref(list);
	}
	close(fd);
	unlink(trace_path);
}
END_TEST

/* ---- faulty ---------------------------------------------------------------------------------- */

/* Checks that a job of "calls 50" with these rules ends with `status` and prints `text`. */
static void expect_end_by_rules(const char *rules, const char *backend, const char *timeout,
                                int status, const char *text)
{
	static struct test_job j;

	setenv("TESSERA_FAULTY", rules, 1);
	job_run_self(&j, RANKS, backend, timeout, "calls", "50");
	ck_assert_msg(j.status == status, "%s: status %d: %s", rules, j.status, j.text);
	ck_assert_msg(!text || strstr(j.text, text), "%s: no \"%s\" in: %s", rules, text, j.text);
}

START_TEST(does_what_rules_say)
{
	expect_end_by_rules("", "faulty:shm", "10", 0, NULL);
	expect_end_by_rules("rank=2,call=17,do=kill", "faulty:shm", "10", 128 + SIGKILL, "rank 2");
	expect_end_by_rules("rank=2,call=17,do=kill,at=inside", "faulty:shm", "10", 128 + SIGKILL,
	                    "rank 2");
	expect_end_by_rules("rank=2,call=17,do=kill,at=after", "faulty:shm", "10", 128 + SIGKILL,
	                    "rank 2");
	expect_end_by_rules("rank=0,call=3,do=exit:7", "faulty:shm", "10", 7, "rank 0");
	expect_end_by_rules("rank=1,every=10,do=delay:5ms;rank=0,call=0,do=delay:50ms",
	                    "faulty:shm", "10", 0, NULL);
	expect_end_by_rules("rank=1,call=5,do=fail", "faulty:shm", "10", 1,
	                    "rank 1 failed by the rule");
	expect_end_by_rules("rank=1,call=5,do=drop", "faulty:shm", "1", 1, "deadline");
	expect_end_by_rules("rank=1,call=5,do=stop", "faulty:shm", "1", 1, "rank 1");
	expect_end_by_rules("rank=1,call=5,where=a.call,kind=all_reduce,do=fail", "faulty:shm",
	                    "10", 1, "call 5");
	expect_end_by_rules("rank=1,where=elsewhere,do=fail;kind=gather,do=fail", "faulty:shm",
	                    "10", 0, NULL);
}
END_TEST

/*
 * Checks that shm and loopback compare what the group cannot see; other backends wait for the
 * deadline.
 */
START_TEST(makes_calls_differ)
{
	expect_end_by_rules("rank=1,call=5,do=mismatch:count", "faulty:shm", "10", 1,
	                    "all_reduce of 99");
	expect_end_by_rules("rank=1,call=5,do=mismatch:op", "faulty:shm", "10", 1, "max");
	expect_end_by_rules("rank=1,call=5,do=mismatch:dtype", "faulty:shm", "10", 1, "i32");
	expect_end_by_rules("rank=1,call=5,do=mismatch:kind", "faulty:shm", "10", 1, "barrier");
	if (HAVE_GLOO)
		expect_end_by_rules("rank=1,call=5,do=mismatch:count", "faulty:gloo", "1", 1,
		                    "deadline");
}
END_TEST

/* Checks that equal seeds give equal calls, and another seed different calls. */
START_TEST(chance_depends_on_the_seed)
{
	static struct test_job a, b, c;

	setenv("TESSERA_FAULTY", "rank=1,chance=0.1,do=exit:9", 1);
	setenv("TESSERA_LOG", "warn,faulty=info", 1);
	job_run_self(&a, RANKS, "faulty:shm", "10", "calls", "500");
	job_run_self(&b, RANKS, "faulty:shm", "10", "calls", "500");
	setenv("TESSERA_FAULTY_SEED", "3", 1);
	job_run_self(&c, RANKS, "faulty:shm", "10", "calls", "500");
	for (int i = 0; i < 3; i++) {
		const char *text = (i == 0 ? a : i == 1 ? b : c).text;

		expect_part(text, "rank 1, call ");
	}
	ck_assert_int_eq(atoi(strstr(a.text, "rank 1, call ") + 13),
	                 atoi(strstr(b.text, "rank 1, call ") + 13));
	ck_assert_int_ne(atoi(strstr(a.text, "rank 1, call ") + 13),
	                 atoi(strstr(c.text, "rank 1, call ") + 13));
}
END_TEST

/* Kills ranks that are threads: a killed one makes no further call, and the process continues. */
static void expect_threads_end(const char *rules, const char *says)
{
	setenv("TESSERA_BACKEND", "faulty:loopback", 1);
	setenv("TESSERA_TIMEOUT", "1", 1);
	setenv("TESSERA_FAULTY", rules, 1);
	ck_assert_int_lt(tess_world_spawn(RANKS, run_calls_on_thread, NULL), 0);
	expect_part(tess_error(), says);
}

START_TEST(ends_threads)
{
	expect_threads_end("rank=2,call=17,do=kill;rank=1,call=40,do=stop", "rank 2");
}
END_TEST

START_TEST(stops_threads)
{
	expect_threads_end("rank=1,call=40,do=stop", "call 40");
}
END_TEST

static void expect_backend_refused(const char *name, tess_status why, const char *says)
{
	const struct tess_backend *b;

	ck_assert_int_eq(tess_plugin_find_backend(name, &b), why);
	ck_assert_msg(strstr(tess_error(), says), "%s: %s", name, tess_error());
}

START_TEST(refuses_bad_rules)
{
	static const char *const bad[][2] = {
		{ "do=explode", "delay:TIME" },
		{ "rank=1", "do=" },
		{ "rank=x,do=kill", "rank is a number" },
		{ "rank=1,call=2,do=kill;chance=2,do=drop", "chance is a number from 0 to 1" },
		{ "at=later,do=kill", "before, inside or after" },
		{ "kind=sum,do=kill", "kind is a collective" },
		{ "do=delay:5", "delay:TIME" },
		{ "when=now,do=kill", "the keys are" },
		{ "kill", "key=value" },
		{ "call=0,do=drop", "opening a group" },
		{ "at=after,do=drop", "before it starts" },
		{ "every=0,do=kill", "from 1" },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		setenv("TESSERA_FAULTY", bad[i][0], 1);
		expect_backend_refused("faulty:loopback", TESS_EINVAL, bad[i][1]);
	}
	setenv("TESSERA_FAULTY", "", 1);
	setenv("TESSERA_FAULTY_SEED", "many", 1);
	expect_backend_refused("faulty:loopback", TESS_EINVAL, "TESSERA_FAULTY_SEED");
}
END_TEST

/* ---- names ----------------------------------------------------------------------------------- */

START_TEST(refuses_bad_wrappers)
{
	const struct tess_backend *a, *b;

	expect_backend_refused("trace", TESS_EINVAL, "trace:NAME");
	expect_backend_refused("trace:", TESS_EINVAL, "");
	expect_backend_refused("loopback:shm", TESS_EINVAL, "");
	expect_backend_refused("trace:trace:loopback", TESS_EINVAL, "");
	expect_backend_refused("trace:faulty:trace:loopback", TESS_EINVAL, "cannot wrap itself");
	expect_backend_refused("trace:nothing", TESS_ENOENT, "");
	expect_backend_refused("trace:loopbak", TESS_ENOENT, "did you mean loopback");
	ck_assert_int_eq(tess_plugin_find_backend("trace:loopback", &a), TESS_OK);
	ck_assert_int_eq(tess_plugin_find_backend("trace:loopback", &b), TESS_OK);
	ck_assert_ptr_eq(a, b);
	ck_assert_str_eq(a->name, "trace:loopback");
	ck_assert_int_eq(a->threads, 1);
	expect_backend_refused("trace:shm", TESS_EINVAL, "already");
}
END_TEST

int main(int argc, char **argv)
{
	if (argc > 1)
		return scenario_main(argc, argv);
	return suite_main("wrap", (const TTest *const[]){
					  traces_each_call_of_each_rank,
					  traces_threads,
					  puts_overlapping_calls_into_lanes,
					  keeps_events_of_a_killed_rank,
					  says_where_it_cannot_write,
					  leaves_what_is_no_file,
					  repairs_a_file,
					  does_what_rules_say,
					  makes_calls_differ,
					  chance_depends_on_the_seed,
					  ends_threads,
					  stops_threads,
					  refuses_bad_rules,
					  refuses_bad_wrappers,
					  NULL,
				  });
}

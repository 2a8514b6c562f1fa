/* test_flight.c - the flight recorder: the files that ranks write, and the launcher's report. */
#include "core/base/clock.h"
#include "core/base/json.h"
#include "core/base/status.h"
#include "core/flight/flight.h"
#include "core/flight/straggler.h"
#include "flight.h"
#include "tests/support/entries.h"
#include "tests/support/job.h"
#include "tests/support/suite.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <tessera/tessera.h>
#include <unistd.h>

static char dir[] = "/tmp/tessera-flight-XXXXXX";

static void make_flight_dir(void)
{
	ck_assert(mkdtemp(dir) != NULL);
}

static void remove_flight_dir(void)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0);
	closedir(d);
	ck_assert_int_eq(rmdir(dir), 0);
}

static int count_flight_files(void)
{
	return count_dir_entries(dir) - 2;
}

static json_t *load_record(const char *name)
{
	char path[128];
	struct stat st;
	json_t *j;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	ck_assert_msg(!tess_json_load(path, 4 << 20, &j), "%s: %s", path, tess_error());
	ck_assert(!stat(path, &st) && (st.st_mode & 0777) == 0600);
	return j;
}

static void wait_for_flight_file(const char *name)
{
	char path[128];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	for (int i = 0; i < 2000 && access(path, F_OK); i++)
		usleep(10000);
}

static json_int_t get_json_integer(const json_t *o, const char *key)
{
	const json_t *n = json_object_get(o, key);

	ck_assert_msg(json_is_integer(n), "no number %s", key);
	return json_integer_value(n);
}

static const char *get_json_string(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	ck_assert_msg(s != NULL, "no text %s", key);
	return s;
}

/* ---- one record ------------------------------------------------------------------------------ */

static const struct tess_members *find_no_members(void *arg, uint32_t id)
{
	(void)arg;
	(void)id;
	return NULL;
}

static const struct tess_members_lookup no_members = { .find = find_no_members };
static const char tp[TESS_MEMBERS_KEY] = "tp", world[TESS_MEMBERS_KEY] = "world";

static struct tess_call_desc *make_call_desc(uint64_t call, uint64_t *storage)
{
	const struct tess_call_key key = { .number = call };
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = TESS_ALL_REDUCE,
		                     .dtype = TESS_F32,
		                     .op = TESS_MAX,
		                     .count = call,
		                     .where = "layers.0" };

	tess_call_desc_write((void *)storage, &c, &key, 4);
	return (void *)storage;
}

/*
 * Checks that the last 256 of 700 calls are kept, in order, where every third is unfinished and
 * every fifth has failed.
 */
START_TEST(keeps_the_last)
{
	uint64_t storage[256];
	struct tess_flight *f;
	json_t *j, *calls;

	ck_assert(!tess_flight_open(dir, NULL, &f));
	for (uint64_t i = 1; i <= 700; i++) {
		uint64_t at = tess_flight_number(f);

		tess_flight_begin(f, at, tp, make_call_desc(i, storage), tess_now());
		if (i % 3)
			tess_flight_end(f, at, i % 5 ? TESS_OK : TESS_EPEER, tess_now());
	}
	tess_flight_end(f, 10, TESS_OK, tess_now()); /* overwritten by another call */
	ck_assert(!tess_flight_write(f, json_pack("{s:i}", "rank", 3), &no_members));
	tess_flight_close(f);
	j = load_record("rank-3.json");
	calls = json_object_get(j, "calls");
	ck_assert_int_eq(get_json_integer(j, "made"), 700);
	ck_assert_uint_eq(json_array_size(calls), TESS_FLIGHT_CALLS);
	for (size_t i = 0; i < TESS_FLIGHT_CALLS; i++) {
		const json_t *c = json_array_get(calls, i);
		json_int_t n = 700 - TESS_FLIGHT_CALLS + 1 + (json_int_t)i;
		const char *state = n % 3 == 0 ? "started" : n % 5 ? "finished" : "failed";

		ck_assert_int_eq(get_json_integer(c, "number"), n);
		ck_assert_int_eq(get_json_integer(c, "count"), n);
		ck_assert_str_eq(get_json_string(c, "state"), state);
		ck_assert_str_eq(get_json_string(c, "group"), "tp");
		ck_assert_str_eq(get_json_string(c, "op"), "max");
		ck_assert_str_eq(get_json_string(c, "where"), "layers.0");
		if (n % 3)
			ck_assert_int_ge(get_json_integer(c, state),
			                 get_json_integer(c, "started"));
	}
	json_decref(j);
	ck_assert_int_eq(count_flight_files(), 1);
}
END_TEST

/* Checks that lists that do not fit are left out, and do not damage the name of the place. */
START_TEST(keeps_long_lists_out)
{
	enum { RANKS = 100 };
	static uint64_t storage[1024], list[RANKS];
	const struct tess_call_key key = { .number = 1 };
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = TESS_ALL_TO_ALL,
		                     .dtype = TESS_I8,
		                     .count = 77,
		                     .send_counts = list,
		                     .recv_counts = list,
		                     .where = "experts.17:route" };
	struct tess_flight *f;
	const json_t *call;
	json_t *j;

	ck_assert(!tess_flight_open(dir, NULL, &f));
	tess_call_desc_write((void *)storage, &c, &key, RANKS);
	tess_flight_begin(f, tess_flight_number(f), world, (void *)storage, 1);
	ck_assert(!tess_flight_write(f, json_pack("{s:i}", "rank", 0), &no_members));
	tess_flight_close(f);
	j = load_record("rank-0.json");
	call = json_array_get(json_object_get(j, "calls"), 0);
	ck_assert_str_eq(get_json_string(call, "where"), "experts.17:route");
	ck_assert_int_eq(get_json_integer(call, "count"), 77);
	ck_assert(!json_object_get(call, "send_counts"));
	json_decref(j);
}
END_TEST

static void *record_calls(void *arg)
{
	struct tess_flight *f = arg;
	uint64_t storage[256];

	for (int64_t i = 1; i <= 20000; i++) {
		uint64_t at = tess_flight_number(f);

		tess_flight_begin(f, at, world, make_call_desc((uint64_t)i, storage), i);
		tess_flight_end(f, at, TESS_OK, i + 1);
	}
	return NULL;
}

/* Checks that entries are never torn, though two threads make calls while they are read. */
START_TEST(is_written_meanwhile)
{
	struct tess_flight *f;
	pthread_t thread[2];

	ck_assert(!tess_flight_open(dir, NULL, &f));
	for (int i = 0; i < 2; i++)
		ck_assert(!pthread_create(&thread[i], NULL, record_calls, f));
	for (int i = 0; i < 10; i++) {
		const json_t *c;
		json_t *j;
		size_t k;

		ck_assert(!tess_flight_write(f, json_pack("{s:i}", "rank", 0), &no_members));
		j = load_record("rank-0.json");
		json_array_foreach(json_object_get(j, "calls"), k, c)
			ck_assert(get_json_integer(c, "count") == get_json_integer(c, "number"));
		json_decref(j);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	tess_flight_close(f);
	ck_assert_int_eq(count_flight_files(), 1);
}
END_TEST

START_TEST(is_off)
{
	struct tess_flight *f = (void *)1;

	ck_assert(!tess_flight_open("off", NULL, &f) && !f);
	ck_assert(!tess_flight_open("", NULL, &f) && !f);
	ck_assert_uint_eq(tess_flight_number(f), 0);
	tess_flight_begin(f, 0, world, NULL, 0);
	tess_flight_end(f, 0, TESS_OK, 0);
	ck_assert_int_eq(tess_flight_open("/nowhere/records", NULL, &f), TESS_EIO);
	expect_part(tess_error(), "TESSERA_FLIGHT: the directory /nowhere/records");
}
END_TEST

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Runs `role` on 4 ranks; returns the merged record, or NULL if none was kept. */
static json_t *run_flight_job(struct test_job *j, const char *role)
{
	char *argv[] = { "rank", (char *)(uintptr_t)role, NULL };
	const struct tess_launch how = {
		.nranks = 4, .path = "/proc/self/exe", .argv = argv, .timeout = "60", .flight = dir
	};
	char path[128];

	setenv("XDG_RUNTIME_DIR", dir, 1); /* sockets and the directory of records */
	job_run(j, &how);
	snprintf(path, sizeof path, "%s/tessera-%u", dir, (unsigned)geteuid());
	ck_assert_msg(!rmdir(path), "something is left in %s; %s", path, j->text);
	snprintf(path, sizeof path, "%s/flight.json", dir);
	return access(path, F_OK) ? NULL : load_record("flight.json");
}

/* The record of each role: the straggler and the message. */
static const struct {
	const char *role;
	int straggler; /* -1: none */
	const char *says[3];
} expected_records[] = {
	{ "sleep",
	  2,
	  { "rank 2 is the straggler: its last call was all_reduce of 64 f32 (sum), call 300, at "
	    "layers.299",
	    "; ranks 0, 1 and 3 are in barrier, call 301, at the.end" } },
	{ "kill",
	  2,
	  { "rank 2 was killed by signal 9 (Killed) and left no record",
	    "call 300, at layers.299; ranks 0, 1 and 3 are in barrier, call 301, at the.end" } },
	{ "stop",
	  2,
	  { "rank 2 ", /* may still write its record when it is killed */
	    "call 300, at layers.299; ranks 0, 1 and 3 are in barrier, call 301, at the.end" } },
	{ "differ",
	  -1,
	  { "no rank is a straggler; ranks 0, 1 and 3 are in barrier, call 301, at the.end",
	    "; rank 2 is in all_reduce of 7 f32 (sum), call 301, at the.odd" } },
	{ "message",
	  2,
	  { "rank 2 is the straggler: its last call was all_reduce of 64 f32 (sum), call 300, at "
	    "layers.299",
	    "; ranks 0 and 1 are in barrier, call 301, at the.end",
	    "; rank 3 is in recv of 5 f32 from rank 2, message 1, at from.2" } },
	{ "chain",
	  2,
	  { "rank 2 is the straggler: its last call was all_reduce of 64 f32 (sum), call 30",
	    "; ranks 0 and 1 are in barrier, call 30",
	    "; rank 3 is in barrier, call 1 in group odd/1 of ranks 1, 3, at among.odd" } },
	{ "circle",
	  -1,
	  { "ranks wait for each other", "rank 0 is in recv of 1 f32 from rank 1, message 1, at a",
	    "rank 1 is in recv of 1 f32 from rank 0, message 1, at b" } },
};

START_TEST(names_the_straggler)
{
	struct test_job j;
	json_t *all = run_flight_job(&j, expected_records[_i].role);
	const json_t *straggler, *records, *r;
	size_t i;

	ck_assert_int_ne(j.status, 0);
	ck_assert_msg(all != NULL, "no record; %s", j.text);
	for (int k = 0; k < 3 && expected_records[_i].says[k]; k++) {
		ck_assert_msg(
			strstr(get_json_string(all, "sentence"), expected_records[_i].says[k]),
			"%s: lacks \"%s\": %s", expected_records[_i].role,
			expected_records[_i].says[k], get_json_string(all, "sentence"));
		expect_part(j.text, get_json_string(all, "sentence"));
	}
	if (!strcmp(expected_records[_i].role, "kill")) /* closing the world keeps the message */
		ck_assert_int_eq(job_count(&j, "failure: rank 2 "), 3);
	straggler = json_object_get(all, "straggler");
	ck_assert(expected_records[_i].straggler < 0 ? json_is_null(straggler)
	                                             : json_integer_value(straggler) == 2);
	records = json_object_get(all, "records");
	ck_assert_uint_eq(json_array_size(records), 4);
	json_array_foreach(records, i, r) {
		ck_assert_int_eq(get_json_integer(r, "rank"), (json_int_t)i);
		if (json_object_get(r, "lost"))
			continue;
		ck_assert_str_ne(get_json_string(r, "failure"), "");
		ck_assert_uint_eq(json_array_size(json_object_get(r, "calls")), 256);
	}
	json_decref(all);
	ck_assert_int_eq(count_flight_files(), 1);
}
END_TEST

START_TEST(own_error_makes_no_straggler)
{
	struct test_job j;
	json_t *all = run_flight_job(&j, "fail");

	ck_assert_int_eq(j.status, 1);
	expect_part(j.text, "no such file");
	ck_assert_int_eq(job_count(&j, "launch:"), 1);
	ck_assert_int_eq(job_count(&j, "barrier"), 0);
	json_decref(all);
}
END_TEST

START_TEST(ignores_a_process_without_rank)
{
	struct test_job j;
	json_t *all = run_flight_job(&j, "no.rank");

	ck_assert_int_eq(j.status, 3);
	ck_assert_int_eq(job_count(&j, "launch:"), 1);
	ck_assert_str_eq(get_json_string(all, "sentence"), "");
	json_decref(all);
}
END_TEST

START_TEST(success_leaves_nothing)
{
	struct test_job j;

	ck_assert(!run_flight_job(&j, "fine"));
	ck_assert_int_eq(j.status, 0);
	ck_assert_int_eq(job_count(&j, "launch"), 0);
	ck_assert_int_eq(count_flight_files(), 0);
}
END_TEST

/* Makes each rank wait for a signal; rank 2 makes one call less. */
START_TEST(a_running_job_gets_sigusr1)
{
	char *argv[] = { "rank", "hold", NULL };
	const struct tess_launch how = {
		.nranks = 4, .path = "/proc/self/exe", .argv = argv, .flight = dir
	};
	char go[128];
	struct test_job j;
	json_t *all;

	setenv("GO", dir, 1);
	job_start(&j, &how);
	job_await(&j, "[2] holds");
	job_await(&j, "[0] waits");
	job_await(&j, "[1] waits");
	job_await(&j, "[3] waits");
	usleep(50000);
	kill(j.pid, SIGUSR1);
	job_await(
		&j,
		"launch: warning: rank 2 is the straggler: its last call was all_reduce of 64 f32 "
		"(sum), call 300, at layers.299; ranks 0, 1 and 3 are in barrier, call 301");
	snprintf(go, sizeof go, "%s/go", dir);
	fclose(fopen(go, "w"));
	job_finish(&j);
	ck_assert_int_eq(j.status, 0);
	all = load_record("flight.json");
	for (size_t r = 0; r < 4; r++) {
		const json_t *record = json_array_get(json_object_get(all, "records"), r),
			     *calls = json_object_get(record, "calls");

		ck_assert_uint_eq(json_array_size(calls), 256);
		ck_assert_str_eq(get_json_string(json_array_get(calls, 255), "state"),
		                 r == 2 ? "finished" : "started");
		ck_assert_str_eq(get_json_string(json_array_get(calls, 254), "state"), "finished");
		ck_assert(!json_object_get(record, "failure"));
	}
	json_decref(all);
	ck_assert_int_eq(count_flight_files(), 2);
}
END_TEST

START_TEST(no_rank_is_in_a_call)
{
	char *argv[] = { "sh", "-c", "echo up; sleep 1", NULL };
	const struct tess_launch how = { .nranks = 2, .argv = argv };
	struct test_job j;

	job_start(&j, &how);
	job_await(&j, "[0] up");
	kill(j.pid, SIGUSR1);
	job_finish(&j);
	ck_assert_int_eq(j.status, 0);
	ck_assert_int_eq(job_count(&j, "launch: warning: no rank is in a call"), 1);
}
END_TEST

/*
 * Checks that ranks not started by tessera launch write their own files, even if their program
 * never returns.
 */
START_TEST(a_rank_gets_sigusr1)
{
	pid_t pid[2];
	json_t *j;

	setenv("TESSERA_FLIGHT", dir, 1);
	setenv("TESSERA_JOB", dir + strlen("/tmp/"), 1);
	setenv("WORLD_SIZE", "2", 1);
	for (int r = 0; r < 2; r++) {
		pid[r] = fork();
		if (pid[r])
			continue;
		setenv("RANK", r ? "1" : "0", 1);
		execl("/proc/self/exe", "rank", "spin", NULL);
		_exit(127);
	}
	wait_for_flight_file("ready");
	kill(pid[0], SIGUSR1);
	wait_for_flight_file("rank-0.json");
	j = load_record("rank-0.json");
	ck_assert_int_eq(get_json_integer(j, "process"), pid[0]);
	ck_assert_int_eq(get_json_integer(j, "made"), 300);
	json_decref(j);
	for (int r = 0; r < 2; r++)
		kill(pid[r], SIGKILL);
}
END_TEST

START_TEST(handlers_of_programs_stay)
{
	struct test_job j;

	ck_assert(!run_flight_job(&j, "handler"));
	ck_assert_int_eq(j.status, 0);
	ck_assert_int_eq(job_count(&j, "handled SIGUSR1"), 4);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

static tess_status fail_on_rank_1(struct tess_world *w, void *arg)
{
	tess_status st = tess_barrier(tess_world_group(w), "first");
	atomic_int *through = arg;

	if (st)
		return st;
	atomic_fetch_add(through, 1);
	if (tess_world_rank(w) != 1)
		return tess_barrier(tess_world_group(w), "second");
	while (atomic_load(through) < 3)
		usleep(1000);
	usleep(100000); /* the other ranks are in the second call */
	return tess_fail(TESS_EINVAL, "no more");
}

START_TEST(threads_leave_records)
{
	struct tess_lost_rank lost[3] = { { .how = "" } };
	char sentence[1024], path[128];
	atomic_int through = 0;
	json_t *all;

	setenv("TESSERA_FLIGHT", dir, 1);
	ck_assert_int_eq(tess_world_spawn(3, fail_on_rank_1, &through), TESS_EINVAL);
	ck_assert(!tess_straggler_find(dir, 3, lost, &all, sentence, sizeof sentence));
	expect_part(sentence,
	            "rank 1 is the straggler: its last call was barrier, call 1, at first");
	json_decref(all);

	/* an invalid record is ignored */
	snprintf(path, sizeof path, "%s/rank-0.json", dir);
	fclose(fopen(path, "w"));
	snprintf(lost[0].how, sizeof lost[0].how, "went away");
	ck_assert(!tess_straggler_find(dir, 3, lost, &all, sentence, sizeof sentence));
	expect_part(sentence, "rank 0 went away and left no record");
	json_decref(all);
	ck_assert_int_eq(count_flight_files(), 3);
}
END_TEST

/* Writes the record of a rank with one call; channel 0: not a message with rank `peer`. */
static void write_flight_record(int rank, const char *kind, int channel, int number, int peer,
                                const char *state)
{
	char path[128];
	json_t *j = json_pack(
		"{s:i, s:[{s:s, s:[i, i, i, i]}], s:[{s:s, s:s, s:i, s:i, s:i, s:s, s:s}]}", "rank",
		rank, "groups", "name", "world", "ranks", 0, 1, 2, 3, "calls", "kind", kind,
		"group", "world", "channel", channel, "number", number, "peer", peer, "state",
		state, "text", kind);

	snprintf(path, sizeof path, "%s/rank-%d.json", dir, rank);
	ck_assert(j && !json_dump_file(j, path, 0));
	json_decref(j);
}

/* Lets rank 1 receive another message of rank 0, while rank 3 waits for a rank that has died. */
START_TEST(a_lost_rank_is_the_straggler)
{
	struct tess_lost_rank lost[4] = { [2] = { .how = "was killed" } };
	char sentence[1024];
	json_t *all;

	write_flight_record(0, "send", 2, 44, 1, "started");
	write_flight_record(1, "recv", 2, 43, 0, "started");
	write_flight_record(3, "recv", 12, 50, 2, "started");
	ck_assert(!tess_straggler_find(dir, 4, lost, &all, sentence, sizeof sentence));
	expect_part(sentence, "rank 2 was killed and left no record");
	ck_assert_int_eq(get_json_integer(all, "straggler"), 2);
	json_decref(all);
	ck_assert_int_eq(count_flight_files(), 3);
}
END_TEST

/*
 * Lets rank 0, after call 2, open a group with rank 2, which is still in call 2; the record has no
 * openings.
 */
START_TEST(a_rank_in_an_older_call_is_the_straggler)
{
	static const char *const states[] = { "finished", "started", "started", "started" };
	struct tess_lost_rank lost[4] = { { .how = "" } };
	char sentence[1024];
	json_t *all;

	for (int r = 0; r < 4; r++)
		write_flight_record(r, "all_gather", 0, r % 2 ? 3 : 2, 0, states[r]);
	ck_assert(!tess_straggler_find(dir, 4, lost, &all, sentence, sizeof sentence));
	expect_part(sentence, "rank 2 is the straggler: it is in all_gather");
	json_decref(all);
	ck_assert_int_eq(count_flight_files(), 4);
}
END_TEST

/* Requests the records on rank 0, and waits until all are written. */
static tess_status signal_for_records(struct tess_world *w, void *arg)
{
	tess_status st = tess_barrier(tess_world_group(w), "first");

	(void)arg;
	if (!st && !tess_world_rank(w)) {
		kill(getpid(), SIGUSR1);
		wait_for_flight_file("rank-0.json");
		wait_for_flight_file("rank-1.json");
		wait_for_flight_file("rank-2.json");
	}
	return st ? st : tess_barrier(tess_world_group(w), "second");
}

START_TEST(threads_get_sigusr1)
{
	json_t *j;

	setenv("TESSERA_FLIGHT", dir, 1);
	ck_assert_msg(!tess_world_spawn(3, signal_for_records, NULL), "%s", tess_error());
	j = load_record("rank-0.json");
	ck_assert_int_eq(get_json_integer(j, "made"), 1);
	ck_assert_int_eq(get_json_integer(j, "ranks"), 3);
	json_decref(j);
	ck_assert_int_eq(count_flight_files(), 3);
}
END_TEST

int main(int argc, char **argv)
{
	const TTest *const tests[] = { keeps_the_last,
		                       keeps_long_lists_out,
		                       is_written_meanwhile,
		                       is_off,
		                       own_error_makes_no_straggler,
		                       ignores_a_process_without_rank,
		                       success_leaves_nothing,
		                       a_running_job_gets_sigusr1,
		                       no_rank_is_in_a_call,
		                       a_rank_gets_sigusr1,
		                       handlers_of_programs_stay,
		                       threads_leave_records,
		                       a_lost_rank_is_the_straggler,
		                       a_rank_in_an_older_call_is_the_straggler,
		                       threads_get_sigusr1 };
	TCase *tcase;
	SRunner *runner;

	if (argc > 1)
		return flight_run_rank(argv[1]);
	tcase = suite_begin("flight", 120, &runner);
	tcase_add_checked_fixture(tcase, make_flight_dir, remove_flight_dir);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		tcase_add_test(tcase, tests[i]);
	tcase_add_loop_test(tcase, names_the_straggler, 0,
	                    sizeof expected_records / sizeof *expected_records);
	return suite_end(runner);
}

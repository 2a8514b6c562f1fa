/*
 * test_launch.c - tessera launch: output, first causes, exit statuses, signals, and no process left
 * running.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/world/world.h"
#include "tests/support/job.h"
#include "tests/support/suite.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void run_shell(struct test_job *j, int nranks, const char *script)
{
	job_start_shell(j, nranks, script, -1);
	job_finish(j);
}

/* Returns whether process `pid` runs; zombies do not. */
static bool is_process_alive(int pid)
{
	char path[64], line[256] = "";
	const char *state;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	f = fopen(path, "r");
	if (!f)
		return false;
	state = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
	fclose(f);
	return state && state[2] != 'Z';
}

/* Parses the pids of lines "[rank] pid N"; fails the test unless there are `n`. */
static void parse_pids(const struct test_job *j, int n, int *out)
{
	const char *at = j->text;

	for (int i = 0; i < n; i++) {
		at = strstr(at, "pid ");
		ck_assert(at && sscanf(at, "pid %d", &out[i]) == 1);
		at += 4;
	}
}

/* Waits until each of the ranks has printed `text`. */
static void await_ranks(struct test_job *j, int nranks, const char *text)
{
	char line[32];

	for (int r = 0; r < nranks; r++) {
		snprintf(line, sizeof line, "[%d] %s", r, text);
		job_await(j, line);
	}
}

/* Returns the first child of a process. */
static pid_t get_first_child(pid_t pid)
{
	char path[64];
	int child = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
	f = fopen(path, "r");
	ck_assert(f && fscanf(f, "%d", &child) == 1);
	fclose(f);
	return child;
}

static void expect_processes_gone(const int *pid, int n, int ms)
{
	int64_t until = tess_now() + ms * (int64_t)TESS_MS;

	for (int i = 0; i < n; i++)
		while (is_process_alive(pid[i])) {
			ck_assert_msg(tess_now() < until, "process %d is still running", pid[i]);
			usleep(10000);
		}
}

START_TEST(lines_have_a_prefix)
{
	struct test_job j;

	run_shell(&j, 3, "echo out; echo err >&2; printf 'no end'");
	ck_assert_int_eq(j.status, 0);
	for (int r = 0; r < 3; r++) {
		char text[32];

		snprintf(text, sizeof text, "[%d] out\n", r);
		ck_assert_int_eq(job_count(&j, text), 1);
		snprintf(text, sizeof text, "[%d] err\n", r);
		ck_assert_int_eq(job_count(&j, text), 1);
		snprintf(text, sizeof text, "[%d] no end\n", r);
		ck_assert_int_eq(job_count(&j, text), 1);
	}
}
END_TEST

START_TEST(long_lines_are_whole)
{
	struct test_job j;

	run_shell(&j, 2,
	          "head -c 5000 /dev/zero | tr '\\0' a; echo;"
	          "head -c 20000 /dev/zero | tr '\\0' b; echo");
	ck_assert_int_eq(j.status, 0);
	ck_assert_int_eq(job_count(&j, "a"), 10000);
	ck_assert_int_eq(job_count(&j, "b"), 40000);
	ck_assert_int_eq(job_count(&j, "] a"), 2);
	ck_assert_int_eq(job_count(&j, "] b"), 6); /* in pieces of 8 KiB */
}
END_TEST

START_TEST(ranks_may_stream)
{
	char *argv[] = { "sh", "-c",
		         "printf begin; sleep 0.2; printf ' end'; [ $RANK = 0 ] || exit 0", NULL };
	struct tess_launch how = { .nranks = 2, .argv = argv, .stream = true };
	struct test_job j;

	job_start(&j, &how);
	job_await(&j, "begin");
	ck_assert(!strstr(j.text, "end"));
	job_finish(&j);
	ck_assert_int_eq(job_count(&j, "[0]"), 0);
	ck_assert_int_eq(job_count(&j, "[1]"), 0);
	ck_assert_int_eq(job_count(&j, "begin"), 2);
	ck_assert_int_eq(job_count(&j, " end"), 2);
}
END_TEST

START_TEST(ranks_know_their_number)
{
	struct test_job j;

	setenv("RANK", "77", 1);
	setenv("WORLD_SIZE", "78", 1);
	run_shell(&j, 2,
	          "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE;"
	          "test -S $TESSERA_RENDEZVOUS");
	ck_assert_int_eq(j.status, 0);
	ck_assert_int_eq(job_count(&j, "[0] 0 of 2, 0 of 2\n"), 1);
	ck_assert_int_eq(job_count(&j, "[1] 1 of 2, 1 of 2\n"), 1);
}
END_TEST

/* Checks that every CPU has the same number of ranks, and that each rank runs on one. */
START_TEST(ranks_are_bound)
{
	char *argv[] = { "sh", "-c", "grep Cpus_allowed_list /proc/self/status", NULL };
	struct tess_launch how = { .argv = argv, .bind = "cpu" };
	cpu_set_t ours;
	struct test_job j;

	ck_assert(!sched_getaffinity(0, sizeof ours, &ours));
	if (CPU_COUNT(&ours) < 2 || CPU_COUNT(&ours) > 16)
		return; /* no choice, or more ranks than a test should start */
	how.nranks = 2 * CPU_COUNT(&ours);
	job_run(&j, &how);
	ck_assert_int_eq(j.status, 0);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		char text[40];

		snprintf(text, sizeof text, "list:\t%d\n", cpu);
		ck_assert_int_eq(job_count(&j, text), CPU_ISSET(cpu, &ours) ? 2 : 0);
	}
	how.bind = "socket";
	job_run(&j, &how);
	ck_assert_int_ne(j.status, 0);
	expect_part(j.text, "cannot be bound as \"socket\"");
}
END_TEST

START_TEST(only_rank_0_reads)
{
	struct test_job j;
	int fd[2];

	ck_assert(!pipe(fd) && write(fd[1], "hello\n", 6) == 6);
	dup2(fd[0], STDIN_FILENO);
	close(fd[1]);
	run_shell(&j, 2, "read line; echo \"<$line>\"");
	ck_assert_int_eq(job_count(&j, "[0] <hello>\n"), 1);
	ck_assert_int_eq(job_count(&j, "[1] <>\n"), 1);
}
END_TEST

/* The end of a job; `text` occurs in its output once. */
static const struct {
	int nranks;
	const char *script;
	int status;
	const char *text;
	double max_seconds;
} endings[] = {
	/* the first failure is the status */
	{ 3, "[ $RANK = 1 ] && exit 3; sleep 20; exit 4", 3, "rank 1 exited with status 3", 10 },
	{ 3, "[ $RANK = 2 ] && kill -9 $$; sleep 20", 128 + 9, "rank 2 was killed by signal 9",
	  10 },
	/* survivors have time for a last message */
	{ 2, "[ $RANK = 1 ] && exit 5; sleep 0.4; echo seen; exit 6", 5, "[0] seen\n", 30 },
	/* a stopped rank ends as well */
	{ 2, "[ $RANK = 1 ] && exit 9; kill -STOP $$; echo never", 9, "rank 1 exited", 5.4 },
	/* the launcher does not wait for a child of a rank, which holds the rank's pipe */
	{ 1, "sleep 8 & echo done", 0, "[0] done\n", 7 },
};

START_TEST(job_ends)
{
	struct test_job j;

	run_shell(&j, endings[_i].nranks, endings[_i].script);
	ck_assert_int_eq(j.status, endings[_i].status);
	ck_assert_int_eq(job_count(&j, endings[_i].text), 1);
	ck_assert(j.seconds < endings[_i].max_seconds);
}
END_TEST

START_TEST(ranks_that_ignore_sigterm_are_killed)
{
	struct test_job j;
	int pid[2];

	run_shell(
		&j, 2,
		"trap '' TERM; echo pid $$; [ $RANK = 1 ] && exit 9; while :; do sleep 0.1; done");
	ck_assert_int_eq(j.status, 9);
	ck_assert(j.seconds > 5.5 && j.seconds < 20);
	parse_pids(&j, 2, pid);
	expect_processes_gone(pid, 2, 0);
}
END_TEST

START_TEST(interrupt_is_for_rank_0)
{
	struct test_job j;

	job_start_shell(&j, 2,
	                "[ $RANK = 0 ] && trap 'echo text so far; exit 0' INT || trap '' INT;"
	                "echo up; while :; do sleep 0.05; done",
	                -1);
	await_ranks(&j, 2, "up");
	kill(j.pid, SIGINT);
	job_finish(&j);
	ck_assert_int_eq(j.status, 130);
	ck_assert_int_eq(job_count(&j, "[0] text so far\n"), 1);
	ck_assert_int_eq(job_count(&j, "error"), 0);
	ck_assert(j.seconds < 5);
}
END_TEST

START_TEST(terminate_ends_all)
{
	struct test_job j;
	int pid[2];

	job_start_shell(&j, 2, "echo pid $$; while :; do sleep 0.05; done", -1);
	await_ranks(&j, 2, "pid ");
	kill(j.pid, SIGTERM);
	job_finish(&j);
	ck_assert_int_eq(j.status, 128 + SIGTERM);
	parse_pids(&j, 2, pid);
	expect_processes_gone(pid, 2, 0);
}
END_TEST

START_TEST(output_is_not_read)
{
	struct test_job j;
	int pid[2], status;

	signal(SIGPIPE, SIG_DFL);
	job_start_shell(&j, 2, "echo pid $$; while sleep 0.01; do echo more; done", -1);
	await_ranks(&j, 2, "pid ");
	job_await(&j, "more");
	close(j.output);
	ck_assert_int_eq(waitpid(j.pid, &status, 0), j.pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGPIPE);
	parse_pids(&j, 2, pid);
	expect_processes_gone(pid, 2, 1000);
}
END_TEST

START_TEST(no_orphans)
{
	struct test_job j;
	int pid[3];

	job_start_shell(&j, 3, "echo pid $$; exec sleep 30", -1);
	await_ranks(&j, 3, "pid ");
	job_await(&j, "\n");
	kill(j.pid, SIGKILL);
	job_finish(&j);
	ck_assert_int_eq(j.status, -SIGKILL);
	parse_pids(&j, 3, pid);
	expect_processes_gone(pid, 3, 2000);
}
END_TEST

static const char *join_test_dir(const char *name, char *path, size_t capacity)
{
	snprintf(path, capacity, "%s/%s", getenv("TEST_DIR"), name);
	return path;
}

static void make_test_dir(void)
{
	static char dir[] = "/tmp/tessera-test-XXXXXX";

	ck_assert_ptr_nonnull(mkdtemp(dir));
	setenv("TEST_DIR", dir, 1);
}

/* Starts even a process in a session of its own that ignores signals. */
static const char orphan_script[] =
	"setsid sh -c 'trap \"\" TERM HUP INT; echo pid $$; while :; do sleep 0.05; done' & ";

/*
 * Leaves no process of a rank. _i: 0: it ends by itself, 1: the launcher is killed, 2: its child
 * too, 3: SIGTERM
 */
START_TEST(no_orphans_of_ranks)
{
	char script[256], path[128];
	struct test_job j;
	int pid[2];

	make_test_dir();
	setenv("XDG_RUNTIME_DIR", getenv("TEST_DIR"), 1);
	snprintf(script, sizeof script, "%s sleep %s", orphan_script, _i ? "30" : "0.3");
	job_start_shell(&j, 2, script, -1);
	await_ranks(&j, 2, "pid ");
	if (_i == 1)
		kill(j.pid, SIGKILL);
	if (_i == 2)
		kill(get_first_child(j.pid), SIGKILL);
	if (_i == 3)
		kill(j.pid, SIGTERM);
	job_finish(&j);
	parse_pids(&j, 2, pid);
	expect_processes_gone(pid, 2, 2000);
	ck_assert_int_eq(j.status, _i == 0 ? 0 : _i == 1 ? -SIGKILL : _i == 2 ? 125 : 143);
	if (_i == 2)
		ck_assert_int_eq(job_count(&j, "the launcher was killed by signal 9"), 1);
	ck_assert(j.seconds < 10);
	snprintf(path, sizeof path, "%s/tessera-%u", getenv("TEST_DIR"), (unsigned)geteuid());
	for (int i = 0; i < 200 && rmdir(path); i++) /* done by a child of the killed launcher */
		usleep(10000);
	ck_assert_msg(!rmdir(getenv("TEST_DIR")), "something is left in %s", path);
}
END_TEST

static void expect_file_text(const char *name, const char *want)
{
	char path[128], text[512] = "";
	FILE *f = fopen(join_test_dir(name, path, sizeof path), "r");

	ck_assert_msg(f != NULL, "%s is not there", path);
	text[fread(text, 1, sizeof text - 1, f)] = '\0';
	fclose(f);
	unlink(path);
	ck_assert_str_eq(text, want);
}

START_TEST(logs_of_ranks)
{
	char *argv[] = { "sh", "-c",
		         "echo out $RANK; sleep 0.1; echo err >&2; sleep 0.1; printf end", NULL };
	struct tess_launch how = { .nranks = 2, .argv = argv };
	char path[128];
	struct test_job j;

	make_test_dir();
	how.log_dir = join_test_dir("logs", path, sizeof path);
	for (int i = 0; i < 2; i++) { /* the second run replaces the files of the first */
		job_run(&j, &how);
		ck_assert_int_eq(j.status, 0);
		ck_assert_int_eq(job_count(&j, "[1] out 1\n"), 1);
	}
	expect_file_text("logs/rank-0.log", "out 0\nerr\nend\n");
	expect_file_text("logs/rank-1.log", "out 1\nerr\nend\n");
	rmdir(path);
	ck_assert_int_eq(rmdir(getenv("TEST_DIR")), 0);
	how.log_dir = "/nowhere/logs";
	job_run(&j, &how);
	ck_assert_int_eq(j.status, 125);
	ck_assert_int_eq(job_count(&j, "/nowhere/logs cannot be created"), 1);
}
END_TEST

/* Restarts a job that succeeds the third time. _i: restarts allowed */
START_TEST(a_job_is_restarted)
{
	char *argv[] = { "sh", "-c",
		         "echo at $TESSERA_RENDEZVOUS;"
		         "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exec echo done;"
		         "[ $RANK = 0 ] && exit 7; sleep 30",
		         NULL };
	struct tess_launch how = { .nranks = 2, .argv = argv, .restarts = _i };
	char path[128];
	struct test_job j;

	make_test_dir();
	how.log_dir = getenv("TEST_DIR");
	job_run(&j, &how);
	ck_assert_int_eq(j.status, _i < 2 ? 7 : 0);
	ck_assert_int_eq(job_count(&j, "starts again"), _i < 2 ? _i : 2);
	ck_assert_int_eq(job_count(&j, "rank 0 exited with status 7"), _i < 2 ? _i + 1 : 2);
	ck_assert_int_eq(job_count(&j, "] done\n"), _i < 2 ? 0 : 2);
	ck_assert(_i < 1 || strstr(j.text, "(1 of "));
	if (_i >= 1) { /* another name */
		char *first = strstr(j.text, "[0] at "), *again = strstr(first + 1, "[0] at ");

		ck_assert(again && strncmp(first, again, strcspn(first, "\n") + 1));
	}
	unlink(join_test_dir("rank-0.log", path, sizeof path));
	unlink(join_test_dir("rank-1.log", path, sizeof path));
	ck_assert_int_eq(rmdir(getenv("TEST_DIR")), 0);
}
END_TEST

START_TEST(a_stopped_job_is_not_restarted)
{
	char *argv[] = { "sh", "-c", "echo up; sleep 30", NULL };
	struct tess_launch how = { .nranks = 2, .argv = argv, .restarts = 5 };
	struct test_job j;

	job_start(&j, &how);
	await_ranks(&j, 2, "up");
	kill(j.pid, SIGTERM);
	job_finish(&j);
	ck_assert_int_eq(j.status, 143);
	ck_assert_int_eq(job_count(&j, "up"), 2);
}
END_TEST

/* Ends rank 1 with status 0 while rank 0 waits for it. */
START_TEST(a_rank_does_not_join)
{
	struct test_job j;

	job_run_self(&j, 2, NULL, NULL, "join", NULL);
	ck_assert_int_eq(j.status, 2);
	ck_assert_int_ge(job_count(&j, "rank 1 has ended without joining the job, in which rank 0"),
	                 1);
	ck_assert(j.seconds < 5);
}
END_TEST

/* Joins with the rendezvous of a job that has ended. */
START_TEST(a_job_is_stale)
{
	struct test_job j;

	job_run_self(&j, 2, NULL, NULL, "stale", NULL);
	ck_assert_int_eq(j.status, 2);
	ck_assert_int_ge(job_count(&j, "TESSERA_RENDEZVOUS is left over from another job"), 1);
}
END_TEST

/* Stops rank 1, or 1 and 2, while the other ranks leave, which succeeds. */
START_TEST(ranks_do_not_leave)
{
	struct test_job j;

	job_run_self(&j, 4, NULL, "1", _i ? "two-stop" : "stops", NULL);
	ck_assert_int_eq(j.status, 1);
	ck_assert_int_ge(job_count(&j, "is stopped; the job was not finished by the deadline"), 1);
	ck_assert_msg(j.seconds < 20, "%g seconds: %s", j.seconds, j.text);
}
END_TEST

/*
 * Checks a job whose ranks continue after mismatched calls and end with 0: it fails, as their data
 * may be wrong.
 */
START_TEST(a_mismatch_fails_the_job)
{
	struct test_job j;

	job_run_self(&j, 2, NULL, NULL, "differ", NULL);
	ck_assert_int_eq(j.status, 1);
	ck_assert_int_ge(job_count(&j, "all ranks make the same calls in the same order"), 1);
}
END_TEST

/*
 * Checks that a job ends as soon as its ranks have. Takes the best of several tries, as the machine
 * may be busy.
 */
START_TEST(a_job_ends_at_once)
{
	double best = 1;
	struct test_job j;

	for (int i = 0; i < 20 && best >= 0.15; i++) {
		run_shell(&j, 2, "true");
		ck_assert_int_eq(j.status, 0);
		best = j.seconds < best ? j.seconds : best;
	}
	ck_assert_msg(best < 0.15, "%g seconds", best);
}
END_TEST

START_TEST(what_cannot_be_launched)
{
	char *const absent[] = { "no-such-program", NULL }, *const directory[] = { "/tmp", NULL };
	struct tess_launch how = { .nranks = 2, .argv = absent };
	int status = -1;

	ck_assert_int_eq(tess_launch(&how, &status), TESS_ENOENT);
	expect_part(tess_error(), "no-such-program cannot be run");
	how.argv = directory;
	ck_assert_int_eq(tess_launch(&how, &status), TESS_EPERM);
	how.nranks = 0;
	ck_assert_int_eq(tess_launch(&how, &status), TESS_EINVAL);
	how.nranks = 2;
	how.backend = "loopback";
	ck_assert_int_eq(tess_launch(&how, &status), TESS_EINVAL);
	expect_part(tess_error(), "threads of one process");
	how.backend = NULL;
	setenv("TESSERA_BACKEND", "loopback", 1);
	ck_assert_int_eq(tess_launch(&how, &status), TESS_EINVAL);
	ck_assert_int_eq(status, -1);
}
END_TEST

/* Joins as a rank; exits with 2 if it cannot. */
static int join_as_rank(const char *role)
{
	int stop = !strcmp(role, "stops") ? 1 : !strcmp(role, "two-stop") ? 2 : 0;
	int rank = atoi(getenv("RANK"));
	struct tess_world *w;
	float x[4] = { 0 };

	if (!strcmp(role, "join") && rank == 1)
		return 0;
	if (!strcmp(role, "stale"))
		setenv("TESSERA_RENDEZVOUS", "/tmp/no-such-job", 1);
	if (!tess_world_open(&w)) {
		if (rank > 0 && rank <= stop)
			raise(SIGSTOP);
		if (!strcmp(role, "differ"))
			tess_all_reduce(tess_world_group(w), x, x, rank ? 3 : 4, TESS_F32, TESS_SUM,
			                "model");
		tess_world_close(w);
		return 0;
	}
	fprintf(stderr, "%s\n", tess_error());
	return 2;
}

int main(int argc, char **argv)
{
	const TTest *const tests[] = { lines_have_a_prefix,
		                       long_lines_are_whole,
		                       ranks_may_stream,
		                       ranks_know_their_number,
		                       ranks_are_bound,
		                       only_rank_0_reads,
		                       ranks_that_ignore_sigterm_are_killed,
		                       interrupt_is_for_rank_0,
		                       terminate_ends_all,
		                       output_is_not_read,
		                       no_orphans,
		                       logs_of_ranks,
		                       a_stopped_job_is_not_restarted,
		                       a_rank_does_not_join,
		                       a_job_is_stale,
		                       a_mismatch_fails_the_job,
		                       a_job_ends_at_once,
		                       what_cannot_be_launched };
	TCase *tcase;
	SRunner *runner;

	if (argc > 1)
		return join_as_rank(argv[1]);
	tcase = suite_begin("launch", 120, &runner);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		tcase_add_test(tcase, tests[i]);
	tcase_add_loop_test(tcase, job_ends, 0, sizeof endings / sizeof *endings);
	tcase_add_loop_test(tcase, no_orphans_of_ranks, 0, 4);
	tcase_add_loop_test(tcase, a_job_is_restarted, 0, 4);
	tcase_add_loop_test(tcase, ranks_do_not_leave, 0, 2);
	return suite_end(runner);
}

/*
 * test_output.c - the output of ranks through a launcher: nothing is lost silently, and no rank,
 * slow reader or ignored signal stops the launcher.
 */
#include "core/base/clock.h"
#include "tests/support/job.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEST_TIMEOUT_MS = 60000, FULL = 50000 };

/* Makes a pipe for the stdout of a job. */
static void make_output_pipe(int fd[2], int flags)
{
	ck_assert(!pipe2(fd, O_CLOEXEC));
	ck_assert(!fcntl(fd[1], F_SETFL, flags));
}

/* Reads `fd` to its end; returns the number of bytes `c`. */
static long count_until_end(int fd, char c)
{
	static char text[1 << 16];
	struct pollfd p = { .fd = fd, .events = POLLIN };
	long found = 0;
	ssize_t n;

	do {
		ck_assert_msg(poll(&p, 1, TEST_TIMEOUT_MS) == 1, "nothing comes, and no end");
		n = read(fd, text, sizeof text);
		for (ssize_t i = 0; i < n; i++)
			found += text[i] == c;
	} while (n > 0);
	return found;
}

static void wait_until_full(int fd)
{
	int64_t until = tess_now() + TEST_TIMEOUT_MS * (int64_t)TESS_MS;
	int bytes = 0;

	while (bytes < FULL) {
		ck_assert(!ioctl(fd, FIONREAD, &bytes));
		ck_assert_msg(tess_now() < until, "only %d bytes", bytes);
		usleep(1000);
	}
}

/* ---- signals --------------------------------------------------------------------------------- */

static const int used_signals[] = { SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGPIPE };
enum { NSIGNALS = sizeof used_signals / sizeof *used_signals };

static void set_all_handlers(void (*handler)(int))
{
	for (int i = 0; i < NSIGNALS; i++)
		signal(used_signals[i], handler);
}

static unsigned long parse_signal_mask(const struct test_job *j, const char *name)
{
	const char *at = strstr(j->text, name);

	ck_assert_msg(at != NULL, "%s", j->text);
	return strtoul(at + strlen(name), NULL, 16);
}

/*
 * Checks that the launcher and its ranks reset signals that are inherited as ignored and blocked.
 */
START_TEST(ignored_signals_are_reset)
{
	sigset_t all, old;
	struct test_job j;

	sigfillset(&all);
	set_all_handlers(SIG_IGN);
	sigprocmask(SIG_BLOCK, &all, &old);
	job_start_shell(&j, 2, "[ $RANK = 1 ] && exit 3; exec grep Sig /proc/self/status", -1);
	set_all_handlers(SIG_DFL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	job_finish(&j);
	ck_assert_int_eq(j.status, 3);
	for (int i = 0; i < NSIGNALS; i++) {
		ck_assert(!(parse_signal_mask(&j, "SigIgn:") >> (used_signals[i] - 1) & 1));
		ck_assert(!(parse_signal_mask(&j, "SigBlk:") >> (used_signals[i] - 1) & 1));
	}
}
END_TEST

/* Checks nohup: SIGHUP ends neither the job nor a rank. */
START_TEST(hangup_stays_ignored)
{
	struct test_job j;

	signal(SIGHUP, SIG_IGN);
	job_start_shell(&j, 1, "kill -HUP $$ $PPID; echo up; exec sleep 60", -1);
	signal(SIGHUP, SIG_DFL);
	job_await(&j, "up");
	kill(j.pid, SIGHUP);
	kill(j.pid, SIGTERM);
	job_finish(&j);
	ck_assert_int_eq(j.status, 128 + SIGTERM);
}
END_TEST

/* ---- much output ----------------------------------------------------------------------------- */

/* Writes fast on one rank. _i: 0: another rank fails; 1: SIGTERM */
START_TEST(a_rank_writes_fast)
{
	char text[1 << 16];
	struct test_job j;
	int fd[2];

	make_output_pipe(fd, 0);
	job_start_shell(&j, 2,
	                _i ? "exec yes" : "[ $RANK = 1 ] && { sleep 0.2; exit 3; }; exec yes",
	                fd[1]);
	close(fd[1]);
	for (int i = 0; i < 100; i++)
		ck_assert(read(fd[0], text, sizeof text) > 0);
	if (_i)
		kill(j.pid, SIGTERM);
	count_until_end(fd[0], 'y');
	job_finish(&j);
	ck_assert_int_eq(j.status, _i ? 128 + SIGTERM : 3);
	close(fd[0]);
}
END_TEST

START_TEST(a_reader_stops)
{
	struct test_job j;
	int fd[2];

	make_output_pipe(fd, 0);
	job_start_shell(&j, 2, "exec yes", fd[1]);
	close(fd[1]);
	wait_until_full(fd[0]);
	kill(j.pid, SIGTERM);
	job_finish(&j);
	ck_assert_int_eq(j.status, 128 + SIGTERM);
	close(fd[0]);
}
END_TEST

/*
 * Checks that writers block while their output is not read, in no memory but the pipes' and one
 * sink's. _i: flags of the pipe
 */
START_TEST(a_reader_is_late)
{
	enum { LINES = 300000 };
	char script[128], text[8];
	struct test_job j;
	int fd[2];

	make_output_pipe(fd, _i ? O_NONBLOCK : 0);
	snprintf(script, sizeof script, "yes | head -n %d; echo through >&2", LINES);
	job_start_shell(&j, 2, script, fd[1]);
	close(fd[1]);
	wait_until_full(fd[0]);
	ck_assert(!fcntl(j.output, F_SETFL, O_NONBLOCK));
	ck_assert_msg(read(j.output, text, sizeof text) < 0, "all was written before it was read");
	fcntl(j.output, F_SETFL, 0);
	ck_assert_int_eq(count_until_end(fd[0], 'y'), 2 * LINES);
	job_finish(&j);
	ck_assert_int_eq(j.status, 0);
	ck_assert_int_eq(job_count(&j, "through"), 2);
	close(fd[0]);
}
END_TEST

/* ---- output that cannot be written ----------------------------------------------------------- */

START_TEST(no_space_for_output)
{
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
	struct test_job j;

	ck_assert_int_ge(full, 0);
	job_start_shell(&j, 2, _i ? "while echo hi; do sleep 0.01; done" : "echo hi", full);
	close(full);
	job_finish(&j);
	ck_assert_int_eq(j.status, 125);
	ck_assert_int_eq(
		job_count(&j, "standard output cannot be written: No space left on device"), 1);
}
END_TEST

START_TEST(no_space_for_logs)
{
	char dir[] = "/tmp/tessera-test-XXXXXX", path[64];
	char *argv[] = { "echo", "hi", NULL };
	struct tess_launch how = { .nranks = 2, .argv = argv, .log_dir = dir };
	struct test_job j;

	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof path, "%s/rank-1.log", dir);
	ck_assert(!symlink("/dev/full", path));
	job_run(&j, &how);
	unlink(path);
	snprintf(path, sizeof path, "%s/rank-0.log", dir);
	unlink(path);
	rmdir(dir);
	ck_assert_int_eq(j.status, 125);
	ck_assert_int_eq(job_count(&j, "[1] hi\n"), 1);
	ck_assert_int_eq(
		job_count(&j, "a log of the ranks cannot be written: No space left on device"), 1);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("output", 120, &runner);

	tcase_add_test(tcase, ignored_signals_are_reset);
	tcase_add_test(tcase, hangup_stays_ignored);
	tcase_add_loop_test(tcase, a_rank_writes_fast, 0, 2);
	tcase_add_test(tcase, a_reader_stops);
	tcase_add_loop_test(tcase, a_reader_is_late, 0, 2);
	tcase_add_loop_test(tcase, no_space_for_output, 0, 2);
	tcase_add_test(tcase, no_space_for_logs);
	return suite_end(runner);
}

/*
 * test_crash.c - the frames of calls of plugins, the search for calls that do not return, and the
 * handler of faults in a program of its own.
 */
#include "core/base/clock.h"
#include "core/registry/plugin_frame.h"
#include "core/registry/plugin_watch.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <tessera/tessera.h>

enum { CALLS = 20000, NAMES = 64, ENDED_BY_OWN_HANDLER = 42 };

/* ---- frames ---------------------------------------------------------------------------------- */

static atomic_bool stop;

/* Enters calls whose strings are freed afterwards: "fnnn" at "wnnn". */
static void *call_plugins(void *arg)
{
	(void)arg;
	for (int i = 0; i < CALLS; i++) {
		struct tess_plugin_frame outer, inner;
		char *function = malloc(8), *where = malloc(8);

		snprintf(function, 8, "f%d", i % NAMES);
		snprintf(where, 8, "w%d", i % NAMES);
		tess_plugin_enter(&outer, &outer, "outer", NULL, NULL, 0);
		tess_plugin_enter(&inner, &inner, function, where, NULL, 0);
		if (i % 16 == 0)
			usleep(1); /* time for the reader, which copies in several steps */
		tess_plugin_leave(&inner);
		tess_plugin_leave(&outer);
		memset(function, '?', 7);
		memset(where, '?', 7);
		free(function);
		free(where);
	}
	atomic_store(&stop, true);
	return NULL;
}

/* Checks that a text is of one call. */
static void check_description(const char *text)
{
	char expected[64];
	int n;

	if (!strcmp(text, "outer() of plugin "))
		return;
	ck_assert_msg(sscanf(text, "f%d() of plugin", &n) == 1, "%s", text);
	snprintf(expected, sizeof expected, "f%d() of plugin  at w%d", n, n);
	ck_assert_str_eq(text, expected);
}

START_TEST(other_threads_read_frames_that_change)
{
	pthread_t thread;
	int described = 0;

	atomic_store(&stop, false);
	ck_assert(!pthread_create(&thread, NULL, call_plugins, NULL));
	while (!atomic_load(&stop))
		for (struct tess_plugin_thread *t = tess_plugin_next_thread(NULL); t;
		     t = tess_plugin_next_thread(t)) {
			char text[TESS_PLUGIN_TEXT];
			struct tess_safe_text to = { .size = sizeof text, .at = text };
			struct tess_plugin_place place;

			if (!tess_plugin_frame_describe(t, &to, &place))
				continue;
			check_description(text);
			described++;
		}
	pthread_join(thread, NULL);
	ck_assert_int_gt(described, 0);
	ck_assert(!tess_plugin_next_thread(NULL)); /* its record is free again */
}
END_TEST

START_TEST(a_frame_without_readable_strings_is_described)
{
	struct tess_plugin_frame f;
	char text[TESS_PLUGIN_TEXT];
	struct tess_safe_text to = { .size = sizeof text, .at = text };
	struct tess_plugin_place place;

	tess_plugin_enter(&f, NULL, "init", (const char *)8, (const char *)16, 7);
	ck_assert(tess_plugin_frame_describe(tess_plugin_thread_own, &to, &place));
	ck_assert_str_eq(text, "init() of a plugin");
	ck_assert_int_eq(place.deadline, 7);
	tess_plugin_leave(&f);
	ck_assert(!tess_plugin_frame_describe(tess_plugin_thread_own, &to, &place));
}
END_TEST

/* ---- calls that do not return ---------------------------------------------------------------- */

static void sleep_ms(int64_t ms)
{
	usleep((useconds_t)ms * 1000);
}

START_TEST(a_slow_call_is_reported_once_and_then_as_overdue)
{
	const int64_t timeout = 200 * (int64_t)TESS_MS;
	struct tess_plugin_report report = { 0 };
	struct tess_plugin_stay stay;
	struct tess_plugin_frame f, next;
	int reports = 0;

	tess_plugin_set_rank(NULL, 3, 4);
	ck_assert(!tess_plugin_report_due(&report, NULL, 3, timeout, &stay));
	tess_plugin_enter(&f, NULL, "layout", "x", NULL, 0);
	for (int64_t end = tess_now() + 5000 * (int64_t)TESS_MS;
	     tess_now() < end && !report.overdue; sleep_ms(20))
		if (tess_plugin_report_due(&report, NULL, 3, timeout, &stay)) {
			reports++;
			ck_assert_str_eq(stay.text, "layout() of x");
			ck_assert(stay.overdue == (stay.stayed >= 1200 * (int64_t)TESS_MS));
		}
	ck_assert_int_eq(reports, 2);
	ck_assert(!tess_plugin_watch_rank(NULL, 2, timeout, &stay));
	ck_assert(!tess_plugin_watch_rank(&report, 3, timeout, &stay));
	ck_assert(!tess_plugin_watch(TESS_NO_RANK, timeout, &stay));
	ck_assert(tess_plugin_watch(TESS_PROCESS_RANK, timeout, &stay) && stay.overdue);
	tess_plugin_enter(&next, NULL, "open", "x", NULL, 0); /* a call from inside: progress */
	ck_assert(tess_plugin_report_due(&report, NULL, 3, timeout, &stay));
	ck_assert_str_eq(stay.text, "");
	tess_plugin_leave(&next);
	ck_assert(tess_plugin_watch_rank(NULL, 3, timeout, &stay) && !stay.stayed);
	tess_plugin_leave(&f);
	ck_assert(!tess_plugin_watch_rank(NULL, 3, timeout, &stay));
}
END_TEST

/* A call that waits has until its deadline; a stop of the watcher counts as two looks at most. */
START_TEST(a_wait_is_overdue_after_its_deadline)
{
	const int64_t timeout = 100 * (int64_t)TESS_MS;
	struct tess_plugin_stay stay;
	struct tess_plugin_frame f;

	tess_plugin_set_rank(NULL, 0, 2);
	tess_plugin_enter(&f, NULL, "wait", "x", NULL, tess_now() + 400 * (int64_t)TESS_MS);
	ck_assert(tess_plugin_watch_rank(NULL, 0, timeout, &stay) && stay.waits);
	ck_assert(!tess_plugin_watch(TESS_NOT_WAITING, timeout, &stay));
	sleep_ms(1700);
	ck_assert(tess_plugin_watch_rank(NULL, 0, timeout, &stay));
	ck_assert_int_ge(stay.stayed, 2 * tess_plugin_watch_interval(timeout));
	ck_assert_int_lt(stay.stayed, 3 * tess_plugin_watch_interval(timeout));
	ck_assert(!stay.overdue);
	for (int64_t end = tess_now() + 5000 * (int64_t)TESS_MS; tess_now() < end && !stay.overdue;
	     sleep_ms(30))
		ck_assert(tess_plugin_watch_rank(NULL, 0, timeout, &stay));
	ck_assert(stay.overdue && stay.stayed >= 1000 * (int64_t)TESS_MS);
	tess_plugin_leave(&f);
}
END_TEST

/* ---- the handler ----------------------------------------------------------------------------- */

static void end_by_own_handler(int sig)
{
	(void)sig;
	_exit(ENDED_BY_OWN_HANDLER);
}

/* Runs both in a child; returns its wait status, and its stderr. */
static int run_in_child(void (*before)(void), void (*fault)(void), char *text, size_t capacity)
{
	int fd[2], status;
	ssize_t n, len = 0;
	pid_t pid;

	ck_assert(!pipe(fd));
	pid = fork();
	ck_assert(pid >= 0);
	if (!pid) {
		dup2(fd[1], STDERR_FILENO);
		before();
		fault();
		_exit(0);
	}
	close(fd[1]);
	while ((n = read(fd[0], text + len, capacity - 1 - (size_t)len)) > 0)
		len += n;
	text[len] = '\0';
	close(fd[0]);
	ck_assert(waitpid(pid, &status, 0) == pid);
	return status;
}

static void use_default_actions(void)
{
	const int all[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		signal(all[i], SIG_DFL);
}

static void enable_reports(void)
{
	if (tess_crash_reports_enable() || tess_crash_reports_enable())
		_exit(1);
}

static void use_reports_only(void)
{
	use_default_actions();
	enable_reports();
}

/* Captures stderr, and keeps its descriptor for reports. */
static void use_other_output(void)
{
	int kept = dup(STDERR_FILENO), captured = open("/dev/null", O_WRONLY);

	use_reports_only();
	dup2(captured, STDERR_FILENO);
	if (tess_crash_reports_redirect(kept))
		_exit(1);
}

static void use_own_handler(void)
{
	use_default_actions();
	signal(SIGFPE, end_by_own_handler);
	enable_reports();
}

static void ignore_faults(void)
{
	use_default_actions();
	signal(SIGFPE, SIG_IGN);
	enable_reports();
}

static void raise_fpe(void)
{
	raise(SIGFPE);
}

static struct sigaction handler_before;

static void restore_and_raise(int sig)
{
	sigaction(sig, &handler_before, NULL);
	raise(sig);
}

/* Installs a handler that restores the one of reports, as faulthandler of Python does. */
static void raise_between_handlers(void)
{
	struct sigaction act = { .sa_handler = restore_and_raise };

	sigaction(SIGFPE, &act, &handler_before);
	enable_reports();
	raise(SIGFPE);
}

static void abort_in_plugin(void)
{
	struct tess_plugin_frame f;

	tess_plugin_set_rank(NULL, 1, 3);
	tess_plugin_enter(&f, NULL, "quit", "/x.so", NULL, 0);
	abort();
}

static void *wait_in_plugin(void *entered)
{
	struct tess_plugin_frame f;

	tess_plugin_set_rank(entered, 2, 3);
	tess_plugin_enter(&f, NULL, "run", "/x.so", NULL, 0);
	atomic_store((atomic_bool *)entered, true);
	pause();
	return NULL;
}

/* Crashes in a thread without a call, while another thread is in one. */
static void crash_beside_plugin(void)
{
	static atomic_bool entered;
	pthread_t thread;

	ck_assert(!pthread_create(&thread, NULL, wait_in_plugin, &entered));
	while (!atomic_load(&entered))
		sleep_ms(1);
	kill(getpid(), SIGILL);
	pause();
}

static const struct chain_case {
	void (*before)(void), (*fault)(void);
	int signal; /* that ends the child; 0: it exits */
	int status;
	const char *says; /* "": nothing */
} chains[] = {
	{ use_reports_only, raise_fpe, SIGFPE, 0,
	  "plugin: error: outside of the calls of plugins: signal 8 (Floating point exc" },
	{ use_own_handler, raise_fpe, 0, ENDED_BY_OWN_HANDLER,
	  "signal 8 (Floating point exception)" },
	{ use_reports_only, raise_between_handlers, SIGFPE, 0,
	  "signal 8 (Floating point exception)" },
	{ use_other_output, raise_fpe, SIGFPE, 0, "signal 8 (Floating point exception)" },
	{ ignore_faults, raise_fpe, 0, 0, "" },
	{ use_reports_only, abort_in_plugin, SIGABRT, 0,
	  "[1/3] plugin: error: quit() of /x.so: signal 6 (Aborted), in /" },
	{ use_reports_only, crash_beside_plugin, SIGILL, 0, "; meanwhile in [2/3] run() of /x.so" },
};

START_TEST(the_signal_is_passed_on)
{
	const struct chain_case *c = &chains[_i];
	char text[4096];
	int status = run_in_child(c->before, c->fault, text, sizeof text);

	if (c->signal)
		ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == c->signal, "%x: %s",
		              (unsigned)status, text);
	else
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == c->status, "%x: %s",
		              (unsigned)status, text);
	if (*c->says)
		expect_part(text, c->says);
	else
		ck_assert_str_eq(text, "");
	ck_assert_int_eq(count_occurrences(text, "plugin: error: "), *c->says != 0);
}
END_TEST

static tess_status crash_on_rank_1(struct tess_world *w, void *arg)
{
	tess_status st = tess_barrier(tess_world_group(w), "begin");
	struct tess_plugin_frame f;

	(void)arg;
	if (st || !tess_world_rank(w))
		return st ? st : tess_barrier(tess_world_group(w), "end");
	tess_plugin_enter(&f, NULL, "run", "/x.so", NULL, 0);
	kill(getpid(), SIGBUS);
	return TESS_OK;
}

/* Prints the failure of the ranks. */
static void spawn_processes(void)
{
	if (tess_world_spawn(2, crash_on_rank_1, NULL))
		fprintf(stderr, "%s\n", tess_error());
}

START_TEST(spawned_processes_report)
{
	char text[4096];

	ck_assert(!tess_option_set("backend", "shm"));
	ck_assert(!run_in_child(use_default_actions, spawn_processes, text, sizeof text));
	expect_part(text, "[1/2] plugin: error: run() of /x.so: signal 7 (Bus error)");
	expect_part(text, "rank 1 was killed by signal 7 (Bus error); its last call was barrier");
	ck_assert_int_eq(count_occurrences(text, "plugin: error: "), 1);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *t = suite_begin("crash", 30, &runner);

	tcase_add_test(t, other_threads_read_frames_that_change);
	tcase_add_test(t, a_frame_without_readable_strings_is_described);
	tcase_add_test(t, a_slow_call_is_reported_once_and_then_as_overdue);
	tcase_add_test(t, a_wait_is_overdue_after_its_deadline);
	tcase_add_loop_test(t, the_signal_is_passed_on, 0, sizeof chains / sizeof *chains);
	tcase_add_test(t, spawned_processes_report);
	return suite_end(runner);
}

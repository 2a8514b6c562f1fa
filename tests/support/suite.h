/* suite.h - main() of a unit test, with one suite and one case; and helpers for many tests. */
#ifndef TESS_TESTS_SUPPORT_SUITE_H
#define TESS_TESTS_SUPPORT_SUITE_H

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Check records each assertion that holds, for tests that crash later, with a system call. */
#define _mark_point(file, line) ((void)0)

/* ThreadSanitizer has nothing to find in one rank with one thread. */
#if defined(__SANITIZE_THREAD__)
enum { TSAN = 1 };
#else
enum { TSAN = 0 };
#endif

/* Asserts like ck_assert, for tight loops: Check's own writes to a pipe each time. */
#define MUST(condition) \
	do { \
		if (!(condition)) \
			ck_abort_msg("%s", #condition); \
	} while (0)

static inline void expect_part(const char *text, const char *part)
{
	ck_assert_msg(text && strstr(text, part), "\"%s\" has no \"%s\"", text ? text : "", part);
}

/* Captures the stderr of `write_text`. */
static inline void capture_stderr(void (*write_text)(void), char *out, size_t capacity)
{
	int saved = dup(STDERR_FILENO), fd[2];
	ssize_t n;

	ck_assert_int_eq(pipe(fd), 0);
	dup2(fd[1], STDERR_FILENO);
	close(fd[1]);
	write_text();
	dup2(saved, STDERR_FILENO);
	close(saved);
	n = read(fd[0], out, capacity - 1);
	out[n < 0 ? 0 : n] = '\0';
	close(fd[0]);
}

static inline int count_occurrences(const char *text, const char *what)
{
	int n = 0;

	for (; (text = strstr(text, what)); text++)
		n++;
	return n;
}

/*
 * Closes stdin: a command without a prompt would read a pipe that the test's caller never closes.
 */
static inline void close_input(void)
{
	int null = open("/dev/null", O_RDONLY);

	dup2(null, STDIN_FILENO);
	if (null > STDIN_FILENO)
		close(null);
}

/* Begins a suite of one case, for tests that take at most `seconds`; suite_end() runs it. */
static inline TCase *suite_begin(const char *name, double seconds, SRunner **out)
{
	Suite *suite = suite_create(name);
	TCase *tcase = tcase_create(name);

	close_input();
	suite_add_tcase(suite, tcase);
	tcase_set_timeout(tcase, seconds);
	*out = srunner_create(suite);
	return tcase;
}

/* Runs the suite; returns the exit status. */
static inline int suite_end(SRunner *runner)
{
	int failed;

	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Runs `tests`, which ends with NULL, each in its own process (unless CK_FORK=no). */
static inline int suite_main(const char *name, const TTest *const *tests)
{
	SRunner *runner;
	TCase *tcase = suite_begin(name, 120, &runner);

	for (; *tests; tests++)
		tcase_add_test(tcase, *tests);
	return suite_end(runner);
}

#define SUITE_MAIN(name, ...) \
	int main(void) \
	{ \
		return suite_main(name, (const TTest *const[]){ __VA_ARGS__, NULL }); \
	}

#endif

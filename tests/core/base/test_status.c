#include "core/base/status.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>

START_TEST(says_why)
{
	ck_assert_int_eq(tess_fail(TESS_EINVAL, "%s: %d heads", "q_proj", 12), TESS_EINVAL);
	ck_assert_str_eq(tess_error(), "q_proj: 12 heads");
}
END_TEST

START_TEST(gains_context_on_the_way_up)
{
	tess_fail(TESS_EIO, "short read");
	ck_assert_int_eq(tess_fail_in(TESS_EIO, "model.safetensors"), TESS_EIO);
	ck_assert_int_eq(tess_fail_in(TESS_EINVAL, "rank %d", 3), TESS_EINVAL);
	ck_assert_str_eq(tess_error(), "rank 3: model.safetensors: short read");
}
END_TEST

START_TEST(may_quote_itself)
{
	tess_fail(TESS_EIO, "first");
	tess_fail(TESS_EIO, "%s, %s", tess_error(), tess_error());
	ck_assert_str_eq(tess_error(), "first, first");
	tess_fail_in(TESS_EIO, "%s", tess_error());
	ck_assert_str_eq(tess_error(), "first, first: first, first");
}
END_TEST

START_TEST(cuts_what_is_too_long)
{
	char text[5000];

	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	tess_fail(TESS_EIO, "%s", text);
	ck_assert_uint_eq(strlen(tess_error()), 2047);
	tess_fail_in(TESS_EIO, "start");
	ck_assert_uint_eq(strlen(tess_error()), 2047);
	ck_assert_int_eq(strncmp(tess_error(), "start: xxx", 10), 0);
	for (size_t len = 2040; len < 2056; len++) {
		tess_fail(TESS_EIO, "end");
		text[len] = '\0';
		tess_fail_in(TESS_EIO, "%s", text);
		ck_assert_int_eq(strncmp(tess_error(), text, len < 2047 ? len : 2047), 0);
		ck_assert_uint_le(strlen(tess_error()), 2047);
		text[len] = 'x';
	}
}
END_TEST

/* Sets the limit and returns the message of this failure. */
static const char *fail_at_limit(int resource, rlim_t n, tess_status st, const char *text)
{
	struct rlimit limit;

	ck_assert(!getrlimit(resource, &limit));
	limit.rlim_cur = n;
	ck_assert(!setrlimit(resource, &limit));
	tess_fail(st, "%s", text);
	return tess_error();
}

START_TEST(names_limits)
{
	static const char space[] =
		"; the limit is 1125899906842624 bytes of address space (RLIMIT_AS): raise it with "
		"ulimit -v";
	const char *const of_space[] = { strerror(ENOMEM), "no memory", "out of memory",
		                         "lib.so: failed to map segment from shared object" };

	ck_assert_str_eq(
		fail_at_limit(RLIMIT_NOFILE, 77, TESS_EIO, strerror(EMFILE)),
		"Too many open files; the limit is 77 open files (RLIMIT_NOFILE): raise it with "
		"ulimit -n");
	tess_fail_in(TESS_EIO, "rank 1");
	tess_fail(TESS_EPEER, "rank 0: %s", tess_error());
	ck_assert_str_eq(
		tess_error(),
		"rank 0: rank 1: Too many open files; the limit is 77 open files (RLIMIT_NOFILE): "
		"raise it with ulimit -n");
	ck_assert_str_eq(fail_at_limit(RLIMIT_FSIZE, 102400, TESS_ENOMEM, strerror(EFBIG)),
	                 "File too large; the limit is 102400 bytes of a file (RLIMIT_FSIZE): "
	                 "raise it with ulimit -f");
	ck_assert_str_eq(fail_at_limit(RLIMIT_NPROC, 12345, TESS_EIO, strerror(EAGAIN)),
	                 "Resource temporarily unavailable; the limit is 12345 processes and "
	                 "threads of a user (RLIMIT_NPROC): raise it with ulimit -u");
	ck_assert_str_eq(fail_at_limit(RLIMIT_AS, RLIM_INFINITY, TESS_ENOMEM, of_space[0]),
	                 of_space[0]);
	for (size_t i = 0; i < sizeof of_space / sizeof *of_space; i++) {
		const char *text =
			fail_at_limit(RLIMIT_AS, (rlim_t)1 << 50, TESS_ENOMEM, of_space[i]);
		size_t len = strlen(of_space[i]);

		ck_assert(!strncmp(text, of_space[i], len));
		ck_assert_str_eq(text + len, space);
	}
	ck_assert_ptr_nonnull(strstr(
		fail_at_limit(RLIMIT_AS, (rlim_t)1 << 50, TESS_EIO, strerror(EAGAIN)), space));
	ck_assert_str_eq(fail_at_limit(RLIMIT_NOFILE, 77, TESS_EIO, strerror(EACCES)),
	                 strerror(EACCES));
}
END_TEST

static void *fail_on_other_thread(void *unused)
{
	(void)unused;
	ck_assert_str_eq(tess_error(), "");
	tess_fail(TESS_EIO, "elsewhere");
	return NULL;
}

START_TEST(is_each_threads_own)
{
	pthread_t thread;

	tess_fail(TESS_EIO, "here");
	ck_assert_int_eq(pthread_create(&thread, NULL, fail_on_other_thread, NULL), 0);
	pthread_join(thread, NULL);
	ck_assert_str_eq(tess_error(), "here");
}
END_TEST

START_TEST(has_names)
{
	ck_assert_str_eq(tess_status_name(TESS_OK), "TESS_OK");
	ck_assert_str_eq(tess_status_name(TESS_PENDING), "TESS_PENDING");
	ck_assert_str_eq(tess_status_name(TESS_EINVAL), "TESS_EINVAL");
	ck_assert_str_eq(tess_status_name(TESS_EABI), "TESS_EABI");
	ck_assert_str_eq(tess_status_name(TESS_EDEVICE), "TESS_EDEVICE");
	ck_assert_str_eq(tess_status_name(TESS_EBUG), "TESS_EBUG");
	ck_assert_str_eq(tess_status_name(TESS_EBUG - 1), "unknown status");
	ck_assert_str_eq(tess_status_name(INT32_MIN), "unknown status");
	ck_assert_str_eq(tess_status_name(2), "unknown status");
}
END_TEST

SUITE_MAIN("status", says_why, gains_context_on_the_way_up, may_quote_itself, cuts_what_is_too_long,
           names_limits, is_each_threads_own, has_names)

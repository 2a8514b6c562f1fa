#include "core/base/status.h"
#include "suite.h"

#include <pthread.h>
#include <string.h>

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
           is_each_threads_own, has_names)

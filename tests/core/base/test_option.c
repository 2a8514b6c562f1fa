#include "core/base/option.h"
#include "core/base/status.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <string.h>

static const struct tess_option table[] = {
	{ "timeout", "300", "seconds until a call gives up" },
	{ "threads", "0", "threads of a rank; 0: its share of the CPUs" },
	{ "backend", "auto", "how data moves" },
	{ NULL, NULL, NULL },
};

START_TEST(argument_over_environment_over_preset)
{
	struct tess_option_info info;
	const char *held;

	unsetenv("TESSERA_BACKEND");
	ck_assert_int_eq(tess_option_add("test", table), TESS_OK);
	ck_assert_str_eq(tess_option_get("backend"), "auto");
	setenv("TESSERA_BACKEND", "gloo", 1);
	ck_assert_str_eq(tess_option_get("backend"), "gloo");
	ck_assert_int_eq(tess_option_set("backend", "loopback"), TESS_OK);
	held = tess_option_get("backend");
	ck_assert_int_eq(tess_option_set("backend", "mpi"), TESS_OK);
	ck_assert_str_eq(tess_option_get("backend"), "mpi");
	ck_assert_str_eq(held, "loopback");
	for (size_t i = 0; tess_option_at(i, &info) && strcmp(info.key, "backend") != 0; i++)
		;
	ck_assert_str_eq(info.key, "backend");
	ck_assert_str_eq(info.preset, "auto");
	ck_assert_str_eq(info.value, "mpi");
	ck_assert_str_eq(info.origin, "argument");
	ck_assert_str_eq(info.owner, "test");
	ck_assert_str_eq(info.help, "how data moves");
	ck_assert_str_eq(tess_option_get("no_such_key"), "");
}
END_TEST

/* Checks a choice before the first world: no table is declared yet. */
START_TEST(known_before_its_reader)
{
	setenv("TESSERA_TIMEOUT", "7", 1);
	ck_assert_str_eq(tess_option_get("timeout"), "7");
	ck_assert_int_eq(tess_option_set("backend", "loopback"), TESS_OK);
	ck_assert_str_eq(tess_option_get("backend"), "loopback");
	ck_assert_int_eq(tess_option_set("no_such_key", "1"), TESS_EINVAL);
	ck_assert_int_eq(tess_option_set(NULL, "1"), TESS_EINVAL);
	ck_assert_int_eq(tess_option_set("backend", NULL), TESS_EINVAL);
}
END_TEST

START_TEST(tables_are_declared_once)
{
	static const struct tess_option same[] = { { "threads", "0", "as there" }, { 0 } };
	static const struct tess_option other[] = { { "threads", "1", "not as there" }, { 0 } };
	static const struct tess_option bad[] = { { "Threads", "1", "upper case" }, { 0 } };
	static const struct tess_option none[] = { { "lonely", NULL, "no preset" }, { 0 } };
	struct tess_option_info info;
	size_t n = 0;

	ck_assert_int_eq(tess_option_add("test", table), TESS_OK);
	ck_assert_int_eq(tess_option_add("test", table), TESS_OK);
	ck_assert_int_eq(tess_option_add("tess-backend-x.so", same), TESS_OK);
	ck_assert_int_eq(tess_option_add("tess-backend-x.so", other), TESS_EINVAL);
	expect_part(tess_error(), "tess-backend-x.so");
	expect_part(tess_error(), "threads");
	expect_part(tess_error(), "test");
	ck_assert_int_eq(tess_option_add("test", bad), TESS_EINVAL);
	ck_assert_int_eq(tess_option_add("test", none), TESS_EINVAL);
	while (tess_option_at(n, &info))
		n++;
	ck_assert_uint_eq(n, 4);
	ck_assert_int_eq(tess_option_at(0, &info), 1);
	ck_assert_str_eq(info.key, "log");
	ck_assert_int_eq(tess_option_at(4, &info), 0);
}
END_TEST

START_TEST(reads_integers)
{
	static const char *const bad[] = {
		"",   " 1", "1 ", "x", "1x", "-", "+1", "0x10", "1.0", "99999999999999999999",
		"-1", "65",
	};
	int64_t out = 77;

	ck_assert_int_eq(tess_option_add("test", table), TESS_OK);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		setenv("TESSERA_THREADS", bad[i], 1);
		ck_assert_msg(tess_option_get_int("threads", 0, 64, &out) == TESS_EINVAL,
		              "\"%s\" was accepted", bad[i]);
		ck_assert_int_eq(out, 77);
		expect_part(tess_error(), "TESSERA_THREADS=");
		expect_part(tess_error(), bad[i]);
		expect_part(tess_error(), "from 0 to 64");
	}
	setenv("TESSERA_THREADS", "64", 1);
	ck_assert_int_eq(tess_option_get_int("threads", 0, 64, &out), TESS_OK);
	ck_assert_int_eq(out, 64);
	setenv("TESSERA_THREADS", "-9223372036854775808", 1);
	ck_assert_int_eq(tess_option_get_int("threads", INT64_MIN, 0, &out), TESS_OK);
	ck_assert(out == INT64_MIN);
	setenv("TESSERA_THREADS", "9223372036854775807", 1);
	ck_assert_int_eq(tess_option_get_int("threads", 0, INT64_MAX, &out), TESS_OK);
	ck_assert(out == INT64_MAX);
	setenv("TESSERA_THREADS", "9223372036854775808", 1);
	ck_assert_int_eq(tess_option_get_int("threads", 0, INT64_MAX, &out), TESS_EINVAL);
}
END_TEST

START_TEST(reads_seconds)
{
	static const char *const bad[] = { "",
		                           ".",
		                           ".5",
		                           "-1",
		                           "1s",
		                           " 1",
		                           "1e3",
		                           "nan",
		                           "inf",
		                           "1000000001",
		                           "99999999999999999999999",
		                           "1,5" };
	static const struct {
		const char *text;
		int64_t ns;
	} good[] = {
		{ "0", 0 },
		{ "300", 300000000000 },
		{ "0.5", 500000000 },
		{ "1.", 1000000000 },
		{ "0.000000001", 1 },
		{ "0.0000000019", 1 },
		{ "2.000000010", 2000000010 },
		{ "1000000000", 1000000000000000000 },
	};
	int64_t out = 77;

	ck_assert_int_eq(tess_option_add("test", table), TESS_OK);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		setenv("TESSERA_TIMEOUT", bad[i], 1);
		ck_assert_msg(tess_option_get_seconds("timeout", &out) == TESS_EINVAL,
		              "\"%s\" was accepted", bad[i]);
		ck_assert_int_eq(out, 77);
		expect_part(tess_error(), "TESSERA_TIMEOUT=");
		expect_part(tess_error(), "seconds");
	}
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		setenv("TESSERA_TIMEOUT", good[i].text, 1);
		ck_assert_msg(tess_option_get_seconds("timeout", &out) == TESS_OK, "%s",
		              tess_error());
		ck_assert_msg(out == good[i].ns, "%s gives %lld", good[i].text, (long long)out);
	}
}
END_TEST

START_TEST(asks_what_was_meant)
{
	ck_assert_int_eq(tess_option_add("test", table), TESS_OK);
	ck_assert_int_eq(tess_option_set("thread", "1"), TESS_EINVAL);
	expect_part(tess_error(), "did you mean threads?");
	ck_assert_int_eq(tess_option_set("unrelated", "1"), TESS_EINVAL);
	expect_part(tess_error(), "no option unrelated; ");
	ck_assert_uint_eq(tess_edit_distance("", ""), 0);
	ck_assert_uint_eq(tess_edit_distance("", "abc"), 3);
	ck_assert_uint_eq(tess_edit_distance("kitten", "sitting"), 3);
	ck_assert_uint_eq(tess_edit_distance("sitting", "kitten"), 3);
	ck_assert_uint_eq(tess_edit_distance("colwise", "colwise"), 0);
	ck_assert_uint_eq(tess_edit_distance("SHM", "shm"), 0);
}
END_TEST

static bool is_gloo_key(const char *key)
{
	return !strcmp(key, "gloo_address");
}

static void check_environment(void)
{
	tess_option_check_environment(is_gloo_key);
}

START_TEST(warns_of_undeclared_variables)
{
	char captured[4096], wide[300] = "TESSERA_";

	ck_assert_int_eq(tess_option_add("test", table), TESS_OK);
	clearenv();
	setenv("TESSERA_BACKEN", "gloo", 1);
	setenv("TESSERA_XYZZY", "1", 1);
	setenv("TESSERA_THREADS", "1", 1);
	setenv("TESSERA_GLOO_ADDRESS", "::1", 1);
	setenv("TESSERAX", "1", 1);
	setenv("TESSERA_", "1", 1);
	memset(wide + 8, 'W', sizeof wide - 9);
	setenv(wide, "1", 1);
	capture_stderr(check_environment, captured, sizeof captured);
	expect_part(captured, "TESSERA_BACKEN; did you mean TESSERA_BACKEND?");
	expect_part(captured, "nothing reads TESSERA_XYZZY; `tessera info --options`");
	expect_part(captured, "TESSERA_WWW");
	ck_assert_ptr_null(strstr(captured, "THREADS"));
	ck_assert_ptr_null(strstr(captured, "GLOO"));
	ck_assert_ptr_null(strstr(captured, "TESSERAX"));
}
END_TEST

static void *set_option_repeatedly(void *key)
{
	for (int i = 0; i < 1000; i++) {
		if (tess_option_add("test", table) || tess_option_set(key, i % 2 ? "1" : "2"))
			return "failed";
		if (strlen(tess_option_get("threads")) != 1)
			return "torn";
	}
	return NULL;
}

START_TEST(is_safe_from_any_thread)
{
	pthread_t threads[4];
	void *result;

	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, set_option_repeatedly, "threads"), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &result);
		ck_assert_ptr_null(result);
	}
}
END_TEST

SUITE_MAIN("option", argument_over_environment_over_preset, known_before_its_reader,
           tables_are_declared_once, reads_integers, reads_seconds, asks_what_was_meant,
           warns_of_undeclared_variables, is_safe_from_any_thread)

/*
 * check.h - the parts of Check that the tests of the CPU device use, for a processor without Check.
 * All tests run in one process, which ends at the first failure. At the end it writes a digest of
 * the values compared with the first device, equal on every processor.
 */
#ifndef TESS_TESTS_AARCH64_CHECK_H
#define TESS_TESTS_AARCH64_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_DIGEST

typedef struct {
	const char *name;
	void (*run)(int i);
} TTest;
typedef const char Suite, TCase, SRunner;
enum { CK_ENV, CHECK_TESTS = 32 };

static struct {
	const TTest *test;
	int lo, hi;
} check_tests[CHECK_TESTS];
static int check_ntests;
static uint64_t check_digest = 0xcbf29ce484222325;

/* Adds words of 32 bits to an FNV-1a hash; all NaNs are one. */
static inline void check_add_to_digest(const float *x, int64_t n)
{
	uint32_t bits;

	for (int64_t i = 0; i < n; i++) {
		memcpy(&bits, &x[i], sizeof bits);
		check_digest = (check_digest ^ (x[i] == x[i] ? bits : 0)) * 0x100000001b3;
	}
}

#define START_TEST(test) \
	static void test##_run(int _i); \
	static const TTest test##_test = { #test, test##_run }; \
	static const TTest *const test = &test##_test; \
	static void test##_run(int _i)
#define END_TEST

#define ck_abort_msg(...) \
	(fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), \
	 fputc('\n', stderr), exit(EXIT_FAILURE))
#define ck_assert_msg(condition, ...) ((condition) ? (void)0 : (void)ck_abort_msg(__VA_ARGS__))
#define ck_assert(condition) ck_assert_msg(condition, "%s", #condition)
#define ck_assert_int_eq(a, b) ck_assert((a) == (b))
#define ck_assert_int_lt(a, b) ck_assert((a) < (b))
#define ck_assert_int_le(a, b) ck_assert((a) <= (b))
#define ck_assert_mem_eq(a, b, n) ck_assert(!memcmp(a, b, n))
#define ck_assert_uint_eq(a, b) ck_assert((a) == (b))
#define ck_assert_str_eq(a, b) ck_assert(!strcmp(a, b))
#define ck_assert_ptr_null(p) ck_assert(!(p))
#define ck_assert_ptr_nonnull(p) ck_assert(p)

#define suite_create(name) (name)
#define tcase_create(name) (name)
#define suite_add_tcase(suite, tcase) ((void)(suite), (void)(tcase))
#define tcase_set_timeout(tcase, seconds) ((void)(tcase), (void)(seconds))
#define srunner_create(suite) (suite)
#define srunner_ntests_failed(runner) ((void)(runner), 0)
#define srunner_free(runner) ((void)(runner))

#define tcase_add_test(tcase, test) tcase_add_loop_test(tcase, test, 0, 1)
static inline void tcase_add_loop_test(TCase *tcase, const TTest *test, int lo, int hi)
{
	(void)tcase;
	check_tests[check_ntests].test = test;
	check_tests[check_ntests].lo = lo;
	check_tests[check_ntests++].hi = hi;
}

static inline void srunner_run_all(SRunner *runner, int mode)
{
	(void)mode;
	for (int i = 0; i < check_ntests; i++)
		for (int k = check_tests[i].lo; k < check_tests[i].hi; k++)
			check_tests[i].test->run(k);
	printf("%s %016llx\n", runner, (unsigned long long)check_digest);
}

#endif

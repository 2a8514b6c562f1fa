/* suite.h - main() of a unit test: one suite, one case, the tests that it names. */
#ifndef TESS_TESTS_SUITE_H
#define TESS_TESTS_SUITE_H

#include <check.h>
#include <stdlib.h>

/* ck_assert for tight loops: Check writes to a pipe at each of its own. */
#define MUST(condition) \
	do { \
		if (!(condition)) \
			ck_abort_msg("%s", #condition); \
	} while (0)

/* `tests` ends with NULL; each runs in a process of its own (but with CK_FORK=no). */
static inline int suite_main(const char *name, const TTest *const *tests)
{
	Suite *suite = suite_create(name);
	TCase *tcase = tcase_create(name);
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tcase);
	tcase_set_timeout(tcase, 120);
	for (; *tests; tests++)
		tcase_add_test(tcase, *tests);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#define SUITE_MAIN(name, ...) \
	int main(void) \
	{ \
		return suite_main(name, (const TTest *const[]){ __VA_ARGS__, NULL }); \
	}

#endif

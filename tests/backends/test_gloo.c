/*
 * test_gloo.c - a backend of processes, where tessera conform has no test. This program also runs
 * as the ranks. TEST_BACKEND names the backend; gloo by default.
 */
#include "tests/support/job.h"
#include "tests/support/scenario.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char *get_backend_name(void)
{
	const char *name = getenv("TEST_BACKEND");

	return name ? name : "gloo";
}

/* Scenarios without a failure. */
static const struct {
	int nranks;
	const char *scenario;
} successes[] = {
	{ 3, "batches" }, { 3, "released" }, { 4, "released" },
	{ 3, "groups" },  { 4, "groups" },   { 3, "splits" },
};

START_TEST(ranks_succeed)
{
	struct test_job j;

	job_run_self(&j, successes[_i].nranks, get_backend_name(), "60", successes[_i].scenario,
	             "0");
	ck_assert_msg(j.status == 0, "%s by %d ranks: status %d: %s", successes[_i].scenario,
	              successes[_i].nranks, j.status, j.text);
}
END_TEST

/* Ways to lose rank 1 of 4, and the exit status of the job. */
static const struct {
	const char *scenario;
	int status;
} losses[] = {
	{ "killed_apart", 128 + SIGKILL },
	{ "exits", 1 },
	{ "fails", 1 },
};

/* Checks for a report within a second, at least once in several tries: the machine may be busy. */
START_TEST(loss_of_rank_1_is_reported)
{
	struct test_job j;
	double longest = 1;

	for (int i = 0; i < 10 && longest >= 1; i++) {
		job_run_self(&j, 4, get_backend_name(), "60", losses[_i].scenario, "4096");
		ck_assert_msg(j.status == losses[_i].status, "%s: status %d: %s",
		              losses[_i].scenario, j.status, j.text);
		ck_assert_msg(!strstr(j.text, "terminate called"), "%s", j.text);
		longest = 0;
		for (int r = 0; r < 4; r++) {
			double seconds = r == 1 ? 0 : scenario_parse_failure(j.text, r, "rank 1");

			longest = seconds > longest ? seconds : longest;
		}
	}
	ck_assert_msg(longest < 1, "%s: %s", losses[_i].scenario, j.text);
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *runner;
	TCase *tcase;

	if (argc > 1)
		return scenario_main(argc, argv);
	tcase = suite_begin(get_backend_name(), 120, &runner);
	tcase_add_loop_test(tcase, ranks_succeed, 0, sizeof successes / sizeof *successes);
	tcase_add_loop_test(tcase, loss_of_rank_1_is_reported, 0, sizeof losses / sizeof *losses);
	return suite_end(runner);
}

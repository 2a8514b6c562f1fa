/*
 * A backend of processes: what tessera conform does not test. This program also runs as the ranks.
 * TEST_BACKEND names the backend; gloo by default.
 */
#include "../unit/suite.h"
#include "job.h"
#include "scenario.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char *get_backend_name(void)
{
	const char *name = getenv("TEST_BACKEND");

	return name ? name : "gloo";
}

static void run_backend_job(struct test_job *j, int n, const char *scenario, const char *arg)
{
	char *argv[] = { "rank", (char *)(uintptr_t)scenario, (char *)(uintptr_t)arg, NULL };
	struct tess_launch how = {
		.nranks = n,
		.path = "/proc/self/exe",
		.argv = argv,
		.backend = get_backend_name(),
		.timeout = "60",
	};

	job_start(j, &how);
	job_finish(j);
}

static void expect_backend_success(int n, const char *scenario)
{
	struct test_job j;

	run_backend_job(&j, n, scenario, "0");
	ck_assert_msg(j.status == 0, "%s by %d ranks: status %d: %s", scenario, n, j.status,
	              j.text);
}

START_TEST(batches)
{
	expect_backend_success(3, "batches");
}
END_TEST
START_TEST(calls_are_polled_and_released)
{
	expect_backend_success(3, "released");
	expect_backend_success(4, "released");
}
END_TEST
START_TEST(groups_of_some_ranks)
{
	expect_backend_success(3, "groups");
	expect_backend_success(4, "groups");
}
END_TEST
START_TEST(groups_leave_nothing)
{
	expect_backend_success(3, "splits");
}
END_TEST

/*
 * The 3 survivors all blame rank 1. Returns the time from its last call to the last survivor's
 * failure.
 */
static double measure_failure_delay(struct test_job *j, const char *scenario, int status)
{
	double seconds, longest = 0;

	run_backend_job(j, 4, scenario, "4096");
	ck_assert_msg(j->status == status, "%s: status %d: %s", scenario, j->status, j->text);
	for (int r = 0; r < 4; r++) {
		char text[48];
		const char *at, *end;

		if (r == 1)
			continue;
		snprintf(text, sizeof text, "[%d] failed after ", r);
		at = strstr(j->text, text);
		ck_assert_msg(at && sscanf(at + strlen(text), "%lf", &seconds) == 1,
		              "%s: rank %d: %s", scenario, r, j->text);
		end = strchr(at, '\n');
		at = strstr(at, "rank 1");
		ck_assert_msg(at && at < end, "%s: rank %d does not name rank 1: %s", scenario, r,
		              j->text);
		longest = seconds > longest ? seconds : longest;
	}
	ck_assert_msg(!strstr(j->text, "terminate called"), "%s", j->text);
	return longest;
}

/* Within a second, at least once in several tries: the machine may be busy. */
static void expect_loss_reported(const char *scenario, int status)
{
	struct test_job j;
	double longest = 1;

	for (int i = 0; i < 3 && longest >= 1; i++)
		longest = measure_failure_delay(&j, scenario, status);
	ck_assert_msg(longest < 1, "%s: %s", scenario, j.text);
}

START_TEST(a_rank_of_another_group_is_killed)
{
	expect_loss_reported("killed_apart", 128 + SIGKILL);
}
END_TEST
START_TEST(a_rank_exits)
{
	expect_loss_reported("exits", 1);
}
END_TEST
START_TEST(a_rank_fails)
{
	expect_loss_reported("fails", 1);
}
END_TEST

int main(int argc, char **argv)
{
	if (argc > 1)
		return scenario_main(argc, argv);
	return suite_main(get_backend_name(), (const TTest *const[]){
						      batches,
						      calls_are_polled_and_released,
						      groups_of_some_ranks,
						      groups_leave_nothing,
						      a_rank_of_another_group_is_killed,
						      a_rank_exits,
						      a_rank_fails,
						      NULL,
					      });
}

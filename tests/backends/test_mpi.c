/*
 * test_mpi.c - the backend mpi under the installed mpirun: messages, failures, and the end of jobs.
 * This program also runs as the ranks.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "tests/support/command.h"
#include "tests/support/mismatch.h"
#include "tests/support/netns.h"
#include "tests/support/scenario.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char output[1 << 16];
static double elapsed;
static int timeout_s = 60; /* s; mpirun waits for a stopped rank without limit */
static char launcher[512] = "mpirun --oversubscribe";

/*
 * Runs `mpirun ARGS COMMAND`, with all output in `text`; returns the exit status. Open MPI
 * sometimes leaves the shared memory of killed ranks.
 */
static int run_mpirun(const char *env, const char *args, const char *command)
{
	int64_t begin = tess_now();
	int status = command_run(
		output, sizeof output,
		"%s OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TESSERA_BACKEND=mpi "
		"OMPI_MCA_btl_vader_backing_directory='%s' "
		"timeout -k 5 %d %s %s %s 2>&1 </dev/null",
		env, scratch, timeout_s, launcher, args, command);

	elapsed = (double)(tess_now() - begin) / 1e9;
	return status;
}

static int run_scenario_under_mpirun(const char *env, const char *args, const char *scenario)
{
	char self[PATH_MAX], command[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	ck_assert_int_gt(n, 0);
	self[n] = '\0';
	snprintf(command, sizeof command, "'%s' %s", self, scenario);
	return run_mpirun(env, args, command);
}

static void expect_mpi_success(const char *args, const char *scenario)
{
	int status = run_scenario_under_mpirun("TESSERA_TIMEOUT=30", args, scenario);

	ck_assert_msg(status == 0, "%s %s: status %d: %s", args, scenario, status, output);
	ck_assert_msg(!strstr(output, "finalize"), "%s", output);
}

START_TEST(does_what_conform_does_not_test)
{
	expect_mpi_success("-n 3", "batches");
	expect_mpi_success("-n 3", "released");
	expect_mpi_success("-n 3", "splits");
	expect_mpi_success("-n 4", "groups");
}
END_TEST

/*
 * Expects that all ranks of 4 but rank 1 failed within `max_seconds`, with a message that contains
 * `what`.
 */
static void expect_survivors_fail(double max_seconds, const char *what)
{
	for (int r = 0; r < 4; r++)
		ck_assert_msg(r == 1 || scenario_parse_failure(output, r, what) <= max_seconds,
		              "rank %d took longer than %g s: %s", r, max_seconds, output);
}

/* Uses --enable-recovery, without which mpirun would end the other ranks before they report. */
START_TEST(names_a_dead_rank)
{
	static const char *const scenarios[] = { "killed 4000", "killed 2000000" };

	for (int i = 0; i < 2; i++) {
		run_scenario_under_mpirun("TESSERA_TIMEOUT=20", "--enable-recovery -n 4",
		                          scenarios[i]);
		expect_survivors_fail(20, "rank 1");
		ck_assert_msg(elapsed < 20, "%f s", elapsed);
	}
}
END_TEST

START_TEST(ends_with_a_dead_rank)
{
	int status = run_scenario_under_mpirun("TESSERA_TIMEOUT=20", "-n 4", "killed 4000");

	ck_assert_msg(status > 0, "status %d: %s", status, output);
	ck_assert_msg(elapsed < 20, "%f s", elapsed);
}
END_TEST

/* Keeps rank 0 in MPI_Test: the other ranks fail, and rank 0 ends. */
START_TEST(ends_a_rank_stuck_in_mpi)
{
	run_scenario_under_mpirun("TESSERA_TIMEOUT=2 LD_PRELOAD='" STUCK "'",
	                          "--enable-recovery -n 3", "killed 4000");
	ck_assert_msg(scenario_parse_failure(output, 2, "rank ") <= 3.5, "%s", output);
	expect_part(output, "rank 0 of group world is kept inside MPI");
	ck_assert_msg(elapsed < 15, "%f s", elapsed);
}
END_TEST

/* Checks for a failure at the deadline, at least once in several tries: the machine may be busy. */
START_TEST(names_a_stopped_rank)
{
	bool soon = false;

	timeout_s = 6;
	for (int i = 0; i < 6 && !soon; i++) {
		run_scenario_under_mpirun("TESSERA_TIMEOUT=2", "--enable-recovery -n 3",
		                          "stopped 4000");
		soon = scenario_parse_failure(output, 0, "rank 1") <= 2.5;
		soon = scenario_parse_failure(output, 2, "rank 1") <= 2.5 && soon;
	}
	ck_assert_msg(soon, "%s", output);
}
END_TEST

/* Stops a rank before MPI_Init_thread, in which the other ranks wait for it. */
START_TEST(names_a_rank_stopped_before_mpi)
{
	timeout_s = 6;
	run_scenario_under_mpirun("TESSERA_TIMEOUT=2 TESSERA_FAULTY=rank=1,call=0,do=stop",
	                          "--enable-recovery -n 3 env TESSERA_BACKEND=faulty:mpi",
	                          "loop 100");
	expect_part(output, "rank 1 (process");
	expect_part(output, "is stopped; the opening of the group of all ranks");
}
END_TEST

/* Few, as mpirun takes a second; test_mismatch makes hundreds on other backends. */
enum { MISMATCHES = 6 };

/* Runs a rank whose calls do not match, derived from the seed; it prints its failure. */
static int run_mismatch_rank(const char *seed)
{
	struct mismatch m;
	struct tess_world *w;
	struct mismatch_buffers *kept = NULL;
	tess_status st = tess_world_open(&w);

	if (!st) {
		mismatch_make(strtoull(seed, NULL, 10), tess_world_size(w), &m);
		st = mismatch_run(w, &m, &kept);
		printf("[%d] %s: %s\n", tess_world_rank(w), tess_status_name(st), tess_error());
		fflush(stdout);
		tess_world_close(w);
	}
	mismatch_free(kept);
	tess_registry_quit();
	return st == TESS_EMISMATCH ? 0 : 1;
}

START_TEST(names_calls_that_do_not_match)
{
	char scenario[32], args[48], said[48];

	for (int seed = 1; seed <= MISMATCHES; seed++) {
		int n = 2 + seed % 3;

		snprintf(scenario, sizeof scenario, "mismatch %d", seed);
		snprintf(args, sizeof args, "--enable-recovery -n %d", n);
		run_scenario_under_mpirun("TESSERA_TIMEOUT=20", args, scenario);
		for (int r = 0; r < n; r++) {
			snprintf(said, sizeof said, "[%d] TESS_EMISMATCH: ", r);
			ck_assert_msg(strstr(output, said) != NULL, "%s, %d ranks: %s", scenario, n,
			              output);
		}
	}
}
END_TEST

static bool is_mpi_rank(const char *rank)
{
	const char *mine = getenv("OMPI_COMM_WORLD_RANK");

	return mine && !strcmp(mine, rank);
}

/* Runs mpirun on the first of two simulated hosts; "ssh" switches between them. */
static void use_two_hosts(const char *name, const char *agent)
{
	FILE *f = fopen(agent, "w");

	ck_assert_ptr_nonnull(f);
	fprintf(f,
	        "#!/bin/sh\nshift\nexec ip netns exec %s1 unshare --uts sh -c "
	        "'hostname %s1; exec sh -c \"$*\"' sh \"$@\"\n",
	        name, name);
	ck_assert_int_eq(fchmod(fileno(f), 0700), 0);
	ck_assert_int_eq(fclose(f), 0);
	snprintf(launcher, sizeof launcher,
	         "ip netns exec %s0 unshare --uts sh -c 'hostname %s0; exec \"$@\"' sh mpirun "
	         "--oversubscribe --mca plm_rsh_agent %s --host 10.231.7.1:2,10.231.7.2:2 "
	         "-x TESSERA_BACKEND -x TESSERA_TIMEOUT",
	         name, name, agent);
}

/* Checks that MPI carries the messages between hosts: no address and no secret is given. */
START_TEST(joins_ranks_of_two_hosts)
{
	char name[16], agent[64], said[2048], missed[2048];
	int moved = -1, absent;

	snprintf(name, sizeof name, "tm%d", (int)getpid());
	if (!netns_create(name))
		return;
	snprintf(agent, sizeof agent, "/tmp/tessera-test-%s", name);
	use_two_hosts(name, agent);
	/* mpirun itself sometimes crashes while it prints a help text of another host */
	for (int i = 0; i < 3 && (!i || strstr(output, "orte_rml_oob_send_buffer_nb")); i++)
		moved = run_scenario_under_mpirun("TESSERA_TIMEOUT=30", "-n 4", "groups");
	snprintf(said, sizeof said, "%.2000s", output);
	absent = run_scenario_under_mpirun("TESSERA_TIMEOUT=1", "-n 4", "absent");
	snprintf(missed, sizeof missed, "%.2000s", output);
	timeout_s = 8; /* with --enable-recovery mpirun does not end */
	run_scenario_under_mpirun("TESSERA_TIMEOUT=4", "--enable-recovery -n 4", "killed 4000");
	unlink(agent);
	netns_delete(name);
	ck_assert_msg(!moved, "status %d: %s", moved, said);
	ck_assert_msg(absent > 0 && strstr(missed, "it waits for all 4 ranks"), "status %d: %s",
	              absent, missed);
	expect_survivors_fail(4.5, "rank 1 has sent nothing for ");
}
END_TEST

/* Copies the last line that begins with "digest". */
static void copy_digest_line(const char *where, char out[static 96])
{
	const char *at = strstr(where, "digest ");

	ck_assert_msg(at != NULL, "%s", where);
	snprintf(out, 96, "%.*s", (int)strcspn(at, "\n"), at);
}

START_TEST(generates_the_same_bits)
{
	static const char *const command =
		TESSERA " generate " SOURCE_ROOT "/data --digest --prompt 'Once upon a time' "
			"--max-tokens 12";
	char alone[96], ranks[96];

	ck_assert_int_eq(
		command_run(output, sizeof output, "%s --backend loopback -n 3 2>&1", command), 0);
	copy_digest_line(output, alone);
	ck_assert_msg(run_mpirun("", "-n 3", command) == 0, "%s", output);
	copy_digest_line(output, ranks);
	ck_assert_str_eq(alone, ranks);
}
END_TEST

START_TEST(says_how_it_is_started)
{
	ck_assert_int_ne(command_run(output, sizeof output,
	                             TESSERA " generate " SOURCE_ROOT
	                                     "/data -n 2 --backend mpi --prompt x 2>&1"),
	                 0);
	expect_part(output, "mpirun -n 2");
}
END_TEST

int main(int argc, char **argv)
{
	int status;

	if (argc > 2 && !strcmp(argv[1], "mismatch"))
		return run_mismatch_rank(argv[2]);
	if (argc > 1 && !strcmp(argv[1], "absent") && is_mpi_rank("2"))
		return pause();
	if (argc > 1)
		return scenario_main(argc, argv);
	scratch_make();
	if (run_mpirun("", "-n 1", "true")) {
		printf("skipped: no mpirun of Open MPI that runs: %s\n", output);
		status = 77;
	} else {
		status = suite_main(
			"mpi", (const TTest *const[]){
				       does_what_conform_does_not_test, names_a_dead_rank,
				       ends_with_a_dead_rank, ends_a_rank_stuck_in_mpi,
				       names_a_stopped_rank, names_a_rank_stopped_before_mpi,
				       names_calls_that_do_not_match, joins_ranks_of_two_hosts,
				       generates_the_same_bits, says_how_it_is_started, NULL });
	}
	scratch_remove();
	return status;
}

/*
 * test_spawn.c - tess_world_spawn over backends of threads and of processes: results, messages,
 * crashes, hangs, and that nothing remains. Through tessera.h only.
 */
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <time.h>

enum { RANKS = 3, JOBS = 20, SOON_S = 10 };

static const char *const backends[] = { "loopback", "faulty:loopback", "shm", "trace:shm",
	                                "gloo",     "faulty:gloo" };
enum { BACKENDS = HAVE_GLOO ? 6 : 4, FIRST_FORKED = 2 };

/* What processes write, for the test: a fork does not copy it. */
static struct shared {
	atomic_int pid[RANKS], nexits, nready;
} * shared;

static void share_test_memory(void)
{
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
	              0);
	ck_assert(shared != MAP_FAILED);
}

static void use_backend(const char *name, const char *timeout)
{
	setenv("TESSERA_TRACE_FILE", scratch_format_path("trace.json"), 1);
	ck_assert(!tess_option_set("backend", name) && !tess_option_set("timeout", timeout));
	share_test_memory();
}

static double get_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void note_process(struct tess_world *w)
{
	atomic_store(&shared->pid[tess_world_rank(w)], getpid());
	atomic_fetch_add(&shared->nready, 1);
}

/* Checks that this process has no child, and that the noted processes have ended. */
static void expect_no_process(void)
{
	ck_assert(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
	for (int r = 0; r < RANKS; r++)
		if (shared->pid[r] && shared->pid[r] != getpid())
			ck_assert_msg(kill(shared->pid[r], 0) && errno == ESRCH, "rank %d runs", r);
}

/* ---- results --------------------------------------------------------------------------------- */

struct sum {
	int32_t rank, total, process;
	char backend[32];
};

static tess_status add_ranks(struct tess_world *w, void *arg, void *result)
{
	struct sum *s = result;

	if (s->rank || s->total || *s->backend)
		return tess_fail(TESS_EBUG, "the result is not zero before");
	s->rank = tess_world_rank(w);
	s->process = getpid();
	snprintf(s->backend, sizeof s->backend, "%s", tess_world_backend(w));
	note_process(w);
	return tess_all_reduce(tess_world_group(w), &s->rank, &s->total, 1, TESS_I32, TESS_SUM,
	                       arg);
}

START_TEST(results_are_in_order)
{
	struct sum sum[RANKS];

	use_backend(backends[_i], "60");
	for (int32_t n = 1; n <= RANKS; n++) {
		ck_assert_msg(!tess_world_spawn_results(n, add_ranks, "sum", sum, sizeof *sum),
		              "%s", tess_error());
		for (int32_t r = 0; r < n; r++) {
			ck_assert_int_eq(sum[r].rank, r);
			ck_assert_int_eq(sum[r].total, n * (n - 1) / 2);
			ck_assert_str_eq(sum[r].backend, backends[_i]);
			ck_assert_int_eq(sum[r].process == getpid(), _i < FIRST_FORKED);
		}
	}
	expect_no_process();
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

#define PLACE "model.layers.1.mlp"

enum fault { FAILS, FAILS_AND_CRASHES, CRASHES, EXITS, EXITS_0, HANGS, DIFFERS };

static tess_status meet_at_fault(struct tess_world *w, void *arg)
{
	struct tess_group *all = tess_world_group(w);
	int32_t me = tess_world_rank(w), x = 0;
	tess_status st = tess_barrier(all, PLACE);

	note_process(w);
	if (st || me != 1)
		return st ? st : tess_all_reduce(all, &me, &x, 1, TESS_I32, TESS_SUM, PLACE ".sum");
	switch (*(enum fault *)arg) {
	case FAILS:
		return tess_fail(TESS_ENOENT, "no such thing");
	case FAILS_AND_CRASHES:
		tess_world_fail(w, TESS_ENOENT, "no such thing");
		/* fall through */
	case CRASHES:
		signal(SIGSEGV, SIG_DFL);
		raise(SIGSEGV);
		break;
	case EXITS:
		exit(3);
	case EXITS_0:
		exit(0);
	case HANGS:
		while (1)
			pause();
	case DIFFERS:
		return tess_broadcast(all, &x, 1, TESS_I32, 0, PLACE ".other");
	}
	return TESS_OK;
}

static void count_exit(void)
{
	if (shared)
		atomic_fetch_add(&shared->nexits, 1);
}

static const struct fault_case {
	enum fault fault;
	tess_status why;
	const char *says[3];
} faults[] = {
	{ FAILS, TESS_ENOENT, { "rank 1: no such thing" } },
	{ FAILS_AND_CRASHES, TESS_ENOENT, { "rank 1: no such thing" } },
	{ CRASHES,
	  TESS_EPEER,
	  { "rank 1 was killed by signal 11 (Segmentation fault); its last call was barrier, ",
	    PLACE } },
	{ EXITS,
	  TESS_EPEER,
	  { "rank 1 exited with status 3; its last call was barrier, ", PLACE } },
	{ EXITS_0, TESS_EPEER, { "rank 1 ", "has ended without leaving the job" } },
	{ HANGS,
	  TESS_ETIMEOUT,
	  { "rank 1 has not returned, and was killed: its last call was barrier", "all_reduce",
	    PLACE ".sum" } },
	{ DIFFERS, TESS_EMISMATCH, { "all_reduce", "broadcast", PLACE ".other" } },
};
enum { FAULTS = sizeof faults / sizeof *faults };

static void expect_fault(const char *backend, const struct fault_case *c)
{
	enum fault fault = c->fault;
	double began = get_seconds();
	tess_status st;

	use_backend(backend, fault == HANGS ? "0.5" : "60");
	st = tess_world_spawn(RANKS, meet_at_fault, &fault);
	ck_assert_msg(st == c->why, "%s: %d, not %d: %s", backend, st, c->why, tess_error());
	for (size_t i = 0; i < 3 && c->says[i]; i++)
		expect_part(tess_error(), c->says[i]);
	ck_assert_msg(get_seconds() - began < SOON_S, "%g s", get_seconds() - began);
	ck_assert_int_eq(shared->nexits, 0);
	expect_no_process();
}

START_TEST(failures_of_processes_come_back)
{
	atexit(count_exit);
	for (int b = FIRST_FORKED; b < BACKENDS; b++)
		expect_fault(backends[b], &faults[_i]);
	shared = NULL;
}
END_TEST

static tess_status crash_with_reports(struct tess_world *w, void *arg)
{
	(void)arg;
	if (tess_world_rank(w) == 1)
		raise(SIGSEGV);
	return TESS_OK;
}

static void spawn_a_crash(void)
{
	ck_assert_int_eq(tess_world_spawn(2, crash_with_reports, NULL), TESS_EPEER);
}

/* The handler of faults is that of each rank, not of the caller. */
START_TEST(crashes_are_reported)
{
	struct sigaction before = { .sa_handler = SIG_DFL }, after;
	char text[4096];

	use_backend("shm", "60");
	ck_assert(!sigaction(SIGSEGV, &before, NULL));
	capture_stderr(spawn_a_crash, text, sizeof text);
	expect_part(text, "[1/2] plugin: error: outside of the calls of plugins: signal 11 (");
	ck_assert(!sigaction(SIGSEGV, NULL, &after) && after.sa_handler == SIG_DFL);
}
END_TEST

START_TEST(failures_of_threads_come_back)
{
	expect_fault("loopback", &faults[0]);
	expect_fault("loopback", &faults[DIFFERS]);
}
END_TEST

static tess_status fail_to_open(struct tess_world *w, void *arg)
{
	(void)w, (void)arg;
	return TESS_OK;
}

START_TEST(failures_of_opening_come_back)
{
	use_backend("shm", "60");
	setenv("TESSERA_REDUCE", "wrong", 1);
	ck_assert_int_eq(tess_world_spawn(2, fail_to_open, NULL), TESS_EINVAL);
	expect_part(tess_error(), "TESSERA_REDUCE=wrong: must be exact or fast");
	expect_no_process();
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

static tess_status spawn_inside(struct tess_world *w, void *arg)
{
	(void)w;
	ck_assert(!tess_option_set("backend", "shm"));
	return tess_world_spawn(2, fail_to_open, arg);
}

START_TEST(refuses_a_fork_beside_threads)
{
	use_backend("loopback", "60");
	ck_assert_int_eq(tess_world_spawn(1, spawn_inside, NULL), TESS_EINVAL);
	expect_part(tess_error(), "the ranks over shm are forked, and this process has a world");
	ck_assert_msg(!tess_world_spawn(2, fail_to_open, NULL), "%s", tess_error());
}
END_TEST

START_TEST(names_the_launcher_of_mpi)
{
	tess_status st;

	use_backend("mpi", "60");
	st = tess_world_spawn(2, fail_to_open, NULL);
	if (st == TESS_ENOENT) /* built without MPI */
		return;
	ck_assert_int_eq(st, TESS_EINVAL);
	expect_part(tess_error(), "mpirun -n 2");
}
END_TEST

static tess_status close_own_world(struct tess_world *w, void *arg)
{
	(void)arg;
	tess_world_close(w);
	return TESS_OK;
}

START_TEST(refuses_a_closed_world)
{
	use_backend("shm", "60");
	ck_assert_int_eq(tess_world_spawn(2, close_own_world, NULL), TESS_EINVAL);
	expect_part(tess_error(), "a function of tess_world_spawn does not close its world");
}
END_TEST

/* ---- what remains ---------------------------------------------------------------------------- */

static tess_status hang_with_all_ranks(struct tess_world *w, void *arg)
{
	(void)arg;
	note_process(w);
	while (shared)
		pause();
	return TESS_OK;
}

/* Waits until `n` adopted children have ended; returns whether they have. */
static bool reap_children(int n)
{
	double until = get_seconds() + SOON_S;

	while (n > 0 && get_seconds() < until) {
		if (waitpid(-1, NULL, WNOHANG) > 0)
			n--;
		else
			usleep(1000);
	}
	return n == 0;
}

/* Ends a process that waits in tess_world_spawn, by a signal; all of its ranks end. */
static void end_spawning_process(int sig)
{
	int status;
	pid_t pid;

	use_backend(sig == SIGKILL ? "shm" : backends[BACKENDS - 2], "60");
	prctl(PR_SET_CHILD_SUBREAPER, 1L, 0L, 0L, 0L);
	pid = fork();
	if (!pid) {
		signal(SIGTERM, SIG_DFL); /* Check's handler ends the process group */
		tess_world_spawn(RANKS, hang_with_all_ranks, NULL);
		_exit(0);
	}
	while (shared->nready < RANKS)
		usleep(1000);
	kill(pid, sig);
	ck_assert(waitpid(pid, &status, 0) == pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == sig);
	/* killed: its launcher and, if that ends before it has waited for them, the ranks */
	ck_assert(sig != SIGKILL || reap_children(1));
	for (int r = 0; r < RANKS; r++) {
		for (int i = 0; i < 1000 * SOON_S && !kill(shared->pid[r], 0); i++) {
			waitpid(-1, NULL, WNOHANG);
			usleep(1000);
		}
		ck_assert(kill(shared->pid[r], 0) && errno == ESRCH);
	}
}

START_TEST(ranks_end_with_the_caller)
{
	end_spawning_process(SIGKILL);
}
END_TEST

START_TEST(signals_reach_the_caller)
{
	end_spawning_process(SIGTERM);
}
END_TEST

static tess_status print_rank(struct tess_world *w, void *arg)
{
	(void)w, (void)arg;
	printf("rank\n");
	return TESS_OK;
}

START_TEST(output_is_written_once)
{
	char text[64] = "";
	FILE *f = tmpfile();
	int saved = dup(STDOUT_FILENO);

	use_backend("shm", "60");
	dup2(fileno(f), STDOUT_FILENO);
	printf("caller\n");
	ck_assert_msg(!tess_world_spawn(2, print_rank, NULL), "%s", tess_error());
	fflush(stdout);
	dup2(saved, STDOUT_FILENO);
	ck_assert_int_gt(pread(fileno(f), text, sizeof text - 1, 0), 0);
	ck_assert_str_eq(text, "caller\nrank\nrank\n");
	fclose(f);
}
END_TEST

/* Runs 20 jobs of two ranks at the same time: none takes a port or a name of another. */
START_TEST(jobs_run_at_the_same_time)
{
	struct sum sum[2];
	pid_t pid[JOBS];
	int status;

	use_backend(backends[BACKENDS - 2], "60");
	for (int i = 0; i < JOBS; i++) {
		pid[i] = fork();
		if (!pid[i]) {
			if (tess_world_spawn_results(2, add_ranks, "sum", sum, sizeof *sum))
				fprintf(stderr, "%s\n", tess_error());
			_exit(sum[1].total != 1);
		}
	}
	for (int i = 0; i < JOBS; i++) {
		ck_assert(waitpid(pid[i], &status, 0) == pid[i]);
		ck_assert_int_eq(status, 0);
	}
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase;
	int failed;

	scratch_make();
	tcase = suite_begin("spawn", 120, &runner);
	tcase_add_loop_test(tcase, results_are_in_order, 0, BACKENDS);
	tcase_add_loop_test(tcase, failures_of_processes_come_back, 0, FAULTS);
	tcase_add_test(tcase, crashes_are_reported);
	tcase_add_test(tcase, failures_of_threads_come_back);
	tcase_add_test(tcase, failures_of_opening_come_back);
	tcase_add_test(tcase, refuses_a_fork_beside_threads);
	tcase_add_test(tcase, names_the_launcher_of_mpi);
	tcase_add_test(tcase, refuses_a_closed_world);
	tcase_add_test(tcase, ranks_end_with_the_caller);
	tcase_add_test(tcase, signals_reach_the_caller);
	tcase_add_test(tcase, output_is_written_once);
	tcase_add_test(tcase, jobs_run_at_the_same_time);
	failed = suite_end(runner);
	scratch_remove();
	return failed;
}

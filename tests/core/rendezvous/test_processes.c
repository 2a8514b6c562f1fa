/*
 * test_processes.c - ranks that are processes, over the Unix socket and without a backend: they
 * meet, and the end of one is reported to the others. test_gloo and test_launch use a backend.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/rendezvous/link.h"
#include "core/rendezvous/records.h"
#include "core/rendezvous/rendezvous.h"
#include "core/rendezvous/wire.h"
#include "tests/support/process.h"
#include "tests/support/suite.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

enum { N = 3, TEST_TIMEOUT_MS = 20000 };

/* ---- the ranks ------------------------------------------------------------------------------- */

static int nranks;
static atomic_int has_failed;
static struct tess_failure first_failure;

static void store_first_failure(void *arg, const struct tess_failure *f)
{
	(void)arg;
	first_failure = *f;
	atomic_store(&has_failed, 1);
}

static struct tess_failure_handler failure_handler = { .on_failure = store_first_failure,
	                                               .sigusr1_fd = -1 };

static int64_t compute_deadline(int ms)
{
	return tess_now() + ms * (int64_t)TESS_MS;
}

/* Prints the failure, and exits with 3. */
static int wait_for_first_failure(const struct tess_link *l)
{
	for (int64_t until = compute_deadline(TEST_TIMEOUT_MS);
	     !atomic_load(&has_failed) && tess_now() < until;)
		usleep(500);
	printf("%s\n", atomic_load(&has_failed) ? first_failure.sentence : "no failure");
	l->leave(l->self, compute_deadline(TEST_TIMEOUT_MS));
	l->close(l->self);
	return 3;
}

static void post_call(const struct tess_link *l, int32_t kind, uint64_t count, uint64_t number,
                      const char *where)
{
	char storage[512] __attribute__((aligned(8)));
	struct tess_coll c = { .size = sizeof c,
		               .kind = kind,
		               .dtype = TESS_F32,
		               .op = TESS_SUM,
		               .count = count,
		               .where = where };
	struct tess_call_key key = { .number = number };

	c.fingerprint = tess_call_fingerprint(tess_call_desc_hash(&c, nranks), &key, nranks);
	tess_call_desc_write((void *)storage, &c, &key, nranks);
	l->add_call(l->self, (void *)storage);
}

/* Sets keys before and after a rank gets them, sends many call descriptors, and leaves. */
static int exchange_keys(const struct tess_link *l, int rank, int n)
{
	char key[32];
	int32_t val = 0;
	uint64_t len;

	for (int i = 0; i < n; i++) {
		if (i == rank) {
			usleep(2000);
			snprintf(key, sizeof key, "rank/%d", i);
			val = 100 + i;
			if (l->set(l->self, key, &val, sizeof val))
				return 1;
		}
	}
	for (int i = 0; i < n; i++) {
		snprintf(key, sizeof key, "rank/%d", i);
		len = sizeof val;
		if (l->get(l->self, key, compute_deadline(TEST_TIMEOUT_MS), &val, &len) ||
		    len != sizeof val || val != 100 + i)
			return 1;
	}
	len = 2;
	if (l->get(l->self, "rank/0", compute_deadline(TEST_TIMEOUT_MS), &val, &len) != TESS_EINVAL)
		return 1;
	for (uint64_t i = 1; i <= 5000; i++)
		post_call(l, TESS_ALL_REDUCE, i, i, "layers.0");
	l->leave(l->self, compute_deadline(TEST_TIMEOUT_MS));
	l->close(l->self);
	if (atomic_load(&has_failed))
		printf("%s\n", first_failure.sentence);
	return atomic_load(&has_failed) ? 1 : 0;
}

static int stop_before_call(const struct tess_link *l, int rank)
{
	struct tess_call_key key = { .number = 7 };

	if (rank == 1) {
		post_call(l, TESS_BARRIER, 0, 6, "layers.0");
		usleep(100000);
		raise(SIGSTOP);
		return wait_for_first_failure(l);
	}
	post_call(l, TESS_BARRIER, 0, 6, "layers.0");
	post_call(l, TESS_BARRIER, 0, 7, "layers.1");
	usleep(400000);
	l->deadline_passed(l->self, &key, 1);
	return wait_for_first_failure(l);
}

/* Opens a world like a program started by hand: rank 0 hosts. */
static int open_world_by_hand(const char *role, const char *rank, const char *n)
{
	struct tess_world *w;

	if (setenv("RANK", rank, 1) || setenv("WORLD_SIZE", n, 1) ||
	    setenv("TESSERA_JOB", "world", 1))
		return 1;
	if (tess_world_open(&w)) {
		printf("%s\n", tess_error());
		return 2;
	}
	printf("opened with %s\n", tess_world_backend(w));
	if (!strcmp(role, "exit"))
		return 0;
	tess_world_close(w);
	return 0;
}

static int run_link_role(const char *role, int rank, int n)
{
	struct tess_rendezvous *server = NULL;
	const char *path = getenv("TEST_SOCKET");
	char own[128];
	struct tess_link l;
	int rc = 1;

	nranks = n;
	if (!path && !rank && tess_rendezvous_open("tests", n, &server)) {
		printf("%s\n", tess_error());
		return 1;
	}
	if (!path && tess_socket_path("tests", own, sizeof own))
		return 1;
	if (tess_link_socket(path ? path : own, path != NULL, rank, n,
	                     compute_deadline(strcmp(role, "hurry") ? TEST_TIMEOUT_MS : 300),
	                     &failure_handler, &l)) {
		printf("%s\n", tess_error());
		tess_rendezvous_close(server);
		return 2;
	}
	if (!strcmp(role, "meet"))
		rc = exchange_keys(&l, rank, n);
	if (!strcmp(role, "wait")) {
		printf("here\n");
		fflush(stdout);
		rc = wait_for_first_failure(&l);
	}
	if (!strcmp(role, "differ")) {
		post_call(&l, TESS_ALL_REDUCE, rank == 1 ? 12 : 11, 1,
		          rank == 1 ? "layers.9" : "layers.8");
		rc = wait_for_first_failure(&l);
	}
	if (!strcmp(role, "early")) {
		post_call(&l, TESS_ALL_REDUCE, 11, 1, "layers.8");
		rc = wait_for_first_failure(&l);
	}
	if (!strcmp(role, "leave")) {
		l.leave(l.self, compute_deadline(TEST_TIMEOUT_MS));
		l.close(l.self);
	}
	if (!strcmp(role, "post")) {
		if (rank == 1)
			(l.fail)(l.self, TESS_ENOMEM,
			         "rank 1: no memory for it"); /* not Check's macro */
		rc = wait_for_first_failure(&l);
	}
	if (!strcmp(role, "stall"))
		rc = stop_before_call(&l, rank);
	tess_rendezvous_close(server);
	return rc;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static char dir[] = "/tmp/tessera-test-XXXXXX";
static struct tess_rendezvous *hosted; /* the test's, as a launcher's; NULL: rank 0 hosts */

static void make_runtime_dir(void)
{
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", dir, 1), 0);
}

/* Removes the folder: no socket and no lock may be left. */
static void remove_runtime_dir(void)
{
	char path[128];
	struct dirent *e;
	DIR *d;

	tess_rendezvous_close(hosted);
	snprintf(path, sizeof path, "%s/tessera-%u", dir, (unsigned)geteuid());
	d = opendir(path);
	while (d && (e = readdir(d)))
		ck_assert_msg(e->d_name[0] == '.', "%s is left", e->d_name);
	if (d)
		closedir(d);
	rmdir(path);
	ck_assert_int_eq(rmdir(dir), 0);
}

static void host_rendezvous(int n)
{
	ck_assert_msg(!tess_rendezvous_open(NULL, n, &hosted), "%s", tess_error());
	ck_assert_int_eq(setenv("TEST_SOCKET", tess_rendezvous_path(hosted), 1), 0);
}

static void close_rendezvous(void)
{
	tess_rendezvous_close(hosted);
	hosted = NULL;
}

/* Hosts the rendezvous, with ranks that wait. */
static void host_waiting_ranks(struct process *p)
{
	host_rendezvous(N);
	process_start_all(p, "wait", N);
	process_await_all(p, N);
}

static void expect_both_texts(const struct process *p, const char *a, const char *b)
{
	ck_assert_msg(strstr(p->text, a) && strstr(p->text, b), "\"%s\" has no \"%s\" or no \"%s\"",
	              p->text, a, b);
}

static void finish_rank_processes(struct process *p, int n, int but, const char *a, const char *b)
{
	for (int i = 0; i < n; i++)
		process_finish(&p[i], TEST_TIMEOUT_MS);
	for (int i = 0; i < n; i++)
		if (i != but)
			expect_both_texts(&p[i], a, b);
}

/* Starts ranks, which meet. _i: 0: hosted by the launcher; 1: by rank 0 */
START_TEST(ranks_meet)
{
	struct process p[4];

	if (!_i)
		host_rendezvous(4);
	process_start_all(p, "meet", 4);
	for (int i = 0; i < 4; i++) {
		process_finish(&p[i], TEST_TIMEOUT_MS);
		ck_assert_msg(p[i].status == 0, "rank %d: %s", i, p[i].text);
	}
}
END_TEST

/*
 * Kills a rank; victim 3 is rank 0, the host. Returns the time until every other rank had failed.
 */
static int64_t measure_kill_of_rank(int which)
{
	struct process p[N];
	char sentence[256];
	int victim = which < 3 ? which : 0;
	int64_t began, longest = 0;
	int32_t rank = -1;

	if (which < 3)
		host_rendezvous(N);
	process_start_all(p, "wait", N);
	process_await_all(p, N);
	began = tess_now();
	kill(p[victim].pid, SIGKILL);
	finish_rank_processes(p, N, victim, "has ended",
	                      victim == 0   ? "rank 0"
	                      : victim == 1 ? "rank 1"
	                                    : "rank 2");
	for (int i = 0; i < N; i++)
		longest = p[i].ended_at - began > longest ? p[i].ended_at - began : longest;
	if (!hosted) { /* the other ranks remove the dead host's files, so its name can be reused */
		snprintf(sentence, sizeof sentence, "%s/tessera-%u/tests", dir,
		         (unsigned)geteuid());
		ck_assert_msg(access(sentence, F_OK), "%s is left", sentence);
		ck_assert_msg(!tess_rendezvous_open("tests", N, &hosted), "%s", tess_error());
	} else {
		ck_assert_int_eq(tess_rendezvous_failure(hosted, &rank, sentence, sizeof sentence),
		                 TESS_EPEER);
		ck_assert_int_eq(rank, victim);
	}
	close_rendezvous();
	return longest;
}

START_TEST(a_rank_is_killed)
{
	process_expect_within_second(measure_kill_of_rank, _i);
}
END_TEST

static void send_hello(int fd, int32_t rank, pid_t pid)
{
	struct tess_hello hello = { .version = TESS_WIRE_VERSION, .pid = (int32_t)pid };
	struct tess_pipe out = { 0 };

	ck_assert(tess_pipe_put(&out, TESS_HELLO, rank, N, &hello, sizeof hello, NULL, 0));
	ck_assert(tess_pipe_flush(&out, fd));
	tess_pipe_free(&out);
}

static int count_unread_bytes(int fd)
{
	int n = 0;

	ck_assert(!ioctl(fd, FIONREAD, &n));
	return n;
}

/*
 * Checks that every other rank is notified of a failure before the rank in the server's process,
 * which may then exit.
 */
START_TEST(the_host_learns_last)
{
	for (int i = 0; i < 100; i++) {
		struct tess_rendezvous *r;
		struct tess_frame welcome;
		int fd[N][2], end[N];

		for (int k = 0; k < N; k++) {
			ck_assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, fd[k]));
			end[N - 1 - k] = fd[k][1]; /* the host comes last */
		}
		ck_assert(!tess_rendezvous_open_tunnels(end, N, &r));
		for (int k = 0; k < N; k++)
			send_hello(fd[k][0], k, k ? 1 : getpid());
		for (int k = 0; k < N; k++)
			ck_assert(read(fd[k][0], &welcome, sizeof welcome) == sizeof welcome);
		close(fd[1][0]);
		while (!count_unread_bytes(fd[0][0]))
			;
		ck_assert_msg(count_unread_bytes(fd[2][0]) > 0,
		              "rank 0 was notified before rank 2");
		tess_rendezvous_close(r);
		close(fd[0][0]);
		close(fd[2][0]);
	}
}
END_TEST

/* Leaves the socket and the lock of a job whose host was killed with all its ranks. */
static void leave_stale_socket(const char *job, char path[static 128], char lock[static 136])
{
	ck_assert(!tess_socket_path(job, path, 128));
	close(tess_socket_listen(path, 1));
	snprintf(lock, 136, "%s.lock", path);
	fclose(fopen(lock, "w"));
	ck_assert(!access(path, F_OK) && !access(lock, F_OK));
}

/* Checks that the next job removes the files of a dead job, and leaves a running one alone. */
START_TEST(the_next_job_cleans_up)
{
	struct tess_rendezvous *running, *next;
	char path[128], lock[136], dead[160], alive[160], record[176];
	int held;

	ck_assert(!tess_rendezvous_open("runs", N, &running));
	leave_stale_socket("gone", path, lock);
	held = tess_records_make(dead, sizeof dead);
	ck_assert_int_ge(held, 0);
	close(held); /* done by the system for a killed launcher */
	snprintf(record, sizeof record, "%s/rank-0.json", dead);
	fclose(fopen(record, "w"));
	held = tess_records_make(alive, sizeof alive);
	ck_assert(!tess_rendezvous_open("next", N, &next));
	ck_assert_msg(access(path, F_OK) && access(lock, F_OK), "%s is left", path);
	ck_assert_msg(access(dead, F_OK), "%s is left", dead);
	ck_assert(!access(tess_rendezvous_path(running), F_OK));
	ck_assert(!access(alive, F_OK));
	tess_records_remove(alive);
	close(held);
	tess_rendezvous_close(next);
	tess_rendezvous_close(running);
}
END_TEST

/* Runs a job started by hand, whose ranks exit without closing the world. */
START_TEST(a_job_that_was_not_closed)
{
	struct tess_rendezvous *next;
	struct process p[2];

	process_start_all(p, "exit", 2);
	for (int i = 0; i < 2; i++)
		process_finish(&p[i], TEST_TIMEOUT_MS);
	ck_assert(!tess_rendezvous_open("next", N, &next));
	tess_rendezvous_close(next);
}
END_TEST

START_TEST(the_launcher_ends)
{
	struct process p[N];

	host_waiting_ranks(p);
	close_rendezvous();
	finish_rank_processes(p, N, -1, "the rendezvous was closed", "");
}
END_TEST

START_TEST(the_launcher_reports_a_failure)
{
	struct process p[N];

	host_waiting_ranks(p);
	tess_rendezvous_fail(hosted, 2, TESS_EPEER, "rank 2 was killed by SIGSEGV");
	tess_rendezvous_fail(hosted, 1, TESS_EPEER, "rank 1 too");
	finish_rank_processes(p, N, -1, "rank 2 was killed by SIGSEGV", "");
}
END_TEST

START_TEST(ranks_report_a_failure)
{
	static const struct {
		const char *role, *a, *b;
	} cases[] = {
		{ "differ", "all_reduce of 12 f32 (sum), call 1, at layers.9",
		  "all_reduce of 11 f32 (sum), call 1, at layers.8" },
		{ "post", "rank 1: no memory for it", "" },
	};
	struct process p[N];

	host_rendezvous(N);
	process_start_all(p, cases[_i].role, N);
	finish_rank_processes(p, N, -1, cases[_i].a, cases[_i].b);
}
END_TEST

/*
 * Lets rank 1 leave without the call that the other ranks are in; they are notified, and leave too.
 */
START_TEST(a_rank_leaves_early)
{
	struct process p[N];

	host_rendezvous(N);
	process_start(&p[0], "early", 0, N);
	process_start(&p[1], "leave", 1, N);
	process_start(&p[2], "early", 2, N);
	finish_rank_processes(p, N, 1, "rank 1 will not join",
	                      "all_reduce of 11 f32 (sum), call 1, at layers.8");
}
END_TEST

START_TEST(a_rank_is_stopped)
{
	struct process p[N];

	host_rendezvous(N);
	process_start_all(p, "stall", N);
	process_finish(&p[0], TEST_TIMEOUT_MS);
	process_finish(&p[2], TEST_TIMEOUT_MS);
	expect_both_texts(&p[0], "rank 1 (process", "is stopped");
	expect_both_texts(&p[2], "rank 1 (process", "barrier, call 7, at layers.1");
	kill(p[1].pid, SIGCONT); /* it receives the job's result, and ends */
	process_finish(&p[1], TEST_TIMEOUT_MS);
	expect_both_texts(&p[1], "rank 1 (process", "is stopped");
}
END_TEST

/* Stops rank _i, after the ranks have met, when it begins to open the world's group. */
START_TEST(a_rank_is_stopped_before_it_opens)
{
	struct process p[N];
	char rule[48], victim[32];

	host_rendezvous(N);
	snprintf(rule, sizeof rule, "rank=%d,call=0,do=stop", _i);
	snprintf(victim, sizeof victim, "rank %d (process", _i);
	ck_assert(!setenv("TESSERA_RENDEZVOUS", tess_rendezvous_path(hosted), 1));
	ck_assert(!setenv("TESSERA_BACKEND", "faulty:shm", 1));
	ck_assert(!setenv("TESSERA_FAULTY", rule, 1));
	ck_assert(!setenv("TESSERA_TIMEOUT", "1", 1));
	process_start_all(p, "world", N);
	for (int i = 0; i < N; i++)
		if (i != _i) {
			process_finish(&p[i], TEST_TIMEOUT_MS);
			expect_both_texts(&p[i], victim,
			                  "is stopped; the opening of the group of all ranks");
		}
	kill(p[_i].pid, SIGKILL);
	process_finish(&p[_i], TEST_TIMEOUT_MS);
}
END_TEST

START_TEST(a_rank_never_joins)
{
	struct process p[N];
	int missing = _i ? 0 : 2; /* 2: with a launcher; 0: the host itself */

	if (!_i)
		host_rendezvous(N);
	for (int i = 0; i < N; i++)
		if (i != missing)
			process_start(&p[i], "hurry", i, N);
	for (int i = 0; i < N; i++)
		if (i != missing) {
			process_finish(&p[i], 3000);
			expect_both_texts(
				&p[i],
				missing ? "rank 2 has not joined the job"
					: "rank 0, which hosts the rendezvous, has not opened",
				"deadline of rank");
		}
}
END_TEST

START_TEST(ranks_that_do_not_fit)
{
	struct process p[3];

	host_rendezvous(3);
	process_start(&p[0], "wait", 0, 3);
	process_start(&p[1], "wait", _i ? 1 : 0, _i ? 4 : 3);
	process_finish(&p[0], TEST_TIMEOUT_MS);
	process_finish(&p[1], TEST_TIMEOUT_MS);
	for (int i = 0; i < 2; i++)
		expect_both_texts(&p[i],
		                  _i ? "rank 1 was started for 4 ranks, the job has 3"
		                     : "rank 0 joined twice",
		                  "");
}
END_TEST

/* Checks that unauthenticated connections with malformed messages change nothing. */
START_TEST(unauthenticated)
{
	struct process p[N];
	int fd[40];

	host_rendezvous(N);
	for (int i = 0; i < 40; i++) {
		static const char junk[64] = "GET / HTTP/1.0\r\n\r\n";
		static const unsigned int huge[4] = { 0xfffffff8, TESS_HELLO, 0, N };

		fd[i] = tess_socket_connect(tess_rendezvous_path(hosted));
		ck_assert_int_ge(fd[i], 0);
		if (i % 4 == 1)
			ck_assert_int_gt(write(fd[i], junk, sizeof junk), 0);
		if (i % 4 == 2)
			ck_assert_int_gt(write(fd[i], huge, sizeof huge), 0);
		if (i % 4 == 3)
			ck_assert_int_gt(write(fd[i], junk, 5), 0);
	}
	process_start_all(p, "meet", N);
	for (int i = 0; i < N; i++) {
		process_finish(&p[i], TEST_TIMEOUT_MS);
		ck_assert_msg(p[i].status == 0, "rank %d: %s", i, p[i].text);
	}
	for (int i = 0; i < 40; i++)
		close(fd[i]);
}
END_TEST

/*
 * Checks that every rank gets the reason why a backend of threads, or an unknown one, does not
 * open.
 */
START_TEST(worlds_that_do_not_open)
{
	struct process p[2];

	ck_assert_int_eq(setenv("TESSERA_BACKEND", _i ? "lopback" : "loopback", 1), 0);
	process_start_all(p, "world", 2);
	finish_rank_processes(p, 2, -1, _i ? "lopback" : "its ranks are threads of one process",
	                      "rank ");
	ck_assert_int_eq(WEXITSTATUS(p[0].status), 2);
	ck_assert_int_eq(WEXITSTATUS(p[1].status), 2);
}
END_TEST

START_TEST(ranks_that_take_two_backends)
{
	struct process p[N];

	for (int i = 0; i < N; i++) {
		ck_assert_int_eq(setenv("TESSERA_BACKEND", i == 1 ? "loopback" : "shm", 1), 0);
		process_start(&p[i], "world", i, N);
	}
	finish_rank_processes(p, N, -1,
	                      "rank 1: it uses the backend loopback, and rank 0 shm; set one",
	                      "TESSERA_BACKEND");
}
END_TEST

START_TEST(paths_of_sockets)
{
	struct tess_rendezvous *r, *again;
	char path[128];

	ck_assert_msg(!tess_rendezvous_open("tests", 1, &r), "%s", tess_error());
	ck_assert_int_eq(tess_rendezvous_open("tests", 1, &again), TESS_EIO);
	expect_part(tess_error(), "a job is running");
	tess_rendezvous_close(r);
	ck_assert_msg(!tess_rendezvous_open("tests", 1, &r), "%s", tess_error());
	tess_rendezvous_close(r);
	ck_assert_int_eq(tess_rendezvous_open("../tests", 1, &r), TESS_EINVAL);
	ck_assert_int_eq(tess_rendezvous_open("", 1, &r), TESS_EINVAL);
	ck_assert_int_eq(tess_rendezvous_open(".hidden", 1, &r), TESS_EINVAL);
	snprintf(path, sizeof path, "%s/tessera-%u", dir, (unsigned)geteuid());
	ck_assert_int_eq(chmod(path, 0750), 0);
	ck_assert_int_eq(tess_rendezvous_open("tests", 1, &r), TESS_EPERM);
	expect_part(tess_error(), "mode 0700");
	ck_assert_int_eq(rmdir(path), 0);
	ck_assert_int_eq(symlink(dir, path), 0);
	ck_assert_int_eq(tess_rendezvous_open("tests", 1, &r), TESS_EPERM);
	ck_assert_int_eq(unlink(path), 0);
	/* similar to a read-only /tmp */
	ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", "/proc", 1), 0);
	ck_assert_int_eq(tess_rendezvous_open("tests", 1, &r), TESS_EIO);
	expect_part(tess_error(), "set XDG_RUNTIME_DIR");
}
END_TEST

int main(int argc, char **argv)
{
	TCase *tcase;
	SRunner *runner;

	if (argc == 4) {
		process_die_with_parent();
		if (!strcmp(argv[1], "world") || !strcmp(argv[1], "exit"))
			return open_world_by_hand(argv[1], argv[2], argv[3]);
		return run_link_role(argv[1], atoi(argv[2]), atoi(argv[3]));
	}
	tcase = suite_begin("processes", 60, &runner);
	tcase_add_checked_fixture(tcase, make_runtime_dir, remove_runtime_dir);
	tcase_add_loop_test(tcase, ranks_meet, 0, 2);
	tcase_add_loop_test(tcase, a_rank_is_killed, 0, 4);
	tcase_add_test(tcase, the_next_job_cleans_up);
	tcase_add_test(tcase, a_job_that_was_not_closed);
	tcase_add_test(tcase, the_launcher_ends);
	tcase_add_test(tcase, the_launcher_reports_a_failure);
	tcase_add_loop_test(tcase, ranks_report_a_failure, 0, 2);
	tcase_add_test(tcase, a_rank_leaves_early);
	tcase_add_test(tcase, a_rank_is_stopped);
	tcase_add_loop_test(tcase, a_rank_is_stopped_before_it_opens, 0, N);
	tcase_add_test(tcase, the_host_learns_last);
	tcase_add_loop_test(tcase, a_rank_never_joins, 0, 2);
	tcase_add_loop_test(tcase, ranks_that_do_not_fit, 0, 2);
	tcase_add_test(tcase, unauthenticated);
	tcase_add_loop_test(tcase, worlds_that_do_not_open, 0, 2);
	tcase_add_test(tcase, ranks_that_take_two_backends);
	tcase_add_test(tcase, paths_of_sockets);
	return suite_end(runner);
}

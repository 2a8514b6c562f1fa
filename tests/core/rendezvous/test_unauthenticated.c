/*
 * test_unauthenticated.c - unauthenticated peers at the TCP port where ranks of several hosts meet.
 * This program also runs as the ranks. TEST_CONNECTIONS: number of connections; script/conn-flood
 * makes 10,000.
 */
#include "conn_flood.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "tests/support/job_fixture.h"
#include "tests/support/suite.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N = 4 };
enum { GROWTH_KIB = SANITIZED ? 1 << 20 : 1024 }; /* sanitizers keep freed memory */

static long read_resident_kib(int pid)
{
	char path[64], line[256];
	long kib = -1;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/status", pid);
	f = fopen(path, "r");
	while (f && kib < 0 && fgets(line, sizeof line, f))
		sscanf(line, "VmRSS: %ld", &kib);
	if (f)
		fclose(f);
	return kib;
}

static void wait_for_connections(const struct conn_flood *c, int n)
{
	int64_t until = tess_now() + 60000 * (int64_t)TESS_MS;

	while (conn_flood_count(c) < n) {
		ck_assert_msg(tess_now() < until, "%d connections were made, not %d",
		              conn_flood_count(c), n);
		usleep(1000);
	}
}

static int connect_to_port(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
		                  .sin_port = htons((uint16_t)atoi(job_port)) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (int i = 0; connect(fd, (void *)&to, sizeof to); i++) {
		ck_assert_msg(i < 2000, "no socket listens at port %s", job_port);
		usleep(5000);
	}
	return fd;
}

/* Returns whether the peer has closed the connection. */
static bool is_closed_by_peer(int fd)
{
	char byte;
	ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

	return !n || (n < 0 && errno != EAGAIN);
}

static int count_open(const int *fd, int n)
{
	int open = 0;

	for (int i = 0; i < n; i++)
		open += !is_closed_by_peer(fd[i]);
	return open;
}

/*
 * Checks that the newest 64 unauthenticated connections are kept, for 5 seconds, even if bytes
 * trickle in.
 */
START_TEST(silent_connections)
{
	enum { CALLS = 100, KEPT = 64 + 1 }; /* the 65th is the slot of the missing rank */
	struct process p;
	int fd[CALLS], open;
	int64_t began;

	process_start(&p, "work", 0, 2);
	for (int i = 0; i < CALLS; i++)
		fd[i] = connect_to_port();
	began = tess_now();
	while ((open = count_open(fd, CALLS)) > KEPT &&
	       tess_now() - began < 3000 * (int64_t)TESS_MS)
		usleep(10000);
	if (open != KEPT) {
		kill(p.pid, SIGKILL);
		process_finish(&p, TEST_TIMEOUT_MS);
		ck_abort_msg(
			"%d of %d are still open, not %d; rank 0 ended with %d and printed: %s",
			open, CALLS, KEPT, p.status, p.text);
	}
	ck_assert(is_closed_by_peer(fd[0]) && !is_closed_by_peer(fd[CALLS - 1]));
	while (!is_closed_by_peer(fd[CALLS - 1]) && tess_now() - began < 8000 * (int64_t)TESS_MS) {
		if (send(fd[CALLS - 1], "x", 1, MSG_NOSIGNAL) < 0)
			break;
		usleep(200000);
	}
	for (int i = 0; i < CALLS; i++) {
		ck_assert_msg(is_closed_by_peer(fd[i]), "connection %d is still open", i);
		close(fd[i]);
	}
	ck_assert(tess_now() - began > 4000 * (int64_t)TESS_MS);
	ck_assert(tess_now() - began < 7000 * (int64_t)TESS_MS);
	kill(p.pid, SIGKILL);
	process_finish(&p, TEST_TIMEOUT_MS);
}
END_TEST

/* Connects before, while and after the ranks meet. */
START_TEST(flood_of_connections)
{
	const char *many = getenv("TEST_CONNECTIONS");
	int n = many ? atoi(many) : 800;
	struct tess_secret s, other_job;
	struct process p[N];
	struct conn_flood *flood;
	long before, after, late;
	int64_t began, ready;
	pid_t pid;

	job_fixture_hold_ranks();
	ck_assert_msg(!tess_secret_load(secret_path, "tests", &s), "%s", tess_error());
	ck_assert_msg(!tess_secret_load(secret_path, "others", &other_job), "%s", tess_error());
	process_start(&p[0], "work", 0, N);
	pid = conn_flood_start(job_port, &s, &other_job, n, &flood);
	wait_for_connections(flood, n / 10);
	before = read_resident_kib(p[0].pid);
	wait_for_connections(flood, n / 2);
	after = read_resident_kib(p[0].pid);
	began = tess_now();
	for (int i = 1; i < N; i++)
		process_start(&p[i], "work", i, N);
	process_await_all(p, N);
	ready = tess_now();
	late = read_resident_kib(p[0].pid);
	conn_flood_finish(pid, flood);
	printf("%d connections: 0 accepted; rank 0 holds %ld, then %ld KiB; with the job %ld, then "
	       "%ld KiB; ready in %ld ms\n",
	       conn_flood_count(flood), before, after, late, read_resident_kib(p[0].pid),
	       (long)((ready - began) / TESS_MS));
	ck_assert_int_ge(conn_flood_count(flood), n * 9 / 10);
	ck_assert_int_le(after - before, GROWTH_KIB);
	ck_assert_int_le(read_resident_kib(p[0].pid) - late, GROWTH_KIB);
	unlink(hold_path);
	for (int i = 0; i < N; i++)
		job_fixture_expect_exit(&p[i], 0, "ready");
}
END_TEST

int main(int argc, char **argv)
{
	TCase *tcase;
	SRunner *runner;

	if (argc == 4)
		return job_fixture_run_rank(argv[1], argv[2], argv[3]);
	tcase = suite_begin("unauthenticated", 120, &runner);
	tcase_add_checked_fixture(tcase, job_fixture_begin, job_fixture_end);
	tcase_add_test(tcase, silent_connections);
	tcase_add_test(tcase, flood_of_connections);
	return suite_end(runner);
}

/*
 * Strangers at the TCP port where ranks of several hosts meet. This program is the ranks as well.
 * TEST_STRANGERS: how many; script/strangers has 10,000.
 */
#include "../unit/suite.h"
#include "conn_flood.h"
#include "job_fixture.h"

#include <arpa/inet.h>
#include "core/base/status.h"
#include "core/base/clock.h"
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N = 4 };
enum { GROWTH_KIB = SANITIZED ? 1 << 20 : 1024 }; /* sanitizers keep what is freed */

static long resident_kib(int pid)
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

static void await_made(const struct crowd *c, int n)
{
	int64_t until = tess_now() + 60000 * (int64_t)TESS_MS;

	while (crowd_made(c) < n) {
		ck_assert_msg(tess_now() < until, "%d strangers came, not %d", crowd_made(c), n);
		usleep(1000);
	}
}

static int call_port(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (int i = 0; connect(fd, (void *)&to, sizeof to); i++) {
		ck_assert_msg(i < 2000, "nobody listens at port %s", port);
		usleep(5000);
	}
	return fd;
}

/* The other end has closed it. */
static bool over(int fd)
{
	char byte;
	ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

	return !n || (n < 0 && errno != EAGAIN);
}

static int still_there(const int *fd, int n)
{
	int open = 0;

	for (int i = 0; i < n; i++)
		open += !over(fd[i]);
	return open;
}

/* Of strangers that say nothing the newest 64 are kept, and those for 5 seconds, drip or not. */
START_TEST(patience)
{
	enum { CALLS = 100, KEPT = 64 + 1 }; /* one is the place of the rank that does not come */
	struct process p;
	int fd[CALLS], open;
	int64_t began;

	begin();
	process_start(&p, "work", 0, 2);
	for (int i = 0; i < CALLS; i++)
		fd[i] = call_port();
	began = tess_now();
	while ((open = still_there(fd, CALLS)) > KEPT && tess_now() - began < 3000 * (int64_t)TESS_MS)
		usleep(10000);
	if (open != KEPT) {
		kill(p.pid, SIGKILL);
		process_finish(&p, PATIENCE_MS);
		ck_abort_msg("%d of %d are still there, not %d; rank 0 ended with %d and said: %s",
		             open, CALLS, KEPT, p.status, p.text);
	}
	ck_assert(over(fd[0]) && !over(fd[CALLS - 1]));
	while (!over(fd[CALLS - 1]) && tess_now() - began < 8000 * (int64_t)TESS_MS) {
		if (send(fd[CALLS - 1], "x", 1, MSG_NOSIGNAL) < 0)
			break;
		usleep(200000);
	}
	for (int i = 0; i < CALLS; i++) {
		ck_assert_msg(over(fd[i]), "number %d is still there", i);
		close(fd[i]);
	}
	ck_assert(tess_now() - began > 4000 * (int64_t)TESS_MS);
	ck_assert(tess_now() - began < 7000 * (int64_t)TESS_MS);
	kill(p.pid, SIGKILL);
	process_finish(&p, PATIENCE_MS);
	end();
}
END_TEST

/* They come before, while and after the ranks meet. */
START_TEST(strangers)
{
	const char *many = getenv("TEST_STRANGERS");
	int n = many ? atoi(many) : 800;
	struct tess_secret s, other_job;
	struct process p[N];
	struct crowd *crowd;
	long before, after, late;
	int64_t began, ready;
	pid_t pid;

	begin();
	put_file(hold, "", 0600);
	setenv("TEST_HOLD", hold, 1);
	ck_assert_msg(!tess_secret_load(secret, "tests", &s), "%s", tess_error());
	ck_assert_msg(!tess_secret_load(secret, "others", &other_job), "%s", tess_error());
	process_start(&p[0], "work", 0, N);
	pid = crowd_start(port, &s, &other_job, n, &crowd);
	await_made(crowd, n / 10);
	before = resident_kib(p[0].pid);
	await_made(crowd, n / 2);
	after = resident_kib(p[0].pid);
	began = tess_now();
	for (int i = 1; i < N; i++)
		process_start(&p[i], "work", i, N);
	for (int i = 0; i < N; i++)
		process_hear(&p[i]);
	ready = tess_now();
	late = resident_kib(p[0].pid);
	crowd_finish(pid, crowd);
	printf("%d strangers: 0 accepted; rank 0 holds %ld, then %ld KiB; with the job %ld, then "
	       "%ld KiB; ready in %ld ms\n",
	       crowd_made(crowd), before, after, late, resident_kib(p[0].pid),
	       (long)((ready - began) / TESS_MS));
	ck_assert_int_ge(crowd_made(crowd), n * 9 / 10);
	ck_assert_int_le(after - before, GROWTH_KIB);
	ck_assert_int_le(resident_kib(p[0].pid) - late, GROWTH_KIB);
	unlink(hold);
	for (int i = 0; i < N; i++)
		finish(&p[i], 0, "ready");
	end();
}
END_TEST

int main(int argc, char **argv)
{
	if (argc == 4) {
		process_begin();
		return rank(argv[1], argv[2], argv[3]);
	}
	return suite_main("strangers", (const TTest *const[]){ patience, strangers, NULL });
}

#include "process.h"
#include "core/base/clock.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void process_start(struct process *p, const char *role, int rank, int n)
{
	char rank_text[16], n_text[16];
	int pipes[2];

	snprintf(rank_text, sizeof rank_text, "%d", rank);
	snprintf(n_text, sizeof n_text, "%d", n);
	*p = (struct process){ 0 };
	ck_assert_int_eq(pipe(pipes), 0);
	p->pid = fork();
	ck_assert_int_ge(p->pid, 0);
	if (!p->pid) {
		dup2(pipes[1], STDOUT_FILENO);
		close(pipes[0]);
		close(pipes[1]);
		execl("/proc/self/exe", "rank", role, rank_text, n_text, (char *)NULL);
		_exit(127);
	}
	close(pipes[1]);
	p->out_fd = pipes[0];
}

void process_start_all(struct process *p, const char *role, int n)
{
	for (int i = n - 1; i >= 0; i--)
		process_start(&p[i], role, i, n);
}

static void read_process_output(struct process *p, int64_t deadline, int line)
{
	size_t len = strlen(p->text);

	while (len + 1 < sizeof p->text && !(line && len && p->text[len - 1] == '\n')) {
		struct pollfd f = { .fd = p->out_fd, .events = POLLIN };
		ssize_t n;

		if (poll(&f, 1, tess_ms_left(deadline)) <= 0)
			break;
		n = read(p->out_fd, p->text + len, sizeof p->text - 1 - len);
		if (n <= 0)
			break;
		len += (size_t)n;
		p->text[len] = '\0';
	}
}

void process_await_all(struct process *p, int n)
{
	for (int i = 0; i < n; i++)
		read_process_output(&p[i], tess_now() + 20000 * (int64_t)TESS_MS, 1);
}

void process_finish(struct process *p, int ms)
{
	int64_t deadline = tess_now() + ms * (int64_t)TESS_MS;
	pid_t got;

	read_process_output(p, deadline, 0);
	while (!(got = waitpid(p->pid, &p->status, WNOHANG)) && tess_now() < deadline)
		poll(NULL, 0, 1);
	p->ended_at = tess_now();
	close(p->out_fd);
	if (got == p->pid)
		return;
	kill(p->pid, SIGKILL);
	waitpid(p->pid, &p->status, 0);
	ck_abort_msg("process %d did not end within %d ms; it printed: %s", (int)p->pid, ms,
	             p->text);
}

void process_expect_within_second(int64_t (*measure)(int which), int which)
{
	int64_t took = INT64_MAX, second = 1000 * (int64_t)TESS_MS;

	for (int i = 0; i < 10 && took >= second; i++)
		took = measure(which);
	ck_assert_msg(took < second, "%ld ms", (long)(took / TESS_MS));
}

void process_die_with_parent(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == 1)
		_exit(1);
}

#include "job.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "suite.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * Forks a child with its stderr in the pipe, and its stdout too unless `out` is another descriptor.
 */
static pid_t fork_job(struct test_job *j, int out)
{
	int fd[2];

	memset(j, 0, sizeof *j);
	ck_assert(!pipe2(fd, O_CLOEXEC));
	j->begin = (double)tess_now() / 1e9;
	j->pid = fork();
	ck_assert(j->pid >= 0);
	if (!j->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(out < 0 ? fd[1] : out, STDOUT_FILENO);
		dup2(fd[1], STDERR_FILENO);
	}
	close(fd[1]);
	j->output = fd[0];
	return j->pid;
}

static void start_launcher(struct test_job *j, const struct tess_launch *how, int out)
{
	int status;

	if (fork_job(j, out))
		return;
	close(j->output);
	if (tess_launch(how, &status) < 0) {
		dprintf(STDERR_FILENO, "not launched: %s\n", tess_error());
		_exit(125);
	}
	_exit(status);
}

void job_start_command(struct test_job *j, char *const *argv)
{
	if (fork_job(j, -1))
		return;
	execv(argv[0], argv);
	_exit(127);
}

void job_start(struct test_job *j, const struct tess_launch *how)
{
	start_launcher(j, how, -1);
}

void job_start_shell(struct test_job *j, int nranks, const char *script, int out)
{
	char *argv[] = { "sh", "-c", (char *)(uintptr_t)script, NULL };
	struct tess_launch how = { .nranks = nranks, .argv = argv };

	start_launcher(j, &how, out);
}

/* Returns how long a job may print nothing: the timeout that Check applies to a test. */
static int compute_silence_limit(void)
{
	const char *times = getenv("CK_TIMEOUT_MULTIPLIER");
	double by = times ? atof(times) : 1;

	return (int)(30000 * (by > 1 ? by : 1));
}

/* Reads more output; returns false at its end. */
static int read_job_output(struct test_job *j)
{
	struct pollfd on = { .fd = j->output, .events = POLLIN };
	ssize_t n;

	ck_assert_msg(poll(&on, 1, compute_silence_limit()) == 1, "no output for %d s after: %s",
	              compute_silence_limit() / 1000, j->text);
	ck_assert(j->len < sizeof j->text - 1);
	n = read(j->output, j->text + j->len, sizeof j->text - 1 - j->len);
	ck_assert(n >= 0);
	j->len += (size_t)n;
	j->text[j->len] = '\0';
	return n > 0;
}

void job_await(struct test_job *j, const char *text)
{
	while (!strstr(j->text, text))
		ck_assert_msg(read_job_output(j), "\"%s\" is not in: %s", text, j->text);
}

void job_finish(struct test_job *j)
{
	int status;

	while (read_job_output(j))
		;
	close(j->output);
	ck_assert(waitpid(j->pid, &status, 0) == j->pid);
	j->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
	j->seconds = (double)tess_now() / 1e9 - j->begin;
}

void job_run(struct test_job *j, const struct tess_launch *how)
{
	job_start(j, how);
	job_finish(j);
}

void job_run_self(struct test_job *j, int nranks, const char *backend, const char *timeout,
                  const char *role, const char *arg)
{
	char *argv[] = { "rank", (char *)(uintptr_t)role, (char *)(uintptr_t)arg, NULL };
	struct tess_launch how = { .nranks = nranks,
		                   .path = "/proc/self/exe",
		                   .argv = argv,
		                   .backend = backend,
		                   .timeout = timeout };

	job_run(j, &how);
}

int job_count(const struct test_job *j, const char *text)
{
	return count_occurrences(j->text, text);
}

#include "exec.h"

#include "bind.h"

#include "core/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

static bool is_given(const struct tess_exec *e, const char *var)
{
	size_t len = strcspn(var, "=");

	for (size_t i = 0; i < TESS_GIVEN; i++)
		if (*e->own[i] && !strncmp(e->own[i], var, len) && e->own[i][len] == '=')
			return true;
	return false;
}

tess_status tess_exec_prepare(struct tess_exec *e, const struct tess_launch *how,
                              const struct tess_attempt *attempt, const char *rendezvous)
{
	size_t n = 0, at = 0;
	int32_t r = e->rank;

	e->how = how;
	e->attempt = attempt;
	snprintf(e->own[0], sizeof e->own[0], "RANK=%d", r);
	snprintf(e->own[1], sizeof e->own[1], "WORLD_SIZE=%d", how->nranks);
	snprintf(e->own[2], sizeof e->own[2], "LOCAL_RANK=%d", r);
	snprintf(e->own[3], sizeof e->own[3], "LOCAL_WORLD_SIZE=%d", how->nranks);
	snprintf(e->own[4], sizeof e->own[4], "TESSERA_RENDEZVOUS=%s", rendezvous);
	snprintf(e->own[5], sizeof e->own[5], "TORCHELASTIC_RESTART_COUNT=%d", e->attempt->number);
	snprintf(e->own[6], sizeof e->own[6], "TESSERA_FLIGHT=%s", e->attempt->records);
	if (how->backend)
		snprintf(e->own[7], sizeof e->own[7], "TESSERA_BACKEND=%s", how->backend);
	if (how->timeout)
		snprintf(e->own[8], sizeof e->own[8], "TESSERA_TIMEOUT=%s", how->timeout);
	while (environ[n])
		n++;
	e->vars = calloc(n + TESS_GIVEN + 1, sizeof *e->vars);
	if (!e->vars)
		return tess_fail(TESS_ENOMEM, "no memory for the environment of a rank");
	for (size_t i = 0; i < TESS_GIVEN; i++)
		if (*e->own[i])
			e->vars[at++] = e->own[i];
	for (size_t i = 0; i < n; i++)
		if (!is_given(e, environ[i]))
			e->vars[at++] = environ[i];
	return TESS_OK;
}

void tess_exec_free(struct tess_exec *e)
{
	free(e->vars);
}

/* It keeps to what it had where it cannot be bound. */
static void bind_rank(const struct tess_exec *e)
{
	const struct tess_launch *how = e->how;
	cpu_set_t ours, mine;

	if (!sched_getaffinity(0, sizeof ours, &ours) &&
	    tess_bind(how->bind ? how->bind : "auto", e->attempt->bind_gains, &ours, e->rank,
	              how->nranks, &mine))
		sched_setaffinity(0, sizeof mine, &mine);
}

/*
 * Signals that a launcher relies on have their defaults again, whatever it has inherited, and are let through.
 * SIGHUP stays as it was: nohup ignores it.
 */
static void reset_signals(const struct tess_exec *e)
{
	static const int relied[] = { SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGPIPE };
	sigset_t mask = e->attempt->mask;

	for (size_t i = 0; i < sizeof relied / sizeof *relied; i++) {
		signal(relied[i], SIG_DFL);
		sigdelset(&mask, relied[i]);
	}
	sigprocmask(SIG_SETMASK, &mask, NULL);
}

void tess_exec_become(const struct tess_exec *e, int out, int err)
{
	const struct tess_launch *how = e->how;
	int null, why;

	/* Whatever ends the launcher ends the rank; also if it has happened since the fork. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != e->parent)
		_exit(127);
	bind_rank(e);
	if (out >= 0)
		dup2(out, STDOUT_FILENO);
	if (err >= 0)
		dup2(err, STDERR_FILENO);
	if (e->rank > 0) {
		null = open("/dev/null", O_RDONLY);
		dup2(null, STDIN_FILENO);
		close(null);
	}
	reset_signals(e);
	if (how->path)
		execve(how->path, how->argv, e->vars);
	else
		execvpe(how->argv[0], how->argv, e->vars);
	why = errno;
	if (write(e->report, &why, sizeof why) < 0)
		_exit(126);
	_exit(127);
}

#include "core/launch/exec.h"

#include "core/base/status.h"
#include "core/launch/bind.h"

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

static bool is_rank_var(const struct tess_exec *e, const char *var)
{
	size_t len = strcspn(var, "=");

	for (size_t i = 0; i < TESS_RANK_VARS; i++)
		if (*e->rank_vars[i] && !strncmp(e->rank_vars[i], var, len) &&
		    e->rank_vars[i][len] == '=')
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
	snprintf(e->rank_vars[0], sizeof e->rank_vars[0], "RANK=%d", r);
	snprintf(e->rank_vars[1], sizeof e->rank_vars[1], "WORLD_SIZE=%d", how->nranks);
	snprintf(e->rank_vars[2], sizeof e->rank_vars[2], "LOCAL_RANK=%d", r);
	snprintf(e->rank_vars[3], sizeof e->rank_vars[3], "LOCAL_WORLD_SIZE=%d", how->nranks);
	snprintf(e->rank_vars[4], sizeof e->rank_vars[4], "TESSERA_RENDEZVOUS=%s", rendezvous);
	snprintf(e->rank_vars[5], sizeof e->rank_vars[5], "TORCHELASTIC_RESTART_COUNT=%d",
	         e->attempt->number);
	if (!how->run)
		snprintf(e->rank_vars[6], sizeof e->rank_vars[6], "TESSERA_FLIGHT=%s",
		         e->attempt->records);
	if (how->backend)
		snprintf(e->rank_vars[7], sizeof e->rank_vars[7], "TESSERA_BACKEND=%s",
		         how->backend);
	if (how->timeout)
		snprintf(e->rank_vars[8], sizeof e->rank_vars[8], "TESSERA_TIMEOUT=%s",
		         how->timeout);
	if (how->run)
		return TESS_OK;
	while (environ[n])
		n++;
	e->environment = calloc(n + TESS_RANK_VARS + 1, sizeof *e->environment);
	if (!e->environment)
		return tess_fail(TESS_ENOMEM, "no memory for the environment of a rank");
	for (size_t i = 0; i < TESS_RANK_VARS; i++)
		if (*e->rank_vars[i])
			e->environment[at++] = e->rank_vars[i];
	for (size_t i = 0; i < n; i++)
		if (!is_rank_var(e, environ[i]))
			e->environment[at++] = environ[i];
	return TESS_OK;
}

void tess_exec_free(struct tess_exec *e)
{
	free(e->environment);
}

/* Binds the rank; after a failure the inherited affinity stays. */
static void bind_rank(const struct tess_exec *e)
{
	const struct tess_launch *how = e->how;
	cpu_set_t allowed, chosen;

	if (!sched_getaffinity(0, sizeof allowed, &allowed) &&
	    tess_bind_choose(how->bind ? how->bind : "auto", e->attempt->bind_benefits, &allowed,
	                     e->rank, how->nranks, &chosen))
		sched_setaffinity(0, sizeof chosen, &chosen);
}

/*
 * Resets and unblocks the launcher's signals. SIGHUP stays as inherited, since nohup ignores it.
 * SIGUSR1 is ignored until a rank of a command handles it.
 */
static void reset_signals(const struct tess_exec *e)
{
	static const int signals[] = { SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGPIPE, SIGXFSZ };
	sigset_t mask = e->attempt->mask;

	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		signal(signals[i], SIG_DFL);
		sigdelset(&mask, signals[i]);
	}
	if (e->how->stream)
		signal(SIGUSR1, SIG_IGN);
	sigdelset(&mask, SIGHUP);
	sigprocmask(SIG_SETMASK, &mask, NULL);
}

/* Ends a rank whose function calls exit() without the handlers and destructors of the caller. */
static void end_function(int status, void *arg)
{
	(void)arg;
	fflush(stdout);
	_exit(status);
}

/* Runs the function once the rendezvous is open. */
static _Noreturn void run_function(struct tess_exec *e)
{
	const struct tess_launch *how = e->how;
	ssize_t n;
	char byte;

	close(e->report);
	close(e->attempt->report);
	for (size_t i = 0; i < TESS_RANK_VARS; i++)
		if (*e->rank_vars[i])
			putenv(e->rank_vars[i]);
	do
		n = read(e->start, &byte, 1);
	while (n < 0 && errno == EINTR);
	close(e->start);
	if (n != 1 || on_exit(end_function, NULL))
		_exit(127);
	end_function(how->run(how->arg, e->rank), NULL);
	_exit(127);
}

void tess_exec_become(struct tess_exec *e, int out, int err)
{
	const struct tess_launch *how = e->how;
	int null, why;

	/* the end of the launcher kills the rank, even if it happened since the fork */
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
	if (how->run)
		run_function(e);
	if (how->path)
		execve(how->path, how->argv, e->environment);
	else
		execvpe(how->argv[0], how->argv, e->environment);
	why = errno;
	if (write(e->report, &why, sizeof why) < 0)
		_exit(126);
	_exit(127);
}

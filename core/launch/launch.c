/*
 * A launcher is two processes: the caller, and its child, which runs the job (job.h). When the
 * caller is killed the child ends all ranks; when the child is killed the kernel kills the ranks,
 * and the caller adopts and kills the processes that they have started.
 */
#include "core/launch/launch.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/flight/flight.h"
#include "core/launch/bind.h"
#include "core/launch/job.h"
#include "core/launch/subreaper.h"
#include "core/registry/registry.h"
#include "core/rendezvous/coordinator.h"
#include "core/rendezvous/records.h"
#include "core/rendezvous/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILL_MS = 2000 };

struct job_result { /* sent by the child over a pipe */
	tess_status st;
	int exit_status;
	char sentence[TESS_SENTENCE];
};

static const char *get_backend(const struct tess_launch *how)
{
	const char *backend = how->backend ? how->backend : getenv("TESSERA_BACKEND");

	return backend ? backend : "auto";
}

static tess_status check_options(const struct tess_launch *how)
{
	const char *backend = get_backend(how);
	const struct tess_backend *b;
	tess_status st;

	if (how->nranks < 1 || how->nranks > TESS_RANKS_MAX)
		return tess_fail(TESS_EINVAL, "%d ranks: a job has 1 to %d", how->nranks,
		                 TESS_RANKS_MAX);
	/* the ranks report a backend that cannot be opened */
	if (!how->run && strcmp(backend, "auto") != 0 && !tess_plugin_find_backend(backend, &b) &&
	    b->reach == TESS_REACH_PROCESS)
		return tess_fail(
			TESS_EINVAL,
			"ranks over %s are threads of one process and cannot be launched; use the "
			"program's own -n, or another backend (--backend auto)",
			backend);
	if (how->bind && (st = tess_bind_check(how->bind)))
		return st;
	if (how->log_dir && mkdir(how->log_dir, 0777) && errno != EEXIST)
		return tess_fail(TESS_EIO, "the log directory %s cannot be created: %s",
		                 how->log_dir, strerror(errno));
	if (how->flight && tess_flight_on(how->flight) && mkdir(how->flight, 0777) &&
	    errno != EEXIST)
		return tess_fail(TESS_EIO,
		                 "the directory %s for flight records cannot be created: %s",
		                 how->flight, strerror(errno));
	return TESS_OK;
}

/* ---- the child ------------------------------------------------------------------------------- */

static tess_status run_attempts(const struct tess_launch *how, struct tess_attempt *attempt,
                                int *status)
{
	for (;; attempt->number++) {
		struct tess_job_end end;
		tess_status st = tess_job_run(how, attempt, &end);

		if (st)
			return st;
		*status = end.status;
		if (!end.status || end.by_signal || attempt->number == how->restarts)
			return TESS_OK;
		tess_log(TESS_WARN, "launch", "the job has failed and starts again (%d of %d)",
		         attempt->number + 1, how->restarts);
		if (access(attempt->records, W_OK)) /* gone, as XDG_RUNTIME_DIR at a logout */
			attempt->records = "";
	}
}

static _Noreturn void run_child(const struct tess_launch *how, struct tess_attempt *attempt,
                                int report)
{
	struct job_result v = { .st = TESS_OK };

	attempt->report = report;
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() != attempt->parent)
		_exit(1);
	signal(SIGPIPE, SIG_IGN); /* write() fails with EPIPE instead */
	tess_subreaper_set(true);
	v.st = run_attempts(how, attempt, &v.exit_status);
	if (v.st)
		snprintf(v.sentence, sizeof v.sentence, "%s", tess_error());
	if (getppid() != attempt->parent)
		tess_records_remove(attempt->records);
	_exit(write(report, &v, sizeof v) != sizeof v);
}

/* ---- the caller ------------------------------------------------------------------------------ */

/* Blocks signals and reads them from a descriptor. An ignored SIGCHLD would hide the end. */
static tess_status block_signals(sigset_t *mask, struct sigaction *chld, int *fd)
{
	const struct sigaction preset = { .sa_handler = SIG_DFL };
	sigset_t set;

	tess_job_list_signals(&set);
	*fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (*fd < 0)
		return tess_fail(TESS_EIO, "no signalfd: %s", strerror(errno));
	pthread_sigmask(SIG_BLOCK, &set, mask);
	sigaction(SIGCHLD, &preset, chld);
	return TESS_OK;
}

static void restore_signals(const sigset_t *mask, const struct sigaction *chld, int fd)
{
	close(fd);
	sigaction(SIGCHLD, chld, NULL);
	pthread_sigmask(SIG_SETMASK, mask, NULL);
}

/*
 * Forwards signals to the child until it ends; those of the terminal reach it directly. The end of
 * `report` shows its end, too: a plugin's thread may take SIGCHLD between poll and read. caught:
 * the last signal that ends a job.
 */
static int wait_for_child(pid_t child, int signals, int report, int *caught)
{
	struct pollfd fds[] = { { signals, POLLIN, 0 }, { report, POLLIN, 0 } };
	struct signalfd_siginfo info;
	int status;

	while (waitpid(child, &status, WNOHANG) != child) {
		if (poll(fds, 2, fds[1].revents ? 1 : -1) < 0 || !(fds[0].revents & POLLIN) ||
		    read(signals, &info, sizeof info) != sizeof info)
			continue;
		if (info.ssi_signo != SIGCHLD && info.ssi_signo != SIGUSR1)
			*caught = (int)info.ssi_signo;
		if (info.ssi_signo != SIGCHLD &&
		    (info.ssi_code != SI_KERNEL || info.ssi_signo == SIGHUP))
			kill(child, (int)info.ssi_signo);
	}
	return status;
}

/* Reads the result of the child, or reports how it ended without one. */
static tess_status read_result(const struct tess_launch *how, const struct tess_attempt *attempt,
                               int status, int report, int *exit_status)
{
	struct job_result v;

	if (read(report, &v, sizeof v) == sizeof v) {
		if (v.st)
			return tess_fail(v.st, "%s", v.sentence);
		*exit_status = v.exit_status;
		return TESS_OK;
	}
	if (!how->run) /* the caller of a function may have children of its own */
		tess_subreaper_kill_children(tess_now() + KILL_MS * (int64_t)TESS_MS);
	tess_socket_sweep(attempt->name); /* sockets of all attempts */
	return tess_fail(TESS_EIO, "the launcher was killed by signal %d, and the job with it",
	                 WTERMSIG(status));
}

tess_status tess_launch(const struct tess_launch *how, int *exit_status)
{
	char records[160];
	struct tess_attempt attempt = { .parent = getpid(), .records = records };
	struct sigaction chld;
	int report[2], signals, lock = -1, caught = 0;
	pid_t child;
	tess_status st = check_options(how);

	if (st || (st = block_signals(&attempt.mask, &chld, &signals)))
		return st;
	snprintf(attempt.name, sizeof attempt.name, "%d-%" PRId64, (int)attempt.parent, tess_now());
	*records = '\0';
	attempt.bind_benefits = (!how->bind || !strcmp(how->bind, "auto")) &&
	                        tess_bind_benefits(get_backend(how), how->nranks);
	if (!how->flight || tess_flight_on(how->flight))
		lock = tess_records_make(records, sizeof records);
	if (pipe2(report, O_CLOEXEC)) {
		st = tess_fail(TESS_EIO, "no pipe: %s", strerror(errno));
		goto out;
	}
	if (!how->run)
		tess_subreaper_set(true);
	child = fork();
	if (!child) {
		close(report[0]);
		close(signals);
		run_child(how, &attempt, report[1]);
	}
	close(report[1]);
	if (child < 0)
		st = tess_fail(TESS_EIO, "no process for the launcher: %s", strerror(errno));
	else
		st = read_result(how, &attempt, wait_for_child(child, signals, report[0], &caught),
		                 report[0], exit_status);
	if (!how->run)
		tess_subreaper_set(false);
	close(report[0]);
out:
	tess_records_remove(records);
	if (lock >= 0)
		close(lock);
	restore_signals(&attempt.mask, &chld, signals);
	if (how->run && caught)
		kill(getpid(), caught);
	return st;
}

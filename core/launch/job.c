#include "core/launch/job.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/flight/flight.h"
#include "core/flight/straggler.h"
#include "core/launch/exec.h"
#include "core/launch/output_mux.h"
#include "core/launch/subreaper.h"
#include "core/rendezvous/coordinator.h"
#include "core/rendezvous/records.h"
#include "core/rendezvous/rendezvous.h"
#include "core/rendezvous/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_MS = 1000, TERM_MS = 5000, DRAIN_MS = 200, SWEEP_MS = 2000 };
enum {
	RECORDS_MS = 1000,
	RECORDS_POLL_MS = 10,
	STUCK_MS = 500
}; /* timeout for flight records; intervals of checks, for records and for stuck ranks */
enum { FIXED = 3 }; /* descriptors before those of the ranks */

struct launched_rank {
	pid_t pid; /* 0: not started, or ended */
	int status; /* from waitpid */
	bool stopped; /* ended by the launcher */
	struct tess_output_mux out, err;
	int log; /* a file of its own, or -1 */
};

enum job_stage { RUNNING, GRACE, TERMINATING, KILLING };

struct launch_job {
	const struct tess_launch *how;
	const struct tess_attempt *attempt;
	struct tess_rendezvous *rendezvous;
	int signals, report; /* signalfd; gets the errno of a failed exec */
	int start; /* ranks with a function read a byte each; -1: none */
	char name[96], path[128]; /* of the rendezvous: its job, its socket */
	int32_t alive;
	enum job_stage stage;
	int64_t until; /* the end of the stage; 0: none */
	int signal; /* the signal that ended the job, or 0 */
	int requests[2]; /* number of SIGINTs and SIGTERMs: direct ones, and from the caller */
	int64_t records_until; /* deadline of requested records; 0: none requested */
	int32_t first_failed; /* the first rank that failed by itself, or -1 */
	const char *unwritten; /* the output that could not be written, or NULL */
	int error; /* errno of that write */
	struct tess_sink out, err; /* stdout and stderr of the launcher */
	struct pollfd *poll_fds; /* signals, sinks, then outputs */
	struct tess_output_mux **outputs;
	nfds_t turn; /* the output that is handled first */
	struct launched_rank rank[];
};

/* ---- starting -------------------------------------------------------------------------------- */

/* Formats the name of the attempt's rendezvous. */
static void name_attempt(const struct tess_attempt *a, char *text, size_t size)
{
	if (a->number)
		snprintf(text, size, "%s.%d", a->name, a->number);
	else
		snprintf(text, size, "%s", a->name);
}

static tess_status open_rendezvous(struct launch_job *j)
{
	return tess_rendezvous_open(j->name, j->how->nranks, &j->rendezvous);
}

static tess_status open_log(const struct launch_job *j, int32_t r, int *out)
{
	const struct tess_launch *how = j->how;
	int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
	char path[4096];

	if (!how->log_dir)
		return TESS_OK;
	snprintf(path, sizeof path, "%s/rank-%d.log", how->log_dir, r);
	*out = open(path, j->attempt->number ? flags : flags | O_TRUNC, 0666);
	if (*out < 0)
		return tess_fail(TESS_EIO, "the log %s cannot be written: %s", path,
		                 strerror(errno));
	if (j->attempt->number)
		dprintf(*out, "---- restart %d of %d ----\n", j->attempt->number, how->restarts);
	return TESS_OK;
}

static tess_status open_output(struct tess_output_mux *mux, int32_t r, struct tess_sink *to,
                               int log, int *end)
{
	int fd[2];

	if (pipe2(fd, O_CLOEXEC))
		return tess_fail(TESS_EIO, "no pipe for the output of rank %d: %s", r,
		                 strerror(errno));
	fcntl(fd[0], F_SETFL, O_NONBLOCK);
	mux->from = fd[0];
	mux->to = to;
	mux->log = log;
	mux->left = SIZE_MAX;
	snprintf(mux->prefix, sizeof mux->prefix, "[%d] ", r);
	*end = fd[1];
	return TESS_OK;
}

static tess_status start_rank(struct launch_job *j, int32_t r)
{
	struct launched_rank *rank = &j->rank[r];
	int out = -1, err = -1;
	pid_t pid;
	struct tess_exec exec = {
		.rank = r, .parent = getpid(), .report = j->report, .start = j->start
	};
	tess_status st = tess_exec_prepare(&exec, j->how, j->attempt, j->path);

	if (!st)
		st = open_log(j, r, &rank->log);
	if (!st && !j->how->stream && !j->how->run)
		st = open_output(&rank->out, r, &j->out, rank->log, &out);
	if (!st && !(j->how->stream && r == 0) && !j->how->run)
		st = open_output(&rank->err, r, &j->err, rank->log, &err);
	if (st)
		goto out;
	pid = fork();
	if (pid == 0)
		tess_exec_become(&exec, out, err);
	if (pid > 0) {
		rank->pid = pid;
		j->alive++;
	} else {
		st = tess_fail(TESS_EIO, "rank %d cannot be started: %s", r, strerror(errno));
	}
out:
	tess_exec_free(&exec);
	if (out >= 0)
		close(out);
	if (err >= 0)
		close(err);
	return st;
}

/* Starts the ranks. Reads `report` until every rank has run exec; an errno: exec has failed. */
static tess_status start_ranks(struct launch_job *j)
{
	const struct tess_launch *how = j->how;
	tess_status st = TESS_OK;
	int fd[2], why = 0;

	if (pipe2(fd, O_CLOEXEC))
		return tess_fail(TESS_EIO, "no pipe: %s", strerror(errno));
	j->report = fd[1];
	for (int32_t r = 0; r < how->nranks && !st; r++)
		st = start_rank(j, r);
	close(fd[1]);
	if (!st && read(fd[0], &why, sizeof why) == sizeof why)
		st = tess_fail(why == ENOENT   ? TESS_ENOENT
		               : why == EACCES ? TESS_EPERM
		                               : TESS_EIO,
		               "%s cannot be run: %s", how->path ? how->path : how->argv[0],
		               strerror(why));
	close(fd[0]);
	return st;
}

/*
 * Starts ranks that run a function, then opens the rendezvous, whose thread would not survive a
 * fork, and lets them run.
 */
static tess_status start_functions(struct launch_job *j)
{
	char *bytes = calloc(1, (size_t)j->how->nranks);
	tess_status st = TESS_OK;
	int fd[2];

	if (!bytes || pipe2(fd, O_CLOEXEC)) {
		st = bytes ? tess_fail(TESS_EIO, "no pipe: %s", strerror(errno))
		           : tess_fail(TESS_ENOMEM, "no memory for %d ranks", j->how->nranks);
		free(bytes);
		return st;
	}
	j->start = fd[0];
	st = start_ranks(j);
	if (!st)
		st = open_rendezvous(j);
	if (!st && write(fd[1], bytes, (size_t)j->how->nranks) != j->how->nranks)
		st = tess_fail(TESS_EIO, "the ranks cannot be started: %s", strerror(errno));
	close(fd[0]);
	close(fd[1]);
	free(bytes);
	return st;
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Sends a signal to all ranks; a stopped process handles it only after SIGCONT. */
static void signal_ranks(const struct launch_job *j, int sig)
{
	for (int32_t r = 0; r < j->how->nranks; r++) {
		if (!j->rank[r].pid)
			continue;
		kill(j->rank[r].pid, sig);
		if (sig == SIGTERM || sig == SIGHUP)
			kill(j->rank[r].pid, SIGCONT);
	}
}

/* Sends SIGTERM as a queued signal, which ranks distinguish from a forwarded one. */
static void terminate_ranks(const struct launch_job *j)
{
	for (int32_t r = 0; r < j->how->nranks; r++) {
		if (!j->rank[r].pid)
			continue;
		if (sigqueue(j->rank[r].pid, SIGTERM, (union sigval){ 0 }))
			kill(j->rank[r].pid, SIGTERM);
		kill(j->rank[r].pid, SIGCONT);
	}
}

static void enter_stage(struct launch_job *j, enum job_stage stage)
{
	static const int duration_ms[] = { 0, GRACE_MS, TERM_MS, 0 };

	if (stage <= j->stage)
		return;
	j->stage = stage;
	j->until = duration_ms[stage] ? tess_now() + duration_ms[stage] * (int64_t)TESS_MS : 0;
	if (stage == TERMINATING)
		terminate_ranks(j);
	if (stage == KILLING)
		signal_ranks(j, SIGKILL);
}

static bool has_failed(const struct launched_rank *rank)
{
	return !rank->pid && (!WIFEXITED(rank->status) || WEXITSTATUS(rank->status));
}

static void format_exit(int status, char *text, size_t size)
{
	if (WIFSIGNALED(status))
		snprintf(text, size, "was killed by signal %d (%s)", WTERMSIG(status),
		         strsignal(WTERMSIG(status)));
	else
		snprintf(text, size, "exited with status %d", WEXITSTATUS(status));
}

/* ---- flight records -------------------------------------------------------------------------- */

static void describe_lost_rank(const struct launch_job *j, int32_t r, struct tess_lost_rank *l)
{
	const struct launched_rank *rank = &j->rank[r];

	if (rank->pid || rank->stopped)
		snprintf(l->how, sizeof l->how, "did not answer");
	else
		format_exit(rank->status, l->how, sizeof l->how);
	l->reached = tess_rendezvous_last_call(j->rendezvous, r, l->last_call, sizeof l->last_call);
}

static void save_flight(const struct launch_job *j, const json_t *merged)
{
	int32_t restart = j->attempt->number;
	char path[4096], number[16] = "";

	if (!j->how->flight)
		return;
	if (restart)
		snprintf(number, sizeof number, "-%d", restart);
	snprintf(path, sizeof path, "%s/flight%s.json", j->how->flight, number);
	if (tess_flight_store(path, merged))
		tess_log(TESS_WARN, "launch", "%s", tess_error());
}

/* Saves the records and logs the straggler; for SIGUSR1 always as a warning. */
static void log_straggler(const struct launch_job *j, int32_t level)
{
	int32_t n = j->how->nranks;
	struct tess_lost_rank *lost = calloc((size_t)n, sizeof *lost);
	char sentence[TESS_SENTENCE];
	json_t *merged = NULL;

	for (int32_t r = 0; lost && r < n; r++)
		describe_lost_rank(j, r, &lost[r]);
	if (lost && *j->attempt->records &&
	    !tess_straggler_find(j->attempt->records, n, lost, &merged, sentence,
	                         sizeof sentence)) {
		if (*sentence || level == TESS_WARN)
			tess_log(level, "launch", "%s",
			         *sentence ? sentence : "no rank is in a call");
		save_flight(j, merged);
	}
	json_decref(merged);
	free(lost);
}

static void request_records(struct launch_job *j)
{
	tess_records_clear(j->attempt->records);
	tess_rendezvous_request_records(j->rendezvous);
	j->records_until = tess_now() + RECORDS_MS * (int64_t)TESS_MS;
}

static bool has_record(const struct launch_job *j, int32_t rank)
{
	char path[4096];

	tess_flight_path(j->attempt->records, rank, path, sizeof path);
	return !access(path, F_OK);
}

/* Uses the requested records when all have been written, or time is up. */
static void check_records(struct launch_job *j)
{
	bool all = true;

	for (int32_t r = 0; r < j->how->nranks; r++)
		all &= !j->rank[r].pid || has_record(j, r);
	if (!all && tess_now() < j->records_until)
		return;
	j->records_until = 0;
	log_straggler(j, TESS_WARN);
}

/* Sends the failure of a rank to the others, which get a moment to report. */
static void report_failed_rank(struct launch_job *j, int32_t r)
{
	const struct tess_rank_end *own = j->how->ends ? &j->how->ends[r] : NULL;
	char end[96], text[160];

	if (j->first_failed < 0)
		j->first_failed = r;
	format_exit(j->rank[r].status, end, sizeof end);
	snprintf(text, sizeof text, "rank %d %s", r, end);
	if (own && own->st && !WIFSIGNALED(j->rank[r].status))
		tess_rendezvous_fail(j->rendezvous, r, own->st, own->sentence);
	else
		tess_rendezvous_fail(j->rendezvous, r, TESS_EPEER, text);
	enter_stage(j, GRACE);
}

/*
 * Returns whether only ranks are alive that were not ready to leave, by the job's failure: nothing
 * else would end them.
 */
static bool has_stragglers_only(struct launch_job *j)
{
	char sentence[TESS_SENTENCE];
	int32_t named = -1;

	if (j->alive == j->how->nranks || !j->rendezvous ||
	    !tess_rendezvous_failure(j->rendezvous, &named, sentence, sizeof sentence) ||
	    named < 0 || !j->rank[named].pid)
		return false;
	for (int32_t r = 0; r < j->how->nranks; r++)
		if (j->rank[r].pid && tess_rendezvous_has_left(j->rendezvous, r))
			return false;
	return true;
}

/*
 * Ends a failed job whose ranks are all in calls of plugins that are overdue: none would end by
 * itself.
 */
static void check_stuck(struct launch_job *j)
{
	char sentence[TESS_SENTENCE];
	int32_t named;

	if (j->stage != RUNNING || j->signal ||
	    !tess_rendezvous_failure(j->rendezvous, &named, sentence, sizeof sentence))
		return;
	for (int32_t r = 0; r < j->how->nranks; r++)
		if (j->rank[r].pid && !tess_rendezvous_is_stuck(j->rendezvous, r))
			return;
	enter_stage(j, GRACE);
}

static void reap_ranks(struct launch_job *j)
{
	for (int32_t r = 0; r < j->how->nranks; r++) {
		struct launched_rank *rank = &j->rank[r];

		if (!rank->pid || waitpid(rank->pid, &rank->status, WNOHANG) != rank->pid)
			continue;
		rank->pid = 0;
		rank->stopped = j->signal || j->stage >= TERMINATING;
		j->alive--;
		if (!has_failed(rank))
			tess_rendezvous_rank_ended(j->rendezvous, r);
		if (has_failed(rank) && !rank->stopped)
			report_failed_rank(j, r);
		else if (r == 0 && j->signal)
			enter_stage(j, GRACE); /* rank 0 decides when a signal ends the job */
	}
	if (has_stragglers_only(j))
		enter_stage(j, GRACE);
}

/*
 * Returns whether the signal is the second request to end. A signal to the process group arrives
 * twice: directly, and from the caller. A closing terminal may send SIGHUP more than once.
 */
static bool is_second_request(struct launch_job *j, const struct signalfd_siginfo *info)
{
	return info->ssi_signo != SIGHUP &&
	       ++j->requests[info->ssi_pid == (uint32_t)j->attempt->parent] > 1;
}

/*
 * Handles pending signals. SIGINT of the terminal has reached the ranks, too; SIGINT of kill(1) has
 * not. The terminal sends SIGHUP to the ranks only if they are in its foreground.
 */
static void take_signals(struct launch_job *j)
{
	struct signalfd_siginfo info;

	while (read(j->signals, &info, sizeof info) == sizeof info) {
		int sig = (int)info.ssi_signo;

		if (sig == SIGCHLD)
			continue;
		if (sig == SIGUSR1) {
			request_records(j);
			continue;
		}
		if (getppid() != j->attempt->parent) /* the launcher has been killed */
			enter_stage(j, KILLING);
		if (is_second_request(j, &info))
			enter_stage(j, TERMINATING);
		else if (!j->signal && (sig == SIGHUP || info.ssi_code != SI_KERNEL))
			signal_ranks(j, sig);
		if (!j->signal)
			j->signal = sig;
	}
	reap_ranks(j);
}

/* ---- the job --------------------------------------------------------------------------------- */

/* Ends the job after a failed write: no output is lost silently. */
static void check_written(struct launch_job *j)
{
	const struct tess_sink *sink[] = { &j->out, &j->err };

	for (int i = 0; i < 2 && !j->unwritten; i++)
		if (sink[i]->error) {
			j->unwritten = i ? "standard error" : "standard output";
			j->error = sink[i]->error;
		}
	for (int32_t r = 0; r < j->how->nranks && !j->unwritten; r++) {
		const struct launched_rank *rank = &j->rank[r];

		if (rank->out.error || rank->err.error) {
			j->unwritten = "a log of the ranks";
			j->error = rank->out.error ? rank->out.error : rank->err.error;
		}
	}
	if (!j->unwritten || j->stage >= TERMINATING)
		return;
	take_signals(j);
	if (j->signal == SIGHUP) /* the terminal is gone; ranks end in order */
		return;
	if (j->error == EPIPE && !j->signal) /* the reader has exited: "| head" */
		j->signal = SIGPIPE;
	enter_stage(j, TERMINATING);
}

/* Fills poll_fds; returns their number. *ready: output can be forwarded without waiting. */
static nfds_t list_descriptors(struct launch_job *j, bool *ready)
{
	struct tess_sink *sink[] = { &j->out, &j->err };
	nfds_t n = FIXED;

	*ready = false;
	j->poll_fds[0] = (struct pollfd){ .fd = j->signals, .events = POLLIN };
	for (int i = 0; i < 2; i++)
		j->poll_fds[1 + i] =
			(struct pollfd){ .fd = tess_sink_waits(sink[i]) ? sink[i]->fd : -1,
			                 .events = POLLOUT };
	for (int32_t r = 0; r < j->how->nranks; r++) {
		struct tess_output_mux *both[] = { &j->rank[r].out, &j->rank[r].err };

		for (int i = 0; i < 2; i++) {
			if (tess_output_mux_ended(both[i]))
				continue;
			*ready |= both[i]->full && !tess_sink_waits(both[i]->to);
			j->outputs[n] = both[i];
			j->poll_fds[n++] = (struct pollfd){
				.fd = tess_output_mux_can_read(both[i]) ? both[i]->from : -1,
				.events = POLLIN,
			};
		}
	}
	return n;
}

/*
 * Waits until `until` at the latest (0: no limit), handles signals, then forwards a chunk of each
 * rank's output. Returns false if no rank and no output remains.
 */
static bool poll_job(struct launch_job *j, int64_t until)
{
	bool ready;
	nfds_t n = list_descriptors(j, &ready), outputs = n - FIXED;

	if (!outputs && !j->alive && !tess_sink_waits(&j->out) && !tess_sink_waits(&j->err))
		return false;
	if (poll(j->poll_fds, n, ready ? 0 : until ? tess_ms_left(until) : -1) < 0)
		return true;
	if (j->poll_fds[0].revents)
		take_signals(j);
	for (nfds_t i = 0; i < outputs; i++) { /* in turns, for the space in the sinks */
		nfds_t at = FIXED + (i + j->turn) % outputs;

		if (j->poll_fds[at].revents || j->outputs[at]->full)
			tess_output_mux_forward(j->outputs[at]);
	}
	j->turn++;
	tess_sink_flush(&j->out);
	tess_sink_flush(&j->err);
	check_written(j);
	return true;
}

/*
 * Runs until all ranks have ended and their output is written, however slow the reader; after a
 * signal for at most GRACE_MS. Kills children of ranks that hold a pipe; does not wait for those of
 * other users.
 */
static void run_to_end(struct launch_job *j)
{
	int64_t until;

	while (j->alive) {
		if (j->records_until) {
			poll_job(j, tess_now() + RECORDS_POLL_MS * (int64_t)TESS_MS);
			check_records(j);
		} else {
			poll_job(j, j->until ? j->until : tess_now() + STUCK_MS * (int64_t)TESS_MS);
			check_stuck(j);
		}
		if (j->until && tess_now() >= j->until)
			enter_stage(j, j->stage + 1);
	}
	until = tess_now() + DRAIN_MS * (int64_t)TESS_MS;
	while (tess_now() < until && poll_job(j, until))
		;
	tess_subreaper_kill_children(tess_now() + SWEEP_MS * (int64_t)TESS_MS);
	for (int32_t r = 0; r < j->how->nranks; r++) {
		tess_output_mux_finish(&j->rank[r].out);
		tess_output_mux_finish(&j->rank[r].err);
	}
	until = 0;
	do {
		if (j->signal && !until)
			until = tess_now() + GRACE_MS * (int64_t)TESS_MS;
	} while (poll_job(j, until) && !(until && tess_now() >= until));
}

/* Logs the rank that failed first, and the failure if that names it. Returns the exit status. */
static int report_result(struct launch_job *j)
{
	char end[96], sentence[TESS_SENTENCE];
	int32_t named = -1, r = j->first_failed;
	tess_status why = tess_rendezvous_failure(j->rendezvous, &named, sentence, sizeof sentence);
	bool own;
	int status;

	if (j->signal)
		return 128 + j->signal;
	/* different calls: a backend may have let the ranks continue, with wrong data */
	if (r < 0 && (why == TESS_EMISMATCH || (why && named >= 0 && j->rank[named].stopped))) {
		tess_log(TESS_ERROR, "launch", "%s", sentence);
		return EXIT_FAILURE;
	}
	if (r < 0)
		return 0;
	if (why && named >= 0 && has_failed(&j->rank[named]) && !j->rank[named].stopped)
		r = named; /* a rank that saw the failure may have ended before the one at fault */
	status = j->rank[r].status;
	format_exit(status, end, sizeof end);
	/* the ranks of a command, whose output is ours, have printed the message */
	if (why && !j->how->stream && !WIFSIGNALED(status) && !strstr(sentence, end))
		tess_log(TESS_ERROR, "launch", "rank %d %s: %s", r, end, sentence);
	else
		tess_log(TESS_ERROR, "launch", "rank %d %s", r, end);
	/* the calls of the others have nothing to do with a rank's own error */
	own = why && why != TESS_ETIMEOUT && why != TESS_EPEER && why != TESS_EMISMATCH;
	log_straggler(j, own && !WIFSIGNALED(status) ? TESS_DEBUG : TESS_ERROR);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Describes the last call of a rank that runs a function, by its own record. */
static const char *describe_rank_call(struct launch_job *j, int32_t r, char *text, size_t size)
{
	tess_flight_describe_last(j->how->ends[r].flight, text, size);
	if (!*text) /* it may not have joined */
		tess_rendezvous_last_call(j->rendezvous, r, text, size);
	return text;
}

/*
 * Returns the rank that did not return and was killed: the one that the failure names, or, after a
 * deadline, one that the named rank may have waited for; -1: none.
 */
static int32_t find_killed(const struct launch_job *j, tess_status why, int32_t named)
{
	if (why && named >= 0 && j->rank[named].stopped)
		return named;
	for (int32_t r = 0; r < j->how->nranks && why == TESS_ETIMEOUT; r++)
		if (j->rank[r].stopped && WIFSIGNALED(j->rank[r].status))
			return r;
	return -1;
}

/* Returns the failure of a job whose ranks run a function, like report_result. */
static tess_status get_failure(struct launch_job *j)
{
	char end[96] = "", sentence[TESS_SENTENCE], call[800];
	int32_t named = -1, r = j->first_failed, killed;
	tess_status why = tess_rendezvous_failure(j->rendezvous, &named, sentence, sizeof sentence);
	const struct launched_rank *rank;

	if (j->signal)
		return tess_fail(TESS_EPEER, "signal %d (%s) has ended the ranks", j->signal,
		                 strsignal(j->signal));
	if (why && named >= 0 && has_failed(&j->rank[named]) && !j->rank[named].stopped)
		r = named;
	rank = r < 0 ? NULL : &j->rank[r];
	if (rank)
		format_exit(rank->status, end, sizeof end);
	/* a rank that ended in its function has left the failure of its connection */
	if (rank && why == TESS_EPEER && r == named && !j->how->ends[r].st)
		return tess_fail(TESS_EPEER, "rank %d %s; %s", r, end,
		                 describe_rank_call(j, r, call, sizeof call));
	killed = find_killed(j, why, named);
	if (killed >= 0)
		return tess_fail(why, "%.900s; rank %d has not returned, and was killed: %.500s",
		                 sentence, killed,
		                 describe_rank_call(j, killed, call, sizeof call));
	return why ? tess_fail(why, "%s", sentence) : TESS_OK;
}

void tess_job_list_signals(sigset_t *out)
{
	struct sigaction hup;

	sigemptyset(out);
	sigaddset(out, SIGCHLD);
	sigaddset(out, SIGINT);
	sigaddset(out, SIGTERM);
	if (sigaction(SIGHUP, NULL, &hup) || hup.sa_handler != SIG_IGN)
		sigaddset(out, SIGHUP);
	sigaddset(out, SIGUSR1);
}

static struct launch_job *make_job(const struct tess_launch *how,
                                   const struct tess_attempt *attempt)
{
	size_t n = (size_t)how->nranks, capacity = 2 * n + FIXED;
	struct launch_job *j = calloc(1, sizeof *j + n * sizeof *j->rank);

	if (!j)
		return NULL;
	j->how = how;
	j->attempt = attempt;
	j->first_failed = -1;
	j->signals = j->start = -1;
	for (size_t r = 0; r < n; r++)
		j->rank[r].out.from = j->rank[r].err.from = j->rank[r].log = -1;
	tess_sink_open(&j->out, STDOUT_FILENO);
	tess_sink_open(&j->err, STDERR_FILENO);
	j->poll_fds = calloc(capacity, sizeof *j->poll_fds);
	j->outputs = calloc(capacity, sizeof *j->outputs);
	return j;
}

static void free_job(struct launch_job *j)
{
	for (int32_t r = 0; r < j->how->nranks; r++) {
		tess_output_mux_close(&j->rank[r].out);
		tess_output_mux_close(&j->rank[r].err);
		if (j->rank[r].log >= 0)
			close(j->rank[r].log);
	}
	tess_sink_close(&j->out);
	tess_sink_close(&j->err);
	tess_rendezvous_close(j->rendezvous);
	if (j->signals >= 0)
		close(j->signals);
	free(j->poll_fds);
	free(j->outputs);
	free(j);
}

static tess_status open_job(struct launch_job *j)
{
	sigset_t set;

	tess_records_clear(j->attempt->records); /* records of the previous attempt */
	tess_job_list_signals(&set);
	j->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (j->signals < 0)
		return tess_fail(TESS_EIO, "no signalfd: %s", strerror(errno));
	name_attempt(j->attempt, j->name, sizeof j->name);
	return tess_socket_path(j->name, j->path, sizeof j->path);
}

tess_status tess_job_run(const struct tess_launch *how, const struct tess_attempt *attempt,
                         struct tess_job_end *out)
{
	struct launch_job *j = make_job(how, attempt);
	tess_status st;

	if (!j)
		return tess_fail(TESS_ENOMEM, "no memory for %d ranks", how->nranks);
	st = j->poll_fds && j->outputs
	             ? open_job(j)
	             : tess_fail(TESS_ENOMEM, "no memory for %d ranks", how->nranks);
	if (!st && how->run)
		st = start_functions(j);
	else if (!st && !(st = open_rendezvous(j)))
		st = start_ranks(j);
	if (st)
		enter_stage(j, KILLING);
	if (j->signals >= 0)
		run_to_end(j);
	if (!st && how->run) {
		*out = (struct tess_job_end){ 0 };
		st = get_failure(j);
	} else if (!st) {
		*out = (struct tess_job_end){ .status = report_result(j),
			                      .by_signal = j->signal != 0 };
	}
	if (!st && j->unwritten && j->error != EPIPE)
		st = tess_fail(TESS_EIO, "%s cannot be written: %s; the job was ended",
		               j->unwritten, strerror(j->error));
	free_job(j);
	return st;
}

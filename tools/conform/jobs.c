/* jobs.c - the jobs: their table, start, watchdog and faults. */
#include "conform.h"

#include "core/base/status.h"
#include "core/launch/launch.h"
#include "core/rendezvous/call_desc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N(n) (UINT32_C(1) << (n))
#define ALL (N(1) | N(2) | N(3) | N(4) | N(5) | N(6) | N(7) | N(8))

const struct conform_part conform_parts[] = {
	{ "open", "a group of all ranks", conform_run_open, .ranks = ALL,
	  .quick_ranks = N(1) | N(2) | N(8) },
	{ "wait", "test and wait return when they should", conform_run_wait,
	  .ranks = N(2) | N(3) | N(8), .quick_ranks = N(2) | N(3) },
	{ "data", "every kind, dtype and operation, to the bit", conform_run_data, .ranks = ALL,
	  .quick_ranks = N(1) | N(2) | N(3) | N(5), .threads_too = true },
	{ "barrier", "no rank leaves before all have come", conform_run_barrier, .ranks = ALL,
	  .quick_ranks = N(2) | N(8) },
	{ "several", "many calls at a time, waited for in any order", conform_run_several,
	  .ranks = ALL, .quick_ranks = N(2) | N(3) | N(4), .threads_too = true },
	{ "messages", "all pairs, in order, around collectives", conform_run_messages,
	  .ranks = ALL & ~N(1), .quick_ranks = N(2) | N(4) },
	{ "groups", "two groups interleaved, reversed, of some ranks", conform_run_groups,
	  .ranks = ALL & ~N(1), .quick_ranks = N(2) | N(4) },
	{ "extras", "the same bits on all ranks; batch, alloc, exact sums", conform_run_extras,
	  .ranks = ALL, .quick_ranks = N(1) | N(3) | N(4) },
	{ "life", "opened and closed a thousand times", conform_run_life,
	  .ranks = N(1) | N(2) | N(4), .quick_ranks = N(2) },
	{ "abort", "ends calls that wait", conform_run_abort, .ranks = N(2) | N(4),
	  .quick_ranks = N(2), .cleans = true },
	{ "misuse", "is refused and harms nothing", conform_run_misuse, .ranks = N(2) | N(5),
	  .quick_ranks = N(2) },
	{ "mismatch", "calls that differ are named", conform_run_mismatch,
	  .ranks = N(2) | N(3) | N(8), .quick_ranks = N(2) | N(3), .fails = true, .variants = 9,
	  .quick_variants = 9, .thread_variants = 9, .variant = conform_mismatch_name },
	{ "death", "of a rank is reported to all", conform_run_death, .ranks = N(2) | N(3) | N(5),
	  .quick_ranks = N(3), .fails = true, .cleans = true, .variants = 16, .quick_variants = 6,
	  .thread_variants = 16, .variant = conform_death_name },
	{ "timeout", "late ranks, deadlines", conform_run_timeout, .ranks = N(2) | N(4),
	  .quick_ranks = N(2), .fails = true, .timeout = 2, .variants = 4, .quick_variants = 4,
	  .thread_variants = 3, .variant = conform_timeout_name },
};
const int32_t conform_nparts = sizeof conform_parts / sizeof *conform_parts;

enum {
	BROKEN_JOBS_MAX = 5,
	RESTARTS_MAX = 2,
	RUNS_MAX = 3, /* runs of a job that takes too long */
	FAULTS_MAX = 3,
	LOG = 4096,
	GRACE_S = 5,
	VICTIM_MS = 1000,
	POLL_MS = 10,
	PROGRESS_MS = 200
};

/* Starts the ranks of a backend that has `bootstrap`. */
static const char mpirun[] = "mpirun --oversubscribe --enable-recovery -n $N";

struct conform_jobs {
	const struct conform_options *options;
	const char *launcher; /* the command that starts ranks, or NULL */
	struct conform_report *report;
	struct conform_shared *shared;
	char path[64], self[PATH_MAX];
	int log; /* stdout and stderr of a job */
	const char *style; /* the style that is tested; NULL: a backend is */
	int broken; /* jobs that did not finish */
	bool is_hung; /* the last job */
	int status; /* waitpid's status of the last job */
};

/* ---- one job ------------------------------------------------------------ */

static _Noreturn void exec_ranks(struct conform_jobs *d)
{
	const struct conform_job *job = &d->shared->job;
	char *argv[] = { d->self, "conform", "@rank", d->path, NULL };
	char timeout[32], command[PATH_MAX + 64];
	struct tess_launch launch = {
		.nranks = job->nranks, .path = d->self, .argv = argv, .timeout = timeout
	};
	int null = open("/dev/null", O_RDONLY), status;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(null, STDIN_FILENO);
	dup2(d->log, STDOUT_FILENO);
	dup2(d->log, STDERR_FILENO);
	snprintf(timeout, sizeof timeout, "%g", d->options->timeout);
	setenv("TESSERA_TIMEOUT", timeout, 1);
	if (job->part < 0 || job->threads) {
		execv(d->self, argv);
	} else if (d->launcher) {
		snprintf(timeout, sizeof timeout, "%d", (int)job->nranks);
		setenv("N", timeout, 1);
		snprintf(command, sizeof command, "exec %s \"$@\"", d->launcher);
		execl("/bin/sh", "sh", "-c", command, "sh", argv[0], argv[1], argv[2], argv[3],
		      NULL);
	} else {
		if (!tess_launch(&launch, &status))
			_exit(status);
		fprintf(stderr, "%s\n", tess_error());
	}
	_exit(127);
}

struct job_totals { /* totals of all ranks; cases: maximum of a rank */
	unsigned heartbeats, nfaults, ntime_faults;
	uint32_t current_case, ncases;
};

static struct job_totals sum_rank_states(const struct conform_shared *b)
{
	struct job_totals all = { 0 };

	for (int32_t r = 0; r < CONFORM_RANKS; r++) {
		const struct conform_rank_state *s = &b->rank_state[r];

		all.heartbeats += atomic_load(&s->heartbeats);
		all.nfaults += atomic_load(&s->nfaults);
		all.ntime_faults += atomic_load(&s->ntime_faults);
		if (s->current_case > all.current_case)
			all.current_case = s->current_case;
		if (s->ncases > all.ncases)
			all.ncases = s->ncases;
	}
	return all;
}

static const char *get_variant_name(const struct conform_job *job)
{
	const struct conform_part *part = job->part < 0 ? NULL : conform_get_part(job);

	return part && part->variant ? part->variant(job->variant) : NULL;
}

/* A foreign launcher waits forever for a rank that is stopped, when the other ranks have ended. */
static bool is_victim_alone(const struct conform_shared *b)
{
	int victim = atomic_load(&b->victim);

	for (int32_t r = 0; r < b->job.nranks; r++)
		if (r != victim && atomic_load(&b->rank_state[r].state) != CONFORM_DONE)
			return false;
	return b->job.foreign && victim >= 0;
}

/* Waits until the job has ended, or no rank has made progress for longer than a call may take. */
static void watch_job(struct conform_jobs *d, pid_t pid)
{
	const struct conform_job *job = &d->shared->job;
	double longest = job->timeout > d->options->timeout ? job->timeout : d->options->timeout;
	int64_t timeout = (int64_t)((longest * 1.5 + GRACE_S) * 1e9), last = tess_now(),
		shown = last;
	unsigned before = 0;

	d->is_hung = false;
	while (waitpid(pid, &d->status, WNOHANG) != pid) {
		struct job_totals now = sum_rank_states(d->shared);

		if (now.heartbeats != before)
			last = tess_now();
		before = now.heartbeats;
		if (tess_now() - shown > PROGRESS_MS * (int64_t)TESS_MS && job->part >= 0) {
			conform_report_show_progress(d->report, job->nranks, get_variant_name(job),
			                             now.ncases);
			shown = tess_now();
		}
		if (is_victim_alone(d->shared))
			timeout = VICTIM_MS * (int64_t)TESS_MS;
		if (tess_now() - last > timeout) {
			d->is_hung = true;
			kill(-pid, SIGKILL);
		}
		conform_sleep(POLL_MS * (int64_t)TESS_MS);
	}
	kill(-pid, SIGKILL); /* processes left by a foreign launcher */
}

static tess_status run_job(struct conform_jobs *d, const struct conform_job *job)
{
	struct conform_shared *b = d->shared;
	pid_t pid;

	b->job = *job;
	memset(b->rank_state, 0, sizeof b->rank_state);
	memset(b->mark, 0, sizeof b->mark);
	atomic_store(&b->died_at, 0);
	atomic_store(&b->victim, -1);
	if (ftruncate(d->log, 0) || lseek(d->log, 0, SEEK_SET) < 0)
		return tess_fail(TESS_EIO, "the output of a job cannot be kept: %s",
		                 strerror(errno));
	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return tess_fail(TESS_EIO, "no process for a job: %s", strerror(errno));
	if (!pid)
		exec_ranks(d);
	setpgid(pid, pid);
	watch_job(d, pid);
	return TESS_OK;
}

/* ---- its faults ------------------------------------------------------------------------------ */

/* Reports the end of the output of the job, in complete lines. */
static void report_job_output(const struct conform_jobs *d)
{
	char log[LOG + 1];
	off_t size = lseek(d->log, 0, SEEK_END), at = size > LOG ? size - LOG : 0;
	ssize_t n = pread(d->log, log, LOG, at);
	char *line;

	n = n > 0 ? n : 0;
	while (n > 0 && log[n - 1] == '\n')
		n--;
	log[n] = '\0';
	line = at ? strchr(log, '\n') : NULL;
	conform_report_add_output(d->report, line ? line + 1 : log);
}

/* A launcher ends with the status of its rank, as a shell would give it. */
static void format_job_exit(const struct conform_jobs *d, char *text, size_t size)
{
	int status = WIFEXITED(d->status) ? WEXITSTATUS(d->status) : -1;
	int sig = WIFSIGNALED(d->status) && !d->is_hung ? WTERMSIG(d->status)
	          : status > 128 && status < 128 + NSIG ? status - 128
	                                                : 0;

	if (sig)
		snprintf(text, size, "killed by signal %d (%s)", sig, strsignal(sig));
	else
		snprintf(text, size, "exit status %d", status);
}

static void report_lost_job_rank(const struct conform_jobs *d, int32_t r)
{
	static const char *const steps[] = { "itself", "open()",    "start()", "test()",
		                             "wait()", "release()", "close()" };
	const struct conform_rank_state *s = &d->shared->rank_state[r];
	bool inside = atomic_load(&s->call) != CONFORM_NO_CALL,
	     is_running = atomic_load(&s->state) == CONFORM_RUNNING;
	char text[2 * CONFORM_TEXT], end[128] = "";

	if (!d->is_hung)
		format_job_exit(d, end, sizeof end);
	if (d->is_hung)
		snprintf(text, sizeof text,
		         "rank %d hangs%s%s: it has not returned since. The rule: no call "
		         "outlasts its deadline, %g s",
		         (int)r, inside ? " in " : "", inside ? steps[atomic_load(&s->call)] : "",
		         d->shared->job.timeout);
	else
		snprintf(text, sizeof text, "rank %d has ended%s%s: %s", (int)r,
		         inside ? " in " : "", inside ? steps[atomic_load(&s->call)] : "", end);
	conform_report_add_fault(d->report,
	                         is_running ? s->activity : "opening the group of all ranks", text);
}

static bool is_reported(const struct conform_jobs *d, int32_t r, const char *text)
{
	while (r-- > 0)
		for (int i = 0; i < CONFORM_FAULTS; i++)
			if (!strcmp(d->shared->rank_state[r].fault[i].text, text))
				return true;
	return false;
}

/* Reports ranks that ended by themselves, which cause other faults. Returns true for none. */
static bool report_lost_ranks(struct conform_jobs *d, unsigned *nreported)
{
	const struct conform_shared *b = d->shared;
	bool complete = true, faulty = sum_rank_states(b).nfaults;

	for (int32_t r = 0; r < b->job.nranks && b->job.part >= 0; r++) {
		const struct conform_rank_state *s = &b->rank_state[r];

		if (atomic_load(&s->state) == CONFORM_DONE || atomic_load(&b->victim) == r)
			continue;
		if (b->job.foreign && !d->is_hung && conform_get_part(&b->job)->fails)
			continue; /* its launcher ends all ranks when one has ended */
		complete = false;
		if (b->job.threads && !d->is_hung && *nreported)
			continue; /* one process, one end */
		if ((!faulty || (!d->is_hung && !atomic_load(&s->nfaults))) &&
		    (*nreported)++ < FAULTS_MAX)
			report_lost_job_rank(d, r);
	}
	return complete;
}

/* Reports lost ranks, then the faults of ranks, each once. Returns true if none is lost. */
static bool report_faults(struct conform_jobs *d)
{
	const struct conform_shared *b = d->shared;
	int32_t n = b->job.nranks ? b->job.nranks : 1;
	unsigned nreported = 0, all = sum_rank_states(b).nfaults;
	char text[CONFORM_TEXT + 64];
	bool complete = report_lost_ranks(d, &nreported);

	for (int32_t r = 0; r < n; r++) {
		const struct conform_rank_state *s = &b->rank_state[r];
		unsigned nfaults = atomic_load(&s->nfaults);

		for (unsigned i = 0; i < nfaults && i < CONFORM_FAULTS && nreported < FAULTS_MAX;
		     i++) {
			if (is_reported(d, r, s->fault[i].text))
				continue;
			snprintf(text, sizeof text, "rank %d: %s", (int)r, s->fault[i].text);
			conform_report_add_fault(d->report, s->fault[i].what, text);
			nreported++;
		}
	}
	if (b->job.part < 0 && !b->backend.opened && !all) {
		report_lost_job_rank(d, 0);
		complete = false;
	}
	if (all > nreported && nreported == FAULTS_MAX) {
		snprintf(text, sizeof text, "%u faults in all in this job", all);
		conform_report_add_fault(d->report, "", text);
	}
	return complete;
}

/* ---- all jobs -------------------------------------------------------------------------------- */

/*
 * Reports a bad exit status after all ranks have finished: a crash at the end of the process, or a
 * report of a sanitizer.
 */
static bool report_bad_exit(struct conform_jobs *d)
{
	char end[128], text[200];

	if (conform_get_part(&d->shared->job)->fails || !d->status)
		return false;
	if (sum_rank_states(d->shared).nfaults)
		return true;
	format_job_exit(d, end, sizeof end);
	snprintf(text, sizeof text, "all ranks got to their end, then: %s", end);
	conform_report_add_fault(d->report, "", text);
	return true;
}

/* Returns whether all faults concern time only. */
static bool has_only_time_faults(const struct conform_jobs *d)
{
	struct job_totals all = sum_rank_states(d->shared);

	return all.nfaults && all.nfaults == all.ntime_faults && !d->is_hung;
}

/* Repeats a job that was too slow: a busy machine is slow once, a faulty backend again. */
static tess_status run_job_with_retries(struct conform_jobs *d, const struct conform_job *job)
{
	tess_status st = run_job(d, job);

	for (int i = 1; i < RUNS_MAX && !st && has_only_time_faults(d); i++)
		st = run_job(d, job);
	return st;
}

/* Reports a file that ranks have left behind; of a hanging job everything is left. */
static void report_leftover(struct conform_jobs *d, int64_t since)
{
	char path[CONFORM_ACTIVITY], text[CONFORM_ACTIVITY + 128];

	if (!conform_get_part(&d->shared->job)->cleans || d->is_hung ||
	    !conform_find_leftover(d->shared, since, path))
		return;
	snprintf(text, sizeof text,
	         "%s is left after the job. The rule: ranks leave no file behind, even if they "
	         "are killed",
	         path);
	conform_report_add_fault(d->report, d->shared->rank_state[0].activity, text);
}

/* Runs a job, and continues behind a case that broke it. */
static tess_status run_job_to_end(struct conform_jobs *d, struct conform_job job)
{
	uint32_t done = 0;
	tess_status st = TESS_OK;

	conform_report_begin_job(d->report, job.nranks, get_variant_name(&job));
	for (int i = 0; i <= RESTARTS_MAX; i++) {
		struct job_totals all;
		int64_t since = time(NULL);
		bool complete;

		st = run_job_with_retries(d, &job);
		if (st)
			return st;
		all = sum_rank_states(d->shared);
		complete = report_faults(d);
		complete = complete && !report_bad_exit(d);
		report_leftover(d, since);
		done += all.ncases;
		if (*d->shared->rank_state[0].note)
			conform_report_set_note(d->report, d->shared->rank_state[0].note);
		if (!complete || all.nfaults)
			report_job_output(d);
		if (complete)
			break;
		d->broken = d->style && d->is_hung ? BROKEN_JOBS_MAX : d->broken + 1;
		job.first = all.current_case + 1;
		if (conform_get_part(&job)->run != conform_run_data || d->broken >= BROKEN_JOBS_MAX)
			break;
	}
	conform_report_end_job(d->report, done);
	return st;
}

static void set_job_device(const struct conform_jobs *d, struct conform_job *job)
{
	const char *device = d->options->device;

	snprintf(job->device, sizeof job->device, "%s", device ? device : "");
}

static void set_job_style(const struct conform_jobs *d, struct conform_job *job)
{
	snprintf(job->style, sizeof job->style, "%s", d->style);
	job->tolerance = d->options->tolerance;
}

static tess_status run_part(struct conform_jobs *d, const struct conform_part *part, bool threads,
                            bool again)
{
	const struct conform_options *options = d->options;
	uint32_t ranks = options->quick ? part->quick_ranks : part->ranks;
	int32_t variants = options->quick ? part->quick_variants : part->variants;
	const struct conform_part *table = d->style ? conform_style_parts : conform_parts;
	char name[64];
	tess_status st = TESS_OK;

	if (threads && part->thread_variants < variants)
		variants = part->thread_variants;
	if (again)
		ranks &= N(3);
	snprintf(name, sizeof name, "%s%s", part->name, again ? ", threads" : "");
	conform_report_begin(d->report, name, part->about);
	for (int32_t n = 1; n <= options->max_ranks && !st; n++)
		for (int32_t v = 0; v < (variants ? variants : 1) && !st && ranks & N(n); v++) {
			struct conform_job job = { .part = (int32_t)(part - table),
				                   .nranks = n,
				                   .variant = v,
				                   .threads = threads,
				                   .quick = options->quick,
				                   .foreign = d->launcher != NULL,
				                   .timeout = part->timeout > 0
				                                      ? part->timeout
				                                      : options->timeout };

			if (d->style)
				set_job_style(d, &job);
			set_job_device(d, &job);
			if (d->broken < BROKEN_JOBS_MAX)
				st = run_job_to_end(d, job);
		}
	conform_report_end(d->report);
	return st;
}

/* Prints the output of a launcher that has started no rank. */
static tess_status fail_not_started(struct conform_jobs *d)
{
	char log[LOG];
	ssize_t n = pread(d->log, log, sizeof log, 0);

	if (n > 0)
		fwrite(log, 1, (size_t)n, stderr);
	return tess_fail(TESS_EIO, "\"%s\" has started no rank, and ended with status %d",
	                 d->launcher, WIFEXITED(d->status) ? WEXITSTATUS(d->status) : -1);
}

/* Ranks are processes, where the backend has them. */
static tess_status choose_rank_kind(struct conform_jobs *d, bool *processes)
{
	struct conform_job job = {
		.part = 0,
		.nranks = d->options->max_ranks < 2 ? 1 : 2,
		.quick = true,
		.timeout = d->options->timeout,
	};
	const struct conform_rank_state *state = d->shared->rank_state;
	bool started = false;
	tess_status st;

	set_job_device(d, &job);
	*processes = true;
	if (!d->shared->backend.threads && !d->launcher)
		return TESS_OK;
	st = run_job(d, &job);
	for (int32_t r = 0; r < job.nranks; r++) {
		started = started || atomic_load(&state[r].state) || atomic_load(&state[r].nfaults);
		*processes = *processes && atomic_load(&state[r].state) == CONFORM_DONE;
	}
	if (d->launcher && !st && !started)
		st = fail_not_started(d);
	*processes = *processes || d->launcher;
	return st;
}

/* Opens the plugin in a job of its own. *opened: false after its fault was reported. */
static tess_status inspect_plugin(struct conform_jobs *d, bool *opened)
{
	struct conform_job job = { .part = -1, .timeout = d->options->timeout };
	tess_status st;

	set_job_device(d, &job);
	snprintf(job.style, sizeof job.style, "%s", d->options->style ? d->options->style : "");
	snprintf(job.file, sizeof job.file, "%s", d->options->file ? d->options->file : "");
	st = run_job(d, &job);
	*opened = !st && d->shared->backend.opened;
	if (st || *opened)
		return st;
	conform_report_begin(d->report, "plugin", "is found and opened");
	conform_report_begin_job(d->report, 0, NULL);
	report_faults(d);
	report_job_output(d);
	conform_report_end_job(d->report, 0);
	conform_report_end(d->report);
	return TESS_OK;
}

/* Runs the parts that are requested of a table. */
static tess_status run_table(struct conform_jobs *d, const struct conform_part *parts, int32_t n,
                             bool processes)
{
	tess_status st = TESS_OK;

	for (int32_t p = 0; p < n && !st; p++) {
		if (d->options->part && strcmp(d->options->part, parts[p].name) != 0)
			continue;
		st = run_part(d, &parts[p], !processes, false);
		if (!st && processes && d->shared->backend.threads && parts[p].threads_too)
			st = run_part(d, &parts[p], true, true);
	}
	if (d->broken >= BROKEN_JOBS_MAX)
		conform_report_print_note(d->report,
		                          "stopped early: jobs did not get to their end");
	return st;
}

/* Tests each style of the plugin. */
static tess_status run_style_parts(struct conform_jobs *d)
{
	const struct conform_backend_info *f = &d->shared->backend;
	bool opened;
	tess_status st = inspect_plugin(d, &opened);

	for (int32_t i = 0; i < f->nstyles && opened && !st; i++) {
		d->style = f->style[i];
		d->broken = 0;
		conform_report_print_style(d->report, d->style, f->path);
		st = run_table(d, conform_style_parts, conform_nstyle_parts, false);
	}
	return st;
}

static tess_status run_parts(struct conform_jobs *d)
{
	const struct conform_backend_info *f = &d->shared->backend;
	bool processes = true, opened;
	char rank_kinds[256];
	tess_status st = inspect_plugin(d, &opened);

	if (st || !opened)
		return st;
	if (f->bootstraps && !d->launcher)
		d->launcher = mpirun;
	if ((st = choose_rank_kind(d, &processes)))
		return st;
	snprintf(rank_kinds, sizeof rank_kinds, "%s%s%s",
	         !processes   ? "threads"
	         : f->threads ? "processes, and threads"
	                      : "processes",
	         d->launcher ? ", started by " : "", d->launcher ? d->launcher : "");
	conform_report_print_head(d->report, f, rank_kinds);
	st = conform_check_gaps(f, d->report);
	return st ? st : run_table(d, conform_parts, conform_nparts, processes);
}

tess_status conform_run_jobs(const struct conform_options *options, struct conform_report *r)
{
	struct conform_jobs d = { .options = options,
		                  .launcher = options->launcher,
		                  .report = r,
		                  .shared = MAP_FAILED,
		                  .log = memfd_create("output", MFD_CLOEXEC) };
	int fd = memfd_create("conform", MFD_CLOEXEC);
	ssize_t len = readlink("/proc/self/exe", d.self, sizeof d.self - 1);
	tess_status st;

	if (fd >= 0 && d.log >= 0 && len > 0 && !ftruncate(fd, sizeof *d.shared))
		d.shared = mmap(NULL, sizeof *d.shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (d.shared == MAP_FAILED) {
		st = tess_fail(TESS_EIO, "no shared memory for the ranks: %s", strerror(errno));
	} else {
		snprintf(d.path, sizeof d.path, "/proc/%d/fd/%d", (int)getpid(), fd);
		st = options->style ? run_style_parts(&d) : run_parts(&d);
		munmap(d.shared, sizeof *d.shared);
	}
	if (fd >= 0)
		close(fd);
	if (d.log >= 0)
		close(d.log);
	return st;
}

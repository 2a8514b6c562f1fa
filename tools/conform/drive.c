/* The jobs: which there are, how they are started, watched, and what is made of what they leave. */
#include "conform.h"

#include "core/base/status.h"
#include "core/base/clock.h"
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
#include <unistd.h>

#define N(n) (UINT32_C(1) << (n))
#define ALL (N(1) | N(2) | N(3) | N(4) | N(5) | N(6) | N(7) | N(8))

const struct conform_part conform_parts[] = {
	{ "open", "a group of all ranks", conform_run_open, .ranks = ALL,
	  .quick_ranks = N(1) | N(2) | N(8) },
	{ "wait", "test and wait come back when they should", conform_run_wait,
	  .ranks = N(2) | N(3) | N(8), .quick_ranks = N(2) | N(3) },
	{ "data", "every kind, dtype and operation, to the bit", conform_run_data, .ranks = ALL,
	  .quick_ranks = N(1) | N(2) | N(3) | N(4) | N(8), .again = true },
	{ "barrier", "no rank leaves before all have come", conform_run_barrier, .ranks = ALL,
	  .quick_ranks = N(2) | N(8) },
	{ "several", "many calls at once, waited for in any order", conform_run_several,
	  .ranks = ALL, .quick_ranks = N(2) | N(3) | N(4), .again = true },
	{ "messages", "all pairs, in order, around collectives", conform_run_messages,
	  .ranks = ALL & ~N(1), .quick_ranks = N(2) | N(4) },
	{ "groups", "two groups interleaved, reversed, of some ranks", conform_run_groups,
	  .ranks = ALL & ~N(1), .quick_ranks = N(2) | N(4) },
	{ "extras", "batch, alloc and exact sums, where they are there", conform_run_extras,
	  .ranks = ALL, .quick_ranks = N(1) | N(3) | N(4) },
	{ "run", "calls from begin to end in one, where that is there", conform_run_run,
	  .ranks = N(1) | N(2) | N(3) | N(8), .quick_ranks = N(2) | N(3), .again = true },
	{ "life", "opened and closed a thousand times", conform_run_life,
	  .ranks = N(1) | N(2) | N(4), .quick_ranks = N(2) },
	{ "abort", "ends what waits", conform_run_abort, .ranks = N(2) | N(4),
	  .quick_ranks = N(2) },
	{ "misuse", "is refused and harms nothing", conform_run_misuse, .ranks = N(2) | N(5),
	  .quick_ranks = N(2) },
	{ "mismatch", "calls that differ are named", conform_run_mismatch,
	  .ranks = N(2) | N(3) | N(8), .quick_ranks = N(2) | N(3), .scene = true, .variants = 10,
	  .quick_variants = 10, .thread_variants = 10, .variant = conform_mismatch_name },
	{ "death", "of a rank is told to all", conform_run_death, .ranks = N(2) | N(3) | N(5),
	  .quick_ranks = N(3), .scene = true, .variants = 16, .quick_variants = 6,
	  .thread_variants = 16, .variant = conform_death_name },
	{ "timeout", "late ranks, deadlines", conform_run_timeout, .ranks = N(2) | N(4),
	  .quick_ranks = N(2), .scene = true, .timeout = 2, .variants = 4, .quick_variants = 4,
	  .thread_variants = 3, .variant = conform_timeout_name },
};
const int32_t conform_nparts = sizeof conform_parts / sizeof *conform_parts;

enum {
	BREAKS_MOST = 5,
	RESTARTS_MOST = 2,
	TIMES_MOST = 3, /* of a job that takes too long */
	FAULTS_MOST = 3,
	LOG = 4096,
	GRACE = 5,
	LAST_MS = 1000,
	NAP_MS = 10,
	SHOW_MS = 200
};

/* Where a backend's library brings the ranks together, they are started by its launcher. */
static const char mpirun[] = "mpirun --oversubscribe --enable-recovery -n $N";

struct drive {
	const struct conform_options *how;
	const char *start; /* the command that starts ranks, or NULL */
	struct conform_report *report;
	struct conform_board *board;
	char path[64], self[PATH_MAX];
	int log; /* what a job writes to its stdout and stderr */
	int broken; /* jobs that did not get through */
	bool hung; /* the last one */
	int status; /* its exit status, of waitpid */
};

/* ---- one process, or as many as there are ranks ------------------------------------------------------------ */

static _Noreturn void become_ranks(struct drive *d)
{
	const struct conform_job *job = &d->board->job;
	char *argv[] = { d->self, "conform", "@rank", d->path, NULL };
	char timeout[32], command[PATH_MAX + 64];
	struct tess_launch how = {
		.nranks = job->nranks, .path = d->self, .argv = argv, .timeout = timeout
	};
	int null = open("/dev/null", O_RDONLY), status;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(null, STDIN_FILENO);
	dup2(d->log, STDOUT_FILENO);
	dup2(d->log, STDERR_FILENO);
	snprintf(timeout, sizeof timeout, "%g", d->how->timeout);
	setenv("TESSERA_TIMEOUT", timeout, 1);
	if (job->part < 0 || job->threads) {
		execv(d->self, argv);
	} else if (d->start) {
		snprintf(timeout, sizeof timeout, "%d", (int)job->nranks);
		setenv("N", timeout, 1);
		snprintf(command, sizeof command, "exec %s \"$@\"", d->start);
		execl("/bin/sh", "sh", "-c", command, "sh", argv[0], argv[1], argv[2], argv[3],
		      NULL);
	} else {
		if (!tess_launch(&how, &status))
			_exit(status);
		fprintf(stderr, "%s\n", tess_error());
	}
	_exit(127);
}

static unsigned beats(const struct conform_board *b)
{
	unsigned sum = 0;

	for (int32_t r = 0; r < CONFORM_RANKS; r++)
		sum += atomic_load(&b->seat[r].beats);
	return sum;
}

static uint32_t cases(const struct conform_board *b)
{
	uint32_t most = 0;

	for (int32_t r = 0; r < CONFORM_RANKS; r++)
		if (b->seat[r].cases > most)
			most = b->seat[r].cases;
	return most;
}

static const char *variant_name(const struct conform_job *job)
{
	const struct conform_part *part = job->part < 0 ? NULL : &conform_parts[job->part];

	return part && part->variant ? part->variant(job->variant) : NULL;
}

/* A foreign launcher waits for a rank that is stopped, for ever, when all others have ended. */
static bool is_victim_alone(const struct conform_board *b)
{
	int victim = atomic_load(&b->victim);

	for (int32_t r = 0; r < b->job.nranks; r++)
		if (r != victim && atomic_load(&b->seat[r].state) != CONFORM_THROUGH)
			return false;
	return b->job.foreign && victim >= 0;
}

/* Until it has ended, or no rank has got on for longer than any call may take. */
static void watch(struct drive *d, pid_t pid)
{
	const struct conform_job *job = &d->board->job;
	double longest = job->timeout > d->how->timeout ? job->timeout : d->how->timeout;
	int64_t patience = (int64_t)((longest * 1.5 + GRACE) * 1e9), last = tess_now(),
		shown = last;
	struct timespec nap = tess_timespec(NAP_MS * (int64_t)TESS_MS);
	unsigned before = 0;

	d->hung = false;
	while (waitpid(pid, &d->status, WNOHANG) != pid) {
		unsigned now = beats(d->board);

		if (now != before)
			last = tess_now();
		before = now;
		if (tess_now() - shown > SHOW_MS * (int64_t)TESS_MS && job->part >= 0) {
			conform_report_progress(d->report, job->nranks, variant_name(job),
			                        cases(d->board));
			shown = tess_now();
		}
		if (is_victim_alone(d->board))
			patience = LAST_MS * (int64_t)TESS_MS;
		if (tess_now() - last > patience) {
			d->hung = true;
			kill(-pid, SIGKILL);
		}
		nanosleep(&nap, NULL);
	}
	kill(-pid, SIGKILL); /* what a foreign launcher has left */
}

static tess_status run_job(struct drive *d, const struct conform_job *job)
{
	struct conform_board *b = d->board;
	pid_t pid;

	b->job = *job;
	memset(b->seat, 0, sizeof b->seat);
	memset(b->mark, 0, sizeof b->mark);
	atomic_store(&b->died, 0);
	atomic_store(&b->victim, -1);
	if (ftruncate(d->log, 0) || lseek(d->log, 0, SEEK_SET) < 0)
		return tess_fail(TESS_EIO, "the output of a job cannot be kept: %s",
		                 strerror(errno));
	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return tess_fail(TESS_EIO, "no process for a job: %s", strerror(errno));
	if (!pid)
		become_ranks(d);
	setpgid(pid, pid);
	watch(d, pid);
	return TESS_OK;
}

/* ---- what it has left ----------------------------------------------------------------------------------------- */

/* Shows the end of what the job has written and logged, in whole lines. */
static void show_output(const struct drive *d)
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
	conform_report_output(d->report, line ? line + 1 : log);
}

static bool is_blamed(const struct conform_board *b)
{
	bool blamed = false;

	for (int32_t r = 0; r < CONFORM_RANKS; r++)
		blamed = blamed || atomic_load(&b->seat[r].blamed);
	return blamed;
}

/* A launcher ends with the status of its rank, as a shell would give it. */
static void say_end(const struct drive *d, char *text, size_t room)
{
	int status = WIFEXITED(d->status) ? WEXITSTATUS(d->status) : -1;
	int sig = WIFSIGNALED(d->status) && !d->hung    ? WTERMSIG(d->status)
	          : status > 128 && status < 128 + NSIG ? status - 128
	                                                : 0;

	if (sig)
		snprintf(text, room, "killed by signal %d (%s)", sig, strsignal(sig));
	else
		snprintf(text, room, "exit status %d", status);
}

static void blame_lost(const struct drive *d, int32_t r)
{
	static const char *const steps[] = { "itself", "open()",    "start()", "test()",
		                             "wait()", "release()", "close()" };
	const struct conform_seat *s = &d->board->seat[r];
	bool inside = atomic_load(&s->step) != CONFORM_ITSELF,
	     here = atomic_load(&s->state) == CONFORM_HERE;
	char text[2 * CONFORM_TEXT], end[128] = "";

	if (!d->hung)
		say_end(d, end, sizeof end);
	if (d->hung)
		snprintf(
			text, sizeof text,
			"rank %d hangs%s%s: it has not come back since. The rule: no call outlasts its "
			"deadline, %g s",
			(int)r, inside ? " in " : "", inside ? steps[atomic_load(&s->step)] : "",
			d->board->job.timeout);
	else
		snprintf(text, sizeof text, "rank %d has ended%s%s: %s", (int)r,
		         inside ? " in " : "", inside ? steps[atomic_load(&s->step)] : "", end);
	conform_report_fault(d->report, here ? s->doing : "opening the group of all ranks", text);
}

static bool told(const struct drive *d, int32_t r, const char *text)
{
	while (r-- > 0)
		for (int i = 0; i < CONFORM_BLAMES; i++)
			if (!strcmp(d->board->seat[r].blame[i].text, text))
				return true;
	return false;
}

/* A rank that has ended by itself is told of first: what the others blame is that. Whether all got through. */
static bool judge_lost(struct drive *d, unsigned *said)
{
	const struct conform_board *b = d->board;
	bool through = true, blamed = is_blamed(b);

	for (int32_t r = 0; r < b->job.nranks && b->job.part >= 0; r++) {
		const struct conform_seat *s = &b->seat[r];

		if (atomic_load(&s->state) == CONFORM_THROUGH || atomic_load(&b->victim) == r)
			continue;
		if (b->job.foreign && !d->hung && conform_parts[b->job.part].scene)
			continue; /* its launcher ends all when one has ended */
		through = false;
		if ((!blamed || (!d->hung && !atomic_load(&s->blamed))) && (*said)++ < FAULTS_MOST)
			blame_lost(d, r);
	}
	return through;
}

/* Ranks that are lost, then faults that ranks have found, each told once. Whether all got through. */
static bool judge(struct drive *d)
{
	const struct conform_board *b = d->board;
	int32_t n = b->job.nranks ? b->job.nranks : 1;
	unsigned said = 0, all = 0;
	char text[CONFORM_TEXT + 64];
	bool through = judge_lost(d, &said);

	for (int32_t r = 0; r < n; r++) {
		const struct conform_seat *s = &b->seat[r];
		unsigned blamed = atomic_load(&s->blamed);

		all += blamed;
		for (unsigned i = 0; i < blamed && i < CONFORM_BLAMES && said < FAULTS_MOST; i++) {
			if (told(d, r, s->blame[i].text))
				continue;
			snprintf(text, sizeof text, "rank %d: %s", (int)r, s->blame[i].text);
			conform_report_fault(d->report, s->blame[i].what, text);
			said++;
		}
	}
	if (b->job.part < 0 && !b->found.opened && !all) {
		blame_lost(d, 0);
		through = false;
	}
	if (all > said && said == FAULTS_MOST) {
		snprintf(text, sizeof text, "%u faults in all in this job", all);
		conform_report_fault(d->report, "", text);
	}
	return through;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static uint32_t next_case(const struct conform_board *b)
{
	uint32_t most = 0;

	for (int32_t r = 0; r < b->job.nranks; r++)
		if (b->seat[r].at > most)
			most = b->seat[r].at;
	return most + 1;
}

/*
 * Its ranks have said that all is well, but it has not ended so: a crash at the end, or what a
 * sanitizer has found.
 */
static bool ended_badly(struct drive *d)
{
	char end[128], text[200];

	if (conform_parts[d->board->job.part].scene || !d->status)
		return false;
	if (is_blamed(d->board))
		return true;
	say_end(d, end, sizeof end);
	snprintf(text, sizeof text, "all ranks got through, then: %s", end);
	conform_report_fault(d->report, "", text);
	return true;
}

/* Whether all that its ranks blame is that something has taken too long. */
static bool only_time(const struct drive *d)
{
	unsigned all = 0, time = 0;

	for (int32_t r = 0; r < CONFORM_RANKS; r++) {
		all += atomic_load(&d->board->seat[r].blamed);
		time += atomic_load(&d->board->seat[r].blamed_time);
	}
	return all && all == time && !d->hung;
}

/* A busy machine may be slow once; what a backend does wrong it does again. */
static tess_status run_in_time(struct drive *d, const struct conform_job *job)
{
	tess_status st = run_job(d, job);

	for (int i = 1; i < TIMES_MOST && !st && only_time(d); i++)
		st = run_job(d, job);
	return st;
}

/* A job, and again behind the case that broke it. */
static tess_status run_and_judge(struct drive *d, struct conform_job job)
{
	uint32_t done = 0;
	tess_status st = TESS_OK;

	conform_report_job(d->report, job.nranks, variant_name(&job));
	for (int i = 0; i <= RESTARTS_MOST; i++) {
		bool through;

		st = run_in_time(d, &job);
		if (st)
			return st;
		through = judge(d);
		done += cases(d->board);
		through = through && !ended_badly(d);
		if (!through || is_blamed(d->board))
			show_output(d);
		if (through)
			break;
		d->broken++;
		job.first = next_case(d->board);
		if (conform_parts[job.part].run != conform_run_data || d->broken >= BREAKS_MOST)
			break;
	}
	conform_report_job_end(d->report, done);
	return st;
}

static tess_status run_part(struct drive *d, int32_t p, bool threads, bool again)
{
	const struct conform_options *how = d->how;
	const struct conform_part *part = &conform_parts[p];
	uint32_t ranks = how->quick ? part->quick_ranks : part->ranks;
	int32_t variants = how->quick ? part->quick_variants : part->variants;
	char name[64];
	tess_status st = TESS_OK;

	if (threads && part->thread_variants < variants)
		variants = part->thread_variants;
	if (again)
		ranks &= N(3);
	snprintf(name, sizeof name, "%s%s", part->name, again ? ", threads" : "");
	conform_report_begin(d->report, name, part->about);
	for (int32_t n = 1; n <= how->most && !st; n++)
		for (int32_t v = 0; v < (variants ? variants : 1) && !st && ranks & N(n); v++) {
			struct conform_job job = { .part = p,
				                   .nranks = n,
				                   .variant = v,
				                   .threads = threads,
				                   .quick = how->quick,
				                   .foreign = d->start != NULL,
				                   .timeout = part->timeout > 0 ? part->timeout
				                                                : how->timeout };

			if (d->broken < BREAKS_MOST)
				st = run_and_judge(d, job);
		}
	conform_report_end(d->report);
	return st;
}

/* A launcher that has started no rank: what it has written says why. */
static tess_status not_started(struct drive *d)
{
	char log[LOG];
	ssize_t n = pread(d->log, log, sizeof log, 0);

	if (n > 0)
		fwrite(log, 1, (size_t)n, stderr);
	return tess_fail(TESS_EIO, "no rank was started by \"%s\", which has ended with status %d",
	                 d->start, WIFEXITED(d->status) ? WEXITSTATUS(d->status) : -1);
}

/* Ranks that are processes come first, where the backend has them. */
static tess_status choose(struct drive *d, bool *processes)
{
	struct conform_job job = {
		.part = 0, .nranks = 2, .quick = true, .timeout = d->how->timeout
	};
	const struct conform_seat *seat = d->board->seat;
	bool came = false;
	tess_status st;

	*processes = true;
	if (!d->board->found.threads && !d->start)
		return TESS_OK;
	st = run_job(d, &job);
	for (int32_t r = 0; r < 2; r++) {
		came = came || atomic_load(&seat[r].state) || atomic_load(&seat[r].blamed);
		*processes = *processes && atomic_load(&seat[r].state) == CONFORM_THROUGH;
	}
	if (d->start && !st && !came)
		st = not_started(d);
	*processes = *processes || d->start;
	return st;
}

static tess_status run_all(struct drive *d)
{
	struct conform_job job = { .part = -1, .timeout = d->how->timeout };
	const struct conform_found *f = &d->board->found;
	bool processes = true;
	char made[256];
	tess_status st;

	if ((st = run_job(d, &job)))
		return st;
	if (f->meets && !d->start)
		d->start = mpirun;
	if (!f->opened) {
		conform_report_begin(d->report, "plugin", "is found and opened");
		conform_report_job(d->report, 0, NULL);
		judge(d);
		show_output(d);
		conform_report_job_end(d->report, 0);
		conform_report_end(d->report);
		return TESS_OK;
	}
	if ((st = choose(d, &processes)))
		return st;
	snprintf(made, sizeof made, "%s%s%s",
	         !processes   ? "threads"
	         : f->threads ? "processes, and threads"
	                      : "processes",
	         d->start ? ", started by " : "", d->start ? d->start : "");
	conform_report_head(d->report, f, made);
	st = conform_judge_gaps(f, d->report);
	for (int32_t p = 0; p < conform_nparts && !st; p++) {
		if (d->how->part && strcmp(d->how->part, conform_parts[p].name) != 0)
			continue;
		st = run_part(d, p, !processes, false);
		if (!st && processes && f->threads && conform_parts[p].again)
			st = run_part(d, p, true, true);
	}
	if (d->broken >= BREAKS_MOST)
		conform_report_note(d->report,
		                    "stopped early: too many jobs did not get to their end");
	return st;
}

tess_status conform_drive(const struct conform_options *how, struct conform_report *r)
{
	struct drive d = { .how = how,
		           .start = how->start,
		           .report = r,
		           .board = MAP_FAILED,
		           .log = memfd_create("output", MFD_CLOEXEC) };
	int fd = memfd_create("board", MFD_CLOEXEC);
	ssize_t len = readlink("/proc/self/exe", d.self, sizeof d.self - 1);
	tess_status st;

	if (fd >= 0 && d.log >= 0 && len > 0 && !ftruncate(fd, sizeof *d.board))
		d.board = mmap(NULL, sizeof *d.board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (d.board == MAP_FAILED) {
		st = tess_fail(TESS_EIO, "no shared memory for the ranks: %s", strerror(errno));
	} else {
		snprintf(d.path, sizeof d.path, "/proc/%d/fd/%d", (int)getpid(), fd);
		st = run_all(&d);
		munmap(d.board, sizeof *d.board);
	}
	if (fd >= 0)
		close(fd);
	if (d.log >= 0)
		close(d.log);
	return st;
}

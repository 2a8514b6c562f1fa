/*
 * conform.h - checks that a backend keeps the promises of group.h.
 *
 * The command never opens the backend itself: each job is a process whose ranks are threads, or a
 * process per rank, so that the command survives a hang or crash. The job and its findings are in
 * memory shared with the command, which also shows the last activity of a rank that died.
 */
#ifndef TESS_TOOLS_CONFORM_CONFORM_H
#define TESS_TOOLS_CONFORM_CONFORM_H

#include "core/base/clock.h"
#include "data.h"

#include <stdatomic.h>

enum { CONFORM_FAULTS = 3, CONFORM_ACTIVITY = 256, CONFORM_TEXT = 1800 };
enum { CONFORM_FILES = 8, CONFORM_PATH = 128, CONFORM_STYLES = 16 };
enum { CONFORM_KINDS = TESS_RECV, CONFORM_DTYPES = TESS_U8, CONFORM_OPS = TESS_BXOR };

struct conform_job {
	int32_t part; /* index into the parts of a backend or style; -1: inspects the plugin */
	char style[256]; /* the style that is tested, with its configuration; "": a backend */
	char file[512]; /* inspects the styles of this file; "": that of `style` */
	double tolerance; /* of values that a style computes */
	int32_t nranks, variant;
	uint32_t first; /* the first case, after one that broke the job */
	bool threads, quick;
	char device[64]; /* device whose memory the calls use; "": host memory */
	bool foreign; /* started by another launcher, which may end survivors */
	double timeout; /* timeout of calls after the ranks have met; seconds */
};

enum { CONFORM_NOT_STARTED, CONFORM_RUNNING, CONFORM_DONE };
/* The call that a rank executes, in case it does not return. */
enum {
	CONFORM_NO_CALL,
	CONFORM_OPEN,
	CONFORM_START,
	CONFORM_TEST,
	CONFORM_WAIT,
	CONFORM_RELEASE,
	CONFORM_CLOSE
};

struct conform_fault {
	char what[CONFORM_ACTIVITY], text[CONFORM_TEXT];
};

struct conform_rank_state { /* written by its rank only */
	atomic_uint heartbeats; /* increases while the rank makes progress */
	atomic_int state, call;
	atomic_uint nfaults; /* may exceed CONFORM_FAULTS: the rest is not kept */
	atomic_uint ntime_faults; /* faults that concern time only */
	uint32_t current_case, ncases; /* ncases: finished */
	char activity[CONFORM_ACTIVITY]; /* the case in words, reported if the rank dies in it */
	struct conform_fault fault[CONFORM_FAULTS];
	char note[CONFORM_TEXT]; /* of the job: what is no fault; "": none */
	int32_t pid; /* process of the rank */
	uint32_t nfiles;
	char file[CONFORM_FILES][CONFORM_PATH]; /* of conform_note_files() */
};

struct conform_backend_info { /* set by the first job, which opens the plugin */
	int32_t nstyles; /* instead of a backend: the styles that are tested */
	char style[CONFORM_STYLES][256];
	bool opened, threads, abort, batch, alloc, bootstraps;
	char name[64], summary[160], path[512];
	/* [kind][dtype][op], op 0 if none applies. Bit n: not supported by n ranks. */
	uint16_t unsupported[CONFORM_KINDS + 1][CONFORM_DTYPES + 1][CONFORM_OPS + 1];
};

struct conform_shared {
	struct conform_job job;
	struct conform_backend_info backend;
	_Atomic int64_t died_at; /* time of the victim's death; CLOCK_MONOTONIC ns */
	atomic_int victim; /* rank of the victim, or -1 */
	atomic_int mark[CONFORM_RANKS]; /* last barrier that each rank has entered */
	struct conform_rank_state rank_state[CONFORM_RANKS];
};

struct conform_direct { /* a group that is called through the backend's table */
	void *self;
	int32_t rank, n; /* rank and size of the group */
};

/* One rank of a job. */
struct conform_rank {
	struct tess_world *world;
	struct tess_group *group;
	struct conform_direct all; /* the group, called directly */
	const struct tess_backend *backend;
	struct conform_memory memory; /* memory of the calls */
	struct conform_shared *shared;
	const struct conform_job *job;
	struct conform_rank_state *state;
	int32_t rank, n;
};

/* Sets the activity of the rank, and counts a heartbeat. */
void conform_set_activity(struct conform_rank *me, const char *fmt, ...) TESS_PRINTF(2, 3);
/* Sets the current call: CONFORM_OPEN, ... */
void conform_set_call(struct conform_rank *me, int step);
/* Returns `st`. A failure without a message gets one: no sentence of the report is empty. */
tess_status conform_complete_error(tess_status st);
/* Adds the failure `st` of the current activity as a fault, with its message. */
void conform_add_failure(struct conform_rank *me, tess_status st);
/* Adds a fault of the current activity. */
void conform_add_fault(struct conform_rank *me, const char *fmt, ...) TESS_PRINTF(2, 3);
/* Adds a fault that concerns time only: the job runs again, because the machine may be busy. */
void conform_add_time_fault(struct conform_rank *me, const char *fmt, ...) TESS_PRINTF(2, 3);

/* Adds the result of conform_data_check() as a fault, and frees `d`. */
void conform_finish_data(struct conform_rank *me, struct conform_data *d);

/* ---- files of ranks: leftovers.c ------------------------------------------------------------- */

/* Notes temporary files that this rank has open or mapped. */
void conform_note_files(struct conform_rank *me);
/*
 * Finds a file that the ranks of the last job, which began at `since` (seconds of the real time),
 * have left behind; waits up to a second for its removal. Sets out to its path.
 */
bool conform_find_leftover(const struct conform_shared *b, int64_t since,
                           char out[CONFORM_ACTIVITY]);

/* ---- the memory of the calls: memory.c --------------------------------------------------- */

/* Collective. Selects the memory of later conform_data calls; "": host memory. */
tess_status conform_open_memory(struct conform_rank *me, const char *device);
void conform_close_memory(struct conform_rank *me);
/* Sets where the buffers are, and the stream. */
void conform_place_call(const struct conform_rank *me, struct tess_coll *c);
/* Allocates zeros; NULL: no memory. */
void *conform_alloc(const struct conform_rank *me, uint64_t bytes);
void conform_free(const struct conform_rank *me, void *p);
/* Copies between host memory and the memory of the calls. Blocks. */
tess_status conform_copy(const struct conform_rank *me, void *to, const void *from, uint64_t bytes);
/* Makes a call of the core on this memory. Blocks. */
tess_status conform_run_call(struct conform_rank *me, const struct tess_coll *c);
tess_status conform_run_barrier_call(struct conform_rank *me, const char *where);

/* ---- parts ----------------------------------------------------------------------------------- */

/*
 * Runs a part. A failure ends the job and is a fault of the rank, with its message. If `fails` of
 * the part is set, it provokes a failure, and the rank checks it.
 */
typedef tess_status conform_run(struct conform_rank *me);

struct conform_part {
	const char *name, *about;
	conform_run *run;
	uint32_t ranks, quick_ranks; /* bit n: run with n ranks */
	bool fails;
	bool cleans; /* its ranks leave no file behind, even if they are killed */
	bool threads_too; /* also runs with ranks as threads, if ranks are processes */
	double timeout; /* timeout of its calls, seconds; 0: from the options */
	int32_t variants, quick_variants, thread_variants; /* 0: one unnamed variant */
	const char *(*variant)(int32_t i); /* returns the name of variant i */
};
extern const struct conform_part conform_parts[];
extern const int32_t conform_nparts;
extern const struct conform_part conform_style_parts[]; /* style/parts.c */
extern const int32_t conform_nstyle_parts;

static inline const struct conform_part *conform_get_part(const struct conform_job *job)
{
	return *job->style ? &conform_style_parts[job->part] : &conform_parts[job->part];
}

/* The job of part -1 for a style. Returns the exit status. */
int conform_inspect_style(struct conform_shared *shared);

/* flow.c, waits.c, groups.c, faults.c: see conform_parts */
conform_run conform_run_open, conform_run_data, conform_run_barrier, conform_run_several;
conform_run conform_run_messages, conform_run_wait, conform_run_groups, conform_run_extras;
conform_run conform_run_life, conform_run_misuse, conform_run_abort, conform_run_mismatch;
conform_run conform_run_death, conform_run_timeout;
const char *conform_mismatch_name(int32_t i);
const char *conform_death_name(int32_t i);
const char *conform_timeout_name(int32_t i);

/* ---- cases ----------------------------------------------------------------------------------- */

/*
 * Lists the cases for groups of n: every kind x dtype x op, and every pair of values of two factors
 * (count, uneven, root, ...) at least once; fewer if `quick`. The list is equal on all ranks. The
 * caller frees *out. TESS_ENOMEM.
 */
tess_status conform_list_cases(int32_t n, bool quick, struct conform_case **out, uint32_t *ncases);
/* Returns whether calls of `kind` have this operation; kinds without one have TESS_SUM. */
bool conform_is_operation(int32_t kind, int32_t dtype, int32_t op);
/* Sets the activity to "all_reduce of 17 f32 (sum), in place, AMONG"; among: may be NULL. */
void conform_set_activity_case(struct conform_rank *me, const struct conform_case *c,
                               const char *among);
/* Returns the i-th of many cases of moderate size, for parts with concurrent calls. */
struct conform_case conform_pick_case(int32_t n, uint32_t i);

/* ---- groups opened without the core: direct.c --------------------------------------------- */

/*
 * Opens a group of the m world ranks in `member`, this rank included. parent: a group or NULL.
 * store NULL: the store of the world.
 */
tess_status conform_direct_open(struct conform_rank *me, const char *name, const int32_t *member,
                                int32_t m, void *parent, const struct tess_store *store,
                                struct conform_direct *out);
/* Opens a group of all ranks. */
tess_status conform_direct_open_all(struct conform_rank *me, const char *name,
                                    struct conform_direct *out);
void conform_direct_close(struct conform_rank *me, struct conform_direct *g);
/* Starts the calls of `d`, each with a deadline in `timeout` ns. */
tess_status conform_direct_start(struct conform_rank *me, const struct conform_direct *g,
                                 struct conform_data *d, int64_t timeout, void *work[static 2]);
/* Waits for the work: by wait() if the core would use it, else by test(). */
tess_status conform_direct_wait(struct conform_rank *me, const struct conform_direct *g, void *work,
                                int64_t deadline);
/* Starts, waits and releases. */
tess_status conform_direct_run(struct conform_rank *me, const struct conform_direct *g,
                               const struct tess_coll *c);
/*
 * Returns the status of a backend's function. A failure without a message gets one, as from the
 * core. Call tess_error_clear() before the function.
 */
tess_status conform_check_returned(const struct conform_rank *me, const char *function,
                                   tess_status st);
/* Returns whether the backend itself supports the calls of `d` in a group of d->n. */
bool conform_direct_supports(const struct conform_rank *me, const struct conform_data *d);

/* ---- the command ----------------------------------------------------------------------------- */

/* Runs ranks of a job: `tessera conform @rank PATH`, the shared memory. Returns the exit status. */
int conform_rank_main(const char *path);

struct conform_options {
	const char *backend; /* a name; with a style: of the ranks that compute */
	const char *style; /* the tested style, as in a plan, or a file; NULL: the backend */
	const char *file; /* the file, or NULL */
	double tolerance; /* of the values of a style; 0: to the bit */
	const char *launcher; /* a command that starts ranks, or NULL */
	const char *device; /* whose memory the calls use; NULL: host memory */
	const char *part; /* the only part, or NULL */
	int32_t only; /* its number on the command line, or -1 */
	int32_t max_ranks;
	double timeout; /* timeout of calls, seconds */
	bool quick, tap;
};

/*
 * Runs all jobs and fills the report. The backend is found by name (TESSERA_PLUGIN_PATH). Fails
 * only if the command itself cannot continue.
 */
struct conform_report;
tess_status conform_run_jobs(const struct conform_options *options, struct conform_report *r);

/* Opens a report on stdout: a table, with progress on a terminal, or TAP. NULL: no memory. */
struct conform_report *conform_report_open(const struct conform_options *options);
/* Prints the backend, and the kind of its ranks: "processes, and threads". */
void conform_report_print_head(struct conform_report *r, const struct conform_backend_info *f,
                               const char *ranks);
/* Prints a style, and the head of the table of its parts. */
void conform_report_print_style(struct conform_report *r, const char *style, const char *path);
/* Begins a row of the table: a part. */
void conform_report_begin(struct conform_report *r, const char *part, const char *about);
void conform_report_show_progress(struct conform_report *r, int32_t nranks, const char *variant,
                                  uint32_t cases);
/* Begins a job of the row; its faults and its end follow. nranks 0: none; variant NULL: unnamed. */
void conform_report_begin_job(struct conform_report *r, int32_t nranks, const char *variant);
void conform_report_add_fault(struct conform_report *r, const char *what, const char *text);
/* Adds the end of the output of its ranks, below its faults. */
void conform_report_add_output(struct conform_report *r, const char *text);
void conform_report_end_job(struct conform_report *r, uint32_t cases);
void conform_report_end(struct conform_report *r);
/* Sets a sentence for the end of the row. */
void conform_report_set_note(struct conform_report *r, const char *text);
void conform_report_print_note(struct conform_report *r, const char *text);
/* Sets the gaps for the last line; copied. */
void conform_report_set_gaps(struct conform_report *r, const char *gaps);
/* Prints the result in one line, and frees. Returns the exit status: 0 or 1. */
int conform_report_close(struct conform_report *r);

/* Compares the gaps of the backend with tess-backend-NAME.gaps beside it: one job of the report. */
tess_status conform_check_gaps(const struct conform_backend_info *f, struct conform_report *r);

static inline void conform_sleep(int64_t ns)
{
	struct timespec t = tess_timespec(ns);

	nanosleep(&t, NULL);
}

static inline double conform_get_seconds(int64_t ns)
{
	return (double)ns / 1e9;
}

#endif

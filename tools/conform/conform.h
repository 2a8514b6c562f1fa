/*
 * conform.h - whether a backend keeps what group.h promises.
 *
 * The command never opens the backend itself: each job is a process (its ranks are threads) or a process
 * per rank, so that a backend may hang or crash and the command goes on. What a job is to do and what
 * its ranks have found lies on a board, memory that they share with the command: a rank that dies has said
 * by then what it was doing.
 */
#ifndef TESS_CONFORM_H
#define TESS_CONFORM_H

#include "data.h"

#include <stdatomic.h>

enum { CONFORM_FAULTS = 3, CONFORM_ACTIVITY = 256, CONFORM_TEXT = 1800 };
enum { CONFORM_KINDS = TESS_RECV, CONFORM_DTYPES = TESS_U8, CONFORM_OPS = TESS_BXOR };

struct conform_job {
	int32_t part; /* of conform_parts */
	int32_t nranks, variant;
	uint32_t first; /* the case to begin with, after one that has broken the job */
	bool threads, quick,
		foreign; /* foreign: started by another launcher, which may end survivors */
	double timeout; /* of calls, once the ranks are together; seconds */
};

enum { CONFORM_NOT_STARTED, CONFORM_RUNNING, CONFORM_DONE };
/* What a rank is inside of, for when it does not come back. */
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
	atomic_uint heartbeats; /* grows as long as the rank gets on */
	atomic_int state, call;
	atomic_uint nfaults; /* also those that `blame` has no room for */
	atomic_uint ntime_faults; /* of these, those that only speak of time */
	uint32_t current_case, ncases; /* the case that it is in; how many it has finished */
	char activity[CONFORM_ACTIVITY]; /* the case in words: a dead rank's last ones */
	struct conform_fault fault[CONFORM_FAULTS];
};

struct conform_backend_info { /* by the first job, which asks the plugin what it is */
	bool opened, threads, abort, batch, alloc, bootstraps;
	char name[64], summary[160], path[512];
	/* Bit n of an entry: not supported by a group of n ranks. [kind][dtype][op], op 0 where none is read. */
	uint16_t unsupported[CONFORM_KINDS + 1][CONFORM_DTYPES + 1][CONFORM_OPS + 1];
};

struct conform_shared {
	struct conform_job job;
	struct conform_backend_info backend;
	_Atomic int64_t died_at; /* when the victim of a scene went; CLOCK_MONOTONIC ns */
	atomic_int victim; /* it, or -1 */
	atomic_int mark[CONFORM_RANKS]; /* for what ranks want to know of each other */
	struct conform_rank_state rank_state[CONFORM_RANKS];
};

/* One rank of a job. */
struct conform_rank {
	struct tess_world *world;
	struct tess_group *group;
	const struct tess_backend *backend;
	struct conform_shared *shared;
	const struct conform_job *job;
	struct conform_rank_state *state;
	int32_t rank, n;
};

/* Says what the rank does now, and that it gets on. */
void conform_set_activity(struct conform_rank *me, const char *fmt, ...) TESS_PRINTF(2, 3);
/* Says what it calls now. */
void conform_set_call(struct conform_rank *me, int step);
/* The rank has found a fault in what it was doing. */
void conform_add_fault(struct conform_rank *me, const char *fmt, ...) TESS_PRINTF(2, 3);
/* What it did took another time than it may: no fault yet, as a busy machine may be at fault. */
void conform_add_time_fault(struct conform_rank *me, const char *fmt, ...) TESS_PRINTF(2, 3);

/* ---- parts ---------------------------------------------------------------------------------------- */

struct conform_part {
	const char *name, *about;
	/*
	 * A failure ends the job and is blamed on the rank with its sentence. In a scene a failure is what
	 * is wanted, and the rank judges it itself.
	 */
	tess_status (*run)(struct conform_rank *me);
	uint32_t ranks, quick_ranks; /* bit n: with n ranks */
	bool scene;
	bool threads_too; /* with ranks as threads too, where processes come first */
	double timeout; /* of its calls, seconds; 0: that of the others */
	int32_t variants, quick_variants, thread_variants; /* 0: there is one, without a name */
	const char *(*variant)(int32_t i); /* its name */
};
extern const struct conform_part conform_parts[];
extern const int32_t conform_nparts;

/* flow.c, waits.c, groups.c, run.c, faults.c: see conform_parts */
tess_status conform_run_open(struct conform_rank *me);
tess_status conform_run_data(struct conform_rank *me);
tess_status conform_run_barrier(struct conform_rank *me);
tess_status conform_run_several(struct conform_rank *me);
tess_status conform_run_messages(struct conform_rank *me);
tess_status conform_run_wait(struct conform_rank *me);
tess_status conform_run_groups(struct conform_rank *me);
tess_status conform_run_extras(struct conform_rank *me);
tess_status conform_run_run(struct conform_rank *me);
tess_status conform_run_life(struct conform_rank *me);
tess_status conform_run_misuse(struct conform_rank *me);
tess_status conform_run_abort(struct conform_rank *me);
tess_status conform_run_mismatch(struct conform_rank *me);
tess_status conform_run_death(struct conform_rank *me);
tess_status conform_run_timeout(struct conform_rank *me);
const char *conform_mismatch_name(int32_t i);
const char *conform_death_name(int32_t i);
const char *conform_timeout_name(int32_t i);

/* ---- cases ---------------------------------------------------------------------------------------- */

/*
 * The cases for groups of n: every kind x dtype x op, and each two values of any two of count, kind, dtype,
 * op, uneven, in place, root and the rest in one case at least (more than once unless `quick`). The same list
 * on every rank. *out is yours: free. TESS_ENOMEM.
 */
tess_status conform_list_cases(int32_t n, bool quick, struct conform_case **out, uint32_t *ncases);
/* Says that the rank does this case now: "all_reduce of 17 f32 (sum), in place, AMONG"; among: or NULL. */
void conform_set_activity_case(struct conform_rank *me, const struct conform_case *c,
                               const char *among);
/* The i-th of many cases of moderate size, for parts that run several at once. */
struct conform_case conform_pick_case(int32_t n, uint32_t i);

/* ---- a group without the core's help: direct.c --------------------------------------------- */

struct conform_direct { /* opened through the backend's table */
	void *self;
	int32_t rank, n; /* in it */
};

/* With the ranks of `member` (world ranks, m of them, this one among them). parent: a group or NULL. */
tess_status conform_direct_open(struct conform_rank *me, const char *name, const int32_t *member,
                                int32_t m, void *parent, struct conform_direct *out);
/* With all ranks. */
tess_status conform_direct_open_all(struct conform_rank *me, const char *name,
                                    struct conform_direct *out);
void conform_direct_close(struct conform_rank *me, struct conform_direct *g);
/* Until it is done: wait() where the core would wait, else test(). */
tess_status conform_direct_wait(struct conform_rank *me, const struct conform_direct *g, void *work,
                                int64_t deadline);
/* Await, release. */
tess_status conform_direct_finish(struct conform_rank *me, const struct conform_direct *g,
                                  void *work, int64_t deadline);
/* Start, await, release. */
tess_status conform_direct_run(struct conform_rank *me, const struct conform_direct *g,
                               const struct tess_coll *c);
/* Whether the backend does all of `d` by itself in a group of d->n. */
bool conform_direct_supports(const struct conform_rank *me, const struct conform_data *d);

/* ---- the command ----------------------------------------------------------------------------------- */

/* The ranks of one job: what `tessera conform @rank BOARD` runs. Returns the exit status. */
int conform_rank_main(const char *board);

struct conform_options {
	const char *backend; /* its name */
	const char *launcher; /* a command that starts ranks, or NULL */
	const char *part; /* the only part, or NULL */
	int32_t max_ranks; /* ranks */
	double timeout; /* of calls, seconds */
	bool quick, tap;
};

/*
 * Runs all jobs and tells the report. The backend is found by name (TESSERA_PLUGIN_PATH). A failure is
 * one of the command itself.
 */
struct conform_report;
tess_status conform_run_jobs(const struct conform_options *how, struct conform_report *r);

/* stdout: a table with progress on a terminal, or TAP. NULL: no memory. */
struct conform_report *conform_report_open(const struct conform_options *how);
/* What was found, and how its ranks are made. */
void conform_report_print_head(struct conform_report *r, const struct conform_backend_info *f,
                               const char *ranks);
/* A row: a part. */
void conform_report_begin(struct conform_report *r, const char *part, const char *about);
void conform_report_show_progress(struct conform_report *r, int32_t nranks, const char *variant,
                                  uint32_t cases);
/* A job of the row begins, its faults follow, it ends. nranks 0: has none; variant NULL: has no name. */
void conform_report_begin_job(struct conform_report *r, int32_t nranks, const char *variant);
void conform_report_add_fault(struct conform_report *r, const char *what, const char *text);
/* The end of what its ranks have written and logged, below its faults. */
void conform_report_add_output(struct conform_report *r, const char *text);
void conform_report_end_job(struct conform_report *r, uint32_t cases);
void conform_report_end(struct conform_report *r);
void conform_report_print_note(struct conform_report *r, const char *text);
/* For the verdict; copied. */
void conform_report_set_gaps(struct conform_report *r, const char *gaps);
/* Prints the verdict in a line, and frees. The exit status: 0 or 1. */
int conform_report_close(struct conform_report *r);

/* Compares what the backend lacks with tess-backend-NAME.gaps beside it: one job of the report. */
tess_status conform_check_gaps(const struct conform_backend_info *f, struct conform_report *r);

#endif

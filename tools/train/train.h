/* train.h - the parts of `tessera train`. */
#ifndef TESS_TOOLS_TRAIN_H
#define TESS_TOOLS_TRAIN_H

#include "tools/tool.h"

#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <tessera/train.h>

struct train_options {
	struct tess_tool_session session;
	struct tess_tool_list data, eval_data, recompute;
	struct tess_tool_data rows;
	bool digest;
	int32_t steps, batch, micro, warmup, schedule, optimizer;
	int32_t eval_every, save_every, keep, restarts;
	double lr, min_lr, betas[2], eps, momentum, weight_decay, clip, aux_loss, dropout;
	int64_t seed;
	uint64_t bucket, tile, memory; /* memory: of a rank; 0: not given */
	const char *save, *resume, *log, *curve, *flight, *pipeline_schedule;
	const char *offload_optimizer, *offload_weights; /* a folder, or "host" */
};

/* Returns the options of the trainer; borrows from `a`. */
struct tess_trainer_options train_make_options(const struct train_options *a);

/*
 * Chooses a->tile for --tile auto on n ranks, and prints it if `print`. Refuses a step that does
 * not fit in a->memory.
 */
tess_status train_choose_tile(struct train_options *a, int32_t n, bool print);

/* Runs one rank, from loading to the last step. Reports a failure to the other ranks. */
tess_status train_run_rank(struct tess_world *world, void *options);

/* ---- rank.c: executes the commands of rank 0 ------------------------------------------------ */

enum { TRAIN_STEP, TRAIN_EVALUATE, TRAIN_LOAD, TRAIN_SAVE, TRAIN_HASH, TRAIN_END };

enum { TRAIN_TEXT = 4096, TRAIN_BATCH_MAX = 1 << 20 };
struct train_command { /* from rank 0 to all ranks */
	int64_t kind;
	int64_t nsequences, nids, nmicro; /* sizes of the batch */
	int64_t masked; /* 1: labels are sent */
	double lr;
	int64_t status;
	char text[TRAIN_TEXT]; /* the save to load; for TRAIN_END: the message of a failure */
};

struct train_run { /* the run of one rank */
	const struct train_options *options;
	struct tess_world *world;
	struct tess_mesh *mesh;
	struct tess_trainer *trainer;
	struct tess_trainer_info info;
	int64_t sequence; /* maximum ids of a sequence */
	int64_t *lengths; /* lengths of the sequences of a batch */
	int32_t *ids, *labels;
	struct tess_batch *micro;
	struct tess_training_result result;
	char *state; /* on rank 0: of the save that was loaded or is written */
	crypto_hash_sha256_state weights;
	bool failed; /* on all ranks, with the same message */
};

/* Executes a command on all ranks; called by rank 0. */
tess_status train_run_command(struct train_run *r, struct train_command *c);

/* ---- files.c: what a run resumes from, and where it writes ----------------------------------- */

/* Refuses a log or curve that is a file of the data or of MODEL, or one file for both. */
tess_status train_check_outputs(const struct train_options *a);

/* Finds the save to resume; "": none. A restarted job resumes its own. */
tess_status train_find_resumed(const struct train_options *a, char out[TRAIN_TEXT]);
/* Without --math, sets a->session.math to that of the save to resume, else to f32. */
tess_status train_choose_math(struct train_options *a);
/*
 * Refuses a directory of --save with saves of another run than that of `resumed` ("": none), or
 * with newer ones: they would be mistaken for those of this run, and removed. Writes nothing.
 */
tess_status train_check_directory(const struct train_options *a, const char *resumed);
/*
 * Creates that directory, locks it against other runs until *lock is closed (-1: no lock), and
 * checks it.
 */
tess_status train_claim_directory(const struct train_options *a, const char *resumed, int *lock);

/* ---- drive.c: rank 0 decides what all do ----------------------------------------------------- */

tess_status train_drive(struct train_run *r);

/* ---- report.c: what a run prints ------------------------------------------------------------- */

struct train_evaluation {
	bool made;
	double loss; /* may be NaN or infinite */
};

struct train_point { /* a point of the curve, which draws finite values */
	int64_t step;
	double loss, evaluation; /* evaluation is NAN without one */
};

struct train_report {
	const struct train_options *options;
	FILE *log; /* NULL: none */
	struct train_point *points;
	int64_t npoints, capacity;
	bool shows, unended; /* stderr is a terminal; its last line can be redrawn */
	int64_t began, shown; /* ns */
	int64_t first, steps, ntokens; /* first: the step before the first one of this run */
};

/* Opens the log, and keeps its lines up to step `first`, which the run resumes. */
tess_status train_open_report(const struct train_options *a, int64_t first, int64_t steps,
                              struct train_report *out);
/* Prints what rank 0 keeps on disk, if an option requests that. */
void train_report_offload(const struct train_options *a, const struct tess_trainer_info *info);
/* Prints that --math bf16 is slow on this processor, if so. */
void train_report_math(const struct train_options *a);
/* Reports a completed step. */
tess_status train_report_step(struct train_report *p, int64_t step, double lr,
                              const struct train_evaluation *evaluation,
                              const struct tess_training_result *result,
                              const struct tess_trainer_info *info);
/* Prints the save that SIGUSR1 has requested. */
void train_report_request(struct train_report *p, const char *saved);
/* Writes the curve up to now. */
tess_status train_write_curve(const struct train_report *p);
/* Prints the end of the run; `saved`: the last save, or NULL. */
void train_close_report(struct train_report *p, const char *saved);

/* ---- curve.c --------------------------------------------------------------------------------- */

/* Draws losses over steps as SVG; needs at least one point, in the order of steps. */
void train_draw_curve(const struct train_point *points, int64_t n, FILE *f);

#endif

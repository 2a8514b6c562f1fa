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
	bool separate, digest;
	int32_t id_bytes, sequence, steps, batch, micro, warmup, schedule, optimizer;
	int32_t eval_every, save_every, keep, restarts;
	double lr, min_lr, betas[2], eps, momentum, weight_decay, clip, aux_loss, dropout;
	int64_t seed;
	uint64_t bucket;
	const char *save, *resume, *log, *curve, *flight;
};

/* What a trainer is opened with; borrows from `a`. */
struct tess_trainer_options train_make_options(const struct train_options *a);

/* One rank, from loading to the last step. Posts a failure to the other ranks. */
tess_status train_run_rank(struct tess_world *world, void *options);

/* ---- rank.c: a rank, which does what rank 0 asks for ---------------------------------------- */

enum { TRAIN_STEP, TRAIN_EVALUATE, TRAIN_LOAD, TRAIN_SAVE, TRAIN_HASH, TRAIN_END };

enum { TRAIN_TEXT = 4096, TRAIN_BATCH_MAX = 1 << 20 };
struct train_command { /* of rank 0 to all */
	int64_t kind;
	int64_t nsequences, nids, nmicro; /* of a batch */
	double lr;
	int64_t status;
	char text[TRAIN_TEXT]; /* what is loaded; of TRAIN_END: why, where `status` is a failure */
};

struct train_run { /* on a rank */
	const struct train_options *options;
	struct tess_world *world;
	struct tess_mesh *mesh;
	struct tess_trainer *trainer;
	struct tess_trainer_info info;
	int64_t sequence; /* ids of a sequence, at most */
	int64_t *lengths; /* of a batch */
	int32_t *ids;
	struct tess_batch *micro;
	struct tess_training_result result;
	char *state; /* on rank 0: of a save that was loaded, or is made */
	crypto_hash_sha256_state weights;
	bool failed; /* as all ranks have, with the same sentence */
};

/* Rank 0 asks all ranks for it, itself too. */
tess_status train_run_command(struct train_run *r, struct train_command *c);

/* ---- files.c: what a run resumes from, and where it writes ----------------------------------- */

/* Refuses a log and a curve that are files of the data or of MODEL, or one file. */
tess_status train_check_outputs(const struct train_options *a);

/* The save to go on from; "": none. A job that was started again has its own. */
tess_status train_find_resumed(const struct train_options *a, char out[TRAIN_TEXT]);
/*
 * Refuses a directory of --save whose saves are not of the run that `resumed` is of ("": none), or
 * are newer: they would be taken for those of this run, and removed. Writes nothing.
 */
tess_status train_check_directory(const struct train_options *a, const char *resumed);
/*
 * Makes it, and keeps other runs out of it until *lock is closed (-1: it has no lock); then the
 * same.
 */
tess_status train_claim_directory(const struct train_options *a, const char *resumed, int *lock);

/* ---- drive.c: rank 0 decides what all do ----------------------------------------------------- */

tess_status train_drive(struct train_run *r);

/* ---- report.c: what a run prints ------------------------------------------------------------- */

struct train_evaluation {
	bool made;
	double loss; /* may be NaN or infinite */
};

struct train_point { /* of the curve, which draws what is finite */
	int64_t step;
	double loss, evaluation; /* evaluation: NAN: none */
};

struct train_report {
	const struct train_options *options;
	FILE *log; /* NULL: none */
	struct train_point *points;
	int64_t npoints, capacity;
	bool shows, unended; /* stderr is a terminal; its last line may be drawn over */
	int64_t began, shown; /* ns */
	int64_t first, steps, ntokens; /* first: the step that the run begins after */
};

/* Opens the log; of a run that goes on after step `first` it keeps the lines up to that. */
tess_status train_open_report(const struct train_options *a, int64_t first, int64_t steps,
                              struct train_report *out);
/* A step has been made. */
tess_status train_report_step(struct train_report *p, int64_t step, double lr,
                              const struct train_evaluation *evaluation,
                              const struct tess_training_result *result,
                              const struct tess_trainer_info *info);
/* Prints which save SIGUSR1 has requested. */
void train_report_request(struct train_report *p, const char *saved);
/* Writes the curve as it is now. */
tess_status train_write_curve(const struct train_report *p);
/* After the last step: `saved` is the last save, or NULL. */
void train_close_report(struct train_report *p, const char *saved);

/* ---- curve.c --------------------------------------------------------------------------------- */

/* Draws losses over steps as SVG; points in the order of their steps, at least one. */
void train_draw_curve(const struct train_point *points, int64_t n, FILE *f);

#endif

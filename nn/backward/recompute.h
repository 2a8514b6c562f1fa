/*
 * recompute.h - activation checkpointing: recomputes the values of modules in the backward.
 *
 * Adjacent records of the forward at or below one matched module, the outermost of several, are a
 * run. Before the backward of a run its records are appended again. They read values from outside
 * the run, and the backward reads their values, so that no inner value of the run outlives it in
 * the forward. Equal records give equal bits; collectives and functions of styles run again, too.
 */
#ifndef TESS_NN_RECOMPUTE_H
#define TESS_NN_RECOMPUTE_H

#include "nn/record/recorder.h"

struct tess_recompute {
	struct tess_recorder *r;
	const char **module; /* by record of the forward: its recomputed module; NULL: none */
	const struct tess_record **again; /* by record of a run: the appended copy */
	struct tess_tensor **copy; /* by id: the recomputed value */
	int32_t nforward;
};

/*
 * Matches the records so far, which are the forward, with the patterns of training.recompute. Fails
 * the recording if a pattern matches no module.
 */
void tess_recompute_begin(struct tess_recorder *r, struct tess_recompute *out);
/*
 * Returns the record for the backward of record i: itself, or its copy, whose run is appended by
 * the first call for it. Calls are in decreasing order of i.
 */
const struct tess_record *tess_recompute_get(struct tess_recompute *c, int32_t i);
/* Drops the appended records with unused values, after the backward. */
void tess_recompute_end(struct tess_recompute *c);

#endif

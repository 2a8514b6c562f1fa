/*
 * recompute.h - activation checkpointing: modules whose values are computed again in the backward.
 *
 * The records of a forward are in runs: adjacent ones at or below one module that a pattern
 * matches, the outermost where several do. Before the backward of a run its records are appended
 * again. They read what was made outside of the run, and the backward reads what they make, so that
 * no value that is made and used in the run outlives it in the forward. The same records make the
 * same bits; collectives and the functions of styles run again too.
 */
#ifndef TESS_NN_RECOMPUTE_H
#define TESS_NN_RECOMPUTE_H

#include "nn/record/recorder.h"

struct tess_recompute {
	struct tess_recorder *r;
	const char **module; /* of each record of the forward, that is computed again; NULL: none */
	const struct tess_record **again; /* of each record of a run that has been appended again */
	struct tess_tensor **copy; /* of the values that they make, by id */
	int32_t nforward;
};

/*
 * Matches the records so far, which are the forward, with the patterns of training.recompute. Fails
 * the recording if a pattern matches no module.
 */
void tess_recompute_begin(struct tess_recorder *r, struct tess_recompute *out);
/*
 * The record that the backward of record i reads: itself, or the one that repeats it, whose run is
 * appended by the first call for it. The calls are in decreasing order of i.
 */
const struct tess_record *tess_recompute_get(struct tess_recompute *c, int32_t i);
/* After the backward: drops the repeated records whose values nothing reads. */
void tess_recompute_end(struct tess_recompute *c);

#endif

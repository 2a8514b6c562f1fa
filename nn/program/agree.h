/* agree.h - makes a failure of one rank a failure of all. */
#ifndef TESS_NN_AGREE_H
#define TESS_NN_AGREE_H

#include "nn/program/program.h"

#include <tessera/tessera.h>

/*
 * Collective. `st` is the status of this rank's local work; if a rank failed, every rank returns
 * the status and sentence of the lowest such rank, after "rank N: ". Call it after work that can
 * fail on one rank, before another rank waits for the result. The group stays usable.
 */
tess_status tess_group_agree_status(struct tess_group *g, tess_status st, const char *where);

struct tess_difference { /* of this rank's pairs from those of a reference rank */
	const char *name, *mine, *theirs; /* values; NULL: there is no pair of this name */
	int32_t rank; /* the reference: the world rank whose pairs most ranks have */
};
/* Moves the begin of long values near the first byte that differs; returns "...", or "". */
const char *tess_difference_skip_common(struct tess_difference *d);

/*
 * Collective. Compares lists "NAME\0VALUE\0..." of `len` bytes: hashes, and the lists only if those
 * differ. Then every rank returns the failure that explain() sets on the lowest rank whose list
 * differs. A rank with len 0 is not compared.
 */
tess_status tess_group_compare_pairs(struct tess_group *g, const char *pairs, uint64_t len,
                                     const char *where,
                                     tess_status (*explain)(void *arg, struct tess_difference *d),
                                     void *arg);

/*
 * Where ranks run different steps: a failure of this rank alone, for which those of other stages
 * would wait, becomes that of the job. Returns the job's first failure. TESS_OK: nothing.
 */
tess_status tess_group_post_stage_failure(struct tess_group *g, const struct tess_program *p,
                                          tess_status st);

#endif

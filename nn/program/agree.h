/* agree.h - turns a failure of one rank into a failure of all ranks. */
#ifndef TESS_NN_AGREE_H
#define TESS_NN_AGREE_H

#include "nn/program/program.h"

#include <tessera/tessera.h>

/*
 * Collective. `st` is the status of this rank's local work. If a rank failed, every rank returns
 * the status and message of the lowest such rank, after "rank N: ". Call it after work that can
 * fail on one rank, before another rank waits for the result. The group stays usable.
 */
tess_status tess_group_agree_status(struct tess_group *g, tess_status st, const char *where);

/*
 * Does the same for ranks that are not `apart`. Ranks that are apart run different steps, and do
 * not wait for each other: a failure of one of them fails the job.
 */
tess_status tess_group_agree_unless_apart(struct tess_group *g, bool apart, tess_status st,
                                          const char *where);

struct tess_difference { /* between this rank's pairs and those of a reference rank */
	const char *name, *mine, *theirs; /* values; NULL: no pair of this name */
	int32_t rank; /* the reference, a world rank that has the most frequent pairs */
};
/* Shortens long values to begin near the first different byte; returns "..." if so, else "". */
const char *tess_difference_skip_common(struct tess_difference *d);

/*
 * Collective. Compares lists "NAME\0VALUE\0..." of `len` bytes, by their hashes, and completely if
 * those differ. Then every rank returns the failure that explain() sets on the lowest rank whose
 * list differs. A rank with len 0 is not compared.
 */
tess_status tess_group_compare_pairs(struct tess_group *g, const char *pairs, uint64_t len,
                                     const char *where,
                                     tess_status (*explain)(void *arg, struct tess_difference *d),
                                     void *arg);

/*
 * Posts a failure of this rank to the job if ranks run different steps: ranks of other stages would
 * wait for this one. Returns the job's first failure. TESS_OK: does nothing.
 */
tess_status tess_group_post_stage_failure(struct tess_group *g, const struct tess_program *p,
                                          tess_status st);

#endif

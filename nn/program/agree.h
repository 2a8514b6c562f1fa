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

/*
 * Where ranks run different steps: a failure of this rank alone, for which those of other stages
 * would wait, becomes that of the job. Returns the job's first failure. TESS_OK: nothing.
 */
tess_status tess_group_post_stage_failure(struct tess_group *g, const struct tess_program *p,
                                          tess_status st);

#endif

/* agree.h - what failed on one rank fails on all. */
#ifndef TESS_NN_AGREE_H
#define TESS_NN_AGREE_H

#include <tessera/tessera.h>

/*
 * Each rank gives the status of what it did by itself; where one failed, all return the status of the lowest
 * such rank, with its sentence behind "rank N: ". Collective: called after work of a rank's own that can fail on one rank
 * alone, before the others wait for its result. The group stays usable.
 */
tess_status tess_group_agree_status(struct tess_group *g, tess_status st, const char *where);

#endif

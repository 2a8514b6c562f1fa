/* batches.h - calls started as one batch, on any backend; all ranks of a group run it. */
#ifndef TESS_TESTS_SUPPORT_BATCHES_H
#define TESS_TESTS_SUPPORT_BATCHES_H

#include <tessera/tessera.h>

/*
 * Messages around a ring and between all ranks, listed in a different order on each; collectives;
 * both at once; a call is part of a batch on some ranks and single on the rest. TESS_EBUG: a
 * result is wrong.
 */
tess_status batches_run(struct tess_group *g);

#endif

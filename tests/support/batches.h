/* batches.h - calls started as one batch, on any backend; all ranks of a group run it. */
#ifndef TESS_TESTS_SUPPORT_BATCHES_H
#define TESS_TESTS_SUPPORT_BATCHES_H

#include <tessera/tessera.h>

/*
 * Runs messages around a ring and between all ranks, listed in a different order on each;
 * collectives; both at once; and calls that are part of a batch on some ranks and single on the
 * others. TESS_EBUG: a result is wrong.
 */
tess_status batches_run(struct tess_group *g);

#endif

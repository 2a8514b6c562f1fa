/* batches.h - calls started as one, on whatever backend a group has: played by all its ranks. */
#ifndef TESTS_BATCHES_H
#define TESTS_BATCHES_H

#include <tessera/tessera.h>

/*
 * Messages around a ring and between all, listed in another order on each rank; collectives; both at once;
 * some ranks batch what others call singly. TESS_EBUG: something has not come as it should.
 */
tess_status batches_run(struct tess_group *g);

#endif

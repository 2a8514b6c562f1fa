/* moves.h - every kind of collective on data whose result is exact in any order, element by element. */
#ifndef TESTS_MOVES_H
#define TESTS_MOVES_H

#include <tessera/group.h>

/* Runs one collective to its end on this rank. */
typedef tess_status moves_run(void *arg, const struct tess_coll *c);

/*
 * All kinds x dtypes x operations x roots x even and uneven counts (0 too) x in place, as rank `rank` of
 * `n` <= 8; every rank calls it. Returns how many collectives ran, or -1 and says on stderr which was wrong
 * and where. Memory beside what may be written, and what may only be read, is looked at too.
 */
long moves_check(moves_run *run, void *arg, int32_t rank, int32_t n);

#endif

/* work.h - calls of one rank: started, tested, waited for. */
#ifndef MPI_WORK_H
#define MPI_WORK_H

#include "member.h"

tess_status mpi_work_start(struct group *g, const struct tess_coll *c, struct work **out);
tess_status mpi_work_test(struct group *g, struct work *w);
tess_status mpi_work_wait(struct group *g, struct work *w, int64_t deadline);
/* An unfinished one is finished first, since the peers count on it. */
void mpi_work_release(struct group *g, struct work *w);
void mpi_work_clear(struct group *g);

#endif

/* work.h - starts, tests and finishes the calls of one rank. */
#ifndef MPI_WORK_H
#define MPI_WORK_H

#include "member.h"

/* tess_backend.start */
tess_status mpi_work_start(void *self, const struct tess_coll *c, void **out);
/* tess_backend.test, wait and release */
tess_status mpi_work_test(void *self, void *work);
tess_status mpi_work_wait(void *self, void *work, int64_t deadline);
/* Releases a work; finishes an unfinished one first, since the peers depend on it. */
void mpi_work_release(void *self, void *work);
void mpi_work_clear(struct group *g);

#endif

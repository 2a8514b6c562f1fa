/* work.h - what is under way; collectives as rounds. */
#ifndef SHM_WORK_H
#define SHM_WORK_H

#include "state.h"

/* posted: it is small, and its flag is set already. */
tess_status shm_work_start(struct group *g, const struct tess_coll *c, bool posted,
                           struct work **out);
/* tess_backend.test, wait and release */
tess_status shm_work_test(void *self, void *work);
tess_status shm_work_wait(void *self, void *work, int64_t deadline);
void shm_work_release(void *self, void *work);
void shm_work_clear(struct group *g);

#endif

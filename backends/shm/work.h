/* work.h - outstanding calls; runs collectives in rounds. */
#ifndef SHM_WORK_H
#define SHM_WORK_H

#include "state.h"

/* Implement tess_backend.start, test, wait and release. */
tess_status shm_start_call(void *self, const struct tess_coll *c, void **work);
tess_status shm_work_test(void *self, void *work);
tess_status shm_work_wait(void *self, void *work, int64_t deadline);
void shm_work_release(void *self, void *work);
void shm_work_clear(struct group *g);

#endif

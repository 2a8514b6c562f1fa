/* work.h - what is under way; collectives as rounds. */
#ifndef SHM_WORK_H
#define SHM_WORK_H

#include "state.h"

/* posted: it is small, and its flag is set already. */
tess_status shm_work_start(struct group *g, const struct tess_coll *c, bool posted,
                           struct work **out);
tess_status shm_work_test(struct group *g, struct work *w);
tess_status shm_work_wait(struct group *g, struct work *w, int64_t deadline);
void shm_work_release(struct group *g, struct work *w);
void shm_work_clear(struct group *g);

#endif

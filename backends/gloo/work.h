/* work.h - calls of one rank: started, advanced, finished. */
#ifndef GLOO_WORK_H
#define GLOO_WORK_H

#include "group.h"

tess_status gloo_work_start(struct group *g, const struct tess_coll *c, struct work **out);
/*
 * tess_backend.wait. Runs until done or `deadline`; 0: as far as it goes without waiting,
 * TESS_PENDING if it is not done.
 */
tess_status gloo_work_run(void *self, void *work, int64_t deadline);
/* tess_backend.release: an unfinished one is finished first, since the peers count on it. */
void gloo_work_release(void *self, void *work);
/* tess_backend.abort: every work fails soon. From any thread. */
void gloo_work_abort(void *self);
/* Drops what is still on its way, and the spare memory. */
void gloo_work_clear(struct group *g);

#endif

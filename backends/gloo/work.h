/* work.h - starts, advances and finishes the calls of one rank. */
#ifndef GLOO_WORK_H
#define GLOO_WORK_H

#include "group.h"

/* tess_backend.start */
tess_status gloo_work_start(void *self, const struct tess_coll *c, void **out);
/*
 * tess_backend.wait. Runs until done or `deadline`. 0: advances without waiting, and returns
 * TESS_PENDING if not done.
 */
tess_status gloo_work_run(void *self, void *work, int64_t deadline);
/* tess_backend.release. Finishes an unfinished work first, since the peers depend on it. */
void gloo_work_release(void *self, void *work);
/* tess_backend.abort: makes every work fail soon. Call it from any thread. */
void gloo_work_abort(void *self);
/* Drops pending messages and the spare memory. */
void gloo_work_clear(struct group *g);

#endif

/* work.h - calls of one rank: started, advanced, finished. */
#ifndef GLOO_WORK_H
#define GLOO_WORK_H

#include "group.h"

tess_status gloo_work_start(struct group *g, const struct tess_coll *c, struct work **out);
/*
 * Runs until done or `deadline`; 0: as far as it goes without waiting, TESS_PENDING if it is not
 * done.
 */
tess_status gloo_work_run(struct group *g, struct work *w, int64_t deadline);
/* Frees it; an unfinished one is finished first, since the peers count on it. */
void gloo_work_release(struct group *g, struct work *w);
/* From any thread: every work fails soon. */
void gloo_work_abort(struct group *g);
/* Drops what is still on its way, and the spare memory. */
void gloo_work_clear(struct group *g);

#endif

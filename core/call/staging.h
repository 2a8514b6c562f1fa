/*
 * staging.h - calls on memory that no backend moves: through host memory.
 *
 * The buffers of such a call are copied to host memory of the work before it starts, and what it
 * has received is copied back when it is done. The other ranks see the same call.
 */
#ifndef TESS_GROUP_STAGING_H
#define TESS_GROUP_STAGING_H

#include "core/world/group.h"

/*
 * Copies what the work's calls read to host memory, if they use memory that the backend does not
 * move, and lets them use that. They are complete and have not started.
 */
tess_status tess_work_stage(struct tess_work *w);
/* Copies what they have received to where they are to have it. */
tess_status tess_work_unstage(struct tess_work *w);
void tess_work_free_stage(struct tess_work *w);

#endif

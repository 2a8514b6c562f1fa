/*
 * staging.h - stages calls on memory that no backend moves in host memory.
 *
 * The buffers of such a call are copied to host memory of the work before it starts; received data
 * are copied back when it is done. The other ranks see the same call.
 */
#ifndef TESS_GROUP_STAGING_H
#define TESS_GROUP_STAGING_H

#include "core/world/group.h"

/*
 * Copies the operands of the work's calls to host memory if no backend moves theirs, and redirects
 * the calls. They are completed and have not started.
 */
tess_status tess_work_stage(struct tess_work *w);
/* Copies received data to the calls' own buffers. */
tess_status tess_work_unstage(struct tess_work *w);
void tess_work_free_stage(struct tess_work *w);

#endif

/* work.h - works of a group: calls that were started (work.c). */
#ifndef TESS_GROUP_WORK_H
#define TESS_GROUP_WORK_H

#include "core/world/group.h"

/* A work for a call, in the group's list of live ones. NULL: no memory. */
struct tess_work *tess_work_take(struct tess_group *g);
/* Ends the work with `st`, in the flight recorder too; returns `st`. */
tess_status tess_work_settle(struct tess_work *w, tess_status st);
/*
 * The call has failed on this rank, with the backend's sentence: returns the job's first failure. A
 * failure before `deadline` may have its cause on another rank, for which it waits.
 */
tess_status tess_work_failed(struct tess_work *w, tess_status why, int64_t deadline);
/* A started work becomes the caller's; one that could not be started stays with the group. */
tess_status tess_work_hand_out(struct tess_work *w, tess_status st, struct tess_work **out);
/*
 * After a failure of this rank or of the world: returns when the call is done, or was aborted and
 * moves nothing between ranks of this process; ends the work.
 */
void tess_work_abandon(struct tess_work *w);
/* Recycles the work. After a failure it is kept until the group is closed, for late writes. */
void tess_work_drop(struct tess_work *w);
/* Releases the backend's work; the memory of the work stays, for late writes. */
void tess_work_release_backend(struct tess_work *w);
/* Frees what the work holds, not the work. */
void tess_work_free(struct tess_work *w);

#endif

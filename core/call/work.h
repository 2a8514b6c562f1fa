/* work.h - works of a group, which are started calls (work.c). */
#ifndef TESS_GROUP_WORK_H
#define TESS_GROUP_WORK_H

#include "core/world/group.h"

/* Takes a work for a call, in the group's list of live ones. NULL: out of memory. */
struct tess_work *tess_work_take(struct tess_group *g);
/* Ends the work with `st`, also in the flight recorder; returns `st`. */
tess_status tess_work_settle(struct tess_work *w, tess_status st);
/*
 * Handles a failed call of this rank, whose message is the backend's: returns the job's first
 * failure. A failure before `deadline` may have its cause on another rank, so it waits for that.
 */
tess_status tess_work_failed(struct tess_work *w, tess_status why, int64_t deadline);
/* Passes a started work to the caller; one that could not start stays with the group. */
tess_status tess_work_hand_out(struct tess_work *w, tess_status st, struct tess_work **out);
/*
 * Abandons a work after a failure of this rank or of the world. Returns when the call is done, or
 * aborted and no longer moving data between ranks of this process; ends the work.
 */
void tess_work_abandon(struct tess_work *w);
/* Recycles the work. After a failure it stays until the group closes, for late writes. */
void tess_work_drop(struct tess_work *w);
/* Releases the backend's work; the work's memory stays, for late writes. */
void tess_work_release_backend(struct tess_work *w);
/* Frees the resources of the work, but not the work. */
void tess_work_free(struct tess_work *w);

#endif

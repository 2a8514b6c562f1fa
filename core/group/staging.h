/*
 * staging.h - calls on memory that the backend does not move: through host memory.
 *
 * The buffers of such a call are copied to host memory of the work before it starts, and what it
 * has received is copied back when it is done. The other ranks see the same call.
 */
#ifndef TESS_GROUP_STAGING_H
#define TESS_GROUP_STAGING_H

#include "core/group/group.h"

#include <tessera/device.h>

/*
 * Calls of the group may then use memory of this device's kind; copies are queued on the call's
 * stream, and waited for. Borrowed until it is detached. A group has one device: the newest.
 */
void tess_group_attach_device(struct tess_group *g, const struct tess_device *device, void *self);
/* Waits for pending calls. Nothing, if another device was attached since. */
void tess_group_detach_device(struct tess_group *g, const void *self);

/* Copies between host memory and the device's, in the order of the stream, and waits. */
tess_status tess_group_copy(const struct tess_group *g, const char *where, void *stream, void *dst,
                            const void *src, uint64_t bytes);

/* The kinds of memory that calls may use: 1 << kind. */
uint64_t tess_group_mem_kinds(const struct tess_group *g);
/* Whether the backend moves the memory of this call, which is of a kind of the group. */
bool tess_call_is_direct(const struct tess_group *g, const struct tess_coll *c);

/*
 * Copies what the work's calls read to host memory, if they use memory that the backend does not
 * move, and lets them use that. They are complete and have not started.
 */
tess_status tess_work_stage(struct tess_work *w);
/* Copies what they have received to where they are to have it. */
tess_status tess_work_unstage(struct tess_work *w);
void tess_work_free_stage(struct tess_work *w);

#endif

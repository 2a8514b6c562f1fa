/* queue.h - queues calls that a device's streams order, so that the host need not wait for each. */
#ifndef TESS_CALL_QUEUE_H
#define TESS_CALL_QUEUE_H

#include "core/world/group.h"

/* Returns true if the device's stream orders later work, so that the host need not wait. */
bool tess_work_is_ordered(const struct tess_work *w);
/*
 * Puts a call that streams order onto its stream. A backend may have kept a message, to start it
 * together with others of its group.
 */
tess_status tess_work_issue(struct tess_work *w);
/*
 * Leaves a work to the streams: later work on `stream` runs after it. If the queue is full, the
 * host waits for the oldest work.
 */
tess_status tess_work_queue(struct tess_work *w, void *stream);
/*
 * Waits for the calls that were left to a stream. Call it before the host waits for the device:
 * only this wait has deadlines, and ends when another rank has failed.
 */
tess_status tess_group_drain(struct tess_group *g);
/*
 * Tests the oldest queued call of each group with this device, while the caller waits for the
 * device in another way. Returns the failure, or the passed deadline, of a call.
 */
tess_status tess_world_test_device(const struct tess_world *w, const void *device_self);
/* Drains all groups of the world with this device. */
tess_status tess_world_drain_device(const struct tess_world *w, const void *device_self);

/* Copies between host memory and the device's, in the order of the stream, and waits. */
tess_status tess_group_copy(const struct tess_group *g, const char *where, void *stream, void *dst,
                            const void *src, uint64_t bytes);

#endif

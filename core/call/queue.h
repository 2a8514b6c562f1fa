/* queue.h - calls that a device's streams order, so that the host does not wait for each. */
#ifndef TESS_CALL_QUEUE_H
#define TESS_CALL_QUEUE_H

#include "core/world/group.h"

/* Whether the device's stream orders what follows, so that the host need not wait. */
bool tess_work_is_ordered(const struct tess_work *w);
/*
 * Leaves it to the streams: what is queued on `stream` from now on comes after it. A host that
 * never reads waits for the oldest in the end.
 */
tess_status tess_work_queue(struct tess_work *w, void *stream);
/*
 * Waits for the calls that were left to a stream. Before the host waits for the device: only this
 * wait has deadlines, and ends when another rank has failed.
 */
tess_status tess_group_drain(struct tess_group *g);
/*
 * Tests the oldest of them, for who waits for the device in another way: a failure or a passed
 * deadline of a call. In all groups of the world that have this device.
 */
tess_status tess_world_test_device(const struct tess_world *w, const void *device_self);
/* In all groups of the world that have this device. */
tess_status tess_world_drain_device(const struct tess_world *w, const void *device_self);

/* Copies between host memory and the device's, in the order of the stream, and waits. */
tess_status tess_group_copy(const struct tess_group *g, const char *where, void *stream, void *dst,
                            const void *src, uint64_t bytes);

#endif

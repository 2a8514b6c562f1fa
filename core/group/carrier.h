/*
 * carrier.h - what moves the memory of a call. A group has two carriers: its backend, for host
 * memory, and for the memory of its device another backend, where one takes it; else such calls go
 * through host memory (staging.h).
 */
#ifndef TESS_GROUP_CARRIER_H
#define TESS_GROUP_CARRIER_H

#include "core/group/group.h"

#include <tessera/device.h>

/*
 * Calls of the group may then use memory of device `index`, opened as `self`; borrowed until it is
 * detached. A group has one device: the newest. Collective. Opens the carrier of its memory, which
 * TESSERA_BACKEND names or is the first of the list that can be used on all ranks; rank 0 warns
 * where the first cannot.
 * parent: NULL, or a group with this device, all ranks of which attach it to groups now; colour:
 * from 0, that of this group among them.
 */
tess_status tess_group_attach_device(struct tess_group *g, const struct tess_device *device,
                                     void *self, int32_t index, const struct tess_group *parent,
                                     int32_t colour);
/* Waits for pending calls. Nothing, if another device was attached since. */
void tess_group_detach_device(struct tess_group *g, const void *self);
void tess_carrier_close(struct tess_group *g); /* of the group's device; none: nothing */

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

/*
 * Memory of the device that its carrier knows, and reads and writes without copies of its own. The
 * calls of all ranks must then lie at the same places in it. `bytes`: the same on all ranks.
 */
bool tess_carrier_has_memory(const struct tess_group *g);
tess_status tess_carrier_alloc(const struct tess_group *g, uint64_t bytes, void **out);
/* Nothing uses it any more, and the device is attached. */
void tess_carrier_free(const struct tess_group *g, void *mine);

/* The kinds of memory that calls may use: 1 << kind. */
uint64_t tess_group_mem_kinds(const struct tess_group *g);
/* Whether a backend moves the memory of this call, which is of a kind of the group. */
bool tess_call_is_direct(const struct tess_group *g, const struct tess_coll *c);

/* What runs the call: the group's backend unless only the other carrier moves its memory. */
static inline struct tess_carrier tess_call_carrier(const struct tess_group *g,
                                                    const struct tess_coll *c)
{
	if (c->mem > TESS_HOST && g->carrier.self && g->carrier.backend->mem_kinds >> c->mem & 1)
		return g->carrier;
	return (struct tess_carrier){ g->backend, g->self };
}

#endif

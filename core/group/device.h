/* device.h - the device of a group, and the backend that moves its memory. */
#ifndef TESS_GROUP_DEVICE_H
#define TESS_GROUP_DEVICE_H

#include "core/call/carrier.h"

/*
 * Collective. Attaches device `index`, opened as `self` and borrowed until it is detached: calls of
 * the group may then use its memory. A group has one device, the newest. Opens the carrier of its
 * memory: the one in TESSERA_BACKEND, or the first of the list that all ranks can use; rank 0 warns
 * if that is not the first entry. parent: NULL, or a group with this device, all ranks of which now
 * attach it to groups; colour: index of this group among them.
 */
tess_status tess_group_attach_device(struct tess_group *g, const struct tess_device *device,
                                     void *self, int32_t index, const struct tess_group *parent,
                                     int32_t colour);
/* Waits for pending calls and detaches the device; no effect if another one is attached. */
void tess_group_detach_device(struct tess_group *g, const void *self);
void tess_carrier_close(struct tess_group *g); /* no effect without a carrier */

#endif

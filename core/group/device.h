/* device.h - the device of a group, and the backend that moves its memory. */
#ifndef TESS_GROUP_DEVICE_H
#define TESS_GROUP_DEVICE_H

#include "core/call/carrier.h"

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

#endif

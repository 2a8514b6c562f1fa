/*
 * carrier.h - carriers, which move the memory of calls. A group has up to two: its backend, for
 * host memory, and another backend for the memory of its device, if one supports it. Calls without
 * a carrier go through host memory (staging.h).
 */
#ifndef TESS_GROUP_CARRIER_H
#define TESS_GROUP_CARRIER_H

#include "core/world/group.h"

#include <tessera/device.h>

/*
 * Returns true if the device's carrier can allocate memory of the device that it accesses without
 * copies. Calls must use equal offsets in such memory on all ranks.
 */
bool tess_carrier_has_memory(const struct tess_group *g);
/* Allocates such memory; `bytes` is equal on all ranks. */
tess_status tess_carrier_alloc(const struct tess_group *g, uint64_t bytes, void **out);
/* Frees memory that no call uses any more, before the device is detached. */
void tess_carrier_free(const struct tess_group *g, void *mine);

/* Returns the kinds of memory that calls may use: 1 << kind. */
uint64_t tess_group_mem_kinds(const struct tess_group *g);
/* Returns true if a backend moves the memory of the call, whose kind the group has. */
bool tess_call_is_direct(const struct tess_group *g, const struct tess_coll *c);

/* Returns the carrier of the call: the backend, unless only the other one moves its memory. */
static inline struct tess_carrier tess_call_carrier(const struct tess_group *g,
                                                    const struct tess_coll *c)
{
	if (c->mem > TESS_HOST && g->carrier.self && g->carrier.backend->mem_kinds >> c->mem & 1)
		return g->carrier;
	return (struct tess_carrier){ g->backend, g->self };
}

#endif

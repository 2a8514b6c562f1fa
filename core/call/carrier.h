/*
 * carrier.h - what moves the memory of a call. A group has two carriers: its backend, for host
 * memory, and for the memory of its device another backend, where one takes it; else such calls go
 * through host memory (staging.h).
 */
#ifndef TESS_GROUP_CARRIER_H
#define TESS_GROUP_CARRIER_H

#include "core/world/group.h"

#include <tessera/device.h>

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
/* Returns true if a backend moves the memory of the call, whose kind the group has. */
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

/*
 * captured.h - calls of a group in a graph of its device. They are compared when the graph is
 * captured. Each replay is one numbered call with a deadline, which represents all of them.
 */
#ifndef TESS_GROUP_CAPTURED_H
#define TESS_GROUP_CAPTURED_H

#include "core/world/group.h"

struct tess_captured { /* {group}: no calls */
	struct tess_group *group; /* borrowed */
	struct tess_coll first; /* the first call, completed */
	uint32_t n;
	uint64_t hash; /* over the properties of all calls that must be equal on all ranks */
};

/* Returns true if the group's device can capture calls like `c`; the same on all ranks. */
bool tess_captured_is_possible(const struct tess_group *g, const struct tess_coll *c);
/* Adds a call to the graph that its stream captures. */
tess_status tess_captured_add(struct tess_captured *into, const struct tess_coll *c);
/* Compares the captured calls of all ranks: TESS_EMISMATCH. Collective, on host memory. */
tess_status tess_captured_compare(const struct tess_captured *c);
/* Makes a call for a graph that was queued on the stream, and leaves it to the stream. */
tess_status tess_captured_replay(const struct tess_captured *c);

#endif

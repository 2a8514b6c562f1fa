/*
 * captured.h - the calls of a group in a graph of its device. They are compared when the graph is
 * made; each replay is one numbered call, with a deadline, that stands for all of them.
 */
#ifndef TESS_GROUP_CAPTURED_H
#define TESS_GROUP_CAPTURED_H

#include "core/world/group.h"

struct tess_captured { /* {group}: no calls */
	struct tess_group *group; /* borrowed */
	struct tess_coll first; /* complete */
	uint32_t n;
	uint64_t hash; /* of what ranks must agree on of all of them */
};

/* Whether a call like `c` can be in a graph of the group's device. The same on all ranks. */
bool tess_captured_is_possible(const struct tess_group *g, const struct tess_coll *c);
/* Adds a call to the graph that its stream captures. */
tess_status tess_captured_add(struct tess_captured *into, const struct tess_coll *c);
/* Collective, over the carrier of host memory. TESS_EMISMATCH: the ranks captured other calls. */
tess_status tess_captured_compare(const struct tess_captured *c);
/* The graph was queued on the stream: the call is left to it, as tess_work_queue does. */
tess_status tess_captured_replay(const struct tess_captured *c);

#endif

/* state.h - what a rank keeps for itself: its group, the regions and the calls under way. */
#ifndef SHM_STATE_H
#define SHM_STATE_H

#include <stdbool.h>
#include <sys/types.h>
#include <tessera/coll.h>
#include <tessera/util/clock.h>
#include <tessera/util/stream.h>

#include "layout.h"

struct map { /* shared memory as this process sees it; its ranks share it */
	struct map *next; /* of the process; under the lock of the list, with users */
	char *base;
	size_t bytes;
	int32_t users;
};

struct region { /* from alloc: `bytes` for each rank, `stride` apart */
	struct region *next;
	struct map *map;
	uint32_t id;
	uint64_t bytes, stride;
};

struct work {
	struct work *next; /* in its queue, or spare */
	struct work *all; /* of the group */
	struct tess_coll c;
	size_t width;
	uint64_t bytes; /* of all blocks */
	uint64_t chunk; /* elements, of each block, that go in one round */
	uint64_t round, rounds; /* done; in all, known after the first */
	uint64_t skip; /* rounds before the first chunk */
	uint32_t modes, nchunks; /* the weakest and the largest of all ranks */
	bool shares; /* every rank adds its share of a chunk; the sums follow a round later */
	bool posted, done;
	uint64_t moved; /* of a message: elements so far */
};

struct queue {
	struct work *head, *tail;
	uint64_t pieces; /* of messages, so far */
};

struct group {
	const struct tess_host *host;
	char *name;
	int32_t rank, nranks;
	int32_t *world;
	struct map *map;
	struct segment_header *header;
	int *socket; /* by rank; -1: none. Descriptors of regions are passed over them */
	struct region *regions;
	uint32_t nregions; /* so far */
	int64_t timeout; /* of alloc: as much as open had */

	uint64_t round; /* the current one */
	int32_t seen; /* ranks whose flag of this round has been seen */
	struct queue calls, *out, *in; /* collectives; messages to and from each rank */
	int32_t messages;
	struct work *works, *spare;
	uint64_t events; /* counts progress of any kind */
	bool unnotified; /* something was posted since sleepers were woken */
	int32_t spin; /* turns of a wait before it yields the CPU; 0: ranks share CPUs */
	int32_t cpu; /* as in its rank slot */
	uint64_t chunk, slots; /* bytes of data in a slot; how many a rank has */
	char *slot; /* the first of all */
	uint64_t small; /* bytes up to which one round through slots is faster than two in place */
	atomic_bool aborted;
	tess_status failed;
	char why[512];
};

static inline struct rank_slot *rank_slot_of(const struct group *g, int32_t r)
{
	return &g->header->rank[r];
}

static inline struct flag *flag_of(const struct group *g, int32_t r, uint64_t round)
{
	return &rank_slot_of(g, r)->flag[round & 1];
}

static inline char *element_at(const struct work *w, const void *p, uint64_t elements)
{
	return (char *)(uintptr_t)p + elements * w->width;
}

#endif

/* state.h - the private state of a rank: its group, regions and outstanding calls. */
#ifndef SHM_STATE_H
#define SHM_STATE_H

#include <stdbool.h>
#include <sys/types.h>
#include <tessera/coll.h>
#include <tessera/util/clock.h>
#include <tessera/util/stream.h>

#include "layout.h"

struct map { /* a mapping of shared memory, shared by the ranks of this process */
	struct map *next; /* in the process's list, whose lock also protects `users` */
	char *base;
	size_t bytes;
	int32_t users;
};

struct region { /* from alloc: `bytes` per rank, `stride` apart */
	struct region *next;
	struct map *map;
	uint32_t id;
	uint64_t bytes, stride;
};

struct work {
	struct work *next; /* in its queue, or among spare ones */
	struct work *all; /* all works of the group */
	struct tess_coll c;
	size_t width;
	uint64_t bytes; /* total of all blocks */
	uint64_t chunk; /* elements of each block per round */
	uint64_t round, rounds; /* finished rounds; all rounds, set in the first */
	uint64_t skip; /* rounds before the first chunk */
	uint32_t modes, nchunks; /* minimum and maximum of all ranks */
	bool shares; /* every rank adds a share of each chunk; sums follow one round later */
	bool posted, done;
	uint64_t moved; /* elements of a message so far */
};

struct queue {
	struct work *head, *tail;
	uint64_t pieces; /* pieces of messages so far */
};

struct group {
	const struct tess_host *host;
	char *name;
	int32_t rank, nranks;
	int32_t *world;
	struct map *map;
	struct segment_header *header;
	int *socket; /* by rank, for descriptors of regions; -1: none */
	struct region *regions;
	uint32_t nregions; /* so far */
	int64_t timeout; /* timeout of alloc: that of open */

	uint64_t round; /* the current round */
	int32_t seen; /* number of ranks whose flag of this round has been read */
	struct queue calls, *out, *in; /* collectives; messages to and from each rank */
	int32_t messages;
	struct work *works, *spare;
	uint64_t events; /* counts progress of any kind */
	bool unnotified; /* posted since sleepers were last woken */
	int32_t spin; /* turns before a wait yields the CPU; 0: ranks share CPUs */
	int32_t cpu; /* the value in its rank slot */
	uint64_t chunk, slots; /* bytes of data in a slot; number of slots per rank */
	char *slot; /* the first slot of all */
	uint64_t small; /* maximum bytes for one round through slots, faster than two in place */
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

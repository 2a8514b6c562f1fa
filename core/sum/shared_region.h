/*
 * shared_region.h - memory of a group that all its ranks address, if the backend has it: they read
 * and write it without copies.
 */
#ifndef TESS_GROUP_SHARED_REGION_H
#define TESS_GROUP_SHARED_REGION_H

#include <stdbool.h>
#include <tessera/tessera.h>

struct tess_shared_region {
	struct tess_shared_region *next; /* in the group's list */
	int64_t id; /* equal on all ranks, from 1 */
	uint64_t bytes; /* per rank */
	char *mine;
	void *peer[]; /* addresses of each rank's part in this process */
};

/* Returns true if the group's backend has such memory for all ranks. */
bool tess_group_has_shared_memory(const struct tess_group *g);

/*
 * Allocates memory aligned to 64 bytes, on every rank as large as the largest request, to which it
 * sets *bytes. The group owns *out, until tess_group_free or its close. TESS_ENOTSUP: the backend
 * has no such memory; TESS_ENOMEM: on all ranks, none of which gets any. Collective; blocking.
 */
tess_status tess_group_alloc(struct tess_group *g, uint64_t *bytes, void **out);

/* Frees the parts of all ranks, which no rank uses any more. NULL: nothing. Every rank calls it. */
void tess_group_free(struct tess_group *g, void *mine);

/* Returns the region that contains [p, p + bytes); NULL: none. Borrowed. */
const struct tess_shared_region *tess_group_find_region(const struct tess_group *g, const void *p,
                                                        uint64_t bytes);
/* Returns the region with this id; NULL: none. */
const struct tess_shared_region *tess_group_region_of(const struct tess_group *g, int64_t id);

#endif

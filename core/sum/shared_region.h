/*
 * shared_region.h - memory of a group that all its ranks address, if the backend has such: all
 * ranks read and write it without a copy.
 */
#ifndef TESS_GROUP_SHARED_REGION_H
#define TESS_GROUP_SHARED_REGION_H

#include <stdbool.h>
#include <tessera/tessera.h>

struct tess_shared_region {
	struct tess_shared_region *next; /* the group's */
	int64_t id; /* the same on all ranks, from 1 */
	uint64_t bytes; /* of each rank */
	char *mine;
	void *peer[]; /* the address of each rank's part in this one */
};

/* Whether the group's backend has such memory for all its ranks. */
bool tess_group_has_shared_memory(const struct tess_group *g);

/*
 * Collective, blocking. Memory aligned to 64 bytes, on every rank as large as the largest request,
 * to which *bytes is set. The group owns *out, until tess_group_free or its close. TESS_ENOTSUP:
 * the backend has no such memory; TESS_ENOMEM: on all ranks, and no rank has any.
 */
tess_status tess_group_alloc(struct tess_group *g, uint64_t *bytes, void **out);

/* Every rank frees its part, when no rank uses it any more. NULL: nothing. */
void tess_group_free(struct tess_group *g, void *mine);

/* The region that contains [p, p + bytes); NULL: none. Borrowed. */
const struct tess_shared_region *tess_group_find_region(const struct tess_group *g, const void *p,
                                                        uint64_t bytes);
/* The region with this id; NULL: none. */
const struct tess_shared_region *tess_group_region_of(const struct tess_group *g, int64_t id);

#endif

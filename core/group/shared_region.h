/*
 * room.h - memory of a group that all its ranks address, where the backend has such: what lies
 * there is read and written by the others without a copy.
 */
#ifndef TESS_COMM_ROOM_H
#define TESS_COMM_ROOM_H

#include <stdbool.h>
#include <tessera/tessera.h>

struct tess_shared_region {
	struct tess_shared_region *next; /* the group's */
	int64_t id; /* the same on all ranks, from 1 */
	uint64_t bytes; /* of each rank */
	char *mine;
	void *peer[]; /* where each rank's part is seen here */
};

/* Whether the group's backend has such memory for all its ranks. */
bool tess_group_has_shared_memory(const struct tess_group *g);

/*
 * Collective, blocking. Memory aligned to 64 bytes, as much on every rank as the one that asks for
 * most: *bytes becomes that. *out is the group's until tess_group_free, or until it is closed.
 * TESS_ENOTSUP: the backend has none; TESS_ENOMEM: on all ranks, none got any.
 */
tess_status tess_group_alloc(struct tess_group *g, uint64_t *bytes, void **out);

/* Every rank frees it, when none uses another's part any more. NULL: nothing. */
void tess_group_free(struct tess_group *g, void *mine);

/* The room that all of [p, p + bytes) lies in; NULL: none. Borrowed. */
const struct tess_shared_region *tess_group_find_region(const struct tess_group *g, const void *p,
                                                        uint64_t bytes);
/* The room with this id; NULL: none. */
const struct tess_shared_region *tess_group_region_of(const struct tess_group *g, int64_t id);

#endif

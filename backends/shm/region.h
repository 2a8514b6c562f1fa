/* region.h - memory from alloc() that all ranks see. */
#ifndef SHM_REGION_H
#define SHM_REGION_H

#include "state.h"

/* Enters a mapped region of `bytes` for each rank, `stride` apart, into the list of the group. */
void region_add(struct group *g, struct region *region, struct map *map, uint64_t bytes,
                uint64_t stride);
/* tess_backend.free */
void region_free(void *self, void *mine);
void region_free_all(struct group *g);
/* The reference of `bytes` at `p`, if in memory that all see. */
struct region_ref region_find(const struct group *g, const void *p, uint64_t bytes);
/* The address of rank r's reference; NULL: there is no such memory. */
char *region_address(const struct group *g, int32_t r, struct region_ref ref, uint64_t bytes);

#endif

/* region.h - memory from alloc(), which all ranks map. */
#ifndef SHM_REGION_H
#define SHM_REGION_H

#include "state.h"

/* Adds a mapped region of `bytes` per rank, `stride` apart, to the list of the group. */
void region_add(struct group *g, struct region *region, struct map *map, uint64_t bytes,
                uint64_t stride);
/* Implements tess_backend.free. */
void region_free(void *self, void *mine);
void region_free_all(struct group *g);
/* Returns the reference of `bytes` at `p`; region 0: they are outside of all regions. */
struct region_ref region_find(const struct group *g, const void *p, uint64_t bytes);
/* Returns the address of rank r's reference; NULL: there is no such memory. */
char *region_address(const struct group *g, int32_t r, struct region_ref ref, uint64_t bytes);

#endif

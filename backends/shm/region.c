#include "region.h"

#include <stdlib.h>

#include "segment.h"

void region_add(struct group *g, struct region *region, struct map *map, uint64_t bytes,
                uint64_t stride)
{
	*region =
		(struct region){ .next = g->regions, .map = map, .bytes = bytes, .stride = stride };
	region->id = ++g->nregions;
	g->regions = region;
}

void region_free(void *self, void *mine)
{
	struct group *g = self;

	for (struct region **at = &g->regions, *region; (region = *at); at = &region->next)
		if (region->map->base + region->stride * (uint64_t)g->rank == mine) {
			*at = region->next;
			segment_unmap(region->map);
			free(region);
			return;
		}
}

struct region_ref region_find(const struct group *g, const void *p, uint64_t bytes)
{
	for (const struct region *region = g->regions; region; region = region->next) {
		uintptr_t begin = (uintptr_t)(region->map->base +
		                              region->stride * (uint64_t)g->rank),
			  at = (uintptr_t)p;

		if (at >= begin && at - begin <= region->bytes &&
		    region->bytes - (at - begin) >= bytes)
			return (struct region_ref){ .region = region->id, .offset = at - begin };
	}
	return (struct region_ref){ .region = 0 };
}

char *region_address(const struct group *g, int32_t r, struct region_ref ref, uint64_t bytes)
{
	const struct region *region = g->regions;

	while (region && region->id != ref.region)
		region = region->next;
	if (!region || ref.offset > region->bytes || region->bytes - ref.offset < bytes)
		return NULL;
	return region->map->base + region->stride * (uint64_t)r + ref.offset;
}

void region_free_all(struct group *g)
{
	for (struct region *next; g->regions; g->regions = next) {
		next = g->regions->next;
		segment_unmap(g->regions->map);
		free(g->regions);
	}
}

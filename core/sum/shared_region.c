/* shared_region.c - memory of a group that all its ranks address. */
#include "core/sum/shared_region.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "core/world/group.h"

#include <stdlib.h>

bool tess_group_has_shared_memory(const struct tess_group *g)
{
	return g->size > 1 && g->backend->alloc && g->backend->free;
}

static struct tess_shared_region *make_shared_region(const struct tess_group *g, uint64_t bytes)
{
	struct tess_shared_region *region =
		calloc(1, sizeof *region + (size_t)g->size * sizeof *region->peer);

	if (region)
		region->bytes = bytes;
	return region;
}

/* Returns true if this rank can address every part: otherwise no rank uses the memory. */
static bool reaches_all(const struct tess_group *g, const struct tess_shared_region *region)
{
	for (int32_t r = 0; r < g->size; r++)
		if (!region->peer[r])
			return false;
	return true;
}

tess_status tess_group_alloc(struct tess_group *g, uint64_t *bytes, void **out)
{
	int64_t max_bytes = (int64_t)*bytes;
	struct tess_shared_region *region;
	void *mine;
	tess_status st;

	if (!tess_group_has_shared_memory(g))
		return tess_fail(TESS_ENOTSUP, "backend %s has no memory that its ranks share",
		                 g->backend->name);
	st = tess_all_reduce(g, &max_bytes, &max_bytes, 1, TESS_I64, TESS_MAX, "alloc");
	if (st)
		return st;
	region = make_shared_region(g, (uint64_t)max_bytes);
	if (!region)
		return tess_world_backend_failed(g->world, TESS_ENOMEM,
		                                 "no memory for a shared region");
	st = TESS_PLUGIN_CALL(g->backend, NULL, alloc, g->self, region->bytes, &mine, region->peer);
	if (st) {
		free(region);
		return st == TESS_ENOMEM ? st
		                         : tess_world_backend_failed(g->world, st, tess_error());
	}
	region->mine = mine;
	region->id = ++g->nregions;
	if (!reaches_all(g, region)) {
		TESS_PLUGIN_DO(g->backend, NULL, free, g->self, mine);
		free(region);
		return tess_fail(TESS_ENOTSUP, "a rank cannot address the memory of another");
	}
	region->next = g->regions;
	g->regions = region;
	*bytes = region->bytes;
	*out = mine;
	return TESS_OK;
}

void tess_group_free(struct tess_group *g, void *mine)
{
	for (struct tess_shared_region **at = &g->regions, *region; (region = *at);
	     at = &region->next)
		if (region->mine == mine) {
			*at = region->next;
			TESS_PLUGIN_DO(g->backend, NULL, free, g->self, mine);
			free(region);
			return;
		}
}

const struct tess_shared_region *tess_group_find_region(const struct tess_group *g, const void *p,
                                                        uint64_t bytes)
{
	const struct tess_shared_region *region = g->regions;

	for (; region; region = region->next) {
		uintptr_t begin = (uintptr_t)region->mine, at = (uintptr_t)p;

		if (at >= begin && at - begin <= region->bytes &&
		    region->bytes - (at - begin) >= bytes)
			break;
	}
	return region;
}

const struct tess_shared_region *tess_group_region_of(const struct tess_group *g, int64_t id)
{
	const struct tess_shared_region *region = g->regions;

	while (region && region->id != id)
		region = region->next;
	return region;
}

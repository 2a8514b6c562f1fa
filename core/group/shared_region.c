#include "shared_region.h"

#include "world.h"

#include "core/base/status.h"
#include "core/registry/returned.h"
#include <stdlib.h>

bool tess_group_has_shared_memory(const struct tess_group *g)
{
	return g->size > 1 && g->backend->alloc && g->backend->free;
}

static struct tess_shared_region *room_new(const struct tess_group *g, uint64_t bytes)
{
	struct tess_shared_region *room = calloc(1, sizeof *room + (size_t)g->size * sizeof *room->peer);

	if (room)
		room->bytes = bytes;
	return room;
}

/* The memory is of use only where every rank reaches every other's. */
static bool complete(const struct tess_group *g, const struct tess_shared_region *room)
{
	for (int32_t r = 0; r < g->size; r++)
		if (!room->peer[r])
			return false;
	return true;
}

tess_status tess_group_alloc(struct tess_group *g, uint64_t *bytes, void **out)
{
	int64_t most = (int64_t)*bytes;
	struct tess_shared_region *room;
	void *mine;
	tess_status st;

	if (!tess_group_has_shared_memory(g))
		return tess_fail(TESS_ENOTSUP, "backend %s has no memory that its ranks share",
		                 g->backend->name);
	st = tess_all_reduce(g, &most, &most, 1, TESS_I64, TESS_MAX, "alloc");
	if (st)
		return st;
	room = room_new(g, (uint64_t)most);
	if (!room)
		return tess_world_backend_failed(g->world, TESS_ENOMEM, "no memory for a room");
	st = TESS_PLUGIN_CALL(g->backend, NULL, alloc, g->self, room->bytes, &mine, room->peer);
	if (st) {
		free(room);
		return st == TESS_ENOMEM ? st : tess_world_backend_failed(g->world, st, tess_error());
	}
	room->mine = mine;
	room->id = ++g->nregions;
	if (!complete(g, room)) {
		g->backend->free(g->self, mine);
		free(room);
		return tess_fail(TESS_ENOTSUP, "a rank is out of reach of another's memory");
	}
	room->next = g->regions;
	g->regions = room;
	*bytes = room->bytes;
	*out = mine;
	return TESS_OK;
}

void tess_group_free(struct tess_group *g, void *mine)
{
	for (struct tess_shared_region **at = &g->regions, *room; (room = *at); at = &room->next)
		if (room->mine == mine) {
			*at = room->next;
			g->backend->free(g->self, mine);
			free(room);
			return;
		}
}

const struct tess_shared_region *tess_group_find_region(const struct tess_group *g, const void *p, uint64_t bytes)
{
	const struct tess_shared_region *room = g->regions;

	for (; room; room = room->next) {
		uintptr_t begin = (uintptr_t)room->mine, at = (uintptr_t)p;

		if (at >= begin && at - begin <= room->bytes && room->bytes - (at - begin) >= bytes)
			break;
	}
	return room;
}

const struct tess_shared_region *tess_group_region_of(const struct tess_group *g, int64_t id)
{
	const struct tess_shared_region *room = g->regions;

	while (room && room->id != id)
		room = room->next;
	return room;
}

#include "core/call/carrier.h"

#include "core/base/status.h"

#include <stdlib.h>

bool tess_carrier_has_memory(const struct tess_group *g)
{
	return g->carrier.self && g->carrier.backend->alloc && g->carrier.backend->free;
}

tess_status tess_carrier_alloc(const struct tess_group *g, uint64_t bytes, void **out)
{
	void **peers = calloc((size_t)g->size, sizeof *peers);
	tess_status st = peers ? TESS_PLUGIN_CALL(g->carrier.backend, "step", alloc,
	                                          g->carrier.self, bytes, out, peers)
	                       : tess_fail(TESS_ENOMEM, "out of memory");

	free(peers);
	return st;
}

void tess_carrier_free(const struct tess_group *g, void *mine)
{
	TESS_PLUGIN_DO(g->carrier.backend, NULL, free, g->carrier.self, mine);
}

uint64_t tess_group_mem_kinds(const struct tess_group *g)
{
	return UINT64_C(1) << TESS_HOST | (g->self ? g->backend->mem_kinds : 0) |
	       (g->device ? UINT64_C(1) << g->device->mem : 0);
}

bool tess_call_is_direct(const struct tess_group *g, const struct tess_coll *c)
{
	struct tess_carrier by = tess_call_carrier(g, c);

	return c->mem == TESS_HOST ||
	       (by.self && by.backend->mem_kinds >> c->mem & 1 &&
	        !TESS_PLUGIN_VALUE(by.backend, c->where, supports, c, g->size));
}

#include "counting.h"

#include "core/base/status.h"
#include "core/world/group.h"
#include "core/world/mesh_shape.h"

#include <tessera/coll.h>

struct counted { /* a group whose backend is replaced */
	struct tess_group *group;
	const struct tess_backend *inner;
	struct tess_backend table;
};

static _Thread_local struct counted counted[TESS_MESH_DIMS];
static _Thread_local int32_t ncounted;
static _Thread_local uint64_t sent_bytes;

/* Counts the elements that a call sends to other ranks, if each block goes straight to its rank. */
static uint64_t count_sent_elements(const struct tess_coll *c, int32_t rank, int32_t n)
{
	uint64_t sum = 0;

	switch (c->kind) {
	case TESS_ALL_GATHER:
		return c->count * (uint64_t)(n - 1);
	case TESS_SEND:
		return c->count;
	case TESS_ALL_TO_ALL:
		for (int32_t q = 0; q < n; q++)
			sum += q == rank ? 0 : c->send_counts[q];
		return sum;
	default:
		return 0;
	}
}

static tess_status start_counted(void *self, const struct tess_coll *c, void **work)
{
	for (int32_t i = 0; i < ncounted; i++) {
		const struct tess_group *g = counted[i].group;

		if (g->self != self)
			continue;
		sent_bytes += tess_width(c->dtype) * count_sent_elements(c, g->rank, g->size);
		return counted[i].inner->start(self, c, work);
	}
	return tess_fail(TESS_EBUG, "%s: a call in a group that is not counted", c->where);
}

void counting_begin(struct tess_group *const *groups, int32_t n)
{
	sent_bytes = 0;
	ncounted = n;
	for (int32_t i = 0; i < n; i++) {
		struct counted *k = &counted[i];

		*k = (struct counted){ groups[i], groups[i]->backend, *groups[i]->backend };
		k->table.start = start_counted;
		groups[i]->backend = &k->table;
	}
}

uint64_t counting_end(void)
{
	for (int32_t i = ncounted - 1; i >= 0; i--)
		counted[i].group->backend = counted[i].inner;
	ncounted = 0;
	return sent_bytes;
}

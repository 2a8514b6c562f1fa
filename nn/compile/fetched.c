#include "nn/compile/fetched.h"

#include "nn/program/storage.h"

#include <tessera/style.h>

enum { TILE_RUNS = 4 }; /* runs of weights that are read at once in a tile of a larger weight */

/* Fails if the device does not compute from host memory. */
static void check_fetching_device(struct tess_recorder *r)
{
	if (!tess_program_is_on_host(r->p))
		tess_recorder_fail(r, TESS_ENOTSUP,
		                   "device %s has memory of its own, to which no weights are read "
		                   "before each use; use --device cpu, or leave out "
		                   "--offload-weights",
		                   r->p->device->name);
}

void tess_program_place_fetched(struct tess_recorder *r)
{
	struct tess_program *p = r->p;

	if (r->status || p->training || p->rest_location != TESS_LOCATION_DISK)
		return;
	check_fetching_device(r);
	if (!p->tile)
		p->tile = TILE_RUNS * tess_program_get_bucket(p);
	for (int32_t i = 0, n = p->nweights; i < n && !r->status; i++) {
		struct tess_weight *w = p->weight[i];

		if (w->table)
			tess_weight_copy_table(r, w);
		w->compressed = 0;
	}
	for (int32_t i = 0; i < p->nrecords; i++)
		if (p->record[i]->kind == TESS_OP_EMBED)
			p->weight[p->record[i]->weight[0]->index]->rest_location =
				TESS_LOCATION_DEVICE;
}

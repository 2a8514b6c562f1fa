#include "nn/run/step_memory.h"

#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/sum/shared_region.h"

#include <stdlib.h>

struct tess_group *tess_step_memory_choose_group(const struct tess_mesh_shape *mesh,
                                                 struct tess_group *const *along)
{
	int32_t best = 0, pp = tess_mesh_shape_find(mesh, "pp", 2);

	for (int32_t i = 1; i < mesh->ndims; i++)
		if (best == pp || (i != pp && mesh->dim[i].size > mesh->dim[best].size))
			best = i;
	return along[best];
}

/* ---- step arena ------------------------------------------------------------------------------ */

static void free_step(struct tess_step_memory *s)
{
	if (s->is_shared) {
		tess_group_free(s->shared, s->at.step);
	} else if (s->is_registered) {
		TESS_PLUGIN_DO(s->device->table, NULL, sync, s->device->self, s->device->stream);
		tess_carrier_free(s->shared, s->at.step);
	} else {
		tess_device_free(s->device, s->at.step);
	}
	s->is_shared = s->is_registered = false;
	s->at.step = NULL;
}

/* Allocates memory that all ranks map if possible: collectives then need no extra copies. */
static tess_status alloc_step(struct tess_step_memory *s, uint64_t *bytes, void **out, bool *shared)
{
	tess_status st = TESS_ENOTSUP;

	*shared = tess_device_is_host(s->device) && tess_group_has_shared_memory(s->shared);
	if (*shared)
		st = tess_group_alloc(s->shared, bytes, out);
	if (st != TESS_ENOTSUP && st != TESS_ENOMEM)
		return st;
	*shared = false;
	return tess_device_alloc(s->device, "step", *bytes, out);
}

/* Allocates memory of the carrier if all ranks can; else *out is NULL. Collective. */
static tess_status alloc_registered(struct tess_step_memory *s, uint64_t bytes, void **out)
{
	int64_t has;
	tess_status st;

	*out = NULL;
	if (s->offsets_differ)
		return TESS_OK;
	has = tess_carrier_alloc(s->shared, bytes, out) == TESS_OK;
	if (!has)
		*out = NULL;
	st = tess_all_reduce(s->shared, &has, &has, 1, TESS_I64, TESS_MIN, "step");
	if (*out && (st || !has)) {
		tess_carrier_free(s->shared, *out);
		*out = NULL;
	}
	s->offsets_differ = s->offsets_differ || !has;
	return st;
}

struct step_request { /* the request of one rank; all ranks gather them */
	int64_t bytes, is_short;
	uint64_t calls;
};

/* Reserves the maximum size of all ranks in memory of the carrier, unless offsets differ. */
static tess_status reserve_registered(struct tess_step_memory *s, uint64_t bytes, uint64_t calls)
{
	struct step_request mine = { (int64_t)bytes, bytes > s->bytes, calls }, *all;
	int32_t n = tess_group_size(s->shared);
	bool is_short = false;
	void *more = NULL;
	tess_status st;

	all = calloc((size_t)n, sizeof *all);
	st = all ? tess_all_gather(s->shared, &mine, all, sizeof mine / 8, TESS_I64, "step")
	         : tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t r = 0; r < n && !st; r++) {
		bytes = (uint64_t)all[r].bytes > bytes ? (uint64_t)all[r].bytes : bytes;
		is_short = is_short || all[r].is_short;
		s->offsets_differ = s->offsets_differ || all[r].calls != all[0].calls;
	}
	free(all);
	if (st || (!is_short && !(s->is_registered && s->offsets_differ)))
		return st;
	bytes = bytes > s->bytes ? bytes : s->bytes;
	st = alloc_registered(s, bytes, &more);
	if (st)
		return st;
	if (s->at.step)
		free_step(s);
	s->is_registered = more;
	s->bytes = 0;
	if (!more)
		st = tess_device_alloc(s->device, "step", bytes, &more);
	if (!st) {
		s->at.step = more;
		s->bytes = bytes;
	}
	return st;
}

/* Ranks need different sizes: shared memory, allocated collectively, grows if one rank needs it. */
tess_status tess_step_memory_reserve(struct tess_step_memory *s, uint64_t bytes, uint64_t calls)
{
	int64_t is_short = bytes > s->bytes;
	void *more;
	bool shared;
	tess_status st = TESS_OK;

	if (tess_carrier_has_memory(s->shared))
		return reserve_registered(s, bytes, calls);
	if (tess_group_has_shared_memory(s->shared))
		st = tess_all_reduce(s->shared, &is_short, &is_short, 1, TESS_I64, TESS_MAX,
		                     "step");
	if (st || !is_short)
		return st;
	if (bytes < s->bytes)
		bytes = s->bytes;
	st = alloc_step(s, &bytes, &more, &shared);
	if (st)
		return st;
	free_step(s);
	s->at.step = more;
	s->is_shared = shared;
	s->bytes = bytes;
	return TESS_OK;
}

/* ---- inputs, rope tables --------------------------------------------------------------------- */

tess_status tess_step_memory_grow_inputs(struct tess_step_memory *s, int64_t n)
{
	int32_t *inputs = calloc((size_t)(2 * n), sizeof *inputs);
	void *more;
	tess_status st = inputs ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = tess_device_alloc(s->device, "inputs", (uint64_t)n * sizeof *inputs, &more);
	if (st) {
		free(inputs);
		return st;
	}
	free(s->inputs[0]);
	tess_device_free(s->device, s->at.inputs);
	s->inputs[0] = inputs;
	s->inputs[1] = inputs + n;
	s->at.inputs = more;
	s->ninputs = n;
	return TESS_OK;
}

/* Fills all tables of the program, one after another. */
static tess_status fill_rope_tables(const struct tess_program *p, int64_t positions, float *out)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nropes && !st; i++) {
		st = tess_rope_fill_table(&p->rope[i].rope, p->rope[i].each, positions, out);
		out += positions * p->rope[i].each;
	}
	return st;
}

static int64_t count_rope_elements(const struct tess_program *p)
{
	int64_t n = 0;

	for (int32_t i = 0; i < p->nropes; i++)
		n += p->rope[i].each;
	return n;
}

tess_status tess_step_memory_grow_rope(struct tess_step_memory *s, const struct tess_program *p,
                                       int64_t positions)
{
	int64_t n = 2 * s->at.rope_positions;
	uint64_t bytes;
	float *table;
	void *more = NULL;
	tess_status st;

	n = n > positions ? n : tess_up(positions, 64) * 64;
	bytes = (uint64_t)(n * count_rope_elements(p)) * sizeof *table;
	table = malloc(bytes);
	st = table ? fill_rope_tables(p, n, table) : tess_fail(TESS_ENOMEM, "out of memory");
	if (!st)
		st = tess_device_alloc(s->device, "rope", bytes, &more);
	if (!st)
		st = tess_device_move(s->device, "rope", more, table, bytes);
	free(table);
	tess_device_free(s->device, st ? more : s->at.rope);
	if (st)
		return st;
	s->at.rope = more;
	s->at.rope_positions = n;
	return TESS_OK;
}

/* ---- free ------------------------------------------------------------------------------------ */

void tess_step_memory_free(struct tess_step_memory *s)
{
	tess_device_free(s->device, s->at.inputs);
	tess_device_free(s->device, s->at.rope);
	free(s->inputs[0]);
	free_step(s);
	*s = (struct tess_step_memory){ 0 };
}

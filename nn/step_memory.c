#include "nn/step_memory.h"

#include "core/base/status.h"
#include "core/group/shared_region.h"

#include <stdlib.h>

/* ---- step arena ------------------------------------------------------------------------------ */

static void free_step(struct tess_step_memory *s)
{
	if (s->is_shared)
		tess_group_free(s->shared, s->at.step);
	else
		tess_device_free(s->device, s->at.step);
	s->at.step = NULL;
}

/* In memory that all ranks map, where there is such: collectives then need no extra copies. */
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

/*
 * Ranks need different sizes for the same program: shared memory, which is allocated collectively,
 * grows if it is too small for any rank.
 */
tess_status tess_step_memory_reserve(struct tess_step_memory *s, uint64_t bytes)
{
	int64_t is_short = bytes > s->bytes;
	void *more;
	bool shared;
	tess_status st = TESS_OK;

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

/* All tables of the programs, one after another. */
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

/* runner_memory.c - the memory of steps: pages, step arena, inputs, rope tables, logits. */
#include "core/base/status.h"
#include "core/group/shared_region.h"
#include "nn/agree.h"
#include "nn/runner_state.h"

#include <stdlib.h>

/* ---- pages ----------------------------------------------------------------------------------- */

tess_status tess_runner_reserve_pages(struct tess_runner *s, const struct tess_rows *rows,
                                      int64_t n)
{
	struct tess_kv_tables t;
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < n && !st; i++)
		st = tess_kv_cache_grow(s->kv, rows[i].slot, rows[i].n);
	if (!st)
		st = tess_kv_cache_write_tables(s->kv, &t);
	if (st || (t.page == s->memory.pages && t.slots == s->memory.slots &&
	           t.blocks == s->memory.blocks))
		return st;
	s->memory.pages = t.page;
	s->memory.slots = t.slots;
	s->memory.blocks = t.blocks;
	s->moved = true;
	return TESS_OK;
}

/* ---- step arena ------------------------------------------------------------------------------ */

static void free_step(struct tess_runner *s)
{
	if (s->step_shared)
		tess_group_free(s->shared, s->memory.step);
	else
		tess_device_free(&s->device, s->memory.step);
	s->memory.step = NULL;
}

/* In memory that all ranks map, where there is such: collectives then need no extra copies. */
static tess_status alloc_step(struct tess_runner *s, uint64_t *bytes, void **out, bool *shared)
{
	tess_status st = TESS_ENOTSUP;

	*shared = tess_device_is_host(&s->device) && tess_group_has_shared_memory(s->shared);
	if (*shared)
		st = tess_group_alloc(s->shared, bytes, out);
	if (st != TESS_ENOTSUP && st != TESS_ENOMEM)
		return st;
	*shared = false;
	return tess_device_alloc(&s->device, "step", *bytes, out);
}

/*
 * Ranks need different sizes for the same program: shared memory, which is allocated collectively,
 * grows if it is too small for any rank.
 */
tess_status tess_runner_reserve_step(struct tess_runner *s, uint64_t bytes)
{
	int64_t is_short = bytes > s->step_bytes;
	void *more;
	bool shared;
	tess_status st = TESS_OK;

	if (tess_group_has_shared_memory(s->shared))
		st = tess_all_reduce(s->shared, &is_short, &is_short, 1, TESS_I64, TESS_MAX,
		                     "step");
	if (st || !is_short)
		return st;
	if (bytes < s->step_bytes)
		bytes = s->step_bytes;
	st = alloc_step(s, &bytes, &more, &shared);
	if (st)
		return st;
	free_step(s);
	s->memory.step = more;
	s->step_shared = shared;
	s->step_bytes = bytes;
	return TESS_OK;
}

/* ---- inputs, rope tables, logits ------------------------------------------------------------- */

static tess_status grow_inputs(struct tess_runner *s, int64_t n)
{
	int32_t *inputs = calloc((size_t)n, sizeof *inputs);
	void *more;
	tess_status st = inputs ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = tess_device_alloc(&s->device, "inputs", (uint64_t)n * sizeof *inputs, &more);
	if (st) {
		free(inputs);
		return st;
	}
	free(s->inputs);
	tess_device_free(&s->device, s->memory.inputs);
	s->inputs = inputs;
	s->memory.inputs = more;
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

static int64_t count_rope_elements(const struct tess_runner *s)
{
	const struct tess_program *p = s->programs.first->program;
	int64_t n = 0;

	for (int32_t i = 0; i < p->nropes; i++)
		n += p->rope[i].each;
	return n;
}

static tess_status grow_rope_table(struct tess_runner *s, int64_t positions)
{
	int64_t n = 2 * s->memory.rope_positions;
	uint64_t bytes;
	float *table;
	void *more = NULL;
	tess_status st;

	n = n > positions ? n : tess_up(positions, 64) * 64;
	bytes = (uint64_t)(n * count_rope_elements(s)) * sizeof *table;
	table = malloc(bytes);
	st = table ? fill_rope_tables(s->programs.first->program, n, table)
	           : tess_fail(TESS_ENOMEM, "out of memory");
	if (!st)
		st = tess_device_alloc(&s->device, "rope", bytes, &more);
	if (!st)
		st = tess_device_move(&s->device, "rope", more, table, bytes);
	free(table);
	tess_device_free(&s->device, st ? more : s->memory.rope);
	if (st)
		return st;
	s->memory.rope = more;
	s->memory.rope_positions = n;
	return TESS_OK;
}

static tess_status grow_logits(struct tess_runner *s, int64_t rows)
{
	float *more = malloc((size_t)(rows * tess_runner_vocabulary(s)) * sizeof *more);

	if (!more)
		return tess_fail(TESS_ENOMEM, "out of memory");
	free(s->logits);
	s->logits = more;
	s->nlogits = rows;
	return TESS_OK;
}

tess_status tess_runner_reserve_buffers(struct tess_runner *s, const struct tess_shape *like,
                                        int64_t end)
{
	int64_t inputs = 3 * like->ntokens + like->nselected;
	bool rope = s->programs.first->program->nropes && end > s->memory.rope_positions;
	tess_status st = TESS_OK;

	if (inputs <= s->ninputs && !rope && like->nselected <= s->nlogits)
		return TESS_OK;
	if (inputs > s->ninputs)
		st = grow_inputs(s, inputs);
	if (!st && rope)
		st = grow_rope_table(s, end);
	if (!st && like->nselected > s->nlogits)
		st = grow_logits(s, like->nselected);
	st = tess_group_agree_status(s->parts.group, st, "step");
	if (st) /* some ranks may have grown it: all do so again */
		s->ninputs = s->nlogits = s->memory.rope_positions = 0;
	s->moved = true;
	return st;
}

/* ---- free ------------------------------------------------------------------------------------ */

void tess_runner_free_memory(struct tess_runner *s)
{
	tess_device_free(&s->device, s->memory.inputs);
	tess_device_free(&s->device, s->memory.rope);
	free(s->inputs);
	free(s->logits);
	free_step(s);
}

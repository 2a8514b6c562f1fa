/* runner_memory.c - the memory of a runner's steps: pages, inputs, rope tables, logits. */
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/generate/runner_state.h"
#include "nn/program/agree.h"
#include "nn/program/storage.h"

#include <stdlib.h>

/* ---- room ------------------------------------------------------------------------------------ */

enum { MEBIBYTE = 1 << 20 };

static uint64_t count_rank_weights(const struct tess_runner *s)
{
	const struct tess_program *p = s->programs.first->program;
	uint64_t bytes = 0;

	for (int32_t i = 0; i < p->nweights; i++)
		if (!p->weight[i]->table)
			bytes += (uint64_t)tess_weight_count_local(p, p->weight[i], s->rank) *
			         tess_width(p->weight[i]->dtype);
	return bytes;
}

/* Checks a device with memory of its own, of fixed size, as of a GPU. */
tess_status tess_runner_check_room(const struct tess_runner *s)
{
	const struct tess_opened_device *d = &s->device;
	uint64_t needs = count_rank_weights(s), kv = s->parts.kv_memory, room = 0;
	int64_t ranks = tess_group_size(s->parts.group);
	tess_status st = TESS_OK;

	if (tess_device_is_host(d) || !d->table->free_bytes)
		return TESS_OK;
	st = TESS_PLUGIN_CALL(d->table, "memory", free_bytes, d->self, &room);
	room /= (uint64_t)d->nranks;
	if (st || needs + kv <= room)
		return st;
	if (needs > room)
		return tess_fail(
			TESS_ENOMEM,
			"the weights of a rank need %lld MiB, and %lld MiB of device %s:%d "
			"are free for it; use -n %lld or more, each on a device of its own",
			(long long)tess_up((int64_t)needs, MEBIBYTE), (long long)(room / MEBIBYTE),
			d->table->name, (int)d->index,
			(long long)tess_up((int64_t)needs * ranks, (int64_t)room + 1));
	return tess_fail(TESS_ENOMEM,
	                 "%lld MiB of KV cache and %lld MiB of weights: %lld MiB of device %s:%d "
	                 "are free for the rank; use --kv-memory %lldM or less",
	                 (long long)(kv / MEBIBYTE), (long long)tess_up((int64_t)needs, MEBIBYTE),
	                 (long long)(room / MEBIBYTE), d->table->name, (int)d->index,
	                 (long long)((room - needs) / 8 * 7 / MEBIBYTE));
}

/* ---- pages ----------------------------------------------------------------------------------- */

tess_status tess_runner_reserve_pages(struct tess_runner *s, const struct tess_rows *rows,
                                      int64_t n)
{
	const struct tess_memory *at = &s->step->at;
	struct tess_kv_tables t;
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < n && !st; i++)
		st = tess_kv_cache_grow(s->kv, rows[i].slot, rows[i].n);
	if (!st)
		st = tess_kv_cache_write_tables(s->kv, s->chooser.turn, &t);
	if (st || (t.page == at->pages && t.slots == at->slots && t.blocks == at->blocks))
		return st;
	for (int32_t i = 0; i < s->ahead; i++) {
		s->step[i].at.pages = t.page;
		s->step[i].at.slots = t.slots;
		s->step[i].at.blocks = t.blocks;
		s->step[i].moved = true;
	}
	return TESS_OK;
}

/* ---- logits, inputs, rope tables ------------------------------------------------------------- */

tess_status tess_runner_reserve_logits(struct tess_runner *s, const struct tess_rows *rows,
                                       int64_t n)
{
	int64_t nselected = 0;
	tess_status st;

	for (int64_t i = 0; i < n; i++)
		nselected += rows[i].nselected;
	if (nselected <= s->nlogits)
		return TESS_OK;
	free(s->logits);
	s->logits = malloc((size_t)(nselected * tess_runner_vocabulary(s)) * sizeof *s->logits);
	st = s->logits ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_group_agree_unless_apart(s->parts.group, s->ahead > 1, st, "step");
	s->nlogits = st ? 0 : nselected; /* some ranks may have it: all retry */
	return st;
}

/* Grows the rope tables, which all steps share. */
static tess_status grow_rope(struct tess_runner *s, int64_t end)
{
	tess_status st = tess_step_memory_grow_rope(s->step, s->programs.first->program, end);

	for (int32_t i = 0; i < s->ahead && !st; i++) {
		s->step[i].at.rope = s->step->at.rope;
		s->step[i].at.rope_positions = s->step->at.rope_positions;
		s->step[i].moved = true;
	}
	return st;
}

tess_status tess_runner_reserve_buffers(struct tess_runner *s, const struct tess_shape *like,
                                        int64_t end)
{
	struct tess_step_memory *m = &s->step[like->memory];
	int64_t inputs = 3 * like->ntokens + like->nselected;
	bool rope = s->programs.first->program->nropes && end > m->at.rope_positions;
	tess_status st = TESS_OK;

	if (inputs <= m->ninputs && !rope)
		return TESS_OK;
	if (inputs > m->ninputs)
		st = tess_step_memory_grow_inputs(m, inputs);
	if (!st && rope)
		st = grow_rope(s, end);
	st = tess_group_agree_unless_apart(s->parts.group, s->ahead > 1, st, "step");
	if (st) /* some ranks may have grown it: all retry */
		m->ninputs = m->at.rope_positions = 0;
	m->moved = true;
	return st;
}

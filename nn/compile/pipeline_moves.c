#include "nn/compile/pipeline_moves.h"

#include <stdlib.h>

struct readers { /* of the values of a program */
	const struct tess_program *p;
	int32_t nstages;
	int32_t *count; /* by value and stage: the records that read it */
};

static int32_t *find_readers(const struct readers *r, const struct tess_tensor *x)
{
	return r->count + (int64_t)x->id * r->nstages;
}

static void count_readers(const struct readers *r, int32_t end)
{
	for (int32_t i = 0; i < end; i++) {
		const struct tess_record *rec = r->p->record[i];

		for (int32_t k = 0; k < rec->nin && rec->stage >= 0; k++)
			find_readers(r, rec->in[k])[rec->stage]++;
	}
}

/* Returns the first stage that reads x, from `home` upwards, then downwards; -1: none. */
static int32_t find_first_reader(const struct readers *r, const struct tess_tensor *x, int32_t home)
{
	for (int32_t s = home; s < r->nstages; s++)
		if (find_readers(r, x)[s])
			return s;
	for (int32_t s = home - 1; s >= 0; s--)
		if (find_readers(r, x)[s])
			return s;
	return -1;
}

/*
 * Returns the stage of a move whose operand is computed in stage `home`: that of the first reader,
 * if the operand is sent there for another record, too, or is smaller than the result; `home`, if
 * the result is smaller.
 */
static int32_t choose_move_stage(const struct readers *r, const struct tess_record *move,
                                 int32_t home)
{
	const struct tess_tensor *in = move->in[0], *out = move->out[0];
	bool in_cut = in->place[move->along].kind == TESS_SHARD;
	bool out_cut = out->place[move->along].kind == TESS_SHARD;
	int32_t reader = find_first_reader(r, out, home);

	if (reader < 0)
		return move->stage;
	if (find_readers(r, in)[reader] > (move->stage == reader))
		return reader;
	return in_cut == out_cut ? move->stage : in_cut ? reader : home;
}

tess_status tess_pipeline_place_moves(const struct tess_program *p, int32_t begin, int32_t end,
                                      int32_t *home)
{
	struct readers r = { .p = p, .nstages = p->nstages };

	r.count = calloc((size_t)p->ntensors * (size_t)r.nstages, sizeof *r.count);
	if (!r.count)
		return TESS_ENOMEM;
	count_readers(&r, end);
	for (int32_t i = end - 1; i >= begin; i--) { /* readers before what they read */
		struct tess_record *move = p->record[i];
		int32_t stage;

		if (move->kind != TESS_REC_MOVE || move->stage < 0 || home[move->in[0]->id] < 0)
			continue;
		stage = choose_move_stage(&r, move, home[move->in[0]->id]);
		find_readers(&r, move->in[0])[move->stage]--;
		find_readers(&r, move->in[0])[stage]++;
		home[move->out[0]->id] = move->stage = stage;
	}
	free(r.count);
	return TESS_OK;
}

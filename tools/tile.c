/* tile.c - finds the largest --tile with which a step of training fits in the memory of a rank. */
#include "tool.h"

#include <string.h>

enum { TILE_MIN = 1 << 12, TILE_STEPS = 4 }; /* bytes; parts of a power of two, as a power */

struct tile_trial { /* a step of training with a tile */
	uint64_t tile, used, step; /* bytes of the fullest rank; step: of values alone */
	int32_t rank;
};

tess_status tess_tool_parse_tile(const char *name, const char *text, void *to)
{
	uint64_t *tile = to;

	if (strcmp(text, "auto") != 0)
		return tess_tool_parse_size(name, text, to);
	*tile = TESS_TOOL_TILE_AUTO;
	return TESS_OK;
}

tess_status tess_tool_check_tile(uint64_t tile, uint64_t memory)
{
	return tile == TESS_TOOL_TILE_AUTO && !memory
	               ? tess_fail(TESS_EINVAL,
	                           "--tile auto needs the memory of a rank: --memory SIZE")
	               : TESS_OK;
}

/* Explains the step with a tile; 0: none. */
static tess_status try_tile(const struct tess_tool_tiling *t, uint64_t tile, struct tile_trial *out)
{
	struct tess_trainer_options options = t->options;
	struct tess_explanation *e = NULL;
	tess_status st;

	*out = (struct tile_trial){ .tile = tile };
	options.tile = tile;
	st = tess_tool_explain_training(t->model, t->mesh, t->ranks, t->sequences, t->length,
	                                &options, &e);
	if (st)
		return st;
	out->step = e->total.step;
	for (int32_t i = 0; i < e->nranks; i++)
		if (e->ranks[i]->total > out->used) {
			out->used = e->ranks[i]->total;
			out->rank = i;
		}
	tess_explanation_free(e);
	return TESS_OK;
}

/*
 * Takes a trial that fits, or that needs less memory than the one taken before. Returns whether it
 * fits.
 */
static bool take_trial(struct tess_tool_tiling *t, const struct tile_trial *trial)
{
	bool fits = trial->used <= t->memory;

	if (fits || !t->used || trial->used < t->used) {
		t->options.tile = trial->tile;
		t->used = trial->used;
		t->rank = trial->rank;
	}
	return fits;
}

tess_status tess_tool_find_tile(struct tess_tool_tiling *t)
{
	struct tile_trial trial;
	tess_status st = try_tile(t, 0, &trial);
	uint64_t tile = TILE_MIN;
	bool fits;

	t->used = 0;
	if (st || take_trial(t, &trial))
		return st;
	while (tile < trial.step) /* more than two of any weight: none is cut */
		tile *= 2;
	for (fits = false; !st && !fits && tile > TILE_MIN;) {
		st = try_tile(t, tile /= 2, &trial);
		fits = !st && take_trial(t, &trial);
	}
	for (uint64_t step = tile / 2; !st && fits && step >= tile >> TILE_STEPS; step /= 2) {
		st = try_tile(t, tile + step, &trial);
		if (!st && take_trial(t, &trial))
			tile += step;
	}
	return st;
}

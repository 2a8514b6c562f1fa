/* tile.c - the tile that `tessera train --tile auto` takes. */
#include "train.h"

/* Prints the tile: its bytes, which --tile takes, and what the fullest rank needs. */
static void print_tile(const struct tess_tool_tiling *t)
{
	char tile[64] = "auto: no tiles";

	if (t->options.tile)
		snprintf(tile, sizeof tile, "%llu, by auto", (unsigned long long)t->options.tile);
	fprintf(stderr, "tessera train: --tile %s: rank %d, the fullest, needs %.1f of %.1f MiB\n",
	        tile, (int)t->rank, (double)t->used / 1048576, (double)t->memory / 1048576);
}

static tess_status refuse_memory(const struct tess_tool_tiling *t)
{
	char tile[64] = "without tiles";

	if (t->options.tile)
		snprintf(tile, sizeof tile, "with --tile %llu",
		         (unsigned long long)t->options.tile);
	return tess_fail(
		TESS_ENOMEM,
		"--memory: rank %d needs %.1f MiB at least, %s, and has %.1f MiB; use more "
		"ranks or --micro-batches, a shorter --sequence, --recompute, "
		"--offload-optimizer or --offload-weights",
		(int)t->rank, (double)t->used / 1048576, tile, (double)t->memory / 1048576);
}

tess_status train_choose_tile(struct train_options *a, int32_t n, bool print)
{
	struct tess_tool_tiling t = { .model = a->session.model,
		                      .mesh = a->session.mesh,
		                      .ranks = n,
		                      .sequences = a->batch / a->micro,
		                      .length = a->rows.sequence,
		                      .options = train_make_options(a),
		                      .memory = a->memory };
	tess_status st = tess_tool_find_tile(&t);

	if (!st && t.used > t.memory)
		st = refuse_memory(&t);
	if (st)
		return st;
	a->tile = t.options.tile;
	if (print)
		print_tile(&t);
	return TESS_OK;
}

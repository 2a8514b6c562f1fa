/* tile.c - the tile that `tessera train --tile auto` takes. */
#include "train.h"

/* Writes the tile of the step: that of the options, or else that of the strategy. */
static void format_tile(const struct train_options *a, const struct tess_tool_tiling *t,
                        char text[64])
{
	const struct tess_strategy *s = a->session.strategy;
	uint64_t tile = t->options.tile || !s ? t->options.tile : s->tile;

	snprintf(text, 64, tile ? "a tile of %llu bytes" : "no tiles", (unsigned long long)tile);
}

static void print_tile(const struct tess_tool_tiling *t, const char *tile)
{
	fprintf(stderr,
	        "tessera train: --tile auto takes %s: rank %d, the fullest, needs %.1f of %.1f "
	        "MiB\n",
	        tile, (int)t->rank, (double)t->used / 1048576, (double)t->memory / 1048576);
}

static tess_status refuse_memory(const struct tess_tool_tiling *t, const char *tile)
{
	return tess_fail(TESS_ENOMEM,
	                 "--tile auto: rank %d needs at least %.1f MiB, with %s: %llu bytes more "
	                 "than --memory; use more ranks or --micro-batches, a shorter --sequence, "
	                 "--recompute, --offload-optimizer or --offload-weights",
	                 (int)t->rank, (double)t->used / 1048576, tile,
	                 (unsigned long long)(t->used - t->memory));
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
	char tile[64];
	tess_status st = tess_tool_find_tile(&t);

	if (st)
		return st;
	format_tile(a, &t, tile);
	if (t.used > t.memory)
		return refuse_memory(&t, tile);
	a->tile = t.options.tile;
	if (print)
		print_tile(&t, tile);
	return TESS_OK;
}

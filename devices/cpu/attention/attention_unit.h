/*
 * attention_unit.h - the inner loop of ATTENTION: a tile of rows, and a full unit of keys or values
 * in the KV cache.
 */
#ifndef TESS_DEVICES_CPU_ATTENTION_UNIT_H
#define TESS_DEVICES_CPU_ATTENTION_UNIT_H

#include "tile.h"

struct unit_products { /* c[r][j] = the chain over i of a[r * ar + i] * b[i][j], from +0 */
	const float *a;
	int64_t ar, len;
	const char *b; /* in the cache's dtype; `bk` bytes between b[i] and b[i + 1] */
	int64_t bk;
	const char *next; /* the block to prefetch; or b */
	float *out; /* scores: [rows], `pitch` floats apart; values: level 0, as in tile_fn */
	int64_t pitch;
	float scale; /* scores only */
	const struct sum_step *step; /* values only: level, merge and finish */
};

typedef void unit_fn(const struct unit_products *x);

/*
 * Finds the loop for 1 <= rows <= TILE_ROWS rows; one panel, or, if `wide`,
 * tile_get_wide_panels(rows); f32 or bf16.
 */
#define attention_find_unit CPU_NAME(attention_find_unit)
unit_fn *attention_find_unit(int32_t dtype, bool scores, int rows, bool wide);

#endif

/*
 * attention_unit.h - the inner loop of ATTENTION: a tile of rows, and a whole unit of keys or
 * values where they lie in the cache.
 */
#ifndef TESS_DEVICES_CPU_ATTENTION_UNIT_H
#define TESS_DEVICES_CPU_ATTENTION_UNIT_H

#include "tile.h"

struct unit_products { /* c[r][j] = the chain over i of a[r * ar + i] * b[i][j], from +0 */
	const float *a;
	int64_t ar, len;
	const char *b; /* in the type of the cache; `bk` bytes between b[i] and b[i + 1] */
	int64_t bk;
	const char *next; /* what is read next in the same way, for the cache; or b */
	float *out; /* of scores: [rows], `pitch` floats apart; of values: level 0, as in tile_fn */
	int64_t pitch;
	float scale; /* of scores */
	const struct sum_step *step; /* of values: level, merge and finish */
};

typedef void unit_fn(const struct unit_products *x);

/* 1 <= rows <= TILE_ROWS; one panel, or, if `wide`, tile_get_wide_panels(rows); f32 or bf16. */
#define attention_find_unit CPU_NAME(attention_find_unit)
unit_fn *attention_find_unit(int32_t dtype, bool scores, int rows, bool wide);

#endif

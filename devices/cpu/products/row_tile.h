/* row_tile.h - the inner loop of LINEAR for few rows of x, and a weight in rows. */
#ifndef TESS_DEVICES_CPU_ROW_TILE_H
#define TESS_DEVICES_CPU_ROW_TILE_H

#include "tile.h"

/*
 * Multiplies like tile_fn, for 16 rows of the weight from w on, `row` bytes apart, of contiguous
 * elements. Prefetches `ahead` bytes after each element.
 */
typedef void row_tile_fn(const float *a, int64_t ar, const char *w, int64_t row, int64_t ahead,
                         float *slot, int64_t pitch, const struct sum_step *step);

/* Finds the tile for 1 <= rows <= TILE_ROWS rows of x. */
#define row_tile_find CPU_NAME(row_tile_find)
row_tile_fn *row_tile_find(int32_t dtype, int rows);

#endif

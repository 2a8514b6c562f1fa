/* tile.h - the one inner loop of LINEAR and ATTENTION: a few rows times a few panels, one step of a sum. */
#ifndef TESS_CPU_TILE_H
#define TESS_CPU_TILE_H

#include "lanes.h"

enum { TILE_ROWS = 6 };
#if defined(__AVX512F__)
enum { TILE_WIDE_1 = 4, TILE_WIDE_3 = 4, TILE_WIDE_6 = 4 };
#elif defined(__AVX2__)
enum { TILE_WIDE_1 = 4, TILE_WIDE_3 = 2, TILE_WIDE_6 = 1 };
#else
enum { TILE_WIDE_1 = 1, TILE_WIDE_3 = 1, TILE_WIDE_6 = 1 };
#endif
enum { TILE_WIDEST = TILE_WIDE_1 };

/* Panels that a wide tile of so many rows takes at once: as many as registers hold. */
static inline int tile_wide(int rows)
{
	return rows == 1 ? TILE_WIDE_1 : rows <= 3 ? TILE_WIDE_3 : TILE_WIDE_6;
}

/*
 * a: element (r, k) of the rows at r * ar + k * ak; both strides are `rows` and 1 (packed), or ar and 1.
 * b: panels `bp` bytes apart, their elements k `bk` bytes apart: 16 columns each.
 * slot: [rows][panels * 16] of level 0, the next level `pitch` floats further; all as the step says.
 */
typedef void tile_fn(const float *a, int64_t ar, const void *b, int64_t bk, int64_t bp, float *slot,
                     int64_t pitch, const struct sum_step *step);

/*
 * For 1 <= rows <= TILE_ROWS. packed: rows interleaved, `ar` is not read. panels: 1, or what is wide: tile_wide(rows) of
 * rows as they lie, TILE_WIDE_6 of packed ones.
 */
#define tile_find CPU_NAME(tile_find)
tile_fn *tile_find(int32_t dtype, bool packed, int rows, bool wide);

#endif

/*
 * pairs.h - products of bf16, two elements of K at once: "Products of bf16" in docs/ops.md. The
 * processor's instruction and its emulation give equal bits.
 */
#ifndef TESS_DEVICES_CPU_PAIRS_H
#define TESS_DEVICES_CPU_PAIRS_H

#include "tile.h"

enum { PAIR_BYTES = 4 * LANES }; /* bytes of a pair in a panel */
enum { PAIRS_WIDE = TILE_WIDE_6 }; /* panels of a wide tile, for any number of rows */
/* Kinds of tiles: read once, from memory; among others, of the same panels; fetched. */
enum { PAIRS_ALONE, PAIRS_AMONG, PAIRS_FETCHED, PAIRS_KINDS };

/*
 * Multiplies a tile. x: packed by pairs_pack. w: the step's elements of each panel, [K][16] bf16,
 * or of fetched ones the words of pack_pairs, `bp` bytes between panels. A tile among others
 * prefetches `ahead` of each panel, which advances by `ahead_k` bytes per pair. slot, pitch: as in
 * tile_fn.
 */
typedef void pair_tile_fn(const uint32_t *x, const void *w, int64_t bp, const void *ahead,
                          int64_t ahead_k, float *slot, int64_t pitch, const struct sum_step *step);

struct pair_tiles { /* by [kind][wide][rows - 1] */
	pair_tile_fn *tile[PAIRS_KINDS][2][TILE_ROWS];
};
extern const struct pair_tiles CPU_NAME(pair_tiles);

/* Packs like product_pack, rounded to bf16: by step, by tile: [pairs][rows]; 0 completes a pair. */
#define pairs_pack CPU_NAME(pairs_pack)
void pairs_pack(const struct sum_step *s, const float *x, int64_t pitch, const int32_t *index,
                int64_t rows, uint32_t *to);
/* Packs one tile, `len` elements of n rows. */
#define pairs_pack_tile CPU_NAME(pairs_pack_tile)
void pairs_pack_tile(const float *const row[], int64_t n, int64_t len, uint32_t *to);
/* Packs like product_pack_columns, rounded to bf16. */
#define pairs_pack_columns CPU_NAME(pairs_pack_columns)
void pairs_pack_columns(const struct sum_step *s, const float *x, int64_t pitch, int64_t rows,
                        uint32_t *to);

#endif

/*
 * product.h - rows of x times a weight: tiles of rows times panels of columns, leaf by leaf,
 * merging tree nodes as leaves complete.
 */
#ifndef TESS_DEVICES_CPU_PRODUCT_H
#define TESS_DEVICES_CPU_PRODUCT_H

#include "pairs.h"

enum { LEAF = 256 }; /* elements of K in a step: those of a panel fit in the cache */

struct product {
	const struct sum *sum; /* over K */
	struct tess_view w; /* [N, K], rows or panels */
	/* of a sum over several operands, that of each, whose rows are the elements: [K_i, N] */
	const struct tess_view *operand;
	const float *x; /* [rows][K], `pitch` floats between rows; or packed by product_pack */
	int64_t pitch, rows;
	bool packed;
	/* NULL, or of a product of bf16, whose x is packed by pairs_pack, and w is bf16 */
	const struct pair_tiles *pairs;
	float *y; /* [nodes][rows][N] */
	int64_t y_pitch, node_pitch; /* floats between rows, and between nodes */
	int32_t wide; /* panels of a wide tile: product_choose_wide */
	/* the panels of a group are `run` apart, so that the next group reads on where it ends; in
	 * what is left of wide * run panels, and if 0, they are neighbours */
	int64_t run;
	const struct sum_step *from, *to; /* the steps of this call, in turn; NULL: all */
	float *fetched; /* of several calls: LEAF * TILE_WIDEST * LANES floats; else behind slots */
};

/* Rows of the next tile: the remaining rows in tiles of about the same size. */
static inline int64_t product_choose_tile_rows(int64_t left)
{
	return tess_up(left, tess_up(left, TILE_ROWS));
}

/* More than TILE_ROWS rows have to be packed. */
static inline int32_t product_choose_wide(int64_t rows)
{
	return rows <= TILE_ROWS ? tile_get_wide_panels((int)rows) : TILE_WIDE_6;
}

/* Groups of `wide` panels, the shares of work. */
static inline int64_t product_count_groups(int64_t columns, int32_t wide)
{
	return tess_up(columns, wide * LANES);
}

/* Floats of a thread's scratch for up to `rows` rows. */
static inline int64_t product_count_scratch(const struct sum *sum, int64_t rows)
{
	return sum->levels * rows * TILE_WIDEST * LANES + LEAF * TILE_WIDEST * LANES;
}

/*
 * The elements of a step of n rows from `first` on: row[n]. It asks the cache for those of the next
 * n. Rows as those of product_pack.
 */
#define product_find_rows CPU_NAME(product_find_rows)
void product_find_rows(const struct sum_step *s, const float *x, int64_t pitch,
                       const int32_t *index, int64_t first, int64_t n, int64_t rows,
                       const float **row);

/*
 * Packs the elements of one step, of rows x, x + pitch, ... or, if `index`, x + index[i] * pitch;
 * `to` is the start of the packed rows: by step, by tile: [len][rows].
 */
#define product_pack CPU_NAME(product_pack)
void product_pack(const struct sum_step *s, const float *x, int64_t pitch, const int32_t *index,
                  int64_t rows, float *to);

/* The same for rows that are the columns of x: element k of row i is x[k * pitch + i]. */
#define product_pack_columns CPU_NAME(product_pack_columns)
void product_pack_columns(const struct sum_step *s, const float *x, int64_t pitch, int64_t rows,
                          float *to);

/* The columns of one group of all rows. scratch: the stack, which calls for later steps get too. */
#define product_multiply CPU_NAME(product_multiply)
void product_multiply(const struct product *p, int64_t group, float *scratch);

#endif

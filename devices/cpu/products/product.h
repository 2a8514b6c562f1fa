/*
 * product.h - multiplies rows of x by a weight: tiles of rows by panels of columns, leaf by leaf,
 * merging nodes of the tree as leaves complete.
 */
#ifndef TESS_DEVICES_CPU_PRODUCT_H
#define TESS_DEVICES_CPU_PRODUCT_H

#include "pairs.h"

enum { LEAF = 256 }; /* maximum elements of K in a step: a panel's fit in the cache */

struct product {
	const struct sum *sum; /* over K */
	struct tess_view w; /* [N, K], rows or panels */
	/* for a sum over several operands, each with the elements as rows: [K_i, N] */
	const struct tess_view *operand;
	const float *x; /* [rows][K], `pitch` floats between rows; or packed by product_pack */
	int64_t pitch, rows;
	bool packed;
	/* not NULL for a product of bf16: x is packed by pairs_pack; panels of w are bf16 */
	const struct pair_tiles *pairs;
	float *y; /* [nodes][rows][N] */
	int64_t y_pitch, node_pitch; /* floats between rows, and between nodes */
	int32_t wide; /* panels of a wide tile: product_choose_wide */
	/* distance of the panels of a group, so that the next group continues where it ends; panels
	 * beyond the last wide * run, and all panels if 0, are adjacent */
	int64_t run;
	const struct sum_step *from, *to; /* the steps of this call; NULL: all */
	float *fetched; /* several calls: LEAF * TILE_WIDEST * LANES floats; else after the slots */
};

/* Chooses the rows of the next tile: divides the remaining rows evenly. */
static inline int64_t product_choose_tile_rows(int64_t left)
{
	return tess_up(left, tess_up(left, TILE_ROWS));
}

/* Chooses the panels of a wide tile; more than TILE_ROWS rows have to be packed. */
static inline int32_t product_choose_wide(int64_t rows)
{
	return rows <= TILE_ROWS ? tile_get_wide_panels((int)rows) : TILE_WIDE_6;
}

/* Counts groups of `wide` panels, the shares of work. */
static inline int64_t product_count_groups(int64_t columns, int32_t wide)
{
	return tess_up(columns, wide * LANES);
}

/* Counts the floats of a thread's scratch for up to `rows` rows. */
static inline int64_t product_count_scratch(const struct sum *sum, int64_t rows)
{
	return sum->levels * rows * TILE_WIDEST * LANES + LEAF * TILE_WIDEST * LANES;
}

/*
 * Finds the elements of a step in n rows from `first` on: row[n], and prefetches those of the next
 * n rows. Rows as in product_pack.
 */
#define product_find_rows CPU_NAME(product_find_rows)
void product_find_rows(const struct sum_step *s, const float *x, int64_t pitch,
                       const int32_t *index, int64_t first, int64_t n, int64_t rows,
                       const float **row);

/*
 * Packs the elements of one step of rows x, x + pitch, ... or, with `index`, x + index[i] * pitch.
 * `to` is the start of the packed rows: by step, by tile: [len][rows].
 */
#define product_pack CPU_NAME(product_pack)
void product_pack(const struct sum_step *s, const float *x, int64_t pitch, const int32_t *index,
                  int64_t rows, float *to);

/* Packs rows that are columns of x: element k of row i is x[k * pitch + i]. */
#define product_pack_columns CPU_NAME(product_pack_columns)
void product_pack_columns(const struct sum_step *s, const float *x, int64_t pitch, int64_t rows,
                          float *to);

/* Multiplies one group of columns by all rows. scratch: the stack, kept for later steps. */
#define product_multiply CPU_NAME(product_multiply)
void product_multiply(const struct product *p, int64_t group, float *scratch);

#endif

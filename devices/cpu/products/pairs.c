/* pairs.c - packs rows of x as pairs of bf16. */
#include "product.h"

/* Rounds the elements of a row; appends 0 to an odd number. */
static void round_row(const float *x, int64_t len, uint16_t *to)
{
	CPU_LANES
	for (int64_t k = 0; k < len; k++)
		to[k] = tess_bf16_round(x[k]);
	if (len % 2)
		to[len] = 0;
}

void pairs_pack_tile(const float *const row[], int64_t n, int64_t len, uint32_t *to)
{
	uint16_t half[TILE_ROWS][LEAF];

	for (int64_t i = 0; i < n; i++)
		round_row(row[i], len, half[i]);
	if (n == TILE_ROWS) { /* a constant number for the compiler */
		for (int64_t k = 0; k < len; k += 2)
			for (int64_t i = 0; i < TILE_ROWS; i++)
				memcpy(to++, &half[i][k], sizeof *to);
		return;
	}
	for (int64_t k = 0; k < len; k += 2)
		for (int64_t i = 0; i < n; i++)
			memcpy(to++, &half[i][k], sizeof *to);
}

void pairs_pack(const struct sum_step *s, const float *x, int64_t pitch, const int32_t *index,
                int64_t rows, uint32_t *to)
{
	const float *row[TILE_ROWS];
	int64_t n;

	to += s->pairs * rows;
	for (int64_t r = 0; r < rows; r += n, to += n * tess_up(s->len, 2)) {
		n = product_choose_tile_rows(rows - r);
		product_find_rows(s, x, pitch, index, r, n, rows, row);
		pairs_pack_tile(row, n, s->len, to);
	}
}

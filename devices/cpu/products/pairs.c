/* pairs.c - packs rows of x as pairs of bf16. */
#include "pairs.h"

#include "pack.h"
#include "product.h"

enum { COLUMNS = 16 * TILE_ROWS }; /* columns that are joined at once */

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

/* Joins `n` columns of two rows; the second is absent after an odd last one. */
static void join_rows(const float *even, const float *odd, int64_t n, uint32_t *to)
{
	if (odd) {
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			to[i] = pack_join(even[i], odd[i]);
	} else {
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			to[i] = pack_join(even[i], 0.0f);
	}
}

/* Counts the columns of the next tiles: at most COLUMNS of `left`. */
static int64_t count_tile_columns(int64_t left)
{
	int64_t count = 0;

	while (count < left && count + TILE_ROWS <= COLUMNS)
		count += product_choose_tile_rows(left - count);
	return count;
}

static void copy_words(uint32_t *to, const uint32_t *from, int64_t n)
{
	if (n == TILE_ROWS) /* a constant number for the compiler */
		memcpy(to, from, sizeof *to * TILE_ROWS);
	else
		memcpy(to, from, sizeof *to * (size_t)n);
}

void pairs_pack_columns(const struct sum_step *s, const float *x, int64_t pitch, int64_t rows,
                        uint32_t *to)
{
	int64_t pairs = tess_up(s->len, 2), n, count;
	uint32_t word[COLUMNS];

	to += s->pairs * rows;
	for (int64_t k = 0; k < pairs; k++) {
		const float *even = x + (s->at + 2 * k) * pitch;
		const float *odd = 2 * k + 1 < s->len ? even + pitch : NULL;

		for (int64_t from = 0; from < rows; from += count) {
			count = count_tile_columns(rows - from);
			join_rows(even + from, odd ? odd + from : NULL, count, word);
			for (int64_t r = from; r < from + count; r += n) {
				n = product_choose_tile_rows(rows - r);
				copy_words(to + r * pairs + k * n, &word[r - from], n);
			}
		}
	}
}

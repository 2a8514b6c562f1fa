#include "free_order.h"

#include <tessera/split.h>

enum { ROWS = 6, PANELS = 4, LANES = 16, COLUMNS = PANELS * LANES };
enum { RUN = 1024 }; /* elements of K whose panels stay in the second cache */

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));

struct step { /* a step over elements of K of a group of panels */
	const float *w, *next; /* `pitch` floats between panels; next: read after it */
	int64_t pitch, len, m, n;
	int first; /* in elements of K */
};

static inline __attribute__((always_inline)) void multiply_any_tile(int rows, const float *a,
                                                                    const struct step *s,
                                                                    int64_t row, float *y)
{
	const char *next = (const char *)s->next + 4 * LANES * s->len * row / s->m;
	const int64_t pitch = s->pitch, ahead = 4 * LANES * rows / s->m;
	const float *w = s->w;
	lanes c[ROWS * PANELS], b[PANELS];
	const int count = rows * PANELS;

#pragma GCC unroll 32
	for (int i = 0; i < count; i++)
		c[i] = s->first ? (lanes){ 0 }
		                : *(const lanes *)(y + i / PANELS * s->n + i % PANELS * LANES);
	for (int64_t k = 0; k < s->len; k++, a += rows, w += LANES, next += ahead) {
#pragma GCC unroll 32
		for (int p = 0; p < PANELS; p++) {
			b[p] = *(const lanes *)(w + p * pitch);
			__builtin_prefetch(next + p * pitch * 4, 0, 2);
		}
#pragma GCC unroll 32
		for (int i = 0; i < count; i++)
			c[i] += a[i / PANELS] * b[i % PANELS];
	}
#pragma GCC unroll 32
	for (int i = 0; i < count; i++)
		*(lanes *)(y + i / PANELS * s->n + i % PANELS * LANES) = c[i];
}

#define TILE(rows) \
	static void multiply_tile_##rows(const float *a, const struct step *s, int64_t row, \
	                                 float *y) \
	{ \
		multiply_any_tile(rows, a, s, row, y); \
	}
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

/*
 * Returns the rows of the next tile: the remaining rows are divided into tiles of about one size.
 */
static int64_t choose_free_rows(int64_t left)
{
	return tess_up(left, tess_up(left, ROWS));
}

/* Packs x by range, by tile: [len][rows] */
static void pack_free_tiles(const float *x, float *to, int64_t m, int64_t k)
{
	for (int64_t at = 0; at < k; at += RUN) {
		int64_t end = at + RUN < k ? at + RUN : k;

		for (int64_t r = 0, rows; r < m; r += rows) {
			rows = choose_free_rows(m - r);
			for (int64_t i = at; i < end; i++)
				for (int64_t j = 0; j < rows; j++)
					*to++ = x[(r + j) * k + i];
		}
	}
}

void free_order_multiply(const float *x, const float *panels, float *y, float *packed, int64_t m,
                         int64_t n, int64_t k)
{
	static void (*const tile[ROWS])(const float *, const struct step *, int64_t,
	                                float *) = { multiply_tile_1, multiply_tile_2,
		                                     multiply_tile_3, multiply_tile_4,
		                                     multiply_tile_5, multiply_tile_6 };

	pack_free_tiles(x, packed, m, k);
	for (int64_t at = 0; at < k; at += RUN) {
		struct step s = { .pitch = k * LANES,
			          .len = k - at < RUN ? k - at : RUN,
			          .m = m,
			          .n = n,
			          .first = !at };

		for (int64_t column = 0; column < n; column += COLUMNS) {
			s.w = panels + column * k + at * LANES;
			s.next = column + COLUMNS < n ? s.w + COLUMNS * k : s.w;
			for (int64_t r = 0, rows; r < m; r += rows) {
				rows = choose_free_rows(m - r);
				tile[rows - 1](packed + at * m + r * s.len, &s, r,
				               y + r * n + column);
			}
		}
	}
}

/*
 * row_tile.c - transposes 64 bytes of each of 16 rows in registers, 4 bytes at a time, to vectors
 * of 16 outputs: the order of each sum is that of panels.
 */
#include "row_tile.h"

enum { BLOCK = 64 }; /* bytes of a row; a cache line */
enum { ALIKE = 2048 }; /* rows at multiples of this distance share few sets of the first cache */

struct row_block {
	struct lanes r[LANES]; /* consecutive elements; those of 2 bytes in pairs */
};

LANES_INLINE void load_block(const char *w, int64_t row, int64_t ahead, struct row_block *b)
{
	TILE_UNROLL
	for (int j = 0; j < LANES; j++) {
		__builtin_prefetch(w + j * row + ahead, 0, 2);
		b->r[j] = lanes_load(w + j * row);
	}
	lanes_transpose(b->r);
}

/* Multiplies an element of 16 outputs by that of each row of x. */
LANES_INLINE void add_row_products(int rows, const float *a, int64_t ar, struct lanes w,
                                   struct lanes *c)
{
	TILE_UNROLL
	for (int r = 0; r < rows; r++)
		c[r] = lanes_fma(a[r * ar], w, c[r]);
}

LANES_INLINE void add_row_block(int rows, int32_t dtype, const float *a, int64_t ar,
                                const struct row_block *b, struct lanes *c)
{
	const int each = dtype == TESS_F32 ? 1 : 2;
	struct lanes w[2];

	TILE_UNROLL
	for (int i = 0; i < LANES; i++) {
		w[0] = b->r[i];
		if (each == 2)
			lanes_split_pairs(dtype, b->r[i], w);
		for (int k = 0; k < each; k++)
			add_row_products(rows, a + each * i + k, ar, w[k], c);
	}
}

/* Adds elements [from, to) of a block; not unrolled, which would be most of the code. */
LANES_INLINE void add_row_part(int rows, int32_t dtype, const float *a, int64_t ar,
                               const struct row_block *b, int64_t from, int64_t to, struct lanes *c)
{
	struct lanes w[2 * LANES];

	TILE_UNROLL
	for (int i = 0; i < LANES; i++) {
		if (dtype == TESS_F32)
			w[i] = b->r[i];
		else
			lanes_split_pairs(dtype, b->r[i], w + 2 * i);
	}
	for (int64_t k = from; k < to; k++)
		add_row_products(rows, a + k, ar, w[k], c);
}

/* Adds the elements of a step that is shorter than a block. */
LANES_INLINE void add_one_by_one(int rows, int32_t dtype, const float *a, int64_t ar, const char *w,
                                 int64_t row, int64_t len, struct lanes *c)
{
	float one[LANES];

	for (int64_t k = 0; k < len; k++) {
		for (int j = 0; j < LANES; j++)
			one[j] = load_weight_element(w + j * row, dtype, k);
		add_row_products(rows, a + k, ar, lanes_load(one), c);
	}
}

/*
 * Blocks are aligned to cache lines if rows share sets of the cache: the second half of a line
 * would be evicted before its use. The rest before and after them is a part of a block.
 */
TILE_INLINE void run_row_tile(int rows, int32_t dtype, const float *a, int64_t ar, const char *w,
                              int64_t row, int64_t ahead, float *slot, int64_t pitch,
                              const struct sum_step *step)
{
	const int64_t width = dtype == TESS_F32 ? 4 : 2, n = BLOCK / width, len = step->len;
	const int64_t before = row % ALIKE ? 0 : (int64_t)(-(uintptr_t)w % BLOCK) / width;
	struct lanes c[TILE_ROWS];
	struct row_block b;

	slot += step->level * pitch;
	tile_begin(rows, c, slot, step);
	if (len < n)
		add_one_by_one(rows, dtype, a, ar, w, row, len, c);
	for (int64_t k = 0, at, end; n <= len && k < len; k = end) {
		at = k + n <= len ? k : len - n;
		end = !k && before ? before : at + n;
		load_block(w + at * width, row, ahead, &b);
		if (end - k == n)
			add_row_block(rows, dtype, a + at, ar, &b, c);
		else
			add_row_part(rows, dtype, a + at, ar, &b, k - at, end - at, c);
	}
	tile_finish(rows, c, slot, pitch, step);
}

#define TILE(type, dtype, rows) \
	static void type##_##rows(const float *a, int64_t ar, const char *w, int64_t row, \
	                          int64_t ahead, float *slot, int64_t pitch, \
	                          const struct sum_step *step) \
	{ \
		run_row_tile(rows, dtype, a, ar, w, row, ahead, slot, pitch, step); \
	}
#define TILES(type, dtype) \
	TILE(type, dtype, 1) \
	TILE(type, dtype, 2) \
	TILE(type, dtype, 3) \
	TILE(type, dtype, 4) \
	TILE(type, dtype, 5) \
	TILE(type, dtype, 6)
#define ROW(type) \
	{ \
		type##_1, type##_2, type##_3, type##_4, type##_5, type##_6 \
	}

TILES(f32, TESS_F32)
TILES(bf16, TESS_BF16)
TILES(f16, TESS_F16)

row_tile_fn *row_tile_find(int32_t dtype, int rows)
{
	static row_tile_fn *const table[3][TILE_ROWS] = { ROW(f32), ROW(bf16), ROW(f16) };

	return table[dtype == TESS_F32 ? 0 : dtype == TESS_BF16 ? 1 : 2][rows - 1];
}

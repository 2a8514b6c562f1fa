#include "tile.h"

enum { AHEAD = 256 }; /* distance of prefetches in bytes, for rows in place */

/* Runs a tile; after inlining only the pointers vary, and the chains stay in registers. */
TILE_INLINE void run_tile(int rows, int panels, bool packed, int32_t dtype, const float *a,
                          int64_t ar, const char *b, int64_t bk, int64_t bp, const char *ahead,
                          int64_t ahead_k, float *slot, int64_t pitch, const struct sum_step *step)
{
	const int64_t ak = packed ? rows : 1;
	struct lanes c[TILE_ROWS * TILE_WIDEST], w[TILE_WIDEST];
	const int n = rows * panels;

	slot += step->level * pitch;
	tile_begin(n, c, slot, step);
	for (int64_t k = 0; k < step->len; k++, a += ak, b += bk, ahead += ahead_k) {
		TILE_UNROLL
		for (int p = 0; p < panels; p++)
			w[p] = lanes_widen(dtype, b + p * bp);
		TILE_UNROLL
		for (int p = 0; p < panels; p++) {
			if (packed) /* into the second cache, since the first is too small */
				__builtin_prefetch(ahead + p * bp, 0, 2);
			else
				__builtin_prefetch(ahead + p * bp);
		}
		TILE_UNROLL
		for (int r = 0; r < rows; r++) {
			TILE_UNROLL
			for (int p = 0; p < panels; p++)
				c[r * panels + p] = lanes_fma(a[r * ar], w[p], c[r * panels + p]);
		}
	}
	tile_finish(n, c, slot, pitch, step);
}

#define TILE(name, dtype, rows, panels) \
	static void name(const float *a, int64_t ar, const void *b, int64_t bk, int64_t bp, \
	                 float *slot, int64_t pitch, const struct sum_step *step, \
	                 const struct sum_step *end) \
	{ \
		const struct sum_step *first = step; \
		for (; step < end; step++) { \
			const int64_t k = step->at - first->at; \
			const char *w = (const char *)b + k * bk; \
			run_tile(rows, panels, false, dtype, a + k, ar, w, bk, bp, w + AHEAD, bk, \
			         slot, pitch, step); \
		} \
	}
#define PACKED_TILE(name, dtype, rows, panels) \
	static void name(const float *a, const void *b, int64_t bk, int64_t bp, const void *ahead, \
	                 int64_t ahead_k, float *slot, int64_t pitch, const struct sum_step *step) \
	{ \
		run_tile(rows, panels, true, dtype, a, 1, b, bk, bp, ahead, ahead_k, slot, pitch, \
		         step); \
	}
#define TILES_OF(type, dtype, rows, wide) \
	TILE(type##_loose_##rows, dtype, rows, 1) \
	TILE(type##_loose_wide_##rows, dtype, rows, wide) \
	PACKED_TILE(type##_packed_##rows, dtype, rows, 1) \
	PACKED_TILE(type##_packed_wide_##rows, dtype, rows, TILE_WIDE_6)
#define TILES(type, dtype) \
	TILES_OF(type, dtype, 1, TILE_WIDE_1) \
	TILES_OF(type, dtype, 2, TILE_WIDE_3) \
	TILES_OF(type, dtype, 3, TILE_WIDE_3) \
	TILES_OF(type, dtype, 4, TILE_WIDE_6) \
	TILES_OF(type, dtype, 5, TILE_WIDE_6) TILES_OF(type, dtype, 6, TILE_WIDE_6)
#define ROW(type, kind) \
	{ \
		type##_##kind##_1, type##_##kind##_2, type##_##kind##_3, type##_##kind##_4, \
			type##_##kind##_5, type##_##kind##_6 \
	}
#define TABLE(kind) \
	{ \
		{ ROW(f32, kind), ROW(f32, kind##_wide) }, \
			{ ROW(bf16, kind), ROW(bf16, kind##_wide) }, \
		{ \
			ROW(f16, kind), ROW(f16, kind##_wide) \
		} \
	}

TILES(f32, TESS_F32)
TILES(bf16, TESS_BF16)
TILES(f16, TESS_F16)

static int get_type_index(int32_t dtype)
{
	return dtype == TESS_F32 ? 0 : dtype == TESS_BF16 ? 1 : 2;
}

tile_fn *tile_find(int32_t dtype, int rows, bool wide)
{
	static tile_fn *const table[3][2][TILE_ROWS] = TABLE(loose);

	return table[get_type_index(dtype)][wide][rows - 1];
}

packed_tile_fn *tile_find_packed(int32_t dtype, int rows, bool wide)
{
	static packed_tile_fn *const table[3][2][TILE_ROWS] = TABLE(packed);

	return table[get_type_index(dtype)][wide][rows - 1];
}

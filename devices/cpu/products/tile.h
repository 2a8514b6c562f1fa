/*
 * tile.h - the inner loop of LINEAR and ATTENTION: one step of a sum for a tile of rows and panels.
 */
#ifndef TESS_DEVICES_CPU_TILE_H
#define TESS_DEVICES_CPU_TILE_H

#include "lanes.h"

/*
 * TILE_INLINE is for the body of all tiles of a kind: after inlining, their sizes are constants.
 * With a sanitizer it is one function of any size, since all copies would compile for minutes.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TILE_INLINE static
#define TILE_UNROLL
#else
#define TILE_INLINE LANES_INLINE
#endif

/* Unrolls, to keep the chains in registers; not with calls of fmaf. Clang unrolls by itself. */
#if defined(TILE_UNROLL)
#elif defined(__FP_FAST_FMAF)
#define TILE_UNROLL _Pragma("GCC unroll 32")
#else
#define TILE_UNROLL
#endif

enum { TILE_ROWS = 6 };
#if defined(__AVX512F__)
enum { TILE_WIDE_1 = 4, TILE_WIDE_3 = 4, TILE_WIDE_6 = 4 };
#elif defined(__AVX2__) || defined(CPU_NEON)
enum { TILE_WIDE_1 = 4, TILE_WIDE_3 = 2, TILE_WIDE_6 = 1 };
#else
enum { TILE_WIDE_1 = 1, TILE_WIDE_3 = 1, TILE_WIDE_6 = 1 };
#endif
enum { TILE_WIDEST = TILE_WIDE_1 };

/* Returns the panels of a wide tile of these rows: as many as fit in registers. */
static inline int tile_get_wide_panels(int rows)
{
	return rows == 1 ? TILE_WIDE_1 : rows <= 3 ? TILE_WIDE_3 : TILE_WIDE_6;
}

/* Begins a step: n chains from zero, or from the values that the previous step stored. */
LANES_INLINE void tile_begin(int n, struct lanes *c, const float *slot, const struct sum_step *step)
{
	if (step->fresh) {
		TILE_UNROLL
		for (int i = 0; i < n; i++)
			c[i] = lanes_set_zero();
	} else {
		TILE_UNROLL
		for (int i = 0; i < n; i++)
			c[i] = lanes_load(slot + i * LANES);
	}
}

/* Ends a step: merges n chains with the levels below, and stores them. */
LANES_INLINE void tile_finish(int n, struct lanes *c, float *slot, int64_t pitch,
                              const struct sum_step *step)
{
	for (int m = 0; m < step->merge; m++) {
		slot -= pitch;
		TILE_UNROLL
		for (int i = 0; i < n; i++)
			c[i] = lanes_add(lanes_load(slot + i * LANES), c[i]);
	}
	if (step->finish) {
		TILE_UNROLL
		for (int i = 0; i < n; i++)
			c[i] = lanes_add(c[i], lanes_set_zero());
	}
	for (int m = 0; m < step->trees; m++) {
		slot -= pitch;
		TILE_UNROLL
		for (int i = 0; i < n; i++)
			c[i] = lanes_add(lanes_load(slot + i * LANES), c[i]);
	}
	TILE_UNROLL
	for (int i = 0; i < n; i++)
		lanes_store(slot + i * LANES, c[i]);
}

/*
 * Runs the steps [step, end), of which only the last one may complete a node. a: the first step's
 * elements of each row, `ar` floats between rows. b: those of each panel, 16 columns each: `bk`
 * bytes between elements, `bp` between panels. `at` gives the offset of later steps. slot: level 0
 * of the stack, [rows][panels * 16]; `pitch` floats between levels.
 */
typedef void tile_fn(const float *a, int64_t ar, const void *b, int64_t bk, int64_t bp, float *slot,
                     int64_t pitch, const struct sum_step *step, const struct sum_step *end);

/*
 * Runs one step of packed rows, [len][rows], of a tile among others. At each element it prefetches
 * `ahead` of each panel, which then advances by `ahead_k` bytes.
 */
typedef void packed_tile_fn(const float *a, const void *b, int64_t bk, int64_t bp,
                            const void *ahead, int64_t ahead_k, float *slot, int64_t pitch,
                            const struct sum_step *step);

/*
 * Find a tile for 1 <= rows <= TILE_ROWS. It has one panel; if `wide`, tile_get_wide_panels(rows)
 * for rows in place, and TILE_WIDE_6 for packed rows.
 */
#define tile_find CPU_NAME(tile_find)
tile_fn *tile_find(int32_t dtype, int rows, bool wide);
#define tile_find_packed CPU_NAME(tile_find_packed)
packed_tile_fn *tile_find_packed(int32_t dtype, int rows, bool wide);

#endif

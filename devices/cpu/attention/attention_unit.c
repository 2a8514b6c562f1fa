#include "attention_unit.h"

enum { LINE = 64 }; /* bytes of a cache line */
enum { SECOND_LEVEL = 2 }; /* a locality */
enum { AHEAD = 6144 }; /* distance of prefetches in bytes */

/*
 * Multiplies a unit and prefetches line by line, at the end from the next block: processors read
 * ahead within 4 KiB only, and the block of a head is not much longer. A full block ahead is too
 * far: the core drops requests that exceed its buffers.
 */
LANES_INLINE void add_products(int rows, int panels, int32_t dtype, const struct unit_products *x,
                               struct lanes *c)
{
	const int64_t width = dtype == TESS_F32 ? 4 : 2, bk = x->bk;
	const int64_t last = x->len - AHEAD / bk; /* from here on prefetches the next block */
	const char *b = x->b, *ahead = last > 0 ? b + AHEAD / bk * bk : x->next;
	struct lanes w[TILE_WIDEST + 1];

	for (int64_t i = 0; i < x->len; i++, b += bk, ahead += bk) {
		if (i == last)
			ahead = x->next;
		TILE_UNROLL
		for (int64_t at = 0; at < panels * LANES * width; at += LINE)
			__builtin_prefetch(ahead + at, 0, SECOND_LEVEL);
		TILE_UNROLL
		for (int p = 0; p < panels; p++) {
			if (dtype == TESS_F32 || panels == 1)
				w[p] = lanes_widen(dtype, b + p * LANES * width);
			else if (p % 2 == 0)
				lanes_load_bf16_pair(b + p * LANES * width, &w[p]);
		}
		TILE_UNROLL
		for (int r = 0; r < rows; r++) {
			TILE_UNROLL
			for (int p = 0; p < panels; p++)
				c[r * panels + p] =
					lanes_fma(x->a[r * x->ar + i], w[p], c[r * panels + p]);
		}
	}
	if (dtype == TESS_BF16 && panels > 1) {
		TILE_UNROLL
		for (int i = 0; i < rows * panels; i += 2)
			lanes_sort_pair(&c[i]);
	}
}

TILE_INLINE void run_scores(int rows, int panels, int32_t dtype, const struct unit_products *x)
{
	struct lanes c[TILE_ROWS * TILE_WIDEST] = { 0 };

	add_products(rows, panels, dtype, x, c);
	for (int r = 0; r < rows; r++)
		for (int p = 0; p < panels; p++)
			lanes_store(x->out + r * x->pitch + p * LANES,
			            lanes_scale(x->scale, c[r * panels + p]));
}

TILE_INLINE void run_values(int rows, int panels, int32_t dtype, const struct unit_products *x)
{
	struct lanes c[TILE_ROWS * TILE_WIDEST] = { 0 };
	float *slot = x->out + x->step->level * x->pitch;

	add_products(rows, panels, dtype, x, c);
	for (int m = 0; m < x->step->merge; m++) {
		slot -= x->pitch;
		TILE_UNROLL
		for (int i = 0; i < rows * panels; i++)
			c[i] = lanes_add(lanes_load(slot + i * LANES), c[i]);
	}
	for (int i = 0; i < rows * panels; i++)
		lanes_store(slot + i * LANES,
		            x->step->finish ? lanes_add(c[i], lanes_set_zero()) : c[i]);
}

#define UNIT(kind, type, dtype, name, rows, panels) \
	static void kind##_##type##_##name(const struct unit_products *x) \
	{ \
		run_##kind(rows, panels, dtype, x); \
	}
#define UNITS_OF(kind, type, dtype, rows, panels) \
	UNIT(kind, type, dtype, narrow_##rows, rows, 1) \
	UNIT(kind, type, dtype, wide_##rows, rows, panels)
#define UNITS(kind, type, dtype) \
	UNITS_OF(kind, type, dtype, 1, TILE_WIDE_1) \
	UNITS_OF(kind, type, dtype, 2, TILE_WIDE_3) \
	UNITS_OF(kind, type, dtype, 3, TILE_WIDE_3) \
	UNITS_OF(kind, type, dtype, 4, TILE_WIDE_6) \
	UNITS_OF(kind, type, dtype, 5, TILE_WIDE_6) \
	UNITS_OF(kind, type, dtype, 6, TILE_WIDE_6)
#define ROW(name) \
	{ \
		name##_1, name##_2, name##_3, name##_4, name##_5, name##_6 \
	}
#define TABLE(name) \
	{ \
		ROW(name##_narrow), ROW(name##_wide) \
	}

UNITS(scores, f32, TESS_F32)
UNITS(scores, bf16, TESS_BF16)
UNITS(values, f32, TESS_F32)
UNITS(values, bf16, TESS_BF16)

unit_fn *attention_find_unit(int32_t dtype, bool scores, int rows, bool wide)
{
	static unit_fn *const table[2][2][2][TILE_ROWS] = {
		{ TABLE(values_f32), TABLE(values_bf16) },
		{ TABLE(scores_f32), TABLE(scores_bf16) },
	};

	return table[scores][dtype == TESS_BF16][wide][rows - 1];
}

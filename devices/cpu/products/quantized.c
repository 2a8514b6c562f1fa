#include "quantized.h"

#include "pack.h"

enum { AHEAD = 1536, AHEAD_4 = 2048 }; /* prefetch distances in bytes, 8 and 4 bits; measured */
enum { LINE = 4 }; /* elements of 8 bits in a cache line of a panel */
enum { SCALES = 2 * LANES, INFINITE_F16 = 0x7c00 };

/* ---- from rows ------------------------------------------------------------------------------- */

/* Rounds to the nearest integer, ties to even, in -127 to 127: the addition drops the fraction. */
static inline float round_to_integer(float x)
{
	x = x < 127.0f ? x : 127.0f;
	x = x > -127.0f ? x : -127.0f;
	return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* Computes the scales of `len` elements [len][LANES], as f16 and f32; false: one is not finite. */
static bool find_scales(const float *w, int64_t len, uint16_t *scale, float *wide)
{
	int32_t most[LANES];
	bool finite = true;

	pack_find_largest(w, len, most);
	for (int j = 0; j < LANES; j++) {
		scale[j] = tess_f16_round(tess_float((uint32_t)most[j]) / 127.0f);
		wide[j] = tess_f16_load(scale[j]);
		finite = finite && most[j] < INFINITE && scale[j] < INFINITE_F16;
	}
	return finite;
}

/* Quantizes a group of `len` elements [len][LANES] to its scales, then its values. */
static bool quantize_group(const float *w, int64_t len, char *to)
{
	uint16_t scale[LANES];
	float wide[LANES], divisor[LANES];
	bool finite = find_scales(w, len, scale, wide);
	int8_t *q = (int8_t *)to + SCALES;

	memcpy(to, scale, SCALES);
	if (!finite)
		return false;
	for (int j = 0; j < LANES; j++) /* of a scale of 0 all values are */
		divisor[j] = wide[j] > 0 ? wide[j] : tess_float(INFINITE);
	for (int64_t k = 0; k < len; k++, w += LANES, q += LANES) {
		CPU_LANES
		for (int j = 0; j < LANES; j++)
			q[j] = (int8_t)round_to_integer(w[j] / divisor[j]);
	}
	return true;
}

static int64_t count_group_bytes(int64_t len)
{
	return SCALES + len * LANES;
}

void quantize_panels(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	(void)thread;
	pack_groups(arg, lo, hi, quantize_group, count_group_bytes);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Returns the bytes of the 16 scales of a group. */
LANES_INLINE int64_t count_scale_bytes(int32_t dtype)
{
	return dtype == TESS_Q8 ? SCALES : LANES;
}

LANES_INLINE struct lanes load_scales(int32_t dtype, const char *group)
{
	return dtype == TESS_Q8 ? lanes_load_f16(group) : lanes_load_e8m0(group);
}

void quantized_widen(int32_t dtype, const struct sum_step *s, const char *panel, float *to)
{
	const char *group = panel + quantized_get_offset(dtype, s);

	for (int64_t k = 0; k < s->len;) {
		int64_t end = s->len - k < GROUP ? s->len : k + GROUP;
		struct lanes scale = load_scales(dtype, group);

		group += count_scale_bytes(dtype);
		for (; dtype == TESS_Q8 && k < end; k++, group += LANES, to += LANES)
			lanes_store(to, lanes_multiply(lanes_load_i8(group), scale));
		for (; k < end; group += 4 * LANES)
			for (int i = 0; i < 8 && k < end; i++, k++, to += LANES)
				lanes_store(to, lanes_multiply(lanes_load_e2m1(group, i), scale));
	}
}

/* Multiplies an element of each row by w, one element of each panel. */
LANES_INLINE void multiply_element(int rows, int panels, const float *a, int64_t ar,
                                   const struct lanes *w, struct lanes *c)
{
	TILE_UNROLL
	for (int r = 0; r < rows; r++) {
		TILE_UNROLL
		for (int p = 0; p < panels; p++)
			c[r * panels + p] = lanes_fma_from(&a[r * ar], w[p], c[r * panels + p]);
	}
}

/* Multiplies `n` elements of 8 bits, of one group. */
LANES_INLINE void multiply_some_bytes(int rows, int panels, const float *a, int64_t ar, int64_t ak,
                                      const char *b, int64_t bp, int n, const struct lanes *scale,
                                      struct lanes *c)
{
	struct lanes w[TILE_WIDEST];

	TILE_UNROLL
	for (int i = 0; i < n; i++, a += ak, b += LANES) {
		TILE_UNROLL
		for (int p = 0; p < panels; p++)
			w[p] = lanes_multiply(lanes_load_i8(b + p * bp), scale[p]);
		multiply_element(rows, panels, a, ar, w, c);
	}
}

/* Prefetches a cache line of each panel. */
LANES_INLINE void prefetch_panels(int panels, const char *b, int64_t bp)
{
	TILE_UNROLL
	for (int p = 0; p < panels; p++)
		__builtin_prefetch(b + p * bp);
}

/* Multiplies 8-bit elements of one group; chains and scales stay in registers after inlining. */
LANES_INLINE void multiply_bytes(int rows, int panels, const float *a, int64_t ar, int64_t ak,
                                 const char *b, int64_t bp, int64_t len, struct lanes *c)
{
	struct lanes scale[TILE_WIDEST];
	int64_t k = 0;

	prefetch_panels(panels, b + AHEAD, bp);
	TILE_UNROLL
	for (int p = 0; p < panels; p++)
		scale[p] = lanes_load_f16(b + p * bp);
	b += SCALES;
	for (; k + LINE <= len; k += LINE, b += LINE * LANES) {
		prefetch_panels(panels, b + AHEAD, bp);
		multiply_some_bytes(rows, panels, a + k * ak, ar, ak, b, bp, LINE, scale, c);
	}
	for (; k < len; k++, b += LANES)
		multiply_some_bytes(rows, panels, a + k * ak, ar, ak, b, bp, 1, scale, c);
}

/* Multiplies 4-bit elements of one group; scale NULL: by their codes' values alone. */
LANES_INLINE void multiply_codes(int rows, int panels, const float *a, int64_t ar, int64_t ak,
                                 const char *b, int64_t bp, int64_t len, const struct lanes *scale,
                                 struct lanes *c)
{
	struct lanes w[TILE_WIDEST];

	for (int64_t k = 0; k < len; k += 8, b += 4 * LANES) { /* a cache line */
		prefetch_panels(panels, b + AHEAD_4, bp);
		TILE_UNROLL
		for (int i = 0; i < 8; i++, a += ak) {
			if (k + i == len)
				break;
			TILE_UNROLL
			for (int p = 0; p < panels; p++) {
				w[p] = lanes_load_e2m1(b + p * bp, i);
				if (scale)
					w[p] = lanes_multiply(w[p], scale[p]);
			}
			multiply_element(rows, panels, a, ar, w, c);
		}
	}
}

/* Tells whether all n elements are 0, or between powers of two. */
LANES_INLINE bool are_moderate(const float *x, int n, int lowest, int highest)
{
	const uint32_t low = (uint32_t)(127 + lowest) << 24, high = (uint32_t)(127 + highest) << 24;
	uint32_t least = UINT32_MAX, most = 0;

	CPU_LANES
	for (int i = 0; i < n; i++) {
		uint32_t bits = tess_bits(x[i]) << 1; /* without the sign; 0 - 1 is the largest */

		least = bits - 1 < least ? bits - 1 : least;
		most = bits > most ? bits : most;
	}
	return least >= low - 1 && most <= high;
}

/*
 * Multiplies 4-bit elements of one group if its elements and scales are moderate: the chains are
 * divided by the scales, which are powers of two, not each weight multiplied. Sums round alike with
 * and without scales: all values are multiples of 2^-124 and below 2^124 in both cases, so none is
 * subnormal or infinite.
 */
LANES_INLINE bool multiply_moderate(int rows, int panels, const float *a, int64_t ar, const char *b,
                                    int64_t bp, struct lanes *c)
{
	struct lanes scale[TILE_WIDEST], inverse[TILE_WIDEST], most = lanes_set_zero();
	bool moderate;

	TILE_UNROLL
	for (int p = 0; p < panels; p++) {
		scale[p] = lanes_load_e8m0(b + p * bp);
		inverse[p] = lanes_invert_power(scale[p]);
		most = lanes_max(most, lanes_max(scale[p], inverse[p]));
	}
	moderate = lanes_are_at_most(most, 0x1p20f);
	TILE_UNROLL
	for (int r = 0; r < rows; r++)
		moderate &= are_moderate(a + r * ar, GROUP, -60, 60);
	if (!moderate)
		return false;
	TILE_UNROLL
	for (int i = 0; i < rows * panels; i++)
		c[i] = lanes_multiply(c[i], inverse[i % panels]);
	multiply_codes(rows, panels, a, ar, 1, b + LANES, bp, GROUP, NULL, c);
	TILE_UNROLL
	for (int i = 0; i < rows * panels; i++)
		c[i] = lanes_multiply(c[i], scale[i % panels]);
	return true;
}

/* Multiplies 4-bit elements of one group. */
LANES_INLINE void multiply_nibbles(int rows, int panels, const float *a, int64_t ar, int64_t ak,
                                   const char *b, int64_t bp, int64_t len, struct lanes *c)
{
	struct lanes scale[TILE_WIDEST];

	TILE_UNROLL
	for (int p = 0; p < panels; p++)
		scale[p] = lanes_load_e8m0(b + p * bp);
	multiply_codes(rows, panels, a, ar, ak, b + LANES, bp, len, scale, c);
}

LANES_INLINE void multiply_scaled(int32_t dtype, int rows, int panels, const float *a, int64_t ar,
                                  int64_t ak, const char *b, int64_t bp, int64_t len,
                                  struct lanes *c)
{
	if (dtype == TESS_Q8)
		multiply_bytes(rows, panels, a, ar, ak, b, bp, len, c);
	else
		multiply_nibbles(rows, panels, a, ar, ak, b, bp, len, c);
}

TILE_INLINE void run_quantized_tile(int32_t dtype, int rows, int panels, const float *a, int64_t ar,
                                    int64_t ak, const char *b, int64_t bp, float *slot,
                                    int64_t pitch, const struct sum_step *step)
{
	const int64_t group = count_scale_bytes(dtype) + GROUP * LANES / (dtype == TESS_Q8 ? 1 : 2);
	struct lanes c[TILE_ROWS * TILE_WIDEST];
	const int n = rows * panels;
	int64_t k = 0;

	slot += step->level * pitch;
	tile_begin(n, c, slot, step);
	if (dtype == TESS_MXFP4 && rows <= 2 && ak == 1 &&
	    (step->fresh || are_moderate(slot, n * LANES, -80, 80)))
		for (; k + GROUP <= step->len; k += GROUP, b += group)
			if (!multiply_moderate(rows, panels, a + k, ar, b, bp, c))
				break;
	for (; k + GROUP <= step->len; k += GROUP, b += group)
		multiply_scaled(dtype, rows, panels, a + k * ak, ar, ak, b, bp, GROUP, c);
	if (k < step->len)
		multiply_scaled(dtype, rows, panels, a + k * ak, ar, ak, b, bp, step->len - k, c);
	tile_finish(n, c, slot, pitch, step);
}

#define TILE(name, dtype, rows, panels, ar, ak) \
	static void name(const float *a, int64_t apart, const void *b, int64_t bk, int64_t bp, \
	                 float *slot, int64_t pitch, const struct sum_step *step, \
	                 const struct sum_step *end) \
	{ \
		const struct sum_step *first = step; \
		(void)apart, (void)bk; \
		for (; step < end; step++) { \
			const int64_t k = step->at - first->at; \
			const char *w = (const char *)b + quantized_get_offset(dtype, step) - \
			                quantized_get_offset(dtype, first); \
			run_quantized_tile(dtype, rows, panels, a + k * ak, ar, ak, w, bp, slot, \
			                   pitch, step); \
		} \
	}
#define TILES_OF(type, dtype, rows, wide) \
	TILE(type##_##rows, dtype, rows, 1, apart, 1) \
	TILE(type##_wide_##rows, dtype, rows, wide, apart, 1) \
	TILE(type##_packed_##rows, dtype, rows, 1, 1, rows) \
	TILE(type##_packed_wide_##rows, dtype, rows, TILE_WIDE_6, 1, rows)
#define TILES(type, dtype) \
	TILES_OF(type, dtype, 1, TILE_WIDE_1) \
	TILES_OF(type, dtype, 2, TILE_WIDE_3) \
	TILES_OF(type, dtype, 3, TILE_WIDE_3) \
	TILES_OF(type, dtype, 4, TILE_WIDE_6) \
	TILES_OF(type, dtype, 5, TILE_WIDE_6) \
	TILES_OF(type, dtype, 6, TILE_WIDE_6)

TILES(q8, TESS_Q8)
TILES(mxfp4, TESS_MXFP4)

#define ROW(kind) \
	{ \
		kind##_1, kind##_2, kind##_3, kind##_4, kind##_5, kind##_6 \
	}
#define TABLE(type) \
	{ \
		{ ROW(type), ROW(type##_wide) }, \
		{ \
			ROW(type##_packed), ROW(type##_packed_wide) \
		} \
	}

tile_fn *quantized_find_tile(int32_t dtype, bool packed, int rows, bool wide)
{
	static tile_fn *const table[2][2][2][TILE_ROWS] = { TABLE(q8), TABLE(mxfp4) };

	return table[dtype == TESS_MXFP4][packed][wide][rows - 1];
}

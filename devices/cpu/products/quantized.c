#include "quantized.h"

#include "pack.h"

enum { AHEAD = 512 }; /* distance of prefetches in bytes; measured */
enum { SCALES = 2 * LANES, INFINITE = 0x7f800000, INFINITE_F16 = 0x7c00 };

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

	/* no initializer: gcc's ASan does not align what AVX-512 would clear at once (PR 110027) */
	for (int j = 0; j < LANES; j++)
		most[j] = 0;
	for (int64_t k = 0; k < len; k++, w += LANES) {
		CPU_LANES
		for (int j = 0; j < LANES; j++) {
			int32_t bits = (int32_t)(tess_bits(w[j]) & 0x7fffffff);

			/* without signs, bits have the order of floats */
			most[j] = bits > most[j] ? bits : most[j];
		}
	}
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

void quantize_panels(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct pack *p = arg;
	int64_t k = p->rows->shape[1], n;
	float w[GROUP * LANES];

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		char *to = (char *)p->panels->data + i * p->panels->stride[0];

		for (int64_t at = 0; at < k; at += n, to += SCALES + n * LANES) {
			n = k - at < GROUP ? k - at : GROUP;
			pack_widened(p->rows, i * LANES, at, n, w);
			p->refused[i] = p->refused[i] || !quantize_group(w, n, to);
		}
	}
}

/* ---- products -------------------------------------------------------------------------------- */

void quantized_widen(const struct sum_step *s, const char *groups, float *to)
{
	for (int64_t k = 0; k < s->len;) {
		int64_t end = s->len - k < GROUP ? s->len : k + GROUP;
		struct lanes scale = lanes_load_f16(groups);

		for (groups += SCALES; k < end; k++, groups += LANES, to += LANES)
			lanes_store(to, lanes_multiply(lanes_load_i8(groups), scale));
	}
}

/* Multiplies elements of one group; chains and scales stay in registers after inlining. */
LANES_INLINE void multiply_scaled(int rows, int panels, const float *a, int64_t ar, int64_t ak,
                                  const char *b, int64_t bp, int64_t len, struct lanes *c)
{
	struct lanes scale[TILE_WIDEST], w[TILE_WIDEST];

	TILE_UNROLL
	for (int p = 0; p < panels; p++)
		scale[p] = lanes_load_f16(b + p * bp);
	b += SCALES;
	for (int64_t k = 0; k < len; k++, a += ak, b += LANES) {
		if (k % 4 == 0) { /* a cache line */
			TILE_UNROLL
			for (int p = 0; p < panels; p++)
				__builtin_prefetch(b + p * bp + AHEAD);
		}
		TILE_UNROLL
		for (int p = 0; p < panels; p++)
			w[p] = lanes_multiply(lanes_load_i8(b + p * bp), scale[p]);
		TILE_UNROLL
		for (int r = 0; r < rows; r++) {
			TILE_UNROLL
			for (int p = 0; p < panels; p++)
				c[r * panels + p] = lanes_fma(a[r * ar], w[p], c[r * panels + p]);
		}
	}
}

TILE_INLINE void run_quantized_tile(int rows, int panels, const float *a, int64_t ar, int64_t ak,
                                    const char *b, int64_t bp, float *slot, int64_t pitch,
                                    const struct sum_step *step)
{
	struct lanes c[TILE_ROWS * TILE_WIDEST];
	const int n = rows * panels;
	int64_t k = 0;

	slot += step->level * pitch;
	tile_begin(n, c, slot, step);
	for (; k + GROUP <= step->len; k += GROUP, b += SCALES + GROUP * LANES)
		multiply_scaled(rows, panels, a + k * ak, ar, ak, b, bp, GROUP, c);
	if (k < step->len)
		multiply_scaled(rows, panels, a + k * ak, ar, ak, b, bp, step->len - k, c);
	tile_finish(n, c, slot, pitch, step);
}

#define TILE(name, rows, panels, ar, ak) \
	static void name(const float *a, int64_t apart, const void *b, int64_t bk, int64_t bp, \
	                 float *slot, int64_t pitch, const struct sum_step *step, \
	                 const struct sum_step *end) \
	{ \
		const struct sum_step *first = step; \
		(void)apart, (void)bk; \
		for (; step < end; step++) { \
			const int64_t k = step->at - first->at; \
			const char *w = (const char *)b + quantized_get_offset(step) - \
			                quantized_get_offset(first); \
			run_quantized_tile(rows, panels, a + k * ak, ar, ak, w, bp, slot, pitch, \
			                   step); \
		} \
	}
#define TILES(rows, wide) \
	TILE(run_##rows, rows, 1, apart, 1) \
	TILE(run_wide_##rows, rows, wide, apart, 1) \
	TILE(run_packed_##rows, rows, 1, 1, rows) \
	TILE(run_packed_wide_##rows, rows, TILE_WIDE_6, 1, rows)

TILES(1, TILE_WIDE_1)
TILES(2, TILE_WIDE_3)
TILES(3, TILE_WIDE_3)
TILES(4, TILE_WIDE_6)
TILES(5, TILE_WIDE_6)
TILES(6, TILE_WIDE_6)

#define ROW(kind) \
	{ \
		kind##_1, kind##_2, kind##_3, kind##_4, kind##_5, kind##_6 \
	}

tile_fn *quantized_find_tile(bool packed, int rows, bool wide)
{
	static tile_fn *const table[2][2][TILE_ROWS] = {
		{ ROW(run), ROW(run_wide) },
		{ ROW(run_packed), ROW(run_packed_wide) },
	};

	return table[packed][wide][rows - 1];
}

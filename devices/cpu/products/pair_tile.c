/*
 * pair_tile.c - the inner loop of products of bf16. It is compiled once more than other kernels,
 * for processors with the instruction, which computes in each lane
 *
 *	fma(x[2i], w[2i], fma(x[2i + 1], w[2i + 1], c))
 *
 * rounded to nearest; it reads denormals as zeros, and flushes results that are denormal after
 * rounding. The other kernels use two FMA.
 */
#include "pairs.h"

enum { AHEAD = 256 }; /* distance of prefetches in bytes, if read once */

#if defined(__AVX512BF16__)
struct pairs { /* pairs of 16 columns */
	__m512i v;
};

LANES_INLINE struct pairs load_pairs(const char *w)
{
	const __m512i order =
		_mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
	                         7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

	return (struct pairs){ _mm512_permutexvar_epi16(order, _mm512_loadu_si512(w)) };
}

/* Loads a last element, paired with 0. */
LANES_INLINE struct pairs load_last(const char *w)
{
	return (struct pairs){ _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)w)) };
}

LANES_INLINE struct pairs load_pair_words(const char *w)
{
	return (struct pairs){ _mm512_loadu_si512(w) };
}

LANES_INLINE struct lanes multiply_pairs(uint32_t x, struct pairs w, struct lanes c)
{
	return (struct lanes){ _mm512_dpbf16_ps(c.v, (__m512bh)_mm512_set1_epi32((int)x),
		                                (__m512bh)w.v) };
}

LANES_INLINE uint32_t start_flushing(struct lanes *c, int n)
{
	(void)c, (void)n;
	return 0;
}

LANES_INLINE void stop_flushing(uint32_t saved, struct lanes *c, int n)
{
	(void)saved, (void)c, (void)n;
}

#else
struct pairs { /* a last element is paired with 0 */
	struct lanes even, odd;
};

#if defined(__AVX2__)
enum { FLUSH = 0x8040 }; /* bits of MXCSR that flush like the instruction */
#if defined(__AVX512F__)
#define HOLD(c) __asm__ volatile("" : "+v"((c).v))
#else
#define HOLD(c) __asm__ volatile("" : "+x"((c).lo), "+x"((c).hi))
#endif

LANES_INLINE struct pairs load_pairs(const char *w)
{
	return (struct pairs){ lanes_load_bf16(w), lanes_load_bf16(w + PAIR_BYTES / 2) };
}

LANES_INLINE struct pairs load_last(const char *w)
{
	return (struct pairs){ lanes_load_bf16(w), lanes_set_zero() };
}

LANES_INLINE struct pairs load_pair_words(const char *w)
{
	struct lanes half[2];

	lanes_split_pairs(TESS_BF16, lanes_load(w), half);
	return (struct pairs){ half[0], half[1] };
}

LANES_INLINE struct lanes multiply_pairs(uint32_t x, struct pairs w, struct lanes c)
{
	c = lanes_fma(tess_float(x & 0xffff0000), w.odd, c);
	return lanes_fma(tess_float(x << 16), w.even, c);
}

/* Start and stop flushing; sums stay between them, since both use c. */
LANES_INLINE uint32_t start_flushing(struct lanes *c, int n)
{
	uint32_t saved = _mm_getcsr();

	_mm_setcsr(saved | FLUSH);
	TILE_UNROLL
	for (int i = 0; i < n; i++)
		HOLD(c[i]);
	return saved;
}

LANES_INLINE void stop_flushing(uint32_t saved, struct lanes *c, int n)
{
	TILE_UNROLL
	for (int i = 0; i < n; i++)
		HOLD(c[i]);
	_mm_setcsr(saved);
}

#else
#include <float.h>
#include <math.h>

static inline float flush_denormal(float x)
{
	uint32_t u = tess_bits(x);

	return u & 0x7f800000 ? x : tess_float(u & 0x80000000);
}

/* Returns x * w + c, flushed, for operands that are not denormal. */
static inline float multiply_flushed(float x, float w, float c)
{
	float y = fmaf(x, w, c);

	if (!(fabsf(y) <= FLT_MIN))
		return y;
	/* a denormal, or a result that was rounded up to FLT_MIN with fewer bits */
	if (fabsf(y) < FLT_MIN || fabsf(fmaf(x * 0x1p64f, w, c * 0x1p64f)) < FLT_MIN * 0x1p64f)
		return copysignf(0, y);
	return y;
}

LANES_INLINE struct lanes load_flushed(const char *w)
{
	float x[LANES];
	uint16_t h[LANES];

	memcpy(h, w, sizeof h);
	for (int j = 0; j < LANES; j++)
		x[j] = flush_denormal(tess_bf16_load(h[j]));
	return lanes_load(x);
}

LANES_INLINE struct pairs load_pairs(const char *w)
{
	return (struct pairs){ load_flushed(w), load_flushed(w + PAIR_BYTES / 2) };
}

LANES_INLINE struct pairs load_last(const char *w)
{
	return (struct pairs){ load_flushed(w), lanes_set_zero() };
}

LANES_INLINE struct pairs load_pair_words(const char *w)
{
	float even[LANES], odd[LANES];
	uint32_t word[LANES];

	memcpy(word, w, sizeof word);
	for (int j = 0; j < LANES; j++) {
		even[j] = flush_denormal(tess_float(word[j] << 16));
		odd[j] = flush_denormal(tess_float(word[j] & 0xffff0000));
	}
	return (struct pairs){ lanes_load(even), lanes_load(odd) };
}

LANES_INLINE struct lanes multiply_pairs(uint32_t x, struct pairs w, struct lanes c)
{
	float x1 = flush_denormal(tess_float(x & 0xffff0000));
	float x0 = flush_denormal(tess_float(x << 16));
	float even[LANES], odd[LANES], y[LANES];

	lanes_store(even, w.even);
	lanes_store(odd, w.odd);
	lanes_store(y, c);
	for (int j = 0; j < LANES; j++)
		y[j] = multiply_flushed(x0, even[j], multiply_flushed(x1, odd[j], y[j]));
	return lanes_load(y);
}

LANES_INLINE uint32_t start_flushing(struct lanes *c, int n)
{
	(void)c, (void)n;
	return 0;
}

LANES_INLINE void stop_flushing(uint32_t saved, struct lanes *c, int n)
{
	(void)saved, (void)c, (void)n;
}
#endif
#endif

LANES_INLINE void multiply_tile_pairs(int rows, int panels, const uint32_t *x,
                                      const struct pairs *w, struct lanes *c)
{
	TILE_UNROLL
	for (int r = 0; r < rows; r++) {
		TILE_UNROLL
		for (int p = 0; p < panels; p++)
			c[r * panels + p] = multiply_pairs(x[r], w[p], c[r * panels + p]);
	}
}

TILE_INLINE void run_pair_tile(int kind, int rows, int panels, const uint32_t *x, const char *w,
                               int64_t bp, const char *ahead, int64_t ahead_k, float *slot,
                               int64_t pitch, const struct sum_step *step)
{
	const int n = rows * panels;
	struct lanes c[TILE_ROWS * PAIRS_WIDE];
	struct pairs b[PAIRS_WIDE];
	uint32_t saved;

	slot += step->level * pitch;
	tile_begin(n, c, slot, step);
	saved = start_flushing(c, n);
	for (int64_t k = 0; k < step->len / 2; k++, x += rows, w += PAIR_BYTES, ahead += ahead_k) {
		TILE_UNROLL
		for (int p = 0; p < panels; p++) {
			b[p] = kind == PAIRS_FETCHED ? load_pair_words(w + p * bp)
			                             : load_pairs(w + p * bp);
			if (kind == PAIRS_AMONG)
				__builtin_prefetch(ahead + p * bp, 0, 2);
			else if (kind == PAIRS_ALONE)
				__builtin_prefetch(w + p * bp + AHEAD);
		}
		multiply_tile_pairs(rows, panels, x, b, c);
	}
	if (step->len % 2) {
		TILE_UNROLL
		for (int p = 0; p < panels; p++)
			b[p] = kind == PAIRS_FETCHED ? load_pair_words(w + p * bp)
			                             : load_last(w + p * bp);
		multiply_tile_pairs(rows, panels, x, b, c);
	}
	stop_flushing(saved, c, n);
	tile_finish(n, c, slot, pitch, step);
}

#define TILE(name, kind, rows, panels) \
	static void name(const uint32_t *x, const void *w, int64_t bp, const void *ahead, \
	                 int64_t ahead_k, float *slot, int64_t pitch, const struct sum_step *step) \
	{ \
		run_pair_tile(kind, rows, panels, x, w, bp, ahead, ahead_k, slot, pitch, step); \
	}
#define TILES(rows) \
	TILE(run_alone_##rows, PAIRS_ALONE, rows, 1) \
	TILE(run_alone_wide_##rows, PAIRS_ALONE, rows, PAIRS_WIDE) \
	TILE(run_among_##rows, PAIRS_AMONG, rows, 1) \
	TILE(run_among_wide_##rows, PAIRS_AMONG, rows, PAIRS_WIDE) \
	TILE(run_fetched_##rows, PAIRS_FETCHED, rows, 1) \
	TILE(run_fetched_wide_##rows, PAIRS_FETCHED, rows, PAIRS_WIDE)

TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)

#define ROW(kind) \
	{ \
		kind##_1, kind##_2, kind##_3, kind##_4, kind##_5, kind##_6 \
	}

const struct pair_tiles CPU_NAME(pair_tiles) = { {
	{ ROW(run_alone), ROW(run_alone_wide) },
	{ ROW(run_among), ROW(run_among_wide) },
	{ ROW(run_fetched), ROW(run_fetched_wide) },
} };

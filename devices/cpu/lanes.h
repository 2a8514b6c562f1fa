/*
 * lanes.h - sixteen floats at once, by the instruction set that the file is compiled for. A lane is an
 * output, never a term of a sum, so all of these give the same bits.
 */
#ifndef TESS_CPU_LANES_H
#define TESS_CPU_LANES_H

#include "cpu.h"

#define LANES_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>

struct lanes { __m512 v; };

LANES_INLINE struct lanes lanes_zero(void)
{
	return (struct lanes){ _mm512_setzero_ps() };
}

LANES_INLINE struct lanes lanes_load(const void *p)
{
	return (struct lanes){ _mm512_loadu_ps(p) };
}

LANES_INLINE void lanes_store(float *p, struct lanes x)
{
	_mm512_storeu_ps(p, x.v);
}

LANES_INLINE struct lanes lanes_add(struct lanes x, struct lanes y)
{
	return (struct lanes){ _mm512_add_ps(x.v, y.v) };
}

/* a * x + y, rounded once */
LANES_INLINE struct lanes lanes_fma(float a, struct lanes x, struct lanes y)
{
	return (struct lanes){ _mm512_fmadd_ps(_mm512_set1_ps(a), x.v, y.v) };
}

LANES_INLINE struct lanes lanes_bf16(const void *p)
{
	__m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));

	return (struct lanes){ _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)) };
}

LANES_INLINE struct lanes lanes_f16(const void *p)
{
	return (struct lanes){ _mm512_cvtph_ps(_mm256_loadu_si256(p)) };
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

struct lanes { __m256 lo, hi; };

LANES_INLINE struct lanes lanes_zero(void)
{
	return (struct lanes){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}

LANES_INLINE struct lanes lanes_load(const void *p)
{
	return (struct lanes){ _mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8) };
}

LANES_INLINE void lanes_store(float *p, struct lanes x)
{
	_mm256_storeu_ps(p, x.lo);
	_mm256_storeu_ps(p + 8, x.hi);
}

LANES_INLINE struct lanes lanes_add(struct lanes x, struct lanes y)
{
	return (struct lanes){ _mm256_add_ps(x.lo, y.lo), _mm256_add_ps(x.hi, y.hi) };
}

/* a * x + y, rounded once */
LANES_INLINE struct lanes lanes_fma(float a, struct lanes x, struct lanes y)
{
	__m256 all = _mm256_set1_ps(a);

	return (struct lanes){ _mm256_fmadd_ps(all, x.lo, y.lo), _mm256_fmadd_ps(all, x.hi, y.hi) };
}

LANES_INLINE __m256 lanes_bf16_half(const void *p)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

LANES_INLINE struct lanes lanes_bf16(const void *p)
{
	return (struct lanes){ lanes_bf16_half(p), lanes_bf16_half((const char *)p + 16) };
}

LANES_INLINE struct lanes lanes_f16(const void *p)
{
	return (struct lanes){ _mm256_cvtph_ps(_mm_loadu_si128(p)),
	                       _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const char *)p + 16))) };
}

#else
#include <math.h>

struct lanes { float v[LANES]; };

LANES_INLINE struct lanes lanes_zero(void)
{
	return (struct lanes){ { 0 } };
}

LANES_INLINE struct lanes lanes_load(const void *p)
{
	struct lanes x;

	memcpy(x.v, p, sizeof x.v);
	return x;
}

LANES_INLINE void lanes_store(float *p, struct lanes x)
{
	memcpy(p, x.v, sizeof x.v);
}

LANES_INLINE struct lanes lanes_add(struct lanes x, struct lanes y)
{
	for (int i = 0; i < LANES; i++)
		x.v[i] = x.v[i] + y.v[i];
	return x;
}

/* a * x + y, rounded once */
LANES_INLINE struct lanes lanes_fma(float a, struct lanes x, struct lanes y)
{
	for (int i = 0; i < LANES; i++)
		y.v[i] = fmaf(a, x.v[i], y.v[i]);
	return y;
}

LANES_INLINE struct lanes lanes_bf16(const void *p)
{
	struct lanes x;

	for (int i = 0; i < LANES; i++)
		x.v[i] = weight_at(p, TESS_BF16, i);
	return x;
}

LANES_INLINE struct lanes lanes_f16(const void *p)
{
	struct lanes x;

	for (int i = 0; i < LANES; i++)
		x.v[i] = weight_at(p, TESS_F16, i);
	return x;
}
#endif

LANES_INLINE struct lanes lanes_widen(int32_t dtype, const void *p)
{
	return dtype == TESS_F32 ? lanes_load(p) : dtype == TESS_BF16 ? lanes_bf16(p) : lanes_f16(p);
}

#endif

/*
 * lanes.h - vectors of 16 floats, for the instruction set that the file is compiled for. A lane is
 * an output, never a term of a sum, so all instruction sets give the same bits.
 */
#ifndef TESS_DEVICES_CPU_LANES_H
#define TESS_DEVICES_CPU_LANES_H

#include "cpu.h"

#define LANES_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>

struct lanes {
	__m512 v;
};

LANES_INLINE struct lanes lanes_set_zero(void)
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

LANES_INLINE struct lanes lanes_scale(float a, struct lanes x)
{
	return (struct lanes){ _mm512_mul_ps(_mm512_set1_ps(a), x.v) };
}

/* a * x + y, rounded once */
LANES_INLINE struct lanes lanes_fma(float a, struct lanes x, struct lanes y)
{
	return (struct lanes){ _mm512_fmadd_ps(_mm512_set1_ps(a), x.v, y.v) };
}

/* *a * x + y, rounded once. The load copies *a to all lanes, so units that look up stay free. */
#define LANES_FMA_FROM
LANES_INLINE struct lanes lanes_fma_from(const float *a, struct lanes x, struct lanes y)
{
	__asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(y.v) : "v"(x.v), "m"(*a));
	return y;
}

LANES_INLINE struct lanes lanes_load_bf16(const void *p)
{
	__m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));

	return (struct lanes){ _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)) };
}

LANES_INLINE struct lanes lanes_load_f16(const void *p)
{
	return (struct lanes){ _mm512_cvtph_ps(_mm256_loadu_si256(p)) };
}

/* 32 elements, those at even and those at odd places: cheaper than two of lanes_load_bf16. */
LANES_INLINE void lanes_load_bf16_pair(const void *p, struct lanes x[2])
{
	__m512i both = _mm512_loadu_si512(p);

	x[0].v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
	x[1].v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-0x10000)));
}

/* Puts what lanes_load_bf16_pair has loaded in order. */
LANES_INLINE void lanes_sort_pair(struct lanes x[2])
{
	const __m512i lo =
		_mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
	const __m512i hi = _mm512_add_epi32(lo, _mm512_set1_epi32(8));
	__m512 even = x[0].v;

	x[0].v = _mm512_permutex2var_ps(even, lo, x[1].v);
	x[1].v = _mm512_permutex2var_ps(even, hi, x[1].v);
}

LANES_INLINE struct lanes lanes_load_i8(const void *p)
{
	return (struct lanes){ _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))) };
}

/* 2^(b - 127) of 16 bytes; 2^-127 is subnormal. */
LANES_INLINE struct lanes lanes_load_e8m0(const void *p)
{
	__m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(p)), 23);

	return (struct lanes){ _mm512_castsi512_ps(
		_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000))) };
}

/* The values of code i, of E2M1, of 16 words of 8 codes. */
LANES_INLINE struct lanes lanes_load_e2m1(const void *p, int i)
{
	const __m512 value = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
	                                    -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
	__m512i code = _mm512_srli_epi32(_mm512_loadu_si512(p), 4 * (unsigned)i);

	return (struct lanes){ _mm512_permutexvar_ps(code, value) }; /* by the low 4 bits */
}

LANES_INLINE struct lanes lanes_multiply(struct lanes x, struct lanes y)
{
	return (struct lanes){ _mm512_mul_ps(x.v, y.v) };
}

/* 1 / x of positive powers of two; exact. */
LANES_INLINE struct lanes lanes_invert_power(struct lanes x)
{
	return (struct lanes){ _mm512_castsi512_ps(
		_mm512_sub_epi32(_mm512_set1_epi32(254 << 23), _mm512_castps_si512(x.v))) };
}

LANES_INLINE struct lanes lanes_max(struct lanes x, struct lanes y)
{
	return (struct lanes){ _mm512_max_ps(x.v, y.v) };
}

LANES_INLINE bool lanes_are_at_most(struct lanes x, float most)
{
	return !_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(most), _CMP_NLE_UQ);
}

/* Stores the upper halves of all lanes: the inverse of lanes_load_bf16. */
LANES_INLINE void lanes_store_upper(void *p, struct lanes x)
{
	__m512i upper = _mm512_srli_epi32(_mm512_castps_si512(x.v), 16);

	_mm256_storeu_si256(p, _mm512_cvtepi32_epi16(upper));
}

/* The elements of 2 bytes at even, and those at odd places: the two halves of each lane. */
LANES_INLINE void lanes_split_pairs(int32_t dtype, struct lanes x, struct lanes out[2])
{
	__m512i both = _mm512_castps_si512(x.v);

	if (dtype == TESS_BF16) {
		out[0].v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
		out[1].v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-0x10000)));
	} else {
		out[0].v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
		out[1].v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
	}
}

/* Lane j of r[i] goes to lane i of r[j]. */
LANES_INLINE void lanes_transpose(struct lanes r[LANES])
{
	__m512 t[LANES], u[LANES];

	for (int i = 0; i < LANES; i += 2) {
		t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
		t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
	}
	/* u[i + c]: rows i to i + 3 of the columns c, 4 + c, ... */
	for (int i = 0; i < LANES; i += 4) {
		u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
		u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
		u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
		u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
	}
	for (int c = 0; c < 4; c++) {
		__m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x44);
		__m512 b = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xee);
		__m512 d = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x44);
		__m512 e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xee);

		r[c].v = _mm512_shuffle_f32x4(a, d, 0x88);
		r[4 + c].v = _mm512_shuffle_f32x4(a, d, 0xdd);
		r[8 + c].v = _mm512_shuffle_f32x4(b, e, 0x88);
		r[12 + c].v = _mm512_shuffle_f32x4(b, e, 0xdd);
	}
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

struct lanes {
	__m256 lo, hi;
};

LANES_INLINE struct lanes lanes_set_zero(void)
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

LANES_INLINE struct lanes lanes_scale(float a, struct lanes x)
{
	__m256 all = _mm256_set1_ps(a);

	return (struct lanes){ _mm256_mul_ps(all, x.lo), _mm256_mul_ps(all, x.hi) };
}

/* a * x + y, rounded once */
LANES_INLINE struct lanes lanes_fma(float a, struct lanes x, struct lanes y)
{
	__m256 all = _mm256_set1_ps(a);

	return (struct lanes){ _mm256_fmadd_ps(all, x.lo, y.lo), _mm256_fmadd_ps(all, x.hi, y.hi) };
}

LANES_INLINE __m256 lanes_load_bf16_half(const void *p)
{
	__m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));

	return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

LANES_INLINE struct lanes lanes_load_bf16(const void *p)
{
	return (struct lanes){ lanes_load_bf16_half(p),
		               lanes_load_bf16_half((const char *)p + 16) };
}

LANES_INLINE struct lanes lanes_load_f16(const void *p)
{
	const void *high = (const char *)p + 16;

	return (struct lanes){ _mm256_cvtph_ps(_mm_loadu_si128(p)),
		               _mm256_cvtph_ps(_mm_loadu_si128(high)) };
}

/* 32 elements, those at even and those at odd places: cheaper than two of lanes_load_bf16. */
LANES_INLINE void lanes_load_bf16_pair(const void *p, struct lanes x[2])
{
	__m256i lo = _mm256_loadu_si256(p), hi = _mm256_loadu_si256((const __m256i *)p + 1);
	__m256i upper = _mm256_set1_epi32(-0x10000);

	x[0].lo = _mm256_castsi256_ps(_mm256_slli_epi32(lo, 16));
	x[0].hi = _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16));
	x[1].lo = _mm256_castsi256_ps(_mm256_and_si256(lo, upper));
	x[1].hi = _mm256_castsi256_ps(_mm256_and_si256(hi, upper));
}

/* Puts what lanes_load_bf16_pair has loaded in order. */
LANES_INLINE void lanes_sort_pair(struct lanes x[2])
{
	__m256 a = _mm256_unpacklo_ps(x[0].lo, x[1].lo), b = _mm256_unpackhi_ps(x[0].lo, x[1].lo);
	__m256 c = _mm256_unpacklo_ps(x[0].hi, x[1].hi), d = _mm256_unpackhi_ps(x[0].hi, x[1].hi);

	x[0].lo = _mm256_permute2f128_ps(a, b, 0x20);
	x[0].hi = _mm256_permute2f128_ps(a, b, 0x31);
	x[1].lo = _mm256_permute2f128_ps(c, d, 0x20);
	x[1].hi = _mm256_permute2f128_ps(c, d, 0x31);
}

LANES_INLINE struct lanes lanes_load_i8(const void *p)
{
	const void *high = (const char *)p + 8;

	return (struct lanes){
		_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))),
		_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(high))),
	};
}

LANES_INLINE __m256 lanes_load_e8m0_half(const void *p)
{
	__m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)), 23);

	return _mm256_castsi256_ps(_mm256_max_epu32(bits, _mm256_set1_epi32(0x00400000)));
}

/* 2^(b - 127) of 16 bytes; 2^-127 is subnormal. */
LANES_INLINE struct lanes lanes_load_e8m0(const void *p)
{
	return (struct lanes){ lanes_load_e8m0_half(p), lanes_load_e8m0_half((const char *)p + 8) };
}

LANES_INLINE __m256 lanes_load_e2m1_half(const void *p, int i)
{
	const __m256 value = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
	__m256i word = _mm256_loadu_si256(p);
	__m256i sign =
		_mm256_and_si256(_mm256_slli_epi32(word, 28 - 4 * i), _mm256_set1_epi32(INT32_MIN));

	return _mm256_or_ps(_mm256_permutevar8x32_ps(value, _mm256_srli_epi32(word, 4 * i)),
	                    _mm256_castsi256_ps(sign));
}

/* The values of code i, of E2M1, of 16 words of 8 codes. */
LANES_INLINE struct lanes lanes_load_e2m1(const void *p, int i)
{
	return (struct lanes){ lanes_load_e2m1_half(p, i),
		               lanes_load_e2m1_half((const char *)p + 32, i) };
}

LANES_INLINE struct lanes lanes_multiply(struct lanes x, struct lanes y)
{
	return (struct lanes){ _mm256_mul_ps(x.lo, y.lo), _mm256_mul_ps(x.hi, y.hi) };
}

/* 1 / x of positive powers of two; exact. */
LANES_INLINE struct lanes lanes_invert_power(struct lanes x)
{
	const __m256i one = _mm256_set1_epi32(254 << 23);

	return (struct lanes){
		_mm256_castsi256_ps(_mm256_sub_epi32(one, _mm256_castps_si256(x.lo))),
		_mm256_castsi256_ps(_mm256_sub_epi32(one, _mm256_castps_si256(x.hi))),
	};
}

LANES_INLINE struct lanes lanes_max(struct lanes x, struct lanes y)
{
	return (struct lanes){ _mm256_max_ps(x.lo, y.lo), _mm256_max_ps(x.hi, y.hi) };
}

LANES_INLINE bool lanes_are_at_most(struct lanes x, float most)
{
	return !_mm256_movemask_ps(
		_mm256_cmp_ps(_mm256_max_ps(x.lo, x.hi), _mm256_set1_ps(most), _CMP_NLE_UQ));
}

/* Stores the upper halves of all lanes: the inverse of lanes_load_bf16. */
LANES_INLINE void lanes_store_upper(void *p, struct lanes x)
{
	__m256i lo = _mm256_srli_epi32(_mm256_castps_si256(x.lo), 16);
	__m256i hi = _mm256_srli_epi32(_mm256_castps_si256(x.hi), 16);

	_mm256_storeu_si256(p, _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8));
}

/* f32 of the lower halves of all lanes, f16. */
LANES_INLINE struct lanes lanes_widen_lower(__m256i lo, __m256i hi)
{
	__m256i lower = _mm256_set1_epi32(0xffff), all;

	all = _mm256_packus_epi32(_mm256_and_si256(lo, lower), _mm256_and_si256(hi, lower));
	all = _mm256_permute4x64_epi64(all, 0xd8);
	return (struct lanes){ _mm256_cvtph_ps(_mm256_castsi256_si128(all)),
		               _mm256_cvtph_ps(_mm256_extracti128_si256(all, 1)) };
}

/* The elements of 2 bytes at even, and those at odd places: the two halves of each lane. */
LANES_INLINE void lanes_split_pairs(int32_t dtype, struct lanes x, struct lanes out[2])
{
	__m256i lo = _mm256_castps_si256(x.lo), hi = _mm256_castps_si256(x.hi);
	__m256i upper = _mm256_set1_epi32(-0x10000);

	if (dtype == TESS_BF16) {
		out[0].lo = _mm256_castsi256_ps(_mm256_slli_epi32(lo, 16));
		out[0].hi = _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16));
		out[1].lo = _mm256_castsi256_ps(_mm256_and_si256(lo, upper));
		out[1].hi = _mm256_castsi256_ps(_mm256_and_si256(hi, upper));
	} else {
		out[0] = lanes_widen_lower(lo, hi);
		out[1] = lanes_widen_lower(_mm256_srli_epi32(lo, 16), _mm256_srli_epi32(hi, 16));
	}
}

/* Element (i, j) of in goes to (j, i) of out; each has 8 rows of 8. */
LANES_INLINE void lanes_transpose_quarter(const __m256 in[8], __m256 out[8])
{
	__m256 t[8], u[8];

	for (int i = 0; i < 8; i += 2) {
		t[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
		t[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
	}
	/* u[i + c]: rows i to i + 3 of the columns c and 4 + c */
	for (int i = 0; i < 8; i += 4) {
		u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
		u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
		u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
		u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
	}
	for (int c = 0; c < 4; c++) {
		out[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
		out[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
	}
}

/* Lane j of r[i] goes to lane i of r[j]. */
LANES_INLINE void lanes_transpose(struct lanes r[LANES])
{
	__m256 in[4][8], out[4][8];

	for (int i = 0; i < 8; i++) {
		in[0][i] = r[i].lo;
		in[1][i] = r[i].hi;
		in[2][i] = r[8 + i].lo;
		in[3][i] = r[8 + i].hi;
	}
	for (int q = 0; q < 4; q++)
		lanes_transpose_quarter(in[q], out[q]);
	for (int i = 0; i < 8; i++) {
		r[i] = (struct lanes){ out[0][i], out[2][i] };
		r[8 + i] = (struct lanes){ out[1][i], out[3][i] };
	}
}

#elif defined(CPU_NEON)
#include <arm_neon.h>
#define LANES_PAIR_IN_ORDER

struct lanes {
	float32x4_t v[4];
};

LANES_INLINE struct lanes lanes_set_zero(void)
{
	return (struct lanes){ { vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0) } };
}

LANES_INLINE struct lanes lanes_load(const void *p)
{
	const uint8_t *at = p; /* unaligned */
	struct lanes x;

	for (int i = 0; i < 4; i++)
		x.v[i] = vreinterpretq_f32_u8(vld1q_u8(at + 16 * i));
	return x;
}

LANES_INLINE void lanes_store(float *p, struct lanes x)
{
	for (int i = 0; i < 4; i++)
		vst1q_f32(p + 4 * i, x.v[i]);
}

LANES_INLINE struct lanes lanes_add(struct lanes x, struct lanes y)
{
	for (int i = 0; i < 4; i++)
		x.v[i] = vaddq_f32(x.v[i], y.v[i]);
	return x;
}

LANES_INLINE struct lanes lanes_scale(float a, struct lanes x)
{
	for (int i = 0; i < 4; i++)
		x.v[i] = vmulq_n_f32(x.v[i], a);
	return x;
}

/* a * x + y, rounded once */
LANES_INLINE struct lanes lanes_fma(float a, struct lanes x, struct lanes y)
{
	for (int i = 0; i < 4; i++)
		y.v[i] = vfmaq_n_f32(y.v[i], x.v[i], a);
	return y;
}

LANES_INLINE struct lanes lanes_load_bf16(const void *p)
{
	const uint8_t *at = p;
	struct lanes x;

	for (int i = 0; i < 4; i++)
		x.v[i] = vreinterpretq_f32_u32(
			vshll_n_u16(vreinterpret_u16_u8(vld1_u8(at + 8 * i)), 16));
	return x;
}

LANES_INLINE struct lanes lanes_load_f16(const void *p)
{
	const uint8_t *at = p;
	struct lanes x;

	for (int i = 0; i < 4; i++)
		x.v[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at + 8 * i)));
	return x;
}

LANES_INLINE struct lanes lanes_load_i8(const void *p)
{
	int8x16_t all = vld1q_s8(p);
	int16x8_t lo = vmovl_s8(vget_low_s8(all)), hi = vmovl_s8(vget_high_s8(all));

	return (struct lanes){ {
		vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))),
		vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
		vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))),
		vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi))),
	} };
}

/* 2^(b - 127) of 16 bytes; 2^-127 is subnormal. */
LANES_INLINE struct lanes lanes_load_e8m0(const void *p)
{
	uint8x16_t all = vld1q_u8(p);
	uint16x8_t half[2] = { vmovl_u8(vget_low_u8(all)), vmovl_u8(vget_high_u8(all)) };
	struct lanes x;

	for (int i = 0; i < 4; i++) {
		uint16x4_t part = i % 2 ? vget_high_u16(half[i / 2]) : vget_low_u16(half[i / 2]);

		x.v[i] = vreinterpretq_f32_u32(
			vmaxq_u32(vshlq_n_u32(vmovl_u16(part), 23), vdupq_n_u32(0x00400000)));
	}
	return x;
}

/* The values of code i, of E2M1, of 16 words of 8 codes. */
LANES_INLINE struct lanes lanes_load_e2m1(const void *p, int i)
{
	/* the upper two bytes of the values; byte 3 of a word gets the first */
	static const uint8_t first[16] = { 0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
		                           0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0 };
	static const uint8_t second[16] = { 0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
		                            0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0 };
	struct lanes x;

	for (int j = 0; j < 4; j++) {
		uint32x4_t word = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * j));
		uint8x16_t code = vreinterpretq_u8_u32(
			vandq_u32(vshlq_u32(word, vdupq_n_s32(-4 * i)), vdupq_n_u32(15)));
		uint32x4_t hi = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(first), code));
		uint32x4_t lo = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(second), code));

		x.v[j] = vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(hi, 24), vshlq_n_u32(lo, 16)));
	}
	return x;
}

LANES_INLINE struct lanes lanes_multiply(struct lanes x, struct lanes y)
{
	for (int i = 0; i < 4; i++)
		x.v[i] = vmulq_f32(x.v[i], y.v[i]);
	return x;
}

/* 1 / x of positive powers of two; exact. */
LANES_INLINE struct lanes lanes_invert_power(struct lanes x)
{
	for (int i = 0; i < 4; i++)
		x.v[i] = vreinterpretq_f32_u32(
			vsubq_u32(vdupq_n_u32(254u << 23), vreinterpretq_u32_f32(x.v[i])));
	return x;
}

LANES_INLINE struct lanes lanes_max(struct lanes x, struct lanes y)
{
	for (int i = 0; i < 4; i++)
		x.v[i] = vmaxq_f32(x.v[i], y.v[i]);
	return x;
}

LANES_INLINE bool lanes_are_at_most(struct lanes x, float most)
{
	return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3]))) <= most;
}

/* Stores the upper halves of all lanes: the inverse of lanes_load_bf16. */
LANES_INLINE void lanes_store_upper(void *p, struct lanes x)
{
	uint8_t *at = p;

	for (int i = 0; i < 4; i++)
		vst1_u8(at + 8 * i,
		        vreinterpret_u8_u16(vshrn_n_u32(vreinterpretq_u32_f32(x.v[i]), 16)));
}

/* The elements of 2 bytes at even, and those at odd places: the two halves of each lane. */
LANES_INLINE void lanes_split_pairs(int32_t dtype, struct lanes x, struct lanes out[2])
{
	for (int i = 0; i < 4; i++) {
		uint32x4_t both = vreinterpretq_u32_f32(x.v[i]);

		if (dtype == TESS_BF16) {
			out[0].v[i] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
			out[1].v[i] =
				vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000)));
		} else {
			out[0].v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(both)));
			out[1].v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(both, 16)));
		}
	}
}

/* Lane j of r[i] goes to lane i of r[j]. */
LANES_INLINE void lanes_transpose(struct lanes r[LANES])
{
	struct lanes out[LANES];

	for (int i = 0; i < 4; i++) {
		for (int j = 0; j < 4; j++) { /* rows 4i to 4i + 3, columns 4j to 4j + 3 */
			const struct lanes *in = r + 4 * i;
			float32x4x2_t a = vtrnq_f32(in[0].v[j], in[1].v[j]);
			float32x4x2_t b = vtrnq_f32(in[2].v[j], in[3].v[j]);

			for (int k = 0; k < 2; k++) {
				out[4 * j + k].v[i] = vcombine_f32(vget_low_f32(a.val[k]),
				                                   vget_low_f32(b.val[k]));
				out[4 * j + 2 + k].v[i] = vcombine_f32(vget_high_f32(a.val[k]),
				                                       vget_high_f32(b.val[k]));
			}
		}
	}
	memcpy(r, out, sizeof out);
}

#else
#define LANES_PAIR_IN_ORDER
#include <math.h>

struct lanes {
	float v[LANES];
};

LANES_INLINE struct lanes lanes_set_zero(void)
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

LANES_INLINE struct lanes lanes_scale(float a, struct lanes x)
{
	for (int i = 0; i < LANES; i++)
		x.v[i] = a * x.v[i];
	return x;
}

/* a * x + y, rounded once */
LANES_INLINE struct lanes lanes_fma(float a, struct lanes x, struct lanes y)
{
	for (int i = 0; i < LANES; i++)
		y.v[i] = fmaf(a, x.v[i], y.v[i]);
	return y;
}

LANES_INLINE struct lanes lanes_load_bf16(const void *p)
{
	struct lanes x;

	for (int i = 0; i < LANES; i++)
		x.v[i] = load_weight_element(p, TESS_BF16, i);
	return x;
}

LANES_INLINE struct lanes lanes_load_f16(const void *p)
{
	struct lanes x;

	for (int i = 0; i < LANES; i++)
		x.v[i] = load_weight_element(p, TESS_F16, i);
	return x;
}

LANES_INLINE struct lanes lanes_load_i8(const void *p)
{
	struct lanes x;

	for (int i = 0; i < LANES; i++)
		x.v[i] = ((const int8_t *)p)[i];
	return x;
}

/* 2^(b - 127) of 16 bytes; 2^-127 is subnormal. */
LANES_INLINE struct lanes lanes_load_e8m0(const void *p)
{
	const uint8_t *at = p;
	struct lanes x;

	for (int i = 0; i < LANES; i++)
		x.v[i] = tess_float(at[i] ? (uint32_t)at[i] << 23 : 0x00400000);
	return x;
}

/* The values of code i, of E2M1, of 16 words of 8 codes. */
LANES_INLINE struct lanes lanes_load_e2m1(const void *p, int i)
{
	static const float value[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
		                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };
	const uint8_t *byte = (const uint8_t *)p + i / 2;
	struct lanes x;

	for (int j = 0; j < LANES; j++)
		x.v[j] = value[byte[4 * j] >> i % 2 * 4 & 15];
	return x;
}

LANES_INLINE struct lanes lanes_multiply(struct lanes x, struct lanes y)
{
	for (int i = 0; i < LANES; i++)
		x.v[i] = x.v[i] * y.v[i];
	return x;
}

/* 1 / x of positive powers of two; exact. */
LANES_INLINE struct lanes lanes_invert_power(struct lanes x)
{
	for (int i = 0; i < LANES; i++)
		x.v[i] = tess_float((254u << 23) - tess_bits(x.v[i]));
	return x;
}

LANES_INLINE struct lanes lanes_max(struct lanes x, struct lanes y)
{
	for (int i = 0; i < LANES; i++)
		x.v[i] = x.v[i] > y.v[i] ? x.v[i] : y.v[i];
	return x;
}

LANES_INLINE bool lanes_are_at_most(struct lanes x, float most)
{
	float largest = x.v[0];

	for (int i = 1; i < LANES; i++)
		largest = x.v[i] > largest ? x.v[i] : largest;
	return largest <= most;
}

/* Stores the upper halves of all lanes: the inverse of lanes_load_bf16. */
LANES_INLINE void lanes_store_upper(void *p, struct lanes x)
{
	uint32_t bits;
	uint16_t upper;

	for (int i = 0; i < LANES; i++) {
		memcpy(&bits, &x.v[i], sizeof bits);
		upper = (uint16_t)(bits >> 16);
		memcpy((char *)p + 2 * i, &upper, sizeof upper);
	}
}

/* The elements of 2 bytes at even, and those at odd places: the two halves of each lane. */
LANES_INLINE void lanes_split_pairs(int32_t dtype, struct lanes x, struct lanes out[2])
{
	uint16_t pair[2];

	for (int i = 0; i < LANES; i++) {
		memcpy(pair, &x.v[i], sizeof pair);
		out[0].v[i] = load_weight_element(pair, dtype, 0);
		out[1].v[i] = load_weight_element(pair, dtype, 1);
	}
}

/* Lane j of r[i] goes to lane i of r[j]. */
LANES_INLINE void lanes_transpose(struct lanes r[LANES])
{
	float swap;

	for (int i = 0; i < LANES; i++) {
		for (int j = 0; j < i; j++) {
			swap = r[i].v[j];
			r[i].v[j] = r[j].v[i];
			r[j].v[i] = swap;
		}
	}
}
#endif

#ifdef LANES_PAIR_IN_ORDER
/* 32 elements in order; other instruction sets load them in another one. */
LANES_INLINE void lanes_load_bf16_pair(const void *p, struct lanes x[2])
{
	x[0] = lanes_load_bf16(p);
	x[1] = lanes_load_bf16((const char *)p + 2 * LANES);
}

/* Puts what lanes_load_bf16_pair has loaded in order. */
LANES_INLINE void lanes_sort_pair(struct lanes x[2])
{
	(void)x;
}
#endif

#ifndef LANES_FMA_FROM
LANES_INLINE struct lanes lanes_fma_from(const float *a, struct lanes x, struct lanes y)
{
	return lanes_fma(*a, x, y);
}
#endif

LANES_INLINE struct lanes lanes_widen(int32_t dtype, const void *p)
{
	if (dtype == TESS_F32)
		return lanes_load(p);
	return dtype == TESS_BF16 ? lanes_load_bf16(p) : lanes_load_f16(p);
}

#endif

/*
 * tessera/reduce.h - elements: their width, 16-bit floats, and the seven operations over several
 * vectors.
 *
 * Only inline functions, so that every backend reduces alike: in order of the parts, 16-bit floats
 * in f32 rounded once (to nearest, ties to even), integers modulo 2^n, min and max give NaN where
 * one part has it.
 */
#ifndef TESSERA_REDUCE_H
#define TESSERA_REDUCE_H

#include <string.h>
#include <tessera/group.h>

/* Bytes of one element; 0: no such dtype. */
static inline size_t tess_width(int32_t dtype)
{
	switch (dtype) {
	case TESS_F64:
	case TESS_I64:
		return 8;
	case TESS_F32:
	case TESS_I32:
		return 4;
	case TESS_BF16:
	case TESS_F16:
		return 2;
	case TESS_I8:
	case TESS_U8:
		return 1;
	default:
		return 0;
	}
}

static inline uint32_t tess_bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof u);
	return u;
}
static inline float tess_float(uint32_t u)
{
	float x;
	memcpy(&x, &u, sizeof x);
	return x;
}

static inline float tess_bf16_load(uint16_t h)
{
	return tess_float((uint32_t)h << 16);
}

static inline uint16_t tess_bf16_round(float x)
{
	uint32_t u = tess_bits(x);

	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 0x40); /* a NaN stays one: quiet, its top bits kept */
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float tess_f16_load(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;

	if (rest >= 0x7c00) /* infinity, NaN */
		return tess_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
	/*
	 * As f32 with the same exponent field it is 2^112 too small; the product is exact,
	 * subnormals included.
	 */
	return tess_float(sign | tess_bits(tess_float(rest << 13) * 0x1p112f));
}

static inline uint16_t tess_f16_round(float x)
{
	uint32_t u = tess_bits(x), rest = u & 0x7fffffff;
	uint16_t sign = (uint16_t)(u >> 16 & 0x8000);

	if (rest > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
	if (rest >= 0x477ff000) /* 65520: what rounds to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (rest < 0x38800000) /* subnormal: adding 0.5 leaves its bits at the bottom */
		return (uint16_t)(sign |
		                  (uint16_t)(tess_bits(tess_float(rest) + 0.5f) - 0x3f000000));
	rest += 0xfff + (rest >> 13 & 1);
	return (uint16_t)(sign | (uint16_t)((rest - 0x38000000) >> 13));
}

#define TESS_EACH(a) \
	for (uint32_t k = 0; k < n; k++) \
		acc[k] = (a); \
	break
#define TESS_FOLD_FLOAT(name, type) \
	static inline void name(int32_t op, type *acc, const type *x, uint32_t n) \
	{ \
		switch (op) { \
		case TESS_SUM: \
			TESS_EACH(acc[k] + x[k]); \
		case TESS_PROD: \
			TESS_EACH(acc[k] * x[k]); \
		case TESS_MIN: \
			TESS_EACH(acc[k] < x[k] || acc[k] != acc[k] ? acc[k] : x[k]); \
		case TESS_MAX: \
			TESS_EACH(acc[k] > x[k] || acc[k] != acc[k] ? acc[k] : x[k]); \
		default: \
			break; \
		} \
	}
/* `wide` is unsigned and as wide as int at least, so that nothing overflows but modulo 2^n */
#define TESS_FOLD_INT(name, type, wide) \
	static inline void name(int32_t op, type *acc, const type *x, uint32_t n) \
	{ \
		switch (op) { \
		case TESS_SUM: \
			TESS_EACH((type)((wide)acc[k] + (wide)x[k])); \
		case TESS_PROD: \
			TESS_EACH((type)((wide)acc[k] * (wide)x[k])); \
		case TESS_MIN: \
			TESS_EACH(acc[k] < x[k] ? acc[k] : x[k]); \
		case TESS_MAX: \
			TESS_EACH(acc[k] > x[k] ? acc[k] : x[k]); \
		case TESS_BAND: \
			TESS_EACH((type)(acc[k] & x[k])); \
		case TESS_BOR: \
			TESS_EACH((type)(acc[k] | x[k])); \
		case TESS_BXOR: \
			TESS_EACH((type)(acc[k] ^ x[k])); \
		default: \
			break; \
		} \
	}
TESS_FOLD_FLOAT(tess_fold_f64, double)
TESS_FOLD_FLOAT(tess_fold_f32, float)
TESS_FOLD_INT(tess_fold_i64, int64_t, uint64_t)
TESS_FOLD_INT(tess_fold_i32, int32_t, uint32_t)
TESS_FOLD_INT(tess_fold_i8, int8_t, uint32_t)
TESS_FOLD_INT(tess_fold_u8, uint8_t, uint32_t)
#undef TESS_FOLD_INT
#undef TESS_FOLD_FLOAT
#undef TESS_EACH

enum { TESS_REDUCE_STEP = 512 }; /* elements that are reduced before they are written */

static inline void tess_load_16(int32_t dtype, const uint16_t *x, float *out, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		out[k] = dtype == TESS_BF16 ? tess_bf16_load(x[k]) : tess_f16_load(x[k]);
}

static inline void tess_reduce_16(int32_t dtype, int32_t op, const void *const *part,
                                  int32_t nparts, uint64_t at, uint32_t n, uint16_t *dst)
{
	float acc[TESS_REDUCE_STEP], x[TESS_REDUCE_STEP];

	tess_load_16(dtype, (const uint16_t *)part[0] + at, acc, n);
	for (int32_t r = 1; r < nparts; r++) {
		tess_load_16(dtype, (const uint16_t *)part[r] + at, x, n);
		tess_fold_f32(op, acc, x, n);
	}
	for (uint32_t k = 0; k < n; k++)
		dst[at + k] = dtype == TESS_BF16 ? tess_bf16_round(acc[k]) : tess_f16_round(acc[k]);
}

/*
 * dst[k] = part[0][k] op part[1][k] op ... for `count` elements. dst may be one of the parts, and
 * overlap none otherwise. Operations on bits are for integers only.
 */
static inline void tess_reduce(int32_t dtype, int32_t op, const void *const *part, int32_t nparts,
                               uint64_t count, void *dst)
{
	union {
		double f64;
		int64_t i64;
		char byte[8 * TESS_REDUCE_STEP];
	} acc;
	size_t width = tess_width(dtype);

	for (uint64_t at = 0; at < count; at += TESS_REDUCE_STEP) {
		uint32_t n = TESS_REDUCE_STEP;

		if (count - at < n)
			n = (uint32_t)(count - at);
		if (width == 2) {
			tess_reduce_16(dtype, op, part, nparts, at, n, (uint16_t *)dst);
			continue;
		}
		memcpy(&acc, (const char *)part[0] + at * width, n * width);
		for (int32_t r = 1; r < nparts; r++) {
			const void *x = (const char *)part[r] + at * width;

			switch (dtype) {
			case TESS_F64:
				tess_fold_f64(op, (double *)(void *)&acc, (const double *)x, n);
				break;
			case TESS_F32:
				tess_fold_f32(op, (float *)(void *)&acc, (const float *)x, n);
				break;
			case TESS_I64:
				tess_fold_i64(op, (int64_t *)(void *)&acc, (const int64_t *)x, n);
				break;
			case TESS_I32:
				tess_fold_i32(op, (int32_t *)(void *)&acc, (const int32_t *)x, n);
				break;
			case TESS_I8:
				tess_fold_i8(op, (int8_t *)(void *)&acc, (const int8_t *)x, n);
				break;
			case TESS_U8:
				tess_fold_u8(op, (uint8_t *)(void *)&acc, (const uint8_t *)x, n);
				break;
			default:
				break;
			}
		}
		memcpy((char *)dst + at * width, &acc, n * width);
	}
}

#endif

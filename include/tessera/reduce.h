/*
 * tessera/reduce.h - kinds of calls; element types: width, 16-bit floats, and the seven operations
 * over several vectors.
 *
 * Only inline functions, so that every backend reduces alike:
 *  - 16-bit floats are reduced in f32 and rounded once, to nearest, ties to even;
 *  - integers are reduced modulo 2^n;
 *  - min and max give NaN if one part has it, and every NaN has the same bits;
 *  - no sum of floats is -0;
 *  - neighbouring parts are combined first: ((0 op 1) op (2 op 3)) op 4.
 * For 2^k parts that order is the tree of split.h: a backend that adds f32 in it is `exact`.
 *
 * Example:
 *     static void add_vectors(const float *a, const float *b, uint64_t n, float *sum)
 *     {
 *             const void *const parts[] = { a, b };
 *
 *             tess_reduce(TESS_F32, TESS_SUM, parts, 2, n, sum);
 *     }
 */
#ifndef TESSERA_REDUCE_H
#define TESSERA_REDUCE_H

#include <string.h>
#include <tessera/group.h>
#include <tessera/util/float.h>

/* Returns 1 if a call of this kind reads `op`. */
static inline int tess_kind_reduces(int32_t kind)
{
	return kind == TESS_REDUCE || kind == TESS_ALL_REDUCE || kind == TESS_REDUCE_SCATTER;
}

/* Returns 1 if a call of this kind has a root. */
static inline int tess_kind_rooted(int32_t kind)
{
	return kind == TESS_BROADCAST || kind == TESS_REDUCE || kind == TESS_GATHER ||
	       kind == TESS_SCATTER;
}

/* Returns the bytes of one element; 0: an unknown dtype. */
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

/* Returns the bits of x. */
static inline uint32_t tess_bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof u);
	return u;
}

/* Returns the float with bits u. */
static inline float tess_float(uint32_t u)
{
	float x;
	memcpy(&x, &u, sizeof x);
	return x;
}

/* Converts BF16 to f32; exact. */
static inline float tess_bf16_load(uint16_t h)
{
	return tess_float((uint32_t)h << 16);
}

/* Rounds f32 to BF16, to nearest, ties to even. */
static inline uint16_t tess_bf16_round(float x)
{
	uint32_t u = tess_bits(x);

	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 0x40); /* quiet NaN with the same top bits */
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Converts F16 to f32; exact. */
static inline float tess_f16_load(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
	uint32_t small = tess_bits((float)(int32_t)rest * 0x1p-24f); /* zero, subnormal: exact */
	uint32_t large = (rest << 13) + (rest < 0x7c00 ? 112u << 23 : 224u << 23);

	large |= rest > 0x7c00 ? 1u << 22 : 0; /* quiet NaN, like that of the processor */
	return tess_float(sign | (rest < 0x400 ? small : large));
}

/* Rounds f32 to F16, to nearest, ties to even. */
static inline uint16_t tess_f16_round(float x)
{
	uint32_t u = tess_bits(x), rest = u & 0x7fffffff;
	uint16_t sign = (uint16_t)(u >> 16 & 0x8000);

	if (rest > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
	if (rest >= 0x477ff000) /* 65520 and above round to infinity */
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
			TESS_EACH(acc[k] + x[k] + 0); \
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
/* `wide` is unsigned and no narrower than int: overflow wraps modulo 2^n. */
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

/* Number of elements that are reduced at a time. */
enum { TESS_REDUCE_STEP = 512 };

/* Accumulators of one step. */
union tess_acc {
	double f64[TESS_REDUCE_STEP];
	/* Also for 16-bit floats. */
	float f32[TESS_REDUCE_STEP];
	int64_t i64[TESS_REDUCE_STEP];
	int32_t i32[TESS_REDUCE_STEP];
	int8_t i8[TESS_REDUCE_STEP];
	uint8_t u8[TESS_REDUCE_STEP];
};

/* Loads n elements to accumulators. */
static inline void tess_acc_load(int32_t dtype, const void *from, uint32_t n, union tess_acc *acc)
{
	const uint16_t *x = (const uint16_t *)from;

	if (dtype != TESS_BF16 && dtype != TESS_F16) {
		memcpy(acc, from, n * tess_width(dtype));
		return;
	}
	for (uint32_t k = 0; k < n; k++)
		acc->f32[k] = dtype == TESS_BF16 ? tess_bf16_load(x[k]) : tess_f16_load(x[k]);
}

/* Stores n accumulators as elements, rounded if they are 16-bit floats. */
static inline void tess_acc_store(int32_t dtype, const union tess_acc *acc, uint32_t n, void *to)
{
	uint16_t *x = (uint16_t *)to;

	if (dtype != TESS_BF16 && dtype != TESS_F16) {
		memcpy(to, acc, n * tess_width(dtype));
		return;
	}
	for (uint32_t k = 0; k < n; k++)
		x[k] = dtype == TESS_BF16 ? tess_bf16_round(acc->f32[k])
		                          : tess_f16_round(acc->f32[k]);
}

/* Computes acc op= x for n elements; x has the format of the accumulators. */
static inline void tess_acc_fold(int32_t dtype, int32_t op, union tess_acc *acc, const void *x,
                                 uint32_t n)
{
	switch (dtype) {
	case TESS_F64:
		tess_fold_f64(op, acc->f64, (const double *)x, n);
		break;
	case TESS_F32:
	case TESS_BF16:
	case TESS_F16:
		tess_fold_f32(op, acc->f32, (const float *)x, n);
		break;
	case TESS_I64:
		tess_fold_i64(op, acc->i64, (const int64_t *)x, n);
		break;
	case TESS_I32:
		tess_fold_i32(op, acc->i32, (const int32_t *)x, n);
		break;
	case TESS_I8:
		tess_fold_i8(op, acc->i8, (const int8_t *)x, n);
		break;
	case TESS_U8:
		tess_fold_u8(op, acc->u8, (const uint8_t *)x, n);
		break;
	default:
		break;
	}
}

/*
 * Reduces n elements of all parts from byte `at` on: the first 2^k parts, the largest 2^k < nparts,
 * op the rest.
 */
static inline void tess_acc_parts(int32_t dtype, int32_t op, const void *const *part,
                                  int32_t nparts, uint64_t at, uint32_t n, union tess_acc *acc)
{
	int32_t first = 1;
	union tess_acc rest;

	if (nparts == 1) {
		tess_acc_load(dtype, (const char *)part[0] + at, n, acc);
		return;
	}
	while (2 * first < nparts)
		first *= 2;
	tess_acc_parts(dtype, op, part, first, at, n, acc);
	if (nparts - first == 1 && tess_width(dtype) != 2) { /* in place */
		tess_acc_fold(dtype, op, acc, (const char *)part[first] + at, n);
		return;
	}
	tess_acc_parts(dtype, op, part + first, nparts - first, at, n, &rest);
	tess_acc_fold(dtype, op, acc, &rest, n);
}

/*
 * Replaces every NaN by one NaN. 16-bit floats are f32 here; storing keeps the top bits.
 */
static inline void tess_acc_one_nan(int32_t dtype, union tess_acc *acc, uint32_t n)
{
	if (dtype == TESS_F32 || dtype == TESS_BF16 || dtype == TESS_F16)
		for (uint32_t k = 0; k < n; k++)
			acc->f32[k] = tess_one_nan(acc->f32[k]);
	if (dtype == TESS_F64)
		for (uint32_t k = 0; k < n; k++)
			acc->f64[k] = acc->f64[k] == acc->f64[k] ? acc->f64[k] : __builtin_nan("");
}

/*
 * Computes dst[k] = part[0][k] op part[1][k] op ... for `count` elements of nparts > 0 parts. dst
 * may be one of the parts, without any other overlap. Operations on bits are for integers only.
 */
static inline void tess_reduce(int32_t dtype, int32_t op, const void *const *part, int32_t nparts,
                               uint64_t count, void *dst)
{
	size_t width = tess_width(dtype);
	uint32_t saved = tess_float_enter();
	union tess_acc acc;

	for (uint64_t at = 0; at < count; at += TESS_REDUCE_STEP) {
		uint32_t n = TESS_REDUCE_STEP;

		if (count - at < n)
			n = (uint32_t)(count - at);
		tess_acc_parts(dtype, op, part, nparts, at * width, n, &acc);
		tess_acc_one_nan(dtype, &acc, n);
		tess_acc_store(dtype, &acc, n, (char *)dst + at * width);
	}
	tess_float_leave(saved);
}

#endif

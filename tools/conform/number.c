/*
 * number.c - the numbers of the cases. Every partial sum and product, in any order, is exact in the
 * required type (f32 for 16-bit floats), but not in a narrower one: a backend that adds in the
 * wrong type, or rounds more than once, produces other bits.
 */
#include "data.h"

#include <math.h>
#include <tessera/coll.h>

uint64_t conform_hash(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x = a * 0x9e3779b97f4a7c15 ^ b * 0xc2b2ae3d27d4eb4f ^ c * 0x165667b19e3779f9;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* Returns a signed integer of at most `bits` bits. */
static double make_integer(uint64_t h, int bits)
{
	return (double)(int64_t)(h >> (63 - bits)) - (double)(UINT64_C(1) << bits);
}

/*
 * Returns an addend. One rank has a number that absorbs small ones: 256 + 1 + 1 in bf16 is 258 if
 * rounded at the end, and 256 if rounded at each step.
 */
static double make_addend_16(int32_t dtype, bool large, uint64_t h)
{
	double scale = (double)(1 << (h & 3));

	if (large)
		return scale * (dtype == TESS_BF16 ? 256 : 2048);
	return scale * (double)(1 + (h >> 8) % 3);
}

/*
 * Two ranks have half of the significant bits of the type each. The other ranks have powers of two;
 * 1 or -1 if they are `many`, or the product could overflow.
 */
static double make_factor(int32_t dtype, bool full, bool many, uint64_t h)
{
	static const int bits[] = {
		[TESS_F32] = 11, [TESS_F64] = 25, [TESS_BF16] = 7, [TESS_F16] = 10
	};
	double sign = h & 1 ? 1 : -1;

	if (!full && many)
		return sign;
	if (!full)
		return sign * ldexp(1, (int)(h >> 8) % 3 - 1);
	return sign * ldexp((double)((UINT64_C(1) << bits[dtype]) +
	                             (h >> 1) % (UINT64_C(1) << bits[dtype])),
	                    -bits[dtype]);
}

static double make_comparand(int32_t dtype, uint64_t h)
{
	if (dtype == TESS_F64)
		return make_integer(h, 52);
	if (dtype == TESS_F32)
		return make_integer(h, 23);
	return (1 + (double)(h % 127)) * (h >> 8 & 1 ? 1 : -1) * (double)(1 << (h >> 9) % 8);
}

/* Returns the smallest positive number of the type. */
static double get_smallest(int32_t dtype)
{
	static const int power[] = {
		[TESS_F32] = -149, [TESS_F64] = -1074, [TESS_BF16] = -133, [TESS_F16] = -24
	};

	return ldexp(1, power[dtype]);
}

/* Returns whether the number of rank `from` at i differs in kind from those of other ranks. */
static bool has_turn(int32_t from, uint64_t i, int32_t n)
{
	return (int32_t)(i % (uint64_t)n) == from;
}

static double make_real(const struct conform_case *c, int32_t from, uint64_t h, uint64_t i,
                        int32_t n)
{
	bool many = n > CONFORM_RANKS;
	int carries = many ? 10 : 3; /* bits by which a sum exceeds its addends */

	if (c->special && i % 7 == 1)
		return get_smallest(c->dtype) * (double)(1 + h % 15);
	if (c->special && i % 7 == 3 && has_turn(from, i, n))
		return NAN;
	if (c->special && i % 7 == 5 && has_turn(from, i, n))
		return c->op == TESS_MIN ? -INFINITY : INFINITY;
	if (c->op == TESS_PROD)
		return make_factor(c->dtype, has_turn(from, i, n) || has_turn(from, i + 1, n), many,
		                   h);
	if (c->op != TESS_SUM)
		return make_comparand(c->dtype, h);
	if (tess_width(c->dtype) == 2)
		return make_addend_16(c->dtype, has_turn(from, i, n), h);
	return make_integer(h, (c->dtype == TESS_F64 ? 52 : 23) - carries);
}

union conform_number conform_make_number(const struct conform_case *c, int32_t from, int32_t to,
                                         uint64_t i, int32_t n)
{
	uint64_t h =
		conform_hash((uint64_t)c->kind << 32 | (uint64_t)c->op << 16 | (uint64_t)c->dtype,
	                     (uint64_t)(from + 1) << 32 | (uint64_t)(to + 1), i + 1);

	if (tess_dtype_is_float(c->dtype))
		return (union conform_number){ .real = make_real(c, from, h, i, n) };
	return (union conform_number){ .bits = h };
}

static double reduce_reals(int32_t op, double a, double b)
{
	switch (op) {
	case TESS_SUM:
		return a + b;
	case TESS_PROD:
		return a * b;
	case TESS_MIN:
		return isnan(a) || isnan(b) ? (double)NAN : a < b ? a : b;
	default:
		return isnan(a) || isnan(b) ? (double)NAN : a > b ? a : b;
	}
}

int64_t conform_extend_integer(int32_t dtype, uint64_t bits)
{
	switch (dtype) {
	case TESS_I32:
		return (int32_t)bits;
	case TESS_I8:
		return (int8_t)bits;
	case TESS_U8:
		return (uint8_t)bits;
	default:
		return (int64_t)bits;
	}
}

static uint64_t reduce_integers(int32_t op, int32_t dtype, uint64_t a, uint64_t b)
{
	switch (op) {
	case TESS_SUM:
		return a + b;
	case TESS_PROD:
		return a * b;
	case TESS_MIN:
		return conform_extend_integer(dtype, a) < conform_extend_integer(dtype, b) ? a : b;
	case TESS_MAX:
		return conform_extend_integer(dtype, a) > conform_extend_integer(dtype, b) ? a : b;
	case TESS_BAND:
		return a & b;
	case TESS_BOR:
		return a | b;
	default:
		return a ^ b;
	}
}

union conform_number conform_reduce_numbers(const struct conform_case *c, int32_t to, uint64_t i,
                                            int32_t n)
{
	union conform_number all = conform_make_number(c, 0, to, i, n);

	for (int32_t r = 1; r < n; r++) {
		union conform_number v = conform_make_number(c, r, to, i, n);

		if (tess_dtype_is_float(c->dtype))
			all.real = reduce_reals(c->op, all.real, v.real);
		else
			all.bits = reduce_integers(c->op, c->dtype, all.bits, v.bits);
	}
	return all;
}

void conform_store_number(int32_t dtype, void *base, uint64_t i, union conform_number v)
{
	switch (dtype) {
	case TESS_F32:
		((float *)base)[i] = (float)v.real;
		break;
	case TESS_F64:
		((double *)base)[i] = v.real;
		break;
	case TESS_BF16:
		((uint16_t *)base)[i] = tess_bf16_round((float)v.real);
		break;
	case TESS_F16:
		((uint16_t *)base)[i] = tess_f16_round((float)v.real);
		break;
	default: /* little-endian: the first bytes are the narrower integer */
		memcpy((char *)base + i * tess_width(dtype), &v.bits, tess_width(dtype));
		break;
	}
}

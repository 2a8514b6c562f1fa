#include "core/base/accumulator.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/*
 * A value is m * 2^(e - 150) with m below 2^24. Values of one exponent are added as integers, in
 * several tables so that an addition need not wait for the previous one; a block of them fits 63
 * bits. Then each table's sums enter the digits.
 */
enum { EXPONENTS = 256, TABLES = 4, BLOCK = TABLES << 15, LOWEST = -298 };
static const int64_t base = (int64_t)1 << 32;

/* Adds v * 2^(at + LOWEST). */
static void add_at_bit(struct tess_accumulator *a, int64_t v, int32_t at)
{
	int64_t *d = &a->digit[at / 32], shift = (int64_t)1 << at % 32;
	int64_t low = (v & (base - 1)) * shift, high = (v >> 32) * shift;

	d[0] += low & (base - 1);
	d[1] += (low >> 32) + (high & (base - 1));
	d[2] += high >> 32;
}

static void carry_digits(int64_t *digit, int32_t n)
{
	for (int32_t i = 0; i < n - 1; i++) {
		digit[i + 1] += digit[i] >> 32;
		digit[i] &= base - 1;
	}
}

static void add_block(struct tess_accumulator *a, const float *x, int64_t n, bool squares)
{
	int64_t sum[TABLES][EXPONENTS] = { { 0 } };

	for (int64_t i = 0; i < n; i++) {
		uint32_t bits;
		int32_t e;
		int64_t m;

		memcpy(&bits, &x[i], sizeof bits);
		e = (int32_t)(bits >> 23 & 255);
		m = (int64_t)(bits & 0x7fffff) | (int64_t)(e > 0) << 23;
		a->nonfinite += e == 255;
		sum[i % TABLES][e] += squares ? m * m : bits >> 31 ? -m : m;
	}
	for (int32_t e = 0; e < 255; e++) {
		int32_t power = (e ? e : 1) - 150;

		for (int32_t k = 0; k < TABLES; k++)
			add_at_bit(a, sum[k][e], (squares ? 2 * power : power) - LOWEST);
	}
	carry_digits(a->digit, TESS_ACCUMULATOR_DIGITS);
}

static void add_values(struct tess_accumulator *a, const float *x, int64_t n, bool squares)
{
	for (int64_t at = 0; at < n; at += BLOCK)
		add_block(a, x + at, n - at < BLOCK ? n - at : BLOCK, squares);
}

void tess_accumulator_add(struct tess_accumulator *a, const float *x, int64_t n)
{
	add_values(a, x, n, false);
}

void tess_accumulator_add_squares(struct tess_accumulator *a, const float *x, int64_t n)
{
	add_values(a, x, n, true);
}

double tess_accumulator_round(const struct tess_accumulator *a)
{
	enum { N = TESS_ACCUMULATOR_DIGITS + 2 };
	int64_t digit[N] = { 0 };
	bool negative, rest = false;
	uint64_t top, cut;
	int32_t at = N - 1, zeros;

	if (a->nonfinite)
		return NAN;
	memcpy(digit, a->digit, sizeof a->digit);
	carry_digits(digit, N);
	negative = digit[N - 1] < 0;
	for (int32_t i = 0; i < N && negative; i++)
		digit[i] = -digit[i];
	carry_digits(digit, N);
	while (at > 2 && !digit[at])
		at--;
	top = (uint64_t)digit[at] << 32 | (uint64_t)digit[at - 1];
	if (!top && !digit[at - 2])
		return 0;
	/* the 64 bits from the first one on, and whether there are more */
	cut = (uint64_t)digit[at - 2] << 32;
	for (zeros = 0; !(top >> 63); zeros++) {
		top = top << 1 | cut >> 63;
		cut <<= 1;
	}
	rest = cut != 0;
	for (int32_t i = 0; i < at - 2; i++)
		rest = rest || digit[i];
	cut = top & 0x7ff;
	top >>= 11;
	top += cut > 0x400 || (cut == 0x400 && (rest || top & 1));
	return ldexp(negative ? -(double)top : (double)top, 32 * (at - 1) + LOWEST - zeros + 11);
}

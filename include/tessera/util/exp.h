/*
 * tessera/util/exp.h - exp in double that is bit-identical on every machine, which libm does not
 * guarantee.
 *
 * It uses only +, - and *, in the order written, with rounding to nearest. Compile with
 * -ffp-contract=off: contraction to FMA changes bits. The error is less than 1 unit in the last
 * place.
 *
 * Example:
 *     static double compute_sigmoid(double x)
 *     {
 *             return 1 / (1 + tess_exp_f64(-x));
 *     }
 */
#ifndef TESSERA_UTIL_EXP_H
#define TESSERA_UTIL_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* log(2) in two parts: the first 40 bits, whose product with an exponent is exact, and the rest. */
#define TESS_LN2_HI 0x1.62e42fefa2p-1
#define TESS_LN2_LO 0x1.9ef35793c7673p-41

/* Returns 2^k, which must be a normal number. */
static inline double tess_power_of_two(int64_t k)
{
	uint64_t bits = (uint64_t)(k + 1023) << 52;
	double y;

	memcpy(&y, &bits, sizeof y);
	return y;
}

/*
 * Returns exp(x): inf above 709.78, 0 below -745.13; subnormal results are rounded once. A Taylor
 * series about 0 for |r| <= log(2) / 2, whose first omitted term is 4e-18 of the result.
 */
static inline double tess_exp_f64(double x)
{
	static const double c[] = {
		1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
		1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
		1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
	};
	const int n = sizeof c / sizeof *c;
	double k, hi, lo, r, y, sum = c[n - 1];
	int64_t half;

	if (x != x)
		return x;
	if (x > 710)
		return HUGE_VAL;
	if (x < -746)
		return 0;
	k = (double)(int64_t)(x * (1 / (TESS_LN2_HI + TESS_LN2_LO)) + (x < 0 ? -0.5 : 0.5));
	hi = x - k * TESS_LN2_HI;
	lo = k * TESS_LN2_LO;
	r = hi - lo;
	for (int i = n - 2; i >= 0; i--)
		sum = sum * r + c[i];
	y = 1 + (r + (((hi - r) - lo) + r * r * sum));
	/* Two steps, of which the first is exact: 2^k may be subnormal or infinite. */
	half = (int64_t)k / 2;
	return y * tess_power_of_two(half) * tess_power_of_two((int64_t)k - half);
}

#endif

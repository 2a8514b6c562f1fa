#include "core/base/math.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

_Static_assert(FLT_EVAL_METHOD == 0, "double must be computed in double");

/* Evaluates c[0] + c[1] * z + ... */
static double eval_polynomial(double z, const double *c, int n)
{
	double y = c[n - 1];

	for (int i = n - 2; i >= 0; i--)
		y = y * z + c[i];
	return y;
}
#define HORNER(z, c) eval_polynomial((z), (c), (int)(sizeof(c) / sizeof *(c)))

/*
 * x = 2^k * (1 + f), sqrt(1/2) < 1 + f <= sqrt(2); log(1 + f) = 2 artanh(s) with s = f / (2 + f),
 * and 2 s = f - s f.
 */
double tess_log_f64(double x)
{
	static const double c[] = {
		2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
		2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23,
	};
	double k = 0, f, s, z, more;
	uint64_t bits;

	if (!(x > 0) || x > DBL_MAX)
		return x < 0 ? (double)NAN : x == 0 ? -HUGE_VAL : x;
	if (x < DBL_MIN) {
		x *= 0x1p54;
		k = -54;
	}
	memcpy(&bits, &x, sizeof bits);
	k += (double)((int64_t)(bits >> 52) - 1023);
	bits = (bits & 0xfffffffffffff) | (uint64_t)1023 << 52;
	memcpy(&f, &bits, sizeof f);
	if (f > 0x1.6a09e667f3bcdp0) {
		f /= 2;
		k += 1;
	}
	f -= 1;
	s = f / (2 + f);
	z = s * s;
	more = z * HORNER(z, c);
	return k * TESS_LN2_HI + (f + (k * TESS_LN2_LO - s * (f - more)));
}

double tess_pow_f64(double x, double y)
{
	return tess_exp_f64(y * tess_log_f64(x));
}

/* The angle hi + lo + quarter * pi / 2. */
struct angle {
	double hi, lo;
	int64_t quarter;
};

/* Subtracts b from *hi + *lo, exactly. */
static void subtract_from_pair(double *hi, double *lo, double b)
{
	double a = *hi, d = a - b, subtracted = a - d;

	*lo += (a - (d + subtracted)) + (subtracted - b);
	*hi = d;
}

/*
 * Reduces x to |hi| <= pi / 4. pi / 2 is three pieces of 22 bits, whose products with a quarter (31
 * bits) are exact, and one of 53 bits: the error is below 2^-86.
 */
static struct angle reduce_angle(double x)
{
	static const double piece[] = { 0x1.921fbp0, 0x1.5110bp-22, 0x1.184698p-44 };
	const double rest = 0x1.3198a2e037073p-69, per_quarter = 0x1.45f306dc9c883p-1;
	double k = (double)(int64_t)(x * per_quarter + (x < 0 ? -0.5 : 0.5)), hi = x, lo = 0, sum;

	for (int i = 0; i < 3; i++)
		subtract_from_pair(&hi, &lo, k * piece[i]);
	lo -= k * rest;
	sum = hi + lo;
	return (struct angle){ sum, lo - (sum - hi), (int64_t)k & 3 };
}

/* Evaluate Taylor series for |hi| <= pi / 4; the first omitted terms are 1e-19 and 3e-18. */
static double eval_sine(struct angle a)
{
	static const double c[] = {
		-1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
		-1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000,
	};
	double z = a.hi * a.hi;

	return a.hi + (a.hi * z * HORNER(z, c) + a.lo * (1 - z / 2));
}

static double eval_cosine(struct angle a)
{
	static const double c[] = {
		1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
		1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000,
	};
	double z = a.hi * a.hi, half = z / 2, rounded = 1 - half;

	return rounded + (((1 - rounded) - half) + (z * z * HORNER(z, c) - a.hi * a.lo));
}

static double eval_sine_shifted(double x, int64_t quarters)
{
	struct angle a;
	double y;

	if (!(x >= -0x1p31 && x <= 0x1p31))
		return (double)NAN;
	a = reduce_angle(x);
	a.quarter = (a.quarter + quarters) & 3;
	y = a.quarter & 1 ? eval_cosine(a) : eval_sine(a);
	return a.quarter & 2 ? -y : y;
}

double tess_sin_f64(double x)
{
	return eval_sine_shifted(x, 0);
}

double tess_cos_f64(double x)
{
	return eval_sine_shifted(x, 1);
}

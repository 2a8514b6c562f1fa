/*
 * mathf.h - exp, log, erf and tanh in f32, without libm, which differs between machines. They are
 * branch-free sequences of rounded operations and selects, which compilers can vectorise without
 * changing bits. Polynomials interpolate at Chebyshev nodes, with coefficients rounded to f32.
 */
#ifndef TESS_DEVICES_CPU_MATHF_H
#define TESS_DEVICES_CPU_MATHF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef MATHF /* the cuda device has its own */
#define MATHF static inline
#endif

MATHF float mathf_from_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof f);
	return f;
}

MATHF uint32_t mathf_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof bits);
	return bits;
}

/* Returns 2^n for -126 <= n <= 127. */
MATHF float mathf_pow2(int32_t n)
{
	return mathf_from_bits((uint32_t)(n + 127) << 23);
}

/* Returns p, e^x = p * 2^n with the integer n = *t - 0x1.8p23, in the lower bits of *t. */
MATHF float mathf_exp_reduce(float x, float *t)
{
	const float round = 0x1.8p23f; /* its ulp is 1: adding it rounds to an integer */
	float n, r, p;

	*t = fmaf(x, 0x1.715476p+0f, round);
	n = *t - round;
	r = fmaf(n, -0x1.62e4p-1f, x); /* exact: the upper 16 bits of ln 2, then the rest */
	r = fmaf(n, -0x1.7f7d1cp-20f, r);
	p = fmaf(0x1.6d1606p-10f, r, 0x1.12106cp-7f);
	p = fmaf(p, r, 0x1.555516p-5f);
	p = fmaf(p, r, 0x1.5554d8p-3f);
	p = fmaf(p, r, 0.5f);
	p = fmaf(p, r, 1.0f);
	return fmaf(p, r, 1.0f);
}

/* Returns e^x; error below 0.95 ulp; 0 for x <= -104, inf for x >= 89, NaN for NaN. */
MATHF float mathf_exp(float x)
{
	float t, p;
	int32_t whole, half;

	x = x < -104.0f ? -104.0f : x;
	x = x > 89.0f ? 89.0f : x;
	p = mathf_exp_reduce(x, &t);
	/* 2^n may be out of range: uses two factors in range, of which only the second rounds */
	whole = (int32_t)(mathf_bits(t) - mathf_bits(0x1.8p23f));
	whole = whole < -152 ? -152 : whole > 129 ? 129 : whole; /* if t is NaN */
	half = whole / 2;
	return p * mathf_pow2(half) * mathf_pow2(whole - half);
}

/* Returns mathf_exp(x), |x| < 87: neither 2^n nor the result is out of range. */
MATHF float mathf_exp_near(float x)
{
	float t, p = mathf_exp_reduce(x, &t);

	return mathf_from_bits(mathf_bits(p) + (mathf_bits(t) << 23)); /* the bits of 2^23 leave */
}

/* Returns ln x, x > 0; error below 0.51 ulp. x = 2^k (1 + f), ln(1 + f) = 2 artanh(f / (2 + f)). */
MATHF float mathf_log(float x)
{
	uint64_t bits;
	double y = (double)x, k, f, s, z, p;

	if (!(x > 0.0f) || x > 0x1.fffffep127f)
		return x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
	memcpy(&bits, &y, sizeof bits);
	k = (double)((int64_t)(bits >> 52) - 1023);
	bits = (bits & 0xfffffffffffff) | (uint64_t)1023 << 52;
	memcpy(&f, &bits, sizeof f);
	if (f > 0x1.6a09e667f3bcdp0) {
		f = f / 2;
		k = k + 1;
	}
	s = (f - 1) / (f + 1);
	z = s * s;
	p = 2.0 / 13 * z + 2.0 / 11;
	p = p * z + 2.0 / 9;
	p = p * z + 2.0 / 7;
	p = p * z + 2.0 / 5;
	p = p * z + 2.0 / 3;
	p = p * z + 2.0;
	return (float)(k * 0x1.62e42fefa39efp-1 + s * p);
}

/* Returns tanh x; error below 2 ulp. */
MATHF float mathf_tanh(float x)
{
	float a = fabsf(x), z = x * x, p, large;

	p = fmaf(0x1.36bdb2p-9f, z, -0x1.1394cap-7f);
	p = fmaf(p, z, 0x1.64fad8p-6f);
	p = fmaf(p, z, -0x1.ba0d94p-5f);
	p = fmaf(p, z, 0x1.1110f6p-3f);
	p = fmaf(p, z, -0x1.555556p-2f);
	p = fmaf(p * z, a, a);
	large = 1.0f - 2.0f / (mathf_exp(a + a) + 1.0f);
	return copysignf(a < 0.6f ? p : large, x);
}

/* Returns erf x; error below 2 ulp. */
MATHF float mathf_erf(float x)
{
	float a = fabsf(x), z = x * x, p, q;

	p = fmaf(0x1.4a5690p-14f, z, -0x1.a45088p-11f);
	p = fmaf(p, z, 0x1.541270p-8f);
	p = fmaf(p, z, -0x1.b7fabap-6f);
	p = fmaf(p, z, 0x1.ce2d10p-4f);
	p = fmaf(p, z, -0x1.81273ep-2f);
	p = fmaf(p, z, 0x1.06eba8p-3f);
	p = fmaf(p, x, x);
	/* 1 - erf(a) = e^-q(a) for 1 <= a <= 4; erf(4) rounds to 1 */
	a = a > 4.0f ? 4.0f : a;
	q = fmaf(-0x1.b77830p-20f, a, 0x1.825ce4p-15f);
	q = fmaf(q, a, -0x1.38e5e6p-11f);
	q = fmaf(q, a, 0x1.37ecc6p-8f);
	q = fmaf(q, a, -0x1.b0e246p-6f);
	q = fmaf(q, a, 0x1.c2e356p-4f);
	q = fmaf(q, a, 0x1.437eb4p-1f);
	q = fmaf(q, a, 0x1.2156fap+0f);
	q = fmaf(q, a, -0x1.4fb068p-12f);
	return a < 1.0f ? p : copysignf(1.0f - mathf_exp(-q), x);
}

#endif

/*
 * test_math.c - exp, log, pow, sin and cos of core/base against libm, and against their results on
 * other machines.
 */
#include "core/base/math.h"
#include "tests/support/draw.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdbool.h>

enum { ROUNDS = 200000 };

static double draw_unit(void)
{
	static uint64_t state = 1;

	return (double)draw_below(&state, UINT64_C(1) << 53) * 0x1p-53;
}

/* Returns whether `a` and `b` differ by at most `ulps` ulps of b. */
static bool is_within_ulps(double a, double b, double ulps)
{
	return fabs(a - b) <= ulps * (nextafter(fabs(b), INFINITY) - fabs(b));
}

START_TEST(exp_and_log)
{
	for (int i = 0; i < ROUNDS; i++) {
		double x = draw_unit() * 1400 - 700,
		       y = ldexp(1 + draw_unit(), (int)(draw_unit() * 2000) - 1000);
		double near = 0.5 + draw_unit();

		MUST(is_within_ulps(tess_exp_f64(x), exp(x), 2));
		MUST(is_within_ulps(tess_log_f64(y), log(y), 2));
		MUST(is_within_ulps(tess_log_f64(near), log(near), 2));
	}
	ck_assert(tess_exp_f64(0) == 1 && tess_log_f64(1) == 0);
	ck_assert(is_within_ulps(tess_exp_f64(-744), exp(-744), 1));
	ck_assert(is_within_ulps(tess_log_f64(5e-324), log(5e-324), 1));
	ck_assert(isinf(tess_exp_f64(709.79)) && tess_exp_f64(-746) == 0 &&
	          isfinite(tess_exp_f64(709.78)));
	ck_assert(isinf(tess_exp_f64(INFINITY)) && tess_exp_f64(-INFINITY) == 0 &&
	          isnan(tess_exp_f64(NAN)));
	ck_assert(tess_log_f64(0) == -INFINITY && isnan(tess_log_f64(-1)) &&
	          isnan(tess_log_f64(NAN)));
	ck_assert(isinf(tess_log_f64(INFINITY)));
}
END_TEST

START_TEST(sin_and_cos)
{
	for (int i = 0; i < ROUNDS; i++) {
		double small = draw_unit() * 100 - 50, large = (draw_unit() - 0.5) * 0x1p32;
		double whole = floor(draw_unit() * 0x1p31),
		       edge = floor(draw_unit() * 1000) * M_PI_2;

		MUST(is_within_ulps(tess_sin_f64(small), sin(small), 2) &&
		     is_within_ulps(tess_cos_f64(small), cos(small), 2));
		MUST(is_within_ulps(tess_sin_f64(large), sin(large), 2) &&
		     is_within_ulps(tess_cos_f64(large), cos(large), 2));
		MUST(is_within_ulps(tess_sin_f64(whole), sin(whole), 2) &&
		     is_within_ulps(tess_cos_f64(whole), cos(whole), 2));
		MUST(is_within_ulps(tess_sin_f64(edge), sin(edge), 2) &&
		     is_within_ulps(tess_cos_f64(edge), cos(edge), 2));
	}
	ck_assert(tess_sin_f64(0) == 0 && tess_cos_f64(0) == 1);
	ck_assert(isnan(tess_sin_f64(0x1p32)) && isnan(tess_cos_f64(INFINITY)) &&
	          isnan(tess_sin_f64(NAN)));
}
END_TEST

START_TEST(powers)
{
	for (int i = 0; i < ROUNDS; i++) {
		double base = 1 + draw_unit() * 1e6, x = draw_unit(), p = pow(base, x);

		MUST(fabs(tess_pow_f64(base, x) - p) <= p * (log(p) + 2) * 0x1p-52);
	}
}
END_TEST

/*
 * Checks the FNV-1a hash of many results: a compiler, CPU or flag that changes one bit changes it.
 */
START_TEST(the_same_bits_everywhere)
{
	uint64_t hash = 14695981039346656037u;

	for (int i = 0; i < 100000; i++) {
		union {
			double v[4];
			unsigned char byte[32];
		} u = { {
			tess_exp_f64(i * 0.01 - 500),
			tess_log_f64(i * 0.37 + 0.001),
			tess_sin_f64(i * 21474.1),
			tess_cos_f64(i * 21474.1),
		} };

		for (size_t j = 0; j < sizeof u; j++)
			hash = (hash ^ u.byte[j]) * 1099511628211u;
	}
	ck_assert_uint_eq(hash, 0x51ce9fde1c080159u);
}
END_TEST

SUITE_MAIN("math", exp_and_log, sin_and_cos, powers, the_same_bits_everywhere)

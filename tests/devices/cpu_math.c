/* cpu_math.c - exp, log, erf and tanh of the CPU device against libm in double. */
#include "devices/mathf.h"
#include "tests/support/suite.h"

#include <stdbool.h>

/* Returns the error of `got` in ulps of the float nearest to `want`. */
static double compute_ulp_error(float got, double want)
{
	float near = (float)want;
	int exponent;

	if (near == 0.0f || fabs(want) < 0x1p-126)
		return fabs((double)got - want) / 0x1p-149;
	frexpf(near, &exponent);
	return fabs((double)got - want) / ldexp(1, exponent - 24);
}

/* Finds the worst error of every `step`-th float from `lo` to `hi`, which have one sign. */
static double find_worst_error(float (*own)(float), double (*true_one)(double), float lo, float hi,
                               uint32_t step)
{
	uint32_t from = mathf_bits(lo), to = mathf_bits(hi), swap;
	double max = 0, e;

	if (from > to) {
		swap = from;
		from = to;
		to = swap;
	}
	for (uint64_t b = from; b <= to; b += step) {
		float x = mathf_from_bits((uint32_t)b);

		e = compute_ulp_error(own(x), true_one((double)x));
		max = e > max ? e : max;
	}
	return max;
}

START_TEST(exponential)
{
	double up = find_worst_error(mathf_exp, exp, 1e-10f, 88.7f, 97),
	       down = find_worst_error(mathf_exp, exp, -1e-10f, -87.3f, 97);
	double tiny = find_worst_error(mathf_exp, exp, -87.3f, -103.9f, 7);

	ck_assert_msg(up < 0.95 && down < 0.95 && tiny < 0.95, "errors %g, %g, subnormal %g ulp",
	              up, down, tiny);
	MUST(mathf_exp(0.0f) == 1.0f && mathf_exp(-0.0f) == 1.0f);
	MUST(mathf_bits(mathf_exp(-INFINITY)) == 0 && mathf_bits(mathf_exp(-104.0f)) == 0);
	MUST(mathf_bits(mathf_exp(-1e30f)) == 0);
	MUST(isinf(mathf_exp(INFINITY)) && isinf(mathf_exp(89.0f)) && isinf(mathf_exp(1e30f)));
	MUST(!isinf(mathf_exp(88.7f)));
	MUST(isnan(mathf_exp(NAN)) && isnan(mathf_exp(-NAN)));
}
END_TEST

START_TEST(logarithm)
{
	double below = find_worst_error(mathf_log, log, 0x1p-126f, 0.999f, 797),
	       above = find_worst_error(mathf_log, log, 1.001f, 3e38f, 797);
	double near = find_worst_error(mathf_log, log, 0.999f, 1.001f, 7),
	       tiny = find_worst_error(mathf_log, log, 0x1p-149f, 0x1p-126f, 997);

	ck_assert_msg(below < 0.51 && above < 0.51 && near < 0.51 && tiny < 0.51,
	              "errors %g, %g, near 1 %g, subnormal %g ulp", below, above, near, tiny);
	MUST(mathf_bits(mathf_log(1.0f)) == 0);
	MUST(mathf_log(0.0f) == -INFINITY && mathf_log(-0.0f) == -INFINITY);
	MUST(mathf_log(INFINITY) == INFINITY);
	MUST(isnan(mathf_log(-1.0f)) && isnan(mathf_log(NAN)));
}
END_TEST

/* Checks an odd function that converges to 1; its formula changes at `middle`. */
static void check_sigmoid(float (*own)(float), double (*true_one)(double), float middle, float end)
{
	double small = find_worst_error(own, true_one, 1e-30f, middle, 97),
	       large = find_worst_error(own, true_one, middle, end, 97);

	ck_assert_msg(small < 2 && large < 2, "errors %g, %g ulp", small, large);
	MUST(mathf_bits(own(-0.0f)) == mathf_bits(-0.0f));
	MUST(own(INFINITY) == 1.0f && own(-INFINITY) == -1.0f && isnan(own(NAN)));
	MUST(own(-0.3f) == -own(0.3f) && own(-2.5f) == -own(2.5f));
}

START_TEST(error_function_and_hyperbolic_tangent)
{
	check_sigmoid(mathf_erf, erf, 1.0f, 10.0f);
	check_sigmoid(mathf_tanh, tanh, 0.6f, 20.0f);
}
END_TEST

SUITE_MAIN("cpu_math", exponential, logarithm, error_function_and_hyperbolic_tangent)

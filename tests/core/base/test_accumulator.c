/*
 * test_accumulator.c - the order-free sum of core/base/accumulator against Shewchuk's exact sums of
 * doubles.
 */
#include "core/base/accumulator.h"
#include "tests/support/draw.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { N = 300000 };

/* Returns the exact sum of n doubles, rounded to nearest, by partial sums that do not overlap. */
static double sum_exactly(const double *x, int64_t n)
{
	double part[64], sum = 0, low = 0;
	int32_t used = 0;

	for (int64_t i = 0; i < n; i++) {
		double v = x[i];
		int32_t kept = 0;

		for (int32_t k = 0; k < used; k++) {
			double big = fabs(v) < fabs(part[k]) ? part[k] : v;
			double small = big == v ? part[k] : v, s = big + small;
			double rest = small - (s - big);

			if (rest != 0)
				part[kept++] = rest;
			v = s;
		}
		part[kept++] = v;
		used = kept;
	}
	while (used > 0 && low == 0) {
		double old = sum;

		sum = old + part[--used];
		low = part[used] - (sum - old);
	}
	/* half an ulp is left: the partial below decides the rounding */
	if (used > 0 && (low < 0) == (part[used - 1] < 0) && sum + 2 * low - sum == 2 * low)
		sum += 2 * low;
	return sum;
}

/* Draws floats of all finite exponents; `spread` of them around `middle`. */
static float draw_float(uint64_t *state, int32_t middle, int32_t spread)
{
	int32_t e = middle + (int32_t)draw_below(state, (uint64_t)spread) - spread / 2;
	uint32_t bits = (uint32_t)draw_below(state, 1 << 23) |
	                (uint32_t)(e < 0     ? 0
	                           : e > 254 ? 254
	                                     : e)
	                        << 23 |
	                (uint32_t)draw_below(state, 2) << 31;
	float f;

	memcpy(&f, &bits, sizeof f);
	return f;
}

static void expect_bits(double have, double want)
{
	ck_assert_msg(!memcmp(&have, &want, sizeof have), "%a, expected %a", have, want);
}

static const struct {
	int32_t middle, spread;
	int64_t n;
} draws[] = { { 120, 30, N }, { 127, 256, N }, { 0, 2, N },    { 254, 2, 1000 }, { 100, 1, N },
	      { 127, 60, 1 }, { 127, 100, 2 }, { 127, 60, 3 }, { 0, 60, 7 } };

START_TEST(equals_exact_arithmetic)
{
	float *x = calloc(N, sizeof *x);
	double *d = calloc(N, sizeof *d);
	uint64_t state = 17 + (uint64_t)_i;

	for (int32_t round = 0; round < (draws[_i].n < 100 ? 2000 : 1); round++) {
		struct tess_accumulator sum = { 0 }, squares = { 0 };
		int64_t n = draws[_i].n;

		for (int64_t i = 0; i < n; i++)
			x[i] = draw_float(&state, draws[_i].middle, draws[_i].spread);
		tess_accumulator_add(&sum, x, n);
		tess_accumulator_add_squares(&squares, x, n);
		for (int64_t i = 0; i < n; i++)
			d[i] = (double)x[i];
		expect_bits(tess_accumulator_round(&sum), sum_exactly(d, n));
		for (int64_t i = 0; i < n; i++)
			d[i] = (double)x[i] * (double)x[i];
		expect_bits(tess_accumulator_round(&squares), sum_exactly(d, n));
	}
	free(x);
	free(d);
}
END_TEST

/* Checks that any split over ranks, in any order, gives equal digits once they are added. */
START_TEST(any_order)
{
	struct tess_accumulator one = { 0 }, parts[7] = { { { 0 }, 0 } }, all = { 0 };
	float *x = calloc(N, sizeof *x);
	uint64_t state = 3;
	int64_t fields[TESS_ACCUMULATOR_FIELDS] = { 0 }, at = 0;

	for (int64_t i = 0; i < N; i++)
		x[i] = draw_float(&state, 110, 200);
	tess_accumulator_add(&one, x, N);
	for (int32_t k = 0; at < N; k++) {
		int64_t n = 1 + (int64_t)draw_below(&state, 40000);

		n = n < N - at ? n : N - at;
		tess_accumulator_add(&parts[k % 7], x + at, n);
		at += n;
	}
	for (int32_t k = 6; k >= 0; k--)
		for (int32_t i = 0; i < TESS_ACCUMULATOR_FIELDS; i++)
			fields[i] += ((int64_t *)&parts[k])[i];
	memcpy(&all, fields, sizeof all);
	expect_bits(tess_accumulator_round(&all), tess_accumulator_round(&one));
	free(x);
}
END_TEST

START_TEST(ends)
{
	struct tess_accumulator a = { 0 };
	const float odd[] = { 1, INFINITY, 2, -INFINITY }, nan[] = { NAN };
	/* 1 + 2^-53 is a tie, decided by the smallest float; the large ones cancel */
	const float tie[] = { 0x1p100f, 1, 0x1p-53f, 0x1p-149f, -0x1p100f };

	expect_bits(tess_accumulator_round(&a), 0);
	tess_accumulator_add(&a, tie, 5);
	expect_bits(tess_accumulator_round(&a), 1 + 0x1p-52);
	a = (struct tess_accumulator){ 0 };
	tess_accumulator_add(&a, tie + 1, 2);
	expect_bits(tess_accumulator_round(&a), 1);
	tess_accumulator_add(&a, odd, 4);
	ck_assert(a.nonfinite == 2 && isnan(tess_accumulator_round(&a)));
	a = (struct tess_accumulator){ 0 };
	tess_accumulator_add_squares(&a, nan, 1);
	ck_assert(a.nonfinite == 1);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("accumulator", 60, &r);

	tcase_add_loop_test(t, equals_exact_arithmetic, 0, sizeof draws / sizeof *draws);
	tcase_add_test(t, any_order);
	tcase_add_test(t, ends);
	return suite_end(r);
}

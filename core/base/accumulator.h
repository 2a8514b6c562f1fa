/* accumulator.h - sums of f32, and of squares of f32, without rounding: the same in any order. */
#ifndef TESS_BASE_ACCUMULATOR_H
#define TESS_BASE_ACCUMULATOR_H

#include <stdint.h>

enum { TESS_ACCUMULATOR_DIGITS = 18 };

/*
 * {0}: nothing was added. Accumulators are added field by field, as vectors of i64, in any order:
 * up to 2^20 of them, each as the functions below leave it.
 */
struct tess_accumulator {
	int64_t digit[TESS_ACCUMULATOR_DIGITS]; /* their sum: digit[i] * 2^(32 * i - 298) */
	int64_t nonfinite; /* how many NaN and Inf were added, which are in no digit */
};
enum { TESS_ACCUMULATOR_FIELDS = TESS_ACCUMULATOR_DIGITS + 1 };

/* n < 2^62. Afterwards all digits but the last are in [0, 2^32). */
void tess_accumulator_add(struct tess_accumulator *a, const float *x, int64_t n);
void tess_accumulator_add_squares(struct tess_accumulator *a, const float *x, int64_t n);

/* To the nearest double, ties to even; NaN if a value was not finite. */
double tess_accumulator_round(const struct tess_accumulator *a);

#endif

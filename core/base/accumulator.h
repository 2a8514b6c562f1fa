/* accumulator.h - sums of f32, and of squares of f32, without rounding: equal in any order. */
#ifndef TESS_BASE_ACCUMULATOR_H
#define TESS_BASE_ACCUMULATOR_H

#include <stdint.h>

enum { TESS_ACCUMULATOR_DIGITS = 18 };

/*
 * An exact sum; {0} is empty. Up to 2^20 accumulators, normalized by the functions below, may be
 * added field by field, as vectors of i64, in any order.
 */
struct tess_accumulator {
	int64_t digit[TESS_ACCUMULATOR_DIGITS]; /* the sum of digit[i] * 2^(32 * i - 298) */
	int64_t nonfinite; /* number of NaN and Inf among the values; they are in no digit */
};
enum { TESS_ACCUMULATOR_FIELDS = TESS_ACCUMULATOR_DIGITS + 1 };

/* Add n < 2^62 values or their squares. Afterwards all digits but the last are in [0, 2^32). */
void tess_accumulator_add(struct tess_accumulator *a, const float *x, int64_t n);
void tess_accumulator_add_squares(struct tess_accumulator *a, const float *x, int64_t n);

/* Returns the sum as the nearest double, ties to even; NaN if a value was not finite. */
double tess_accumulator_round(const struct tess_accumulator *a);

#endif

/*
 * math.h - log, pow, sin, cos in double with the same bits on every machine, as tessera/exp.h has
 * exp: +, -, *, / and integers only, in the order written, without contraction, rounding to
 * nearest. log, sin and cos err by less than 1 unit in the last place.
 */
#ifndef TESS_BASE_MATH_H
#define TESS_BASE_MATH_H

#include <tessera/exp.h>

/* -inf at 0, NaN below. */
double tess_log_f64(double x);

/*
 * exp(y * log(x)) for x > 0: relative error below (|y * log(x)| + 2) * 2^-52, enough for a result
 * in float.
 */
double tess_pow_f64(double x, double y);

/*
 * x in radians, |x| <= 2^31, NaN beyond. The angle is reduced with an error below 2^-86, which is
 * more than 1 unit in the last place only for results below 2^-33.
 */
double tess_sin_f64(double x);
double tess_cos_f64(double x);

#endif

/*
 * math.h - log, pow, sin, cos in double with the same bits on every machine, like tess_exp_f64:
 * +, -, *, / and integers only, in the written order, without contraction, rounding to nearest.
 * The errors of log, sin and cos are below 1 unit in the last place.
 */
#ifndef TESS_BASE_MATH_H
#define TESS_BASE_MATH_H

#include <tessera/util/exp.h>

/* Returns log(x); -inf at 0, NaN below. */
double tess_log_f64(double x);

/*
 * Returns exp(y * log(x)) for x > 0, with a relative error below (|y * log(x)| + 2) * 2^-52, which
 * suffices for a result in float.
 */
double tess_pow_f64(double x, double y);

/*
 * Return sine and cosine of x in radians, |x| <= 2^31; NaN beyond. The reduction of the angle has
 * an error below 2^-86, more than 1 unit in the last place only for results below 2^-33.
 */
double tess_sin_f64(double x);
double tess_cos_f64(double x);

#endif

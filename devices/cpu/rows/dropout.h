/* dropout.h - which elements a dropout keeps, by docs/ops.md: DROPOUT, and weights of attention. */
#ifndef TESS_DEVICES_CPU_DROPOUT_H
#define TESS_DEVICES_CPU_DROPOUT_H

#include "cpu.h"

struct dropout {
	uint64_t below; /* words that drop; 0: nothing is dropped */
	float scale; /* of what is kept */
	uint32_t key[2], first; /* of the step; its first sequence here */
};

/* step: i32 [4]; not read if the rate is 0. */
#define dropout_read CPU_NAME(dropout_read)
struct dropout dropout_read(double rate, const struct tess_view *step);

/*
 * x[i] for i < n, element column + i of row (position, slot) of a site: scaled, or 0. In place.
 */
#define dropout_apply CPU_NAME(dropout_apply)
void dropout_apply(const struct dropout *d, int64_t position, int64_t slot, int64_t site,
                   int64_t column, int64_t n, const float *x, float *y);

/* The factors of columns [column, column + 4) of n <= 64 rows from `position` on: to[4][64]. */
#define dropout_list_factors CPU_NAME(dropout_list_factors)
void dropout_list_factors(const struct dropout *d, int64_t position, int64_t slot, int64_t site,
                          int64_t column, float *to);

#endif

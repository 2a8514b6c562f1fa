/* dropout.h - the elements kept by a dropout: DROPOUT, and attention weights. */
#ifndef TESS_DEVICES_CPU_DROPOUT_H
#define TESS_DEVICES_CPU_DROPOUT_H

#include "cpu.h"

struct dropout {
	uint64_t below; /* random words below this drop; 0: none */
	float scale; /* factor of kept elements */
	uint32_t key[2], first; /* key of the step; index of the first sequence here */
};

/* Reads the state of a dropout. step: i32 [4]; not read if the rate is 0. */
#define dropout_read CPU_NAME(dropout_read)
struct dropout dropout_read(double rate, const struct tess_view *step);

/*
 * Scales x[i] for i < n, element column + i of row (position, slot) of a site, or sets it to 0.
 */
#define dropout_apply CPU_NAME(dropout_apply)
void dropout_apply(const struct dropout *d, int64_t position, int64_t slot, int64_t site,
                   int64_t column, int64_t n, const float *x, float *y);

/* Lists factors of columns [column, column + 4) of n <= 64 rows from `position` on: to[4][64]. */
#define dropout_list_factors CPU_NAME(dropout_list_factors)
void dropout_list_factors(const struct dropout *d, int64_t position, int64_t slot, int64_t site,
                          int64_t column, float *to);

#endif

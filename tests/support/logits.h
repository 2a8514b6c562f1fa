/* logits.h - rows of logits of several kinds, for the tests of sampling. */
#ifndef TESS_TESTS_SUPPORT_LOGITS_H
#define TESS_TESTS_SUPPORT_LOGITS_H

#include "draw.h"

#include <math.h>

enum { RANDOM, FLAT, TWO_VALUES, STEPS, SPIKE, FAR, ZEROS, CLOSE, KINDS };

static inline void make_logits(int kind, uint64_t *seed, float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		float r = (float)draw_below(seed, 1 << 20) / (1 << 16) - 8;

		x[i] = kind == RANDOM       ? r
		       : kind == FLAT       ? 3
		       : kind == TWO_VALUES ? (r < 7 ? -1 : 1)
		       : kind == STEPS      ? floorf(r)
		       : kind == SPIKE      ? (i == n / 2 ? 40 : r)
		       : kind == FAR        ? (i % 3 ? -1e30f : 1e4f * r)
		       : kind == ZEROS      ? (i % 2 ? -0.0f : 0.0f)
		                            : 1 + r * 1e-7f;
	}
}

#endif

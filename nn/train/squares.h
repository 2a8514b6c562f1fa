/* squares.h - sums of the squares of gradients, without rounding: equal in any order. */
#ifndef TESS_NN_SQUARES_H
#define TESS_NN_SQUARES_H

#include "core/base/accumulator.h"
#include "nn/weights/parameters.h"

/* Checks that the device has an op that every step needs. TESS_ENOTSUP. */
tess_status tess_squares_check_device(const struct tess_device *device);

struct tess_squares_part { /* adjacent elements of the gradient that a rank keeps of a weight */
	const struct tess_weight *weight;
	int64_t first, n;
	float *gradient; /* in memory of the device */
};
/*
 * Adds the squares of those elements of a part that the rank owns to *sum, in memory of the device,
 * for which it queues ops.
 */
tess_status tess_squares_add_part(const struct tess_opened_device *device,
                                  const struct tess_parameters *s,
                                  const struct tess_squares_part *part,
                                  struct tess_accumulator *sum);

#endif

/* optimizer.h - AdamW and SGD on what a rank keeps of each weight. docs/ops.md has the formulas. */
#ifndef TESS_NN_OPTIMIZER_H
#define TESS_NN_OPTIMIZER_H

#include "nn/weights/parameters.h"

struct tess_optimizer { /* a value */
	int32_t kind; /* TESS_ADAMW, TESS_SGD */
	double beta1, beta2, eps, momentum, decay;
};

/* TESS_EINVAL and a sentence where a number of the options is out of its range. */
tess_status tess_optimizer_read(const struct tess_trainer_options *options,
                                struct tess_optimizer *out);
/* f32 values that it keeps for each element: 0 to 2. */
int32_t tess_optimizer_count_moments(const struct tess_optimizer *o);

/*
 * Step 1, 2, ...: changes masters, moments and weights of what this rank keeps as state. factor: of
 * the gradients, for clipping. Not collective; blocking.
 */
tess_status tess_optimizer_update(const struct tess_optimizer *o, struct tess_parameters *s,
                                  double lr, double factor, int64_t step);

#endif

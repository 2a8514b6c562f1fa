/* optimizer.h - AdamW and SGD (tessera/device.h) on what a rank keeps of each weight. */
#ifndef TESS_NN_OPTIMIZER_H
#define TESS_NN_OPTIMIZER_H

#include "nn/weights/parameters.h"

struct tess_optimizer { /* a value */
	int32_t kind; /* TESS_ADAMW, TESS_SGD */
	double beta1, beta2, eps, momentum, decay;
};

/* Reads and checks the options. TESS_EINVAL: a number is out of range. */
tess_status tess_optimizer_read(const struct tess_trainer_options *options,
                                struct tess_optimizer *out);
/* Returns the number of f32 moments per element: 0 to 2. */
int32_t tess_optimizer_count_moments(const struct tess_optimizer *o);

/*
 * Runs step 1, 2, ... on the part whose state this rank keeps: masters, moments and weights.
 * factor: scales the gradients, for clipping. Not collective; blocking.
 */
tess_status tess_optimizer_update(const struct tess_optimizer *o, struct tess_parameters *s,
                                  double lr, double factor, int64_t step);

#endif

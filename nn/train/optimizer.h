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

struct tess_optimizer_step { /* step 1, 2, ... */
	int64_t number;
	double lr;
	double factor; /* scales the gradients, for clipping */
};
struct tess_optimizer_values { /* n adjacent elements of a weight, in memory of the device */
	int64_t n;
	const float *gradient;
	float *master, *moment[2]; /* moments that the optimizer does not have: not used */
	void *rounded; /* of a weight that is not f32: where masters are rounded to */
};
/* Changes elements of a weight. Queues an op on the device's stream. */
tess_status tess_optimizer_run(const struct tess_optimizer *o,
                               const struct tess_optimizer_step *step,
                               const struct tess_opened_device *device, const struct tess_weight *w,
                               const struct tess_optimizer_values *v);

/* Checks a dtype of products of training: 0, TESS_F32 or TESS_BF16. TESS_EINVAL. */
tess_status tess_trainer_check_math(int32_t dtype);

#endif

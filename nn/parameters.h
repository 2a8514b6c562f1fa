/*
 * parameters.h - what a rank keeps of each weight to train it: weight, master, gradient, moments.
 */
#ifndef TESS_NN_PARAMETERS_H
#define TESS_NN_PARAMETERS_H

#include "nn/storage.h"
#include "nn/weights.h"

struct tess_parameter { /* of one weight; NULL: there is no such thing */
	void *weight; /* writable, in its dtype: the span kept at rest */
	/* f32, each the span kept as state; of an f32 weight whose two spans are one `master` is
	 * `weight` */
	float *master, *gradient, *moment[2];
	struct tess_run rest, state;
	int64_t gradient_at; /* f32 elements before it in the memory of gradients */
	bool trained;
};

struct tess_parameters {
	const struct tess_program *program; /* borrowed */
	int32_t rank;
	struct tess_rank_weights weights; /* views for tess_program_lower */
	struct tess_parameter *each; /* by index of the weight; of a tied head: of its table */
	float *gradients; /* tess_memory.gradients */
	struct tess_opened_device device; /* a copy */
	struct tess_arena arena;
	struct tess_stored_tensor *tensor;
	int64_t ntensors;
	uint64_t weight_bytes, gradient_bytes, state_bytes; /* allocated */
};

/*
 * Reads this rank's part of the weights of a training program; gradients and moments are zero.
 * moments: 0 to 2 for each weight. Program and device must outlive *out, which is yours:
 * tess_parameters_free.
 */
tess_status tess_parameters_load(const struct tess_program *p, const struct tess_source *source,
                                 int32_t rank, const struct tess_opened_device *device,
                                 int32_t moments, struct tess_parameters *out);
void tess_parameters_free(struct tess_parameters *s);

/* The memory of a weight that `what` (TESS_WEIGHT, ...) names; NULL: none. The span is *kept. */
void *tess_parameter_find(const struct tess_parameters *s, const struct tess_weight *w,
                          int32_t what, struct tess_run *kept, int32_t *dtype);

#endif

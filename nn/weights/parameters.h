/*
 * parameters.h - what a rank keeps of each weight to train it: weight, master, gradient, moments;
 * in memory of the device (nn/weights/kept.h: what the host has of it).
 */
#ifndef TESS_NN_PARAMETERS_H
#define TESS_NN_PARAMETERS_H

#include "nn/lower/lower.h"
#include "nn/program/storage.h"
#include "nn/weights/weights.h"

struct tess_parameter { /* of one weight, whose spans are those of nn/program/storage.h */
	struct tess_run rest, state;
	bool trained; /* else there is nothing but the weight */
	void *weight; /* in its dtype */
	/* of an f32 weight the span of `weight` that is the state's, else memory of its own */
	float *master;
	float *gradient; /* of the last step */
	float *moment[2];
};

struct tess_parameters {
	const struct tess_program *program; /* borrowed */
	int32_t rank;
	struct tess_rank_weights weights; /* views for tess_program_lower */
	struct tess_parameter *each; /* by index of the weight; of a tied head: of its table */
	struct tess_stored_tensor *tensor; /* of the files */
	int64_t ntensors;
	uint64_t weight_bytes, gradient_bytes, state_bytes; /* allocated */
	float *state, *gradients; /* what `each` points into */
	struct tess_arena arena;
};

/*
 * Reads this rank's part of the weights of a training program, which gets `moments` values of state
 * for each element, 0 at first. Program and device must outlive *out, which is yours:
 * tess_parameters_free.
 */
tess_status tess_parameters_load(const struct tess_program *p, const struct tess_source *source,
                                 int32_t rank, const struct tess_opened_device *device,
                                 int32_t moments, struct tess_parameters *out);
/* Whether there is room for it, with gradients, on a device whose memory is not the host's. */
tess_status tess_parameters_check_room(const struct tess_program *p, int32_t rank,
                                       const struct tess_opened_device *device, int32_t moments);
/* Memory of gradients, as the steps of a lowered program need it. */
tess_status tess_parameters_alloc_gradients(struct tess_parameters *s,
                                            const struct tess_rank_program *l);
/*
 * After the optimizer: weights that are whole at rest, of which each rank has changed the share
 * that is its state. Collective over the ranks that keep the shares; blocking.
 */
tess_status tess_parameters_share(const struct tess_parameters *s, struct tess_group *shards);
void tess_parameters_free(struct tess_parameters *s);

/*
 * What `what` (TESS_WEIGHT, ...) names of a weight: *kept elements of *dtype, of TESS_REST for the
 * weight and else of TESS_STATE. NULL: it has no such thing.
 */
void *tess_parameter_find(const struct tess_parameters *s, const struct tess_weight *w,
                          int32_t what, int32_t *dtype, int64_t *kept);

/* tess_trainer_gather, to host memory, over the group of all ranks of the program's mesh. */
tess_status tess_parameters_gather(const struct tess_parameters *s, struct tess_group *group,
                                   int32_t what, int64_t i, int64_t first, int64_t n, int32_t root,
                                   void *out);

#endif

/*
 * parameters.h - a rank's part of each weight in training: weight, master, gradient, moments, in
 * memory of the device. nn/weights/kept.h gives the host access.
 */
#ifndef TESS_NN_PARAMETERS_H
#define TESS_NN_PARAMETERS_H

#include "nn/lower/lower.h"
#include "nn/offload/offload.h"
#include "nn/program/storage.h"
#include "nn/weights/weights.h"

struct tess_parameter { /* one weight */
	struct tess_run rest, state; /* spans of its local part: nn/program/storage.h */
	bool trained; /* else it has neither master, gradient nor moments */
	bool own; /* the weight is its own master */
	const struct tess_stored_tensor *tensor; /* the first of its tensors, which are adjacent */
	int64_t ntensors;
	void *weight; /* in its dtype */
	/* of an f32 weight the state's span of `weight`, else memory of its own */
	float *master;
	bool has_gradient; /* the last step has computed one, or has room for a part of it */
	float *gradient; /* gradient of the last step; NULL: in a file, or none */
	float *moment[2];
};

struct tess_parameters {
	const struct tess_program *program; /* borrowed */
	int32_t rank;
	struct tess_rank_weights weights; /* views for tess_program_lower */
	/* by index of the weight; of a tied head only the gradient, if it is apart */
	struct tess_parameter *each;
	struct tess_stored_tensor *tensor; /* tensors of the checkpoint's files */
	int64_t ntensors;
	uint64_t weight_bytes, gradient_bytes, state_bytes; /* allocated */
	float *state, *gradients; /* memory for the pointers in `each` */
	struct tess_offload offload; /* what is in files instead of memory: no pointer in `each` */
	/* for ops on values in memory of the host, next to another device; {0}: there are none */
	struct tess_opened_device host;
	struct tess_arena arena;
};

/*
 * Loads this rank's part of the weights of a training program, with `moments` values of state for
 * each element, which start at 0. dir: the folders of files of weights and of state, for values
 * whose location is a disk. Program and device must outlive *out, which is yours:
 * tess_parameters_free.
 */
tess_status tess_parameters_load(const struct tess_program *p, const struct tess_source *source,
                                 int32_t rank, const struct tess_opened_device *device,
                                 int32_t moments, const char *const dir[2],
                                 struct tess_parameters *out);
/* Returns TESS_ENOMEM if a device with memory of its own has no room for values. */
tess_status tess_parameters_check_room(const struct tess_program *p, int32_t rank,
                                       const struct tess_opened_device *device, int32_t moments);
/* Makes room for the gradients of a lowered program; if the memory moves, they are lost. */
tess_status tess_parameters_reserve_gradients(struct tess_parameters *s,
                                              const struct tess_rank_program *l);
/* Finds the gradients where a bound program stores them. */
void tess_parameters_find_gradients(struct tess_parameters *s, const struct tess_rank_program *l);
/*
 * Gathers the updated shares of weights that are replicated at rest but whose state is sharded.
 * Collective over the ranks that keep the shares; blocking.
 */
tess_status tess_parameters_share(const struct tess_parameters *s, struct tess_group *shards);
void tess_parameters_free(struct tess_parameters *s);

/*
 * Returns the memory that `what` (TESS_WEIGHT, ...) names: *kept elements of *dtype, the span
 * TESS_REST for the weight and TESS_STATE for the others. NULL: absent.
 */
void *tess_parameter_find(const struct tess_parameters *s, const struct tess_weight *w,
                          int32_t what, int32_t *dtype, int64_t *kept);

/* Implements tess_trainer_gather. group: of all ranks of the program's mesh. */
tess_status tess_parameters_gather(const struct tess_parameters *s, struct tess_group *group,
                                   int32_t what, int64_t i, int64_t first, int64_t n, int32_t root,
                                   void *out);

#endif

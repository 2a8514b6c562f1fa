/* step_memory.h - memory of steps on a device: step arena, inputs, rope tables. */
#ifndef TESS_NN_STEP_MEMORY_H
#define TESS_NN_STEP_MEMORY_H

#include "nn/lower/lower.h"
#include "nn/weights/device.h"

struct tess_step_memory { /* {0}, but for what is borrowed: nothing is allocated */
	const struct tess_opened_device *device; /* borrowed */
	struct tess_group *shared; /* along the largest dimension: its sums are added in place */
	struct tess_memory at;
	uint64_t bytes; /* of at.step */
	bool is_shared; /* at.step is of the group, not of the device */
	bool is_registered; /* it is of the group's carrier */
	bool unlike; /* calls of a program lie at other places on other ranks */
	bool moved; /* since programs were bound to it; set by the caller too */
	int32_t *inputs[2]; /* of the last two steps, for at.inputs; ninputs */
	int64_t ninputs;
};

/* The group for `shared`, of those along each dimension of a mesh: along pp no sum is added. */
struct tess_group *tess_step_memory_choose_group(const struct tess_mesh_shape *mesh,
                                                 struct tess_group *const *along);
/*
 * The step arena, for a program that no step has run: it fits the largest. Collective over
 * `shared`; the caller agrees on the status with the other ranks, and sets `moved`: this program
 * must be bound in any case. calls: its tess_rank_program_hash_calls.
 */
tess_status tess_step_memory_reserve(struct tess_step_memory *s, uint64_t bytes, uint64_t calls);
/* Room for n inputs of 4 bytes. */
tess_status tess_step_memory_grow_inputs(struct tess_step_memory *s, int64_t n);
/* Tables of at least so many positions. */
tess_status tess_step_memory_grow_rope(struct tess_step_memory *s, const struct tess_program *p,
                                       int64_t positions);
/* Frees all of it; the device must be open. */
void tess_step_memory_free(struct tess_step_memory *s);

#endif

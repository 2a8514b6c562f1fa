/* step_memory.h - the memory of steps on a device: step arena, inputs, rope tables. */
#ifndef TESS_NN_STEP_MEMORY_H
#define TESS_NN_STEP_MEMORY_H

#include "nn/lower/lower.h"
#include "nn/weights/device.h"

struct tess_step_memory { /* {0} but for `device` and `shared`: nothing is allocated */
	const struct tess_opened_device *device; /* borrowed */
	struct tess_group *shared; /* along the largest dimension; adds its sums in place */
	struct tess_memory at;
	uint64_t bytes; /* size of at.step */
	bool is_shared; /* the group allocated at.step, not the device */
	bool is_registered; /* the group's carrier allocated at.step */
	bool offsets_differ; /* buffers of collectives have other offsets on some ranks */
	bool moved; /* programs must be bound again; the caller sets and clears it */
	int32_t *inputs[2]; /* host memory of the last two steps' inputs: ninputs each */
	int64_t ninputs;
};

/* Chooses the group for `shared` from those along each dimension; along pp there are no sums. */
struct tess_group *tess_step_memory_choose_group(const struct tess_mesh_shape *mesh,
                                                 struct tess_group *const *along);
/*
 * Grows the step arena for a program that has not run yet. The caller agrees on the status with the
 * other ranks, and sets `moved`: this program must be bound in any case. calls: its
 * tess_rank_program_hash_calls. Collective over `shared`.
 */
tess_status tess_step_memory_reserve(struct tess_step_memory *s, uint64_t bytes, uint64_t calls);
/* Allocates n inputs of 4 bytes. */
tess_status tess_step_memory_grow_inputs(struct tess_step_memory *s, int64_t n);
/* Fills rope tables of at least `positions`. */
tess_status tess_step_memory_grow_rope(struct tess_step_memory *s, const struct tess_program *p,
                                       int64_t positions);
/* Frees everything. The device must be open. */
void tess_step_memory_free(struct tess_step_memory *s);

#endif

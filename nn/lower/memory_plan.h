/* memory_plan.h - plans the offsets of a step's buffers in one arena, without overlap in use. */
#ifndef TESS_NN_MEMORY_PLAN_H
#define TESS_NN_MEMORY_PLAN_H

#include <tessera/plugin.h>

struct tess_lifetime { /* the lifetime of a buffer */
	uint64_t bytes, offset; /* bytes 0: it needs no offset */
	uint64_t align; /* of the offset, a power of two; 0: as `bytes` are */
	int32_t first, last; /* the first and the last step that use it */
};

/*
 * Sets the offset of each of n buffers, and *bytes to the size of the arena, which is close to the
 * peak of live bytes. Takes time n log n, plus some for each pair of buffers in use at the same
 * time. TESS_ENOMEM.
 */
tess_status tess_memory_plan_place(struct tess_lifetime *list, int32_t n, uint64_t *bytes);

#endif

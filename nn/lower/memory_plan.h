/* memory_plan.h - where the buffers of a step lie in one arena: no two overlap while both live. */
#ifndef TESS_NN_MEMORY_PLAN_H
#define TESS_NN_MEMORY_PLAN_H

#include <tessera/plugin.h>

struct tess_lifetime { /* of a buffer */
	uint64_t bytes, offset; /* 0 bytes: it needs no offset */
	int32_t first, last; /* the steps between which it is live, both included */
};

/*
 * Sets the offset of each of n buffers, and *bytes, the end of the one that ends last: little more
 * than are live at a time. Time n log n, and some for each pair that is live at the same time.
 * TESS_ENOMEM.
 */
tess_status tess_memory_plan_place(struct tess_lifetime *list, int32_t n, uint64_t *bytes);

#endif

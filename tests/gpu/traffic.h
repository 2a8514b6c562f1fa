/*
 * traffic.h - counts the memory traffic of a kernel, as a GPU's profiler would: the 32-byte sectors
 * of global memory that the lanes of a warp touch together, and the steps of shared memory, since
 * lanes that access different words of one bank take turns.
 */
#ifndef TESS_TESTS_GPU_TRAFFIC_H
#define TESS_TESTS_GPU_TRAFFIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct traffic { /* traffic of a kernel, so far */
	const char *kernel; /* NULL: the end */
	uint64_t used, moved; /* bytes of global memory requested by lanes; of their sectors */
	uint64_t least, steps; /* steps of shared memory: without bank conflicts; counted */
};

/*
 * Enables counting. Set before a kernel runs, or by PTX_TRAFFIC=FILE, to which a line for each
 * kernel is appended.
 */
extern bool traffic_counted;
/* Records an access by the running thread; `site`: its place in the code. */
void traffic_add(const char *kernel, const void *site, const char *p, unsigned bytes);
const struct traffic *traffic_get(void);

#endif

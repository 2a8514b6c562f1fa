/*
 * traffic.h - what the accesses of a kernel to memory move, as a GPU's profiler would count: the 32
 * bytes at a time (sectors) of global memory that the lanes of a warp touch at once, and the steps
 * that shared memory takes for them, since lanes that want other words of one bank take turns.
 */
#ifndef TESS_TESTS_GPU_TRAFFIC_H
#define TESS_TESTS_GPU_TRAFFIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct traffic { /* of a kernel, so far */
	const char *kernel; /* NULL: the end */
	uint64_t used, moved; /* bytes of global memory that lanes asked for; of their sectors */
	uint64_t least, steps; /* of shared memory: without banks that are asked twice; as it is */
};

/* Set before a kernel runs, or by PTX_TRAFFIC=FILE, to which a line for each kernel is added. */
extern bool traffic_counted;
/* An access by the running thread; `site`: which one of the code. */
void traffic_add(const char *kernel, const void *site, const char *p, unsigned bytes);
const struct traffic *traffic_get(void);

#endif

/*
 * counting.h - counts the bytes that a rank sends to others along the dimensions of a mesh, from
 * the calls that reach the backend.
 */
#ifndef TESS_TESTS_DTENSOR_COUNTING_H
#define TESS_TESTS_DTENSOR_COUNTING_H

#include <tessera/tessera.h>

/* Starts to count the calls that this thread makes in the n groups of a mesh; the count is 0. */
void counting_begin(struct tess_group *const *groups, int32_t n);
/* Ends counting, before the mesh is closed. Returns the bytes. */
uint64_t counting_end(void);

#endif

/* exact_add.h - the additions of an exact sum, for exact*.c. */
#ifndef TESS_GROUP_EXACT_ADD_H
#define TESS_GROUP_EXACT_ADD_H

#include "core/sum/exact.h"

/* Returns the f32 of scratch for nodes of `count` elements. */
uint64_t tess_sum_scratch_size(uint64_t count);

/*
 * Adds the first s->count elements of all nodes: part[r] is rank r's, with `stride` elements
 * between nodes. Writes the sum to `nout` vectors; out[0] is this rank's.
 */
void tess_sum_finish_all(const struct tess_sum *s, int32_t nranks, uint64_t stride,
                         const float *const *part, float *scratch, float *const *out, int32_t nout);

#endif

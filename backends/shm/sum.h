/* sum.h - sums of several ranks' vectors. */
#ifndef SHM_SUM_H
#define SHM_SUM_H

#include "layout.h"

/*
 * Adds `n` elements of each src, in order, into every dst. dst[0] is this rank's own, and may be
 * one of src. The others are written past the caches; call tess_stream_end before other ranks read
 * them.
 */
void sum_into_all(int32_t dtype, int32_t op, const void *const *src, int32_t nsrc, uint64_t n,
                  void *const *dst, int32_t ndst);

#endif

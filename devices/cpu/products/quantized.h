/* quantized.h - panels of TESS_Q8 weights: made from rows, widened, and multiplied in place. */
#ifndef TESS_DEVICES_CPU_QUANTIZED_H
#define TESS_DEVICES_CPU_QUANTIZED_H

#include "tile.h"

/* A pool_fn over panels, of the elements of one unit; arg: struct pack. */
#define quantize_panels CPU_NAME(quantize_panels)
pool_fn quantize_panels;

/* Bytes from the start of a panel to the scales of a step. */
static inline int64_t quantized_get_offset(const struct sum_step *s)
{
	return LANES * (s->at + 2 * s->groups);
}

/* The elements of a step, widened: to[s->len][LANES]; `groups`: its scales and values. */
#define quantized_widen CPU_NAME(quantized_widen)
void quantized_widen(const struct sum_step *s, const char *groups, float *to);

/* With more rows than these, the elements of a step are widened once for all. */
enum { QUANTIZED_ROWS = 48 };

/* As tile_find; packed rows are [len][rows], as tile_find_packed has them. bk is not read. */
#define quantized_find_tile CPU_NAME(quantized_find_tile)
tile_fn *quantized_find_tile(bool packed, int rows, bool wide);

#endif

/* quantized.h - packs, widens and multiplies panels of TESS_Q8 weights. */
#ifndef TESS_DEVICES_CPU_QUANTIZED_H
#define TESS_DEVICES_CPU_QUANTIZED_H

#include "tile.h"

/* Quantizes the elements of one unit: a pool_fn over panels; arg: struct pack. */
#define quantize_panels CPU_NAME(quantize_panels)
pool_fn quantize_panels;

/* Returns the bytes from the start of a panel to the scales of a step. */
static inline int64_t quantized_get_offset(const struct sum_step *s)
{
	return LANES * (s->at + 2 * s->groups);
}

/* Widens the elements of a step: to[s->len][LANES]; `groups`: its scales and values. */
#define quantized_widen CPU_NAME(quantized_widen)
void quantized_widen(const struct sum_step *s, const char *groups, float *to);

/* Maximum rows multiplied in place; for more, the elements of a step are widened once. */
enum { QUANTIZED_ROWS = 48 };

/* Finds a tile like tile_find; packed rows are [len][rows]. bk is not read. */
#define quantized_find_tile CPU_NAME(quantized_find_tile)
tile_fn *quantized_find_tile(bool packed, int rows, bool wide);

#endif

/* quantized.h - packs TESS_Q8; widens and multiplies panels of TESS_Q8 and TESS_MXFP4. */
#ifndef TESS_DEVICES_CPU_QUANTIZED_H
#define TESS_DEVICES_CPU_QUANTIZED_H

#include "tile.h"

/* Quantizes the elements of one unit in 8 bits: a pool_fn over panels; arg: struct pack. */
#define quantize_panels CPU_NAME(quantize_panels)
pool_fn quantize_panels;

/* Returns whether weights of `dtype` are groups, each of scales and values. */
static inline bool quantized_has(int32_t dtype)
{
	return dtype == TESS_Q8 || dtype == TESS_MXFP4;
}

/* Returns the bytes from the start of a panel to the scales of a step. */
static inline int64_t quantized_get_offset(int32_t dtype, const struct sum_step *s)
{
	return LANES * (dtype == TESS_Q8 ? s->at + 2 * s->groups : 4 * s->words + s->groups);
}

/* Widens the elements of a step of a panel: to[s->len][LANES]. */
#define quantized_widen CPU_NAME(quantized_widen)
void quantized_widen(int32_t dtype, const struct sum_step *s, const char *panel, float *to);

/* Maximum rows multiplied in place; for more, the elements of a step are widened once. */
enum { QUANTIZED_ROWS = 48 };

/* Finds a tile like tile_find; packed rows are [len][rows]. bk is not read. */
#define quantized_find_tile CPU_NAME(quantized_find_tile)
tile_fn *quantized_find_tile(int32_t dtype, bool packed, int rows, bool wide);

#endif

/* panels.h - bytes of a panel of TESS_Q8 or TESS_BF12 weights (docs/ops.md). */
#ifndef TESS_NN_OP_PANELS_H
#define TESS_NN_OP_PANELS_H

#include <tessera/split.h>

enum { PANEL_OUTS = 16, PANEL_GROUP = 32 }; /* outs of a panel; inputs that share a scale */

/* Returns the bytes of `n` inputs of TESS_Q8 with their scales, from the start of a unit. */
static inline int64_t panel_count_q8_bytes(int64_t n)
{
	return PANEL_OUTS * (n + 2 * tess_up(n, PANEL_GROUP));
}

/* Returns the bytes of a TESS_BF12 panel of `n` inputs: its start, and blocks of 8 inputs. */
static inline int64_t panel_count_bf12_bytes(int64_t n)
{
	return 64 + 64 * tess_up(n, 256) + 192 * tess_up(n, 8);
}

#endif

/* panels.h - bytes of a panel of TESS_Q8, TESS_MXFP4 or TESS_BF12 weights (docs/ops.md). */
#ifndef TESS_NN_OP_PANELS_H
#define TESS_NN_OP_PANELS_H

#include <tessera/plugin.h>
#include <tessera/reduce.h>

enum { PANEL_OUTS = 16, PANEL_GROUP = 32 }; /* outs of a panel; inputs that share a scale */

/* Returns the bytes of a unit of `n` inputs of TESS_Q8 or TESS_MXFP4, with their scales. */
static inline int64_t panel_count_unit_bytes(int32_t dtype, int64_t n)
{
	int64_t groups = tess_up(n, PANEL_GROUP);

	return PANEL_OUTS * (dtype == TESS_Q8 ? n + 2 * groups : 4 * tess_up(n, 8) + groups);
}

/* Returns the bytes of a TESS_BF12 panel of `n` inputs: its start, and blocks of 8 inputs. */
static inline int64_t panel_count_bf12_bytes(int64_t n)
{
	return 64 + 64 * tess_up(n, 256) + 192 * tess_up(n, 8);
}

#endif

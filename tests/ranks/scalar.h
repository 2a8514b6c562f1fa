/*
 * scalar.h - every op as docs/ops.md defines it, one element at a time: for lockstep, and as a
 * second implementation to compare devices with. Shares only the split rule with devices.
 */
#ifndef TESS_TESTS_RANKS_SCALAR_H
#define TESS_TESTS_RANKS_SCALAR_H

#include <tessera/device.h>

void scalar_run(const struct tess_op *op);

/* A device that knows rows only; for tess_rank_weights_load. */
extern const struct tess_device scalar_device;

#endif

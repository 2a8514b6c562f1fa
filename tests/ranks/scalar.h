/*
 * scalar.h - every op as docs/ops.md says it, one element at a time: what lockstep runs on, and a second
 * implementation to compare devices with. Shares no code with a device but the split rule.
 */
#ifndef TESS_TEST_SCALAR_H
#define TESS_TEST_SCALAR_H

#include <tessera/device.h>

void scalar_run(const struct tess_op *op);

/* As a device that knows rows only; for tess_rank_weights_load. */
extern const struct tess_device scalar_device;

#endif

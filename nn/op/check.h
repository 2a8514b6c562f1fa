/* check.h - checks ops by the contract of tessera/device.h: operands, numbers and sums. */
#ifndef TESS_NN_OP_CHECK_H
#define TESS_NN_OP_CHECK_H

#include <tessera/device.h>

/*
 * Checks that an op is one that `device` may be asked for: shapes, strides, dtypes, numbers and
 * sums are as tessera/device.h says, and a Partial has the nodes that sums of this device give
 * (`exact`). Reads no data. Whether the device can run the op is for its supports(). TESS_ENOTSUP:
 * "module: kind: rule".
 */
tess_status tess_op_check(const struct tess_op *op, const struct tess_device *device);

#endif

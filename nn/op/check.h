/* check.h - checks ops by the contract of tessera/device.h: operands, numbers and sums. */
#ifndef TESS_NN_OP_CHECK_H
#define TESS_NN_OP_CHECK_H

#include <tessera/device.h>

/*
 * Checks an op: shapes, strides, dtypes, numbers and sums follow tessera/device.h, and a Partial
 * has the nodes of sums on `device` (`exact`). Reads no data. The device's supports() reports if
 * the device can run the op. TESS_ENOTSUP: "module: kind: rule".
 */
tess_status tess_op_check(const struct tess_op *op, const struct tess_device *device);

#endif

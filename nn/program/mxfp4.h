/* mxfp4.h - bytes and elements of rows in TESS_MXFP4 (tessera/device.h, docs/ops.md). */
#ifndef TESS_NN_MXFP4_H
#define TESS_NN_MXFP4_H

#include <tessera/device.h>
#include <tessera/reduce.h>

/* Returns the bytes of `n` elements in rows of `dtype`; TESS_MXFP4: of complete blocks. */
static inline int64_t tess_rows_count_bytes(int32_t dtype, int64_t n)
{
	return dtype == TESS_MXFP4 ? n / TESS_MXFP4_ELEMENTS * TESS_MXFP4_BYTES
	                           : n * (int64_t)tess_width(dtype);
}

/* Returns element `k` of a block, which bf16 holds exactly. */
static inline float tess_mxfp4_get_element(const uint8_t *block, int64_t k)
{
	static const float values[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	uint32_t scale = (uint32_t)block[0] << 23;
	int code = block[1 + k / 2] >> (k % 2 ? 4 : 0);
	float value = values[code & 7] * tess_float(scale ? scale : 0x00400000); /* 2^-127 */

	return code & 8 ? -value : value;
}

#endif

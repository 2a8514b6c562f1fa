/*
 * mxfp4.h - weights of experts that a checkpoint stores in MXFP4, as GPT-OSS does: NAME_blocks, u8
 * [experts, outputs, inputs / 32, 16], has the codes of 32 inputs, the first of each two in the low
 * 4 bits of a byte; NAME_scales, u8 [experts, outputs, inputs / 32], their scales.
 */
#ifndef TESS_HF_MXFP4_H
#define TESS_HF_MXFP4_H

#include "hf/safetensors.h"

/* The suffixes of the two tensors. */
#define TESS_MXFP4_BLOCKS "_blocks"
#define TESS_MXFP4_SCALES "_scales"

struct tess_mxfp4 { /* a stored weight [experts, outputs, inputs] */
	const struct tess_slice *blocks, *scales;
	const struct tess_safetensors *blocks_part, *scales_part; /* their files */
};

/* Fails unless the two tensors, of known shapes, fit each other. */
tess_status tess_mxfp4_check(const struct tess_mxfp4 *w);

/*
 * Reads `n` blocks from block `first` on, as TESS_MXFP4 rows have them (tessera/device.h), and
 * drops their mapped pages. TESS_ENOTSUP: with a scale some values are not finite.
 */
tess_status tess_mxfp4_read(const struct tess_mxfp4 *w, uint64_t first, uint64_t n, void *out);
/* Advises how blocks of open files will be used: TESS_ADVISE_... of nn/program/source.h. */
void tess_mxfp4_advise(const struct tess_mxfp4 *w, uint64_t first, uint64_t n, int32_t how);

/* Reads elements [first, first + n) of the weight as f32 [experts, inputs, outputs]. */
tess_status tess_mxfp4_widen(const struct tess_mxfp4 *w, uint64_t first, uint64_t n, float *out);

#endif

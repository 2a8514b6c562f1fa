#include "hf/mxfp4.h"

#include "core/base/status.h"
#include "hf/config.h"
#include "nn/program/mxfp4.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/reduce.h>

enum {
	BLOCK_ELEMENTS = TESS_MXFP4_ELEMENTS,
	BLOCK_BYTES = TESS_MXFP4_BYTES,
	CODE_BYTES = BLOCK_BYTES - 1
};
enum { SCALE_MAX = 252 }; /* 6 * 2^(252 - 127) is finite, 6 * 2^(253 - 127) is not */
enum { PIECE_BLOCKS = 4096 }; /* blocks whose codes are read at a time */

/* ---- check ----------------------------------------------------------------------------------- */

static tess_status check_tensor(const struct tess_safetensors *part, const struct tess_slice *s,
                                int32_t ndim, const char *shape)
{
	if (!strcmp(s->type, "U8") && s->ndim == ndim && (ndim == 3 || s->shape[3] == CODE_BYTES))
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "%s: tensor %s: MXFP4 is stored as U8 [experts, outputs, inputs / 32%s]; "
	                 "fetch the checkpoint again, or " TESS_UNPACKED_WEIGHTS,
	                 tess_safetensors_path(part), s->name, shape);
}

tess_status tess_mxfp4_check(const struct tess_mxfp4 *w)
{
	tess_status st = check_tensor(w->blocks_part, w->blocks, 4, ", 16");

	if (!st)
		st = check_tensor(w->scales_part, w->scales, 3, "");
	if (st || !memcmp(w->blocks->shape, w->scales->shape, 3 * sizeof *w->scales->shape))
		return st;
	return tess_fail(TESS_EINVAL,
	                 "%s: tensor %s has %lld x %lld x %lld scales, and %s %lld x %lld x %lld "
	                 "blocks; MXFP4 has a scale for each block: fetch the checkpoint again",
	                 tess_safetensors_path(w->scales_part), w->scales->name,
	                 (long long)w->scales->shape[0], (long long)w->scales->shape[1],
	                 (long long)w->scales->shape[2], w->blocks->name,
	                 (long long)w->blocks->shape[0], (long long)w->blocks->shape[1],
	                 (long long)w->blocks->shape[2]);
}

/* ---- read ------------------------------------------------------------------------------------ */

static tess_status fail_scale(const struct tess_mxfp4 *w, uint64_t at, int scale)
{
	return tess_fail(TESS_ENOTSUP,
	                 "%s: tensor %s: byte %llu is %d, %s; scales of MXFP4 must be at most %d: "
	                 "quantise the weight again",
	                 tess_safetensors_path(w->scales_part), w->scales->name,
	                 (unsigned long long)at, scale,
	                 scale == 255 ? "which is NaN"
	                              : "with which some values are too large for f32",
	                 SCALE_MAX);
}

/* Reads up to PIECE_BLOCKS blocks through `codes`, of PIECE_BLOCKS * BLOCK_BYTES bytes. */
static tess_status read_piece(const struct tess_mxfp4 *w, uint64_t first, uint64_t n,
                              uint8_t *codes, uint8_t *out)
{
	uint8_t *scales = codes + PIECE_BLOCKS * CODE_BYTES;
	tess_status st = tess_safetensors_read(w->blocks_part, w->blocks, first * CODE_BYTES,
	                                       n * CODE_BYTES, codes);

	if (!st)
		st = tess_safetensors_read(w->scales_part, w->scales, first, n, scales);
	for (uint64_t i = 0; i < n && !st; i++, out += BLOCK_BYTES) {
		if (scales[i] > SCALE_MAX)
			st = fail_scale(w, first + i, scales[i]);
		out[0] = scales[i];
		memcpy(out + 1, codes + i * CODE_BYTES, CODE_BYTES);
	}
	return st;
}

static void drop_range(const struct tess_safetensors *part, const struct tess_slice *s, uint64_t at,
                       uint64_t bytes)
{
	if (s->data)
		tess_safetensors_drop(part, (const char *)s->data + at, bytes);
}

static tess_status read_blocks(const struct tess_mxfp4 *w, uint64_t first, uint64_t n, uint8_t *out)
{
	uint8_t piece[PIECE_BLOCKS * BLOCK_BYTES];
	tess_status st = TESS_OK;

	for (uint64_t at = 0; at < n && !st; at += PIECE_BLOCKS)
		st = read_piece(w, first + at, n - at < PIECE_BLOCKS ? n - at : PIECE_BLOCKS, piece,
		                out + at * BLOCK_BYTES);
	return st;
}

static void drop_blocks(const struct tess_mxfp4 *w, uint64_t first, uint64_t n)
{
	drop_range(w->blocks_part, w->blocks, first * CODE_BYTES, n * CODE_BYTES);
	drop_range(w->scales_part, w->scales, first, n);
}

tess_status tess_mxfp4_read(const struct tess_mxfp4 *w, uint64_t first, uint64_t n, void *out)
{
	tess_status st = read_blocks(w, first, n, out);

	drop_blocks(w, first, n);
	return st;
}

void tess_mxfp4_advise(const struct tess_mxfp4 *w, uint64_t first, uint64_t n, int32_t how)
{
	tess_safetensors_advise(w->blocks_part, w->blocks, first * CODE_BYTES, n * CODE_BYTES, how);
	tess_safetensors_advise(w->scales_part, w->scales, first, n, how);
}

/* ---- widen ----------------------------------------------------------------------------------- */

/* Widens those of elements [first, first + n) that are inputs [lo, hi) of an expert. */
static tess_status widen_inputs(const struct tess_mxfp4 *w, uint64_t expert, uint64_t lo,
                                uint64_t hi, uint8_t *blocks, uint64_t first, uint64_t n,
                                float *out)
{
	uint64_t outputs = (uint64_t)w->blocks->shape[1], groups = (uint64_t)w->blocks->shape[2];
	uint64_t from = lo / BLOCK_ELEMENTS,
		 count = (hi + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS - from;
	tess_status st = TESS_OK;

	for (uint64_t j = 0; j < outputs && !st; j++) {
		uint64_t at = (expert * groups * BLOCK_ELEMENTS + lo) * outputs + j - first;

		st = read_blocks(w, (expert * outputs + j) * groups + from, count, blocks);
		for (uint64_t k = lo; k < hi && !st; k++, at += outputs)
			if (at < n) /* the first and the last input may be outside */
				out[at] = tess_mxfp4_get_element(
					blocks + (k / BLOCK_ELEMENTS - from) * BLOCK_BYTES,
					(int64_t)(k % BLOCK_ELEMENTS));
	}
	if (hi == groups * BLOCK_ELEMENTS)
		drop_blocks(w, expert * outputs * groups, outputs * groups);
	return st;
}

tess_status tess_mxfp4_widen(const struct tess_mxfp4 *w, uint64_t first, uint64_t n, float *out)
{
	uint64_t outputs = (uint64_t)w->blocks->shape[1], groups = (uint64_t)w->blocks->shape[2];
	uint64_t inputs = groups * BLOCK_ELEMENTS, each = inputs * outputs, end = first + n;
	uint8_t *blocks = malloc(groups * BLOCK_BYTES + 1);
	tess_status st =
		blocks ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", w->blocks->name);

	for (uint64_t at = first; at < end && !st;) {
		uint64_t expert = at / each, stop = (expert + 1) * each;
		uint64_t lo = at % each / outputs;

		stop = stop < end ? stop : end;
		st = widen_inputs(w, expert, lo, (stop - 1 - expert * each) / outputs + 1, blocks,
		                  first, n, out);
		at = stop;
	}
	free(blocks);
	return st;
}

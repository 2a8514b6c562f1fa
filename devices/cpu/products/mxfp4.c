#include "mxfp4.h"

#include "pack.h"

enum { LARGEST = 2 }; /* LARGEST: the exponent of 4 and 6 */
enum { SCALE_1 = 127 }; /* the scale of a group of zeros: products of 2^-127 are slow */

/*
 * Computes the scales of `len` elements [len][LANES] as E8M0, and their inverses, which are exact;
 * false: an element is not finite.
 */
static bool find_powers(const float *w, int64_t len, uint8_t *scale, float *inverse)
{
	int32_t most[LANES];
	bool finite = true;

	pack_find_largest(w, len, most);
	for (int j = 0; j < LANES; j++) {
		int32_t exponent = (most[j] >> 23) - LARGEST;

		scale[j] = (uint8_t)(!most[j] ? SCALE_1 : exponent > 0 ? exponent : 0);
		inverse[j] = tess_float((uint32_t)(254 - scale[j]) << 23);
		finite = finite && most[j] < INFINITE;
	}
	return finite;
}

/* Returns the code of the nearest value of E2M1, ties to the even code. */
static inline uint8_t encode_e2m1(float x)
{
	float y = tess_float(tess_bits(x) & 0x7fffffff);
	int code = (y > 0.25f) + (y >= 0.75f) + (y > 1.25f) + (y >= 1.75f) + (y > 2.5f) +
	           (y >= 3.5f) + (y > 5.0f);

	return (uint8_t)(code | (int)(tess_bits(x) >> 31) << 3);
}

static int64_t count_code_bytes(int64_t len)
{
	return LANES * (1 + 4 * tess_up(len, 8));
}

/* Quantizes a group of `len` elements [len][LANES] to its scales, then its words of 8 codes. */
static bool encode_group(const float *w, int64_t len, char *to)
{
	uint8_t scale[LANES], *code = (uint8_t *)to + LANES;
	float inverse[LANES];

	if (!find_powers(w, len, scale, inverse))
		return false;
	memcpy(to, scale, LANES);
	memset(code, 0, (size_t)count_code_bytes(len) - LANES);
	for (int64_t k = 0; k < len; k++, w += LANES) {
		uint8_t *byte = code + k / 8 * 4 * LANES + k % 8 / 2;

		for (int j = 0; j < LANES; j++)
			byte[4 * j] |= (uint8_t)(encode_e2m1(w[j] * inverse[j]) << k % 2 * 4);
	}
	return true;
}

/* Moves the blocks of up to LANES rows, `pitch` bytes apart, to a group of a panel. */
static void move_blocks(const uint8_t *block, int64_t pitch, int64_t rows, char *to)
{
	memset(to, SCALE_1, LANES);
	memset(to + LANES, 0, (size_t)count_code_bytes(GROUP) - LANES);
	for (int64_t j = 0; j < LANES && j < rows; j++, block += pitch) {
		to[j] = (char)block[0];
		for (int64_t i = 0; i < GROUP / 8; i++)
			memcpy(to + LANES + (i * LANES + j) * 4, block + 1 + 4 * i, 4);
	}
}

/* Packs panels [lo, hi) of rows that are stored in MXFP4, in complete groups. */
static void repack_rows(const struct pack *p, int64_t lo, int64_t hi)
{
	const int64_t pitch = p->rows->stride[0] / GROUP * TESS_MXFP4_BYTES;

	for (int64_t i = lo; i < hi; i++) {
		const uint8_t *block = (const uint8_t *)p->rows->data + i * LANES * pitch;
		char *to = (char *)p->panels->data + i * p->panels->stride[0];

		for (int64_t k = 0; k < p->rows->shape[1]; k += GROUP) {
			move_blocks(block, pitch, p->rows->shape[0] - i * LANES, to);
			block += TESS_MXFP4_BYTES;
			to += count_code_bytes(GROUP);
		}
	}
}

void mxfp4_pack_panels(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct pack *p = arg;

	(void)thread;
	if (p->rows->dtype == TESS_MXFP4)
		repack_rows(p, lo, hi);
	else
		pack_groups(p, lo, hi, encode_group, count_code_bytes);
}

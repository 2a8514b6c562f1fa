/* pack.h - packs rows of weights into panels. */
#ifndef TESS_DEVICES_CPU_PACK_H
#define TESS_DEVICES_CPU_PACK_H

#include "cpu.h"
#include "sum.h"

/* Packs elements [at, at + len) of the 16 rows from `column` on, widened: to[len][16]. */
#define pack_widened CPU_NAME(pack_widened)
void pack_widened(const struct tess_view *w, int64_t column, int64_t at, int64_t len, float *to);

/* Packs elements of bf16 like pack_widened, unchanged. */
#define pack_as_stored CPU_NAME(pack_as_stored)
void pack_as_stored(const struct tess_view *w, int64_t column, int64_t at, int64_t len, void *to);

/*
 * Returns f32 rounded to bf16, like tess_bf16_round, in the upper half of a word: loops over it are
 * vectorized better.
 */
static inline uint32_t pack_round_bits(uint32_t u)
{
	uint32_t nearest = u + 0x7fff + (u >> 16 & 1);

	return (int32_t)(u & 0x7fffffff) > 0x7f800000 ? u | 0x00400000 : nearest;
}

/* Joins two elements, rounded to bf16, to a word. */
static inline uint32_t pack_join(float even, float odd)
{
	return pack_round_bits(tess_bits(even)) >> 16 |
	       (pack_round_bits(tess_bits(odd)) & 0xffff0000);
}

/*
 * Packs elements [at, at + len) of `panels` panels from `column` on, in rows, as words of two
 * elements in bf16, to nearest even: to[ceil(len / 2)][16], `pitch` words between panels. 0
 * completes a word.
 */
#define pack_pairs CPU_NAME(pack_pairs)
void pack_pairs(const struct tess_view *w, int64_t column, int64_t panels, int64_t at, int64_t len,
                uint32_t *to, int64_t pitch);

/* Packs `columns` contiguous columns of rows like pack_widened: to[len][columns]. */
#define pack_columns CPU_NAME(pack_columns)
void pack_columns(const struct tess_view *w, int64_t column, int64_t at, int64_t len,
                  int64_t columns, float *to);

/* Packs panels: a pool_fn over panels; arg: struct pack. */
#define pack_panels CPU_NAME(pack_panels)
pool_fn pack_panels;

enum { INFINITE = 0x7f800000 }; /* the bits of an infinite f32 */

/*
 * Computes the bits of the largest |w| of each column of w[len][LANES]: at least INFINITE if an
 * element is not finite.
 */
static inline void pack_find_largest(const float *w, int64_t len, int32_t most[static LANES])
{
	/* no initializer: gcc's ASan does not align what AVX-512 would clear at once (PR 110027) */
	for (int j = 0; j < LANES; j++)
		most[j] = 0;
	for (int64_t k = 0; k < len; k++, w += LANES) {
		CPU_LANES
		for (int j = 0; j < LANES; j++) {
			int32_t bits = (int32_t)(tess_bits(w[j]) & 0x7fffffff);

			/* without signs, bits have the order of floats */
			most[j] = bits > most[j] ? bits : most[j];
		}
	}
}

/*
 * Packs panels [lo, hi) of p in groups. encode stores a group w[len][LANES] in count_bytes(len)
 * bytes, or returns false: an element is not finite, and the panel is refused.
 */
static inline void pack_groups(const struct pack *p, int64_t lo, int64_t hi,
                               bool (*encode)(const float *w, int64_t len, char *to),
                               int64_t (*count_bytes)(int64_t len))
{
	int64_t k = p->rows->shape[1], n;
	float w[GROUP * LANES];

	for (int64_t i = lo; i < hi; i++) {
		char *to = (char *)p->panels->data + i * p->panels->stride[0];

		for (int64_t at = 0; at < k; at += n, to += count_bytes(n)) {
			n = k - at < GROUP ? k - at : GROUP;
			pack_widened(p->rows, i * LANES, at, n, w);
			p->refused[i] = p->refused[i] || !encode(w, n, to);
		}
	}
}

#endif

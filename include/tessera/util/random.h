/*
 * tessera/util/random.h - stateless, counter-based random numbers: Philox4x32-10 (Salmon et al.,
 * 2011).
 *
 * The number of an element depends on the key and the index of the element only. It is the same on
 * every machine, and on every rank that holds the element.
 *
 * Example:
 *     static int is_dropped(uint32_t seed, uint32_t element, double rate)
 *     {
 *             uint32_t c[4] = { element, 0, 0, 0 };
 *
 *             tess_philox(seed, 0, c);
 *             return c[0] < tess_drop_below(rate);
 *     }
 */
#ifndef TESSERA_UTIL_RANDOM_H
#define TESSERA_UTIL_RANDOM_H

#include <stdint.h>

/* Replaces the counter c by four random words, under the key (k0, k1). */
static inline void tess_philox(uint32_t k0, uint32_t k1, uint32_t c[4])
{
	uint32_t c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];

	for (int i = 0; i < 10; i++) {
		uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;

		c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c1 = (uint32_t)b;
		c3 = (uint32_t)a;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	c[0] = c0;
	c[1] = c1;
	c[2] = c2;
	c[3] = c3;
}

/*
 * Returns the threshold of dropout: an element whose word is less is dropped. 0 <= rate < 1.
 */
static inline uint64_t tess_drop_below(double rate)
{
	return (uint64_t)(rate * 4294967296.0);
}

/* Returns the factor of the elements that dropout keeps. */
static inline float tess_drop_scale(double rate)
{
	return (float)(1 / (1 - rate));
}

#endif

/* hash.h - FNV-1a hashes of bytes, or of words. */
#ifndef TESS_BASE_HASH_H
#define TESS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The hash of nothing. */
#define TESS_HASH_EMPTY UINT64_C(0xcbf29ce484222325)

/* Returns hash `h` with one more byte or word. */
static inline uint64_t tess_hash_word(uint64_t h, uint64_t word)
{
	return (h ^ word) * UINT64_C(0x100000001b3);
}

/* Returns hash `h` with n more bytes. */
static inline uint64_t tess_hash_bytes(uint64_t h, const void *data, size_t n)
{
	const unsigned char *at = data;

	for (size_t i = 0; i < n; i++)
		h = tess_hash_word(h, at[i]);
	return h;
}

#endif

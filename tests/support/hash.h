/* hash.h - FNV-1a, for results that are compared exactly and are too large to keep. */
#ifndef TESS_TESTS_SUPPORT_HASH_H
#define TESS_TESTS_SUPPORT_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

static inline void hash_add_bytes(uint64_t *hash, const void *data, size_t n)
{
	const unsigned char *at = data;

	for (size_t i = 0; i < n; i++)
		*hash = (*hash ^ at[i]) * UINT64_C(0x100000001b3);
}

#endif

/* checksum.h - CRC-32 of a tensor whose ranges are read or written by several ranks. */
#ifndef TESS_HF_CHECKSUM_H
#define TESS_HF_CHECKSUM_H

#include <stdint.h>

/*
 * One rank's share of a CRC. Start with zeros, add the rank's ranges in increasing order, and end
 * at the length of the tensor. The XOR of the shares of ranks that cover the tensor once is the
 * CRC-32 of all bytes (zlib.crc32).
 */
struct tess_checksum {
	uint32_t value;
	uint64_t at; /* end of the last range */
	uint64_t gap; /* bytes between the last two ranges */
	unsigned long skip; /* how it changes a value */
};

void tess_checksum_add(struct tess_checksum *c, uint64_t at, const void *bytes, uint64_t n);
uint32_t tess_checksum_end(struct tess_checksum *c, uint64_t length);

#endif

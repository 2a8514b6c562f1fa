#include "hf/checksum.h"

#include <zlib.h>

/* Skips bytes that other ranks add: a CRC is linear, so a share advances over them as zeros. */
static void skip_bytes(struct tess_checksum *c, uint64_t at)
{
	uint64_t gap = at - c->at;

	c->at = at;
	if (!gap || !c->value)
		return;
	if (gap != c->gap) {
		c->gap = gap;
		c->skip = crc32_combine_gen((z_off_t)gap);
	}
	c->value = (uint32_t)crc32_combine_op(c->value, 0, c->skip);
}

void tess_checksum_add(struct tess_checksum *c, uint64_t at, const void *bytes, uint64_t n)
{
	skip_bytes(c, at);
	c->value = (uint32_t)crc32_z(c->value, bytes, n);
	c->at += n;
}

uint32_t tess_checksum_end(struct tess_checksum *c, uint64_t length)
{
	skip_bytes(c, length);
	return c->value;
}

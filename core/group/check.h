/* check.h - whether a collective may be run: what group.h says of kinds, lists, buffers. */
#ifndef TESS_COMM_CHECK_H
#define TESS_COMM_CHECK_H

#include <tessera/reduce.h>

/*
 * TESS_EINVAL or TESS_ENOTSUP, and a sentence that begins with `where`, unless rank `rank` of
 * `nranks` may run `c`: buffers that are read or written are there, aligned, and overlap only as
 * "in place" allows.
 */
tess_status tess_coll_check(const struct tess_coll *c, int32_t rank, int32_t nranks);

/* Elements of src and dst that are read and written on this rank. */
void tess_coll_extents(const struct tess_coll *c, int32_t rank, int32_t nranks, uint64_t *src,
                       uint64_t *dst);

/* Elements of block r, and where it begins; blocks of `count`, or as the list says. */
static inline uint64_t tess_block_size(const uint64_t *list, uint64_t count, int32_t r)
{
	return list ? list[r] : count;
}

static inline uint64_t tess_block_begin(const uint64_t *list, uint64_t count, int32_t r)
{
	uint64_t at = 0;

	if (!list)
		return count * (uint64_t)r;
	for (int32_t i = 0; i < r; i++)
		at += list[i];
	return at;
}

#endif

/* check.h - checks calls by the rules of tessera/group.h on kinds, lists and buffers. */
#ifndef TESS_GROUP_CHECK_H
#define TESS_GROUP_CHECK_H

#include <tessera/coll.h>

/*
 * Checks that rank `rank` of `nranks` may run `c` in a group that supports these kinds of memory (1
 * << TESS_HOST | ...): fields are valid, and buffers that are read or written are not NULL,
 * aligned, and overlap only in place. TESS_EINVAL or TESS_ENOTSUP, with a message that begins with
 * `where`.
 */
tess_status tess_coll_check(const struct tess_coll *c, int32_t rank, int32_t nranks,
                            uint64_t kinds);

#endif

/* check.h - whether a collective may be run: what group.h says of kinds, lists, buffers. */
#ifndef TESS_COMM_CHECK_H
#define TESS_COMM_CHECK_H

#include <tessera/coll.h>

/*
 * TESS_EINVAL or TESS_ENOTSUP, and a sentence that begins with `where`, unless rank `rank` of
 * `nranks` may run `c`: buffers that are read or written are there, aligned, and overlap only as
 * "in place" allows.
 */
tess_status tess_coll_check(const struct tess_coll *c, int32_t rank, int32_t nranks);

#endif

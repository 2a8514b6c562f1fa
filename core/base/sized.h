/* sized.h - structs of the ABI that grow: the first field says how much of one the caller knows. */
#ifndef TESS_BASE_SIZED_H
#define TESS_BASE_SIZED_H

#include "core/base/status.h"

#include <string.h>

/*
 * Copies what a caller knows of a struct of `bytes`; the rest of *to stays. from NULL: nothing.
 * TESS_EINVAL: its field `size` is not set; `what`: the struct's name.
 */
static inline tess_status tess_sized_copy(const char *what, const void *from, void *to,
                                          size_t bytes)
{
	uint32_t size;

	if (!from)
		return TESS_OK;
	memcpy(&size, from, sizeof size);
	if (size < sizeof size)
		return tess_fail(TESS_EINVAL, "a %s of %u bytes: its field `size` is not set", what,
		                 (unsigned)size);
	memcpy(to, from, size < bytes ? size : bytes);
	return TESS_OK;
}

/* TESS_EINVAL where `p`, an argument that `function` needs, is NULL. */
static inline tess_status tess_require(const char *function, const char *argument, const void *p)
{
	return p ? TESS_OK : tess_fail(TESS_EINVAL, "%s: %s is NULL", function, argument);
}

#endif

/* sized.h - growing structs of the ABI: the first field is the size that the caller knows. */
#ifndef TESS_BASE_SIZED_H
#define TESS_BASE_SIZED_H

#include "core/base/status.h"

#include <string.h>

/*
 * Copies the part of a struct of `bytes` that the caller knows; the rest of *to is unchanged. from
 * NULL: copies nothing. TESS_EINVAL: its field `size` is not set. `what`: the name of the struct.
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

/* Reports that argument i of `arguments`, "s, out", of a public function is NULL. */
tess_status tess_fail_null(const char *function, const char *arguments, size_t i);

static inline tess_status tess_require(const char *function, const char *arguments,
                                       const void *const *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!p[i])
			return tess_fail_null(function, arguments, i);
	return TESS_OK;
}

/* Returns TESS_EINVAL from a public function if one of these arguments is NULL. */
#define TESS_REQUIRE(...) \
	tess_require(__func__, #__VA_ARGS__, (const void *const[]){ __VA_ARGS__ }, \
	             sizeof((const void *const[]){ __VA_ARGS__ }) / sizeof(void *))

#endif

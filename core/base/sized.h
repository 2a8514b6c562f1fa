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

/* Fails for argument i of `arguments`, "s, out", of a public function: it is NULL. */
tess_status tess_fail_null(const char *function, const char *arguments, size_t i);

static inline tess_status tess_require(const char *function, const char *arguments,
                                       const void *const *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!p[i])
			return tess_fail_null(function, arguments, i);
	return TESS_OK;
}

/* TESS_EINVAL where one of these arguments of a public function, "s, out", is NULL. */
#define TESS_REQUIRE(...) \
	tess_require(__func__, #__VA_ARGS__, (const void *const[]){ __VA_ARGS__ }, \
	             sizeof((const void *const[]){ __VA_ARGS__ }) / sizeof(void *))

#endif

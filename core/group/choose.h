/* choose.h - chooses the backend of a world, with a reason. */
#ifndef TESS_GROUP_CHOOSE_H
#define TESS_GROUP_CHOOSE_H

#include <stdbool.h>
#include <tessera/group.h>

struct tess_choice {
	const struct tess_backend *backend;
	bool second; /* an earlier entry of TESSERA_BACKENDS cannot be used */
	bool named; /* for a device's memory: TESSERA_BACKEND names it for that memory */
	char why[640]; /* "one rank: the first of TESSERA_BACKENDS that joins them" */
};

/*
 * Chooses the backend of a world of `size` ranks, which may be threads or on several hosts. name:
 * as in TESSERA_BACKEND. "auto", or a backend that moves no host memory: the first of
 * TESSERA_BACKENDS that can be opened, moves host memory and joins these ranks, by its `threads`
 * and `reach`. Fails as tess_plugin_find_backend does. TESS_ENOENT: the list has no such backend;
 * TESS_EINVAL: the backend does not join threads, or ranks of several hosts.
 */
tess_status tess_backend_choose(const char *name, int32_t size, bool threads, bool hosts,
                                struct tess_choice *out);

/*
 * Fails with TESS_EINVAL if `size` > 1 ranks would not use the backend `name`: it moves neither
 * host memory nor that of TESSERA_DEVICE.
 */
tess_status tess_backend_check_device(const char *name, int32_t size, bool threads, bool hosts);

/*
 * Chooses the backend for memory of kind `mem`, in addition to that of host memory. TESS_ENOENT:
 * none; such calls go through host memory. Another failure: it cannot be used here. *out is always
 * set.
 */
tess_status tess_backend_choose_for_memory(const char *name, int32_t mem, int32_t size,
                                           bool threads, bool hosts, struct tess_choice *out);

#endif

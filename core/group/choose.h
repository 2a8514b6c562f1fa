/* choose.h - which backend a world uses, and why. */
#ifndef TESS_GROUP_CHOOSE_H
#define TESS_GROUP_CHOOSE_H

#include <stdbool.h>
#include <tessera/group.h>

struct tess_choice {
	const struct tess_backend *backend;
	bool second; /* an earlier one of TESSERA_BACKENDS cannot be used */
	bool named; /* of a device's memory: TESSERA_BACKEND names it for that memory */
	char why[640]; /* "one rank: the first of TESSERA_BACKENDS that joins them" */
};

/*
 * The backend of a world of `size` ranks, which are threads or on several hosts. name: as in
 * TESSERA_BACKEND; "auto", or one that moves no host memory: the first of TESSERA_BACKENDS that can
 * be opened, moves host memory and joins these ranks, by its `threads` and `reach`. Fails as
 * tess_plugin_find_backend does; TESS_ENOENT: the list has no such backend; TESS_EINVAL: the
 * backend does not join threads, or ranks of several hosts.
 */
tess_status tess_backend_choose(const char *name, int32_t size, bool threads, bool hosts,
                                struct tess_choice *out);

/*
 * TESS_EINVAL: `name` is that of a backend that `size` ranks, more than one, would not use: it
 * moves neither host memory nor that of TESSERA_DEVICE.
 */
tess_status tess_backend_check_device(const char *name, int32_t size, bool threads, bool hosts);

/*
 * The backend for memory of kind `mem`, beside that of host memory. TESS_ENOENT: there is none, and
 * such calls go through host memory; another failure: it cannot be used here. *out is always set.
 */
tess_status tess_backend_choose_for_memory(const char *name, int32_t mem, int32_t size,
                                           bool threads, bool hosts, struct tess_choice *out);

#endif

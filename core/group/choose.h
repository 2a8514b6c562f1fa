/* choose.h - which backend a world takes, and why. */
#ifndef TESS_COMM_CHOOSE_H
#define TESS_COMM_CHOOSE_H

#include <stdbool.h>
#include <tessera/group.h>

struct tess_choice {
	const struct tess_backend *backend;
	bool second; /* an earlier one of the list cannot be used */
	char why[640]; /* "ranks that share this host: the first of TESSERA_BACKENDS that joins them" */
};

/*
 * What a world of `size` ranks uses that was told `name`, as TESSERA_BACKEND has it. "auto" is the
 * first of the list TESSERA_BACKENDS that can be opened and joins these ranks, as its `threads` and
 * `reach` say. Fails as tess_plugin_find_backend does, with TESS_ENOENT where the list has none, or with
 * TESS_EINVAL where the backend does not join threads, or ranks of several hosts.
 */
tess_status tess_backend_choose(const char *name, int32_t size, bool threads, bool hosts,
                                struct tess_choice *out);

#endif

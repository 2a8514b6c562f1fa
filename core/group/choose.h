/* choose.h - which backend a world takes, and why. */
#ifndef TESS_COMM_CHOOSE_H
#define TESS_COMM_CHOOSE_H

#include <stdbool.h>
#include <tessera/group.h>

struct tess_choice {
	const struct tess_backend *backend;
	bool second; /* the first choice cannot be had */
	char why[640]; /* "the ranks share this host, where shm is the fastest" */
};

/*
 * What a world of `size` ranks takes that was told `name`, as TESSERA_BACKEND has it. "auto" is a
 * rule: one rank, or ranks that are threads, loopback; ranks of one host shm, else gloo. Fails as
 * tess_plugin_backend does, or with TESS_EINVAL where ranks are threads and the backend's are not,
 * or are on several hosts and it is shm.
 */
tess_status tess_backend_choose(const char *name, int32_t size, bool threads, bool hosts,
                                struct tess_choice *out);

#endif

/*
 * group.h - one rank of a group over Gloo: gloo.c opens and closes it, work.c runs its calls.
 */
#ifndef GLOO_GROUP_H
#define GLOO_GROUP_H

#include <pthread.h>
#include <tessera/coll.h>
#include <tessera/util/clock.h>

#include "shim.h"

struct group {
	const struct tess_host *host;
	struct shim_mesh *mesh; /* NULL: a group of one rank */
	int32_t rank, nranks;
	int32_t *world; /* world rank of each member, for messages */
	char *name;
	char address[64]; /* address of this host */
	uint64_t *sent, *received; /* by peer: number of messages of send and recv */
	tess_status failed; /* the status of every later call, and its message */
	char why[512];
	int cut; /* all connections are closed */
	void *spare; /* scratch memory of the last work, reused by the next */
	size_t spare_bytes;

	pthread_mutex_t lock; /* guards the rest against abort() from another thread */
	struct work *works; /* all unreleased works */
	int aborted;
};

#endif

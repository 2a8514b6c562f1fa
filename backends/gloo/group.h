/*
 * group.h - one rank of a group over Gloo: gloo.c opens and closes it, work.c moves its calls.
 */
#ifndef GLOO_GROUP_H
#define GLOO_GROUP_H

#include <pthread.h>
#include <tessera/clock.h>
#include <tessera/coll.h>

#include "shim.h"

struct group {
	const struct tess_host *host;
	struct shim_mesh *mesh; /* NULL: a group of one rank */
	int32_t rank, nranks;
	int32_t *world; /* world rank of each member, for messages */
	char *name;
	char address[64]; /* of this host */
	uint64_t *sent, *received; /* by peer: messages of send and recv so far */
	tess_status failed; /* the answer of every later call, and its sentence */
	char why[512];
	int cut; /* its connections are gone */
	void *spare; /* scratch memory of the last work, kept for the next */
	size_t spare_bytes;

	pthread_mutex_t lock; /* of the rest, which abort() touches from another thread */
	struct work *works; /* all that are not released */
	int aborted;
};

#endif

/*
 * gloo.h - one rank of a group over Gloo: gloo.c enters and leaves it, work.c moves what it is
 * asked to.
 */
#ifndef GLOO_GLOO_H
#define GLOO_GLOO_H

#include <pthread.h>
#include <tessera/reduce.h>

#include "shim.h"

struct group {
	const struct tess_host *host;
	struct shim_mesh *mesh; /* NULL: one rank, which talks to nobody */
	int32_t rank, nranks;
	int32_t *world; /* world rank of each member, for sentences */
	char *name;
	char address[64]; /* of this host */
	uint64_t *sent, *received; /* by peer: messages of send and recv so far */
	tess_status failed; /* what every later call answers with, and its sentence */
	char why[512];
	int cut; /* its connections are gone */
	void *spare; /* scratch memory of the last work, kept for the next */
	size_t spare_bytes;

	pthread_mutex_t lock; /* of the rest, which abort() touches from another thread */
	struct work *works; /* all that are not released */
	int aborted;
};

tess_status work_supports(const struct tess_host *host, const struct tess_coll *c, int32_t nranks);
tess_status work_start(struct group *g, const struct tess_coll *c, struct work **out);
/*
 * Runs until done or `deadline`; 0: as far as it gets at once, TESS_PENDING where that is not the
 * end.
 */
tess_status work_run(struct group *g, struct work *w, int64_t deadline);
/* Frees it; an unfinished one is finished first, since the peers count on it. */
void work_release(struct group *g, struct work *w);
/* From any thread: every work fails soon. */
void work_abort(struct group *g);
/* Drops what is still on its way, and the spare memory. */
void work_clear(struct group *g);

#endif

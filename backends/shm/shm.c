/*
 * shm.c - the backend shm: ranks of one host, over shared memory. Nothing remains, in a file system
 * or elsewhere, however ranks end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "alloc.h"
#include "region.h"
#include "segment.h"
#include "wakeup.h"
#include "work.h"

static const struct tess_host *host;
static unsigned char process[16]; /* random: identifies the threads of one process */

static tess_status shm_supports_call(const struct tess_coll *c, int32_t nranks)
{
	char fault[128];

	if (nranks > RANKS_MOST)
		return host->fail(TESS_ENOTSUP, "shm has at most %d ranks, not %d", RANKS_MOST,
		                  (int)nranks);
	if (tess_coll_find_fault(c, fault, sizeof fault))
		return host->fail(TESS_ENOTSUP, "shm: %s", fault);
	return TESS_OK;
}

static void shm_close_group(void *self)
{
	struct group *g = self;

	region_free_all(g);
	segment_close(g);
	shm_work_clear(g);
	free(g->socket);
	free(g->out);
	free(g->in);
	free(g->world);
	free(g->name);
	free(g);
}

static tess_status shm_open_group(const struct tess_group_entry *how, void **self)
{
	size_t n = (size_t)how->nranks;
	struct group *g;
	tess_status st;

	if (how->nranks > RANKS_MOST)
		return host->fail(TESS_ENOTSUP, "at most %d ranks, not %d", RANKS_MOST,
		                  (int)how->nranks);
	g = calloc(1, sizeof *g);
	if (!g)
		return host->fail(TESS_ENOMEM, "out of memory");
	*g = (struct group){ .host = host,
		             .rank = how->rank,
		             .nranks = how->nranks,
		             .round = 1,
		             .timeout = how->deadline - tess_now() };
	g->name = strdup(how->name);
	g->world = malloc(n * sizeof *g->world);
	g->socket = malloc(n * sizeof *g->socket);
	g->out = calloc(n, sizeof *g->out);
	g->in = calloc(n, sizeof *g->in);
	for (size_t r = 0; g->world && g->socket && r < n; r++) {
		g->world[r] = how->world ? how->world[r] : (int32_t)r;
		g->socket[r] = -1;
	}
	if (g->name && g->world && g->socket && g->out && g->in)
		st = segment_open(g, how, process);
	else
		st = host->fail(TESS_ENOMEM, "out of memory");
	if (st) {
		shm_close_group(g);
		return st;
	}
	*self = g;
	return TESS_OK;
}

static tess_status shm_init_plugin(const struct tess_host *h)
{
	host = h;
	if (getrandom(process, sizeof process, 0) != sizeof process)
		return h->fail(TESS_ENOTSUP, "no random bytes: %s", strerror(errno));
	return TESS_OK;
}

static const struct tess_backend shm = {
	.size = sizeof shm,
	.threads = 1,
	.name = "shm",
	.summary = "ranks of one host, over shared memory",
	.supports = shm_supports_call,
	.open = shm_open_group,
	.start = shm_start_call,
	.test = shm_work_test,
	.wait = shm_work_wait,
	.release = shm_work_release,
	.close = shm_close_group,
	.alloc = region_alloc,
	.free = region_free,
	.abort = wakeup_abort_wait,
	.compares = 1,
	.exact = 1,
	.reach = TESS_REACH_HOST,
	.mem_kinds = 1 << TESS_HOST,
	.bind = 1,
};

TESS_DEFINE_PLUGIN("shm", "1.0", "Apache-2.0", .summary = "communication in shared memory",
                   .backends = TESS_LIST(tess_backend, &shm), .init = shm_init_plugin);

/*
 * tess-backend-shm.so: ranks of one host, over memory that they share. Nothing is left behind, in
 * a file system or elsewhere, however ranks end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "shm.h"

static const struct tess_host *host;
static unsigned char process[16]; /* random: threads of this process know each other by it */

static tess_status supports(const struct tess_coll *c, int32_t nranks)
{
	bool whole = c->dtype != TESS_F32 && c->dtype != TESS_F64 && c->dtype != TESS_BF16 &&
	             c->dtype != TESS_F16;

	if (nranks > RANKS_MOST)
		return host->fail(TESS_ENOTSUP, "shm has at most %d ranks, not %d", RANKS_MOST,
		                  (int)nranks);
	if (c->kind < TESS_BARRIER || c->kind > TESS_RECV)
		return host->fail(TESS_ENOTSUP, "shm: kind %d is none", (int)c->kind);
	if (c->kind == TESS_BARRIER)
		return TESS_OK;
	if (c->mem != TESS_HOST)
		return host->fail(TESS_ENOTSUP, "shm moves host memory; take nccl for GPUs");
	if (!tess_width(c->dtype))
		return host->fail(TESS_ENOTSUP, "shm: dtype %d is none", (int)c->dtype);
	if (tess_kind_reduces(c->kind) &&
	    (c->op < TESS_SUM || c->op > TESS_BXOR || (c->op >= TESS_BAND && !whole)))
		return host->fail(TESS_ENOTSUP, "shm: operation %d is not for dtype %d", (int)c->op,
		                  (int)c->dtype);
	return TESS_OK;
}

static void close_group(void *self)
{
	struct group *g = self;

	segment_leave(g);
	work_clear(g);
	free(g->line);
	free(g->out);
	free(g->in);
	free(g->world);
	free(g->name);
	free(g);
}

static tess_status open_group(const struct tess_join *how, void **self)
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
		             .timeout = how->deadline - bell_now() };
	g->name = strdup(how->name);
	g->world = malloc(n * sizeof *g->world);
	g->line = malloc(n * sizeof *g->line);
	g->out = calloc(n, sizeof *g->out);
	g->in = calloc(n, sizeof *g->in);
	for (size_t r = 0; g->world && g->line && r < n; r++) {
		g->world[r] = how->world ? how->world[r] : (int32_t)r;
		g->line[r] = -1;
	}
	if (g->name && g->world && g->line && g->out && g->in)
		st = segment_enter(g, how, process);
	else
		st = host->fail(TESS_ENOMEM, "out of memory");
	if (st)
		close_group(g);
	else
		*self = g;
	return st;
}

static tess_status start(void *self, const struct tess_coll *c, void **work)
{
	struct work *w;
	tess_status st = work_start(self, c, false, &w);

	if (!st)
		*work = w;
	return st;
}

static tess_status test(void *self, void *work)
{
	return work_test(self, work);
}

static tess_status wait(void *self, void *work, int64_t deadline)
{
	return work_wait(self, work, deadline);
}

static void release(void *self, void *work)
{
	work_release(self, work);
}

static tess_status alloc(void *self, uint64_t bytes, void **mine, void **peers)
{
	return room_alloc(self, bytes, mine, peers);
}

static void free_room(void *self, void *mine)
{
	room_free(self, mine);
}

static void abort_group(void *self)
{
	bell_abort(self);
}

static tess_status init(const struct tess_host *h)
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
	.supports = supports,
	.open = open_group,
	.start = start,
	.test = test,
	.wait = wait,
	.release = release,
	.close = close_group,
	.alloc = alloc,
	.free = free_room,
	.abort = abort_group,
	.compares = 1,
	.exact = 1,
	.run = small_run,
};
static const struct tess_backend *const backends[] = { &shm, NULL };

TESS_PLUGIN = { .abi = TESS_ABI,
	        .size = sizeof(struct tess_plugin),
	        .name = "shm",
	        .version = "1.0",
	        .license = "Apache-2.0",
	        .summary = "communication in shared memory",
	        .backends = backends,
	        .init = init };

/*
 * tess-backend-mpi.so: ranks are processes that mpirun has started, and talk over its MPI.
 *
 * Who is there and who has died is heard through the rendezvous of the job, as with every backend; MPI
 * moves the data, and between hosts what ranks say at the rendezvous as well. Its connections are as open
 * as the network they use.
 */
#include "member.h"

#include <stdlib.h>
#include <string.h>

const struct tess_host *mpi_host;

static tess_status supports(const struct tess_coll *c, int32_t nranks)
{
	return work_supports(c, nranks);
}

/* A group that was given up while all ranks of the job are well has cost nothing but itself. */
static bool has_lost_mpi(const struct group *g)
{
	if (g->failed < 0 && g->failed != TESS_EABORTED)
		return true;
	return g->aborted && errand_state(&g->store) != TESS_OK;
}

static void close_group(void *self)
{
	struct group *g = self;

	if (!g)
		return;
	work_clear(g);
	caught_end(g);
	if (has_lost_mpi(g))
		errand_lose();
	errand_close(&g->comm);
	free(g->world);
	free(g->name);
	free(g);
}

static tess_status open_group(const struct tess_join *how, void **self)
{
	size_t n = (size_t)how->nranks;
	struct group *g = calloc(1, sizeof *g);
	tess_status st = TESS_OK;

	if (!g)
		return mpi_host->fail(TESS_ENOMEM, "no memory for a group");
	g->comm = MPI_COMM_NULL;
	g->rank = how->rank;
	g->nranks = how->nranks;
	g->store = *how->store;
	g->name = strdup(how->name);
	g->world = malloc(n * sizeof *g->world);
	if (!g->name || !g->world)
		st = mpi_host->fail(TESS_ENOMEM, "no memory for a group");
	else
		memcpy(g->world, how->world, n * sizeof *g->world);
	if (n > 1 && st == TESS_OK)
		st = errand_init(how->world[how->rank], how->nranks, how->store, how->deadline);
	if (n > 1 && st == TESS_OK)
		st = errand_open(how, &g->comm, &g->tags);
	if (st < 0) {
		close_group(g);
		return st;
	}
	*self = g;
	return TESS_OK;
}

static tess_status start(void *self, const struct tess_coll *c, void **work)
{
	struct work *w;
	tess_status st = work_start(self, c, &w);

	if (st == TESS_OK)
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

/* Whoever waits looks at it between two tests. */
static void abort_group(void *self)
{
	struct group *g = self;

	if (!atomic_exchange(&g->aborted, true))
		caught_watch(g);
}

static tess_status meet(int32_t rank, int32_t nranks, int64_t deadline, int32_t *line, int32_t *end)
{
	return line_open(rank, nranks, deadline, line, end);
}

static tess_status init(const struct tess_host *host)
{
	mpi_host = host;
	return TESS_OK;
}

static const struct tess_backend mpi = {
	.size = sizeof mpi,
	.name = "mpi",
	.summary = "processes that mpirun has started, over its MPI",
	.supports = supports,
	.open = open_group,
	.start = start,
	.test = test,
	.wait = wait,
	.release = release,
	.close = close_group,
	.abort = abort_group,
	.exact = 1,
	.bootstrap = meet,
};
static const struct tess_backend *const backends[] = { &mpi, NULL };

TESS_PLUGIN = {
	.abi = TESS_ABI,
	.size = sizeof(struct tess_plugin),
	.name = "mpi",
	.version = "1.0",
	.license = "Apache-2.0",
	.summary = "communication over MPI",
	.backends = backends,
	.init = init,
	.quit = errand_finish,
};

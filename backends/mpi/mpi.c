/*
 * tess-backend-mpi.so: ranks are processes started by mpirun, and communicate over its MPI.
 *
 * The rendezvous of the job detects missing and dead ranks, as with every backend. MPI moves the
 * data, and between hosts also the traffic of the rendezvous. Its connections are as open as the
 * network.
 */
#include "blocking_call.h"
#include "tunnel.h"
#include "watchdog.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

const struct tess_host *mpi_host;

static tess_status mpi_supports_call(const struct tess_coll *c, int32_t nranks)
{
	char fault[128];

	(void)nranks;
	if (tess_coll_find_fault(c, fault, sizeof fault))
		return mpi_host->fail(TESS_ENOTSUP, "mpi: %s", fault);
	return TESS_OK;
}

/* Returns whether MPI is unusable; not after an abort while all ranks of the job are alive. */
static bool has_lost_mpi(const struct group *g)
{
	if (g->failed < 0 && g->failed != TESS_EABORTED)
		return true;
	return g->aborted && check_job(&g->store) != TESS_OK;
}

static void mpi_close_group(void *self)
{
	struct group *g = self;

	if (!g)
		return;
	mpi_work_clear(g);
	watchdog_stop(g);
	if (has_lost_mpi(g))
		abandon_mpi();
	blocking_close_comm(&g->comm);
	free(g->world);
	free(g->name);
	free(g);
}

static tess_status mpi_open_group(const struct tess_group_entry *how, void **self)
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
		st = blocking_init_mpi(how->world[how->rank], how->nranks, how->store,
		                       how->deadline);
	if (n > 1 && st == TESS_OK)
		st = blocking_open_group(how, &g->comm, &g->tags);
	if (st < 0) {
		mpi_close_group(g);
		return st;
	}
	*self = g;
	return TESS_OK;
}

/* Marks the group as aborted; waits check this between two tests. */
static void mpi_abort_group(void *self)
{
	struct group *g = self;

	if (!atomic_exchange(&g->aborted, true))
		watchdog_start(g);
}

static tess_status mpi_init_plugin(const struct tess_host *host)
{
	mpi_host = host;
	return TESS_OK;
}

static const struct tess_backend mpi = {
	.size = sizeof mpi,
	.name = "mpi",
	.summary = "processes that mpirun has started, over its MPI",
	.supports = mpi_supports_call,
	.open = mpi_open_group,
	.start = mpi_work_start,
	.test = mpi_work_test,
	.wait = mpi_work_wait,
	.release = mpi_work_release,
	.close = mpi_close_group,
	.abort = mpi_abort_group,
	.exact = 1,
	.bootstrap = tunnel_open_all,
	.reach = TESS_REACH_HOSTS,
	.mem_kinds = 1 << TESS_HOST,
};

TESS_DEFINE_PLUGIN("mpi", "1.0", "Apache-2.0", .summary = "communication over MPI",
                   .backends = TESS_LIST(tess_backend, &mpi), .init = mpi_init_plugin,
                   .quit = blocking_finalize_mpi);

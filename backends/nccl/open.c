/* open.c - opens and closes a group: the unique id, the communicator, and its orderly end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meeting.h"
#include "work.h"

enum { CLOSE_NS = 2000000000, POLL_NS = 50000, LONG_PAUSE_NS = 100000000 };
enum { SHARED_CTAS = 8 }; /* thread blocks of a rank that shares its GPU */

/* ---- the communicator ------------------------------------------------------------------------ */

/* Waits for a key that no rank sets: a failure of another rank ends the wait. */
static tess_status pause_for_failure(const struct tess_group_entry *how)
{
	uint64_t len = 0;
	char key[256];
	tess_status st;

	snprintf(key, sizeof key, "%s/nccl/never", how->name);
	st = how->store->get(how->store->self, key, tess_now() + LONG_PAUSE_NS, key, &len);
	return st == TESS_ETIMEOUT ? TESS_OK : st;
}

/* Pauses between two polls that began at `begin`, first briefly. how: as in await_comm. */
static tess_status pause_polls(const struct tess_group_entry *how, int64_t begin)
{
	const struct timespec pause = { .tv_nsec = POLL_NS };

	if (how && tess_now() - begin > LONG_PAUSE_NS)
		return pause_for_failure(how);
	nanosleep(&pause, NULL);
	return TESS_OK;
}

/*
 * Polls `comm` until NCCL has finished its work in the background. how: NULL after open, when
 * failures of other ranks arrive through abort().
 */
static tess_status await_comm(struct group *g, void *comm, const struct tess_group_entry *how,
                              int64_t deadline, const char *what)
{
	int state = NCCL_IN_PROGRESS, bad = 0;
	int64_t begin = tess_now();
	tess_status st = TESS_OK;

	while (!st && !(bad = g->calls->get_async_error(comm, &state)) &&
	       state == NCCL_IN_PROGRESS) {
		if (atomic_load(&g->aborted) || tess_now() >= deadline)
			st = group_fail(g, TESS_ETIMEOUT,
			                "group %s over nccl: %s was not done by the deadline",
			                g->name, what);
		else
			st = pause_polls(how, begin);
	}
	return st ? st : bad || state ? group_fail_nccl(g, bad ? bad : state, what) : TESS_OK;
}

static tess_status init_comm(struct group *g, const struct tess_group_entry *how,
                             struct nccl_config *config)
{
	struct nccl_id id = { { 0 } };
	tess_status st = TESS_OK;
	int result;

	if (g->rank == 0) {
		result = g->calls->get_unique_id(&id);
		st = result ? group_fail_nccl(g, result, "ncclGetUniqueId")
		            : meeting_set_key(g, how, "id", &id, sizeof id);
	} else {
		st = meeting_get_key(g, how, "id", 0, &id, sizeof id);
	}
	if (st)
		return st;
	result = g->calls->comm_init(&g->comm, g->nranks, id, g->rank, config);
	if (result && result != NCCL_IN_PROGRESS)
		return group_fail_nccl(g, result, "ncclCommInitRankConfig");
	return await_comm(g, g->comm, how, how->deadline, "ncclCommInitRankConfig");
}

/* Waits until the parent has finished its calls. Locked; unlocks in between for abort(). */
static tess_status await_parent(struct group *parent, const struct tess_group_entry *how)
{
	int64_t begin = tess_now();
	tess_status st;

	while ((st = work_finish_start(parent)) == TESS_PENDING) {
		if (tess_now() >= how->deadline)
			return parent->host->fail(TESS_ETIMEOUT,
			                          "group %s over nccl: ncclCommSplit was not done "
			                          "by the deadline",
			                          how->name);
		group_unlock(parent);
		st = pause_polls(how, begin);
		group_lock(parent);
		if (st)
			break;
	}
	return st;
}

/*
 * Splits the parent. NCCL sets the child from its own thread, even if the split fails, and until
 * then accepts no other call of the parent. Only an abort of the parent ends a split.
 */
static tess_status split_parent(struct group *parent, const struct tess_group_entry *how,
                                struct nccl_config *config, void **out)
{
	tess_status st = await_parent(parent, how);
	int result;

	if (!st && !(parent->child = calloc(1, sizeof *parent->child)))
		st = parent->host->fail(TESS_ENOMEM, "nccl: out of memory");
	if (st)
		return st;
	result = parent->calls->comm_split(parent->comm, how->colour, how->rank, parent->child,
	                                   config);
	if (result && result != NCCL_IN_PROGRESS)
		st = group_fail_nccl(parent, result, "ncclCommSplit");
	parent->starting = true;
	if (!st)
		st = await_parent(parent, how);
	if (!st && !*parent->child)
		st = group_fail_nccl(parent, NCCL_INVALID_USAGE, "ncclCommSplit");
	if (st) {
		group_abort_locked(parent);
		return st;
	}
	*out = *parent->child;
	free(parent->child);
	parent->child = NULL;
	return TESS_OK;
}

static tess_status split_communicator(struct group *g, const struct tess_group_entry *how,
                                      struct nccl_config *config)
{
	struct group *parent = how->parent;
	tess_status st;

	group_lock(parent);
	st = split_parent(parent, how, config, &g->comm);
	group_unlock(parent);
	return st ? st : await_comm(g, g->comm, how, how->deadline, "ncclCommSplit");
}

static tess_status make_communicator(struct group *g, const struct tess_group_entry *how,
                                     int version)
{
	struct nccl_config config = { .size = sizeof config,
		                      .magic = NCCL_MAGIC,
		                      .version = NCCL_OLDEST,
		                      .blocking = 0,
		                      .cga_cluster = NCCL_UNSET,
		                      .min_ctas = NCCL_UNSET,
		                      .max_ctas = NCCL_UNSET,
		                      .split_share = NCCL_UNSET };
	bool shared;
	tess_status st = meeting_exchange_cards(g, how, version, &shared);

	if (!st)
		st = meeting_set_environment(how, shared);
	if (st)
		return st;
	if (shared)
		config.max_ctas = SHARED_CTAS;
	if (how->parent && TESS_HAS(how, tess_group_entry, colour) && how->splits)
		return split_communicator(g, how, &config);
	return init_comm(g, how, &config);
}

static tess_status open_device(struct group *g, int32_t index)
{
	int n = 0, bad = g->calls->device_count(&n);

	if (!bad && (index < 0 || index >= n))
		return g->host->fail(TESS_EDEVICE,
		                     "nccl: CUDA device %d of %d; ranks of nccl compute on GPUs",
		                     (int)index, n);
	if (!bad)
		bad = g->calls->device_get(&g->device, index);
	if (!bad)
		bad = g->calls->context_retain(&g->context, g->device);
	return bad ? group_fail_cuda(g, bad, "cuDevicePrimaryCtxRetain") : TESS_OK;
}

static tess_status open_comm(struct group *g, const struct tess_group_entry *how, int version)
{
	tess_status st;
	int bad;

	group_lock(g);
	bad = g->calls->cuda_alloc(&g->word, sizeof(int32_t));
	st = bad ? group_fail_cuda(g, bad, "cuMemAlloc") : make_communicator(g, how, version);
	group_unlock(g);
	return st;
}

tess_status group_open(const struct tess_group_entry *how, const struct tess_host *host,
                       void **self)
{
	const struct nccl_calls *calls;
	struct group *g;
	int version;
	tess_status st = library_get_calls(host, &calls, &version);

	if (st)
		return st;
	g = calloc(1, sizeof *g);
	if (!g)
		return host->fail(TESS_ENOMEM, "nccl: out of memory");
	pthread_mutex_init(&g->lock, NULL);
	g->host = host;
	g->calls = calls;
	g->rank = how->rank;
	g->nranks = how->nranks;
	g->name = strdup(how->name);
	g->world = malloc((size_t)how->nranks * sizeof *g->world);
	if (!g->name || !g->world)
		st = host->fail(TESS_ENOMEM, "nccl: out of memory");
	for (int32_t r = 0; r < g->nranks && !st; r++)
		g->world[r] = how->world ? how->world[r] : r;
	if (!st)
		st = open_device(g, how->device);
	if (!st)
		st = open_comm(g, how, version);
	if (st)
		group_close(g);
	else
		*self = g;
	return st;
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool has_ended_works(const struct group *g)
{
	bool ended = !g->failed;

	for (const struct work *w = g->works; w; w = w->next)
		ended = ended && w->state == WORK_DONE;
	return ended;
}

/*
 * Closes the communicator in order if all works are done, without waiting for a missing rank.
 * Memory is freed when no stream uses it any more.
 */
static void close_comm(struct group *g)
{
	int result;

	if (g->comm && !has_ended_works(g))
		group_end_communicator(g);
	group_await_ender(g);
	group_free_all_locked(g);
	if (!g->comm)
		return;
	result = g->calls->comm_finalize(g->comm);
	if (result == NCCL_IN_PROGRESS &&
	    !await_comm(g, g->comm, NULL, tess_now() + CLOSE_NS, "ncclCommFinalize"))
		result = NCCL_SUCCESS;
	if (result == NCCL_SUCCESS) {
		g->calls->comm_destroy(g->comm);
		g->comm = NULL;
	} else {
		group_end_communicator(g);
		group_await_ender(g);
	}
}

void group_close(void *self)
{
	struct group *g = self;

	if (g->context) {
		group_lock(g);
		close_comm(g);
		work_free_all(g);
		if (g->word)
			g->calls->cuda_free(g->word);
		group_unlock(g);
		g->calls->context_release(g->device);
	}
	pthread_mutex_destroy(&g->lock);
	free(g->world);
	free(g->name);
	free(g);
}

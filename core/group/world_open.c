/* world_open.c - opens and closes one rank's end of a job. */
#include "core/world/buffer.h"
#include "core/world/world.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/call/call.h"
#include "core/call/report.h"
#include "core/group/choose.h"
#include "core/rendezvous/rank_env.h"
#include "core/rendezvous/sigusr1.h"
#include "core/world/cpus.h"
#include "core/world/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct tess_option tess_world_options[] = {
	{ "backend", "auto",
	  "communication backend: loopback, gloo, ...; auto: the first of TESSERA_BACKENDS "
	  "that can connect the ranks" },
	{ "backends", "loopback,shm,gloo,nccl", "backends that auto tries, in this order" },
	{ "timeout", "300",
	  "time limit in seconds of a call, or of a function of a plugin, after which the job "
	  "fails" },
	{ "reduce", "exact",
	  "sums over ranks: exact (the same bits for any number of ranks) or fast (as the "
	  "backend adds)" },
	{ "job", "",
	  "name of the job on this host; default: the run of torchrun, or the process that "
	  "started the ranks" },
	{ "rendezvous", "", "socket where the ranks meet; set by tessera launch" },
	{ "port", "",
	  "TCP port where ranks of several hosts meet; default: the one after MASTER_PORT" },
	{ "secret_file", "",
	  "file with the secret that authenticates the ranks of several hosts; mode 0600" },
	{ "bind", "auto",
	  "binding of ranks that tessera starts: cpu (one CPU each) or none; auto: cpu if "
	  "the backend gains by it and ranks share CPUs evenly" },
	{ "flight", "",
	  "directory for rank-R.json, the last 256 calls of each rank, written at a failure "
	  "and at SIGUSR1; off: none" },
	{ NULL, NULL, NULL },
};

/* Global, since a fork concerns all worlds of the process: their threads are not copied. */
static atomic_int open_worlds;

int32_t tess_world_count_open(void)
{
	return atomic_load(&open_worlds);
}

/* ---- opening --------------------------------------------------------------------------------- */

static tess_status store_set(void *self, const char *key, const void *val, uint64_t len)
{
	struct tess_world *w = self;

	return w->link.set(w->link.self, key, val, len);
}

static tess_status store_get(void *self, const char *key, int64_t deadline, void *val,
                             uint64_t *len)
{
	struct tess_world *w = self;

	return w->link.get(w->link.self, key, deadline, val, len);
}

static tess_status read_options(struct tess_world *w)
{
	const char *reduce;
	tess_status st = tess_option_add("world", tess_world_options);

	if (!st)
		st = tess_option_get_seconds("timeout", &w->timeout);
	if (st)
		return st;
	if (w->timeout <= 0)
		return tess_fail(TESS_EINVAL, "TESSERA_TIMEOUT=%s: must be more than 0 seconds",
		                 tess_option_get("timeout"));
	reduce = tess_option_get("reduce");
	w->fast = !strcmp(reduce, "fast");
	if (!w->fast && strcmp(reduce, "exact"))
		return tess_fail(TESS_EINVAL, "TESSERA_REDUCE=%s: must be exact or fast", reduce);
	return TESS_OK;
}

tess_status tess_world_check_options(void)
{
	struct tess_world w;

	return read_options(&w);
}

static tess_status choose_world_backend(int32_t size, bool threads, bool hosts,
                                        const struct tess_backend **out)
{
	const char *name = tess_option_get("backend");
	struct tess_choice choice;
	tess_status st = tess_backend_check_device(name, size, threads, hosts);

	if (!st)
		st = tess_backend_choose(name, size, threads, hosts, &choice);
	if (st)
		return st;
	if (choice.second)
		tess_log(TESS_WARN, "comm", "%s is used: %s", choice.backend->name, choice.why);
	*out = choice.backend;
	return TESS_OK;
}

tess_status tess_world_make(int32_t rank, int32_t size, void *flight, struct tess_world **out)
{
	struct tess_world *w = calloc(1, sizeof *w);
	tess_status st;

	if (!w)
		return tess_fail(TESS_ENOMEM, "no memory for a world");
	st = read_options(w);
	if (!st)
		st = tess_flight_open(tess_option_get("flight"), flight, &w->flight);
	if (st) {
		free(w);
		return st;
	}
	w->rank = rank;
	w->size = size;
	w->handler = (struct tess_failure_handler){ .on_failure = tess_world_handle_failure,
		                                    .on_record = tess_world_handle_record,
		                                    .sigusr1_fd = -1,
		                                    .timeout = w->timeout,
		                                    .arg = w };
	w->store = (struct tess_store){
		.size = sizeof w->store, .self = w, .set = store_set, .get = store_get
	};
	pthread_mutex_init(&w->lock, NULL);
	tess_cond_init(&w->failed_cond);
	tess_log_set_rank(rank, size);
	atomic_fetch_add(&open_worlds, 1);
	tess_plugin_set_rank(NULL, rank, size);
	*out = w;
	return TESS_OK;
}

void tess_world_leave(struct tess_world *w)
{
	for (struct tess_group *g = w->groups; g; g = g->next)
		tess_group_finish(g);
	for (struct tess_group *g = w->groups; g; g = g->next)
		tess_group_report_last(g);
	w->left = true;
	if (w->link.self)
		w->link.leave(w->link.self, tess_now() + w->timeout);
}

void tess_world_destroy(struct tess_world *w)
{
	while (w->groups)
		tess_group_destroy(w->groups);
	tess_world_buffers_free(w);
	if (w->link.self)
		w->link.close(w->link.self);
	tess_rendezvous_close(w->server);
	tess_coordinator_close(w->coordinator);
	tess_sigusr1_close(w->handler.sigusr1_fd);
	tess_flight_close(w->flight);
	pthread_cond_destroy(&w->failed_cond);
	pthread_mutex_destroy(&w->lock);
	free(w);
	atomic_fetch_sub(&open_worlds, 1);
}

/* Fails unless this rank uses the backend of rank 0. Threads cannot differ. */
static tess_status compare_backends(struct tess_world *w)
{
	const char *mine = w->backend->name;
	char first[128] = "";
	uint64_t len = sizeof first - 1;
	tess_status st;

	if (!w->rank)
		return w->link.set(w->link.self, "backend", mine, strlen(mine) + 1);
	st = w->link.get(w->link.self, "backend", tess_now() + w->timeout, first, &len);
	if (!st && strcmp(mine, first) != 0)
		st = tess_fail(TESS_EINVAL,
		               "it uses the backend %s, and rank 0 %s; set one TESSERA_BACKEND "
		               "on all ranks",
		               mine, first);
	return st;
}

tess_status tess_world_enter(struct tess_world *w, bool threads, bool hosts)
{
	tess_status st = choose_world_backend(w->size, threads, hosts, &w->backend);

	w->threads = threads;
	w->hosts = hosts;
	if (!st)
		tess_opening_post(w, 0, w->size);
	if (!st && !threads && w->size > 1)
		st = compare_backends(w);
	if (!st)
		st = tess_world_post_cpus(w);
	if (!st)
		st = tess_group_open_all(w, &w->all);
	return st ? tess_opening_failed(w, 0, st, tess_error()) : TESS_OK;
}

static tess_status connect_single_rank(struct tess_world *w)
{
	tess_status st = tess_coordinator_open(1, &w->coordinator);

	if (!st)
		st = tess_link_thread(w->coordinator, 0, &w->handler, &w->link);
	return st ? st : tess_world_set_meeting(w, "");
}

tess_status tess_world_open(struct tess_world **out)
{
	tess_status st = TESS_REQUIRE(out);

	return st ? st : tess_world_open_recorded(NULL, out);
}

tess_status tess_world_open_recorded(void *flight, struct tess_world **out)
{
	struct tess_world *w;
	struct tess_rank_env env;
	bool alone;
	tess_status st = tess_option_add("world", tess_world_options);

	if (st || (st = tess_rank_env_read(&env)) ||
	    (st = tess_world_make(env.rank, env.size, flight, &w)))
		return st;
	alone = env.size == 1 && !*tess_option_get("rendezvous");
	if (tess_flight_writes(w->flight) && !alone)
		w->handler.sigusr1_fd = tess_sigusr1_open();
	st = alone ? connect_single_rank(w) : tess_world_connect(w, &env);
	if (!st)
		st = tess_world_enter(w, false, env.hosts);
	if (st)
		tess_world_destroy(w);
	else
		*out = w;
	return st;
}

void tess_world_close(struct tess_world *w)
{
	bool reported;

	if (!w)
		return;
	if (w->spawned || w->ngenerating) {
		tess_world_fail(w, TESS_EINVAL,
		                w->spawned ? "tess_world_close: a function of tess_world_spawn "
		                             "does not close its world; it returns"
		                           : "tess_world_close: a callback does not close the "
		                             "world that calls it");
		return;
	}
	reported = w->reported;
	tess_world_leave(w);
	if (w->failed && !reported)
		tess_log(TESS_WARN, "comm", "%s", w->first.sentence);
	tess_world_destroy(w);
}

/* ---- getters --------------------------------------------------------------------------------- */

int32_t tess_world_rank(const struct tess_world *w)
{
	return TESS_REQUIRE(w) ? -1 : w->rank;
}

int32_t tess_world_size(const struct tess_world *w)
{
	return TESS_REQUIRE(w) ? 0 : w->size;
}

const char *tess_world_backend(const struct tess_world *w)
{
	return TESS_REQUIRE(w) ? "" : w->backend->name;
}

struct tess_group *tess_world_group(struct tess_world *w)
{
	return TESS_REQUIRE(w) ? NULL : w->all;
}

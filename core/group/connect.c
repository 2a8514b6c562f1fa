/* connect.c - connects a rank to its job: by a Unix socket, TCP, or the backend's library. */
#include "core/base/clock.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/group/choose.h"
#include "core/group/world.h"
#include "core/registry/registry.h"
#include "core/rendezvous/rank_env.h"
#include "core/rendezvous/wire.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tess_status tess_world_set_meeting(struct tess_world *w, const char *address)
{
	return w->rank ? TESS_OK
	               : w->link.set(w->link.self, "meeting", address, strlen(address) + 1);
}

static tess_status connect_job(struct tess_world *w, const char *job)
{
	const char *given = tess_option_get("rendezvous");
	char path[128];
	tess_status st = TESS_OK;

	if (!*given && !w->rank)
		st = tess_rendezvous_open(job, w->size, &w->server);
	else if (!*given)
		st = tess_socket_path(job, path, sizeof path);
	if (st)
		return st;
	return tess_link_socket(*given      ? given
	                        : w->server ? tess_rendezvous_path(w->server)
	                                    : path,
	                        *given != 0, w->rank, w->size, tess_now() + w->timeout, &w->handler,
	                        &w->link);
}

static tess_status connect_hosts(struct tess_world *w, const struct tess_meeting *m)
{
	struct tess_secret secret;
	tess_status st = tess_secret_load(tess_option_get("secret_file"), m->job, &secret);

	if (!st && !w->rank)
		st = tess_rendezvous_open_hosts(&m->at, &secret, w->size, &w->server);
	if (!st)
		st = tess_link_hosts(&m->at, &secret, w->rank, w->size, tess_now() + w->timeout,
		                     &w->handler, &w->link);
	sodium_memzero(&secret, sizeof secret);
	return st;
}

/* The backend's library has connected the ranks. */
static tess_status connect_through_backend(struct tess_world *w, const struct tess_backend *b)
{
	int64_t deadline = tess_now() + w->timeout;
	int32_t fd, *ends = calloc((size_t)w->size, sizeof *ends);
	tess_status st;

	if (!ends)
		return tess_fail(TESS_ENOMEM, "no memory for the connections of %d ranks", w->size);
	st = b->bootstrap(w->rank, w->size, deadline, &fd, ends);
	if (st) {
		free(ends);
		return tess_fail_in(st, "%s", b->name);
	}
	if (!w->rank)
		st = tess_rendezvous_open_tunnels(ends, w->size, &w->server);
	free(ends);
	if (st) {
		close(fd);
		return st;
	}
	st = tess_link_tunnel(fd, w->rank, w->size, deadline, &w->handler, &w->link);
	return st ? st : tess_world_set_meeting(w, "?");
}

/*
 * The backend whose own library connects ranks of several hosts; NULL: none. A backend that cannot
 * be used fails later, in tess_world_enter, when all ranks have met.
 */
static const struct tess_backend *find_bootstrap(int32_t nranks)
{
	const char *name = tess_backend_wrapped(tess_option_get("backend"));
	struct tess_choice choice;

	if (tess_backend_choose(name, nranks, false, true, &choice) || !choice.backend->bootstrap)
		return NULL;
	return choice.backend;
}

tess_status tess_world_connect(struct tess_world *w, const struct tess_rank_env *env)
{
	const struct tess_backend *b = env->hosts ? find_bootstrap(w->size) : NULL;
	struct tess_meeting m;
	tess_status st;

	if (b)
		return connect_through_backend(w, b);
	st = tess_rank_env_meeting(env, &m);
	if (!st)
		st = env->hosts ? connect_hosts(w, &m) : connect_job(w, m.job);
	return st ? st : tess_world_set_meeting(w, m.at.addr);
}

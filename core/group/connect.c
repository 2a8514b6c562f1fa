/* connect.c - connects a rank to its job: by a Unix socket, TCP, or the backend's library. */
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/base/thread.h"
#include "core/group/choose.h"
#include "core/registry/plugin_call.h"
#include "core/registry/registry.h"
#include "core/rendezvous/rank_env.h"
#include "core/rendezvous/wire.h"
#include "core/world/world.h"

#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { NOTICE_MS = 5000, ENV_TEXT = 512 };

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

/* Connects through the backend's library. */
static tess_status connect_through_backend(struct tess_world *w, const struct tess_backend *b)
{
	int64_t deadline = tess_now() + w->timeout;
	int32_t fd, *ends = calloc((size_t)w->size, sizeof *ends);
	tess_status st;

	if (!ends)
		return tess_fail(TESS_ENOMEM, "no memory for the connections of %d ranks", w->size);
	st = TESS_PLUGIN_NOTED(TESS_STATE_ALL, b, "bootstrap", NULL, NULL, deadline,
	                       b->bootstrap(w->rank, w->size, deadline, &fd, ends));
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
 * Finds the backend whose own library connects ranks of several hosts; NULL: none. An unusable
 * backend fails later, in tess_world_enter, when all ranks have met.
 */
static const struct tess_backend *find_bootstrap(int32_t nranks)
{
	const char *name = tess_backend_wrapped(tess_option_get("backend"));
	struct tess_choice choice;

	if (tess_backend_choose(name, nranks, false, true, &choice) || !choice.backend->bootstrap)
		return NULL;
	return choice.backend;
}

static tess_status connect_to_job(struct tess_world *w, const struct tess_rank_env *env)
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

/* A thread that logs a wait of NOTICE_MS for other ranks. */
struct notice {
	const struct tess_rank_env *env;
	pthread_t thread;
	int connected; /* an eventfd; -1: no thread */
};

static void *print_notice(void *arg)
{
	const struct notice *n = arg;
	struct pollfd p = { .fd = n->connected, .events = POLLIN };
	char text[ENV_TEXT];

	if (poll(&p, 1, NOTICE_MS))
		return NULL;
	tess_rank_env_describe(n->env, text, sizeof text);
	tess_log(TESS_WARN, "world", "waiting for the other ranks of this job: %s", text);
	return NULL;
}

static void start_notice(struct notice *n, const struct tess_rank_env *env)
{
	n->env = env;
	n->connected = eventfd(0, EFD_CLOEXEC);
	if (n->connected >= 0 && tess_thread_start(&n->thread, print_notice, n)) {
		close(n->connected);
		n->connected = -1;
	}
}

static void stop_notice(struct notice *n)
{
	if (n->connected < 0)
		return;
	tess_event_post(n->connected);
	pthread_join(n->thread, NULL);
	close(n->connected);
}

/* Adds the reason why this process waited for others to the error of a deadline. */
static tess_status explain_timeout(const struct tess_rank_env *env)
{
	char text[ENV_TEXT], why[1024];

	tess_rank_env_describe(env, text, sizeof text);
	snprintf(why, sizeof why, "%s", tess_error());
	return tess_fail(TESS_ETIMEOUT, "%s; %s", why, text);
}

tess_status tess_world_connect(struct tess_world *w, const struct tess_rank_env *env)
{
	struct notice notice;
	tess_status st;

	/* variables of tessera launch are never left over: its socket ends with it */
	if (*tess_option_get("rendezvous"))
		return connect_to_job(w, env);
	start_notice(&notice, env);
	st = connect_to_job(w, env);
	stop_notice(&notice);
	return st == TESS_ETIMEOUT ? explain_timeout(env) : st;
}

#include "context.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * The open contexts of this process. The store passes an id, not a pointer: a job that fails during
 * the opening frees a context that another rank is about to enter.
 */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *contexts;
static uint64_t last_id;

/* ---- failing --------------------------------------------------------------------------------- */

void context_fail(struct context *ctx, tess_status why, const char *fmt, ...)
{
	va_list ap;

	if (ctx->failed)
		return;
	va_start(ap, fmt);
	vsnprintf(ctx->sentence, sizeof ctx->sentence, fmt, ap);
	va_end(ap);
	ctx->why = why;
	ctx->failed = true;
	atomic_store(&ctx->stop, true);
	for (struct pending_call *m = ctx->open; m; m = m->next)
		pthread_cond_broadcast(&m->changed);
}

tess_status context_report_failure(const struct context *ctx)
{
	return loopback_host->fail(ctx->why, "%s", ctx->sentence);
}

void context_await_moves(struct context *ctx)
{
	while (ctx->moving)
		pthread_cond_wait(&ctx->moves_done, &ctx->lock);
}

/* ---- opening and leaving --------------------------------------------------------------------- */

static void free_pending_calls(struct pending_call *m)
{
	for (struct pending_call *next; m; m = next) {
		next = m->next;
		pthread_cond_destroy(&m->changed);
		free(m->colls);
		free(m);
	}
}

struct context_address { /* published in the store by rank 0 */
	int64_t pid;
	uint64_t id;
};

static struct context *make_context(const struct tess_group_entry *how)
{
	size_t bytes = (size_t)how->nranks * sizeof *how->world;
	int32_t nranks = how->nranks, *world = malloc(bytes);
	struct context *ctx = calloc(1, sizeof *ctx);
	cpu_set_t set;

	if (!ctx || !world) {
		free(ctx);
		free(world);
		return NULL;
	}
	ctx->world = memcpy(world, how->world, bytes);
	pthread_mutex_init(&ctx->lock, NULL);
	pthread_cond_init(&ctx->moves_done, NULL);
	ctx->nranks = nranks;
	ctx->users = 1;
	/* with more ranks than CPUs, spinning delays the awaited rank */
	if (!sched_getaffinity(0, sizeof set, &set))
		ctx->spin = CPU_COUNT(&set) >= nranks ? 400 : 20;
	return ctx;
}

static void free_context(struct context *ctx)
{
	free_pending_calls(ctx->open);
	free_pending_calls(ctx->spare);
	pthread_cond_destroy(&ctx->moves_done);
	pthread_mutex_destroy(&ctx->lock);
	free(ctx->world);
	free(ctx);
}

void context_leave(struct context *ctx)
{
	bool last;

	pthread_mutex_lock(&ctx->lock);
	context_await_moves(ctx);
	pthread_mutex_unlock(&ctx->lock);
	pthread_mutex_lock(&contexts_lock);
	last = !--ctx->users;
	for (struct context **at = &contexts; last && *at; at = &(*at)->next)
		if (*at == ctx) {
			*at = ctx->next;
			break;
		}
	pthread_mutex_unlock(&contexts_lock);
	if (last)
		free_context(ctx);
}

/* Enters the context of an id; NULL: rank 0 has left it. */
static struct context *enter_context(uint64_t id)
{
	struct context *ctx;

	pthread_mutex_lock(&contexts_lock);
	for (ctx = contexts; ctx && ctx->id != id;)
		ctx = ctx->next;
	if (ctx)
		ctx->users++;
	pthread_mutex_unlock(&contexts_lock);
	return ctx;
}

/* Makes the context on rank 0, publishes it, and waits until all other ranks have found it. */
static tess_status offer_context(const struct tess_group_entry *how, struct context **out)
{
	const struct tess_store *store = how->store;
	struct context_address here = { .pid = getpid() };
	struct context *ctx = make_context(how);
	tess_status st = TESS_OK;
	char key[160];

	if (!ctx)
		return loopback_host->fail(TESS_ENOMEM, "no memory for a group of %d ranks",
		                           (int)how->nranks);
	pthread_mutex_lock(&contexts_lock);
	here.id = ctx->id = ++last_id;
	ctx->next = contexts;
	contexts = ctx;
	pthread_mutex_unlock(&contexts_lock);
	snprintf(key, sizeof key, "%s/loopback", how->name);
	if (how->nranks > 1)
		st = store->set(store->self, key, &here, sizeof here);
	for (int32_t r = 1; r < how->nranks && !st; r++) {
		char found;
		uint64_t len = sizeof found;

		snprintf(key, sizeof key, "%s/loopback/%d", how->name, (int)r);
		st = store->get(store->self, key, how->deadline, &found, &len);
	}
	if (st)
		context_leave(ctx);
	else
		*out = ctx;
	return st;
}

static tess_status find_context(const struct tess_group_entry *how, struct context **out)
{
	const struct tess_store *store = how->store;
	struct context_address there;
	struct context *ctx;
	uint64_t len = sizeof there;
	char key[160], found = 1;
	tess_status st;

	snprintf(key, sizeof key, "%s/loopback", how->name);
	st = store->get(store->self, key, how->deadline, &there, &len);
	if (st)
		return st;
	if (there.pid != getpid() || len != sizeof there)
		return loopback_host->fail(
			TESS_EINVAL,
			"its ranks are threads of one process, but rank 0 is process %d "
			"and rank %d process %d; take another backend for processes",
			(int)there.pid, (int)how->rank, (int)getpid());
	ctx = enter_context(there.id);
	if (!ctx)
		return loopback_host->fail(TESS_EABORTED, "rank 0 has left the group");
	snprintf(key, sizeof key, "%s/loopback/%d", how->name, (int)how->rank);
	st = store->set(store->self, key, &found, sizeof found);
	if (st)
		context_leave(ctx);
	else
		*out = ctx;
	return st;
}

tess_status context_open(const struct tess_group_entry *how, struct context **out)
{
	return how->rank ? find_context(how, out) : offer_context(how, out);
}

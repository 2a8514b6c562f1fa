/* carrier.c - a group's device, and the backend that moves its memory. */
#include "core/group/carrier.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/group/choose.h"
#include "core/group/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUED_MAX = 512 }; /* works that are left to a stream, until the host waits for them */

/* ---- which backend ------------------------------------------------------------------------- */

struct verdict { /* of one rank; gathered from all */
	int64_t usable;
	char name[56]; /* of the backend */
};

static void warn_passed_over(const struct tess_group *g, const char *why)
{
	if (g->rank == 0)
		tess_log(TESS_WARN, "comm",
		         "calls on memory of device %s go through host memory: %s", g->device->name,
		         why);
}

/* The ranks use the carrier if all can. *out: NULL where it is passed over. */
static tess_status agree_on_backend(struct tess_group *g, struct tess_choice *c,
                                    const struct tess_backend **out)
{
	const struct tess_world *w = g->world;
	struct verdict mine = { 0 }, *all = calloc((size_t)g->size, sizeof *all);
	tess_status st = TESS_ENOMEM, found;
	char why[TESS_SENTENCE];
	int32_t usable = 0;

	found = tess_backend_choose_for_memory(tess_option_get("backend"), g->device->mem, g->size,
	                                       w->threads, w->hosts, c);
	snprintf(why, sizeof why, "%s", found ? tess_error() : "another rank cannot use it");
	mine.usable = !found;
	if (!found)
		snprintf(mine.name, sizeof mine.name, "%s", c->backend->name);
	if (all)
		st = tess_all_gather(g, &mine, all, sizeof mine / 8, TESS_I64, "carrier");
	for (int32_t r = 0; r < g->size && !st; r++)
		usable += all[r].usable && !strcmp(all[r].name, mine.name);
	free(all);
	*out = !st && usable == g->size ? c->backend : NULL;
	if (st || *out)
		return st;
	if (found && c->named)
		return tess_fail(found, "%s", why);
	if (found != TESS_ENOENT || c->second)
		warn_passed_over(g, why);
	return TESS_OK;
}

/* ---- open and close ------------------------------------------------------------------------ */

static tess_status open_carrier(struct tess_group *g, const struct tess_choice *c, int32_t index,
                                const struct tess_group *parent, int32_t colour)
{
	struct tess_world *w = g->world;
	struct tess_carrier made = { c->backend, NULL };
	bool splits = parent && parent->carrier.backend == c->backend;
	char name[TESS_MEMBERS_KEY + 24];
	struct tess_join how = { .size = sizeof how,
		                 .rank = g->rank,
		                 .nranks = g->size,
		                 .device = index,
		                 .name = name,
		                 .world = g->members->member,
		                 .store = &w->store,
		                 .parent = splits ? parent->carrier.self : NULL,
		                 .deadline = tess_now() + w->timeout,
		                 .splits = splits,
		                 .colour = colour };
	tess_status st;

	snprintf(name, sizeof name, "%s/device%d", g->key, (int)g->ncarriers++);
	st = TESS_PLUGIN_CALL(c->backend, NULL, open, &how, &made.self);
	if (st == TESS_ENOTSUP && !c->named) { /* on all ranks */
		warn_passed_over(g, tess_error());
		return TESS_OK;
	}
	if (st)
		return st == TESS_ENOTSUP
		               ? st
		               : tess_opening_failed(w, g->members->id, st, tess_error());
	if (g->rank == 0)
		tess_log(TESS_INFO, "comm", "%s moves memory of device %s (%s)", c->backend->name,
		         g->device->name, c->why);
	pthread_mutex_lock(&w->lock);
	g->carrier = made;
	if (w->failed)
		tess_group_abort(g);
	pthread_mutex_unlock(&w->lock);
	return TESS_OK;
}

tess_status tess_group_attach_device(struct tess_group *g, const struct tess_device *device,
                                     void *self, int32_t index, const struct tess_group *parent,
                                     int32_t colour)
{
	struct tess_choice c;
	const struct tess_backend *b = NULL;
	tess_status st = TESS_OK;

	if (g->device_self)
		tess_group_detach_device(g, g->device_self);
	g->device = device;
	g->device_self = self;
	if (g->size == 1 || device->mem == TESS_HOST || g->backend->mem_kinds >> device->mem & 1)
		return TESS_OK;
	st = agree_on_backend(g, &c, &b);
	return st || !b ? st : open_carrier(g, &c, index, parent, colour);
}

void tess_carrier_close(struct tess_group *g)
{
	struct tess_carrier by = g->carrier;

	if (!by.self)
		return;
	for (struct tess_work *w = g->live; w; w = w->next)
		if (w->by.self == by.self)
			tess_work_release_backend(w);
	pthread_mutex_lock(&g->world->lock);
	g->carrier = (struct tess_carrier){ 0 };
	pthread_mutex_unlock(&g->world->lock);
	TESS_PLUGIN_DO(by.backend->close(by.self));
}

void tess_group_detach_device(struct tess_group *g, const void *self)
{
	char sentence[TESS_SENTENCE];

	if (g->device_self != self)
		return;
	snprintf(sentence, sizeof sentence, "%s", tess_error());
	tess_group_drain(g);
	tess_group_finish(g);
	tess_carrier_close(g);
	g->device = NULL;
	g->device_self = NULL;
	tess_fail(TESS_OK, "%s", sentence); /* not what was said while it closed */
}

/* ---- calls on a stream --------------------------------------------------------------------- */

bool tess_work_is_ordered(const struct tess_work *w)
{
	return w->coll.mem != TESS_HOST && w->coll.stream && w->work && w->by.backend->join;
}

tess_status tess_work_queue(struct tess_work *w, void *stream)
{
	struct tess_group *g = w->group;
	tess_status st =
		TESS_PLUGIN_CALL(w->by.backend, w->coll.where, join, w->by.self, w->work, stream);

	if (st)
		return tess_work_failed(w, st, w->coll.deadline);
	w->queued = true;
	return ++g->nqueued < QUEUED_MAX ? TESS_OK : tess_group_drain(g);
}

static struct tess_work *find_oldest_queued(const struct tess_group *g)
{
	struct tess_work *oldest = NULL;

	for (struct tess_work *w = g->live; w; w = w->next)
		oldest = w->queued ? w : oldest;
	return oldest;
}

static void drop_queued(struct tess_work *w)
{
	w->queued = false;
	w->group->nqueued--;
	tess_work_drop(w);
}

/* The oldest first, so that a failure is that of the first call. */
tess_status tess_group_drain(struct tess_group *g)
{
	tess_status st = TESS_OK;

	while (g->nqueued && !st) {
		struct tess_work *oldest = find_oldest_queued(g);

		st = tess_work_wait(oldest, 0);
		drop_queued(oldest);
	}
	return st;
}

static tess_status test_queued(struct tess_group *g)
{
	struct tess_work *oldest;
	tess_status st = TESS_OK;

	while (!st && (oldest = find_oldest_queued(g))) {
		st = tess_work_test(oldest);
		if (st != TESS_PENDING)
			drop_queued(oldest);
	}
	return st == TESS_PENDING ? TESS_OK : st;
}

tess_status tess_world_test_device(const struct tess_world *w, const void *device_self)
{
	tess_status st = TESS_OK;

	for (struct tess_group *g = w->groups; g && !st; g = g->next)
		st = g->device_self == device_self ? test_queued(g) : TESS_OK;
	return st;
}

/* ---- memory -------------------------------------------------------------------------------- */

tess_status tess_world_drain_device(const struct tess_world *w, const void *device_self)
{
	tess_status st = TESS_OK;

	for (struct tess_group *g = w->groups; g && !st; g = g->next)
		if (g->device_self == device_self)
			st = tess_group_drain(g);
	return st;
}

tess_status tess_group_copy(const struct tess_group *g, const char *where, void *stream, void *dst,
                            const void *src, uint64_t bytes)
{
	tess_status st = tess_world_drain_device(g->world, g->device_self);

	if (!st)
		st = TESS_PLUGIN_CALL(g->device, where, copy, g->device_self, dst, src, bytes,
		                      stream);
	return st ? st : TESS_PLUGIN_CALL(g->device, where, sync, g->device_self, stream);
}

bool tess_carrier_has_memory(const struct tess_group *g)
{
	return g->carrier.self && g->carrier.backend->alloc && g->carrier.backend->free;
}

tess_status tess_carrier_alloc(const struct tess_group *g, uint64_t bytes, void **out)
{
	void **peers = calloc((size_t)g->size, sizeof *peers);
	tess_status st = peers ? TESS_PLUGIN_CALL(g->carrier.backend, "step", alloc,
	                                          g->carrier.self, bytes, out, peers)
	                       : tess_fail(TESS_ENOMEM, "out of memory");

	free(peers);
	return st;
}

void tess_carrier_free(const struct tess_group *g, void *mine)
{
	TESS_PLUGIN_DO(g->carrier.backend->free(g->carrier.self, mine));
}

uint64_t tess_group_mem_kinds(const struct tess_group *g)
{
	return UINT64_C(1) << TESS_HOST | (g->self ? g->backend->mem_kinds : 0) |
	       (g->device ? UINT64_C(1) << g->device->mem : 0);
}

bool tess_call_is_direct(const struct tess_group *g, const struct tess_coll *c)
{
	struct tess_carrier by = tess_call_carrier(g, c);

	return c->mem == TESS_HOST || (by.self && by.backend->mem_kinds >> c->mem & 1 &&
	                               !TESS_PLUGIN_VALUE(by.backend->supports(c, g->size)));
}

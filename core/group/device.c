#include "core/group/device.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/call/queue.h"
#include "core/call/work.h"
#include "core/group/choose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which backend --------------------------------------------------------------------------- */

struct verdict { /* the choice of one rank; gathered from all */
	int64_t usable;
	char name[56]; /* name of the backend */
};

static void warn_passed_over(const struct tess_group *g, const char *why)
{
	if (g->rank == 0)
		tess_log(TESS_WARN, "comm",
		         "calls on memory of device %s go through host memory: %s", g->device->name,
		         why);
}

/* Agrees on the carrier: used if all ranks can. *out: NULL if not. */
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

/* ---- open and close -------------------------------------------------------------------------- */

static tess_status open_carrier(struct tess_group *g, const struct tess_choice *c, int32_t index,
                                const struct tess_group *parent, int32_t colour)
{
	struct tess_world *w = g->world;
	struct tess_carrier made = { c->backend, NULL };
	bool splits = parent && parent->carrier.backend == c->backend;
	char name[TESS_MEMBERS_KEY + 24];
	struct tess_group_entry how = { .size = sizeof how,
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
	st = TESS_PLUGIN_CALL_UNTIL(TESS_STATE_ALL, how.deadline, c->backend, NULL, open, &how,
	                            &made.self);
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
	TESS_PLUGIN_DO(by.backend, NULL, close, by.self);
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
	tess_fail(TESS_OK, "%s", sentence); /* discards messages of the closing */
}

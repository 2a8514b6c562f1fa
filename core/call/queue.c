#include "core/call/queue.h"

#include "core/base/status.h"
#include "core/call/work.h"

#include <tessera/device.h>

enum { QUEUED_MAX = 512 }; /* works left to a stream before the host waits for them */

bool tess_work_is_ordered(const struct tess_work *w)
{
	return w->coll.mem != TESS_HOST && w->coll.stream && w->work && w->by.backend->join;
}

static tess_status join_stream(struct tess_work *w, void *stream)
{
	tess_status st =
		TESS_PLUGIN_CALL(w->by.backend, w->coll.where, join, w->by.self, w->work, stream);

	return st ? tess_work_failed(w, st, w->coll.deadline) : TESS_OK;
}

tess_status tess_work_issue(struct tess_work *w)
{
	return tess_work_is_ordered(w) ? join_stream(w, w->coll.stream) : TESS_OK;
}

tess_status tess_work_queue(struct tess_work *w, void *stream)
{
	struct tess_group *g = w->group;
	tess_status st = join_stream(w, stream);

	if (st)
		return st;
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

/* Waits for the oldest work first, so that a failure is that of the first call. */
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

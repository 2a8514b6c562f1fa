/* memory.c - the memory of the calls: host memory, or that of --device. */
#include "conform.h"

#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/group/device.h"
#include "core/registry/registry.h"
#include "core/world/cpus.h"

#include <stdlib.h>
#include <string.h>

/* The backend's group of all ranks: the core's, but of one rank, which needs none on a device. */
static tess_status find_carrier(struct conform_rank *me)
{
	if (me->n == 1)
		return conform_direct_open_all(me, "conform.alone", &me->all);
	if (!me->group->carrier.self)
		return tess_fail(TESS_ENOTSUP,
		                 "the group passed the backend over for memory of device %s",
		                 me->memory.device->name);
	me->backend = me->group->carrier.backend;
	me->all.self = me->group->carrier.self;
	return TESS_OK;
}

tess_status conform_open_memory(struct conform_rank *me, const char *device)
{
	struct conform_memory *m = &me->memory;
	int32_t local, ranks;
	tess_status st = TESS_OK;

	if (!*device)
		return TESS_OK;
	me->all.self = NULL; /* it was the group of host memory */
	st = tess_plugin_find_device(device, &m->device);
	if (!st)
		st = tess_world_find_local_rank(me->world, &local, &ranks);
	if (!st && m->device->count() < 1)
		st = tess_fail(TESS_EDEVICE, "device %s: this machine has none", device);
	if (st)
		return st;
	m->index = local % m->device->count();
	if ((st = m->device->open(m->index, 1, &m->self)) ||
	    (st = m->device->stream_open(m->self, &m->stream)) ||
	    (st = m->device->stream_open(m->self, &m->copies)))
		return st;
	conform_data_use_device(m);
	st = tess_group_attach_device(me->group, m->device, m->self, m->index, NULL, 0);
	return st ? st : find_carrier(me);
}

void conform_close_memory(struct conform_rank *me)
{
	struct conform_memory *m = &me->memory;

	if (!m->self)
		return;
	if (me->n == 1 && me->all.self)
		me->backend->close(me->all.self);
	tess_group_detach_device(me->group, m->self);
	m->device->stream_close(m->self, m->copies);
	m->device->stream_close(m->self, m->stream);
	m->device->close(m->self);
	conform_data_use_device(NULL);
}

void conform_place_call(const struct conform_rank *me, struct tess_coll *c)
{
	if (!me->memory.device)
		return;
	c->mem = me->memory.device->mem;
	c->stream = me->memory.stream;
}

void *conform_alloc(const struct conform_rank *me, uint64_t bytes)
{
	void *zeros = calloc(1, bytes), *p = NULL;

	if (!me->memory.device || !zeros)
		return zeros;
	if (!me->memory.device->alloc(me->memory.self, bytes, &p) &&
	    conform_memory_copy(&me->memory, p, zeros, bytes))
		p = NULL;
	free(zeros);
	return p;
}

void conform_free(const struct conform_rank *me, void *p)
{
	if (me->memory.device && p)
		me->memory.device->free(me->memory.self, p);
	else
		free(p);
}

tess_status conform_copy(const struct conform_rank *me, void *to, const void *from, uint64_t bytes)
{
	if (me->memory.device)
		return conform_memory_copy(&me->memory, to, from, bytes);
	memcpy(to, from, bytes);
	return TESS_OK;
}

tess_status conform_run_call(struct conform_rank *me, const struct tess_coll *c)
{
	struct tess_coll placed = *c;
	struct tess_work *w;
	tess_status st;

	tess_error_clear();
	if (!me->memory.device)
		return conform_complete_error(tess_group_run(me->group, c));
	conform_place_call(me, &placed);
	st = tess_group_start(me->group, &placed, &w);
	if (st)
		return st;
	st = tess_work_wait(w, 0); /* run would return before the stream is done */
	tess_work_release(w);
	return conform_complete_error(st);
}

tess_status conform_run_barrier_call(struct conform_rank *me, const char *where)
{
	const struct tess_coll c = { .size = sizeof c, .kind = TESS_BARRIER, .where = where };

	return conform_run_call(me, &c);
}

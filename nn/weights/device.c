#include "nn/weights/device.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/call/queue.h"
#include "core/group/device.h"
#include "core/registry/plugin_call.h"
#include "core/registry/registry.h"
#include "core/world/cpus.h"
#include "core/world/group.h"
#include "nn/op/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/util/clock.h>

const struct tess_option tess_device_options[] = {
	{ "device", "cpu",
	  "compute device: NAME[:INDEX], or WRAPPER:NAME[:INDEX]; without INDEX the ranks of a "
	  "host take its devices in turn" },
	{ NULL, NULL, NULL },
};

/* Reads the option: *index is -1 if it has none. */
static tess_status read_device_option(char name[static TESS_DEVICE_NAME], int32_t *index)
{
	tess_status st = tess_option_add("nn/weights/device.c", tess_device_options);

	return st ? st : tess_device_name_parse(tess_option_get("device"), name, index);
}

tess_status tess_device_inspect(const struct tess_device **device)
{
	char name[TESS_DEVICE_NAME];
	int32_t index;
	tess_status st = read_device_option(name, &index);

	return st ? st : tess_plugin_inspect_device(name, device);
}

tess_status tess_device_find(const struct tess_device **device, int32_t *index)
{
	char name[TESS_DEVICE_NAME];
	int32_t at, count;
	tess_status st = read_device_option(name, &at);

	if (!st)
		st = tess_plugin_find_device(name, device);
	if (st)
		return st;
	count = TESS_PLUGIN_COUNT(*device);
	if (count < 1)
		return tess_fail(TESS_EDEVICE, "device %s: this machine has none", name);
	if (at >= count)
		return tess_fail(TESS_EDEVICE, "device %s: this machine has %d, numbered from 0",
		                 tess_option_get("device"), (int)count);
	*index = at;
	return TESS_OK;
}

tess_status tess_device_check_weights(const struct tess_device *device, int32_t weights)
{
	if (!weights || weights == TESS_BF16 || device->layout == TESS_PANELS)
		return TESS_OK;
	return tess_fail(TESS_ENOTSUP,
	                 "%d-bit weights: device %s has none; use device cpu, or weights as in the "
	                 "files",
	                 weights == TESS_Q8     ? 8
	                 : weights == TESS_BF12 ? 12
	                                        : 4,
	                 device->name);
}

enum { VIEWS_MAX = 16 }; /* of an op with rows of bf16 */

/* Views rows of bf16 as f32 where the device rounds them: all other rules are the same. */
static void view_as_f32(const struct tess_device *device, struct tess_op *op,
                        struct tess_view *view)
{
	int32_t n = op->nin + op->nout;

	if (!device->rounds || n > VIEWS_MAX)
		return;
	for (int32_t i = 0; i < n; i++) {
		view[i] = i < op->nin ? op->in[i] : op->out[i - op->nin];
		if (view[i].dtype == TESS_BF16 &&
		    TESS_PLUGIN_VALUE_QUICK(device, op->where, rounds, op, i) == 1)
			view[i].dtype = TESS_F32;
	}
	op->in = view;
	op->out = view + op->nin;
}

tess_status tess_device_check_op(const struct tess_device *device, const struct tess_op *op)
{
	struct tess_view view[VIEWS_MAX];
	struct tess_op f32 = *op;
	tess_status st;

	view_as_f32(device, &f32, view);
	st = tess_op_check(&f32, device);

	return st ? st : TESS_PLUGIN_CALL(device, op->where, supports, op);
}

tess_status tess_device_read_threads(int32_t given, int64_t *threads)
{
	*threads = given;
	return given ? TESS_OK : tess_option_get_int("threads", 0, 1024, threads);
}

tess_status tess_device_open(const struct tess_device *device, int32_t index, int32_t threads,
                             struct tess_group *group, struct tess_opened_device *out)
{
	struct tess_opened_device d = { .table = device };
	int32_t local, ranks, count = TESS_PLUGIN_COUNT(device);
	int64_t wanted;
	tess_status st = tess_device_read_threads(threads, &wanted);

	d.nthreads = (int32_t)wanted;
	if (!st && !wanted)
		st = tess_world_count_cpus(group->world, &d.nthreads);
	if (!st)
		st = tess_world_find_local_rank(group->world, &local, &ranks);
	d.index = st ? 0 : index < 0 ? local % count : index;
	if (!st)
		st = TESS_PLUGIN_CALL(device, NULL, open, d.index, d.nthreads, &d.self);
	if (st)
		return st;
	d.world = group->world;
	d.nranks = index < 0 && device->mem != TESS_HOST ? (int32_t)tess_up(ranks, count) : ranks;
	if (device->stream_open && device->mem != TESS_HOST)
		st = TESS_PLUGIN_CALL(device, NULL, stream_open, d.self, &d.stream);
	if (st)
		tess_device_close(&d);
	else
		*out = d;
	return st;
}

tess_status tess_device_open_host(const struct tess_opened_device *d,
                                  struct tess_opened_device *out)
{
	struct tess_opened_device cpu = { .nthreads = d->nthreads };
	int32_t local;
	tess_status st = tess_plugin_find_device("cpu", &cpu.table);

	if (!st)
		st = tess_world_find_local_rank(d->world, &local, &cpu.nranks);
	if (!st)
		st = TESS_PLUGIN_CALL(cpu.table, NULL, open, 0, cpu.nthreads, &cpu.self);
	if (!st)
		*out = cpu;
	return st;
}

tess_status tess_device_open_call_stream(struct tess_opened_device *d)
{
	if (!d->stream || !d->table->follow)
		return TESS_OK;
	return TESS_PLUGIN_CALL(d->table, NULL, stream_open, d->self, &d->call_stream);
}

void tess_device_close(struct tess_opened_device *d)
{
	if (!d->self)
		return;
	tess_device_drain(d);
	if (d->call_stream)
		TESS_PLUGIN_DO(d->table, NULL, stream_close, d->self, d->call_stream);
	if (d->stream)
		TESS_PLUGIN_DO(d->table, NULL, stream_close, d->self, d->stream);
	TESS_PLUGIN_DO(d->table, NULL, close, d->self);
	*d = (struct tess_opened_device){ 0 };
}

/* In a mesh of several dimensions, each group is split from the group of all ranks. */
tess_status tess_device_attach(const struct tess_opened_device *d,
                               const struct tess_mesh_shape *mesh, int32_t rank,
                               struct tess_group *all, struct tess_group *const *along)
{
	tess_status st = TESS_OK;

	if (tess_device_is_host(d))
		return TESS_OK;
	if (mesh->ndims > 1)
		st = tess_group_attach_device(all, d->table, d->self, d->index, NULL, 0);
	for (int32_t i = 0; i < mesh->ndims && !st; i++) {
		int32_t at = tess_mesh_shape_coordinate(mesh, i, rank);

		if (along[i] != all || mesh->ndims == 1)
			st = tess_group_attach_device(along[i], d->table, d->self, d->index,
			                              mesh->ndims > 1 ? all : NULL,
			                              rank - at * mesh->dim[i].stride);
	}
	return st;
}

void tess_device_detach(const struct tess_opened_device *d, const struct tess_mesh_shape *mesh,
                        struct tess_group *all, struct tess_group *const *along)
{
	if (!d->self)
		return;
	for (int32_t i = 0; i < mesh->ndims; i++)
		tess_group_detach_device(along[i], d->self);
	tess_group_detach_device(all, d->self);
}

tess_status tess_device_alloc(const struct tess_opened_device *d, const char *where, uint64_t bytes,
                              void **out)
{
	return TESS_PLUGIN_CALL(d->table, where, alloc, d->self, bytes, out);
}

void tess_device_free(const struct tess_opened_device *d, void *p)
{
	if (p)
		TESS_PLUGIN_DO(d->table, NULL, free, d->self, p);
}

/* A device may wait for a step of training here: Ctrl-C then waits, too. */
static int64_t get_deadline(const struct tess_opened_device *d)
{
	return d->world ? tess_now() + d->world->timeout : 0;
}

tess_status tess_device_copy(const struct tess_opened_device *d, const char *where, void *dst,
                             const void *src, uint64_t bytes)
{
	return TESS_PLUGIN_CALL_UNTIL(TESS_STATE_FLOAT, get_deadline(d), d->table, where, copy,
	                              d->self, dst, src, bytes, d->stream);
}

tess_status tess_device_clear(const struct tess_opened_device *d, const char *where, void *dst,
                              uint64_t bytes)
{
	static const char zeros[1 << 16];
	tess_status st = TESS_OK;

	if (tess_device_is_host(d)) {
		memset(dst, 0, bytes);
		return TESS_OK;
	}
	/* each copy doubles the cleared range */
	for (uint64_t at = 0, n; at < bytes && !st; at += n) {
		n = at ? at : sizeof zeros;
		n = bytes - at < n ? bytes - at : n;
		st = tess_device_copy(d, where, (char *)dst + at, at ? dst : zeros, n);
	}
	return st;
}

tess_status tess_device_sync(const struct tess_opened_device *d, const char *where)
{
	/* without a world no collective is queued */
	tess_status st = d->world ? tess_world_drain_device(d->world, d->self) : TESS_OK;

	if (!st)
		return TESS_PLUGIN_CALL_UNTIL(TESS_STATE_FLOAT, get_deadline(d), d->table, where,
		                              sync, d->self, d->stream);
	tess_device_drain(d); /* queued copies may write to the callers' memory */
	return st;
}

void tess_device_drain(const struct tess_opened_device *d)
{
	char sentence[TESS_SENTENCE];

	if (!d->stream)
		return;
	snprintf(sentence, sizeof sentence, "%s", tess_error());
	if (d->world)
		tess_world_drain_device(d->world, d->self);
	TESS_PLUGIN_DO(d->table, NULL, sync, d->self, d->stream);
	if (d->call_stream)
		TESS_PLUGIN_DO(d->table, NULL, sync, d->self, d->call_stream);
	tess_fail(TESS_OK, "%s", sentence);
}

tess_status tess_device_move(const struct tess_opened_device *d, const char *where, void *dst,
                             const void *src, uint64_t bytes)
{
	tess_status st = tess_device_copy(d, where, dst, src, bytes);

	return st ? st : tess_device_sync(d, where);
}

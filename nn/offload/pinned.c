#include "nn/offload/pinned.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/offload/offload.h"

#include <stdlib.h>

/* ---- memory ---------------------------------------------------------------------------------- */

static bool has_host_memory(const struct tess_pinned_device *d)
{
	return d->table->host_alloc && d->table->host_free;
}

tess_status tess_pinned_alloc(const struct tess_pinned_device *d, uint64_t bytes, void **out)
{
	bytes = tess_offload_pad(bytes);
	if (has_host_memory(d))
		return TESS_PLUGIN_CALL(d->table, NULL, host_alloc, d->self, bytes, out);
	*out = aligned_alloc(TESS_DISK_ALIGN, bytes);
	return *out ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

void tess_pinned_free(const struct tess_pinned_device *d, void *memory)
{
	if (!memory)
		return;
	if (has_host_memory(d))
		TESS_PLUGIN_DO(d->table, NULL, host_free, d->self, memory);
	else
		free(memory);
}

bool tess_pinned_overlaps(const struct tess_pinned_device *device)
{
	return device->stream && device->table->follow;
}

static tess_status open_streams(const struct tess_pinned_device *d, int32_t n, void **stream)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < n && !st; i++)
		st = TESS_PLUGIN_CALL(d->table, "offload", stream_open, d->self, &stream[i]);
	return st;
}

/* Opens lanes, or uses the rank's stream as all of them. */
static tess_status open_lanes(struct tess_pinned *p)
{
	if (tess_pinned_overlaps(&p->device))
		return open_streams(&p->device, TESS_PINNED_LANES, p->lane);
	for (int32_t i = 0; i < TESS_PINNED_LANES; i++)
		p->lane[i] = p->device.stream;
	return TESS_OK;
}

tess_status tess_pinned_open_points(struct tess_pinned *p)
{
	return open_streams(&p->device, TESS_PINNED_POINTS, p->point);
}

tess_status tess_pinned_open(const struct tess_pinned_device *device, int32_t rank,
                             const uint64_t bytes[2], struct tess_pinned **out)
{
	struct tess_pinned *p = calloc(1, sizeof *p);
	tess_status st = p ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (st)
		return st;
	p->device = *device;
	for (int32_t i = 0; i < 2 && !st; i++)
		if (bytes[i])
			st = tess_pinned_alloc(device, bytes[i], (void **)&p->memory[i]);
	if (st)
		st = tess_fail_in(st, "rank %d: no %llu bytes of host memory for offloaded values",
		                  rank, (unsigned long long)(bytes[0] + bytes[1]));
	else
		st = open_lanes(p);
	if (st)
		tess_pinned_close(p);
	else
		*out = p;
	return st;
}

/* Waits for the work on streams of its own, and closes them. */
static void close_streams(const struct tess_pinned_device *d, int32_t n, void *const *stream)
{
	for (int32_t i = 0; i < n; i++)
		if (stream[i] && stream[i] != d->stream) {
			TESS_PLUGIN_DO(d->table, NULL, sync, d->self, stream[i]);
			TESS_PLUGIN_DO(d->table, NULL, stream_close, d->self, stream[i]);
		}
}

void tess_pinned_close(struct tess_pinned *p)
{
	if (!p)
		return;
	close_streams(&p->device, TESS_PINNED_LANES, p->lane);
	close_streams(&p->device, TESS_PINNED_POINTS, p->point);
	for (int32_t i = 0; i < 2; i++)
		tess_pinned_free(&p->device, p->memory[i]);
	free(p);
}

/* ---- copies ---------------------------------------------------------------------------------- */

int32_t tess_pinned_take_lane(struct tess_pinned *p)
{
	return (int32_t)(p->ncopies++ % TESS_PINNED_TAKEN);
}

/* Orders one stream after another, unless they are the same. */
static tess_status order_lane(const struct tess_pinned *p, void *stream, void *after,
                              const char *where)
{
	return stream == after ? TESS_OK
	                       : TESS_PLUGIN_CALL_QUICK(p->device.table, where, follow,
	                                                p->device.self, stream, after);
}

tess_status tess_pinned_mark(const struct tess_pinned *p, int32_t point, const char *where)
{
	return order_lane(p, p->point[point], p->device.stream, where);
}

tess_status tess_pinned_order(const struct tess_pinned *p, int32_t lane, int32_t point,
                              const char *where)
{
	return order_lane(p, p->lane[lane], point < 0 ? p->device.stream : p->point[point], where);
}

tess_status tess_pinned_copy(const struct tess_pinned *p, int32_t lane, const char *where,
                             void *dst, const void *src, uint64_t bytes)
{
	return bytes ? TESS_PLUGIN_CALL_QUICK(p->device.table, where, copy, p->device.self, dst,
	                                      src, bytes, p->lane[lane])
	             : TESS_OK;
}

tess_status tess_pinned_follow(const struct tess_pinned *p, int32_t lane, const char *where)
{
	return order_lane(p, p->device.stream, p->lane[lane], where);
}

tess_status tess_pinned_wait(const struct tess_pinned *p, int32_t lane, const char *where)
{
	return TESS_PLUGIN_CALL_QUICK(p->device.table, where, sync, p->device.self, p->lane[lane]);
}

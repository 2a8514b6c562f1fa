#include "nn/offload/pinned.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/offload/offload.h"

#include <stdbool.h>
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

/* Opens lanes, or uses the rank's stream as all of them. */
static tess_status open_lanes(struct tess_pinned *p)
{
	const struct tess_device *table = p->device.table;
	bool own = p->device.stream && table->follow;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < TESS_PINNED_LANES && !st; i++) {
		p->lane[i] = own ? NULL : p->device.stream;
		if (own)
			st = TESS_PLUGIN_CALL(table, "offload", stream_open, p->device.self,
			                      &p->lane[i]);
	}
	return st;
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

void tess_pinned_close(struct tess_pinned *p)
{
	const struct tess_device *table = p ? p->device.table : NULL;

	if (!p)
		return;
	for (int32_t i = 0; i < TESS_PINNED_LANES; i++)
		if (p->lane[i] && p->lane[i] != p->device.stream) {
			TESS_PLUGIN_DO(table, NULL, sync, p->device.self, p->lane[i]);
			TESS_PLUGIN_DO(table, NULL, stream_close, p->device.self, p->lane[i]);
		}
	for (int32_t i = 0; i < 2; i++)
		tess_pinned_free(&p->device, p->memory[i]);
	free(p);
}

/* ---- copies ---------------------------------------------------------------------------------- */

int32_t tess_pinned_take_lane(struct tess_pinned *p)
{
	return (int32_t)(p->ncopies++ % TESS_PINNED_LANES);
}

/* Orders one stream after another, unless they are the same. */
static tess_status order_lane(const struct tess_pinned *p, void *stream, void *after,
                              const char *where)
{
	return stream == after ? TESS_OK
	                       : TESS_PLUGIN_CALL_QUICK(p->device.table, where, follow,
	                                                p->device.self, stream, after);
}

tess_status tess_pinned_copy(const struct tess_pinned *p, int32_t lane, const char *where,
                             void *dst, const void *src, uint64_t bytes)
{
	tess_status st = order_lane(p, p->lane[lane], p->device.stream, where);

	return st || !bytes ? st
	                    : TESS_PLUGIN_CALL_QUICK(p->device.table, where, copy, p->device.self,
	                                             dst, src, bytes, p->lane[lane]);
}

tess_status tess_pinned_follow(const struct tess_pinned *p, int32_t lane, const char *where)
{
	return order_lane(p, p->device.stream, p->lane[lane], where);
}

tess_status tess_pinned_wait(const struct tess_pinned *p, int32_t lane, const char *where)
{
	return TESS_PLUGIN_CALL_QUICK(p->device.table, where, sync, p->device.self, p->lane[lane]);
}

#include "nn/run/channels.h"

#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/group/device.h"
#include "core/registry/plugin_call.h"

#include <stdlib.h>

/* Returns whether a stage of rank `to` follows or precedes one of rank `from`. */
static bool is_neighbour(const struct tess_program *p, int32_t from, int32_t to)
{
	for (int32_t s = 0; s + 1 < p->nstages; s++) {
		int32_t a = p->stage_rank[s], b = p->stage_rank[s + 1];

		if (from != to && ((a == from && b == to) || (a == to && b == from)))
			return true;
	}
	return false;
}

/* Opens the group for what rank `from` sends to rank `to`; the other ranks only take part. */
static tess_status open_channel(struct tess_channels *c, struct tess_group *along, int32_t from,
                                int32_t to)
{
	const struct tess_opened_device *d = c->device;
	int32_t rank = tess_group_rank(along);
	bool member = rank == from || rank == to;
	struct tess_channel channel = { .peer = rank == from ? to : from, .sends = rank == from };
	tess_status st = tess_group_split(along, member, 0, "stages", &channel.group);

	if (st || !member) {
		if (!st)
			tess_group_close(channel.group);
		return st;
	}
	c->each[c->n++] = channel;
	st = tess_group_attach_device(channel.group, d->table, d->self, d->index, NULL, 0);
	if (!st && channel.sends)
		st = TESS_PLUGIN_CALL(d->table, NULL, stream_open, d->self,
		                      &c->each[c->n - 1].stream);
	return st;
}

tess_status tess_channels_open(const struct tess_program *p, struct tess_group *along,
                               const struct tess_opened_device *d, struct tess_channels *out)
{
	int32_t n = tess_group_size(along);
	tess_status st = TESS_OK;

	*out = (struct tess_channels){ .device = d };
	if (!d->stream || !d->table->follow || !(tess_group_mem_kinds(along) >> d->table->mem & 1))
		return TESS_OK;
	out->each = calloc((size_t)(2 * n), sizeof *out->each);
	if (!out->each)
		return tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t i = 0; i < n * n && !st; i++)
		if (is_neighbour(p, i / n, i % n))
			st = open_channel(out, along, i / n, i % n);
	return st;
}

void tess_channels_close(struct tess_channels *c)
{
	for (int32_t i = 0; i < c->n; i++) {
		tess_group_detach_device(c->each[i].group, c->device->self);
		if (c->each[i].stream)
			TESS_PLUGIN_DO(c->device->table, NULL, stream_close, c->device->self,
			               c->each[i].stream);
		tess_group_close(c->each[i].group);
	}
	free(c->each);
	*c = (struct tess_channels){ 0 };
}

struct tess_group *tess_channels_route(const struct tess_channels *c, struct tess_coll *message)
{
	for (int32_t i = 0; i < c->n; i++) {
		const struct tess_channel *k = &c->each[i];

		if (k->peer != message->peer || k->sends != (message->kind == TESS_SEND))
			continue;
		message->peer = !tess_group_rank(k->group);
		if (k->stream)
			message->stream = k->stream;
		return k->group;
	}
	return NULL;
}

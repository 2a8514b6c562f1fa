#include "core/call/captured.h"

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/call/call.h"
#include "core/call/carrier.h"
#include "core/call/queue.h"
#include "core/call/report.h"
#include "core/call/work.h"

#include <stdio.h>
#include <stdlib.h>

bool tess_captured_is_possible(const struct tess_group *g, const struct tess_coll *c)
{
	struct tess_coll like = *c;

	if (!like.op)
		like.op = TESS_SUM;
	return g->size > 1 && c->mem > TESS_HOST && c->stream && !tess_kind_is_p2p(c->kind) &&
	       tess_call_is_direct(g, &like) && tess_call_carrier(g, c).backend->capture;
}

tess_status tess_captured_add(struct tess_captured *into, const struct tess_coll *c)
{
	struct tess_group *g = into->group;
	struct tess_carrier by;
	struct tess_coll call;
	tess_status st = tess_world_check(g->world);

	if (!st)
		st = tess_call_complete(g, c, tess_now(), &call);
	if (st)
		return st;
	by = tess_call_carrier(g, &call);
	st = TESS_PLUGIN_CALL(by.backend, call.where, capture, by.self, &call);
	if (st)
		return st;
	if (!into->n++)
		into->first = call;
	into->hash = tess_hash_mix(into->hash, tess_call_desc_hash(&call, g->size));
	return TESS_OK;
}

tess_status tess_captured_compare(const struct tess_captured *c)
{
	struct tess_group *g = c->group;
	const int64_t mine[2] = { c->n, (int64_t)c->hash };
	int64_t(*all)[2] = calloc((size_t)g->size, sizeof *all);
	tess_status st = all ? tess_all_gather(g, mine, all, 2, TESS_I64, "graph")
	                     : tess_fail(TESS_ENOMEM, "out of memory");

	for (int32_t r = 1; r < g->size && !st; r++)
		if (all[r][0] != all[0][0] || all[r][1] != all[0][1])
			st = tess_fail(TESS_EMISMATCH,
			               "the graph of rank %d has %lld calls, but rank %d's has "
			               "%lld or different ones: the ranks run different programs",
			               (int)g->members->member[0], (long long)all[0][0],
			               (int)g->members->member[r], (long long)all[r][0]);
	free(all);
	return st;
}

tess_status tess_captured_replay(const struct tess_captured *c)
{
	struct tess_group *g = c->group;
	int64_t now = tess_now();
	struct tess_work *w;
	tess_status st = tess_world_check(g->world);

	if (st)
		return st;
	w = tess_work_take(g);
	if (!w)
		return tess_fail(TESS_ENOMEM, "no memory for a call");
	w->coll = c->first;
	snprintf(w->where, sizeof w->where, "the graph of %u calls from %s", (unsigned)c->n,
	         c->first.where ? c->first.where : "here");
	w->coll.where = w->where;
	w->coll.deadline = now + g->world->timeout;
	w->by = tess_call_carrier(g, &w->coll);
	w->key = tess_call_number(g, &w->coll);
	w->coll.fingerprint = tess_call_fingerprint(tess_hash_mix(c->hash, c->n), &w->key, g->size);
	tess_work_announce(w, now);
	st = TESS_PLUGIN_CALL(w->by.backend, w->where, replayed, w->by.self, w->coll.stream,
	                      w->coll.deadline, &w->work);
	return st ? tess_work_failed(w, st, w->coll.deadline) : tess_work_queue(w, w->coll.stream);
}

/* batch.c - starts several calls as one work. */
#include "core/base/clock.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/call/call.h"
#include "core/call/carrier.h"
#include "core/call/emulate.h"
#include "core/call/report.h"
#include "core/call/staging.h"
#include "core/call/work.h"
#include "core/registry/plugin_call.h"

#include <stdlib.h>

/* Starts the calls as one work of the backend if it supports batches; else one by one. */
static tess_status start_batch(struct tess_group *g, struct tess_work *w)
{
	const struct tess_coll **c = malloc((size_t)w->n * sizeof *c);
	tess_status st = c ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory for %u calls", w->n);
	bool whole = w->by.self && w->by.backend->batch, has;

	for (uint32_t i = 0; i < w->n && !st; i++) {
		c[i] = &w->batch[i].coll;
		st = tess_call_query_backend(g, c[i], &has);
		whole = whole && !st && has && tess_call_carrier(g, c[i]).self == w->by.self;
	}
	if (!st && whole)
		st = TESS_PLUGIN_CALL(w->by.backend, w->coll.where, batch, w->by.self, c, w->n,
		                      &w->work);
	else if (!st)
		st = tess_emulation_batch(g, c, w->n, &w->emulation);
	free(c);
	return st;
}

/* Describes one call of a batch, and reports it if necessary, before any of them starts. */
static bool announce_batch_call(struct tess_group *g, struct tess_work_call *c, int64_t now)
{
	tess_call_identify(g, &c->coll, &c->key);
	c->unreported = tess_call_carrier(g, &c->coll).backend->compares && !c->key.channel &&
	                now < g->report_at;
	if (c->key.channel)
		tess_group_report_last(g); /* message numbers are separate */
	c->flight = tess_flight_number(g->world->flight);
	tess_call_describe(g, &c->coll, &c->key, c->flight, now);
	if (!c->unreported)
		tess_call_report(g, now);
	return c->unreported;
}

/* Checks all calls before the first is announced. */
static tess_status prepare_batch(struct tess_work *w, const struct tess_coll *const *c)
{
	int64_t now = tess_now();
	tess_status st = TESS_OK;

	w->report_at = 0;
	for (uint32_t i = 0; i < w->n && !st; i++)
		st = tess_call_complete(w->group, c[i], now, &w->batch[i].coll);
	if (!st)
		st = tess_work_stage(w);
	for (uint32_t i = 0; i < w->n && !st; i++)
		if (announce_batch_call(w->group, &w->batch[i], now))
			w->report_at = now + TESS_SLOW;
	if (st)
		return st;
	w->coll = w->batch->coll;
	w->by = tess_call_carrier(w->group, &w->coll);
	w->key = w->batch->key;
	for (uint32_t i = 1; i < w->n; i++)
		if (w->batch[i].coll.deadline < w->coll.deadline)
			w->coll.deadline = w->batch[i].coll.deadline;
	return TESS_OK;
}

tess_status tess_group_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                             struct tess_work **out)
{
	tess_status st = TESS_REQUIRE(g, out);
	struct tess_work_call *calls;
	struct tess_work *w;

	if (!st && n)
		st = TESS_REQUIRE(c);
	for (uint32_t i = 0; i < n && !st; i++)
		if (!c[i])
			st = tess_fail(TESS_EINVAL, "tess_group_batch: call %u is NULL", i);
	if (st || (st = tess_world_check(g->world)))
		return st;
	calls = calloc(n ? n : 1, sizeof *calls);
	w = calls ? tess_work_take(g) : NULL;
	if (!w) {
		free(calls);
		return tess_fail(TESS_ENOMEM, "no memory for %u calls", n);
	}
	w->batch = calls;
	w->n = n;
	st = n ? prepare_batch(w, c) : TESS_OK;
	if (!n || st) { /* no call has started */
		w->state = TESS_OK;
		if (st)
			tess_work_drop(w);
		else
			*out = w;
		return st;
	}
	st = tess_world_check(g->world);
	if (!st && (st = start_batch(g, w)))
		st = tess_work_failed(w, st, w->coll.deadline);
	return tess_work_hand_out(w, st, out);
}

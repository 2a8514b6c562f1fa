/*
 * call.c - runs the steps of a call: it is checked and completed, numbered, described, reported if
 * other ranks must be notified at once, and started on the backend. A started call is a work
 * (work.c).
 */
#include "core/call/call.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/call/check.h"
#include "core/call/emulate.h"
#include "core/call/queue.h"
#include "core/call/report.h"
#include "core/call/staging.h"
#include "core/call/work.h"
#include "core/registry/plugin_call.h"

#include <string.h>

/* ---- checked and completed ----------------------------------------------------------------- */

tess_status tess_call_complete(const struct tess_group *g, const struct tess_coll *c, int64_t now,
                               struct tess_coll *out)
{
	if (c->size < TESS_UPTO(tess_coll, count))
		return tess_fail(TESS_EINVAL,
		                 "a collective of %u bytes: its field `size` is not set", c->size);
	memset(out, 0, sizeof *out);
	memcpy(out, c, c->size < sizeof *out ? c->size : sizeof *out);
	out->size = sizeof *out;
	if (!out->mem)
		out->mem = TESS_HOST;
	if (!out->op)
		out->op = TESS_SUM;
	if (out->deadline < 0)
		return tess_fail(TESS_EINVAL, "a collective with the deadline %lld",
		                 (long long)out->deadline);
	if (!out->deadline)
		out->deadline = now + g->world->timeout;
	return tess_coll_check(out, g->rank, g->size, tess_group_mem_kinds(g));
}

void tess_call_identify(struct tess_group *g, struct tess_coll *c, struct tess_call_key *key)
{
	*key = tess_call_number(g, c);
	c->fingerprint = tess_call_fingerprint(tess_call_desc_hash(c, g->size) ^ c->fingerprint,
	                                       key, g->size);
}

/* ---- started on the backend ---------------------------------------------------------------- */

/* Logs a warning about emulation, once per job, on rank 0. */
static void warn_emulation(const struct tess_group *g, const struct tess_coll *c)
{
	if (!g->world->warned && g->world->rank == 0 && g->size > 1)
		tess_log(TESS_WARN, "comm",
		         "backend %s lacks %s of %s: such calls are made of messages between all "
		         "ranks, up to %d times the bytes",
		         g->backend->name, tess_kind_name(c->kind), tess_dtype_name(c->dtype),
		         g->size - 1);
	g->world->warned = true;
}

tess_status tess_call_query_backend(const struct tess_group *g, const struct tess_coll *c,
                                    bool *has)
{
	bool basic = c->kind == TESS_BARRIER || c->kind == TESS_SEND || c->kind == TESS_RECV;
	struct tess_carrier by = tess_call_carrier(g, c);
	tess_status st =
		by.self ? TESS_PLUGIN_VALUE_QUICK(by.backend, c->where, supports, c, g->size)
			: TESS_ENOTSUP;

	if (st != TESS_ENOTSUP) /* ENOTSUP needs no message */
		st = tess_plugin_check_returned(by.backend, by.backend->name, "supports", c->where,
		                                st);
	*has = !st;
	if (st != TESS_ENOTSUP)
		return st;
	if (g->self && basic)
		return tess_fail_in(st, "%s: backend %s lacks %s, which every backend needs",
		                    c->where ? c->where : "", g->backend->name,
		                    tess_kind_name(c->kind));
	warn_emulation(g, c);
	return TESS_OK;
}

static tess_status start_on_backend(struct tess_group *g, struct tess_work *w)
{
	bool has;
	tess_status st = tess_call_query_backend(g, &w->coll, &has);

	if (st)
		return st;
	return has ? TESS_PLUGIN_CALL_FOR(w->by.backend, w->coll.where,
	                                  tess_kind_name(w->coll.kind), start, w->by.self, &w->coll,
	                                  &w->work)
	           : tess_emulation_start(g, &w->coll, &w->emulation);
}

/* ---- start --------------------------------------------------------------------------------- */

tess_status tess_group_start(struct tess_group *g, const struct tess_coll *c,
                             struct tess_work **out)
{
	tess_status st = TESS_REQUIRE(g, c, out), lost;
	struct tess_work *w;
	int64_t now;

	if (st || (st = tess_world_check(g->world)))
		return st;
	now = tess_now();
	w = tess_work_take(g);
	if (!w)
		return tess_fail(TESS_ENOMEM, "no memory for a call");
	st = tess_call_complete(g, c, now, &w->coll);
	if (!st && w->coll.mem != TESS_HOST)
		st = tess_work_stage(w);
	if (st) {
		w->state = TESS_OK;
		tess_work_drop(w);
		return st;
	}
	w->by = tess_call_carrier(g, &w->coll);
	tess_call_identify(g, &w->coll, &w->key);
	tess_work_announce(w, now);
	lost = tess_world_check(g->world);
	st = lost ? lost : start_on_backend(g, w);
	if (st && !lost)
		st = tess_work_failed(w, st, w->coll.deadline);
	return tess_work_hand_out(w, st, out);
}

tess_status tess_group_run(struct tess_group *g, const struct tess_coll *c)
{
	struct tess_work *w;
	tess_status st = tess_group_start(g, c, &w);

	if (st)
		return st;
	if (tess_work_is_ordered(w))
		return tess_work_queue(w, w->coll.stream);
	st = tess_work_wait(w, 0);
	tess_work_drop(w);
	return st;
}

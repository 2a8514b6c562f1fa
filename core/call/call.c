/*
 * call.c - the steps of a call, in order: it is checked and completed, numbered, described,
 * reported if the other ranks need to know of it at once, and started on the backend. What was
 * started is a work (work.c).
 *
 * A call like the last one of its kind, whose caller waits for it at once, takes a short path
 * through a backend that has one: the other ranks have its data before it is described.
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

enum { POLL_BUDGET = 2000 }; /* ns that a short call polls before it becomes a work */

/* ---- checked and completed ----------------------------------------------------------------- */

/*
 * Field by field, as the caller has just written them: a wide load over several stores that are
 * still in the store buffer stalls until all of them have reached the cache.
 */
static void copy_fields(struct tess_coll *out, const struct tess_coll *c)
{
#define COPY(field) *(volatile __typeof__(out->field) *)&out->field = c->field
	COPY(kind);
	COPY(dtype);
	COPY(op);
	COPY(mem);
	COPY(peer); /* and root */
	COPY(src);
	COPY(dst);
	COPY(count);
	COPY(send_counts);
	COPY(recv_counts);
	COPY(stream);
	COPY(deadline);
	COPY(where);
#undef COPY
}

tess_status tess_call_complete(struct tess_group *g, const struct tess_coll *c, int64_t now,
                               struct tess_coll *out, struct tess_call_shape **shape)
{
	bool whole = c->size >= sizeof *out;
	tess_status st;

	if (c->size < TESS_UPTO(tess_coll, count))
		return tess_fail(TESS_EINVAL,
		                 "a collective of %u bytes: its field `size` is not set", c->size);
	*shape = whole ? tess_group_shape(g, c->kind) : NULL;
	if (whole) {
		copy_fields(out, c);
	} else {
		memset(out, 0, sizeof *out);
		memcpy(out, c, c->size);
	}
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
	if (*shape && tess_call_shape_fits(*shape, c))
		return TESS_OK;
	st = tess_coll_check(out, g->rank, g->size, tess_group_mem_kinds(g));
	if (st || out->send_counts || out->recv_counts || !tess_call_is_direct(g, out) ||
	    tess_call_carrier(g, out).self != g->self)
		*shape = NULL;
	else if (*shape)
		tess_call_shape_learn(*shape, c, out, g->rank, g->size);
	if (*shape == g->described)
		g->described = NULL; /* the shape has changed */
	return st;
}

uint64_t tess_call_compute_fingerprint(const struct tess_group *g, const struct tess_coll *c,
                                       const struct tess_call_key *key,
                                       const struct tess_call_shape *shape)
{
	return tess_call_fingerprint(shape ? shape->what : tess_call_desc_hash(c, g->size), key,
	                             g->size);
}

/* ---- started on the backend ---------------------------------------------------------------- */

/* Rank 0 warns once per job. */
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
		by.self ? TESS_PLUGIN_VALUE(by.backend->supports(c, g->size)) : TESS_ENOTSUP;

	if (st != TESS_ENOTSUP) /* ENOTSUP needs no sentence */
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

static tess_status start_on_backend(struct tess_group *g, struct tess_work *w,
                                    struct tess_call_shape *shape)
{
	bool has = shape && shape->has > 0;
	tess_status st = has ? TESS_OK : tess_call_query_backend(g, &w->coll, &has);

	if (st)
		return st;
	if (shape)
		shape->has = has ? 1 : -1;
	return has ? TESS_PLUGIN_CALL(w->by.backend, w->coll.where, start, w->by.self, &w->coll,
	                              &w->work)
	           : tess_emulation_start(g, &w->coll, &w->emulation);
}

/* ---- start --------------------------------------------------------------------------------- */

tess_status tess_group_start(struct tess_group *g, const struct tess_coll *c,
                             struct tess_work **out)
{
	tess_status st = TESS_REQUIRE(g, c, out), lost;
	struct tess_call_shape *shape;
	struct tess_work *w;
	bool described;
	int64_t now;

	if (st || (st = tess_world_check(g->world)))
		return st;
	now = tess_ticks_now(&g->ticks);
	w = tess_work_take(g);
	if (!w)
		return tess_fail(TESS_ENOMEM, "no memory for a call");
	st = tess_call_complete(g, c, now, &w->coll, &shape);
	if (!st && w->coll.mem != TESS_HOST)
		st = tess_work_stage(w);
	if (st) {
		w->state = TESS_OK;
		tess_work_drop(w);
		return st;
	}
	w->by = tess_call_carrier(g, &w->coll);
	w->key = tess_call_number(g, &w->coll);
	w->coll.fingerprint = tess_call_compute_fingerprint(g, &w->coll, &w->key, shape);
	described = tess_work_announce(w, now);
	lost = tess_world_check(g->world);
	st = lost ? lost : start_on_backend(g, w, shape);
	if (!described)
		tess_call_describe(g, &w->coll, &w->key, NULL, w->flight, now);
	if (st && !lost)
		st = tess_work_failed(w, st, w->coll.deadline);
	return tess_work_hand_out(w, st, out);
}

/* ---- run: start and wait ------------------------------------------------------------------- */

struct short_call {
	struct tess_group *group;
	struct tess_call_shape *shape;
	struct tess_call_key key;
	int64_t deadline; /* as the caller gave it */
	uint64_t flight;
	int64_t begun, now; /* ns; now: at the last poll. begun 0: it is not described yet */
};

/* Describes the call while its data are on the way. */
static void book_call(struct short_call *q)
{
	struct tess_group *g = q->group;
	struct tess_coll *c = &q->shape->call;

	q->begun = q->now;
	c->deadline = q->deadline ? q->deadline : q->now + g->world->timeout;
	q->flight = tess_flight_number(g->world->flight);
	tess_call_describe(g, c, &q->key, q->shape, q->flight, q->now);
	if (q->now >= g->report_at)
		tess_call_report(g, q->now);
}

/* Called between polls: reading the clock takes about as long as a cache line between cores. */
static int32_t book_and_tick(void *arg)
{
	struct short_call *q = arg;

	q->now = tess_ticks_now(&q->group->ticks);
	if (q->begun)
		return q->now - q->begun < POLL_BUDGET;
	book_call(q);
	return 1;
}

/* Whether the call may take the short path, with a spare work in case it turns out to be long. */
static bool fits_short_path(struct tess_group *g, const struct tess_coll *c,
                            struct tess_call_shape **shape)
{
	const struct tess_backend *b = g->backend;

	if (!b->run || !b->compares || g->p2p_channel || g->live || !g->spare)
		return false;
	if (c->size < sizeof *c || c->kind >= TESS_SEND)
		return false;
	*shape = tess_group_shape(g, c->kind);
	return *shape && (*shape)->has > 0 && tess_call_shape_fits(*shape, c);
}

/* The call is not done: `st` is TESS_PENDING or a failure. */
static tess_status finish_as_work(struct short_call *q, tess_status st, void *work)
{
	struct tess_group *g = q->group;
	struct tess_work *w = tess_work_take(g);

	if (!q->begun)
		book_and_tick(q);
	w->coll = q->shape->call;
	w->key = q->key;
	w->flight = q->flight;
	w->report_at = g->unreported ? q->begun + TESS_SLOW : 0;
	if (st == TESS_PENDING) {
		w->work = work;
		st = tess_work_wait(w, 0);
	} else {
		st = tess_plugin_check_status(g->backend, g->backend->name, "run", w->coll.where,
		                              st);
		st = tess_work_failed(w, st, w->coll.deadline);
	}
	tess_work_drop(w);
	return st;
}

static tess_status run_short_path(struct tess_group *g, const struct tess_coll *c,
                                  struct tess_call_shape *shape)
{
	struct short_call q; /* not zeroed: that takes time */
	void *work;
	tess_status st = tess_world_check(g->world);

	if (st)
		return st;
	q.group = g;
	q.shape = shape;
	q.deadline = c->deadline;
	q.begun = 0;
	q.key = tess_call_number(g, c);
	shape->call.fingerprint = tess_call_fingerprint(shape->what, &q.key, g->size);
	shape->call.src = c->src;
	shape->call.dst = c->dst;
	shape->call.stream = c->stream;
	shape->call.where = c->where;
	st = TESS_PLUGIN_VALUE_QUICK(
		g->backend->run(g->self, &shape->call, book_and_tick, &q, &work));
	if (st)
		return finish_as_work(&q, st, work);
	tess_flight_end(g->world->flight, q.flight, TESS_OK, q.now);
	return TESS_OK;
}

tess_status tess_group_run(struct tess_group *g, const struct tess_coll *c)
{
	struct tess_call_shape *shape;
	struct tess_work *w;
	tess_status st;

	if (!g || !c)
		return TESS_REQUIRE(g, c);
	if (fits_short_path(g, c, &shape))
		return run_short_path(g, c, shape);
	st = tess_group_start(g, c, &w);
	if (st)
		return st;
	if (tess_work_is_ordered(w))
		return tess_work_queue(w, w->coll.stream);
	st = tess_work_wait(w, 0);
	tess_work_drop(w);
	return st;
}

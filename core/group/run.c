/*
 * run.c - calls that their callers wait for at once.
 *
 * One that is like the last of its kind takes a short way through a backend that has one: what the others
 * wait for is with them before anything is written down, and that is done while theirs comes.
 */
#include "world.h"

#include "core/base/status.h"
#include "core/registry/returned.h"

enum { POLL_BUDGET = 2000 }; /* ns that are spent on looks before the call goes on as a work */

struct short_call {
	struct tess_group *group;
	struct tess_call_shape *shape;
	struct tess_call_key key;
	int64_t deadline; /* as its caller has set it */
	uint64_t flight;
	int64_t begun, now; /* ns; at the last look. 0: nothing is written down */
};

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

/* The clock is what a look waits for: it takes about as long as a line between two cores. */
static int32_t book_and_tick(void *arg)
{
	struct short_call *q = arg;

	q->now = tess_ticks_now(&q->group->ticks);
	if (q->begun)
		return q->now - q->begun < POLL_BUDGET;
	book_call(q);
	return 1;
}

/* Whether the call may go the short way. The work is for when it turns out to be long. */
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

/* Not over at once: `st` is TESS_PENDING, or how it has failed. */
static tess_status continue_as_work(struct short_call *q, tess_status st, void *work)
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
	struct short_call q; /* no more of it is written than is needed */
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
	st = g->backend->run(g->self, &shape->call, book_and_tick, &q, &work);
	if (st)
		return continue_as_work(&q, st, work);
	tess_flight_end(g->world->flight, q.flight, TESS_OK, q.now);
	return TESS_OK;
}

tess_status tess_group_run(struct tess_group *g, const struct tess_coll *c)
{
	struct tess_call_shape *shape;
	struct tess_work *w;
	tess_status st;

	if (fits_short_path(g, c, &shape))
		return run_short_path(g, c, shape);
	st = tess_group_start(g, c, &w);
	if (st)
		return st;
	st = tess_work_wait(w, 0);
	tess_work_drop(w);
	return st;
}

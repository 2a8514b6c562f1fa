/* run.c - tess_backend.run, an optional call that starts and finishes another. */
#include "conform.h"

#include "core/base/status.h"
#include "core/world/world.h"

#include <stdlib.h>

struct meanwhile_state { /* of one call of run() */
	struct tess_coll *coll;
	int64_t timeout;
	uint64_t max_polls; /* limit until run() must return */
	uint64_t polls;
};

static int32_t count_meanwhile(void *arg)
{
	struct meanwhile_state *b = arg;

	if (!b->polls++)
		b->coll->deadline = tess_now() + b->timeout;
	return b->polls <= b->max_polls;
}

/* Makes one call by run(), or by start() and wait(); ranks of a group may mix them. */
static tess_status make_run_call(struct conform_rank *me, const struct conform_direct *g,
                                 struct conform_data *d, uint64_t random)
{
	struct meanwhile_state b = { .coll = &d->coll[0],
		                     .timeout = me->world->timeout,
		                     .max_polls = random >> 8 & 1 ? random >> 16 & 255 : 0 };
	void *work = NULL;
	tess_status st;

	if (random & 1)
		return conform_direct_run(me, g, b.coll);
	conform_set_call(me, CONFORM_START);
	st = me->backend->run(g->self, b.coll, count_meanwhile, &b, &work);
	conform_set_call(me, CONFORM_NO_CALL);
	if (st < 0)
		return st;
	if (!b.polls)
		conform_add_fault(me,
		                  "run() returned %s and never called meanwhile(). The rule: it is "
		                  "called at least once unless run fails",
		                  tess_status_name(st));
	if (st == TESS_OK)
		return st;
	if (!work)
		return tess_fail(TESS_EBUG, "run() returned TESS_PENDING without a work. The rule: "
		                            "*work is as start gives it");
	return conform_direct_finish(me, g, work, tess_now() + b.timeout);
}

static tess_status try_run_case(struct conform_rank *me, const struct conform_direct *g,
                                const struct conform_case *c, uint64_t random)
{
	struct conform_data *d;
	tess_status st = conform_data_make(c, g->rank, g->n, &d);

	if (st)
		return st;
	if (d->ncolls == 1 && conform_direct_supports(me, d)) {
		if (random & 2)
			conform_sleep((int64_t)(random >> 32 & 63) * 1000);
		st = make_run_call(me, g, d, random);
		if (st)
			return st; /* the buffers stay, for writes that come late */
		if (conform_data_check(d))
			conform_add_fault(me, "%s", tess_error());
		me->state->ncases++;
	}
	conform_data_free(d);
	return TESS_OK;
}

tess_status conform_run_run(struct conform_rank *me)
{
	struct conform_direct g;
	struct conform_case *list;
	uint32_t n;
	tess_status st;

	if (!me->backend->run)
		return TESS_OK;
	st = conform_list_cases(me->n, me->job->quick, &list, &n);
	if (!st)
		st = conform_direct_open_all(me, "conform.run", &g);
	for (uint32_t i = 0; !st && i < n; i++) {
		conform_set_activity_case(me, &list[i], "by run()");
		st = try_run_case(me, &g, &list[i], conform_hash(i, (uint64_t)me->rank, 7));
	}
	if (st)
		return st;
	free(list);
	conform_direct_close(me, &g);
	return TESS_OK;
}

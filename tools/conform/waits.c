/* waits.c - test() does not block, wait() returns in time, abort() ends waiting calls. */
#include "conform.h"

#include "core/base/status.h"
#include "core/world/world.h"

#include <pthread.h>

/* Returns a receive of one number that no rank sends. */
static struct tess_coll make_unmatched_recv(const struct conform_rank *me)
{
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_RECV,
		               .dtype = TESS_I32,
		               .mem = TESS_HOST,
		               .count = 1,
		               .peer = (me->rank + 1) % me->n,
		               .dst = conform_alloc(me, sizeof(int32_t)), /* for late writes */
		               .where = "conform",
		               .deadline = tess_now() + me->world->timeout };

	conform_place_call(me, &c);
	return c;
}

/* Checks that test() and wait() return from an unmatched receive. Ends the group. */
static tess_status wait_unmatched_recv(struct conform_rank *me, const struct conform_direct *g,
                                       const struct tess_coll *c, void **work)
{
	const struct tess_backend *b = me->backend;
	int64_t begin;
	tess_status st = b->start(g->self, c, work);

	conform_set_activity(me, "test() of a recv without a send");
	conform_set_call(me, CONFORM_TEST);
	for (int i = 0; i < 10 && !st; i++) {
		begin = tess_now();
		st = b->test(g->self, *work);
		if (st == TESS_OK)
			conform_add_fault(
				me,
				"it is done. The rule: test() returns TESS_PENDING until the call "
				"is done");
		if (tess_now() - begin > 500 * (int64_t)TESS_MS)
			conform_add_fault(me, "it took %.2f s. The rule: test() does not block",
			                  conform_get_seconds(tess_now() - begin));
		st = st == TESS_PENDING ? TESS_OK : st;
	}
	if (st || !b->abort)
		return st;
	conform_set_activity(me, "wait() for 0.2 s in a recv without a send");
	conform_set_call(me, CONFORM_WAIT);
	begin = tess_now();
	st = b->wait(g->self, *work, begin + 200 * (int64_t)TESS_MS);
	if (st != TESS_PENDING && st != TESS_ETIMEOUT)
		conform_add_fault(
			me,
			"it returned %s. The rule: at its deadline wait() returns TESS_ETIMEOUT, "
			"or TESS_PENDING",
			tess_status_name(st));
	else if (tess_now() - begin < 190 * (int64_t)TESS_MS ||
	         tess_now() - begin > 1200 * (int64_t)TESS_MS)
		conform_add_fault(
			me, "it returned after %.2f s. The rule: wait() returns at its deadline",
			conform_get_seconds(tess_now() - begin));
	return TESS_OK;
}

/* Returns a send, which every backend has, or an all_reduce, the most common kind. */
static struct conform_case make_common_case(struct conform_rank *me, int i)
{
	struct conform_case c = { .kind = TESS_ALL_REDUCE,
		                  .dtype = TESS_F32,
		                  .op = TESS_SUM,
		                  .count = i % 3 ? 3 : 3000 };
	struct tess_coll coll = { .size = sizeof coll,
		                  .kind = c.kind,
		                  .dtype = c.dtype,
		                  .op = c.op,
		                  .mem = TESS_HOST,
		                  .count = c.count };

	conform_place_call(me, &coll);
	if (i % 2 || me->backend->supports(&coll, me->n))
		c.kind = TESS_SEND;
	return c;
}

/* Waits many times for ranks that come at random moments, to find lost wake-ups. */
static tess_status check_wake_ups(struct conform_rank *me, const struct conform_direct *g)
{
	int rounds = me->job->quick ? 400 : 4000;
	int64_t limit = 3000 * (int64_t)TESS_MS;
	tess_status st = TESS_OK;

	for (int i = 0; i < rounds && !st; i++) {
		struct conform_case c = make_common_case(me, i);
		uint64_t random = conform_hash((uint64_t)i, (uint64_t)me->rank, 5);
		struct conform_data *d;
		void *work[2];

		conform_set_activity(me, "wait() %d of %d, to which ranks come at random moments",
		                     i, rounds);
		if (random >> 32 & 1)
			conform_sleep((int64_t)(random % 400) * 1000);
		st = conform_data_make(&c, me->rank, me->n, &d);
		if (!st)
			st = conform_direct_start(me, g, d, limit, work);
		for (int32_t k = d->ncolls - 1; k >= 0 && !st; k--) {
			st = conform_direct_wait(me, g, work[k], d->coll[k].deadline);
			if (st == TESS_ETIMEOUT)
				return tess_fail(
					st,
					"wait() %d returned only at its deadline, 3 s after the "
					"call began%s. The rule: "
					"wait() returns as soon as the call is done",
					i,
					me->backend->test(g->self, work[k])
						? ""
						: ", though test() then finds it done: "
						  "a wake-up was lost");
			if (!st)
				me->backend->release(g->self, work[k]);
		}
		if (!st)
			conform_data_free(d);
		me->state->ncases++;
		conform_set_call(me, CONFORM_NO_CALL);
	}
	return st;
}

tess_status conform_run_wait(struct conform_rank *me)
{
	struct conform_direct g;
	struct tess_coll c = make_unmatched_recv(me);
	void *work = NULL;
	tess_status st = conform_direct_open_all(me, "conform.wake", &g);

	if (st || (st = check_wake_ups(me, &g)))
		return st;
	conform_direct_close(me, &g);
	if ((st = conform_direct_open_all(me, "conform.wait", &g)) ||
	    (st = wait_unmatched_recv(me, &g, &c, &work)))
		return st;
	/* no rank may close the group while another one tests; the core ends a failed group so */
	if ((st = tess_barrier(me->group, "conform")))
		return st;
	conform_set_call(me, CONFORM_RELEASE);
	if (me->backend->abort)
		me->backend->abort(g.self);
	me->backend->release(g.self, work);
	conform_direct_close(me, &g);
	conform_free(me, c.dst);
	me->state->ncases++;
	return TESS_OK;
}

struct aborter {
	struct conform_rank *me;
	struct conform_direct *g;
	int64_t when;
};

static void *abort_group_later(void *arg)
{
	struct aborter *a = arg;

	conform_sleep(100 * (int64_t)TESS_MS);
	a->when = tess_now();
	a->me->backend->abort(a->g->self);
	return NULL;
}

tess_status conform_run_abort(struct conform_rank *me)
{
	struct conform_direct g;
	struct aborter a = { .me = me, .g = &g };
	struct tess_coll c = make_unmatched_recv(me);
	void *work = NULL, *more = NULL;
	pthread_t thread;
	tess_status st;

	if (!me->backend->abort)
		return TESS_OK; /* the core polls with test() */
	if ((st = conform_direct_open_all(me, "conform.abort", &g)) ||
	    (st = conform_check_returned(me, "start", me->backend->start(g.self, &c, &work))))
		return st;
	conform_note_files(me);
	conform_set_activity(me, "abort() from another thread while this one waits in a recv");
	if (pthread_create(&thread, NULL, abort_group_later, &a))
		return tess_fail(TESS_EIO, "no thread");
	conform_set_call(me, CONFORM_WAIT);
	st = me->backend->wait(g.self, work, tess_now() + me->world->timeout);
	pthread_join(thread, NULL);
	if (st >= 0)
		conform_add_fault(me, "wait() returned %s. The rule: every pending call fails",
		                  tess_status_name(st));
	else if (tess_now() - a.when > 1000 * (int64_t)TESS_MS)
		conform_add_time_fault(
			me,
			"wait() returned %.2f s later. The rule: every pending call fails soon, "
			"within 1 s",
			conform_get_seconds(tess_now() - a.when));
	conform_set_call(me, CONFORM_START);
	st = me->backend->start(g.self, &c, &more);
	if (!st)
		st = me->backend->test(g.self, more);
	if (st >= 0)
		conform_add_fault(me,
		                  "a later call returned %s. The rule: every later call fails soon",
		                  tess_status_name(st));
	if ((st = tess_barrier(me->group, "conform")))
		return st;
	conform_set_call(me, CONFORM_RELEASE);
	me->backend->release(g.self, work);
	if (more)
		me->backend->release(g.self, more);
	conform_direct_close(me, &g);
	conform_free(me, c.dst);
	me->state->ncases++;
	return TESS_OK;
}

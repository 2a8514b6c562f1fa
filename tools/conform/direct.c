/* direct.c - opens groups through the backend's table, for calls that the core does not make. */
#include "conform.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/world/group.h"

tess_status conform_check_returned(const struct conform_rank *me, const char *function,
                                   tess_status st)
{
	return st && st != TESS_PENDING ? tess_plugin_check_returned(me->backend, me->backend->name,
	                                                             function, NULL, st)
	                                : st;
}

tess_status conform_direct_open(struct conform_rank *me, const char *name, const int32_t *member,
                                int32_t m, void *parent, const struct tess_store *store,
                                struct conform_direct *out)
{
	struct tess_group_entry join = { .size = sizeof join,
		                         .nranks = m,
		                         .device = me->memory.device ? me->memory.index : -1,
		                         .name = name,
		                         .world = member,
		                         .store = store ? store : &me->world->store,
		                         .parent = parent,
		                         .deadline = tess_now() + me->world->timeout };
	tess_status st;

	while (member[join.rank] != me->rank)
		join.rank++;
	out->rank = join.rank;
	out->n = m;
	conform_set_call(me, CONFORM_OPEN);
	tess_error_clear();
	st = conform_check_returned(me, "open", me->backend->open(&join, &out->self));
	conform_set_call(me, CONFORM_NO_CALL);
	return st;
}

tess_status conform_direct_open_all(struct conform_rank *me, const char *name,
                                    struct conform_direct *out)
{
	conform_set_activity(me, "opening a group");
	return conform_direct_open(me, name, me->group->members->member, me->n, NULL, NULL, out);
}

void conform_direct_close(struct conform_rank *me, struct conform_direct *g)
{
	conform_set_call(me, CONFORM_CLOSE);
	me->backend->close(g->self);
	conform_set_call(me, CONFORM_NO_CALL);
}

tess_status conform_direct_start(struct conform_rank *me, const struct conform_direct *g,
                                 struct conform_data *d, int64_t timeout, void *work[static 2])
{
	tess_status st = TESS_OK;

	for (int32_t k = 0; k < d->ncolls && !st; k++) {
		d->coll[k].deadline = tess_now() + timeout;
		conform_set_call(me, CONFORM_START);
		tess_error_clear();
		st = conform_check_returned(me, "start",
		                            me->backend->start(g->self, &d->coll[k], &work[k]));
	}
	return st;
}

/* The core does not call wait() of a backend that has no abort(). */
tess_status conform_direct_wait(struct conform_rank *me, const struct conform_direct *g, void *work,
                                int64_t deadline)
{
	const struct tess_backend *b = me->backend;
	tess_status st;

	conform_set_call(me, b->abort ? CONFORM_WAIT : CONFORM_TEST);
	tess_error_clear();
	if (b->abort) {
		st = b->wait(g->self, work, deadline);
	} else {
		while ((st = b->test(g->self, work)) == TESS_PENDING && tess_now() < deadline)
			conform_sleep(20000);
	}
	conform_set_call(me, CONFORM_NO_CALL);
	if (st == TESS_PENDING || (st == TESS_ETIMEOUT && !*tess_error()))
		return tess_fail(TESS_ETIMEOUT,
		                 "%s() had not found the call done at its deadline. The rule: a "
		                 "call that all ranks have started is done soon",
		                 b->abort ? "wait" : "test");
	return conform_check_returned(me, b->abort ? "wait" : "test", st);
}

static tess_status wait_and_release(struct conform_rank *me, const struct conform_direct *g,
                                    void *work, int64_t deadline)
{
	tess_status st = conform_direct_wait(me, g, work, deadline);

	conform_set_call(me, CONFORM_RELEASE);
	me->backend->release(g->self, work);
	conform_set_call(me, CONFORM_NO_CALL);
	return st;
}

tess_status conform_direct_run(struct conform_rank *me, const struct conform_direct *g,
                               const struct tess_coll *c)
{
	struct tess_coll own = *c;
	tess_status st;
	void *work;

	own.deadline = tess_now() + me->world->timeout;
	conform_set_call(me, CONFORM_START);
	tess_error_clear();
	st = conform_check_returned(me, "start", me->backend->start(g->self, &own, &work));
	return st ? st : wait_and_release(me, g, work, own.deadline);
}

bool conform_direct_supports(const struct conform_rank *me, const struct conform_data *d)
{
	for (int32_t k = 0; k < d->ncolls; k++)
		if (me->backend->supports(&d->coll[k], d->n))
			return false;
	return true;
}

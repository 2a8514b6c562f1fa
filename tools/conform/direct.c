/* A group opened through the backend's own table: what the core does not let a program do. */
#include "conform.h"

#include "core/base/clock.h"
#include "core/rendezvous/call_desc.h"
#include "core/group/world.h"

tess_status conform_direct_open(struct conform_rank *me, const char *name, const int32_t *member,
                                int32_t m, void *parent, struct conform_direct *out)
{
	struct tess_join how = { .size = sizeof how,
		                 .nranks = m,
		                 .device = -1,
		                 .name = name,
		                 .world = member,
		                 .store = &me->world->store,
		                 .parent = parent,
		                 .deadline = tess_now() + me->world->timeout };
	tess_status st;

	while (member[how.rank] != me->rank)
		how.rank++;
	out->rank = how.rank;
	out->n = m;
	conform_step(me, CONFORM_OPEN);
	st = me->backend->open(&how, &out->self);
	conform_step(me, CONFORM_ITSELF);
	return st;
}

tess_status conform_direct_open_all(struct conform_rank *me, const char *name,
                                    struct conform_direct *out)
{
	conform_doing(me, "opening a group");
	return conform_direct_open(me, name, me->group->members->member, me->n, NULL, out);
}

void conform_direct_close(struct conform_rank *me, struct conform_direct *g)
{
	conform_step(me, CONFORM_CLOSE);
	me->backend->close(g->self);
	conform_step(me, CONFORM_ITSELF);
}

/* The core never waits in a backend that cannot be aborted. */
tess_status conform_direct_await(struct conform_rank *me, const struct conform_direct *g,
                                 void *work, int64_t deadline)
{
	const struct tess_backend *b = me->backend;
	struct timespec pause = tess_timespec(20000);
	tess_status st;

	conform_step(me, b->abort ? CONFORM_WAIT : CONFORM_TEST);
	if (b->abort) {
		st = b->wait(g->self, work, deadline);
	} else {
		while ((st = b->test(g->self, work)) == TESS_PENDING && tess_now() < deadline)
			nanosleep(&pause, NULL);
	}
	conform_step(me, CONFORM_ITSELF);
	return st == TESS_PENDING ? TESS_ETIMEOUT : st;
}

tess_status conform_direct_end(struct conform_rank *me, const struct conform_direct *g, void *work,
                               int64_t deadline)
{
	tess_status st = conform_direct_await(me, g, work, deadline);

	conform_step(me, CONFORM_RELEASE);
	me->backend->release(g->self, work);
	conform_step(me, CONFORM_ITSELF);
	return st;
}

tess_status conform_direct_run(struct conform_rank *me, const struct conform_direct *g,
                               const struct tess_coll *c)
{
	struct tess_coll own = *c;
	tess_status st;
	void *work;

	own.mem = TESS_HOST;
	own.deadline = tess_now() + me->world->timeout;
	conform_step(me, CONFORM_START);
	st = me->backend->start(g->self, &own, &work);
	return st ? st : conform_direct_end(me, g, work, own.deadline);
}

bool conform_direct_can(const struct conform_rank *me, const struct conform_data *d)
{
	for (int32_t k = 0; k < d->ncolls; k++) {
		struct tess_coll c = d->coll[k];

		c.mem = TESS_HOST;
		if (me->backend->supports(&c, d->n))
			return false;
	}
	return true;
}

/*
 * tess-backend-loopback.so: ranks are threads of one process, or one rank alone. Data are copied
 * between the ranks' own buffers, and a call that does not match is an error on all ranks.
 *
 * The ranks of a group share a context. A call has a number, equal on all ranks; the first rank
 * makes the pending call, the last one starts the move. Ranks wait by a short spin, then on the
 * call's condition variable.
 */
#include "batch.h"

#include <stdlib.h>

const struct tess_host *loopback_host;

static void loopback_abort_group(void *self)
{
	struct member *me = self;

	pthread_mutex_lock(&me->context->lock);
	context_fail(me->context, TESS_EABORTED, "the group was aborted");
	pthread_mutex_unlock(&me->context->lock);
}

static tess_status loopback_supports_call(const struct tess_coll *c, int32_t nranks)
{
	char fault[128];

	if (c->mem != TESS_HOST)
		return loopback_host->fail(TESS_ENOTSUP, "loopback moves host memory");
	if (tess_coll_find_fault(c, fault, sizeof fault))
		return loopback_host->fail(TESS_ENOTSUP, "loopback: %s", fault);
	if (nranks > RANKS_MOST)
		return loopback_host->fail(TESS_ENOTSUP, "loopback has at most %d ranks",
		                           RANKS_MOST);
	return TESS_OK;
}

static tess_status loopback_test_call(void *self, void *work)
{
	return ((struct work *)work)->n ? batch_test_calls(self, work) : call_test_one(self, work);
}

static tess_status loopback_wait_call(void *self, void *work, int64_t deadline)
{
	return ((struct work *)work)->n ? batch_wait_calls(self, work, deadline)
	                                : call_wait_one(self, work, deadline);
}

static void loopback_release_call(void *self, void *work)
{
	if (((struct work *)work)->n)
		batch_release_calls(self, work);
	else
		call_release_one(self, work);
}

static void free_member(struct member *me)
{
	if (!me)
		return;
	free(me->sent);
	free(me->received);
	free(me);
}

static void loopback_close_group(void *self)
{
	struct member *me = self;

	context_leave(me->context);
	free_member(me);
}

static tess_status loopback_open_group(const struct tess_group_entry *how, void **self)
{
	struct member *me;
	tess_status st;

	if (how->nranks > RANKS_MOST)
		return loopback_host->fail(TESS_ENOTSUP, "at most %d ranks, not %d", RANKS_MOST,
		                           (int)how->nranks);
	me = calloc(1, sizeof *me);
	if (me) {
		me->sent = calloc((size_t)how->nranks, sizeof *me->sent);
		me->received = calloc((size_t)how->nranks, sizeof *me->received);
		me->rank = how->rank;
	}
	if (!me || !me->sent || !me->received)
		st = loopback_host->fail(TESS_ENOMEM, "no memory for a rank");
	else
		st = context_open(how, &me->context);
	if (st)
		free_member(me);
	else
		*self = me;
	return st;
}

static tess_status loopback_init_plugin(const struct tess_host *h)
{
	loopback_host = h;
	return TESS_OK;
}

static const struct tess_backend loopback = {
	.size = sizeof loopback,
	.threads = 1,
	.name = "loopback",
	.summary = "threads of one process, or one rank alone",
	.supports = loopback_supports_call,
	.open = loopback_open_group,
	.start = call_start_one,
	.test = loopback_test_call,
	.wait = loopback_wait_call,
	.release = loopback_release_call,
	.close = loopback_close_group,
	.batch = batch_start_calls,
	.abort = loopback_abort_group,
	.reach = TESS_REACH_PROCESS,
	.mem_kinds = 1 << TESS_HOST,
};

TESS_DEFINE_PLUGIN("loopback", "1.0", "Apache-2.0", .summary = "ranks as threads",
                   .backends = TESS_LIST(tess_backend, &loopback), .init = loopback_init_plugin);

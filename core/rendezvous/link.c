/* link.c - the link of a rank that is a thread; calls the coordinator. */
#include "core/rendezvous/link.h"

#include "core/base/status.h"

#include <stdlib.h>

struct thread_link {
	struct tess_coordinator *coordinator;
	struct tess_failure_handler *handler;
	int32_t rank;
};

static tess_status thread_set(void *self, const char *key, const void *val, uint64_t len)
{
	struct thread_link *l = self;

	return tess_coordinator_set(l->coordinator, key, val, len);
}

static tess_status thread_get(void *self, const char *key, int64_t deadline, void *val,
                              uint64_t *len)
{
	struct thread_link *l = self;

	return tess_coordinator_get(l->coordinator, key, deadline, val, len);
}

static void thread_add_call(void *self, const struct tess_call_desc *d)
{
	struct thread_link *l = self;

	tess_coordinator_add_call(l->coordinator, l->rank, d);
}

static void thread_deadline_passed(void *self, const struct tess_call_key *key, int32_t n)
{
	struct thread_link *l = self;

	tess_coordinator_deadline_passed(l->coordinator, l->rank, key, n);
}

static void thread_add_group(void *self, const struct tess_members *m)
{
	struct thread_link *l = self;

	tess_coordinator_add_group(l->coordinator, l->rank, m);
}

static void thread_leave_group(void *self, uint32_t id)
{
	struct thread_link *l = self;

	tess_coordinator_leave_group(l->coordinator, l->rank, id);
}

static void thread_fail(void *self, tess_status why, const char *sentence)
{
	struct thread_link *l = self;

	tess_coordinator_fail(l->coordinator, l->rank, why, sentence);
}

static void thread_leave(void *self, int64_t deadline)
{
	struct thread_link *l = self;

	tess_coordinator_leave(l->coordinator, l->rank);
	if (tess_coordinator_wait_left(l->coordinator, deadline) == TESS_ETIMEOUT)
		tess_coordinator_deadline_passed(l->coordinator, l->rank, NULL, 0);
}

static void thread_close(void *self)
{
	struct thread_link *l = self;

	tess_coordinator_remove_handler(l->coordinator, l->handler);
	free(l);
}

tess_status tess_link_thread(struct tess_coordinator *c, int32_t rank,
                             struct tess_failure_handler *handler, struct tess_link *out)
{
	struct thread_link *self = malloc(sizeof *self);
	tess_status st;

	if (!self)
		return tess_fail(TESS_ENOMEM, "no memory for rank %d's link to its job", rank);
	st = tess_coordinator_join(c, rank, 0);
	if (st) {
		free(self);
		return st;
	}
	*self = (struct thread_link){ .coordinator = c, .handler = handler, .rank = rank };
	*out = (struct tess_link){ .self = self,
		                   .set = thread_set,
		                   .get = thread_get,
		                   .add_call = thread_add_call,
		                   .deadline_passed = thread_deadline_passed,
		                   .add_group = thread_add_group,
		                   .leave_group = thread_leave_group,
		                   .fail = thread_fail,
		                   .leave = thread_leave,
		                   .close = thread_close };
	tess_coordinator_add_handler(c, handler);
	return TESS_OK;
}

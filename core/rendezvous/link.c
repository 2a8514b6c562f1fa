/* A rank's line to its job where ranks are threads: the hub itself. */
#include "link.h"

#include "core/base/status.h"
#include <stdlib.h>

struct line {
	struct tess_coordinator *hub;
	struct tess_failure_handler *listener;
	int32_t rank;
};

static tess_status set(void *self, const char *key, const void *val, uint64_t len)
{
	struct line *l = self;

	return tess_coordinator_set(l->hub, key, val, len);
}

static tess_status get(void *self, const char *key, int64_t deadline, void *val, uint64_t *len)
{
	struct line *l = self;

	return tess_coordinator_get(l->hub, key, deadline, val, len);
}

static void note(void *self, const struct tess_call_desc *n)
{
	struct line *l = self;

	tess_coordinator_add_call(l->hub, l->rank, n);
}

static void late(void *self, const struct tess_call_key *key, int32_t n)
{
	struct line *l = self;

	tess_coordinator_deadline_passed(l->hub, l->rank, key, n);
}

static void group(void *self, const struct tess_members *r)
{
	struct line *l = self;

	tess_coordinator_add_group(l->hub, l->rank, r);
}

static void group_leave(void *self, uint32_t id)
{
	struct line *l = self;

	tess_coordinator_leave_group(l->hub, l->rank, id);
}

static void fail(void *self, tess_status why, const char *sentence)
{
	struct line *l = self;

	tess_coordinator_fail(l->hub, l->rank, why, sentence);
}

static void leave(void *self, int64_t deadline)
{
	struct line *l = self;

	tess_coordinator_leave(l->hub, l->rank);
	if (tess_coordinator_wait_left(l->hub, deadline) == TESS_ETIMEOUT)
		tess_coordinator_deadline_passed(l->hub, l->rank, NULL, 0);
}

static void close_line(void *self)
{
	struct line *l = self;

	tess_coordinator_remove_handler(l->hub, l->listener);
	free(l);
}

tess_status tess_link_thread(struct tess_coordinator *h, int32_t rank, struct tess_failure_handler *l,
                             struct tess_link *out)
{
	struct line *self = malloc(sizeof *self);
	tess_status st;

	if (!self)
		return tess_fail(TESS_ENOMEM, "no memory for rank %d's line to its job", rank);
	st = tess_coordinator_join(h, rank, 0);
	if (st) {
		free(self);
		return st;
	}
	*self = (struct line){ .hub = h, .listener = l, .rank = rank };
	*out = (struct tess_link){ .self = self,
		                   .set = set,
		                   .get = get,
		                   .add_call = note,
		                   .deadline_passed = late,
		                   .add_group = group,
		                   .leave_group = group_leave,
		                   .fail = fail,
		                   .leave = leave,
		                   .close = close_line };
	tess_coordinator_add_handler(h, l);
	return TESS_OK;
}

#include "call_info.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CALL_INFO_NS = 500000000 };

/* Fails the group with its first failure, which every later call returns. */
tess_status group_fail_call(struct group *g, tess_status why, const char *fmt, ...)
{
	va_list ap;

	if (!g->failed) {
		va_start(ap, fmt);
		vsnprintf(g->why, sizeof g->why, fmt, ap);
		va_end(ap);
		g->failed = why;
	}
	return g->host->fail(g->failed, "%s", g->why);
}

/* Describes a call; a rank that has died may have left any values. */
static void describe_call_info(const struct group *g, const struct call_info *info, char *text,
                               size_t bytes)
{
	bool valid = info->kind > 0 && info->kind <= TESS_RECV && info->dtype >= 0 &&
	             info->dtype <= TESS_U8 && info->op >= 0 && info->op <= TESS_BXOR &&
	             info->peer >= 0 && info->peer < g->nranks;
	char where[WHERE];
	struct tess_coll c = { .where = where };

	snprintf(where, sizeof where, "%.*s", WHERE - 1, info->where);
	if (valid) {
		c.kind = info->kind;
		c.dtype = info->dtype;
		c.op = info->op;
		c.peer = info->peer;
		c.count = info->count;
	}
	tess_coll_format(&c, g->world, text, bytes);
}

void call_info_write(const struct tess_coll *c, struct call_info *out)
{
	size_t len = c->where ? strnlen(c->where, WHERE - 1) : 0;

	out->kind = c->kind;
	out->dtype = c->dtype;
	out->op = c->op;
	out->peer = c->peer;
	out->count = c->count;
	if (len)
		memcpy(out->where, c->where, len);
	out->where[len] = '\0';
}

void call_info_publish(struct group *g, const struct tess_coll *c)
{
	struct call_info *info = &rank_slot_of(g, g->rank)->call[g->round & 1];

	call_info_write(c, info);
	/* Release: a rank that reads the round reads the rest. */
	atomic_store_explicit(&info->round, g->round, memory_order_release);
}

/*
 * Waits for the info, which follows the flag unless its rank is stopped: then returns an empty one.
 */
const struct call_info *call_info_await(const struct group *g, int32_t r)
{
	static const struct call_info nothing = { .kind = 0 };
	const struct call_info *info = &rank_slot_of(g, r)->call[g->round & 1];
	int64_t until = tess_now() + CALL_INFO_NS;

	while (atomic_load_explicit(&info->round, memory_order_acquire) != g->round) {
		if (tess_now() > until)
			return &nothing;
		sched_yield();
	}
	return info;
}

tess_status call_info_mismatch(struct group *g, const struct work *w, int32_t r,
                               const struct call_info *theirs)
{
	struct call_info own;
	char mine[256], other[256];

	call_info_write(&w->c, &own);
	describe_call_info(g, &own, mine, sizeof mine);
	describe_call_info(g, theirs, other, sizeof other);
	return group_fail_call(g, TESS_EMISMATCH, "rank %d is in %s, but rank %d in %s",
	                       (int)g->world[g->rank], mine, (int)g->world[r], other);
}

#include "mismatch.h"

#include "draw.h"

#include "core/base/status.h"
#include "core/base/clock.h"
#include "core/rendezvous/call_desc.h"
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { KIND, DTYPE, OP, COUNT, ROOT, ORDER, MISSING, LISTS, PAIR, MESSAGE, MESSAGE_DTYPE, GROUP };
enum { GROUP_EACH = 40 }; /* only a deadline ends this one: one in so many */
enum { MOST = 3000, GUARD = 64, PATIENCE_MS = 20000, DEADLINE_MS = 400 };
static const char odd_where[] = "layers.7.odd:out", where[] = "layers.3.mlp.down:out";

const char *mismatch_name(const struct mismatch *m)
{
	static const char *const names[] = { "a kind",
		                             "a dtype",
		                             "an operation",
		                             "a count",
		                             "a root",
		                             "the order",
		                             "a call is missing",
		                             "a list of counts",
		                             "the counts of a pair",
		                             "the count of a message",
		                             "the dtype of a message",
		                             "the group" };

	return names[m->what];
}

static int32_t other_than(uint64_t *state, int32_t this, int32_t from, int32_t below)
{
	int32_t x = from + (int32_t)draw(state, (uint64_t)(below - from - 1));

	return x < this ? x : x + 1;
}

static bool fits(const struct mismatch *m)
{
	switch (m->what) {
	case OP:
		return tess_kind_reduces(m->kind);
	case ROOT:
		return tess_kind_rooted(m->kind);
	case LISTS:
		return m->kind >= TESS_GATHER && m->kind <= TESS_REDUCE_SCATTER;
	case PAIR:
		return m->kind == TESS_ALL_TO_ALL;
	case KIND:
	case ORDER:
		return true;
	case GROUP: /* a call that no rank finishes alone */
		return m->kind == TESS_ALL_REDUCE || m->kind == TESS_ALL_GATHER;
	default:
		return m->kind != TESS_BARRIER;
	}
}

void mismatch_make(uint64_t seed, int32_t n, struct mismatch *out)
{
	uint64_t s = seed;
	struct mismatch m = { .n = n };

	m.odd = (int32_t)draw(&s, (uint64_t)n);
	m.other = other_than(&s, m.odd, 0, n);
	m.what = draw(&s, GROUP_EACH) ? (int32_t)draw(&s, GROUP) : GROUP;
	do
		m.kind = TESS_BARRIER + (int32_t)draw(&s, TESS_ALL_TO_ALL);
	while (!fits(&m));
	m.odd_kind = other_than(&s, m.kind, TESS_BARRIER, TESS_ALL_TO_ALL + 1);
	if (m.what == MISSING)
		m.odd_kind = TESS_BARRIER; /* what comes next */
	m.dtype = TESS_F32 + (int32_t)draw(&s, 8);
	m.odd_dtype = other_than(&s, m.dtype, TESS_F32, TESS_U8 + 1);
	m.op = TESS_SUM + (int32_t)draw(&s, 4);
	m.odd_op = other_than(&s, m.op, TESS_SUM, TESS_MAX + 1);
	m.root = m.other;
	m.count = draw(&s, 4) ? 1 + draw(&s, MOST) : draw(&s, 2);
	if (m.what == GROUP)
		m.count++;
	do
		m.odd_count = draw(&s, MOST);
	while (m.odd_count == m.count);
	m.earlier = 1 + (int32_t)draw(&s, MISMATCH_EARLIER);
	*out = m;
}

/* ---- memory --------------------------------------------------------------------------------------- */

/* Of one rank: what earlier calls have brought, and the buffers of those that differ. */
struct memory {
	float sum[MISMATCH_EARLIER][MOST], all[MISMATCH_EARLIER][MISMATCH_RANKS];
	alignas(8) char src[2][8 * (MOST + 4) * MISMATCH_RANKS];
	alignas(8) char before[GUARD], dst[2][8 * (MOST + 4) * MISMATCH_RANKS], after[GUARD];
	uint64_t give[MISMATCH_RANKS], get[MISMATCH_RANKS];
	float one[MISMATCH_EARLIER];
	int32_t earlier; /* how many are done */
};

static float term(int32_t call, int32_t rank, int i)
{
	return (float)((call * 5 + rank * 3 + i) % 17);
}

static tess_status make_earlier(struct tess_group *g, const struct mismatch *m, struct memory *my)
{
	int32_t me = tess_group_rank(g);
	tess_status st = TESS_OK;

	for (int32_t k = 0; k < m->earlier && !st; k++) {
		for (int i = 0; i < MOST; i++)
			my->sum[k][i] = term(k, me, i);
		my->one[k] = term(k, me, 0);
		st = tess_all_reduce(g, my->sum[k], my->sum[k], MOST, TESS_F32, TESS_SUM,
		                     "earlier");
		if (!st)
			st = tess_all_gather(g, &my->one[k], my->all[k], 1, TESS_F32, "earlier");
		my->earlier += !st;
	}
	return st;
}

static tess_status check_earlier(const struct mismatch *m, const struct memory *my)
{
	for (int32_t k = 0; k < my->earlier; k++)
		for (int i = 0; i < MOST; i++) {
			float sum = 0;

			for (int32_t r = 0; r < m->n; r++)
				sum += term(k, r, i);
			if (my->sum[k][i] != sum || (i < m->n && my->all[k][i] != term(k, i, 0)))
				return tess_fail(TESS_EBUG,
				                 "earlier call %d: element %d has changed", k, i);
		}
	for (int i = 0; i < GUARD; i++)
		if (my->before[i] != 77 || my->after[i] != 77)
			return tess_fail(TESS_EBUG, "a byte beside the buffers has changed");
	return TESS_OK;
}

/* ---- calls ---------------------------------------------------------------------------------------- */

/* Block r of rank `me`, elements: alike on all ranks, but for all_to_all, where it is that of a pair. */
static uint64_t block(const struct mismatch *m, int32_t me, int32_t r)
{
	return m->count + (uint64_t)(m->kind == TESS_ALL_TO_ALL ? me + r : r) % 4;
}

static void give_lists(const struct mismatch *m, int32_t me, bool odd, struct tess_coll *c,
                       struct memory *my)
{
	bool to = m->kind == TESS_SCATTER || m->kind == TESS_REDUCE_SCATTER || m->what == PAIR;
	bool from = m->kind == TESS_GATHER || m->kind == TESS_ALL_GATHER || m->what == PAIR;

	for (int32_t r = 0; r < m->n; r++)
		my->give[r] = my->get[r] = block(m, me, r);
	if (odd)
		my->give[m->other]++;
	if (odd && m->what == LISTS)
		my->get[m->other]++;
	c->send_counts = to ? my->give : NULL;
	c->recv_counts = from ? my->get : NULL;
	c->count = block(m, me, me);
}

static bool is_message(const struct mismatch *m)
{
	return m->what == MESSAGE || m->what == MESSAGE_DTYPE;
}

/* What rank `me` calls first, and second where the order differs. */
static int32_t kind_of(const struct mismatch *m, int32_t me, bool odd)
{
	if (is_message(m))
		return (m->odd < m->other) == (me == m->odd) ? TESS_SEND : TESS_RECV;
	return odd && (m->what == KIND || m->what == ORDER || m->what == MISSING) ? m->odd_kind
	                                                                          : m->kind;
}

/* The i-th buffers; the call as all others make it, or as the odd one does. */
static struct tess_coll call(const struct mismatch *m, int32_t me, bool odd, int i,
                             struct memory *my)
{
	struct tess_coll c = { .size = sizeof c,
		               .kind = kind_of(m, me, odd),
		               .dtype = m->dtype,
		               .op = m->op,
		               .peer = m->root,
		               .count = m->count,
		               .src = my->src[i],
		               .dst = my->dst[i],
		               .where = me == m->odd ? odd_where : where };

	if (odd && (m->what == DTYPE || m->what == MESSAGE_DTYPE))
		c.dtype = m->odd_dtype;
	if (odd && m->what == OP)
		c.op = m->odd_op;
	if (odd && (m->what == COUNT || m->what == MESSAGE))
		c.count = m->odd_count;
	if (odd && m->what == ROOT)
		c.peer = m->odd;
	if (m->what == LISTS || m->what == PAIR)
		give_lists(m, me, odd, &c, my);
	if (is_message(m))
		c.peer = me == m->odd ? m->other : m->odd;
	return c;
}

/* twin: another group of the same ranks. */
static tess_status differ(struct tess_group *g, struct tess_group *twin, const struct mismatch *m,
                          struct memory *my)
{
	int32_t me = tess_group_rank(g);
	bool odd = me == m->odd;
	struct tess_coll one = call(m, me, odd, 0, my), two;
	tess_status st = TESS_OK;

	if (is_message(m) && !odd && me != m->other)
		return TESS_OK;
	if (m->what == GROUP) {
		st = tess_barrier(g, "together");
		one.deadline = tess_now() + DEADLINE_MS * (int64_t)TESS_MS;
		return st ? st : tess_group_run(odd ? twin : g, &one);
	}
	if (m->what != MISSING || !odd)
		st = tess_group_run(g, &one);
	if (st || m->what != ORDER)
		return st;
	two = call(m, me, !odd, 1, my);
	return tess_group_run(g, &two);
}

/* ---- the sentence --------------------------------------------------------------------------------- */

static bool names_rank(const char *sentence, int32_t rank)
{
	char text[24];
	size_t len = (size_t)snprintf(text, sizeof text, "rank %d", rank);

	for (const char *at = sentence; (at = strstr(at, text)); at += len)
		if (at[len] < '0' || at[len] > '9')
			return true;
	return false;
}

static bool names_another(const char *sentence, const struct mismatch *m)
{
	for (int32_t r = 0; r < m->n; r++)
		if (r != m->odd && names_rank(sentence, r))
			return true;
	return false;
}

static tess_status judge(const struct mismatch *m, tess_status st)
{
	const char *one = tess_kind_name(kind_of(m, m->odd, true));
	const char *two = tess_kind_name(kind_of(m, m->other, false));
	char s[1536];

	snprintf(s, sizeof s, "%s", tess_error());
	if (!st)
		return tess_fail(TESS_EBUG, "all calls were done");
	if (st != (m->what == GROUP ? TESS_ETIMEOUT : TESS_EMISMATCH))
		return tess_fail(TESS_EBUG, "%s: %s", tess_status_name(st), s);
	if (!names_rank(s, m->odd) || !names_another(s, m) ||
	    (m->what >= PAIR && m->what < GROUP && !names_rank(s, m->other)))
		return tess_fail(TESS_EBUG, "the ranks %d and %d are not named: %s", m->odd,
		                 m->other, s);
	if (!strstr(s, odd_where) || !strstr(s, where))
		return tess_fail(TESS_EBUG, "both modules are not named: %s", s);
	if (!strstr(s, one) || !strstr(s, two))
		return tess_fail(TESS_EBUG, "%s and %s are not named: %s", one, two, s);
	if (m->what == GROUP && !strstr(s, "group twin"))
		return tess_fail(TESS_EBUG, "the group is not named: %s", s);
	return tess_fail(TESS_EMISMATCH, "%s", s);
}

/* Whose own calls were done hears of it in one of the next. */
static tess_status hear(struct tess_group *g, bool odd)
{
	int64_t until = tess_now() + PATIENCE_MS * (int64_t)TESS_MS;
	struct timespec pause = tess_timespec(TESS_MS);
	tess_status st = TESS_OK;

	while (!st && tess_now() < until) {
		st = tess_barrier(g, odd ? odd_where : where);
		nanosleep(&pause, NULL);
	}
	return st;
}

tess_status mismatch_play(struct tess_world *w, const struct mismatch *m, void **kept)
{
	struct tess_group *g = tess_world_group(w), *twin = NULL; /* closed with the world */
	struct memory *my = calloc(1, sizeof *my);
	tess_status st = my ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory"), changed;

	if (st)
		return st;
	*kept = my;
	memset(my->before, 77, GUARD);
	memset(my->after, 77, GUARD);
	if (m->what == GROUP)
		st = tess_group_split(g, 0, 0, "twin", &twin);
	if (!st)
		st = make_earlier(g, m, my); /* who is slow may hear of it here already */
	if (!st)
		st = differ(g, twin, m, my);
	if (!st)
		st = hear(g, tess_group_rank(g) == m->odd);
	st = judge(m, st);
	changed = check_earlier(m, my);
	return changed ? changed : st;
}

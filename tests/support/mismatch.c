#include "mismatch.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "draw.h"
#include "tools/conform/data.h"

#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { KIND, DTYPE, OP, COUNT, ROOT, ORDER, MISSING, LISTS, PAIR, MESSAGE, MESSAGE_DTYPE, GROUP };
enum { GROUP_EACH = 40 }; /* one in so many cases: only a deadline ends it */
enum { COUNT_MAX = 3000, GUARD = 64, TEST_TIMEOUT_MS = 20000, DEADLINE_MS = 400 };
static const char odd_where[] = "layers.7.odd:out", usual_where[] = "layers.3.mlp.down:out";

const char *mismatch_describe(const struct mismatch *m)
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

	return names[m->difference];
}

static int32_t draw_other(uint64_t *state, int32_t this, int32_t from, int32_t below)
{
	int32_t x = from + (int32_t)draw_below(state, (uint64_t)(below - from - 1));

	return x < this ? x : x + 1;
}

static bool can_differ(const struct mismatch *m)
{
	switch (m->difference) {
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
	case GROUP: /* a call that no rank completes alone */
		return m->kind == TESS_ALL_REDUCE || m->kind == TESS_ALL_GATHER;
	default:
		return m->kind != TESS_BARRIER;
	}
}

void mismatch_make(uint64_t seed, int32_t n, struct mismatch *out)
{
	uint64_t s = seed;
	struct mismatch m = { .nranks = n };

	m.odd_rank = (int32_t)draw_below(&s, (uint64_t)n);
	m.other_rank = draw_other(&s, m.odd_rank, 0, n);
	m.difference = draw_below(&s, GROUP_EACH) ? (int32_t)draw_below(&s, GROUP) : GROUP;
	do
		m.kind = TESS_BARRIER + (int32_t)draw_below(&s, TESS_ALL_TO_ALL);
	while (!can_differ(&m));
	m.odd_kind = draw_other(&s, m.kind, TESS_BARRIER, TESS_ALL_TO_ALL + 1);
	if (m.difference == MISSING)
		m.odd_kind = TESS_BARRIER; /* kind of the next call */
	m.dtype = TESS_F32 + (int32_t)draw_below(&s, 8);
	m.odd_dtype = draw_other(&s, m.dtype, TESS_F32, TESS_U8 + 1);
	m.op = TESS_SUM + (int32_t)draw_below(&s, 4);
	m.odd_op = draw_other(&s, m.op, TESS_SUM, TESS_MAX + 1);
	m.root = m.other_rank;
	m.count = draw_below(&s, 4) ? 1 + draw_below(&s, COUNT_MAX) : draw_below(&s, 2);
	if (m.difference == GROUP)
		m.count++;
	do
		m.odd_count = draw_below(&s, COUNT_MAX);
	while (m.odd_count == m.count);
	m.nearlier = 1 + (int32_t)draw_below(&s, MISMATCH_EARLIER);
	*out = m;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* One rank's results of earlier calls, and the buffers of the mismatched calls. */
struct mismatch_buffers {
	struct conform_data *earlier[2 * MISMATCH_EARLIER];
	int32_t nearlier; /* earlier calls that are done */
	alignas(8) char src[2][8 * (COUNT_MAX + 4) * MISMATCH_RANKS];
	alignas(8) char before[GUARD], dst[2][8 * (COUNT_MAX + 4) * MISMATCH_RANKS], after[GUARD];
	uint64_t send_counts[MISMATCH_RANKS], recv_counts[MISMATCH_RANKS];
};

static tess_status make_earlier_calls(struct tess_group *g, const struct mismatch *m,
                                      struct mismatch_buffers *my)
{
	static const struct conform_case cases[] = {
		{ TESS_ALL_REDUCE, TESS_F32, TESS_SUM, .count = COUNT_MAX, .in_place = true },
		{ TESS_ALL_GATHER, TESS_F32, TESS_SUM, .count = 1 },
	};
	tess_status st = TESS_OK;

	for (int32_t k = 0; k < 2 * m->nearlier && !st; k++) {
		st = conform_data_make(&cases[k % 2], tess_group_rank(g), m->nranks,
		                       &my->earlier[k]);
		if (!st)
			st = tess_group_run(g, &my->earlier[k]->coll[0]);
		my->nearlier += !st;
	}
	return st;
}

static tess_status check_earlier_results(const struct mismatch_buffers *my)
{
	tess_status st = TESS_OK;

	for (int32_t k = 0; k < my->nearlier && !st; k++)
		st = conform_data_check(my->earlier[k]);
	if (st)
		return tess_fail_in(st, "an earlier call");
	for (int i = 0; i < GUARD; i++)
		if (my->before[i] != 77 || my->after[i] != 77)
			return tess_fail(TESS_EBUG, "a byte beside the buffers has changed");
	return TESS_OK;
}

void mismatch_free(struct mismatch_buffers *kept)
{
	for (int32_t k = 0; kept && k < 2 * MISMATCH_EARLIER; k++)
		conform_data_free(kept->earlier[k]);
	free(kept);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/*
 * Returns the elements in block r of rank `me`: equal on all ranks, except in all_to_all, where
 * each pair has its own.
 */
static uint64_t compute_list_count(const struct mismatch *m, int32_t me, int32_t r)
{
	return m->count + (uint64_t)(m->kind == TESS_ALL_TO_ALL ? me + r : r) % 4;
}

static void set_count_lists(const struct mismatch *m, int32_t me, bool odd, struct tess_coll *c,
                            struct mismatch_buffers *my)
{
	bool to =
		m->kind == TESS_SCATTER || m->kind == TESS_REDUCE_SCATTER || m->difference == PAIR;
	bool from = m->kind == TESS_GATHER || m->kind == TESS_ALL_GATHER || m->difference == PAIR;

	for (int32_t r = 0; r < m->nranks; r++)
		my->send_counts[r] = my->recv_counts[r] = compute_list_count(m, me, r);
	if (odd)
		my->send_counts[m->other_rank]++;
	if (odd && m->difference == LISTS)
		my->recv_counts[m->other_rank]++;
	c->send_counts = to ? my->send_counts : NULL;
	c->recv_counts = from ? my->recv_counts : NULL;
	c->count = compute_list_count(m, me, me);
}

static bool is_message(const struct mismatch *m)
{
	return m->difference == MESSAGE || m->difference == MESSAGE_DTYPE;
}

/* Returns the kind of the first call of rank `me`, or of the second where the order differs. */
static int32_t choose_kind(const struct mismatch *m, int32_t me, bool odd)
{
	if (is_message(m))
		return (m->odd_rank < m->other_rank) == (me == m->odd_rank) ? TESS_SEND : TESS_RECV;
	return odd && (m->difference == KIND || m->difference == ORDER || m->difference == MISSING)
	               ? m->odd_kind
	               : m->kind;
}

/* Describes a call with the i-th buffers, of the odd rank or of all others. */
static struct tess_coll describe_call(const struct mismatch *m, int32_t me, bool odd, int i,
                                      struct mismatch_buffers *my)
{
	struct tess_coll c = { .size = sizeof c,
		               .kind = choose_kind(m, me, odd),
		               .dtype = m->dtype,
		               .op = m->op,
		               .peer = m->root,
		               .count = m->count,
		               .src = my->src[i],
		               .dst = my->dst[i],
		               .where = me == m->odd_rank ? odd_where : usual_where };

	if (odd && (m->difference == DTYPE || m->difference == MESSAGE_DTYPE))
		c.dtype = m->odd_dtype;
	if (odd && m->difference == OP)
		c.op = m->odd_op;
	if (odd && (m->difference == COUNT || m->difference == MESSAGE))
		c.count = m->odd_count;
	if (odd && m->difference == ROOT)
		c.peer = m->odd_rank;
	if (m->difference == LISTS || m->difference == PAIR)
		set_count_lists(m, me, odd, &c, my);
	if (is_message(m))
		c.peer = me == m->odd_rank ? m->other_rank : m->odd_rank;
	return c;
}

/* Makes the calls that differ; twin: another group with these ranks. */
static tess_status make_differing_calls(struct tess_group *g, struct tess_group *twin,
                                        const struct mismatch *m, struct mismatch_buffers *my)
{
	int32_t me = tess_group_rank(g);
	bool odd = me == m->odd_rank;
	struct tess_coll one = describe_call(m, me, odd, 0, my), two;
	tess_status st = TESS_OK;

	if (is_message(m) && !odd && me != m->other_rank)
		return TESS_OK;
	if (m->difference == GROUP) {
		st = tess_barrier(g, "together");
		one.deadline = tess_now() + DEADLINE_MS * (int64_t)TESS_MS;
		return st ? st : tess_group_run(odd ? twin : g, &one);
	}
	if (m->difference != MISSING || !odd)
		st = tess_group_run(g, &one);
	if (st || m->difference != ORDER)
		return st;
	two = describe_call(m, me, !odd, 1, my);
	return tess_group_run(g, &two);
}

/* ---- the sentence ---------------------------------------------------------------------------- */

static bool mentions_rank(const char *sentence, int32_t rank)
{
	char text[24];
	size_t len = (size_t)snprintf(text, sizeof text, "rank %d", rank);

	for (const char *at = sentence; (at = strstr(at, text)); at += len)
		if (at[len] < '0' || at[len] > '9')
			return true;
	return false;
}

static bool mentions_other_rank(const char *sentence, const struct mismatch *m)
{
	for (int32_t r = 0; r < m->nranks; r++)
		if (r != m->odd_rank && mentions_rank(sentence, r))
			return true;
	return false;
}

static tess_status check_sentence(const struct mismatch *m, tess_status st)
{
	const char *one = tess_kind_name(choose_kind(m, m->odd_rank, true));
	const char *two = tess_kind_name(choose_kind(m, m->other_rank, false));
	char s[1536];

	snprintf(s, sizeof s, "%s", tess_error());
	if (!st)
		return tess_fail(TESS_EBUG, "all calls were done");
	if (st != (m->difference == GROUP ? TESS_ETIMEOUT : TESS_EMISMATCH))
		return tess_fail(TESS_EBUG, "%s: %s", tess_status_name(st), s);
	if (!mentions_rank(s, m->odd_rank) || !mentions_other_rank(s, m) ||
	    (m->difference >= PAIR && m->difference < GROUP && !mentions_rank(s, m->other_rank)))
		return tess_fail(TESS_EBUG, "the ranks %d and %d are not named: %s", m->odd_rank,
		                 m->other_rank, s);
	if (!strstr(s, odd_where) || !strstr(s, usual_where))
		return tess_fail(TESS_EBUG, "both modules are not named: %s", s);
	if (!strstr(s, one) || !strstr(s, two))
		return tess_fail(TESS_EBUG, "%s and %s are not named: %s", one, two, s);
	if (m->difference == GROUP && !strstr(s, "group twin"))
		return tess_fail(TESS_EBUG, "the group is not named: %s", s);
	return tess_fail(TESS_EMISMATCH, "%s", s);
}

/*
 * Repeats calls until one fails: a rank whose own calls were done gets the failure in a later one.
 */
static tess_status repeat_until_failure(struct tess_group *g, bool odd)
{
	int64_t until = tess_now() + TEST_TIMEOUT_MS * (int64_t)TESS_MS;
	struct timespec pause = tess_timespec(TESS_MS);
	tess_status st = TESS_OK;

	while (!st && tess_now() < until) {
		st = tess_barrier(g, odd ? odd_where : usual_where);
		nanosleep(&pause, NULL);
	}
	return st;
}

tess_status mismatch_run(struct tess_world *w, const struct mismatch *m,
                         struct mismatch_buffers **kept)
{
	struct tess_group *g = tess_world_group(w), *twin = NULL; /* closed with the world */
	struct mismatch_buffers *my = calloc(1, sizeof *my);
	tess_status st = my ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory"), changed;

	if (st)
		return st;
	*kept = my;
	memset(my->before, 77, GUARD);
	memset(my->after, 77, GUARD);
	if (m->difference == GROUP)
		st = tess_group_split(g, 0, 0, "twin", &twin);
	if (!st)
		st = make_earlier_calls(g, m, my); /* may fail here on a slow rank */
	if (!st)
		st = make_differing_calls(g, twin, m, my);
	if (!st)
		st = repeat_until_failure(g, tess_group_rank(g) == m->odd_rank);
	st = check_sentence(m, st);
	changed = check_earlier_results(my);
	return changed ? changed : st;
}

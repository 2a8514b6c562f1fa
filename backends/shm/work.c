/* work.c - collectives as rounds, one after another; what is under way; and how the group fails. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/stream.h>

#include "shm.h"

enum { LOOKS = 40, PEEKS = 20, CARD_NS = 500000000 };

/* ---- failing --------------------------------------------------------------------------------- */

/* The first failure of the group is kept: every later call answers with it. */
tess_status work_fail(struct group *g, tess_status why, const char *fmt, ...)
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

static void describe(const struct group *g, const struct card *c, char *text, size_t room)
{
	bool named = c->kind > 0 && c->kind <= TESS_RECV && c->dtype >= 0 && c->dtype <= TESS_U8 &&
	             c->op >= 0 && c->op <= TESS_BXOR && c->peer >= 0 && c->peer < g->nranks;
	char what[80] = "", root[32] = "";

	if (named && c->kind != TESS_BARRIER)
		snprintf(what, sizeof what, " of %llu %s%s%s%s", (unsigned long long)c->count,
		         tess_dtype_name(c->dtype), tess_kind_reduces(c->kind) ? " (" : "",
		         tess_kind_reduces(c->kind) ? tess_op_name(c->op) : "",
		         tess_kind_reduces(c->kind) ? ")" : "");
	if (named && (tess_kind_rooted(c->kind) || c->kind >= TESS_SEND))
		snprintf(root, sizeof root, "%s rank %d",
		         c->kind == TESS_SEND   ? " to"
		         : c->kind == TESS_RECV ? " from"
		                                : ", root",
		         (int)g->world[c->peer]);
	snprintf(text, room, "%s%s%s%s%.*s", named ? tess_kind_name(c->kind) : "nothing", what,
	         root, c->where[0] ? " at " : "", WHERE - 1, c->where);
}

void work_card(const struct tess_coll *c, struct card *out)
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

void work_introduce(struct group *g, const struct tess_coll *c)
{
	struct card *card = &seat_of(g, g->rank)->card[g->round & 1];

	work_card(c, card);
	/* Release: who sees the round sees the rest. */
	atomic_store_explicit(&card->round, g->round, memory_order_release);
}

/* It follows the notice at once, unless its rank is stopped in between: then it says nothing. */
static const struct card *card_of(const struct group *g, int32_t r)
{
	static const struct card nothing = { .kind = 0 };
	const struct card *card = &seat_of(g, r)->card[g->round & 1];
	int64_t until = bell_now() + CARD_NS;

	while (atomic_load_explicit(&card->round, memory_order_acquire) != g->round) {
		if (bell_now() > until)
			return &nothing;
		sched_yield();
	}
	return card;
}

tess_status work_differ(struct group *g, const struct work *w, int32_t r, const struct card *theirs)
{
	struct card own;
	char mine[256], other[256];

	work_card(&w->c, &own);
	describe(g, &own, mine, sizeof mine);
	describe(g, theirs, other, sizeof other);
	return work_fail(g, TESS_EMISMATCH, "rank %d is in %s, but rank %d in %s",
	                 (int)g->world[g->rank], mine, (int)g->world[r], other);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Which chunk this round is about; before the first one: `need` or more. */
static uint64_t chunk_of(const struct work *w)
{
	return w->round - w->skip;
}

/*
 * The first notice of a call says what it is, how much there is to move, and where it lies or that
 * it is here.
 */
static void introduce(struct group *g, struct work *w, struct notice *n)
{
	bool direct = !w->inlined && direct_offer(g, w, &n->at.src, &n->at.dst);

	work_introduce(g, &w->c);
	n->print = w->c.fingerprint;
	n->need = w->need;
	n->able = direct ? DIRECT : FILLED;
	if (direct && (!w->need || !kind_gives(g, w)))
		n->able |= FILLED;
	if (w->c.kind == TESS_ALL_TO_ALL && w->c.send_counts)
		kind_lies(g, w);
}

static void post_large(struct group *g, struct work *w)
{
	struct notice *n = notice_of(g, g->rank, g->round);

	bell_place(g);
	if (w->round == 0)
		introduce(g, w, n);
	if (chunk_of(w) < w->need && (w->round || n->able & FILLED))
		kind_fill(g, w, chunk_of(w));
	tess_stream_end();
	/*
	 * Release: who sees the round sees the notice, the slot, and what was written into its own
	 * memory.
	 */
	atomic_store_explicit(&n->round, g->round, memory_order_release);
	w->posted = true;
	g->unrung = true;
	g->seen = 0;
	g->moves++;
}

/* Of a small call, its one notice, and what it is in words. */
static void show(struct group *g, const struct tess_coll *c, struct work *w)
{
	bell_place(g);
	small_post(g, c, w->bytes);
	work_introduce(g, c);
	w->posted = true;
}

/* Whether all notices of this round are there; the first ones are compared. */
static tess_status look(struct group *g, struct work *w)
{
	for (; g->seen < g->nranks; g->seen++) {
		const struct notice *n = notice_of(g, g->seen, g->round);

		/*
		 * Acquire, for what the notice announces; bell.c has the fence for those who
		 * sleep.
		 */
		if (atomic_load_explicit(&n->round, memory_order_acquire) != g->round)
			return TESS_PENDING;
		g->moves++;
		if (w->round)
			continue;
		if (n->print != w->c.fingerprint)
			return work_differ(g, w, g->seen, card_of(g, g->seen));
		if (w->small)
			continue;
		w->able &= n->able;
		if (w->need < n->need)
			w->need = n->need;
	}
	return TESS_OK;
}

/* All have come: how it will go on. */
static tess_status choose(struct group *g, struct work *w)
{
	if (w->c.kind == TESS_ALL_TO_ALL && w->c.send_counts && kind_compare(g, w))
		return g->failed;
	kind_keep(g, w);
	if (w->need && w->able & DIRECT) {
		w->rounds = 2;
		w->skip = 2;
		return direct_move(g, w);
	}
	w->skip = w->need && !(w->able & FILLED);
	w->rounds = w->skip + w->need + w->shares;
	if (!w->rounds)
		w->rounds = 1;
	return TESS_OK;
}

static tess_status advance_large(struct group *g, struct work *w)
{
	tess_status st;

	do {
		if (!w->posted)
			post_large(g, w);
		st = look(g, w);
		if (!st && !w->round)
			st = choose(g, w);
		if (!st && w->need && w->round >= w->skip)
			kind_drain(g, w, chunk_of(w));
		if (st)
			return st;
		w->posted = false;
		w->round++;
		g->round++;
	} while (w->round < w->rounds);
	w->done = true;
	return TESS_OK;
}

static tess_status advance(struct group *g, struct work *w)
{
	tess_status st;

	if (!w->small)
		return advance_large(g, w);
	if (!w->posted)
		show(g, &w->c, w);
	st = look(g, w);
	if (st)
		return st;
	small_take(g, &w->c, w->bytes);
	g->round++;
	w->done = true;
	return TESS_OK;
}

static void push(struct queue *q, struct work *w)
{
	if (q->head)
		q->tail->next = w;
	else
		q->head = w;
	q->tail = w;
}

tess_status work_progress(struct group *g)
{
	while (g->calls.head) {
		tess_status st = advance(g, g->calls.head);

		if (st == TESS_PENDING)
			break;
		if (st)
			return st;
		g->calls.head = g->calls.head->next;
	}
	return g->messages ? message_progress(g) : TESS_OK;
}

/* ---- works ----------------------------------------------------------------------------------- */

static tess_status state(struct group *g, const struct work *w)
{
	if (w->done)
		return TESS_OK;
	if (!g->failed && !atomic_load_explicit(&g->aborted, memory_order_relaxed))
		return TESS_PENDING;
	return work_fail(g, TESS_EABORTED, "group %s over shm was given up", g->name);
}

static struct work *take(struct group *g)
{
	struct work *w = g->spare;

	if (w) {
		g->spare = w->next;
		return w;
	}
	w = malloc(sizeof *w);
	if (w) {
		w->all = g->works;
		g->works = w;
	}
	return w;
}

/* Of a call that is not small: what it needs, and its place in a queue. */
static void line_up(struct group *g, struct work *w)
{
	bool sends = w->c.kind == TESS_SEND;

	w->chunk = w->rounds = w->skip = w->moved = 0;
	w->able = DIRECT | FILLED;
	w->bytes = 0;
	w->need = 0;
	w->inlined = w->few = w->shares = false;
	if (sends || w->c.kind == TESS_RECV) {
		push(sends ? &g->out[w->c.peer] : &g->in[w->c.peer], w);
		g->messages++;
		return;
	}
	kind_plan(g, w);
	push(&g->calls, w);
}

/* Of a small call, all that it takes to put it up. NULL: *why. */
static struct work *prepare(struct group *g, const struct tess_coll *c, tess_status *why)
{
	struct work *w = g->failed ? NULL : take(g);

	if (!w) {
		*why = g->failed ? work_fail(g, g->failed, "group %s over shm has failed", g->name)
		                 : g->host->fail(TESS_ENOMEM, "shm: out of memory");
		return NULL;
	}
	w->next = NULL;
	w->round = 0;
	w->posted = w->done = false;
	w->width = c->kind == TESS_BARRIER ? 1 : tess_width(c->dtype);
	w->small = small_plan(g, c, &w->bytes);
	return w;
}

/* One round needs no more of this rank than its notice; of several the first are looked for. */
static tess_status go_on(struct group *g, const struct tess_coll *c, struct work *w)
{
	int32_t looks = 0;
	tess_status st;

	w->c = *c;
	if (w->small) {
		push(&g->calls, w);
	} else {
		line_up(g, w);
		looks = g->spin && w->bytes > g->small ? LOOKS : 0;
	}
	st = work_progress(g);
	for (int32_t i = 0; i < looks && !st && !w->done; i++) {
		bell_relax();
		st = work_progress(g);
	}
	bell_ring(g);
	return st;
}

/* A small call is put up before anything else, as the others wait for it. */
tess_status work_start(struct group *g, const struct tess_coll *c, bool up, struct work **out)
{
	tess_status st;
	struct work *w = prepare(g, c, &st);

	if (!w)
		return st;
	if (up)
		work_introduce(g, c);
	else if (w->small && !g->calls.head)
		show(g, c, w);
	w->posted |= up;
	st = go_on(g, c, w);
	if (!st)
		*out = w;
	return st;
}

tess_status work_test(struct group *g, struct work *w)
{
	if (!w->done && !g->failed)
		work_progress(g);
	bell_ring(g);
	return state(g, w);
}

static tess_status late(struct group *g, const struct work *w)
{
	bool pair = w->c.kind == TESS_SEND || w->c.kind == TESS_RECV;
	int32_t missed = pair ? w->c.peer : g->seen < g->nranks ? g->seen : g->rank;

	return g->host->fail(
		TESS_ETIMEOUT, "%s: group %s over shm waited until the deadline for rank %d",
		w->c.where ? w->c.where : "a collective", g->name, (int)g->world[missed]);
}

/* A short look at the one line that is waited for, for the little that it takes between two cores. */
static void peek(const struct group *g)
{
	const struct notice *n = notice_of(g, g->seen, g->round);

	for (int32_t i = 0; i < PEEKS; i++) {
		if (atomic_load_explicit(&n->round, memory_order_relaxed) == g->round)
			break;
		bell_relax();
	}
}

tess_status work_wait(struct group *g, struct work *w, int64_t deadline)
{
	struct pause p = { .turn = 0 };
	tess_status st;

	if (!w->done && w == g->calls.head && g->spin && !g->messages && g->seen < g->nranks)
		peek(g);
	while ((st = state(g, w)) == TESS_PENDING) {
		work_progress(g);
		if (!w->done && !g->failed && !bell_pause(g, &p, deadline))
			return late(g, w);
	}
	bell_ring(g);
	return st;
}

void work_release(struct group *g, struct work *w)
{
	if (!w->done)
		work_wait(g, w, w->c.deadline);
	if (w->done) {
		w->next = g->spare;
		g->spare = w;
	} else if (!g->failed) {
		/* It may still be under way, and nobody waits for it any more. */
		work_fail(g, TESS_ETIMEOUT,
		          "group %s over shm: a call was released that was not finished", g->name);
	}
}

void work_clear(struct group *g)
{
	for (struct work *w = g->works, *next; w; w = next) {
		next = w->all;
		free(w);
	}
}

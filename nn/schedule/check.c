/* check.c - checks a schedule, whoever has made it. */
#include "nn/schedule/schedule.h"

#include "core/base/sized.h"
#include "core/base/status.h"

#include <stdio.h>
#include <string.h>

enum { PLACE_LENGTH = 96, SHOWN_MAX = 4 };

struct places { /* where each action is */
	const struct tess_pipeline *p;
	int32_t *at[TESS_PIPELINE_KINDS]; /* by stage and micro-batch: its place, from 1; 0: none */
};

static int32_t *find_place(const struct places *t, int32_t kind, int32_t stage, int32_t micro)
{
	return &t->at[kind][(int64_t)stage * t->p->nmicro + micro];
}

static const char *get_name(const struct tess_pipeline *p)
{
	return p->name ? p->name : "the pipeline schedule";
}

/* Formats "row 2, cell 7 (1F3)" of action i of a rank. */
static const char *format_action_place(const struct tess_pipeline *p, int32_t rank, int32_t i,
                                       char out[PLACE_LENGTH])
{
	const struct tess_pipeline_action *a = &p->actions[rank][i];

	snprintf(out, PLACE_LENGTH, "row %d, cell %d (%d%s%d)", (int)rank + 1,
	         (int)(a->cell ? a->cell : i + 1), (int)a->stage, tess_schedule_name_kind(a->kind),
	         (int)a->micro);
	return out;
}

/* Fails at action i of a rank. */
static tess_status fail_action(const struct tess_pipeline *p, int32_t rank, int32_t i,
                               const char *rule)
{
	char place[PLACE_LENGTH];

	return tess_fail(TESS_EINVAL, "%s: %s %s", get_name(p),
	                 format_action_place(p, rank, i, place), rule);
}

/* Fails at action i of a rank, by another action of the rank. */
static tess_status fail_two_actions(const struct tess_pipeline *p, int32_t rank, int32_t i,
                                    const char *what, int32_t other, const char *rule)
{
	char place[PLACE_LENGTH], second[PLACE_LENGTH];

	return tess_fail(TESS_EINVAL, "%s: %s %s %s; %s", get_name(p),
	                 format_action_place(p, rank, i, place), what,
	                 format_action_place(p, rank, other, second), rule);
}

static tess_status fail_missing(const struct tess_pipeline *p, int32_t kind, int32_t stage,
                                int32_t micro, const char *rule)
{
	return tess_fail(TESS_EINVAL, "%s: row %d has no %d%s%d; %s", get_name(p),
	                 (int)p->rank_of[stage] + 1, (int)stage, tess_schedule_name_kind(kind),
	                 (int)micro, rule);
}

/* ---- computations ---------------------------------------------------------------------------- */

static tess_status check_counts(const struct tess_pipeline *p)
{
	tess_status st = tess_schedule_check_size(get_name(p), p->nranks, p->nstages, p->nmicro);

	if (st)
		return st;
	for (int32_t s = 0; s < p->nstages; s++)
		if (p->rank_of[s] < 0 || p->rank_of[s] >= p->nranks)
			return tess_fail(TESS_EINVAL,
			                 "%s: stage %d is in no row; stages are numbered from 0 to "
			                 "%d without a gap",
			                 get_name(p), (int)s, (int)p->nstages - 1);
	return TESS_OK;
}

static tess_status alloc_places(const struct tess_pipeline *p, struct tess_arena *arena,
                                struct places *t)
{
	t->p = p;
	for (int k = 0; k < TESS_PIPELINE_KINDS; k++) {
		t->at[k] = TESS_NEW(arena, int32_t, (int64_t)p->nstages * p->nmicro);
		if (!t->at[k])
			return TESS_ENOMEM;
	}
	return TESS_OK;
}

static tess_status note_action(const struct places *t, int32_t rank, int32_t i)
{
	const struct tess_pipeline *p = t->p;
	const struct tess_pipeline_action *a = &p->actions[rank][i];
	char place[PLACE_LENGTH];
	int32_t *at;

	if (a->kind < 0 || a->kind >= TESS_PIPELINE_KINDS || a->stage < 0 ||
	    a->stage >= p->nstages || a->micro < 0 || a->micro >= p->nmicro)
		return fail_action(p, rank, i, "is of no kind, stage or micro-batch that exists");
	at = find_place(t, a->kind, a->stage, a->micro);
	if (p->rank_of[a->stage] != rank)
		return tess_fail(TESS_EINVAL,
		                 "%s: %s: stage %d is in row %d; a stage is on one rank",
		                 get_name(p), format_action_place(p, rank, i, place), (int)a->stage,
		                 (int)p->rank_of[a->stage] + 1);
	if (*at)
		return fail_two_actions(p, rank, i, "is also", *at - 1, "an action happens once");
	*at = i + 1;
	return TESS_OK;
}

static tess_status note_actions(const struct tess_pipeline *p, struct tess_arena *arena,
                                struct places *t)
{
	tess_status st = alloc_places(p, arena, t);

	for (int32_t r = 0; r < p->nranks; r++)
		for (int32_t i = 0; i < p->nactions[r] && !st; i++)
			st = note_action(t, r, i);
	return st;
}

/* Checks that a stage computes a micro-batch once. */
static tess_status check_complete(const struct places *t, int32_t stage, int32_t micro)
{
	static const char rule[] = "each stage computes each micro-batch: F, and B or I and W";
	const struct tess_pipeline *p = t->p;
	int32_t whole = *find_place(t, TESS_PIPELINE_BACKWARD, stage, micro);
	int32_t inputs = *find_place(t, TESS_PIPELINE_BACKWARD_INPUTS, stage, micro);
	int32_t weights = *find_place(t, TESS_PIPELINE_BACKWARD_WEIGHTS, stage, micro);

	if (!*find_place(t, TESS_PIPELINE_FORWARD, stage, micro))
		return fail_missing(p, TESS_PIPELINE_FORWARD, stage, micro, rule);
	if (whole && (inputs || weights))
		return fail_two_actions(p, p->rank_of[stage], (inputs ? inputs : weights) - 1,
		                        "is a part of", whole - 1, "use B, or I and W");
	if (!whole && !inputs)
		return fail_missing(
			p, weights ? TESS_PIPELINE_BACKWARD_INPUTS : TESS_PIPELINE_BACKWARD, stage,
			micro, rule);
	if (!whole && !weights)
		return fail_missing(p, TESS_PIPELINE_BACKWARD_WEIGHTS, stage, micro, rule);
	return TESS_OK;
}

/* Returns the place of what gives gradients of inputs. */
static int32_t find_backward(const struct places *t, int32_t stage, int32_t micro)
{
	int32_t whole = *find_place(t, TESS_PIPELINE_BACKWARD, stage, micro);

	return whole ? whole : *find_place(t, TESS_PIPELINE_BACKWARD_INPUTS, stage, micro);
}

/* Returns the place, in the same row, of the forward or backward before a computation; 0: none. */
static int32_t find_needed(const struct places *t, const struct tess_pipeline_action *a)
{
	const struct tess_pipeline *p = t->p;
	int32_t rank = p->rank_of[a->stage], s = a->stage;

	if (a->kind == TESS_PIPELINE_FORWARD)
		return s && p->rank_of[s - 1] == rank
		               ? *find_place(t, TESS_PIPELINE_FORWARD, s - 1, a->micro)
		               : 0;
	return s + 1 < p->nstages && p->rank_of[s + 1] == rank ? find_backward(t, s + 1, a->micro)
	                                                       : 0;
}

/* Checks that action i of a rank comes after what it needs of its own rank. */
static tess_status check_order(const struct places *t, int32_t rank, int32_t i)
{
	const struct tess_pipeline_action *a = &t->p->actions[rank][i];
	int32_t own = 0, next;

	if (tess_schedule_is_message(a->kind))
		return TESS_OK;
	if (tess_schedule_gives_gradients(a->kind))
		own = *find_place(t, TESS_PIPELINE_FORWARD, a->stage, a->micro);
	if (a->kind == TESS_PIPELINE_BACKWARD_WEIGHTS)
		own = *find_place(t, TESS_PIPELINE_BACKWARD_INPUTS, a->stage, a->micro);
	next = a->kind == TESS_PIPELINE_BACKWARD_WEIGHTS ? 0 : find_needed(t, a);
	if (own > i + 1 || next > i + 1)
		return fail_two_actions(t->p, rank, i, "needs the later",
		                        (own > i + 1 ? own : next) - 1,
		                        "a row is in the order of time");
	return TESS_OK;
}

static tess_status check_order_of_rows(const struct places *t)
{
	const struct tess_pipeline *p = t->p;
	tess_status st = TESS_OK;

	for (int32_t s = 0; s < p->nstages; s++)
		for (int32_t i = 0; i < p->nmicro && !st; i++)
			st = check_complete(t, s, i);
	for (int32_t r = 0; r < p->nranks; r++)
		for (int32_t i = 0; i < p->nactions[r] && !st; i++)
			st = check_order(t, r, i);
	return st;
}

tess_status tess_schedule_check_computations(const struct tess_pipeline *p)
{
	struct tess_arena arena = { 0 };
	struct places t;
	tess_status st = check_counts(p);

	if (!st)
		st = note_actions(p, &arena, &t);
	if (!st)
		st = check_order_of_rows(&t);
	tess_arena_free(&arena);
	return st;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Checks that a message has another end, and is sent after and received before its computation. */
static tess_status check_ends(const struct places *t, int32_t rank, int32_t i)
{
	const struct tess_pipeline *p = t->p;
	const struct tess_pipeline_action *a = &p->actions[rank][i];
	bool forward =
		a->kind == TESS_PIPELINE_SEND_FORWARD || a->kind == TESS_PIPELINE_RECEIVE_FORWARD;
	int32_t at = forward ? *find_place(t, TESS_PIPELINE_FORWARD, a->stage, a->micro)
	                     : find_backward(t, a->stage, a->micro);

	if (tess_schedule_find_other_rank(p, a) < 0)
		return fail_action(p, rank, i,
		                   "goes to no other rank; leave it out: a rank keeps what its own "
		                   "next stage reads");
	if (tess_schedule_is_receive(a->kind) && at < i + 1)
		return fail_two_actions(p, rank, i, "is received after", at - 1,
		                        "receive it before");
	if (!tess_schedule_is_receive(a->kind) && at > i + 1)
		return fail_two_actions(p, rank, i, "is sent before", at - 1, "send it after");
	return TESS_OK;
}

/* Checks that what a computation gives to another rank is sent and received. */
static tess_status check_sent(const struct places *t, const struct tess_pipeline_action *a)
{
	static const char rule[] = "each value for another rank is sent and received once";
	const struct tess_pipeline *p = t->p;
	bool forward = a->kind == TESS_PIPELINE_FORWARD;
	int32_t send = forward ? TESS_PIPELINE_SEND_FORWARD : TESS_PIPELINE_SEND_BACKWARD;
	int32_t peer;

	if (tess_schedule_is_message(a->kind) || tess_schedule_find_other_rank(p, a) < 0)
		return TESS_OK;
	peer = tess_schedule_find_peer(p, a);
	if (!*find_place(t, send, a->stage, a->micro))
		return fail_missing(p, send, a->stage, a->micro, rule);
	if (!*find_place(t, send + 1, peer, a->micro))
		return fail_missing(p, send + 1, peer, a->micro, rule);
	return TESS_OK;
}

/* Returns whether a receive takes a message. */
static bool is_taken(const struct tess_pipeline *p, const struct tess_pipeline_action *send,
                     const struct tess_pipeline_action *receive)
{
	return receive->kind == send->kind + 1 && receive->micro == send->micro &&
	       receive->stage == tess_schedule_find_peer(p, send);
}

/* Checks that others take the messages of a rank in the order of its sends. */
static tess_status check_queues(const struct tess_pipeline *p, int32_t rank, int32_t *next)
{
	memset(next, 0, sizeof *next * (size_t)p->nranks);
	for (int32_t i = 0; i < p->nactions[rank]; i++) {
		const struct tess_pipeline_action *a = &p->actions[rank][i], *b;
		char place[PLACE_LENGTH], first[PLACE_LENGTH];
		int32_t to = tess_schedule_find_other_rank(p, a);

		if (!tess_schedule_is_message(a->kind) || tess_schedule_is_receive(a->kind))
			continue;
		for (b = &p->actions[to][next[to]]; !tess_schedule_is_receive(b->kind) ||
		                                    tess_schedule_find_other_rank(p, b) != rank;
		     b++)
			next[to]++;
		if (!is_taken(p, a, b))
			return tess_fail(
				TESS_EINVAL,
				"%s: %s is received before the message of %s; receive the messages "
				"of a rank in the order of their sends",
				get_name(p), format_action_place(p, to, next[to], place),
				format_action_place(p, rank, i, first));
		next[to]++;
	}
	return TESS_OK;
}

/* Reports the circle of ranks that wait for each other. */
static tess_status fail_circle(const struct tess_pipeline *p, const int32_t *done)
{
	char text[SHOWN_MAX * (PLACE_LENGTH + 16)] = "", place[PLACE_LENGTH];
	int32_t rank = 0, first;
	size_t len = 0;

	while (done[rank] == p->nactions[rank])
		rank++;
	for (int32_t i = 0; i < p->nranks; i++) /* enters the circle */
		rank = tess_schedule_find_other_rank(p, &p->actions[rank][done[rank]]);
	first = rank;
	for (int i = 0; i < SHOWN_MAX && (!i || rank != first); i++) {
		len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", i ? ", for " : "",
		                        format_action_place(p, rank, done[rank], place));
		rank = tess_schedule_find_other_rank(p, &p->actions[rank][done[rank]]);
	}
	return tess_fail(TESS_EINVAL,
	                 "%s: ranks wait for each other: %s, for %srow %d; move a send before a "
	                 "receive that waits for it",
	                 get_name(p), text, rank == first ? "" : "... ", (int)first + 1);
}

static tess_status check_waits(const struct tess_pipeline *p, struct tess_arena *arena)
{
	struct tess_timeline_span **spans = TESS_NEW(arena, struct tess_timeline_span *, p->nranks);
	int32_t *done = TESS_NEW(arena, int32_t, p->nranks);
	tess_status st =
		spans && done ? tess_schedule_run(p, NULL, arena, spans, done) : TESS_ENOMEM;

	for (int32_t r = 0; r < p->nranks && !st; r++)
		if (done[r] < p->nactions[r])
			st = fail_circle(p, done);
	return st;
}

static tess_status check_rows(const struct places *t, int32_t *next)
{
	const struct tess_pipeline *p = t->p;
	tess_status st = TESS_OK;

	for (int32_t r = 0; r < p->nranks; r++)
		for (int32_t i = 0; i < p->nactions[r] && !st; i++)
			st = tess_schedule_is_message(p->actions[r][i].kind)
			             ? check_ends(t, r, i)
			             : check_sent(t, &p->actions[r][i]);
	for (int32_t r = 0; r < p->nranks && !st; r++)
		st = check_queues(p, r, next);
	return st;
}

tess_status tess_schedule_check_messages(const struct tess_pipeline *p)
{
	struct tess_arena arena = { 0 };
	int32_t *next = TESS_NEW(&arena, int32_t, p->nranks);
	struct places t;
	tess_status st = next ? note_actions(p, &arena, &t) : TESS_ENOMEM;

	if (!st)
		st = check_rows(&t, next);
	if (!st)
		st = check_waits(p, &arena);
	tess_arena_free(&arena);
	return st;
}

/* ---- all ------------------------------------------------------------------------------------- */

tess_status tess_pipeline_check(const struct tess_pipeline *p)
{
	tess_status st = TESS_REQUIRE(p);

	if (!st)
		st = TESS_REQUIRE(p->rank_of, p->nactions, p->actions);
	if (!st)
		st = tess_schedule_check_computations(p);
	return st ? st : tess_schedule_check_messages(p);
}

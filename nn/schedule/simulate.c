/*
 * simulate.c - runs a schedule on a clock: when each action begins and ends, and what ranks keep.
 *
 * Each rank runs its row in order. A send takes no time of its rank; a receive waits for the
 * message. What a row keeps, and whether all rows end, depends on no duration.
 */
#include "nn/schedule/schedule.h"

#include "core/base/sized.h"
#include "core/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct clocks {
	const struct tess_pipeline *p;
	struct tess_pipeline_times times;
	struct tess_timeline_span **span;
	int32_t *done; /* by rank */
	double *now; /* by rank */
	double *arrival; /* by receiving stage and micro-batch: values, then gradients; < 0: none */
};

struct simulated_timeline {
	struct tess_timeline timeline; /* first: what the caller has */
	struct tess_arena arena;
};

/* ---- the clock ------------------------------------------------------------------------------- */

/* Returns the duration of an action, or 0. */
static double get_duration(const struct tess_pipeline_times *t, int32_t kind, int32_t stage)
{
	return t->stages[kind] ? t->stages[kind][stage] : t->kinds[kind];
}

static void set_times(const struct tess_pipeline_times *given, struct tess_pipeline_times *out)
{
	bool all_zero = true;

	*out = given ? *given : (struct tess_pipeline_times){ 0 };
	for (int k = 0; k < TESS_PIPELINE_KINDS; k++)
		all_zero = all_zero && out->kinds[k] == 0 && !out->stages[k];
	if (all_zero) {
		out->kinds[TESS_PIPELINE_FORWARD] = 1;
		out->kinds[TESS_PIPELINE_BACKWARD_INPUTS] = 1;
		out->kinds[TESS_PIPELINE_BACKWARD_WEIGHTS] = 1;
	}
}

static double measure_action(const struct tess_pipeline_times *t,
                             const struct tess_pipeline_action *a)
{
	double duration = get_duration(t, a->kind, a->stage);

	return a->kind != TESS_PIPELINE_BACKWARD || duration > 0
	               ? duration
	               : get_duration(t, TESS_PIPELINE_BACKWARD_INPUTS, a->stage) +
	                         get_duration(t, TESS_PIPELINE_BACKWARD_WEIGHTS, a->stage);
}

/* Returns where the arrival of a message is noted. */
static double *find_message_arrival(const struct clocks *c, const struct tess_pipeline_action *a)
{
	bool receives = tess_schedule_is_receive(a->kind);
	bool forward =
		a->kind == TESS_PIPELINE_SEND_FORWARD || a->kind == TESS_PIPELINE_RECEIVE_FORWARD;
	int64_t stage = receives ? a->stage : tess_schedule_find_peer(c->p, a);

	return &c->arrival[((forward ? 0 : c->p->nstages) + stage) * c->p->nmicro + a->micro];
}

/* Runs the next action of a rank. Returns false if it waits for a message, or there is none. */
static bool run_action(struct clocks *c, int32_t rank)
{
	const struct tess_pipeline_action *a = &c->p->actions[rank][c->done[rank]];
	double start = c->now[rank], end = start;

	if (c->done[rank] == c->p->nactions[rank])
		return false;
	if (tess_schedule_is_receive(a->kind)) {
		double arrival = *find_message_arrival(c, a);

		if (arrival < 0)
			return false;
		end = arrival > start ? arrival : start;
	} else if (tess_schedule_is_message(a->kind)) {
		*find_message_arrival(c, a) = start + measure_action(&c->times, a);
	} else {
		end = start + measure_action(&c->times, a);
	}
	c->span[rank][c->done[rank]++] = (struct tess_timeline_span){ start, end, 0, 0 };
	c->now[rank] = end;
	return true;
}

static tess_status alloc_clocks(struct clocks *c, struct tess_arena *arena)
{
	const struct tess_pipeline *p = c->p;
	int64_t n = (int64_t)2 * p->nstages * p->nmicro;

	c->now = TESS_NEW(arena, double, p->nranks);
	c->arrival = TESS_NEW(arena, double, n);
	for (int32_t r = 0; r < p->nranks; r++) {
		c->span[r] = TESS_NEW(arena, struct tess_timeline_span, p->nactions[r] + 1);
		if (!c->span[r])
			return TESS_ENOMEM;
	}
	for (int64_t i = 0; i < n && c->arrival; i++)
		c->arrival[i] = -1;
	return c->now && c->arrival ? TESS_OK : TESS_ENOMEM;
}

tess_status tess_schedule_run(const struct tess_pipeline *p,
                              const struct tess_pipeline_times *times, struct tess_arena *arena,
                              struct tess_timeline_span **spans, int32_t *done)
{
	struct clocks c = { .p = p, .span = spans, .done = done };
	tess_status st = alloc_clocks(&c, arena);
	bool more = !st;

	set_times(times, &c.times);
	while (more) {
		more = false;
		for (int32_t r = 0; r < p->nranks; r++)
			while (run_action(&c, r))
				more = true;
	}
	return st;
}

/* ---- what follows ---------------------------------------------------------------------------- */

/* Counts what a rank keeps: from the first action of a micro-batch on a stage to the last one. */
static void count_live(const struct tess_pipeline *p, int32_t rank, struct tess_timeline_span *span,
                       int32_t *live, int32_t *left, int32_t *stage_now, int32_t *stage_live)
{
	int32_t now = 0, n = p->nactions[rank];

	for (int32_t i = 0; i < n; i++)
		left[p->actions[rank][i].stage * p->nmicro + p->actions[rank][i].micro]--;
	for (int32_t i = 0; i < n; i++) {
		const struct tess_pipeline_action *a = &p->actions[rank][i];
		int32_t *of = &left[a->stage * p->nmicro + a->micro], *s = &stage_now[a->stage];

		if (*of < 0) { /* the first one */
			*of = -*of;
			now++;
			++*s;
		}
		*live = now > *live ? now : *live;
		stage_live[a->stage] = *s > stage_live[a->stage] ? *s : stage_live[a->stage];
		span[i].kept = now;
		if (!--*of) {
			now--;
			--*s;
		}
		span[i].left = now;
	}
}

/* Returns whether each stage gets its gradients of weights in the order of micro-batches. */
static bool is_summed_in_order(const struct tess_pipeline *p, int32_t *next)
{
	memset(next, 0, sizeof *next * (size_t)p->nstages);
	for (int32_t r = 0; r < p->nranks; r++)
		for (int32_t i = 0; i < p->nactions[r]; i++) {
			const struct tess_pipeline_action *a = &p->actions[r][i];

			if ((a->kind == TESS_PIPELINE_BACKWARD ||
			     a->kind == TESS_PIPELINE_BACKWARD_WEIGHTS) &&
			    next[a->stage]++ != a->micro)
				return false;
		}
	return true;
}

/* Adds the computations of a rank to the times of a step. */
static void measure_row(struct tess_timeline *t, int32_t rank, double *work)
{
	const struct tess_pipeline *p = t->pipeline;
	double first = -1, last = 0;

	for (int32_t i = 0; i < p->nactions[rank]; i++) {
		const struct tess_timeline_span *s = &t->spans[rank][i];

		if (tess_schedule_is_message(p->actions[rank][i].kind))
			continue;
		first = first < 0 ? s->start : first;
		last = s->end;
		*work += s->end - s->start;
	}
	t->length = last > t->length ? last : t->length;
	t->longest = last - first > t->longest ? last - first : t->longest;
	t->ideal = *work > t->ideal ? *work : t->ideal;
}

static tess_status fill_timeline(struct tess_timeline *t, const struct tess_pipeline_times *times,
                                 struct tess_arena *arena)
{
	const struct tess_pipeline *p = t->pipeline;
	struct tess_timeline_span **spans = TESS_NEW(arena, struct tess_timeline_span *, p->nranks);
	int32_t *live = TESS_NEW(arena, int32_t, p->nranks);
	int32_t *stage_live = TESS_NEW(arena, int32_t, p->nstages);
	int32_t *done = TESS_NEW(arena, int32_t, p->nranks);
	int32_t *now = TESS_NEW(arena, int32_t, p->nstages);
	int32_t *left = TESS_NEW(arena, int32_t, (int64_t)p->nstages * p->nmicro);
	double *work = TESS_NEW(arena, double, p->nranks);
	tess_status st = spans && live && stage_live && done && now && left && work
	                         ? tess_schedule_run(p, times, arena, spans, done)
	                         : TESS_ENOMEM;

	if (st)
		return st;
	t->spans = (const struct tess_timeline_span *const *)spans;
	t->work = work;
	t->live = live;
	t->stage_live = stage_live;
	for (int32_t r = 0; r < p->nranks; r++) {
		count_live(p, r, spans[r], &live[r], left, now, stage_live);
		measure_row(t, r, &work[r]);
	}
	t->ordered = is_summed_in_order(p, now);
	return tess_schedule_count_slots(p, arena, stage_live);
}

static tess_status check_duration(double duration, int32_t kind, int32_t stage)
{
	char of[32] = "";

	if (duration >= 0 && duration < 1e30)
		return TESS_OK;
	if (stage >= 0)
		snprintf(of, sizeof of, " of stage %d", (int)stage);
	return tess_fail(TESS_EINVAL, "duration %g of %s%s; use 0 or more", duration,
	                 tess_schedule_name_kind(kind), of);
}

static tess_status check_times(const struct tess_pipeline *p,
                               const struct tess_pipeline_times *times)
{
	tess_status st = TESS_OK;

	for (int k = 0; times && k < TESS_PIPELINE_KINDS && !st; k++) {
		st = check_duration(times->kinds[k], k, -1);
		for (int32_t s = 0; times->stages[k] && s < p->nstages && !st; s++)
			st = check_duration(times->stages[k][s], k, s);
	}
	return st;
}

tess_status tess_pipeline_simulate(const struct tess_pipeline *p,
                                   const struct tess_pipeline_times *times,
                                   struct tess_timeline **out)
{
	tess_status st = TESS_REQUIRE(p, out);
	struct simulated_timeline *t;

	if (!st)
		st = tess_pipeline_check(p);
	if (!st)
		st = check_times(p, times);
	if (st)
		return st;
	t = calloc(1, sizeof *t);
	if (!t)
		return tess_fail(TESS_ENOMEM, "out of memory for a timeline");
	t->timeline.pipeline = p;
	st = fill_timeline(&t->timeline, times, &t->arena);
	if (st)
		tess_timeline_free(&t->timeline);
	else
		*out = &t->timeline;
	return st;
}

void tess_timeline_free(struct tess_timeline *t)
{
	struct simulated_timeline *s = (struct simulated_timeline *)t;
	struct tess_arena arena;

	if (!t)
		return;
	arena = s->arena;
	tess_arena_free(&arena);
	free(s);
}

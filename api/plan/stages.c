/* stages.c - estimates the stages of pipelines, and simulates their schedules. */
#include "api/plan/stages.h"

#include "core/base/status.h"
#include "nn/schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

/* Micro-batches of each rank from which on a schedule repeats itself. */
enum { REPEATS = 2 };

struct staged_key {
	int32_t tp, ep, plan, recompute, apart, offload;
	int64_t local;
};
struct staged_entry {
	struct staged_key key;
	struct staged value;
};
struct simulated_key {
	struct staged_key stages;
	int32_t schedule, pp, micro;
};
struct simulated_entry {
	struct simulated_key key;
	struct simulated value;
};
struct stager {
	struct tess_planner *planner;
	struct tess_arena arena; /* all lists */
	struct staged_entry *staged;
	size_t nstaged;
	struct stage_schedule *schedule;
	size_t nschedules;
	struct simulated_entry *simulated;
	size_t nsimulated;
};

tess_status tess_stager_open(struct tess_planner *p, struct stager **out)
{
	*out = calloc(1, sizeof **out);
	if (!*out)
		return tess_fail(TESS_ENOMEM, "out of memory for a search");
	(*out)->planner = p;
	return TESS_OK;
}

void tess_stager_close(struct stager *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->nschedules; i++) {
		tess_timeline_free(s->schedule[i].timeline);
		tess_pipeline_close(s->schedule[i].pipeline);
	}
	tess_arena_free(&s->arena);
	free(s);
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* Sets out to a * x + b * y, member by member. */
static void combine_stages(double a, const struct tess_stage_sample *x, double b,
                           const struct tess_stage_sample *y, struct tess_stage_sample *out)
{
	tess_sample_combine(a, x, b, y, out, sizeof *out / sizeof(double));
	out->sent = x->sent;
}

/* Measures two stages, of which the second begins at layer `begin`; 0: where the program is cut. */
static tess_status measure_stages(struct stager *s, const struct staged_key *key,
                                  const struct tess_planned_model *model, int64_t begin,
                                  struct tess_stage_sample out[2])
{
	struct tess_planner *p = s->planner;
	const struct candidate k = { .dp = 1,
		                     .tp = key->tp,
		                     .offload = key->offload,
		                     .ep = key->ep,
		                     .pp = 2,
		                     .plan = key->plan,
		                     .micro = 2,
		                     .recompute = key->recompute,
		                     .schedule = key->apart ? SCHEDULE_APART : 0 };
	const struct tess_strategy *made = tess_candidate_make_strategy(p, &k);
	struct tess_strategy strategy;
	const char *overrides[2] = { NULL };

	if (!made)
		return TESS_ENOMEM;
	strategy = *made;
	if (begin) {
		overrides[0] = tess_arena_format(&p->arena, "pp:%.*s%d=stage",
		                                 (int)strlen(p->path) - 1, p->path, (int)begin);
		if (!overrides[0])
			return TESS_ENOMEM;
		strategy.overrides = overrides;
	}
	return tess_planner_sample_stages(p, model, &strategy, 2 * key->local, out);
}

/* Layers share the arena, which is that of two stages with enough of them. */
static void keep_arenas(const struct tess_stage_sample stage[2], struct staged *out)
{
	out->layer.arena = 0;
	for (int i = 0; i < 2; i++)
		out->end[i].arena = stage[i].arena;
}

/* Measures a layer and the ends: from one and two periods of alike layers in each stage. */
static tess_status measure_staged(struct stager *s, const struct staged_key *key,
                                  struct staged *out)
{
	struct tess_planner *p = s->planner;
	struct tess_stage_sample at[2][2];
	double period = (double)p->period;
	int64_t first = p->shallow[0].layers;
	tess_status st;

	if (!p->shallow[2].layers) { /* too few: a layer is what the first stage has of each */
		double half = (double)p->layers / 2;

		st = measure_stages(s, key, &p->model, 0, at[0]);
		combine_stages(1 / half, &at[0][0], 0, &at[0][0], &out->layer);
		combine_stages(0, &at[0][0], 0, &at[0][0], &out->end[0]);
		combine_stages(1, &at[0][1], -half, &out->layer, &out->end[1]);
		keep_arenas(at[0], out);
		return st;
	}
	st = measure_stages(s, key, &p->shallow[1].model, first, at[0]);
	if (!st)
		st = measure_stages(s, key, &p->shallow[2].model, first + p->period, at[1]);
	if (st)
		return st;
	combine_stages(-1 / period, &at[0][0], 1 / period, &at[1][0], &out->layer);
	combine_stages(1, &at[0][0], -(double)first, &out->layer, &out->end[0]);
	combine_stages(1, &at[0][1], -period, &out->layer, &out->end[1]);
	keep_arenas(at[1], out);
	return TESS_OK;
}

/* Finds an entry, or lowers its programs. */
static tess_status find_staged(struct stager *s, struct staged_key key, struct staged *out)
{
	struct staged_entry *more;
	tess_status st;

	for (size_t i = s->nstaged; i--;)
		if (!memcmp(&s->staged[i].key, &key, sizeof key)) {
			*out = s->staged[i].value;
			return TESS_OK;
		}
	more = tess_arena_grow(&s->arena, s->staged, s->nstaged, sizeof *more);
	if (!more)
		return tess_fail(TESS_ENOMEM, "out of memory for a search");
	s->staged = more;
	memset(out, 0, sizeof *out);
	st = measure_staged(s, &key, out);
	out->refused = st == TESS_EINVAL;
	if (st && !out->refused)
		return st;
	s->staged[s->nstaged++] = (struct staged_entry){ key, *out };
	return TESS_OK;
}

static struct staged_key make_staged_key(const struct candidate *k, int64_t local)
{
	struct staged_key key;

	memset(&key, 0, sizeof key);
	key.tp = k->tp;
	key.ep = k->ep;
	key.plan = k->plan;
	key.recompute = k->recompute;
	key.offload = k->offload;
	key.apart = k->schedule >= SCHEDULE_APART;
	key.local = local;
	return key;
}

tess_status tess_stager_compose(struct stager *s, const struct candidate *k, struct staged *out)
{
	double share = (double)(k->local - LOCAL_FEW) / (LOCAL_MORE - LOCAL_FEW);
	struct staged few, more;
	tess_status st = find_staged(s, make_staged_key(k, LOCAL_FEW), &few);

	if (st || few.refused || k->local == LOCAL_FEW) {
		*out = few;
		return st;
	}
	st = find_staged(s, make_staged_key(k, LOCAL_MORE), &more);
	out->refused = more.refused;
	combine_stages(1 - share, &few.layer, share, &more.layer, &out->layer);
	for (int i = 0; i < 2; i++)
		combine_stages(1 - share, &few.end[i], share, &more.end[i], &out->end[i]);
	out->layer.sent = few.layer.sent * (double)k->local / LOCAL_FEW;
	return st;
}

/* ---- schedules ------------------------------------------------------------------------------- */

/*
 * Cuts layers for stages as the program is cut: the least that the largest stage may have in
 * products, the last stage filled first. head: what the last stage has besides, in layers.
 */
static void share_out_layers(const struct tess_planner *p, double head, int32_t n, double *layers)
{
	int64_t left = p->layers, each = 1;
	double most = (double)left + head;

	for (int64_t last = 1; last <= left - n + 1; last++) {
		int64_t other = (left - last + n - 2) / (n - 1);
		double more =
			(double)last + head > (double)other ? (double)last + head : (double)other;

		most = more < most ? more : most;
	}
	for (int32_t s = n - 1; s >= 0; s--) {
		int64_t all = left - s; /* a layer is left for each stage before */

		each = (int64_t)(s == n - 1 ? most - head : most);
		each = each < 1 ? 1 : each > all ? all : each;
		layers[s] = (double)each;
		left -= each;
	}
}

/* Returns the micro-batches of a schedule that is simulated instead of a longer one. */
static int32_t count_simulated(const struct candidate *k)
{
	return k->micro < REPEATS * k->pp ? (int32_t)k->micro : REPEATS * k->pp;
}

static tess_status open_stage_schedule(struct stager *s, const struct candidate *k,
                                       const struct staged *staged, struct stage_schedule *out)
{
	int32_t per_rank;
	const char *name = tess_candidate_get_schedule(k->schedule, &per_rank);
	tess_status st = tess_pipeline_open(name, k->pp, count_simulated(k), &out->pipeline);

	if (!st)
		st = tess_pipeline_simulate(out->pipeline, NULL, &out->timeline);
	if (st)
		return st;
	out->schedule = k->schedule;
	out->pp = k->pp;
	out->layers = TESS_NEW(&s->arena, double, out->pipeline->nstages);
	if (!out->layers)
		return TESS_ENOMEM;
	share_out_layers(s->planner,
	                 staged->end[1].holds[TESS_HOLDS_WEIGHTS] /
	                         staged->layer.holds[TESS_HOLDS_WEIGHTS],
	                 out->pipeline->nstages, out->layers);
	return TESS_OK;
}

tess_status tess_stager_find_schedule(struct stager *s, const struct candidate *k,
                                      const struct staged *staged,
                                      const struct stage_schedule **out)
{
	struct stage_schedule *more;
	tess_status st;

	for (size_t i = s->nschedules; i--;)
		if (s->schedule[i].schedule == k->schedule && s->schedule[i].pp == k->pp &&
		    s->schedule[i].pipeline->nmicro == count_simulated(k)) {
			*out = &s->schedule[i];
			return TESS_OK;
		}
	more = tess_arena_grow(&s->arena, s->schedule, s->nschedules, sizeof *more);
	if (!more)
		return tess_fail(TESS_ENOMEM, "out of memory for a search");
	s->schedule = more;
	memset(&more[s->nschedules], 0, sizeof *more);
	st = open_stage_schedule(s, k, staged, &more[s->nschedules++]);
	*out = &more[s->nschedules - 1];
	return st;
}

double tess_staged_sum_seconds(const struct staged *staged, const struct stage_schedule *of,
                               int32_t kind, int32_t stage)
{
	double sum = of->layers[stage] * staged->layer.seconds[kind];

	if (!stage)
		sum += staged->end[0].seconds[kind];
	if (stage == of->pipeline->nstages - 1)
		sum += staged->end[1].seconds[kind];
	return sum > 0 ? sum : 0;
}

/* Returns the seconds that the busiest rank computes for a micro-batch. */
static double find_most_work(const struct stage_schedule *of,
                             double *const seconds[TESS_STAGE_KINDS])
{
	double most = 0;

	for (int32_t r = 0; r < of->pp; r++) {
		double sum = 0;

		for (int32_t s = 0; s < of->pipeline->nstages; s++)
			if (of->pipeline->rank_of[s] == r)
				sum += seconds[TESS_PIPELINE_FORWARD][s] +
				       seconds[TESS_PIPELINE_BACKWARD][s];
		most = sum > most ? sum : most;
	}
	return most;
}

/* Runs the schedule, and adds the micro-batches that it lacks. */
static tess_status run_stage_schedule(const struct stager *s, const struct candidate *k,
                                      const struct staged *staged, const struct stage_schedule *of,
                                      struct simulated *out)
{
	const struct tess_machine *m = s->planner->machine;
	int32_t n = of->pipeline->nstages;
	struct tess_arena arena = { 0 };
	struct tess_pipeline_times times = { 0 };
	struct tess_timeline_span **spans = TESS_NEW(&arena, struct tess_timeline_span *, of->pp);
	int32_t *done = TESS_NEW(&arena, int32_t, of->pp);
	double *all = TESS_NEW(&arena, double, TESS_STAGE_KINDS *n), *by[TESS_STAGE_KINDS];
	tess_status st = spans && done && all ? TESS_OK : TESS_ENOMEM;

	for (int32_t kind = 0; kind < TESS_STAGE_KINDS && !st; kind++) {
		times.stages[kind] = by[kind] = all + kind * n;
		for (int32_t i = 0; i < n; i++)
			by[kind][i] = tess_staged_sum_seconds(staged, of, kind, i);
	}
	for (int32_t i = 0; i < n && !st; i++)
		by[TESS_PIPELINE_BACKWARD][i] = by[TESS_PIPELINE_BACKWARD_INPUTS][i] +
		                                by[TESS_PIPELINE_BACKWARD_WEIGHTS][i];
	times.kinds[TESS_PIPELINE_SEND_FORWARD] = times.kinds[TESS_PIPELINE_SEND_BACKWARD] =
		tess_machine_communicate(m, "send", 2, k->dp * tess_candidate_count_cuts(k),
	                                 staged->layer.sent) *
		m->time[TESS_TERM_PIPELINE];
	if (!st)
		st = tess_schedule_run(of->pipeline, &times, &arena, spans, done);
	*out = (struct simulated){ .work = st ? 0 : find_most_work(of, by) };
	for (int32_t r = 0; r < of->pp && !st; r++) {
		double end = done[r] ? spans[r][done[r] - 1].end : 0;

		out->seconds = end > out->seconds ? end : out->seconds;
	}
	out->seconds += (double)(k->micro - of->pipeline->nmicro) * out->work;
	tess_arena_free(&arena);
	return st ? tess_fail(st, "out of memory for a search") : TESS_OK;
}

tess_status tess_stager_simulate(struct stager *s, const struct candidate *k,
                                 const struct staged *staged, const struct stage_schedule *of,
                                 struct simulated *out)
{
	struct simulated_entry *more;
	struct simulated_key key;
	tess_status st;

	memset(&key, 0, sizeof key);
	key.stages = make_staged_key(k, k->local);
	key.schedule = k->schedule;
	key.pp = k->pp;
	key.micro = (int32_t)k->micro;
	for (size_t i = s->nsimulated; i--;)
		if (!memcmp(&s->simulated[i].key, &key, sizeof key)) {
			*out = s->simulated[i].value;
			return TESS_OK;
		}
	st = run_stage_schedule(s, k, staged, of, out);
	if (st)
		return st;
	more = tess_arena_grow(&s->arena, s->simulated, s->nsimulated, sizeof *more);
	if (!more)
		return tess_fail(TESS_ENOMEM, "out of memory for a search");
	s->simulated = more;
	more[s->nsimulated++] = (struct simulated_entry){ key, *out };
	return TESS_OK;
}

/*
 * search.c - searches strategies: estimates all of them from few lowered layers, then predicts the
 * best from their whole programs.
 */
#include "api/plan/compose.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>

/* Estimates that are kept; of these, how many more than asked for are predicted. */
enum { KEPT_MAX = 256, PREDICTED_MORE = 3 };
/* Ranks along dp from which on large buckets are tried. */
enum { MANY_REPLICAS = 8 };
/* Numbers of ranks along tp for which styles of modules are searched. */
enum { STYLED_MAX = 3 };
/* Estimates of memory may be this much too high. */
#define MEMORY_MARGIN 1.1

struct search {
	struct tess_planner *planner;
	struct composer *composer;
	int32_t nranks;
	struct candidate kept[KEPT_MAX]; /* best first */
	int32_t nkept;
	struct candidate least; /* the one with the least memory */
	int64_t nestimated;
	int32_t found; /* the first of the planner's found plans that is added */
};

/* ---- estimates ------------------------------------------------------------------------------- */

/* Inserts a candidate in the order of seconds. */
static void keep_candidate(struct search *s, const struct candidate *k)
{
	int32_t at = s->nkept < KEPT_MAX ? s->nkept++ : KEPT_MAX;

	if (at == KEPT_MAX && s->kept[--at].seconds <= k->seconds)
		return;
	for (; at && s->kept[at - 1].seconds > k->seconds; at--)
		s->kept[at] = s->kept[at - 1];
	s->kept[at] = *k;
}

/* Estimates generation; stages compute in turn, and share the memory. */
static tess_status estimate_generation(struct search *s, struct candidate *k)
{
	struct candidate plain = *k;
	const struct tess_strategy *strategy;
	tess_status st;

	plain.pp = 1;
	strategy = tess_candidate_make_strategy(s->planner, &plain);
	st = strategy ? tess_planner_extrapolate(s->planner, strategy, &k->seconds, &k->memory)
	              : TESS_ENOMEM;
	k->memory /= k->pp;
	return st;
}

static tess_status add_candidate(struct search *s, struct candidate k)
{
	tess_status st = s->planner->options.train ? tess_composer_estimate(s->composer, &k)
	                                           : estimate_generation(s, &k);

	if (st)
		return st == TESS_EINVAL ? TESS_OK : st;
	if (!s->nestimated++ || k.memory < s->least.memory)
		s->least = k;
	if (k.memory <= s->planner->memory * MEMORY_MARGIN)
		keep_candidate(s, &k);
	return TESS_OK;
}

/* Adds the schedules of a candidate with stages. */
static tess_status add_schedules(struct search *s, struct candidate k)
{
	tess_status st = TESS_OK;
	int32_t per_rank;

	for (k.schedule = 0; k.schedule < (k.pp > 1 ? SCHEDULES : 1) && !st; k.schedule++) {
		tess_candidate_get_schedule(k.schedule, &per_rank);
		/* gradients of weights that come later keep what was recomputed */
		if (k.recompute && k.schedule > 1)
			continue;
		if (k.pp * per_rank > s->planner->layers ||
		    (per_rank > 1 && (k.pp == 1 || k.micro % k.pp)))
			continue;
		st = add_candidate(s, k);
	}
	return st;
}

/*
 * Adds sizes of micro-batches: powers of 2 that divide the sequences of a replica, and all. If
 * replicas have different numbers of sequences, only all.
 */
static tess_status add_micro_batches(struct search *s, struct candidate k)
{
	int64_t batch = s->planner->options.batch, all = tess_up(batch, k.dp);
	tess_status st = TESS_OK;

	for (k.local = 1; k.local < all && all % k.local == 0 && batch % k.dp == 0 && !st;
	     k.local *= 2) {
		k.micro = all / k.local;
		st = add_schedules(s, k);
	}
	k.local = all;
	k.micro = 1;
	return st ? st : add_schedules(s, k);
}

static tess_status add_recomputed(struct search *s, struct candidate k)
{
	tess_status st = TESS_OK;

	for (k.recompute = 0; k.recompute < RECOMPUTES && !st; k.recompute++)
		st = add_micro_batches(s, k);
	return st;
}

static tess_status add_memory_options(struct search *s, struct candidate k)
{
	int32_t side = s->planner->machine->ranks_per_host / k.tp;
	tess_status st = TESS_OK;

	for (k.zero = 0; k.zero < ZEROS && !st; k.zero++) {
		if (k.zero && k.dp == 1)
			break;
		if (k.zero == ZERO_HOSTS && (side < 2 || k.dp <= side || k.dp % side))
			continue;
		k.bucket = 0;
		if (k.zero && k.dp >= MANY_REPLICAS)
			st = tess_composer_choose_bucket(s->composer, &k);
		if (!st)
			st = add_recomputed(s, k);
	}
	return st;
}

/* Adds the plans of the model; along one rank all are the same. */
static tess_status add_plans(struct search *s, struct candidate k)
{
	const struct tess_preset *preset = s->planner->model.model->presets;
	tess_status st = TESS_OK;

	k.plan = -1;
	k.micro = 1;
	if (k.tp == 1)
		return s->planner->options.train ? add_memory_options(s, k) : add_candidate(s, k);
	for (k.plan = 0; preset[k.plan].name && !st; k.plan++)
		if (strcmp(preset[k.plan].name, "hf") != 0)
			st = s->planner->options.train ? add_memory_options(s, k)
			                               : add_candidate(s, k);
	return st;
}

/* Adds the plans that were found last. */
static tess_status add_found_plans(struct search *s, struct candidate k)
{
	struct tess_planner *p = s->planner;
	tess_status st = TESS_OK;

	k.micro = 1;
	for (int32_t i = s->found; i < p->nfound && !st; i++) {
		k.plan = tess_planner_count_presets(p) + i;
		st = p->options.train ? add_memory_options(s, k) : add_candidate(s, k);
	}
	return st;
}

/* Adds the candidates of all meshes with so many ranks along tp. */
static tess_status estimate_meshes(struct search *s, int32_t tp,
                                   tess_status (*add)(struct search *, struct candidate))
{
	struct candidate k = { .tp = tp };
	tess_status st = TESS_OK;

	for (k.pp = 1; k.pp <= s->nranks / tp && !st; k.pp++) {
		if (s->nranks % (tp * k.pp) || k.pp > s->planner->layers)
			continue;
		k.dp = s->nranks / tp / k.pp;
		if (k.dp <= s->planner->options.batch)
			st = add(s, k);
	}
	return st;
}

/* Lists the numbers of ranks along tp of the best candidates. Returns how many there are. */
static int32_t list_best_tp(const struct search *s, int32_t *tp)
{
	int32_t n = 0;

	for (int32_t i = 0; i < s->nkept && n < STYLED_MAX; i++) {
		bool known = s->kept[i].tp == 1;

		for (int32_t k = 0; k < n; k++)
			known |= tp[k] == s->kept[i].tp;
		if (!known)
			tp[n++] = s->kept[i].tp;
	}
	return n;
}

/* Finds styles of modules for the best numbers of ranks along tp, and adds their plans. */
static tess_status estimate_styles(struct search *s)
{
	int32_t tp[STYLED_MAX], n = list_best_tp(s, tp);
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < n && !st; i++) {
		s->found = s->planner->nfound;
		st = tess_planner_find_styles(s->planner, tp[i]);
		if (!st)
			st = estimate_meshes(s, tp[i], add_found_plans);
	}
	return st;
}

static tess_status estimate_all(struct search *s)
{
	tess_status st = TESS_OK;

	for (int32_t tp = 1; tp <= s->nranks && !st; tp++)
		st = estimate_meshes(s, tp, add_plans);
	return st || !s->planner->options.styles ? st : estimate_styles(s);
}

/* ---- predictions ----------------------------------------------------------------------------- */

static int compare_forecasts(const void *a, const void *b)
{
	const struct tess_forecast *const *x = a, *const *y = b;

	return ((*x)->seconds > (*y)->seconds) - ((*x)->seconds < (*y)->seconds);
}

/* Predicts the candidates that are kept, best first, until enough fit. */
static tess_status predict_kept(struct search *s, int32_t most, const struct tess_forecast **list,
                                int32_t *n)
{
	struct tess_planner *p = s->planner;
	tess_status st = TESS_OK;

	*n = 0;
	for (int32_t i = 0; i < s->nkept && *n < most + PREDICTED_MORE && !st; i++) {
		const struct tess_strategy *strategy = tess_candidate_make_strategy(p, &s->kept[i]);
		struct tess_forecast *f = TESS_NEW(&p->arena, struct tess_forecast, 1);

		if (!strategy || !f)
			return TESS_ENOMEM;
		st = tess_planner_evaluate(p, strategy, f);
		if (!st && f->fits)
			list[(*n)++] = f;
		st = st == TESS_EINVAL ? TESS_OK : st;
	}
	qsort(list, (size_t)*n, sizeof *list, compare_forecasts);
	*n = *n < most ? *n : most;
	return st;
}

static tess_status fail_search(const struct search *s)
{
	const struct tess_planner *p = s->planner;

	if (!s->nestimated)
		return tess_fail(TESS_EINVAL,
		                 "no strategy runs on %d ranks: no mesh of them cuts a batch of "
		                 "%lld and the model; give other numbers",
		                 (int)s->nranks, (long long)p->options.batch);
	return tess_fail(TESS_EINVAL,
	                 "nothing fits in %.3g GB: the least is about %.3g GB, with dp=%d,tp=%d,"
	                 "pp=%d; give more ranks, or a smaller batch",
	                 p->memory / 1e9, s->least.memory / 1e9, (int)s->least.dp, (int)s->least.tp,
	                 (int)s->least.pp);
}

static tess_status run_search(struct search *s, int32_t most, const struct tess_forecast **list,
                              int32_t *n)
{
	tess_status st = tess_composer_open(s->planner, &s->composer);

	if (!st)
		st = estimate_all(s);
	if (!st)
		st = predict_kept(s, most, list, n);
	tess_composer_close(s->composer);
	return !st && !*n ? fail_search(s) : st;
}

tess_status tess_planner_search(struct tess_planner *p, int32_t nranks, int32_t most,
                                const struct tess_forecast *const **out, int32_t *n)
{
	const struct tess_forecast **list;
	struct search *s;
	fenv_t callers;
	tess_status st = TESS_REQUIRE(p, out, n);

	if (st)
		return st;
	if (nranks < 1 || most < 1)
		return tess_fail(TESS_EINVAL, "%s: %d ranks, %d strategies", __func__, (int)nranks,
		                 (int)most);
	list = TESS_NEW(&p->arena, const struct tess_forecast *, most + PREDICTED_MORE);
	s = calloc(1, sizeof *s);
	if (!list || !s) {
		free(s);
		return tess_fail(TESS_ENOMEM, "out of memory for a search");
	}
	s->planner = p;
	s->nranks = nranks;
	p->nranks = nranks;
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	tess_arena_keep_blocks();
	st = run_search(s, most, list, n);
	tess_arena_drop_blocks();
	fesetenv(&callers);
	p->nranks = 0;
	free(s);
	if (!st)
		*out = list;
	return st;
}

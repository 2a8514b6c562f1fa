/*
 * search.c - searches strategies: estimates all of them (candidates.c), then predicts the best from
 * their whole programs.
 */
#include "api/plan/search.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

/* How many more than asked for are predicted: at least, and as long as one may be among these. */
enum { PREDICTED_MORE = 3, PREDICTED_MOST = 12 };

struct found { /* forecasts of strategies that fit */
	const struct tess_forecast **list;
	int32_t n;
};

static int compare_forecasts(const void *a, const void *b)
{
	const struct tess_forecast *const *x = a, *const *y = b;

	if ((*x)->seconds != (*y)->seconds)
		return (*x)->seconds < (*y)->seconds ? -1 : 1;
	return ((*x)->memory > (*y)->memory) - ((*x)->memory < (*y)->memory);
}

tess_status tess_search_predict(struct search *s, const struct candidate *k,
                                const struct tess_forecast **out)
{
	struct tess_planner *p = s->planner;
	const struct tess_strategy *strategy = tess_candidate_make_strategy(p, k);
	struct tess_forecast *f = TESS_NEW(&p->arena, struct tess_forecast, 1);
	tess_status st;

	*out = NULL;
	if (!strategy || !f)
		return TESS_ENOMEM;
	st = tess_planner_evaluate(p, strategy, f);
	if (!st)
		*out = f;
	return st == TESS_EINVAL ? TESS_OK : st;
}

/* Predicts a candidate, and adds it if it runs and fits. */
static tess_status predict_candidate(struct search *s, const struct candidate *k, struct found *out)
{
	const struct tess_forecast *f;
	tess_status st = tess_search_predict(s, k, &f);

	if (!st && f && f->fits)
		out->list[out->n++] = f;
	return st;
}

/* Returns whether the estimate of a candidate is slower than the `most` fastest predictions. */
static bool is_slower(const struct candidate *k, int32_t most, const struct found *f)
{
	int32_t faster = 0;

	for (int32_t i = 0; i < f->n; i++)
		faster += f->list[i]->seconds <= k->seconds;
	return faster >= most;
}

/* Predicts the candidates that are kept, fastest first, until enough more fit. */
static tess_status predict_fastest(struct search *s, int32_t most, struct found *out)
{
	int32_t before = out->n;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < s->nkept && out->n < before + most + PREDICTED_MOST && !st; i++) {
		if (out->n >= before + most + PREDICTED_MORE && is_slower(&s->kept[i], most, out))
			break;
		st = predict_candidate(s, &s->kept[i], out);
	}
	qsort(out->list, (size_t)out->n, sizeof *out->list, compare_forecasts);
	out->n = out->n < most ? out->n : most;
	return st;
}

/* Removes the forecasts that another one beats in time and memory. */
static void keep_unbeaten(struct found *f)
{
	int32_t n = 0;

	qsort(f->list, (size_t)f->n, sizeof *f->list, compare_forecasts);
	for (int32_t i = 0; i < f->n; i++)
		if (!n || f->list[i]->memory < f->list[n - 1]->memory)
			f->list[n++] = f->list[i];
	f->n = n;
}

/*
 * Predicts the fastest, each candidate that is faster than all with less memory, and the one with
 * the least.
 */
static tess_status predict_front(struct search *s, int32_t most, struct found *out)
{
	double limit = s->planner->memory * MEMORY_MARGIN, fastest = 0;
	tess_status st = predict_fastest(s, 1 + PREDICTED_MORE, out);

	for (int32_t i = 0; i < FRONT_MAX && !st; i++) {
		const struct candidate *k = &s->front[i];

		if (k->seconds <= 0 || k->memory > limit || (fastest > 0 && k->seconds >= fastest))
			continue;
		fastest = k->seconds;
		st = predict_candidate(s, k, out);
	}
	if (!st && s->nestimated)
		st = predict_candidate(s, &s->least, out);
	keep_unbeaten(out);
	out->n = out->n < most ? out->n : most;
	return st;
}

/*
 * Gives the strategy with the least memory if it fits, if need be with a tile. Else fails with what
 * would fit.
 */
static tess_status find_nearest(struct search *s, struct found *out)
{
	const struct tess_forecast *least, *tiled = NULL;
	tess_status st = tess_search_find_least(s, &least);

	if (st)
		return st;
	if (!least)
		return tess_search_fail_to_divide(s);
	if (!least->fits)
		st = tess_search_find_tiled(s, least, &tiled);
	if (!st && !least->fits && !tiled)
		st = tess_search_fail(s, least);
	if (!st)
		out->list[out->n++] = tiled ? tiled : least;
	return st;
}

/* Predicts candidates that were estimated, and gives at most `most` of them, fastest first. */
typedef tess_status predict_function(struct search *s, int32_t most, struct found *out);

static tess_status run_search(struct search *s, predict_function *predict, int32_t most,
                              struct found *out)
{
	tess_status st = tess_composer_open(s->planner, &s->composer);

	if (!st)
		st = tess_search_estimate(s);
	if (!st)
		st = predict(s, most, out);
	if (!st && s->planner->options.styles) { /* besides those, so that it is never slower */
		st = tess_search_estimate_styles(s);
		if (!st)
			st = predict(s, most, out);
	}
	if (!st && !out->n)
		st = find_nearest(s, out);
	tess_composer_close(s->composer);
	return st;
}

static tess_status open_search(struct tess_planner *p, int32_t nranks, int32_t most,
                               predict_function *predict, struct found *out)
{
	int32_t room = 2 * ((most < FRONT_MAX ? FRONT_MAX : most) + 2 * PREDICTED_MOST);
	struct search *s = calloc(1, sizeof *s);
	fenv_t callers;
	tess_status st;

	out->list = TESS_NEW(&p->arena, const struct tess_forecast *, room);
	if (!out->list || !s) {
		free(s);
		return tess_fail(TESS_ENOMEM, "out of memory for a search");
	}
	s->planner = p;
	s->nranks = nranks;
	s->explores = predict == predict_front;
	p->nranks = nranks;
	tess_planner_choose_ranks(p, nranks);
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	tess_arena_keep_blocks();
	st = run_search(s, predict, most, out);
	tess_arena_drop_blocks();
	fesetenv(&callers);
	p->nranks = 0;
	free(s);
	return st;
}

/* Checks the arguments of `function`, and searches. */
static tess_status search_ranks(const char *function, struct tess_planner *p, int32_t nranks,
                                int32_t most, predict_function *predict,
                                const struct tess_forecast *const **out, int32_t *n)
{
	struct found found = { 0 };
	tess_status st;

	if (nranks < 1 || most < 1)
		return tess_fail(TESS_EINVAL, "%s: %d ranks, %d strategies", function, (int)nranks,
		                 (int)most);
	st = open_search(p, nranks, most, predict, &found);
	if (st)
		return st;
	*out = found.list;
	*n = found.n;
	return TESS_OK;
}

tess_status tess_planner_search(struct tess_planner *p, int32_t nranks, int32_t most,
                                const struct tess_forecast *const **out, int32_t *n)
{
	tess_status st = TESS_REQUIRE(p, out, n);

	return st ? st : search_ranks(__func__, p, nranks, most, predict_fastest, out, n);
}

tess_status tess_planner_explore(struct tess_planner *p, int32_t nranks, int32_t most,
                                 const struct tess_forecast *const **out, int32_t *n)
{
	tess_status st = TESS_REQUIRE(p, out, n);

	return st ? st : search_ranks(__func__, p, nranks, most, predict_front, out, n);
}

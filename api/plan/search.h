/* search.h - a search: the candidates whose estimates make them worth a prediction. */
#ifndef TESS_API_PLAN_SEARCH_H
#define TESS_API_PLAN_SEARCH_H

#include "api/plan/compose.h"

/* Estimates of memory may be this much too high. */
#define MEMORY_MARGIN 1.1

enum { KEPT_MAX = 256 };
/* Sizes of memory in a factor of 2, and all of them. */
enum { FRONT_STEPS = 8, FRONT_MAX = 50 * FRONT_STEPS };

struct search {
	struct tess_planner *planner;
	struct composer *composer;
	int32_t nranks;
	struct candidate kept[KEPT_MAX]; /* fastest first, of those that fit */
	int32_t nkept;
	struct candidate front[FRONT_MAX]; /* the fastest by size of memory; seconds 0: none */
	struct candidate least; /* the one with the least memory */
	int64_t nestimated;
	bool explores; /* wants candidates with less memory, however slow */
	int32_t found; /* the first of the plans in planner->found that is added */
};

/* Estimates all candidates of s->nranks ranks, with plans of the model. */
tess_status tess_search_estimate(struct search *s);
/*
 * Finds plans of styles for the numbers of ranks along tp of the candidates that are kept, and
 * keeps candidates with these plans instead.
 */
tess_status tess_search_estimate_styles(struct search *s);

/* Predicts a candidate from its whole program. *out: NULL: it cannot run. */
tess_status tess_search_predict(struct search *s, const struct candidate *k,
                                const struct tess_forecast **out);

/* Finds the forecast with the least memory of all candidates. *out: NULL: none can run. */
tess_status tess_search_find_least(struct search *s, const struct tess_forecast **out);
/*
 * Finds the largest of a few tiles with which the strategy of a forecast fits, if it gathers or
 * fetches weights. *out: NULL: none.
 */
tess_status tess_search_find_tiled(struct search *s, const struct tess_forecast *f,
                                   const struct tess_forecast **out);
/*
 * Fails with what would fit instead: more ranks, a smaller batch, or shorter sequences. least: the
 * forecast with the least memory.
 */
tess_status tess_search_fail(struct search *s, const struct tess_forecast *least);
/* Fails with the nearest number of ranks on which a strategy runs. */
tess_status tess_search_fail_to_divide(const struct search *s);

#endif

/*
 * nearest.c - what would fit if nothing does: more ranks, a smaller batch, or shorter sequences.
 */
#include "api/plan/evaluation.h"
#include "api/plan/options.h"
#include "api/plan/search.h"
#include "core/base/memory_file.h"
#include "core/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Candidates with little memory that are predicted; numbers of ranks that are tried. */
enum { PREDICTED_LEAST = 4, TRIED_RANKS = 8 };
/* Sizes of tiles that are tried, each half of the previous one. */
enum { TRIED_TILES = 10 };
/* Ids of the shortest sequences that are tried. */
enum { SHORTEST = 16 };

/* Predicts a candidate, and keeps the forecast with less memory. */
static tess_status predict_less(struct search *s, const struct candidate *k,
                                const struct tess_forecast **out)
{
	const struct tess_forecast *f;
	tess_status st = tess_search_predict(s, k, &f);

	if (!st && f && (!*out || f->memory < (*out)->memory))
		*out = f;
	return st;
}

tess_status tess_search_find_least(struct search *s, const struct tess_forecast **out)
{
	tess_status st = TESS_OK;
	int32_t n = 1;

	*out = NULL;
	if (s->nestimated)
		st = predict_less(s, &s->least, out);
	for (int32_t i = 0; i < FRONT_MAX && n < PREDICTED_LEAST && !st; i++)
		if (s->front[i].seconds > 0) {
			st = predict_less(s, &s->front[i], out);
			n++;
		}
	return st;
}

/* Returns whether a strategy gathers or fetches weights, which may be done in tiles. */
static bool has_tiles(const struct tess_strategy *s)
{
	bool gathers = s->offload_weights != NULL;

	for (int32_t i = 0; s->overrides && s->overrides[i]; i++)
		gathers |= strstr(s->overrides[i], "zero3") != NULL;
	return gathers;
}

tess_status tess_search_find_tiled(struct search *s, const struct tess_forecast *f,
                                   const struct tess_forecast **out)
{
	struct tess_planner *p = s->planner;
	double values = f->holds[TESS_MEMORY_STEP] + f->holds[TESS_MEMORY_GATHERED];
	tess_status st = TESS_OK;

	*out = NULL;
	if (!has_tiles(&f->strategy) || f->memory - values >= p->memory)
		return TESS_OK;
	for (int32_t i = 0; i < TRIED_TILES && !*out && !st; i++) {
		struct tess_forecast *tiled = TESS_NEW(&p->arena, struct tess_forecast, 1);
		struct tess_strategy *strategy = TESS_NEW(&p->arena, struct tess_strategy, 1);

		if (!tiled || !strategy)
			return TESS_ENOMEM;
		*strategy = f->strategy;
		strategy->tile = (uint64_t)1 << (int32_t)log2(values + 1) >> i;
		strategy->tile += !strategy->tile;
		st = tess_planner_evaluate(p, strategy, tiled);
		*out = !st && tiled->fits ? tiled : NULL;
	}
	return st;
}

/*
 * Searches with other ranks or options. *out: a forecast that fits; NULL: none does. c: the
 * composer of the same lengths of sequences. tiles: also with a tile, if none fits without.
 */
static tess_status try_search(struct tess_planner *p, int32_t nranks, struct composer *c,
                              bool tiles, const struct tess_forecast **out)
{
	struct search *s = calloc(1, sizeof *s);
	int32_t before = p->nranks;
	tess_status st;

	if (!s)
		return tess_fail(TESS_ENOMEM, "out of memory for a search");
	*out = NULL;
	s->planner = p;
	s->composer = c;
	s->nranks = p->nranks = nranks;
	tess_planner_choose_ranks(p, nranks);
	st = tess_search_estimate(s);
	if (!st && s->nestimated && (tiles || s->least.memory <= p->memory * MEMORY_MARGIN))
		st = tess_search_find_least(s, out);
	if (!st && tiles && *out && !(*out)->fits)
		st = tess_search_find_tiled(s, *out, out);
	if (*out && !(*out)->fits)
		*out = NULL;
	p->nranks = before;
	tess_planner_choose_ranks(p, before);
	free(s);
	return st;
}

/* Returns the next larger power of 2, up to the ranks of a host, or that many times a host. */
static int32_t get_more_ranks(const struct tess_planner *p, int32_t nranks)
{
	int32_t host = p->machine->ranks_per_host, n = 1;

	while (n <= nranks)
		n = host > n && host < 2 * n ? host : 2 * n;
	return n;
}

/*
 * Finds the least number of ranks, of those that are tried, on which a strategy fits. *n: the
 * number that was tried last.
 */
static tess_status find_ranks(struct search *s, int32_t *n, const struct tess_forecast **out)
{
	tess_status st = TESS_OK;

	*n = s->nranks;
	*out = NULL;
	for (int32_t i = 0; i < TRIED_RANKS && *n < 1 << 20 && !*out && !st; i++) {
		*n = get_more_ranks(s->planner, *n);
		st = try_search(s->planner, *n, s->composer, false, out);
	}
	return st;
}

/*
 * Halves an option of the planner until a strategy fits, and restores it. *found: the value that
 * fits. alike: samples do not depend on the option. *out: NULL: no value from `least` on fits.
 */
static tess_status find_halved(struct search *s, int64_t *option, int64_t least, bool alike,
                               int64_t *found, const struct tess_forecast **out)
{
	int64_t given = *option;
	struct composer *c = NULL;
	tess_status st = TESS_OK;

	*out = NULL;
	for (*option = given / 2; *option >= least && !*out && !st; *option /= 2) {
		*found = *option;
		if (!alike)
			st = tess_composer_open(s->planner, &c);
		if (!st)
			st = try_search(s->planner, s->nranks, alike ? s->composer : c, false, out);
		tess_composer_close(c);
		c = NULL;
	}
	*option = given;
	return st;
}

/* Finds the longest sequences that fit, if the shortest do. */
static tess_status find_shorter_sequence(struct search *s, int64_t *found,
                                         const struct tess_forecast **out)
{
	struct tess_planner_options *o = &s->planner->options;
	int64_t *option = o->train ? &o->sequence : &o->prompt, given = *option;
	tess_status st;

	*out = NULL;
	if (given <= SHORTEST)
		return TESS_OK;
	*option = 2 * SHORTEST;
	st = find_halved(s, option, SHORTEST, false, found, out);
	*option = given;
	return !st && *out ? find_halved(s, option, SHORTEST, false, found, out) : st;
}

/*
 * Finds a strategy that fits with state in files, or with weights and gradients in files, too, if
 * need be with a tile.
 */
static tess_status find_offloaded(struct search *s, const struct tess_forecast **out)
{
	struct tess_planner_options *o = &s->planner->options, given = *o;
	tess_status st = TESS_OK;

	*out = NULL;
	if (!o->train || o->offload_weights || !evaluation_can_offload(s->planner->machine))
		return TESS_OK;
	o->offload_optimizer = 1;
	if (!given.offload_optimizer)
		st = try_search(s->planner, s->nranks, s->composer, false, out);
	o->offload_weights = 1;
	if (!*out && !st)
		st = try_search(s->planner, s->nranks, s->composer, true, out);
	*o = given;
	return st;
}

/* ---- the message ----------------------------------------------------------------------------- */

static void write_gigabytes(double bytes, FILE *to)
{
	fprintf(to, bytes < 1e11 ? "%.3g GB" : "%.0f GB", bytes / 1e9);
}

static void write_need(const struct tess_planner *p, const struct tess_forecast *f, FILE *to)
{
	fprintf(to, "nothing fits in ");
	write_gigabytes(p->memory, to);
	fprintf(to, "; %d rank%s at least ", (int)f->nranks, f->nranks == 1 ? " needs" : "s need");
	write_gigabytes(f->memory, to);
	fprintf(to, "%s, ", f->nranks == 1 ? "" : " each");
	write_gigabytes(f->holds[TESS_MEMORY_WEIGHTS] + f->holds[TESS_MEMORY_GRADIENTS] +
	                        f->holds[TESS_MEMORY_STATE],
	                to);
	fprintf(to, " of it for weights%s, with ",
	        p->options.train ? ", gradients and optimizer state" : "");
	tess_strategy_write_options(&f->strategy, to);
}

/* Writes a change with which a strategy fits. */
static void write_fitting(const char *what, int64_t n, const struct tess_forecast *f, FILE *to)
{
	fprintf(to, what, (long long)n);
	fprintf(to, " would fit in ");
	write_gigabytes(f->memory, to);
	fprintf(to, "%s, with ", f->nranks == 1 ? "" : " each");
	tess_strategy_write_options(&f->strategy, to);
}

/* Writes the message about a search whose best strategy needs too much. */
static tess_status write_nearest(struct search *s, const struct tess_forecast *least, FILE *to)
{
	struct tess_planner_options *o = &s->planner->options;
	const struct tess_forecast *f;
	int64_t n;
	int32_t ranks;
	bool smaller;
	tess_status st;

	write_need(s->planner, least, to);
	st = find_offloaded(s, &f);
	if (!st && f)
		write_fitting(s->planner->machine->exact ? "; values on disk"
		                                         : "; values in memory of the host",
		              0, f, to);
	if (!st)
		st = find_ranks(s, &ranks, &f);
	if (!st && f)
		write_fitting("; %lld ranks", ranks, f, to);
	else if (!st)
		fprintf(to, "; more ranks would not help, up to %d", (int)ranks);
	if (!st)
		st = find_halved(s, &o->batch, 1, o->train, &n, &f);
	smaller = !st && f;
	if (smaller)
		write_fitting("; a batch of %lld", n, f, to);
	if (!st)
		st = find_shorter_sequence(s, &n, &f);
	if (!st && f)
		write_fitting(o->train ? "; sequences of %lld ids" : "; prompts of %lld ids", n, f,
		              to);
	else if (!st && !smaller)
		fprintf(to, "; a smaller batch or shorter sequences would not help");
	return st;
}

tess_status tess_search_fail(struct search *s, const struct tess_forecast *least)
{
	size_t len;
	char *text = NULL;
	FILE *to = tess_memory_file_open(&text, &len);
	int32_t *styles = &s->planner->options.styles, given = *styles;
	tess_status st;

	*styles = 0; /* they change times */
	st = to ? write_nearest(s, least, to) : TESS_ENOMEM;
	*styles = given;
	if (to && fclose(to) && !st)
		st = tess_fail(TESS_ENOMEM, "out of memory for a message");
	if (!st)
		st = tess_fail(TESS_EINVAL, "%s", text);
	free(text);
	return st;
}

/* Returns the largest number of ranks below s->nranks, or of hosts, that stages and dp divide. */
static int32_t find_divided_ranks(const struct search *s)
{
	int64_t batch = s->planner->options.batch, layers = s->planner->layers;
	int64_t host = s->planner->machine->ranks_per_host;
	int64_t n = batch * layers < s->nranks ? batch * layers : s->nranks - 1;
	int64_t step = host && host <= n ? host : 1;

	for (n -= n % step; n > 1; n -= step)
		for (int64_t pp = 1; pp <= layers; pp++)
			if (n % pp == 0 && n / pp <= batch)
				return (int32_t)n;
	return 1;
}

tess_status tess_search_fail_to_divide(const struct search *s)
{
	return tess_fail(
		TESS_EINVAL,
		"no strategy runs on %d ranks: dp is at most the batch of %lld, pp at most "
		"the %lld layers, and tp what plans can cut; try -n %d, or a larger batch",
		(int)s->nranks, (long long)s->planner->options.batch, (long long)s->planner->layers,
		(int)find_divided_ranks(s));
}

/*
 * decide.c - finds a style for each module along tp, by dynamic programming over the places of
 * values between modules.
 *
 * Modules get their styles in the order in which the model opens them. What the others cost depends
 * on these only through the places of the values that they read, so of all ways to the same places
 * only those are kept that no other beats in time and memory. The cost of one more style is that of
 * the records that it adds, lowered by themselves, with their gradients. Alike layers have one
 * style for each of their modules, and the values between them have the same places.
 */
#include "api/plan/styles/styles.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>

enum { PLANS_MAX = 3 }; /* plans that are kept for one tp */
/* Bytes that are this much more are no reason to keep a slower state. */
#define SAME_BYTES 1.05

static bool is_same_state(const struct placed_state *a, const struct placed_state *b)
{
	return !strcmp(a->key, b->key) &&
	       (a->begun && b->begun ? !strcmp(a->begun, b->begun) : a->begun == b->begun);
}

/* Returns whether a is no worse than b. */
static bool is_no_worse(const struct placed_state *a, const struct placed_state *b)
{
	return a->seconds <= b->seconds && a->bytes <= b->bytes * SAME_BYTES;
}

/* Keeps a state unless another one is no worse; of too many, the slowest goes. */
static void keep_state(struct placed_state *list, int32_t *n, struct placed_state k)
{
	int32_t slowest = 0, left = 0;

	for (int32_t i = 0; i < *n; i++)
		if (is_same_state(&list[i], &k) && is_no_worse(&list[i], &k))
			return;
	for (int32_t i = 0; i < *n; i++)
		if (!is_same_state(&list[i], &k) || !is_no_worse(&k, &list[i]))
			list[left++] = list[i];
	*n = left;
	if (*n < STATES_MAX) {
		list[(*n)++] = k;
		return;
	}
	for (int32_t i = 1; i < *n; i++)
		slowest = list[i].seconds > list[slowest].seconds ? i : slowest;
	if (k.seconds < list[slowest].seconds)
		list[slowest] = k;
}

/* Gives the module at a site a style in a state, and keeps the state that it leads to. */
static tess_status extend_state(struct style_search *s, int32_t site,
                                const struct placed_state *from, int32_t chosen,
                                struct placed_state *list, int32_t *n)
{
	const struct placed_site *at = &s->site[site];
	int32_t *spec = TESS_NEW(&s->arena, int32_t, s->nchoices);
	const struct transition *t;
	struct placed_state to = *from;
	tess_status st;

	if (!spec)
		return TESS_ENOMEM;
	memcpy(spec, from->spec, (size_t)s->nchoices * sizeof *spec);
	spec[at->choice] = chosen;
	st = tess_styles_find_transition(s, site, from->key, spec, &t);
	if (st || !t->to)
		return st;
	to.key = t->to;
	to.spec = spec;
	to.seconds += at->times * t->seconds;
	to.bytes += at->times * t->bytes;
	if (site + 1 == s->begin)
		to.begun = t->places;
	if (to.begun && site + 1 == s->end && strcmp(to.begun, t->places) != 0)
		return TESS_OK; /* the next layer would begin with other places */
	keep_state(list, n, to);
	return TESS_OK;
}

/* Decides all sites. *n: states at the end, in *out. */
static tess_status decide_sites(struct style_search *s, const struct placed_state **out, int32_t *n)
{
	int32_t *undecided = tess_styles_make_undecided(s), now = 1;
	tess_status st = undecided ? TESS_OK : TESS_ENOMEM;

	s->state[0][0] = (struct placed_state){ .key = "", .spec = undecided };
	for (int32_t i = 0; i < s->nsites && !st; i++) {
		const struct placed_state *from = s->state[i % 2];
		const struct choice *c = &s->choice[s->site[i].choice];

		*n = 0;
		for (int32_t k = 0; k < now && !st; k++) {
			int32_t chosen = from[k].spec[s->site[i].choice];
			int32_t first = chosen == UNDECIDED ? 0 : chosen;
			int32_t end = chosen == UNDECIDED ? c->nspecs : chosen + 1;

			for (int32_t j = first; j < end && !st; j++)
				st = extend_state(s, i, &from[k], j, s->state[1 - i % 2], n);
		}
		now = *n;
	}
	*out = s->state[s->nsites % 2];
	return st;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Adds the plan of a state to those that were found. */
static tess_status add_found(struct style_search *s, const struct placed_state *k)
{
	struct tess_planner *p = s->planner;
	struct tess_found_plan *list =
		tess_arena_grow(&p->arena, p->found, (size_t)p->nfound, sizeof *list);
	char *text = list ? tess_styles_format_plan(s, k->spec) : NULL;
	const char *kept = text ? tess_arena_copy(&p->arena, text, strlen(text)) : NULL;

	free(text);
	if (!kept)
		return TESS_ENOMEM;
	if (!strcmp(kept, "{}"))
		return TESS_OK; /* all ranks would compute the same */
	p->found = list;
	list[p->nfound++] = (struct tess_found_plan){ s->mesh.nranks, kept };
	return TESS_OK;
}

/* Adds the fastest plan, the one with the least memory, and the best of both. */
static tess_status add_best(struct style_search *s, const struct placed_state *k, int32_t n)
{
	int32_t best[PLANS_MAX] = { 0 };
	tess_status st = TESS_OK;

	for (int32_t i = 1; i < n; i++) {
		best[0] = k[i].seconds < k[best[0]].seconds ? i : best[0];
		best[1] = k[i].bytes < k[best[1]].bytes ? i : best[1];
		best[2] = k[i].seconds * k[i].bytes < k[best[2]].seconds * k[best[2]].bytes
		                  ? i
		                  : best[2];
	}
	for (int32_t i = 0; i < PLANS_MAX && i < n && !st; i++) {
		bool known = false;

		for (int32_t j = 0; j < i; j++)
			known |= best[j] == best[i];
		st = known ? TESS_OK : add_found(s, &k[best[i]]);
	}
	return st;
}

/* Sets positions and slots of a workload's rows. */
static tess_status set_load(struct style_search *s, struct workload w)
{
	int32_t *at = TESS_NEW(&s->arena, int32_t, 2 * w.sequences * w.length);

	if (!at)
		return TESS_ENOMEM;
	tess_planner_fill_rows(at, w.sequences, w.length, w.from);
	w.rows = at;
	s->load[s->nloads++] = w;
	return TESS_OK;
}

/* Sets what is computed: a step of training of one sequence, or prompts and continuations. */
static tess_status set_loads(struct style_search *s)
{
	const struct tess_planner_options *o = &s->planner->options;
	int64_t rows = s->planner->machine->prompt_rows;
	int64_t here = tess_up(o->batch * s->mesh.nranks, s->planner->nranks);
	tess_status st;

	if (o->train)
		return set_load(s, (struct workload){ 1, o->sequence, 0, 1, NULL });
	rows = o->prompt < rows ? o->prompt : rows;
	st = set_load(s, (struct workload){ here, 1, o->prompt + o->tokens / 2, (double)o->tokens,
	                                    NULL });
	return st ? st
	          : set_load(s,
	                     (struct workload){ 1, rows, (o->prompt - rows) / 2,
	                                        (double)(tess_up(o->prompt, rows) * here), NULL });
}

tess_status tess_planner_find_styles(struct tess_planner *p, int32_t tp)
{
	struct style_search *s = calloc(1, sizeof *s);
	const struct placed_state *found = NULL;
	int32_t n = 0;
	tess_status st = s ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory for a search");

	if (st)
		return st;
	s->planner = p;
	s->model = p->shallow[1].layers ? p->shallow[0].model : p->model;
	s->model.device = p->machine->exact ? NULL : &p->device;
	s->mesh = tess_mesh_shape_make("tp", tp);
	st = set_loads(s);
	if (!st)
		st = tess_styles_list_choices(s);
	if (!st)
		st = decide_sites(s, &found, &n);
	if (!st)
		st = add_best(s, found, n);
	tess_arena_free(&s->arena);
	free(s);
	return st;
}

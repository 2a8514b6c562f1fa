/* transition.c - what the style of one more module costs. */
#include "api/plan/styles/styles.h"
#include "nn/program/compressed.h"
#include "nn/program/storage.h"

#include <string.h>

/* Marks the records of a site, and those of their gradients. */
static bool *mark_site(struct tess_arena *a, const struct tess_program *p, int32_t first,
                       int32_t end)
{
	bool *wanted = TESS_NEW(a, bool, p->nrecords);

	for (int32_t i = 0; i < p->nrecords && wanted; i++) {
		const struct tess_record *of = p->record[i]->of;

		wanted[i] = !of && i >= first && i < end;
		for (int32_t k = first; k < end && of && !wanted[i]; k++)
			wanted[i] = of == p->record[k];
	}
	return wanted;
}

/* Returns the elements of a value that the first rank has. */
static double count_value(const struct tess_program *p, const struct tess_tensor *t)
{
	double n = 1;

	for (int32_t a = 0; a < t->ndim; a++) {
		struct tess_cut cut = tess_program_find_cut(p, 0, t->place, a);

		n *= (double)tess_dim_get_local_size(t->dim[a], cut.nranks, cut.rank);
	}
	return n;
}

/* Returns the bytes of a weight, with its gradient and state. */
static double count_weight(const struct style_search *s, const struct tess_program *p,
                           const struct tess_weight *w)
{
	double bytes = (double)tess_weight_count_bytes(p, w, 0);

	if (!s->planner->options.train)
		return bytes;
	return bytes + sizeof(float) * (double)tess_weight_count_local(p, w, 0) +
	       (double)tess_weight_count_state_bytes(p, w, 0, s->planner->moments);
}

/* Returns whether one of the first n records computes with a weight. */
static bool is_used_before(const struct tess_program *p, int32_t n, const struct tess_weight *w)
{
	for (int32_t i = 0; i < n; i++)
		for (int32_t k = 0; k < p->record[i]->nweight; k++)
			if (p->record[i]->weight[k] == w)
				return true;
	return false;
}

/* Returns the bytes of the weights that records [first, end) are the first to compute with. */
static double count_site_weights(const struct style_search *s, const struct tess_program *p,
                                 int32_t first, int32_t end)
{
	double bytes = 0;

	for (int32_t i = first; i < end; i++)
		for (int32_t k = 0; k < p->record[i]->nweight; k++) {
			const struct tess_weight *w = p->record[i]->weight[k];

			if (!w->table && !is_used_before(p, i, w))
				bytes += count_weight(s, p, w);
		}
	return bytes;
}

/* Adds the seconds and bytes of records [first, end) of a program. */
static tess_status add_site_cost(struct style_search *s, const struct tess_program *p,
                                 const struct workload *w, int32_t first, int32_t end,
                                 struct transition *t)
{
	const struct tess_machine *m = s->planner->machine;
	struct tess_attended attended = { .window = -1 };
	const struct tess_op_known known = { .position = w->rows,
		                             .slot = w->rows + w->sequences * w->length,
		                             .last = &attended,
		                             .experts = tess_planner_count_experts(p) };
	struct tess_rank_program *l;
	struct tess_arena a = { 0 };
	bool *wanted = mark_site(&a, p, first, end);
	double *seconds = TESS_NEW(&a, double, p->nrecords);
	tess_status st =
		wanted && seconds ? tess_program_lower_records(p, 0, wanted, &l) : TESS_ENOMEM;

	if (!st) {
		st = tess_steps_time_records(m, p, l, &known, seconds);
		tess_rank_program_free(l);
	}
	for (int32_t i = 0; i < p->nrecords && !st; i++)
		t->seconds += w->times * seconds[i];
	for (int32_t i = first; i < end && s->planner->options.train && !st; i++)
		for (int32_t k = 0; k < p->record[i]->nout; k++)
			t->bytes += count_value(p, p->record[i]->out[k]) * m->width;
	tess_arena_free(&a);
	return st;
}

/* Measures a transition in the program of its styles. */
static tess_status measure_transition(struct style_search *s, const struct tess_program *p,
                                      const struct workload *w, const int32_t *spec,
                                      struct transition *t)
{
	int32_t first = t->site ? p->module[t->site].record : 0,
		end = tess_styles_find_end(p, t->site);
	struct tess_arena a = { 0 };
	struct value_places v;
	tess_status st = add_site_cost(s, p, w, first, end, t);

	if (!st && w == s->load) {
		t->bytes += count_site_weights(s, p, first, end);
		st = tess_styles_find_values(&a, p, end, &v) ? TESS_OK : TESS_ENOMEM;
		t->to = st ? NULL : tess_styles_format_key(s, p, &v, t->site, spec);
		t->places = st ? NULL : tess_styles_format_places(s, p, &v, end, false);
		tess_arena_free(&a);
		st = t->to && t->places ? TESS_OK : TESS_ENOMEM;
	}
	return st;
}

tess_status tess_styles_find_transition(struct style_search *s, int32_t site, const char *from,
                                        const int32_t *spec, const struct transition **out)
{
	int32_t chosen = spec[s->site[site].choice];
	struct transition *t;
	struct tess_program *p;
	tess_status st = TESS_OK;

	for (int32_t i = s->ntransitions - 1; i >= 0 && s->transition[i].site == site; i--)
		if (s->transition[i].spec == chosen && !strcmp(s->transition[i].from, from)) {
			*out = &s->transition[i];
			return TESS_OK;
		}
	t = tess_arena_grow(&s->arena, s->transition, (size_t)s->ntransitions, sizeof *t);
	if (!t)
		return TESS_ENOMEM;
	s->transition = t;
	t += s->ntransitions++;
	*t = (struct transition){ .site = site, .spec = chosen, .from = from };
	*out = t;
	for (int32_t i = 0; i < s->nloads && !st; i++) {
		st = tess_styles_record(s, spec, &s->load[i], &p);
		if (st == TESS_ENOMEM)
			return st;
		if (st) { /* refused */
			t->to = NULL;
			return TESS_OK;
		}
		st = measure_transition(s, p, &s->load[i], spec, t);
		tess_program_free(p);
	}
	return st;
}

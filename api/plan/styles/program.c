/* program.c - records programs in which some modules have styles. */
#include "api/plan/styles/styles.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

/*
 * Formats the rules of all choices; those without a style have that of the tail. all: also those
 * that leave modules as they would be without a rule.
 */
static char *format_rules(const struct style_search *s, const int32_t *spec, int32_t tail, bool all)
{
	json_t *rules = json_object();
	char *text;

	for (int32_t c = 0; c < s->nchoices; c++)
		for (int32_t k = 0; k < s->choice[c].npatterns; k++) {
			const char *style = spec[c] == UNDECIDED ? s->choice[c].tail[tail][k]
			                                         : s->choice[c].spec[spec[c]][k];

			if (all || strcmp(style, "replicate") != 0)
				json_object_set_new(rules, s->choice[c].pattern[k],
				                    json_string(style));
		}
	text = rules ? json_dumps(rules, JSON_COMPACT) : NULL;
	json_decref(rules);
	return text;
}

char *tess_styles_format_plan(const struct style_search *s, const int32_t *spec)
{
	return format_rules(s, spec, 0, false);
}

tess_status tess_styles_record_tail(struct style_search *s, const int32_t *spec,
                                    const struct workload *w, int32_t tail,
                                    struct tess_program **out)
{
	struct tess_planned_model model = s->model;
	const struct tess_training training = { .lengths = &w->length,
		                                .nsequences = 1,
		                                .all_sequences = 1 };
	char *text = format_rules(s, spec, tail, true);
	tess_status st = text ? tess_plan_open(model.model, text, NULL, 0, &model.plan)
	                      : tess_fail(TESS_ENOMEM, "out of memory for a plan");

	model.math = s->planner->options.math;
	if (!st) {
		st = s->planner->options.train
		             ? tess_planned_model_record_training(&model, &s->mesh, &training, NULL,
		                                                  out)
		             : tess_planned_model_record(&model, &s->mesh, w->sequences * w->length,
		                                         w->sequences, out);
		tess_plan_free(&model.plan);
	}
	free(text);
	return st;
}

tess_status tess_styles_record(struct style_search *s, const int32_t *spec,
                               const struct workload *w, struct tess_program **out)
{
	tess_status st = tess_styles_record_tail(s, spec, w, s->tail, out);

	for (int32_t i = 0; i < s->ntails && st && st != TESS_ENOMEM; i++) {
		if (i == s->tail)
			continue;
		st = tess_styles_record_tail(s, spec, w, i, out);
		s->tail = st ? s->tail : i;
	}
	return st;
}

int32_t tess_styles_count_forward(const struct tess_program *p)
{
	int32_t n = 0;

	while (n < p->nrecords && !p->record[n]->of)
		n++;
	return n;
}

int32_t tess_styles_find_end(const struct tess_program *p, int32_t i)
{
	return i + 1 < p->nmodules ? p->module[i + 1].record : tess_styles_count_forward(p);
}

bool tess_styles_is_below(const char *name, const char *path)
{
	size_t len = strlen(path);

	return !strncmp(name, path, len) && name[len] == '.';
}

/* choices.c - lists the modules of a model, and the styles that each of them may have. */
#include "api/plan/styles/styles.h"
#include "core/registry/registry.h"

#include <stdlib.h>
#include <string.h>

/* The style of modules in the first tail. */
static const char whole_style[] = "local";

/* Returns the pattern of a module, with `*` for the number of an alike layer. */
static const char *make_site_pattern(struct style_search *s, const char *path, int64_t *layer)
{
	const char *layers = s->planner->path;
	size_t len = strlen(layers) - 1;
	char *rest;

	*layer = -1;
	if (strncmp(path, layers, len) != 0)
		return path;
	*layer = strtol(path + len, &rest, 10);
	if (rest == path + len || *layer < s->planner->first)
		return path;
	return tess_arena_format(&s->arena, "%s%s", layers, rest);
}

static int32_t find_choice(const struct style_search *s, const char *pattern)
{
	int32_t c = 0, k = 0;

	while (c < s->nchoices && strcmp(s->choice[c].pattern[k], pattern) != 0)
		if (++k == s->choice[c].npatterns) {
			k = 0;
			c++;
		}
	return c;
}

/* Returns the module whose table a module's weight is; NULL: it is not tied. */
static const char *find_table_module(struct style_search *s, const struct tess_program *p,
                                     const char *path)
{
	size_t len = strlen(path);

	for (int32_t i = 0; i < p->nrecords; i++)
		for (int32_t k = 0; k < p->record[i]->nweight; k++) {
			const struct tess_weight *table = p->record[i]->weight[k]->table;

			if (!table || strncmp(p->record[i]->module, path, len + 1) != 0)
				continue;
			return tess_arena_copy(&s->arena, table->name,
			                       strlen(table->name) - strlen(".weight"));
		}
	return NULL;
}

/* Returns the first weight of a module; NULL: it has none. */
static const struct tess_weight *find_first_weight(const struct tess_program *p, const char *path)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (tess_styles_is_below(p->weight[i]->name, path))
			return p->weight[i];
	return NULL;
}

/* Returns whether modules are opened together, are of one kind, and have weights of one shape. */
static bool are_siblings(const struct tess_program *p, int32_t i, int32_t k)
{
	const struct tess_opened_module *a = &p->module[i], *b = &p->module[k];
	const struct tess_weight *x = find_first_weight(p, a->path);
	const struct tess_weight *y = find_first_weight(p, b->path);
	bool same =
		x && y && a->record == b->record && !strcmp(a->kind, b->kind) && x->ndim == y->ndim;

	for (int32_t axis = 0; same && axis < x->ndim; axis++)
		same = x->dim[axis]->size == y->dim[axis]->size;
	return same;
}

/* Returns the choice of a module: that of an earlier one, or a new one. */
static int32_t choose_choice(struct style_search *s, const struct tess_program *p, int32_t i,
                             const char *pattern)
{
	const char *table = find_table_module(s, p, p->module[i].path);
	int32_t c = find_choice(s, pattern);
	struct choice *add;

	if (c < s->nchoices)
		return c;
	c = table ? find_choice(s, table)
	    : i && are_siblings(p, i - 1, i) &&
	                    s->choice[s->site[i - 1].choice].npatterns < ALIKE_MAX
	            ? s->site[i - 1].choice
	            : s->nchoices;
	add = &s->choice[c];
	add->tied |= table != NULL;
	add->pattern[add->npatterns++] = pattern;
	s->nchoices += c == s->nchoices;
	return c;
}

/* Adds a module, and its choice unless an earlier module has it. */
static tess_status add_site(struct style_search *s, const struct tess_program *p, int32_t i)
{
	struct placed_site *site = &s->site[i];
	const char *pattern;
	int64_t layer;

	site->path = tess_arena_copy(&s->arena, p->module[i].path, strlen(p->module[i].path));
	site->contains = !strcmp(p->module[i].kind, "module");
	site->times = 1;
	pattern = site->path ? make_site_pattern(s, site->path, &layer) : NULL;
	if (!pattern)
		return TESS_ENOMEM;
	if (layer >= s->planner->first && s->planner->period) {
		site->times = (double)(s->planner->layers - s->planner->first) /
		              (double)s->planner->period;
		s->begin = s->end ? s->begin : i;
		s->end = i + 1;
	}
	site->choice = choose_choice(s, p, i, pattern);
	return TESS_OK;
}

/* Formats how a style places a module and its weights; NULL: it is refused, or has hooks. */
static const char *describe_effect(struct style_search *s, const struct tess_program *p,
                                   int32_t site)
{
	const struct tess_opened_module *m = &p->module[site];
	const char *text = tess_arena_format(&s->arena, "%d.%d %d.%d", (int)m->io[0]->in[0].kind,
	                                     (int)m->io[0]->in[0].dim, (int)m->io[0]->out[0].kind,
	                                     (int)m->io[0]->out[0].dim);

	for (int32_t i = 0; i < p->nweights && text; i++)
		if (tess_styles_is_below(p->weight[i]->name, m->path))
			text = tess_arena_format(
				&s->arena, "%s %d.%d%d", text, (int)p->weight[i]->place[0].kind,
				(int)p->weight[i]->place[0].dim, (int)p->weight[i]->rest_cut);
	return text;
}

/* Returns whether a style adds functions of its own, whose time is unknown. */
static bool has_own_calls(const struct tess_program *p)
{
	for (int32_t i = 0; i < p->nrecords; i++)
		if (p->record[i]->kind == TESS_REC_CALL ||
		    p->record[i]->kind == TESS_REC_COLLECTIVE)
			return true;
	return false;
}

/* Adds the last spec of a choice for good unless it is refused or places as another one. */
static tess_status try_spec(struct style_search *s, int32_t site, int32_t *spec,
                            const char **effect)
{
	int32_t c = s->site[site].choice, n = s->choice[c].nspecs;
	struct tess_program *p;
	bool known = false;
	tess_status st;

	spec[c] = n;
	st = tess_styles_record(s, spec, &s->load[0], &p);
	spec[c] = UNDECIDED;
	if (st)
		return st == TESS_ENOMEM ? st : TESS_OK;
	effect[n] = has_own_calls(p) ? NULL : describe_effect(s, p, site);
	tess_program_free(p);
	if (!effect[n])
		return TESS_OK;
	for (int32_t i = 0; i < n; i++)
		known |= !strcmp(effect[i], effect[n]);
	s->choice[c].nspecs += !known;
	return TESS_OK;
}

/* Offers a style, or a pair of them for tied modules, to a choice. */
static tess_status offer_spec(struct style_search *s, int32_t site, const char *const *style,
                              int32_t *spec, const char **effect)
{
	struct choice *c = &s->choice[s->site[site].choice];

	if (c->nspecs == SPECS_MAX - 1)
		return TESS_OK;
	for (int32_t k = 0; k < c->npatterns; k++) {
		c->spec[c->nspecs][k] = tess_arena_copy(&s->arena, style[k], strlen(style[k]));
		if (!c->spec[c->nspecs][k])
			return TESS_ENOMEM;
	}
	return try_spec(s, site, spec, effect);
}

/* Sets a tail of all choices to what a preset of the model has. */
static tess_status set_preset_tail(struct style_search *s, const char *preset, int32_t tail)
{
	struct tess_plan plan;
	tess_status st = tess_plan_open(s->model.model, preset, NULL, 0, &plan);
	bool *used;

	if (st)
		return st;
	used = TESS_NEW(&s->arena, bool, plan.nrules + 1);
	st = used ? TESS_OK : TESS_ENOMEM;
	for (int32_t c = 0; c < s->nchoices; c++)
		for (int32_t k = 0; k < s->choice[c].npatterns && !st; k++) {
			const char *style = "replicate";
			int32_t rule = -1;

			st = tess_plan_find(&plan, &s->mesh, 0, s->choice[c].pattern[k], NULL, used,
			                    &rule);
			style = rule < 0 ? style : plan.rule[rule].style;
			style = tess_arena_copy(&s->arena, style, strlen(style));
			s->choice[c].tail[tail][k] = style;
			st = style ? st : TESS_ENOMEM;
		}
	tess_plan_free(&plan);
	return st;
}

static tess_status set_tails(struct style_search *s)
{
	const struct tess_preset *preset = s->model.model->presets;
	tess_status st = TESS_OK;

	for (int32_t c = 0; c < s->nchoices; c++)
		for (int32_t k = 0; k < s->choice[c].npatterns; k++)
			s->choice[c].tail[0][k] = whole_style;
	for (s->ntails = 1; s->ntails < TAILS_MAX && preset->name && !st; s->ntails++)
		st = set_preset_tail(s, preset++->name, s->ntails);
	return st;
}

/* Offers all styles that are registered. */
static tess_status offer_registered(struct style_search *s, int32_t site, int32_t *spec,
                                    const char **effect)
{
	struct tess_plugin_info info;
	tess_status st = TESS_OK;

	for (size_t i = 0; tess_registry_at(i, &info) && !st; i++)
		for (size_t k = 0; k < info.noffers && !strcmp(info.kind, "style") && !st; k++) {
			const struct tess_style *style = info.offers[k].table;

			if (!style->prepare_input && !style->prepare_output && !style->begins_stage)
				st = offer_spec(
					s, site,
					(const char *const[ALIKE_MAX]){ style->name, style->name,
				                                        style->name, style->name },
					spec, effect);
		}
	return st;
}

/*
 * Lists the styles of a choice, by its first site: those of the model's presets. A module with an
 * op of its own may have any.
 */
static tess_status list_specs(struct style_search *s, int32_t site, int32_t *spec)
{
	static const char *const none[ALIKE_MAX] = { "replicate", "replicate", "replicate",
		                                     "replicate" };
	const char *effect[SPECS_MAX];
	struct choice *c = &s->choice[s->site[site].choice];
	tess_status st = offer_spec(s, site, none, spec, effect);

	for (int32_t i = 1; i < s->ntails && !st; i++)
		st = offer_spec(s, site, c->tail[i], spec, effect);
	return st || c->tied || s->site[site].contains ? st
	                                               : offer_registered(s, site, spec, effect);
}

int32_t *tess_styles_make_undecided(struct style_search *s)
{
	int32_t *spec = TESS_NEW(&s->arena, int32_t, s->nchoices + 1);

	for (int32_t c = 0; c < s->nchoices && spec; c++)
		spec[c] = UNDECIDED;
	return spec;
}

tess_status tess_styles_list_choices(struct style_search *s)
{
	struct tess_program *p;
	int32_t *spec;
	tess_status st = tess_styles_record_tail(s, NULL, &s->load[0], 0, &p);

	if (st)
		return st;
	s->nsites = p->nmodules;
	s->site = TESS_NEW(&s->arena, struct placed_site, s->nsites);
	s->choice = TESS_NEW(&s->arena, struct choice, s->nsites + 1);
	st = s->site && s->choice ? TESS_OK : TESS_ENOMEM;
	for (int32_t i = 0; i < s->nsites && !st; i++)
		st = add_site(s, p, i);
	tess_program_free(p);
	if (!st)
		st = set_tails(s);
	spec = st ? NULL : tess_styles_make_undecided(s);
	for (int32_t i = 0; i < s->nsites && !st; i++)
		if (!s->choice[s->site[i].choice].nspecs)
			st = spec ? list_specs(s, i, spec) : TESS_ENOMEM;
	return st;
}

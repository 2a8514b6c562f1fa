/*
 * styles.c - finds a style for each module along tp, by dynamic programming over the places of
 * values between modules.
 *
 * Modules get their styles in the order in which the model opens them. What the others cost depends
 * on these only through the places of the values that they read, so of all ways to the same places
 * only those are kept that no other beats in time and memory. The cost of one more style is that of
 * the records that it adds, lowered by themselves, with their gradients. Alike layers have one
 * style for each of their modules, and the values between them have the same places.
 */
#include "api/plan/planner.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "nn/program/compressed.h"
#include "nn/program/storage.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>

enum { SPECS_MAX = 32, STATES_MAX = 1024, ALIKE_MAX = 4, WORKLOADS_MAX = 2 };
enum { TAILS_MAX = 8 }; /* whole values, and presets of the model */
enum { PLANS_MAX = 3 }; /* plans that are kept for one tp */
enum { UNDECIDED = -1 };

/*
 * The styles of modules that have none yet are those of one of several tails: whole values, or a
 * preset of the model. A style is refused if it is with every tail.
 */
static const char whole_style[] = "local";

/*
 * Modules with one style: those of alike layers, and linear modules of one shape that are opened
 * together, such as k_proj and v_proj. If tied: an embedding and the head that reads its table, whose
 * styles are a pair.
 */
struct choice {
	const char *pattern[ALIKE_MAX];
	const char *spec[SPECS_MAX][ALIKE_MAX];
	const char *tail[TAILS_MAX][ALIKE_MAX];
	int32_t npatterns, nspecs;
	bool tied;
};

struct placed_site { /* a module */
	const char *path;
	int32_t choice;
	bool contains; /* it has no op of its own, and is left after other modules */
	double times; /* how often the model has it */
};

struct transition { /* from a state before a site, by a style */
	int32_t site, spec;
	const char *from, *to; /* keys of states; to NULL: it is refused */
	const char *places; /* of values, without copies */
	double seconds, bytes;
};

struct placed_state {
	const char *key; /* places of the values that later modules read */
	const char *begun; /* of those at the begin of alike layers; NULL: before it */
	double seconds, bytes;
	const int32_t *spec; /* by choice */
};

struct workload { /* rows that a step computes, and how often */
	int64_t sequences, length, from;
	double times;
	int32_t *rows; /* positions, then slots */
};

struct style_search {
	struct tess_planner *planner;
	struct tess_planned_model model; /* one with few layers */
	struct tess_mesh_shape mesh;
	struct tess_arena arena;
	struct workload load[WORKLOADS_MAX];
	int32_t nloads;
	struct choice *choice;
	struct placed_site *site;
	int32_t nchoices, nsites;
	int32_t ntails, tail; /* tail: the one that was accepted last */
	int32_t begin, end; /* sites of the alike layers; equal: there are none */
	struct transition *transition;
	int32_t ntransitions;
	struct placed_state state[2][STATES_MAX];
};

/* ---- programs -------------------------------------------------------------------------------- */

/* Formats the rules of all choices; those without a style have that of the tail. */
static char *format_rules(const struct style_search *s, const int32_t *spec, int32_t tail)
{
	json_t *rules = json_object();
	char *text;

	for (int32_t c = 0; c < s->nchoices; c++)
		for (int32_t k = 0; k < s->choice[c].npatterns; k++)
			json_object_set_new(rules, s->choice[c].pattern[k],
			                    json_string(spec[c] == UNDECIDED
			                                        ? s->choice[c].tail[tail][k]
			                                        : s->choice[c].spec[spec[c]][k]));
	text = rules ? json_dumps(rules, JSON_COMPACT) : NULL;
	json_decref(rules);
	return text;
}

/* Formats the rules of a plan that is found, without those of modules as they would be anyway. */
static char *format_plan(const struct style_search *s, const int32_t *spec)
{
	char *all = format_rules(s, spec, 0), *text;
	json_t *rules = all ? json_loads(all, 0, NULL) : NULL, *style;
	const char *pattern;
	void *next;

	json_object_foreach_safe(rules, next, pattern,
	                         style) if (!strcmp(json_string_value(style), "replicate"))
		json_object_del(rules, pattern);
	text = rules ? json_dumps(rules, JSON_COMPACT) : NULL;
	json_decref(rules);
	free(all);
	return text;
}

/* Records the program of one workload with a tail. */
static tess_status record_tail(struct style_search *s, const int32_t *spec,
                               const struct workload *w, int32_t tail, struct tess_program **out)
{
	struct tess_planned_model model = s->model;
	const struct tess_training training = { .lengths = &w->length,
		                                .nsequences = 1,
		                                .all_sequences = 1 };
	char *text = format_rules(s, spec, tail);
	tess_status st = text ? tess_plan_open(model.model, text, NULL, 0, &model.plan)
	                      : tess_fail(TESS_ENOMEM, "out of memory for a plan");

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

/* Records the program of one workload. TESS_ENOMEM; another failure: the styles are refused. */
static tess_status record_styles(struct style_search *s, const int32_t *spec,
                                 const struct workload *w, struct tess_program **out)
{
	tess_status st = record_tail(s, spec, w, s->tail, out);

	for (int32_t i = 0; i < s->ntails && st && st != TESS_ENOMEM; i++) {
		if (i == s->tail)
			continue;
		st = record_tail(s, spec, w, i, out);
		s->tail = st ? s->tail : i;
	}
	return st;
}

/* Returns the number of records of the forward. */
static int32_t count_forward(const struct tess_program *p)
{
	int32_t n = 0;

	while (n < p->nrecords && !p->record[n]->of)
		n++;
	return n;
}

/* Returns the first record after site i; the last site has the rest of the program. */
static int32_t find_end(const struct tess_program *p, int32_t i)
{
	return i + 1 < p->nmodules ? p->module[i + 1].record : count_forward(p);
}

/* Returns whether a name is that of something in a module. */
static bool is_below(const char *name, const char *path)
{
	size_t len = strlen(path);

	return !strncmp(name, path, len) && name[len] == '.';
}

/* ---- choices --------------------------------------------------------------------------------- */

/* Returns the pattern of a module, with `*` for the number of an alike layer. */
static const char *make_pattern(struct style_search *s, const char *path, int64_t *layer)
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
		if (is_below(p->weight[i]->name, path))
			return p->weight[i];
	return NULL;
}

/* Returns whether two modules are opened together, are of one kind, and have weights of one shape. */
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
	pattern = site->path ? make_pattern(s, site->path, &layer) : NULL;
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
		if (is_below(p->weight[i]->name, m->path))
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
	st = record_styles(s, spec, &s->load[0], &p);
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

static int32_t *make_undecided(struct style_search *s)
{
	int32_t *spec = TESS_NEW(&s->arena, int32_t, s->nchoices + 1);

	for (int32_t c = 0; c < s->nchoices && spec; c++)
		spec[c] = UNDECIDED;
	return spec;
}

/* Lists the modules of the model, and the styles that each of them may have. */
static tess_status list_choices(struct style_search *s)
{
	struct tess_program *p;
	int32_t *spec;
	tess_status st = record_tail(s, NULL, &s->load[0], 0, &p);

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
	spec = st ? NULL : make_undecided(s);
	for (int32_t i = 0; i < s->nsites && !st; i++)
		if (!s->choice[s->site[i].choice].nspecs)
			st = spec ? list_specs(s, i, spec) : TESS_ENOMEM;
	return st;
}

/* ---- states ---------------------------------------------------------------------------------- */

struct value_places { /* by id of a tensor, of the forward */
	int32_t *made; /* the record that makes it; -1: an input */
	int32_t *owner; /* the value that the model has, of which it is a copy with other places */
	int32_t *order; /* of the value among those that no move makes */
	bool *read; /* by a record after the site, or a copy of it is */
};

/* Returns whether a move is that of a module's input: the model has the value as it was before. */
static bool moves_input(const struct tess_program *p, const struct tess_record *move, int32_t made)
{
	for (int32_t i = 0; i < p->nmodules; i++)
		if (!strcmp(p->module[i].path, move->module))
			return p->module[i].record > made;
	return true;
}

/* Finds the values that records from `end` on read. */
static bool find_values(struct tess_arena *a, const struct tess_program *p, int32_t end,
                        struct value_places *v)
{
	int32_t n = count_forward(p), order = 0;

	v->made = TESS_NEW(a, int32_t, p->ntensors);
	v->owner = TESS_NEW(a, int32_t, p->ntensors);
	v->order = TESS_NEW(a, int32_t, p->ntensors);
	v->read = TESS_NEW(a, bool, p->ntensors);
	if (!v->made || !v->owner || !v->order || !v->read)
		return false;
	for (int32_t i = 0; i < p->ntensors; i++) {
		v->made[i] = -1;
		v->owner[i] = i;
	}
	for (int32_t i = 0; i < n; i++) {
		const struct tess_record *rec = p->record[i];
		bool move = rec->kind == TESS_REC_MOVE;

		for (int32_t k = 0; k < rec->nin && i >= end; k++)
			if (v->made[rec->in[k]->id] < end)
				v->read[v->owner[rec->in[k]->id]] = true;
		for (int32_t k = 0; k < rec->nout; k++) {
			int32_t id = rec->out[k]->id;

			v->made[id] = i;
			v->order[id] = move ? v->order[rec->in[0]->id] : ++order;
			if (move && moves_input(p, rec, v->made[rec->in[0]->id]))
				v->owner[id] = v->owner[rec->in[0]->id];
		}
	}
	return true;
}

static uint32_t get_place_bit(const struct tess_tensor *t)
{
	return 1u << (4 * t->place[0].kind + t->place[0].dim);
}

/* Formats the places of the values that are read from record `end` on. */
static const char *format_places(struct style_search *s, const struct tess_program *p,
                                 const struct value_places *v, int32_t end, bool with_copies)
{
	const char *text = "";
	int32_t n = count_forward(p);

	for (int32_t i = 0; i < end && i < n && text; i++)
		for (int32_t k = 0; k < p->record[i]->nout && text; k++) {
			const struct tess_tensor *t = p->record[i]->out[k];
			uint32_t copies = 0;

			if (v->owner[t->id] != t->id || !v->read[t->id])
				continue;
			for (const struct tess_redistributed *c = t->redistributed; c; c = c->next)
				if (v->made[c->to->id] < end && v->made[c->to->id] >= 0)
					copies |= get_place_bit(c->to);
			text = with_copies ? tess_arena_format(&s->arena, "%s %d:%x+%x", text,
			                                       (int)v->order[t->id],
			                                       (unsigned)get_place_bit(t),
			                                       (unsigned)copies)
			                   : tess_arena_format(&s->arena, "%s %x", text,
			                                       (unsigned)get_place_bit(t));
		}
	return text;
}

/* Returns whether a record is of a module, or computes with its weights. */
static bool is_of_module(const struct tess_record *rec, const char *path)
{
	bool is = !strcmp(rec->module, path);

	for (int32_t i = 0; i < rec->nweight && !is; i++)
		is = is_below(rec->weight[i]->name, path);
	return is;
}

/* Returns whether what follows site i depends on the style of site `at` by itself. */
static bool is_style_open(const struct style_search *s, const struct tess_program *p, int32_t at,
                          int32_t i)
{
	const char *path = s->site[at].path;
	int32_t n = count_forward(p);

	if (s->choice[s->site[at].choice].tied)
		return true;
	if (s->site[at].contains)
		return i + 1 < s->nsites && is_below(s->site[i + 1].path, path);
	for (int32_t k = find_end(p, i); k < n; k++)
		if (is_of_module(p->record[k], path))
			return true; /* several modules are opened before their records */
	return false;
}

/* Formats the state after site i. */
static const char *format_key(struct style_search *s, const struct tess_program *p,
                              const struct value_places *v, int32_t i, const int32_t *spec)
{
	const char *text = format_places(s, p, v, find_end(p, i), true);

	for (int32_t at = 0; at <= i && text; at++)
		if (is_style_open(s, p, at, i))
			text = tess_arena_format(&s->arena, "%s %d=%d", text,
			                         (int)s->site[at].choice,
			                         (int)spec[s->site[at].choice]);
	return text;
}

/* ---- costs ----------------------------------------------------------------------------------- */

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

/* Returns the bytes of the weights of records [first, end), with their gradients and state. */
static double count_site_weights(const struct style_search *s, const struct tess_program *p,
                                 int32_t first, int32_t end)
{
	double bytes = 0;

	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i];
		int32_t use = 0;

		while (use < end && !(p->record[use]->nweight && p->record[use]->weight[0] == w) &&
		       !(p->record[use]->nweight > 1 && p->record[use]->weight[1] == w))
			use++;
		if (use < first || use >= end || w->table)
			continue;
		bytes += (double)tess_weight_count_bytes(p, w, 0);
		if (s->planner->options.train)
			bytes +=
				sizeof(float) * (double)tess_weight_count_local(p, w, 0) +
				(double)tess_weight_count_state_bytes(p, w, 0, s->planner->moments);
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
		                             .last = &attended };
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
	int32_t first = t->site ? p->module[t->site].record : 0, end = find_end(p, t->site);
	struct tess_arena a = { 0 };
	struct value_places v;
	tess_status st = add_site_cost(s, p, w, first, end, t);

	if (!st && w == s->load) {
		t->bytes += count_site_weights(s, p, first, end);
		st = find_values(&a, p, end, &v) ? TESS_OK : TESS_ENOMEM;
		t->to = st ? NULL : format_key(s, p, &v, t->site, spec);
		t->places = st ? NULL : format_places(s, p, &v, end, false);
		tess_arena_free(&a);
		st = t->to && t->places ? TESS_OK : TESS_ENOMEM;
	}
	return st;
}

/* Finds a transition, or measures it. spec: the styles so far, with that of the site. */
static tess_status find_transition(struct style_search *s, int32_t site, const char *from,
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
		st = record_styles(s, spec, &s->load[i], &p);
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

/* ---- search ---------------------------------------------------------------------------------- */

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
	st = find_transition(s, site, from->key, spec, &t);
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
	int32_t *undecided = make_undecided(s), now = 1;
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
	char *text = list ? format_plan(s, k->spec) : NULL;
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
	int64_t n = w.sequences * w.length;
	int32_t *at = TESS_NEW(&s->arena, int32_t, 2 * n);

	if (!at)
		return TESS_ENOMEM;
	for (int64_t i = 0; i < n; i++) {
		at[i] = (int32_t)(w.from + i % w.length);
		at[n + i] = (int32_t)(i / w.length);
	}
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
	tess_machine_choose(p->machine, p->nranks, p->options.train);
	st = set_loads(s);
	if (!st)
		st = list_choices(s);
	if (!st)
		st = decide_sites(s, &found, &n);
	if (!st)
		st = add_best(s, found, n);
	tess_arena_free(&s->arena);
	free(s);
	return st;
}

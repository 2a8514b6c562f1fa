#include "nn/program/plan.h"

#include "core/base/json.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/program/strategy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PLAN_BYTES = 16 << 20 };

/* Adds a rule; `dim`: the mesh dimension if the rule names none. */
static tess_status add_rule(struct tess_plan *p, const char *dim, const char *pattern,
                            const char *style, const char *origin)
{
	struct tess_plan_rule *rule =
		tess_arena_grow(&p->arena, p->rule, (size_t)p->nrules, sizeof *rule);
	size_t len = strcspn(pattern, ":");
	const char *after = pattern[len] ? pattern + len + 1 : pattern;
	bool optional = *after == '?';
	char *dim_copy = after == pattern ? tess_arena_copy(&p->arena, dim, SIZE_MAX)
	                                  : tess_arena_copy(&p->arena, pattern, len);
	char *pattern_copy = tess_arena_copy(&p->arena, after + optional, SIZE_MAX);
	char *style_copy = tess_arena_copy(&p->arena, style, SIZE_MAX);

	if (!rule || !dim_copy || !pattern_copy || !style_copy)
		return TESS_ENOMEM;
	if (!*pattern_copy || !*style_copy || *style_copy == ':')
		return tess_fail(TESS_EINVAL, "%s: rule \"%s\": \"%s\" needs a pattern and a style",
		                 origin, pattern, style);
	rule[p->nrules] =
		(struct tess_plan_rule){ dim_copy, pattern_copy, style_copy, origin, optional };
	p->has_ep = p->has_ep || !strcmp(dim_copy, "ep");
	p->rule = rule;
	p->nrules++;
	return TESS_OK;
}

static tess_status add_preset(struct tess_plan *p, const struct tess_preset *preset)
{
	tess_status st = TESS_OK;

	p->name = preset->name;
	if (!preset->rules)
		return tess_fail(TESS_EABI, "plan %s of the model has no rules", preset->name);
	for (const struct tess_rule *r = preset->rules; !st && r->pattern; r++)
		st = add_rule(p, "tp", r->pattern, r->style ? r->style : "", preset->name);
	return st;
}

static tess_status add_json_rules(struct tess_plan *p, const char *dim, const json_t *rules,
                                  const char *name)
{
	tess_status st = TESS_OK;

	for (void *it = json_object_iter((json_t *)rules); it && !st;
	     it = json_object_iter_next((json_t *)rules, it)) {
		const char *key = json_object_iter_key(it);
		const json_t *value = json_object_iter_value(it);

		if (json_is_object(value) && !dim)
			st = add_json_rules(p, key, value, name);
		else if (!json_is_string(value))
			st = tess_fail(
				TESS_EINVAL, "%s: \"%s\": the style must be a string%s", name, key,
				tess_strategy_has_key(key) ? "; a strategy needs the key \"plan\""
							   : "");
		else if (dim && strchr(key, ':'))
			st = tess_fail(TESS_EINVAL,
			               "%s: rule \"%s\" names a mesh dimension among the rules "
			               "of %s",
			               name, key, dim);
		else
			st = add_rule(p, dim ? dim : "tp", key, json_string_value(value), name);
	}
	return st;
}

/* Adds {pattern: style}, in which a key with an object of rules is a mesh dimension. */
static tess_status add_json(struct tess_plan *p, const json_t *root, const char *name)
{
	if (!json_is_object(root))
		return tess_fail(TESS_EINVAL, "%s: a plan is an object {pattern: style}", name);
	if (json_object_get(root, "plan")) /* tess_strategy_read has not read it */
		return tess_fail(TESS_EINVAL,
		                 "%s: is a strategy, by its key \"plan\"; name its file with a "
		                 "directory, as ./%s",
		                 name, name);
	return add_json_rules(p, NULL, root, name);
}

static const struct tess_preset *find_preset(const struct tess_model *model, const char *name)
{
	for (const struct tess_preset *s = model->presets; s && s->name; s++)
		if (!name || !strcmp(s->name, name))
			return s;
	return NULL;
}

/* Reports an unknown plan, with the known names and the nearest one. what: "no", of `spec`. */
static tess_status fail_plan_name(struct tess_plan *p, const struct tess_model *model,
                                  const char *spec, const char *what)
{
	const char *list = model->presets && model->presets->name ? "auto, none" : "none";
	const char *near = NULL;
	size_t best = TESS_NEAREST_INIT;

	for (const struct tess_preset *s = model->presets; list && s && s->name; s++) {
		list = tess_arena_format(&p->arena, "%s, %s", list, s->name);
		if (tess_nearest_update(spec, s->name, &best))
			near = s->name;
	}
	if (!list)
		return TESS_ENOMEM;
	return tess_fail(TESS_ENOENT, "plan \"%s\": %s plan of model %s, which has %s%s%s%s", spec,
	                 what, model->name, list, near ? "; did you mean " : "", near ? near : "",
	                 near ? "?" : "");
}

/* Adds overrides, "PATTERN=STYLE"; origin: for messages. */
static tess_status add_overrides(struct tess_plan *p, const char *const *overrides, int32_t n,
                                 const char *origin)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < n && !st; i++) {
		const char *eq = strchr(overrides[i], '=');
		const char *pattern =
			eq ? tess_arena_copy(&p->arena, overrides[i], (size_t)(eq - overrides[i]))
			   : NULL;

		if (!eq)
			st = tess_fail(TESS_EINVAL, "%s \"%s\": use PATTERN=STYLE", origin,
			               overrides[i]);
		else
			st = pattern ? add_rule(p, "tp", pattern, eq + 1, origin) : TESS_ENOMEM;
	}
	return st;
}

/* Adds "none", "auto" or a preset. TESS_ENOENT, without a message: `spec` is none of these. */
static tess_status add_named(struct tess_plan *p, const struct tess_model *model, const char *spec)
{
	const struct tess_preset *preset;

	if (spec && !strcmp(spec, "none")) {
		p->name = "none";
		return TESS_OK;
	}
	preset = find_preset(model, !spec || !strcmp(spec, "auto") ? NULL : spec);
	if (preset)
		return add_preset(p, preset);
	if (!spec || !strcmp(spec, "auto"))
		return tess_fail(TESS_ENOTSUP, "model %s ships no plan; name one with --plan",
		                 model->name);
	return TESS_ENOENT;
}

/* Adds the plan and the overrides of a strategy. */
static tess_status add_strategy(struct tess_plan *p, const struct tess_model *model,
                                const struct tess_strategy *s)
{
	const char *name = tess_arena_copy(&p->arena, s->name, SIZE_MAX);
	json_t *root = NULL;
	int32_t n = 0;
	tess_status st = name ? TESS_OK : TESS_ENOMEM;

	while (s->overrides && s->overrides[n])
		n++;
	if (!st && s->plan[0] == '{')
		st = tess_json_parse(name, s->plan, strlen(s->plan), &root);
	if (!st)
		st = root ? add_json_rules(p, NULL, root, name) : add_named(p, model, s->plan);
	if (st == TESS_ENOENT)
		st = tess_fail_in(fail_plan_name(p, model, s->plan, "no"), "%s", name);
	json_decref(root);
	p->nplanned = p->nrules;
	if (!st)
		st = add_overrides(p, s->overrides, n, name);
	p->nstrategy = p->nrules;
	p->name = name;
	return st;
}

/* Adds the rules of a file or of JSON text. */
static tess_status add_rules(struct tess_plan *p, const struct tess_model *model, const char *spec)
{
	json_t *root = NULL;
	struct stat about;
	tess_status st;

	if (spec[0] != '{' && !stat(spec, &about) && S_ISDIR(about.st_mode))
		return fail_plan_name(
			p, model, spec,
			"neither a file nor a"); /* a folder may have any name: "hf" */
	p->name = spec[0] == '{' ? "the plan" : tess_arena_copy(&p->arena, spec, SIZE_MAX);
	if (spec[0] == '{')
		st = tess_json_parse(p->name, spec, strlen(spec), &root);
	else
		st = tess_json_load(spec, PLAN_BYTES, &root);
	if (st == TESS_ENOENT)
		return fail_plan_name(p, model, spec, "neither a file nor a");
	if (!st)
		st = add_json(p, root, p->name);
	json_decref(root);
	return st;
}

static tess_status add_spec(struct tess_plan *p, const struct tess_model *model, const char *spec)
{
	struct tess_strategy *strategy = NULL;
	tess_status st = add_named(p, model, spec);

	if (st != TESS_ENOENT)
		return st;
	st = tess_strategy_read(spec, &strategy);
	if (!st)
		st = strategy ? add_strategy(p, model, strategy) : add_rules(p, model, spec);
	tess_strategy_free(strategy);
	return st;
}

static int compare_patterns(const void *a, const void *b, void *plan)
{
	const struct tess_plan *p = plan;

	return strcmp(p->rule[*(const int32_t *)a].pattern, p->rule[*(const int32_t *)b].pattern);
}

/* Indexes the rules: a plan may have one for each of many modules. */
static tess_status index_rules(struct tess_plan *p)
{
	p->exact = TESS_NEW(&p->arena, int32_t, p->nrules);
	p->glob = TESS_NEW(&p->arena, int32_t, p->nrules);
	if (!p->exact || !p->glob)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nrules; i++)
		if (strchr(p->rule[i].pattern, '*'))
			p->glob[p->nglobs++] = i;
		else
			p->exact[p->nexact++] = i;
	qsort_r(p->exact, (size_t)p->nexact, sizeof *p->exact, compare_patterns, p);
	return TESS_OK;
}

tess_status tess_plan_open(const struct tess_model *model, const char *spec,
                           const char *const *overrides, int32_t n, struct tess_plan *out)
{
	struct tess_plan p = { 0 };
	tess_status st = add_spec(&p, model, spec);

	if (!p.nstrategy)
		p.nplanned = p.nrules;
	if (!st)
		st = add_overrides(&p, overrides, n, "--plan-override");
	if (!st)
		st = index_rules(&p);
	if (st)
		tess_plan_free(&p);
	else
		*out = p;
	return st;
}

void tess_plan_free(struct tess_plan *p)
{
	if (p)
		tess_arena_free(&p->arena);
}

/* Returns the component after the one at `at`; NULL: it is the last. */
static const char *skip_component(const char *at)
{
	at = strchr(at, '.');
	return at ? at + 1 : NULL;
}

static bool is_component(const char *at, const char *text)
{
	for (; *text && *at == *text; text++)
		at++;
	return !*text && (!*at || *at == '.');
}

static bool matches_component(const char *pattern, const char *path)
{
	if (is_component(pattern, "*"))
		return true;
	for (; *pattern == *path && *path && *path != '.'; path++)
		pattern++;
	return (!*pattern || *pattern == '.') && (!*path || *path == '.');
}

/* Matches a path; after a mismatch the last `**` takes one more component. */
static bool matches_path(const char *pattern, const char *path)
{
	const char *after = NULL, *taken = NULL;

	while (pattern || path) {
		if (pattern && is_component(pattern, "**")) {
			pattern = after = skip_component(pattern);
			taken = path;
			if (!after)
				return true;
		} else if (pattern && path && matches_component(pattern, path)) {
			pattern = skip_component(pattern);
			path = skip_component(path);
		} else if (taken) {
			pattern = after;
			path = taken = skip_component(taken);
		} else {
			return false;
		}
	}
	return true;
}

struct rule_search { /* iterates over rules that may match a path: exact ones, then globs */
	const char *name[2]; /* the path, and without its first component; NULL: done */
	int32_t exact[2], glob; /* the next rules */
};

/* Returns the first exact rule whose pattern is `name` or follows it. */
static int32_t find_exact_rule(const struct tess_plan *p, const char *name)
{
	int32_t lo = 0, hi = p->nexact;

	while (lo < hi) {
		int32_t mid = lo + (hi - lo) / 2;

		if (strcmp(p->rule[p->exact[mid]].pattern, name) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static struct rule_search begin_rule_search(const struct tess_plan *p, const char *path)
{
	const char *dot = strchr(path, '.');
	struct rule_search s = { { path, dot ? dot + 1 : NULL }, { 0 }, 0 };

	for (int k = 0; k < 2; k++)
		s.exact[k] = s.name[k] ? find_exact_rule(p, s.name[k]) : p->nexact;
	return s;
}

/* Returns the next rule; -1: none. */
static int32_t find_next_rule(const struct tess_plan *p, struct rule_search *s)
{
	for (int k = 0; k < 2; k++)
		if (s->exact[k] < p->nexact &&
		    !strcmp(p->rule[p->exact[s->exact[k]]].pattern, s->name[k]))
			return p->exact[s->exact[k]++];
	return s->glob < p->nglobs ? p->glob[s->glob++] : -1;
}

/*
 * Rates a rule; lower is more specific: overrides first, before those of a strategy, then patterns
 * with fewer `**`, then with fewer `*`, and of those with `**` the longer.
 */
static int64_t rate_rule(const struct tess_plan *p, int32_t i)
{
	int64_t tier = i < p->nplanned ? 2 : i < p->nstrategy, n = tier << 60, components = 0;
	bool any = false;

	for (const char *c = p->rule[i].pattern; c; c = skip_component(c)) {
		n += is_component(c, "**")  ? INT64_C(1) << 40
		     : is_component(c, "*") ? INT64_C(1) << 20
		                            : 0;
		any = any || is_component(c, "**");
		components++;
	}
	return any ? n - components : n;
}

bool tess_pattern_matches(const char *pattern, const char *path)
{
	const char *below = skip_component(path);

	return matches_path(pattern, path) || (below && matches_path(pattern, below));
}

/* Finds the rule of `path` among those of one mesh dimension. */
static tess_status find_rule(const struct tess_plan *p, const char *dim, const char *path,
                             const char *module, bool *used, int32_t *out)
{
	struct rule_search search = begin_rule_search(p, path);
	int32_t best = -1, rival = -1, i;
	int64_t min_rating = INT64_MAX;

	while ((i = find_next_rule(p, &search)) >= 0) {
		const char *pattern = p->rule[i].pattern;
		int64_t rating;

		if (strcmp(p->rule[i].dim, dim) != 0 || !tess_pattern_matches(pattern, path) ||
		    (module && tess_pattern_matches(pattern, module)))
			continue;
		used[i] = true;
		rating = rate_rule(p, i);
		if (rating < min_rating) {
			min_rating = rating;
			best = i;
			rival = -1;
		} else if (rating == min_rating && strcmp(p->rule[i].style, p->rule[best].style)) {
			rival = i;
		}
	}
	if (rival >= 0)
		return tess_fail(TESS_EINVAL,
		                 "%s: the rules \"%s\": \"%s\" and \"%s\": \"%s\" of %s match it "
		                 "equally well and differ; %s",
		                 path, p->rule[best].pattern, p->rule[best].style,
		                 p->rule[rival].pattern, p->rule[rival].style, p->rule[best].origin,
		                 strchr(p->rule[best].pattern, '*') ? "a rule with fewer * decides"
		                                                    : "leave one of them out");
	*out = best;
	return TESS_OK;
}

/* Finds whether a module that contains `path` has a rule of dimension ep. */
static tess_status find_expert_rule_above(const struct tess_plan *p, const char *path, bool *used,
                                          bool *out)
{
	char *above = strdup(path), *dot;
	int32_t rule = -1;
	tess_status st = above ? TESS_OK : TESS_ENOMEM;

	while (!st && rule < 0 && (dot = strrchr(above, '.'))) {
		*dot = 0;
		st = find_rule(p, "ep", above, NULL, used, &rule);
	}
	free(above);
	*out = rule >= 0;
	return st;
}

tess_status tess_plan_find(const struct tess_plan *p, const struct tess_mesh_shape *mesh,
                           int32_t along, const char *path, const char *module, bool *used,
                           int32_t *out)
{
	const char *dim = mesh->dim[along].name;
	int32_t rule = -1, expert_rule;
	bool above;
	tess_status st, expert_st;

	st = find_rule(p, dim, path, module, used, &rule);
	if (p->has_ep && !strcmp(dim, "tp") && tess_mesh_shape_find(mesh, "ep", 2) < 0) {
		expert_st = find_rule(p, "ep", path, module, used, &expert_rule);
		if (!expert_st && expert_rule < 0)
			expert_st = find_expert_rule_above(p, path, used, &above);
		else
			above = true;
		if (expert_st || above) {
			st = expert_st;
			rule = expert_rule;
		}
	}
	if (!st)
		*out = rule;
	return st;
}

bool tess_pattern_is_glob(const char *pattern)
{
	for (const char *c = pattern; c; c = skip_component(c))
		if (memchr(c, '*', strcspn(c, ".")) && !is_component(c, "*") &&
		    !is_component(c, "**"))
			return true;
	return false;
}

bool tess_plan_skips_rule(const struct tess_plan *p, const struct tess_mesh_shape *mesh, int32_t i)
{
	return i < p->nstrategy && !strcmp(p->rule[i].dim, "dp") &&
	       tess_mesh_shape_find(mesh, "dp", 2) < 0;
}

tess_status tess_plan_check_mesh(const struct tess_plan *plan, const struct tess_mesh_shape *mesh)
{
	char text[TESS_MESH_TEXT];

	for (int32_t i = 0; i < plan->nrules; i++) {
		const struct tess_plan_rule *rule = &plan->rule[i];
		const char *ranks = strcmp(rule->dim, "ep") ? rule->dim : "tp";

		if (tess_mesh_shape_find(mesh, rule->dim, strlen(rule->dim)) >= 0 ||
		    tess_mesh_shape_find(mesh, ranks, strlen(ranks)) >= 0 ||
		    tess_plan_skips_rule(plan, mesh, i))
			continue;
		if (!strcmp(rule->dim, "dp"))
			return tess_fail(
				TESS_EINVAL,
				"%s: rule \"%s\": \"%s\" is for mesh dimension dp, whose rules "
				"are for training on a mesh that has it; without training the "
				"replicas along dp compute apart, and take no rules",
				rule->origin, rule->pattern, rule->style);
		return tess_fail(
			TESS_EINVAL,
			"%s: rule \"%s\": \"%s\" is for mesh dimension %s, and the program runs on "
			"%s; add %s to the mesh, if only as %s=1, or name one of its dimensions "
			"before the pattern",
			rule->origin, rule->pattern, rule->style, rule->dim,
			tess_mesh_shape_format(mesh, text), rule->dim, rule->dim);
	}
	for (int32_t i = 0; i < mesh->ndims; i++) {
		const struct tess_mesh_dim *d = &mesh->dim[i];
		int32_t k = 0;

		while (k < plan->nrules && strcmp(plan->rule[k].dim, d->name) != 0)
			k++;
		if (k == plan->nrules && d->size > 1 && strcmp(d->name, "tp") != 0 &&
		    strcmp(d->name, "dp") != 0 && strcmp(d->name, "pp") != 0)
			return tess_fail(TESS_EINVAL,
			                 "plan %s has no rule for mesh dimension %s, along which "
			                 "all ranks would compute the same; leave %s out, or name "
			                 "it in a rule, as in %s:PATTERN=STYLE",
			                 plan->name, d->name, d->name, d->name);
	}
	return TESS_OK;
}

#include "plan.h"

#include "core/base/json.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { PLAN_BYTES = 16 << 20 };

static tess_status add(struct tess_plan *p, const char *pattern, const char *style,
                       const char *origin)
{
	struct tess_rule *rule = TESS_NEW(&p->arena, struct tess_rule, p->nrules + 1);
	const char **from = TESS_NEW(&p->arena, const char *, p->nrules + 1);
	char *at = tess_arena_copy(&p->arena, pattern, SIZE_MAX);
	char *how = tess_arena_copy(&p->arena, style, SIZE_MAX);

	if (!rule || !from || !at || !how)
		return TESS_ENOMEM;
	if (!*at || !*how)
		return tess_fail(TESS_EINVAL, "%s: rule \"%s\": \"%s\" needs a pattern and a style",
		                 origin, pattern, style);
	if (p->nrules) {
		memcpy(rule, p->rule, sizeof *rule * (size_t)p->nrules);
		memcpy(from, p->origin, sizeof *from * (size_t)p->nrules);
	}
	rule[p->nrules] = (struct tess_rule){ at, how };
	from[p->nrules] = origin;
	p->rule = rule;
	p->origin = from;
	p->nrules++;
	return TESS_OK;
}

static tess_status add_preset(struct tess_plan *p, const struct tess_preset *preset)
{
	tess_status st = TESS_OK;

	p->name = preset->name;
	for (const struct tess_rule *r = preset->rules; !st && r->pattern; r++)
		st = add(p, r->pattern, r->style, preset->name);
	return st;
}

/* {pattern: style}, or that below the mesh dimension that is cut. */
static tess_status add_json(struct tess_plan *p, const json_t *root, const char *name)
{
	const json_t *rules = json_object_get(root, "tp"), *style;
	const char *pattern;
	tess_status st = TESS_OK;
	void *it;

	if (!json_is_object(root))
		return tess_fail(TESS_EINVAL, "%s: a plan is an object {pattern: style}", name);
	if (!json_is_object(rules))
		rules = root;
	else if (json_object_size(root) != 1)
		return tess_fail(TESS_ENOTSUP,
		                 "%s: only the mesh dimension \"tp\" can be planned here", name);
	for (it = json_object_iter((json_t *)rules); it && !st;
	     it = json_object_iter_next((json_t *)rules, it)) {
		pattern = json_object_iter_key(it);
		style = json_object_iter_value(it);
		if (!json_is_string(style))
			return tess_fail(TESS_EINVAL, "%s: \"%s\": the style must be a string",
			                 name, pattern);
		st = add(p, pattern, json_string_value(style), name);
	}
	return st;
}

static const struct tess_preset *preset_named(const struct tess_model *model, const char *name)
{
	for (const struct tess_preset *s = model->presets; s && s->name; s++)
		if (!name || !strcmp(s->name, name))
			return s;
	return NULL;
}

static tess_status add_spec(struct tess_plan *p, const struct tess_model *model, const char *spec)
{
	const struct tess_preset *preset;
	json_t *root = NULL;
	tess_status st;

	if (spec && !strcmp(spec, "none")) {
		p->name = "none";
		return TESS_OK;
	}
	preset = preset_named(model, !spec || !strcmp(spec, "auto") ? NULL : spec);
	if (preset)
		return add_preset(p, preset);
	if (!spec || !strcmp(spec, "auto"))
		return tess_fail(TESS_ENOTSUP, "model %s ships no plan; name one with --plan",
		                 model->name);
	p->name = spec[0] == '{' ? "the plan" : tess_arena_copy(&p->arena, spec, SIZE_MAX);
	if (spec[0] == '{')
		st = tess_json_parse(p->name, spec, strlen(spec), &root);
	else
		st = tess_json_load(spec, PLAN_BYTES, &root);
	if (st == TESS_ENOENT)
		return tess_fail(
			st, "plan \"%s\": neither a file nor a plan that model %s ships (%s, none)",
			spec, model->name, preset_named(model, NULL) ? "auto, tp, ..." : "none");
	if (!st)
		st = add_json(p, root, p->name);
	json_decref(root);
	return st;
}

tess_status tess_plan_open(const struct tess_model *model, const char *spec,
                           const char *const *overrides, int32_t n, struct tess_plan *out)
{
	struct tess_plan p = { 0 };
	tess_status st = add_spec(&p, model, spec);

	for (int32_t i = 0; i < n && !st; i++) {
		const char *eq = strchr(overrides[i], '=');
		const char *pattern =
			eq ? tess_arena_copy(&p.arena, overrides[i], (size_t)(eq - overrides[i]))
			   : NULL;

		if (!eq)
			st = tess_fail(TESS_EINVAL, "--plan-override \"%s\": say PATTERN=STYLE",
			               overrides[i]);
		else
			st = pattern ? add(&p, pattern, eq + 1, "--plan-override") : TESS_ENOMEM;
	}
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

/* Component by component; `*` is any one of them. */
static bool fits(const char *pattern, const char *path)
{
	for (;;) {
		size_t a = strcspn(pattern, "."), b = strcspn(path, ".");

		if ((a != 1 || *pattern != '*') && (a != b || strncmp(pattern, path, a)))
			return false;
		if (!pattern[a] || !path[b])
			return pattern[a] == path[b];
		pattern += a + 1;
		path += b + 1;
	}
}

int32_t tess_plan_find(const struct tess_plan *p, const char *path, bool *used)
{
	const char *below = strchr(path, '.');
	int32_t exact = -1, any = -1;

	for (int32_t i = 0; i < p->nrules; i++) {
		const char *pattern = p->rule[i].pattern;
		bool same = !strcmp(pattern, path) || (below && !strcmp(pattern, below + 1));

		if (!same && !fits(pattern, path) && !(below && fits(pattern, below + 1)))
			continue;
		used[i] = true;
		if (same)
			exact = i;
		any = i;
	}
	return exact >= 0 ? exact : any;
}

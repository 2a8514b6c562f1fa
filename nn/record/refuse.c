/* refuse.c - messages about the rules of a plan. */
#include "core/base/option.h"
#include "nn/record/recorder.h"

#include <string.h>

/* Returns "**.x" for a pattern "*.x" without matches, if the longer one has some; or NULL. */
static const char *find_deep_pattern(struct tess_recorder *r, const char *pattern)
{
	const char *deep =
		strncmp(pattern, "*.", 2) ? NULL : tess_arena_format(&r->p->arena, "*%s", pattern);

	for (const struct tess_module *m = r->modules; deep && m; m = m->before)
		if (tess_pattern_matches(deep, m->site.module))
			return deep;
	return NULL;
}

/* Returns the module whose name is nearest to a pattern without matches. */
static const char *find_nearest_module(const struct tess_recorder *r, const char *pattern)
{
	const char *best = "";
	size_t min_distance = SIZE_MAX;

	for (const struct tess_module *m = r->modules; m; m = m->before) {
		size_t d = tess_edit_distance(pattern, m->site.module);

		if (d <= min_distance) { /* listed last first: keeps the first of equals */
			min_distance = d;
			best = m->site.module;
		}
	}
	return best;
}

void tess_recorder_check_rules(struct tess_recorder *r)
{
	const struct tess_plan *plan = r->options->plan;
	const char *deep;
	int32_t i = 0;
	bool tp;

	while (i < plan->nrules && (r->used_rules[i] || plan->rule[i].optional ||
	                            tess_plan_skips_rule(plan, &r->options->mesh, i)))
		i++;
	if (i == plan->nrules)
		return;
	tp = !strcmp(plan->rule[i].dim, "tp");
	deep = find_deep_pattern(r, plan->rule[i].pattern);
	tess_recorder_fail(r, TESS_EINVAL,
	                   "%s: rule \"%s%s%s\": \"%s\" matches no module of this checkpoint "
	                   "(nearest: %s)%s%s",
	                   plan->rule[i].origin, tp ? "" : plan->rule[i].dim, tp ? "" : ":",
	                   plan->rule[i].pattern, plan->rule[i].style,
	                   find_nearest_module(r, plan->rule[i].pattern),
	                   tess_pattern_is_glob(plan->rule[i].pattern)
	                           ? "; * stands for a whole component of a name, not a part"
	                           : "",
	                   deep ? tess_arena_format(&r->p->arena, "; did you mean %s?", deep) : "");
}

/* Returns the module named by a word of a message, directly or by its parameter; NULL: none. */
static const struct tess_module *find_named_module(const struct tess_recorder *r, const char *word,
                                                   size_t len)
{
	const struct tess_module *best = NULL;
	size_t longest = 0;

	for (const struct tess_module *m = r->modules; m; m = m->before) {
		size_t n = strlen(m->site.module);

		if (n <= longest || n > len || memcmp(word, m->site.module, n) != 0 ||
		    (n < len && word[n] != '.'))
			continue;
		longest = n;
		best = m;
	}
	return best;
}

/* Appends '"PATTERN": "STYLE" of PLAN' to RULES, unless the rule is in RULES. */
static const char *append_rule(struct tess_recorder *r, const char *rules,
                               const struct tess_plan_rule *rule)
{
	bool tp = !strcmp(rule->dim, "tp");
	const char *one =
		tess_arena_format(&r->p->arena, "\"%s%s%s\": \"%s\" of %s", tp ? "" : rule->dim,
	                          tp ? "" : ":", rule->pattern, rule->style, rule->origin);

	if (!one || !rules || strstr(rules, one))
		return rules;
	return tess_arena_format(&r->p->arena, "%s%s%s", rules, *rules ? ", " : "", one);
}

void tess_recorder_name_rules(struct tess_recorder *r)
{
	static const char delimiters[] = " :;,()";
	const char *rules = "", *text = r->sentence;

	if (!text || strstr(text, "rule \"") || strstr(text, "rules \""))
		return;
	for (const char *at = text; *at; at += strspn(at, delimiters)) {
		size_t len = strcspn(at, delimiters);
		const struct tess_module *m = find_named_module(r, at, len);

		for (int32_t i = 0; m && i < r->p->mesh.ndims; i++)
			if (m[i].rule)
				rules = append_rule(r, rules, m[i].rule);
		at += len;
	}
	if (rules && *rules)
		text = tess_arena_format(&r->p->arena, "%s (%s)", text, rules);
	r->sentence = text ? text : r->sentence;
}

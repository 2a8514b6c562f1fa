/*
 * plan.h - the style of each module along each mesh dimension: {dimension: {pattern: style}}.
 *
 * A pattern is a dotted path in which `*` matches one component, and `**` any number of them; it
 * may omit the path's first component. Several rules of a dimension may match a module: an override
 * precedes, then the rule with fewer `**`, then with fewer `*`, and of those with `**` the longer.
 * If several different rules remain, the plan is refused, independent of their order. A parameter
 * without a rule of its own follows its module; modules without a rule are replicated.
 */
#ifndef TESS_NN_PLAN_H
#define TESS_NN_PLAN_H

#include "core/base/arena.h"
#include "core/world/mesh_shape.h"

#include <stdbool.h>
#include <tessera/model.h>

struct tess_plan_rule {
	const char *dim; /* mesh dimension */
	const char *pattern, *style;
	const char *origin; /* the plan's name, a strategy's or "--plan-override" */
	bool optional; /* allowed to match no module */
};

struct tess_plan {
	struct tess_arena arena;
	const char *name; /* "tp", a file, "inline" */
	/*
	 * The first nplanned rules are the plan's, the rest are overrides. Of a strategy are the
	 * first nstrategy, those of its own overrides included; 0: there is no strategy.
	 */
	int32_t nrules, nplanned, nstrategy;
	struct tess_plan_rule *rule;
	bool has_ep; /* has a rule of dimension ep */
	int32_t nexact, nglobs; /* rules without `*`, by pattern; and the others */
	int32_t *exact, *glob;
};

/*
 * Opens a plan. `spec`: NULL or "auto" (the model's first preset), "none", a preset's name, a file,
 * or JSON text that starts with '{': {pattern: style} or {"tp": {pattern: style}, ...}, or a
 * strategy (tessera/strategy.h), whose plan and overrides are used. `overrides`: n texts
 * "PATTERN=STYLE". A pattern may begin with its mesh dimension, "xp:PATTERN"; the default is tp. A
 * `?` before it allows that it matches no module. Free *out by tess_plan_free.
 */
tess_status tess_plan_open(const struct tess_model *model, const char *spec,
                           const char *const *overrides, int32_t n, struct tess_plan *out);
void tess_plan_free(struct tess_plan *p);

/*
 * Finds the rule of the module or parameter `path` along mesh dimension `along`; -1: none.
 * `module`: the module of a parameter, else NULL. The rules of a parameter are those that do not
 * match its module, too. Sets used[nrules] for each pattern that matches, even if another rule
 * precedes. If the mesh has no dimension ep, rules of ep apply to tp: a module that has one, and
 * those below it, take no rule of tp. TESS_EINVAL: equally specific rules differ.
 */
tess_status tess_plan_find(const struct tess_plan *p, const struct tess_mesh_shape *mesh,
                           int32_t along, const char *path, const char *module, bool *used,
                           int32_t *out);
/*
 * Checks a mesh. TESS_EINVAL: it lacks the dimension of a rule, which would be ignored; or it has a
 * dimension without rules, other than tp, dp and pp, along which all ranks would compute the same.
 * Rules of ep may use tp's ranks.
 */
tess_status tess_plan_check_mesh(const struct tess_plan *p, const struct tess_mesh_shape *mesh);
/* Returns whether a rule has no effect: of a strategy, along dp, on a mesh without dp. */
bool tess_plan_skips_rule(const struct tess_plan *p, const struct tess_mesh_shape *mesh, int32_t i);
/* Returns whether a pattern, which may omit the first component, matches a module's path. */
bool tess_pattern_matches(const char *pattern, const char *path);
/* Returns whether a component mixes `*` with other characters, so that it matches nothing. */
bool tess_pattern_is_glob(const char *pattern);

#endif

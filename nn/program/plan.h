/*
 * plan.h - how each module is cut along each mesh dimension: {dimension: {pattern: style}}. A
 * pattern is a dotted path in which `*` stands for one whole component, and `**` for any number of
 * them; it may leave out the path's first component. Of the rules of a dimension that match a
 * module an override wins, then the one with fewer `**`, then with fewer `*`, and of those with
 * `**` the longer; if several different ones remain, the plan is refused, whatever their order. A
 * parameter without a rule of its own follows its module; what no rule matches is replicated.
 */
#ifndef TESS_NN_PLAN_H
#define TESS_NN_PLAN_H

#include "core/base/arena.h"
#include "core/world/mesh_shape.h"

#include <stdbool.h>
#include <tessera/model.h>

struct tess_plan_rule {
	const char *dim; /* of the mesh */
	const char *pattern, *style;
	const char *origin; /* the plan's name or "--plan-override" */
	bool optional; /* it may match no module */
};

struct tess_plan {
	struct tess_arena arena;
	const char *name; /* "tp", a file, "inline" */
	int32_t nrules, nplanned; /* the first nplanned are the plan's, the rest overrides */
	struct tess_plan_rule *rule;
	bool has_ep; /* a rule of dimension ep */
	int32_t nexact, nglobs; /* rules without `*`, by pattern, and the rest */
	int32_t *exact, *glob;
};

/*
 * `spec`: NULL or "auto" (the model's first preset), "none", a preset's name, a file, or JSON text
 * that starts with '{': {pattern: style} or {"tp": {pattern: style}, ...}. `overrides`: n texts
 * "PATTERN=STYLE". A pattern may begin with its mesh dimension, "xp:PATTERN"; without one it is of
 * tp; a `?` before it says that it may match no module. *out is yours: tess_plan_free.
 */
tess_status tess_plan_open(const struct tess_model *model, const char *spec,
                           const char *const *overrides, int32_t n, struct tess_plan *out);
void tess_plan_free(struct tess_plan *p);

/*
 * The rule of the module or parameter `path` along mesh dimension `along`, -1: none. `module`: of a
 * parameter, whose own rules are those that do not match its module too; else NULL. Sets
 * used[nrules] of each pattern that matches, also if it loses. Where the mesh has no dimension ep,
 * rules of ep are for tp: a module that has one, and what is below it, takes no rule of tp.
 * TESS_EINVAL: rules that are equally specific differ.
 */
tess_status tess_plan_find(const struct tess_plan *p, const struct tess_mesh_shape *mesh,
                           int32_t along, const char *path, const char *module, bool *used,
                           int32_t *out);
/*
 * TESS_EINVAL: the mesh lacks the dimension of a rule, which would be ignored; or it has one other
 * than tp, dp and pp that no rule is for, along which all ranks would compute the same. Rules of ep
 * may take tp's ranks.
 */
tess_status tess_plan_check_mesh(const struct tess_plan *p, const struct tess_mesh_shape *mesh);
/* Whether a pattern matches the path of a module, whose first component it may leave out. */
bool tess_pattern_matches(const char *pattern, const char *path);
/* Whether a component mixes `*` with other characters, so that it matches nothing. */
bool tess_pattern_is_glob(const char *pattern);

#endif

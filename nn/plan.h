/*
 * plan.h - which module is cut how: {pattern: style}. A pattern is a dotted path in which `*` stands for one
 * component, full or below the base model; the exact path wins over a pattern, a later rule over an
 * earlier one; a parameter falls back to its module; what nothing matches is replicated.
 */
#ifndef TESS_NN_PLAN_H
#define TESS_NN_PLAN_H

#include "core/base/arena.h"

#include <stdbool.h>
#include <tessera/model.h>

struct tess_plan {
	struct tess_arena arena;
	const char *name; /* "tp", a file, "inline" */
	int32_t nrules;
	struct tess_rule *rule;
	const char **origin; /* of each rule, for messages: the plan's name or "--plan-override" */
};

/*
 * `spec`: NULL or "auto" (the model's first preset), "none", a preset's name, a file, or JSON text that
 * starts with '{': {pattern: style} or {"tp": {pattern: style}}. `overrides`: n texts "PATTERN=STYLE".
 * *out is yours: tess_plan_free.
 */
tess_status tess_plan_open(const struct tess_model *model, const char *spec,
                           const char *const *overrides, int32_t n, struct tess_plan *out);
void tess_plan_free(struct tess_plan *p);

/* The rule of `path`, -1: none. Patterns that match and lose count as used: used[nrules] is set. */
int32_t tess_plan_find(const struct tess_plan *p, const char *path, bool *used);

#endif

/* explain.h - the parts of `tessera explain`. */
#ifndef TESS_TOOLS_EXPLAIN_H
#define TESS_TOOLS_EXPLAIN_H

#include "tools/tool.h"

#include <jansson.h>
#include <stdio.h>

enum { EXPLAIN_NAME = 160 };

/* Formats styles of several mesh dimensions as "tp:colwise xp:rowwise", without "replicate". */
const char *explain_format_styles(const struct tess_explanation *e, const char *const *style,
                                  char out[EXPLAIN_NAME]);

/*
 * Draws as SVG what each rank holds and what moves between ranks, module by module; equal layers
 * once. `model`: its directory. Returns TESS_ENOMEM; write errors are in ferror(f).
 */
tess_status explain_draw(const struct tess_explanation *e, const char *model, FILE *f);

/* Prints what ranks hold and send in a training step, and a comparison with other plans. */
void explain_print_training_memory(const struct tess_explanation *e);
void explain_print_traffic(const struct tess_explanation *e);
void explain_print_training_plans(const struct tess_explanation *e);
/* Adds the numbers of a training step to the object of --json. */
void explain_add_training_json(const struct tess_explanation *e, json_t *o);
json_t *explain_make_plan_json(const struct tess_explanation *e,
                               const struct tess_explained_plan *p);

#endif

/* explain.h - the parts of `tessera explain`. */
#ifndef TESS_TOOLS_EXPLAIN_H
#define TESS_TOOLS_EXPLAIN_H

#include "tools/tool.h"

#include <jansson.h>
#include <stdio.h>

enum { EXPLAIN_NAME = 160 };

/* "Shard(0)"; of several mesh dimensions "tp:Shard(0) xp:Partial", "Replicate". */
const char *explain_format_places(const struct tess_explanation *e, const struct tess_place *place,
                                  char out[EXPLAIN_NAME]);
/* The same of styles, of which "replicate" is left out. */
const char *explain_format_styles(const struct tess_explanation *e, const char *const *style,
                                  char out[EXPLAIN_NAME]);

/*
 * Draws as SVG what each rank holds and what moves between ranks, module by module; layers that
 * look alike once. `model`: its directory. TESS_ENOMEM; whether it was written `f` says.
 */
tess_status explain_draw(const struct tess_explanation *e, const char *model, FILE *f);

/* train.c: for a step of training, what ranks hold and send, and what other plans would. */
void explain_print_training_memory(const struct tess_explanation *e);
void explain_print_traffic(const struct tess_explanation *e);
void explain_print_training_plans(const struct tess_explanation *e);
/* The same, into the object of `--json`. */
void explain_add_training_json(const struct tess_explanation *e, json_t *o);
json_t *explain_make_plan_json(const struct tess_explanation *e,
                               const struct tess_explained_plan *p);

#endif

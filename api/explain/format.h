/* format.h - the forms of an explanation, which tess_explanation_format writes. */
#ifndef TESS_API_EXPLAIN_FORMAT_H
#define TESS_API_EXPLAIN_FORMAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <tessera/explain.h>

enum { EXPLAIN_NAME = 160 };

/* Formats styles of several mesh dimensions as "tp:colwise xp:rowwise", without "replicate". */
const char *explain_format_styles(const struct tess_explanation *e, const char *const *style,
                                  char out[EXPLAIN_NAME]);

/* Formats "Shard(0)", or on several mesh dimensions "tp:Shard(0) xp:Partial" or "Replicate". */
const char *explain_format_places(const struct tess_explanation *e, const struct tess_place *place,
                                  char out[EXPLAIN_NAME]);

/*
 * Prints the tables of an explanation. positions: of the KV cache. Errors of writing are in
 * ferror(f); TESS_ENOMEM.
 */
tess_status explain_print_text(const struct tess_explanation *e, const char *dir, int64_t positions,
                               FILE *f);
/* Prints the records, one a line. */
void explain_print_program(const struct tess_explanation *e, FILE *f);
/* Prints the lines that the weights of all ranks have, without those of other stages. */
tess_status explain_print_storage(const struct tess_explanation *e, FILE *f);
/* Makes the object of --json. Allocations that failed are in tess_json_lacked_memory(). */
json_t *explain_make_json(const struct tess_explanation *e, int64_t positions, bool program);

/*
 * Draws as SVG what each rank holds and what moves between ranks, module by module; equal layers
 * once. dir: the heading. TESS_ENOMEM; errors of writing are in ferror(f).
 */
tess_status explain_draw(const struct tess_explanation *e, const char *dir, FILE *f);

/* Prints what ranks hold and send in a training step, and a comparison with other plans. */
void explain_print_training_memory(const struct tess_explanation *e, FILE *f);
void explain_print_traffic(const struct tess_explanation *e, FILE *f);
void explain_print_training_plans(const struct tess_explanation *e, FILE *f);
/* Adds the numbers of a training step to the object of --json. */
void explain_add_training_json(const struct tess_explanation *e, json_t *o);
json_t *explain_make_plan_json(const struct tess_explanation *e,
                               const struct tess_explained_plan *p);

#endif

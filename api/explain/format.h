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

/* Formats bytes with three significant digits: "17.6 GB", a GB of 10^9. */
const char *explain_format_bytes(uint64_t bytes, char out[16]);
/* Formats a number: "70.6 billion". */
const char *explain_format_count(int64_t n, char out[16]);

/* Returns the coordinate of a rank along mesh dimension `d`. */
int32_t explain_get_coordinate(const struct tess_explanation *e, int32_t d, int32_t rank);
/* Returns whether a rank is in the stage of these places, along pp. */
bool explain_has_stage(const struct tess_explanation *e, const struct tess_place *places,
                       int32_t rank);

struct explain_class { /* ranks that hold equally much */
	int32_t first, count;
	char name[EXPLAIN_NAME]; /* "0-7", or coordinates: "tp=1-7 pp=0" */
};
/* Lists the classes of all ranks. The caller frees *out. TESS_ENOMEM. */
tess_status explain_list_classes(const struct tess_explanation *e, struct explain_class **out,
                                 int32_t *n);

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

/* Prints the memory of classes of ranks, and whether it fits. */
tess_status explain_print_memory(const struct tess_explanation *e, int64_t positions, FILE *f);
/* Adds "memory", "memory_of_all", "classes", and "fit" if there is one. False: out of memory. */
bool explain_add_memory_json(const struct tess_explanation *e, int64_t positions, json_t *o);

/* Returns whether a rank has files with weights or state. */
bool explain_has_files(const struct tess_explanation *e);
/* Returns whether a rank has them in memory of the host, next to a device. */
bool explain_uses_host(const struct tess_explanation *e);
/*
 * Prints the bytes of ranks' files or in memory of the host, and what a step moves between there
 * and the device; nothing without them.
 */
void explain_print_disk(const struct tess_explanation *e, FILE *f);
/* Makes an object for each rank: of files, or of memory of the host. */
json_t *explain_make_files_json(const struct tess_explanation *e, bool host);

/* Prints what ranks send in a training step, and a comparison with other plans. */
void explain_print_traffic(const struct tess_explanation *e, FILE *f);
void explain_print_training_plans(const struct tess_explanation *e, FILE *f);
/* Adds the numbers of a training step to the object of --json. */
void explain_add_training_json(const struct tess_explanation *e, json_t *o);
json_t *explain_make_plan_json(const struct tess_explanation *e,
                               const struct tess_explained_plan *p);

#endif

/* timeline.h - what the text and the picture of a timeline share. */
#ifndef TESS_API_EXPLAIN_TIMELINE_H
#define TESS_API_EXPLAIN_TIMELINE_H

#include <stdbool.h>
#include <stdio.h>
#include <tessera/pipeline.h>

enum { TIMELINE_LINE = 128 };

/* Returns the duration of the shortest computation that takes time. */
double timeline_find_unit(const struct tess_timeline *t);
/* Formats the numbers of ranks, stages and micro-batches. */
void timeline_format_size(const struct tess_pipeline *p, char out[TIMELINE_LINE]);
/* Formats the length of a step in units of the shortest computation, and its bubble. */
void timeline_format_bubble(const struct tess_timeline *t, char out[TIMELINE_LINE]);
/* Draws a timeline as SVG. Errors of writing are in ferror(f). */
void timeline_draw(const struct tess_timeline *t, FILE *f);

#endif

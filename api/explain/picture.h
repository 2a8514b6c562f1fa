/* picture.h - the picture of an explanation: its columns and rows. */
#ifndef TESS_API_EXPLAIN_PICTURE_H
#define TESS_API_EXPLAIN_PICTURE_H

#include "api/explain/format.h"
#include "api/explain/svg_parts.h"

/* COLORS: of mesh dimensions; widths of the parts of the picture */
enum { PICTURE_COLUMNS = 16, COLORS = 4 };
enum { LABEL = 300, NOTE = 200 };

struct picture {
	const struct tess_explanation *e;
	FILE *f;
	int32_t column[PICTURE_COLUMNS]; /* rank of each column */
	int32_t ncolumns;
	double each, gap; /* width of a column; gap between two */
	double y; /* position of the next row */
};

/* Formats bytes as "16.0 KiB". */
const char *picture_format_bytes(uint64_t bytes, char out[16]);
/* Returns the layer, the first number in the name, or -1; rest: the part of the name behind it. */
int32_t picture_parse_layer(const char *name, const char **rest);

/* Chooses the columns: all ranks, or the first and last ones along each mesh dimension. */
void picture_choose_columns(struct picture *p);
double picture_get_x(const struct picture *p, int32_t column);
/* Returns the right edge of the columns. */
double picture_get_end(const struct picture *p);
/* Returns the color of a mesh dimension: the first for tp, the last for dp. */
int picture_get_color(const struct tess_explanation *e, int32_t dim);

/* Each function draws a row at p->y and advances p->y. */
void picture_draw_ranks(struct picture *p);
/* module: the user of parameter i. */
void picture_draw_parameter(struct picture *p, int32_t i, const char *module);
void picture_draw_move(struct picture *p, const struct tess_explained_collective *m);

#endif

/* picture.h - the picture of `tessera explain`: its columns and rows. */
#ifndef TESS_TOOLS_EXPLAIN_PICTURE_H
#define TESS_TOOLS_EXPLAIN_PICTURE_H

#include "explain.h"

/* COLORS: of mesh dimensions; widths of the parts of the picture */
enum { PICTURE_COLUMNS = 16, COLORS = 4 };
enum { MARGIN = 24, LABEL = 300, NOTE = 200 };

struct picture {
	const struct tess_explanation *e;
	FILE *f;
	int32_t column[PICTURE_COLUMNS]; /* its rank */
	int32_t ncolumns;
	double each, gap; /* widths of a column; between two */
	double y; /* of what is drawn next */
};

/* A text of at most `most` characters at x, y; of a longer one the middle is left out. */
void picture_draw_label(const struct picture *p, double x, double y, const char *class, size_t most,
                        const char *fmt, ...) TESS_PRINTF(6, 7);
/* "16.0 KiB" */
const char *picture_format_bytes(uint64_t bytes, char out[16]);
/* The number of its layer: the first component that is a number; -1: none. `rest`: what follows. */
int32_t picture_parse_layer(const char *name, const char **rest);

/* All ranks, or along each mesh dimension the first and the last of them. */
void picture_choose_columns(struct picture *p);
double picture_get_x(const struct picture *p, int32_t column);
/* The end of the columns: notes begin. */
double picture_get_end(const struct picture *p);
/* The first is that of tp, the last that of dp, wherever they stand in the mesh. */
int picture_get_color(const struct tess_explanation *e, int32_t dim);

/* A row at p->y, which becomes that of the next one. */
void picture_draw_ranks(struct picture *p);
/* module: that uses parameter i. */
void picture_draw_parameter(struct picture *p, int32_t i, const char *module);
void picture_draw_move(struct picture *p, const struct tess_explained_collective *m);

#endif

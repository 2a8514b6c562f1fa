/* rows.c - rows of the picture: ranks, parameters, moves. */
#include "api/explain/picture.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/reduce.h>

enum { RUNS_MAX = 32, GROUPS_MAX = PICTURE_COLUMNS / 2, DIMS_MAX = 16 };
enum { RANKS = MARGIN + LABEL + 20, COLUMNS_WIDTH = 960 };

/* ---- numbers --------------------------------------------------------------------------------- */

const char *picture_format_bytes(uint64_t bytes, char out[16])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double v = (double)bytes;
	int unit = 0;

	for (; v >= 1000 && unit < 4; unit++)
		v /= 1024;
	snprintf(out, 16, "%.*f %s", !unit || v >= 100 ? 0 : v >= 10 ? 1 : 2, v, units[unit]);
	return out;
}

int32_t picture_parse_layer(const char *name, const char **rest)
{
	for (const char *s = name; *s; s += strcspn(s, "."), s += *s == '.') {
		size_t digits = strspn(s, "0123456789");

		*rest = s + digits + (s[digits] == '.');
		if (digits && (s[digits] == '.' || !s[digits]))
			return (int32_t)strtol(s, NULL, 10);
	}
	*rest = name;
	return -1;
}

/* ---- columns --------------------------------------------------------------------------------- */

double picture_get_x(const struct picture *p, int32_t column)
{
	return RANKS + column * p->each;
}

double picture_get_end(const struct picture *p)
{
	return picture_get_x(p, p->ncolumns) + 12;
}

int picture_get_color(const struct tess_explanation *e, int32_t dim)
{
	int others = 0;

	if (!strcmp(e->dim_names[dim], "tp"))
		return 0;
	if (!strcmp(e->dim_names[dim], "dp"))
		return COLORS - 1;
	for (int32_t d = 0; d < dim; d++)
		others += strcmp(e->dim_names[d], "tp") != 0 && strcmp(e->dim_names[d], "dp") != 0;
	return 1 + others % (COLORS - 2);
}

static int32_t get_stride(const struct tess_explanation *e, int32_t dim)
{
	int32_t stride = 1;

	for (int32_t i = e->ndims - 1; i > dim; i--)
		stride *= e->dim_sizes[i];
	return stride;
}

/* Chooses how many ranks are drawn along each dimension: similar numbers, but two replicas. */
static void divide_columns(const struct tess_explanation *e, int32_t n[DIMS_MAX])
{
	int32_t all = 1, best;

	for (int32_t d = 0; d < e->ndims; d++)
		n[d] = 1;
	do {
		best = -1;
		for (int32_t d = 0; d < e->ndims; d++) {
			int32_t most = e->dim_sizes[d];

			if (!strcmp(e->dim_names[d], "dp") && most > 2 &&
			    e->nranks > PICTURE_COLUMNS)
				most = 2;
			if (n[d] < most && all / n[d] * (n[d] + 1) <= PICTURE_COLUMNS &&
			    (best < 0 || n[d] <= n[best]))
				best = d;
		}
		if (best >= 0)
			all = all / n[best] * (n[best] + 1);
		if (best >= 0)
			n[best]++;
	} while (best >= 0);
}

void picture_choose_columns(struct picture *p)
{
	const struct tess_explanation *e = p->e;
	int32_t n[DIMS_MAX];

	divide_columns(e, n);
	for (int32_t r = 0; r < e->nranks; r++) {
		bool drawn = true;

		for (int32_t d = 0; d < e->ndims && drawn; d++) {
			int32_t at = explain_get_coordinate(e, d, r);

			drawn = at < n[d] - 1 ||
			        at == (n[d] < e->dim_sizes[d] ? e->dim_sizes[d] : n[d]) - 1;
		}
		if (drawn)
			p->column[p->ncolumns++] = r;
	}
	p->each = (double)COLUMNS_WIDTH / p->ncolumns;
	p->each = p->each > 180 ? 180 : p->each;
	p->gap = p->each < 80 ? 6 : 10;
}

/* Returns the lowest rank of the group along `dim` that contains `rank`. */
static int32_t get_group(const struct tess_explanation *e, int32_t dim, int32_t rank)
{
	return rank - explain_get_coordinate(e, dim, rank) * get_stride(e, dim);
}

/* Returns the last column from `c` on with the same value of `of` as `c`. */
static int32_t find_last_column(const struct picture *p, int32_t c, int32_t dim,
                                int32_t (*of)(const struct tess_explanation *, int32_t, int32_t))
{
	int32_t value = of(p->e, dim, p->column[c]), last = c;

	for (int32_t k = c + 1; k < p->ncolumns; k++) {
		if (of(p->e, dim, p->column[k]) != value)
			break;
		last = k;
	}
	return last;
}

void picture_draw_ranks(struct picture *p)
{
	const struct tess_explanation *e = p->e;

	for (int32_t d = 0; d + 1 < e->ndims; d++) {
		for (int32_t c = 0, last; c < p->ncolumns; c = last + 1) {
			double x = picture_get_x(p, c), w;

			last = find_last_column(p, c, d, explain_get_coordinate);
			w = picture_get_x(p, last + 1) - x - p->gap;
			fprintf(p->f,
			        "<rect class=\"d%d tint\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
			        "height=\"18\" rx=\"4\"/>\n",
			        picture_get_color(e, d), x, p->y, w);
			svg_draw_label(p->f, x + w / 2, p->y + 13, "mid", (size_t)(w / 7), "%s %d",
			               e->dim_names[d],
			               (int)explain_get_coordinate(e, d, p->column[c]));
		}
		p->y += 22;
	}
	for (int32_t c = 0; c < p->ncolumns; c++) {
		double x = picture_get_x(p, c) + (p->each - p->gap) / 2;
		int32_t r = p->column[c];

		svg_draw_label(p->f, x, p->y + 13, "mid head", 20, p->each < 56 ? "%d" : "rank %d",
		               (int)r);
		if (e->ndims > 1)
			svg_draw_label(p->f, x, p->y + 28, "mid soft", 20, "%s %d",
			               e->dim_names[e->ndims - 1],
			               (int)explain_get_coordinate(e, e->ndims - 1, r));
	}
	p->y += e->ndims > 1 ? 40 : 24;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Finds the cut axes, at most two, and their mesh dimensions. Returns their number. */
static int find_cuts(const struct tess_explanation *e, const struct tess_explained_parameter *q,
                     int32_t axis[2], int32_t dim[2])
{
	int n = 0;

	for (int32_t d = 0; d < e->ndims && n < 2; d++)
		if (q->places[d].kind == TESS_SHARD && e->dim_sizes[d] > 1) {
			axis[n] = q->places[d].dim;
			dim[n++] = d;
		}
	return n;
}

/* Draws the shard of rank r: a band of the box per range, as high as its share of a second cut. */
static void draw_held(const struct picture *p, int32_t i, int32_t r, double x, double height)
{
	const struct tess_explained_parameter *q = p->e->parameters[i];
	double width = p->each - p->gap, top = 0, high = 1;
	int32_t axis[2], dim[2];
	int64_t run[RUNS_MAX][2] = { { 0, 1 } }, n = 1, size = 1;
	int cuts = find_cuts(p->e, q, axis, dim);

	if (!tess_explanation_shard(p->e, i, r, NULL)) /* belongs to another pipeline stage */
		return;
	if (cuts > 1) {
		tess_explanation_list_ranges(p->e, i, r, axis[1], run, 1);
		top = (double)run[0][0] / (double)q->shape[axis[1]];
		high = (double)run[0][1] / (double)q->shape[axis[1]] - top;
	}
	if (cuts) {
		size = q->shape[axis[0]];
		n = tess_explanation_list_ranges(p->e, i, r, axis[0], run, RUNS_MAX);
	}
	for (int64_t k = 0; k < n && k < RUNS_MAX; k++) {
		double from = width * (double)run[k][0] / (double)size;
		double w = width * (double)(run[k][1] - run[k][0]) / (double)size;

		if (w <= 0)
			continue;
		if (cuts)
			fprintf(p->f, "<rect class=\"d%d\"", picture_get_color(p->e, dim[0]));
		else
			fprintf(p->f, "<rect class=\"whole\"");
		fprintf(p->f,
		        " x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" rx=\"1.5\"/>\n",
		        x + from, p->y + 6 + top * height, w < 1 ? 1 : w, high * height);
	}
}

static void draw_holdings(const struct picture *p, int32_t i, double height)
{
	const struct tess_explained_parameter *q = p->e->parameters[i];
	int64_t shape[TESS_DIMS];
	char bytes[16];

	for (int32_t c = 0; c < p->ncolumns; c++) {
		int32_t r = p->column[c];
		double x = picture_get_x(p, c);

		fprintf(p->f, "<g><title>rank %d: ", (int)r);
		tess_explanation_shard(p->e, i, r, shape);
		for (int32_t a = 0; a < q->ndim; a++)
			fprintf(p->f, "%s%lld of %lld", a ? ", " : "", (long long)shape[a],
			        (long long)q->shape[a]);
		fprintf(p->f, ": %s</title>\n",
		        picture_format_bytes(tess_explanation_shard(p->e, i, r, NULL), bytes));
		fprintf(p->f,
		        "<rect class=\"box%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
		        "height=\"%.1f\" rx=\"2\"/>\n",
		        q->tied == 1 ? " tied" : "", x, p->y + 6, p->each - p->gap, height);
		if (q->tied != 1)
			draw_held(p, i, r, x, height);
		fprintf(p->f, "</g>\n");
	}
}

void picture_draw_parameter(struct picture *p, int32_t i, const char *module)
{
	const struct tess_explained_parameter *q = p->e->parameters[i];
	bool vector = q->ndim < 2;
	double height = vector ? 8 : 22;
	char style[EXPLAIN_NAME], name[256], shape[96] = "", most[16], all[16];
	uint64_t max = 0, min = UINT64_MAX, total = 1;
	const char *rest;
	size_t len = 0;

	picture_parse_layer(q->tied ? module : q->name, &rest);
	snprintf(name, sizeof name, "%s", rest);
	if (strlen(name) > 7 && !strcmp(name + strlen(name) - 7, ".weight"))
		name[strlen(name) - 7] = 0;
	for (int32_t a = 0; a < q->ndim; a++) {
		total *= (uint64_t)q->shape[a];
		len += (size_t)snprintf(shape + len, sizeof shape - len, "%s%lld", a ? " × " : "",
		                        (long long)q->shape[a]);
	}
	/* plus a scale per 32 elements, if units have that many */
	total = q->dtype == TESS_Q8      ? total + total / 16
	        : q->dtype == TESS_BF12  ? total + total / 2 + total / 64
	        : q->dtype == TESS_MXFP4 ? total / 2 + total / 32
	                                 : total * tess_width(q->dtype);
	for (int32_t r = 0; r < p->e->nranks; r++) {
		uint64_t bytes = tess_explanation_shard(p->e, i, r, NULL);

		max = bytes > max ? bytes : max;
		min = bytes < min ? bytes : min;
	}
	picture_format_bytes(max, most);
	picture_format_bytes(total, all);
	explain_format_styles(p->e, q->styles, style);
	len = strlen(style) < 18 ? 44 - strlen(style) : 26; /* maximum length of the name */
	len = strlen(name) < len ? strlen(name) : len;
	draw_holdings(p, i, height);
	svg_draw_label(p->f, MARGIN, p->y + (vector ? 14 : 15), "name", vector ? len : 40, "%s",
	               name);
	if (vector)
		svg_draw_label(p->f, MARGIN + LABEL, p->y + 14, "end soft", 46 - len, "%s", style);
	else
		svg_draw_label(p->f, MARGIN, p->y + 29, "soft", 48, "%s · %s %s", style, shape,
		               tess_dtype_name(q->dtype));
	if (q->tied == 1)
		svg_draw_label(p->f, picture_get_end(p), p->y + 15, "soft", 34,
		               "reads the table above again");
	else if (max == total)
		svg_draw_label(p->f, picture_get_end(p), p->y + (vector ? 14 : 21), "soft", 34,
		               min == max ? "%s on each rank" : "%s at most", all);
	else
		svg_draw_label(p->f, picture_get_end(p), p->y + (vector ? 14 : 21), "note", 34,
		               "%s%s of %s", min == max ? "" : "≤ ", most, all);
	p->y += vector ? 20 : 38;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Returns whether rank r takes part in a move: by stages of a send, else by that of the record. */
static bool makes_move(const struct tess_explanation *e, const struct tess_explained_collective *m,
                       int32_t r)
{
	const struct tess_explained_record *rec = e->records[m->record];
	int32_t at = explain_get_coordinate(e, m->dim, r);

	if (m->kind == TESS_SEND)
		return at == e->stages[m->from.dim].rank || at == e->stages[m->to.dim].rank;
	return explain_has_stage(e,
	                         rec->out[0]          ? rec->out[0]->places
	                         : rec->parameters[0] ? rec->parameters[0]->places
	                                              : rec->in[0]->places,
	                         r);
}

/* Draws bands for groups of neighbouring ranks. */
static void draw_bands(const struct picture *p, const struct tess_explained_collective *m)
{
	char bytes[16];

	picture_format_bytes(m->bytes, bytes);
	for (int32_t c = 0, last; c < p->ncolumns; c = last + 1) {
		double x = picture_get_x(p, c), w;

		last = find_last_column(p, c, m->dim, get_group);
		if (!makes_move(p->e, m, p->column[c]))
			continue;
		w = picture_get_x(p, last + 1) - x - p->gap;
		fprintf(p->f,
		        "<rect class=\"d%d tint\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
		        "height=\"20\" rx=\"10\"/>\n<rect class=\"e%d\" x=\"%.1f\" y=\"%.1f\" "
		        "width=\"%.1f\" height=\"20\" rx=\"10\"/>\n",
		        picture_get_color(p->e, m->dim), x, p->y + 6, w,
		        picture_get_color(p->e, m->dim), x, p->y + 6, w);
		if (w > 150)
			svg_draw_label(p->f, x + w / 2, p->y + 20, "mid", (size_t)(w / 7),
			               "%s · %s", tess_kind_name(m->kind), bytes);
		else
			svg_draw_label(p->f, x + w / 2, p->y + 20, "mid", (size_t)(w / 7), "%s",
			               bytes);
	}
}

/* Draws a line per group with a dot at each rank; returns the height. */
static double draw_group_lines(const struct picture *p, const struct tess_explained_collective *m)
{
	int32_t group[GROUPS_MAX], n = 0, color = picture_get_color(p->e, m->dim);
	double half = (p->each - p->gap) / 2, step = p->ncolumns > 8 ? 8 : 10;

	for (int32_t c = 0; c < p->ncolumns; c++) {
		int32_t g = get_group(p->e, m->dim, p->column[c]), k = 0, last = c;
		double y = p->y + 3 + step * (n + 1);

		while (k < n && group[k] != g)
			k++;
		if (k < n || n == GROUPS_MAX || !makes_move(p->e, m, p->column[c]))
			continue;
		group[n++] = g;
		for (int32_t to = c; to < p->ncolumns; to++) {
			if (get_group(p->e, m->dim, p->column[to]) != g ||
			    !makes_move(p->e, m, p->column[to]))
				continue;
			last = to;
			fprintf(p->f, "<circle class=\"d%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
			        color, picture_get_x(p, to) + half, y);
		}
		fprintf(p->f, "<path class=\"e%d\" d=\"M%.1f %.1fH%.1f\"/>\n", color,
		        picture_get_x(p, c) + half, y, picture_get_x(p, last) + half);
	}
	return step * n;
}

void picture_draw_move(struct picture *p, const struct tess_explained_collective *m)
{
	char from[TESS_PLACE_SIZE], to[TESS_PLACE_SIZE], sent[16], bytes[16];
	double height = 20;
	const char *module;

	picture_parse_layer(m->module, &module);
	module = *module ? module : m->module;
	fprintf(p->f, "<g><title>");
	svg_print_text(module, 200, p->f);
	fprintf(p->f, "</title>\n");
	if (get_stride(p->e, m->dim) == 1)
		draw_bands(p, m);
	else
		height = draw_group_lines(p, m);
	height = height < 20 ? 20 : height;
	fprintf(p->f, "</g>\n");
	svg_draw_label(p->f, MARGIN + 12, p->y + 15, "move", 48, "%s along %s, %s → %s",
	               tess_kind_name(m->kind), p->e->dim_names[m->dim],
	               tess_place_format(m->from, from), tess_place_format(m->to, to));
	svg_draw_label(p->f, MARGIN + 12, p->y + 29, "soft", 44, "%s", module);
	svg_draw_label(p->f, picture_get_end(p), p->y + 15, "note", 34, "a rank sends %s",
	               picture_format_bytes(m->sent, sent));
	svg_draw_label(p->f, picture_get_end(p), p->y + 29, "soft", 34, "of a value of %s",
	               picture_format_bytes(m->bytes, bytes));
	p->y += height + 19;
}

/* svg.c - draws a model over ranks: columns are ranks, rows are modules. */
#include "api/explain/picture.h"

#include "core/base/memory_file.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct layer_kind { /* layers with equal pictures */
	char *drawn, *layers; /* the picture, from y = 0 down; numbers "0 to 2, 5" */
	double height;
	int32_t n, last; /* count; highest number */
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* Returns the index of a parameter of a record. */
static int32_t find_parameter(const struct tess_explanation *e,
                              const struct tess_explained_parameter *q)
{
	int32_t i = 0;

	while (i < e->nparameters && e->parameters[i] != q)
		i++;
	return i;
}

/* Returns whether records [from, to) use a parameter. */
static bool is_used(const struct tess_explanation *e, int32_t from, int32_t to,
                    const struct tess_explained_parameter *q)
{
	for (int32_t i = from; i < to; i++)
		for (int32_t k = 0; e->records[i]->parameters[k]; k++)
			if (e->records[i]->parameters[k] == q)
				return true;
	return false;
}

/* Draws the parameters and moves of records [from, to), in order. */
static void draw_records(struct picture *p, int32_t from, int32_t to)
{
	const struct tess_explanation *e = p->e;
	int32_t c = 0;

	for (int32_t i = from; i < to; i++) {
		while (c < e->ncollectives && e->collectives[c]->record < i)
			c++;
		if (c < e->ncollectives && e->collectives[c]->record == i)
			picture_draw_move(p, e->collectives[c]);
		for (int32_t k = 0; e->records[i]->parameters[k]; k++)
			if (!is_used(e, from, i, e->records[i]->parameters[k]))
				picture_draw_parameter(
					p, find_parameter(e, e->records[i]->parameters[k]),
					e->records[i]->module);
	}
}

/* Adds a layer number to "0", "0 to 2" or "0 to 2, 5". */
static char *append_layer(char *list, int32_t last, int32_t layer)
{
	char *more = NULL;
	const char *end = list ? strrchr(list, ' ') : NULL;

	if (!list)
		(void)!asprintf(&more, "%d", (int)layer);
	else if (layer != last + 1)
		(void)!asprintf(&more, "%s, %d", list, (int)layer);
	else if (end && end - list >= 3 && !strncmp(end - 3, " to", 3))
		(void)!asprintf(&more, "%.*s %d", (int)(end - list), list, (int)layer);
	else
		(void)!asprintf(&more, "%s to %d", list, (int)layer);
	free(list);
	return more;
}

/* Draws one layer, and adds it to the kinds. Returns false if memory is exhausted. */
static bool add_layer(const struct picture *p, int32_t layer, int32_t from, int32_t to,
                      struct layer_kind *kinds, int32_t *n)
{
	struct picture one = *p;
	char *drawn = NULL;
	size_t len;
	int32_t k = 0;
	bool failed;

	one.y = 0;
	one.f = tess_memory_file_open(&drawn, &len);
	if (!one.f)
		return false;
	draw_records(&one, from, to);
	failed = ferror(one.f);
	fclose(one.f);
	if (failed)
		return free(drawn), false;
	while (k < *n && strcmp(kinds[k].drawn, drawn) != 0)
		k++;
	if (k == *n)
		kinds[(*n)++] = (struct layer_kind){ .drawn = drawn, .height = one.y };
	else
		free(drawn);
	kinds[k].layers = append_layer(kinds[k].layers, kinds[k].last, layer);
	kinds[k].last = layer;
	kinds[k].n++;
	return kinds[k].layers;
}

static void draw_title(struct picture *p, const char *title)
{
	fprintf(p->f, "<path class=\"rule\" d=\"M%d %.1fH%.1f\"/>\n", MARGIN, p->y + 8,
	        picture_get_end(p) + NOTE);
	svg_draw_label(p->f, MARGIN, p->y + 27, "head", 120, "%s", title);
	p->y += 36;
}

static void draw_kinds(struct picture *p, struct layer_kind *kinds, int32_t n)
{
	char title[256];

	for (int32_t k = 0; k < n; k++) {
		struct layer_kind *l = &kinds[k];

		snprintf(title, sizeof title, l->n > 1 ? "layers %.150s: %d alike" : "layer %.150s",
		         l->layers, (int)l->n);
		draw_title(p, title);
		fprintf(p->f, "<g transform=\"translate(0 %.1f)\">\n%s</g>\n", p->y, l->drawn);
		p->y += l->height;
		free(l->drawn);
		free(l->layers);
	}
}

static bool draw_modules(struct picture *p)
{
	const struct tess_explanation *e = p->e;
	struct layer_kind *kinds = calloc((size_t)e->nrecords + 1, sizeof *kinds);
	int32_t n = 0, to;
	bool good = kinds;
	const char *rest;

	for (int32_t from = 0; from < e->nrecords && good; from = to) {
		int32_t layer = picture_parse_layer(e->records[from]->module, &rest);

		to = from + 1;
		while (to < e->nrecords &&
		       picture_parse_layer(e->records[to]->module, &rest) == layer)
			to++;
		if (layer >= 0) {
			good = add_layer(p, layer, from, to, kinds, &n);
			continue;
		}
		draw_kinds(p, kinds, n);
		n = 0;
		draw_title(p, !from ? "before the layers" : "after the layers");
		draw_records(p, from, to);
	}
	if (good)
		draw_kinds(p, kinds, n);
	free(kinds);
	return good;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static uint64_t get_weights(const struct tess_explained_rank *r)
{
	return r->weights;
}

static uint64_t get_cache(const struct tess_explained_rank *r)
{
	return r->cache;
}

static uint64_t get_step(const struct tess_explained_rank *r)
{
	return r->step;
}

static void draw_memory(struct picture *p)
{
	static const struct {
		const char *name;
		uint64_t (*get)(const struct tess_explained_rank *);
	} rows[] = { { "weights, of all layers", get_weights },
		     { "KV cache, of one position", get_cache },
		     { "values of a step", get_step } };
	char bytes[16];

	draw_title(p, "what a rank holds");
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		uint64_t max = 1;

		for (int32_t r = 0; r < p->e->nranks; r++)
			max = rows[i].get(p->e->ranks[r]) > max ? rows[i].get(p->e->ranks[r]) : max;
		svg_draw_label(p->f, MARGIN, p->y + 16, "name", 40, "%s", rows[i].name);
		for (int32_t c = 0; c < p->ncolumns; c++) {
			double x = picture_get_x(p, c), w = p->each - p->gap;
			uint64_t v = rows[i].get(p->e->ranks[p->column[c]]);

			fprintf(p->f,
			        "<rect class=\"box\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
			        "height=\"6\" rx=\"2\"/>\n<rect class=\"whole\" x=\"%.1f\" "
			        "y=\"%.1f\" width=\"%.1f\" height=\"6\" rx=\"2\"/>\n",
			        x, p->y + 4, w, x, p->y + 4, w * (double)v / (double)max);
			svg_draw_label(p->f, x + w / 2, p->y + 23, "mid soft", 12, "%s",
			               picture_format_bytes(v, bytes));
		}
		p->y += 32;
	}
}

static void draw_legend(struct picture *p)
{
	const struct tess_explanation *e = p->e;
	double x = MARGIN;

	fprintf(p->f, "<path class=\"rule\" d=\"M%d %.1fH%.1f\"/>\n", MARGIN, p->y + 8,
	        picture_get_end(p) + NOTE);
	p->y += 22;
	fprintf(p->f, "<rect class=\"box\" x=\"%.1f\" y=\"%.1f\" width=\"28\" height=\"12\"/>\n", x,
	        p->y);
	svg_draw_label(p->f, x + 36, p->y + 10, "soft", 60, "the whole parameter");
	x += 170;
	fprintf(p->f, "<rect class=\"whole\" x=\"%.1f\" y=\"%.1f\" width=\"28\" height=\"12\"/>\n",
	        x, p->y);
	svg_draw_label(p->f, x + 36, p->y + 10, "soft", 60, "held whole");
	x += 125;
	for (int32_t d = 0; d < e->ndims; d++) {
		if (e->dim_sizes[d] < 2 || !strcmp(e->dim_names[d], "dp"))
			continue;
		fprintf(p->f,
		        "<rect class=\"d%d\" x=\"%.1f\" y=\"%.1f\" width=\"28\" height=\"12\"/>\n",
		        picture_get_color(e, d), x, p->y);
		svg_draw_label(p->f, x + 36, p->y + 10, "soft", 60, "held, cut along %s",
		               e->dim_names[d]);
		x += 165;
		fprintf(p->f,
		        "<rect class=\"d%d tint\" x=\"%.1f\" y=\"%.1f\" width=\"28\" height=\"12\" "
		        "rx=\"6\"/>\n",
		        picture_get_color(e, d), x, p->y);
		svg_draw_label(p->f, x + 36, p->y + 10, "soft", 60, "moves along %s",
		               e->dim_names[d]);
		x += 150;
	}
	p->y += 26;
}

/* d, e: a color for each of COLORS, distinct and visible on white and on black */
static const char picture_styles[] =
	".end { text-anchor: end; }\n.move, .note { font-size: 11px; }\n"
	".box { fill: #eaeef2; }\n.whole { fill: #afb8c1; }\n"
	".tied { fill: none; stroke: #8c959f; stroke-dasharray: 3; }\n"
	".tint { fill-opacity: 0.18; }\n.rule { stroke: #d0d7de; }\n"
	".d0 { fill: #2f81f7; }\n.e0 { fill: none; stroke: #2f81f7; }\n"
	".d1 { fill: #2da44e; }\n.e1 { fill: none; stroke: #2da44e; }\n"
	".d2 { fill: #a371f7; }\n.e2 { fill: none; stroke: #a371f7; }\n"
	".d3 { fill: #d9730d; }\n.e3 { fill: none; stroke: #d9730d; }\n";

static void draw_heading(const struct picture *p, const char *model, double height, FILE *f)
{
	const struct tess_explanation *e = p->e;
	char mesh[256] = "", sent[16], drawn[40] = "";
	size_t len = 0;

	svg_begin(f, picture_get_end(p) + NOTE + MARGIN, height, picture_styles,
	          ".box { fill: #262c36; } .whole { fill: #656c76; } .rule { stroke: #3d444d; }");
	for (int32_t d = 0; d < e->ndims && len < sizeof mesh; d++)
		len += (size_t)snprintf(mesh + len, sizeof mesh - len, "%s%s=%d", d ? "," : "",
		                        e->dim_names[d], (int)e->dim_sizes[d]);
	if (e->nranks > p->ncolumns)
		snprintf(drawn, sizeof drawn, ", %d of them drawn", (int)p->ncolumns);
	svg_draw_label(f, MARGIN, 36, "title", 80, "%s", model);
	svg_draw_label(f, MARGIN, 56, "soft", 160,
	               "%s, %s%s on %s: %d rank%s%s; in a step of %lld token%s a rank sends %s%s",
	               e->model, strncmp(e->plan, "the ", 4) ? "plan " : "", e->plan, mesh,
	               (int)e->nranks, e->nranks == 1 ? "" : "s", drawn, (long long)e->tokens,
	               e->tokens == 1 ? "" : "s",
	               e->total.sent ? picture_format_bytes(e->total.sent, sent) : "nothing",
	               e->total.sent ? ", at most" : "");
}

tess_status explain_draw(const struct tess_explanation *e, const char *model, FILE *f)
{
	struct picture p = { .e = e, .y = 72 };
	char *body = NULL;
	size_t len;
	bool good;

	picture_choose_columns(&p);
	p.f = tess_memory_file_open(&body, &len);
	if (!p.f)
		return tess_fail(TESS_ENOMEM, "out of memory");
	picture_draw_ranks(&p);
	good = draw_modules(&p);
	draw_memory(&p);
	draw_legend(&p);
	good = good && !ferror(p.f);
	fclose(p.f);
	if (!good) {
		free(body);
		return tess_fail(TESS_ENOMEM, "out of memory");
	}
	draw_heading(&p, model, p.y + 8, f);
	fprintf(f, "%s</svg>\n", body);
	free(body);
	return TESS_OK;
}

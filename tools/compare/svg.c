/* svg.c - draws a comparison: a row per value, with a bar for its largest difference. */
#include "compare.h"
#include "api/explain/svg_parts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROW = 20, NAMES = 340, BARS = 300, WORDS = 300, HEAD = 84 };

static const char *get_color_class(const struct tess_value_comparison *v)
{
	return v->state == TESS_VALUE_EQUAL                                          ? "equal"
	       : v->state == TESS_VALUE_DIFFERENT || v->state == TESS_VALUE_RESHAPED ? "different"
	                                                                             : "missing";
}

/* Returns the length of a bar: 1 for a difference as large as the largest one, 0 for 1e-9 of it. */
static double scale_difference(double x, double largest)
{
	double part;

	if (!isfinite(x))
		return 1;
	part = x > 0 && largest > 0 ? 1 + log10(x / largest) / 9 : 0;
	return part > 0.02 ? part : x > 0 ? 0.02 : 0;
}

static void draw_value(FILE *f, double y, const struct tess_value_comparison *v, double largest,
                       bool first)
{
	double width = BARS * scale_difference(v->largest, largest);
	char text[96] = "";

	if (first)
		fprintf(f,
		        "<rect class=\"mark\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\"/>\n",
		        MARGIN / 2, y, NAMES + BARS + WORDS + MARGIN, ROW);
	fprintf(f, "<circle class=\"%s\" cx=\"%d\" cy=\"%.1f\" r=\"5\"/>\n", get_color_class(v),
	        MARGIN + 5, y + ROW / 2.0);
	svg_draw_label(f, MARGIN + 18, y + 14, first ? "head" : "name", 52, "%s", v->name);
	if (width > 0)
		fprintf(f,
		        "<rect class=\"%s\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"8\" "
		        "rx=\"2\"/>\n",
		        get_color_class(v), MARGIN + NAMES, y + 6, width);
	if (v->state == TESS_VALUE_DIFFERENT)
		snprintf(text, sizeof text, "%.3g; row %lld, column %lld", v->largest,
		         (long long)v->row, (long long)v->column);
	else if (v->state != TESS_VALUE_EQUAL)
		snprintf(text, sizeof text, "%s", compare_get_state(v));
	else if (v->largest > 0)
		snprintf(text, sizeof text, "%.3g, allowed", v->largest);
	svg_draw_label(f, MARGIN + NAMES + width + 8, y + 14, "soft", 60, "%s", text);
}

static void draw_compare_head(FILE *f, const struct tess_comparison *c, double height)
{
	svg_begin(f, 2 * MARGIN + NAMES + BARS + WORDS, height,
	          ".mark { fill: #fff1e5; }\n.equal { fill: #2da44e; }\n"
	          ".different { fill: #cf222e; }\n.missing { fill: #8c959f; }\n",
	          ".mark { fill: #3d2b1f; }");
	if (c->first < 0)
		svg_draw_label(f, MARGIN, 36, "title", 80, "all %lld values are equal",
		               (long long)c->ncompared);
	else
		svg_draw_label(f, MARGIN, 36, "title", 80, "%lld of %lld values differ, first %s",
		               (long long)c->ndifferent, (long long)c->ncompared,
		               c->values[c->first]->name);
}

static tess_status draw_sides(FILE *f, const struct compare_options *o)
{
	char *a = compare_format_side(o, 0), *b = compare_format_side(o, 1);

	if (a && b)
		svg_draw_label(f, MARGIN, 56, "soft", 130, "A: %s; B: %s; bars are logarithmic", a,
		               b);
	free(a);
	free(b);
	return a && b ? TESS_OK : tess_fail(TESS_ENOMEM, "--svg: out of memory");
}

tess_status compare_draw(const struct compare_options *o, const struct tess_comparison *c)
{
	FILE *f = fopen(o->svg, "we");
	double largest = 0;
	bool failed;
	tess_status st;

	if (!f)
		return tess_fail(TESS_EIO, "--svg %s: %s", o->svg, strerror(errno));
	for (int64_t i = 0; i < c->nvalues; i++)
		if (isfinite(c->values[i]->largest) && c->values[i]->largest > largest)
			largest = c->values[i]->largest;
	draw_compare_head(f, c, HEAD + ROW * (double)c->nvalues + MARGIN);
	st = draw_sides(f, o);
	for (int64_t i = 0; i < c->nvalues; i++)
		draw_value(f, HEAD + ROW * (double)i, c->values[i], largest, i == c->first);
	fprintf(f, "</svg>\n");
	failed = ferror(f) != 0;
	if ((fclose(f) || failed) && !st)
		st = tess_fail(TESS_EIO, "--svg %s: %s", o->svg, strerror(errno));
	return st;
}

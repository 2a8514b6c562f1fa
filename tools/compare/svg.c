/* svg.c - draws a comparison: a row per value, with a bar for its largest difference. */
#include "compare.h"
#include "api/explain/picture.h"

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

static void draw_value(struct picture *p, const struct tess_value_comparison *v, double largest,
                       bool first)
{
	double width = BARS * scale_difference(v->largest, largest);
	char text[96] = "";

	if (first)
		fprintf(p->f,
		        "<rect class=\"mark\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\"/>\n",
		        MARGIN / 2, p->y, NAMES + BARS + WORDS + MARGIN, ROW);
	fprintf(p->f, "<circle class=\"%s\" cx=\"%d\" cy=\"%.1f\" r=\"5\"/>\n", get_color_class(v),
	        MARGIN + 5, p->y + ROW / 2.0);
	picture_draw_label(p, MARGIN + 18, p->y + 14, first ? "head" : "name", 52, "%s", v->name);
	if (width > 0)
		fprintf(p->f,
		        "<rect class=\"%s\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"8\" "
		        "rx=\"2\"/>\n",
		        get_color_class(v), MARGIN + NAMES, p->y + 6, width);
	if (v->state == TESS_VALUE_DIFFERENT)
		snprintf(text, sizeof text, "%.3g; row %lld, column %lld", v->largest,
		         (long long)v->row, (long long)v->column);
	else if (v->state != TESS_VALUE_EQUAL)
		snprintf(text, sizeof text, "%s", compare_get_state(v));
	else if (v->largest > 0)
		snprintf(text, sizeof text, "%.3g, allowed", v->largest);
	picture_draw_label(p, MARGIN + NAMES + width + 8, p->y + 14, "soft", 60, "%s", text);
	p->y += ROW;
}

static void draw_compare_head(struct picture *p, const struct tess_comparison *c, double height)
{
	int width = 2 * MARGIN + NAMES + BARS + WORDS;

	fprintf(p->f,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
	        "height=\"%.0f\" role=\"img\">\n<style>\n"
	        "text { font: 12px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2328; }\n"
	        ".title { font-size: 18px; font-weight: 600; }\n.head { font-weight: 600; }\n"
	        ".soft { font-size: 11px; fill: #656d76; }\n.back { fill: #ffffff; }\n"
	        ".mark { fill: #fff1e5; }\n.equal { fill: #2da44e; }\n"
	        ".different { fill: #cf222e; }\n.missing { fill: #8c959f; }\n"
	        "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .soft { fill: "
	        "#9198a1; } .back { fill: #0d1117; } .mark { fill: #3d2b1f; } }\n"
	        "</style>\n<rect class=\"back\" width=\"%d\" height=\"%.0f\"/>\n",
	        width, height, width, height, width, height);
	if (c->first < 0)
		picture_draw_label(p, MARGIN, 36, "title", 80, "all %lld values are equal",
		                   (long long)c->ncompared);
	else
		picture_draw_label(p, MARGIN, 36, "title", 80,
		                   "%lld of %lld values differ, first %s", (long long)c->ndifferent,
		                   (long long)c->ncompared, c->values[c->first]->name);
}

static tess_status draw_sides(struct picture *p, const struct compare_options *o)
{
	char *a = compare_format_side(o, 0), *b = compare_format_side(o, 1);

	if (a && b)
		picture_draw_label(p, MARGIN, 56, "soft", 130, "A: %s; B: %s; bars are logarithmic",
		                   a, b);
	free(a);
	free(b);
	return a && b ? TESS_OK : tess_fail(TESS_ENOMEM, "--svg: out of memory");
}

tess_status compare_draw(const struct compare_options *o, const struct tess_comparison *c)
{
	struct picture p = { .f = fopen(o->svg, "we"), .y = HEAD };
	double largest = 0;
	bool failed;
	tess_status st;

	if (!p.f)
		return tess_fail(TESS_EIO, "--svg %s: %s", o->svg, strerror(errno));
	for (int64_t i = 0; i < c->nvalues; i++)
		if (isfinite(c->values[i]->largest) && c->values[i]->largest > largest)
			largest = c->values[i]->largest;
	draw_compare_head(&p, c, HEAD + ROW * (double)c->nvalues + MARGIN);
	st = draw_sides(&p, o);
	for (int64_t i = 0; i < c->nvalues; i++)
		draw_value(&p, c->values[i], largest, i == c->first);
	fprintf(p.f, "</svg>\n");
	failed = ferror(p.f) != 0;
	if ((fclose(p.f) || failed) && !st)
		st = tess_fail(TESS_EIO, "--svg %s: %s", o->svg, strerror(errno));
	return st;
}

/* timeline_svg.c - draws a timeline: a row for each rank, with colors by kind and a grey bubble. */
#include "api/explain/timeline.h"

enum {
	EDGE = 24,
	TOP = 72,
	ROW = 26,
	BAR = 20,
	NAME_WIDTH = 64,
	LIVE = 76,
	UNIT = 22,
	LEGEND = 44
};
enum { WIDTH_MIN = 560, WIDTH_MAX = 1600, DIGIT = 7 };

struct timeline_picture {
	const struct tess_timeline *t;
	FILE *f;
	double width, scale; /* of the bars; per time */
};

static double get_row_y(int32_t rank)
{
	return TOP + rank * ROW;
}

/* Writes text in which a name of the caller stands. */
static void write_escaped(FILE *f, const char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '<' || c == '>' || c == '&' || c == '"' || c < ' ' || c > '~')
			fprintf(f, c < ' ' || c > '~' ? "?" : "&#%d;", c);
		else
			fputc(c, f);
	}
}

static void draw_style(FILE *f)
{
	/* as in the pictures of plans; later stages of a rank are lighter */
	fprintf(f, "<style>\n"
	           "text { font: 12px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2328; }\n"
	           ".title { font-size: 18px; font-weight: 600; }\n"
	           ".soft { font-size: 11px; fill: #656d76; }\n"
	           ".n { font-size: 11px; text-anchor: middle; fill: #ffffff; }\n"
	           ".back { fill: #ffffff; }\n.bubble { fill: #d8dee4; }\n"
	           ".F { fill: #0969da; }\n.B { fill: #1a7f37; }\n.I { fill: #1b7c83; }\n"
	           ".W { fill: #bc4c00; }\n.later { fill-opacity: 0.72; }\n"
	           "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .soft { fill: "
	           "#9198a1; } .back { fill: #0d1117; } .bubble { fill: #30363d; } .n { fill: "
	           "#ffffff; } }\n</style>\n");
}

static void draw_timeline_title(const struct timeline_picture *d)
{
	const struct tess_pipeline *p = d->t->pipeline;
	double width = 2 * EDGE + NAME_WIDTH + d->width + LIVE;
	double height = get_row_y(p->nranks) + LEGEND;
	char bubble[TIMELINE_BUBBLE];

	timeline_format_bubble(d->t, bubble);
	fprintf(d->f,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
	        "width=\"%.0f\" height=\"%.0f\" role=\"img\">\n",
	        width, height, width, height);
	draw_style(d->f);
	fprintf(d->f,
	        "<rect class=\"back\" width=\"%.0f\" height=\"%.0f\"/>\n"
	        "<text class=\"title\" x=\"%d\" y=\"34\">",
	        width, height, EDGE);
	write_escaped(d->f, p->name ? p->name : "");
	fprintf(d->f,
	        "</text>\n<text class=\"soft\" x=\"%d\" y=\"54\">%d ranks along pp, %d stages, %d "
	        "micro-batches; %s</text>\n",
	        EDGE, (int)p->nranks, (int)p->nstages, (int)p->nmicro, bubble);
}

/* Returns whether an earlier stage is on the same rank. */
static bool is_later_stage(const struct tess_pipeline *p, int32_t stage)
{
	for (int32_t s = 0; s < stage; s++)
		if (p->rank_of[s] == p->rank_of[stage])
			return true;
	return false;
}

static int count_digits(int32_t number)
{
	return number < 10 ? 1 : 1 + count_digits(number / 10);
}

static void draw_computation(const struct timeline_picture *d, int32_t rank, int32_t i)
{
	const struct tess_pipeline *p = d->t->pipeline;
	const struct tess_pipeline_action *a = &p->actions[rank][i];
	const struct tess_timeline_span *s = &d->t->spans[rank][i];
	const char *kind = timeline_get_kind(a->kind);
	double x = EDGE + NAME_WIDTH + s->start * d->scale, width = (s->end - s->start) * d->scale;

	if (!kind)
		return;
	fprintf(d->f,
	        "<rect class=\"%s%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\">"
	        "<title>%d%s%d: %.4g to %.4g</title></rect>\n",
	        kind, is_later_stage(p, a->stage) ? " later" : "", x, get_row_y(rank),
	        width > 2 ? width - 1 : width, BAR, (int)a->stage, kind, (int)a->micro, s->start,
	        s->end);
	if (width > DIGIT * count_digits(a->micro) + 2)
		fprintf(d->f, "<text class=\"n\" x=\"%.1f\" y=\"%.1f\">%d</text>\n", x + width / 2,
		        get_row_y(rank) + 14, (int)a->micro);
}

static void draw_rank_row(const struct timeline_picture *d, int32_t rank)
{
	double y = get_row_y(rank);

	fprintf(d->f,
	        "<text x=\"%d\" y=\"%.1f\">rank %d</text>\n<rect class=\"bubble\" x=\"%d\" "
	        "y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n",
	        EDGE, y + 14, (int)rank, EDGE + NAME_WIDTH, y, d->width, BAR);
	for (int32_t i = 0; i < d->t->pipeline->nactions[rank]; i++)
		draw_computation(d, rank, i);
	fprintf(d->f, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\">%d live</text>\n",
	        EDGE + NAME_WIDTH + d->width + 10, y + 14, (int)d->t->live[rank]);
}

static void draw_legend_of_kinds(const struct timeline_picture *d)
{
	static const struct {
		const char *class, *name;
		int width;
	} kinds[] = {
		{ "F", "forward", 84 },     { "B", "backward", 92 }, { "I", "of inputs", 90 },
		{ "W", "of weights", 100 }, { "bubble", "idle", 0 },
	};
	double y = get_row_y(d->t->pipeline->nranks) + 10, x = EDGE + NAME_WIDTH;

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		fprintf(d->f,
		        "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\"/>\n"
		        "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
		        kinds[i].class, x, y, x + 18, y + 10, kinds[i].name);
		x += kinds[i].width;
	}
}

void timeline_draw(const struct tess_timeline *t, FILE *f)
{
	struct timeline_picture d = { .t = t, .f = f };
	double unit = timeline_find_unit(t);

	d.width = unit > 0 ? UNIT * t->length / unit : WIDTH_MIN;
	d.width = d.width < WIDTH_MIN ? WIDTH_MIN : d.width > WIDTH_MAX ? WIDTH_MAX : d.width;
	d.scale = t->length > 0 ? d.width / t->length : 0;
	draw_timeline_title(&d);
	for (int32_t r = 0; r < t->pipeline->nranks; r++)
		draw_rank_row(&d, r);
	draw_legend_of_kinds(&d);
	fprintf(f, "</svg>\n");
}

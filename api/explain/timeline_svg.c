/*
 * timeline_svg.c - draws a timeline: for each rank a row of computations, with colors by kind and a
 * grey bubble, and below it a line of the micro-batches whose values the rank keeps.
 */
#include "api/explain/svg_parts.h"
#include "api/explain/timeline.h"
#include "nn/schedule/schedule.h"

/* ROW: of a rank, with its BAR and a line of LINE */
enum { TOP = 72, ROW = 48, BAR = 20, LINE = 16, GAP = 3 };
enum { NAME_WIDTH = 64, PEAK = 90, UNIT = 22, LEGEND = 44, DIGIT = 7 };
enum { WIDTH_MIN = 560, WIDTH_MAX = 1600 };

/* later: stages of a rank after its first one */
static const char timeline_styles[] = ".n { fill: #ffffff; }\n.bubble { fill: #d8dee4; }\n"
				      ".F { fill: #0969da; }\n.B { fill: #1a7f37; }\n"
				      ".I { fill: #1b7c83; }\n.W { fill: #bc4c00; }\n"
				      ".later { fill-opacity: 0.72; }\n"
				      ".kept { fill: none; stroke: #8250df; stroke-width: 1.5; }\n"
				      ".peak { fill: #8250df; }\n";
static const char dark_styles[] = ".bubble { fill: #30363d; } .n { fill: #ffffff; } "
				  ".kept { stroke: #a371f7; } .peak { fill: #a371f7; }";

struct timeline_picture {
	const struct tess_timeline *t;
	FILE *f;
	double width, scale; /* of the bars; per time */
	int32_t peak; /* micro-batches that a rank keeps, at most */
};

static double get_row_y(int32_t rank)
{
	return TOP + rank * ROW;
}

static double get_time_x(const struct timeline_picture *d, double time)
{
	return MARGIN + NAME_WIDTH + time * d->scale;
}

static void draw_timeline_title(const struct timeline_picture *d)
{
	const struct tess_pipeline *p = d->t->pipeline;
	char size[TIMELINE_LINE], bubble[TIMELINE_LINE];

	timeline_format_size(p, size);
	timeline_format_bubble(d->t, bubble);
	svg_begin(d->f, 2 * MARGIN + NAME_WIDTH + d->width + PEAK, get_row_y(p->nranks) + LEGEND,
	          timeline_styles, dark_styles);
	svg_draw_label(d->f, MARGIN, 34, "title", 60, "%s", p->name ? p->name : "");
	svg_draw_label(d->f, MARGIN, 54, "soft", 160, "%s; %s", size, bubble);
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
	const char *kind = tess_schedule_name_kind(a->kind);
	double x = get_time_x(d, s->start), width = (s->end - s->start) * d->scale;

	if (tess_schedule_is_message(a->kind))
		return;
	fprintf(d->f,
	        "<rect class=\"%s%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\">"
	        "<title>%d%s%d: %.4g to %.4g</title></rect>\n",
	        kind, is_later_stage(p, a->stage) ? " later" : "", x, get_row_y(rank),
	        width > 2 ? width - 1 : width, BAR, (int)a->stage, kind, (int)a->micro, s->start,
	        s->end);
	if (width > DIGIT * count_digits(a->micro) + 2)
		svg_draw_label(d->f, x + width / 2, get_row_y(rank) + 14, "mid n", 16, "%d",
		               (int)a->micro);
}

/* Draws the micro-batches that a rank keeps, on one scale for all ranks. */
static void draw_kept(const struct timeline_picture *d, int32_t rank)
{
	const struct tess_pipeline *p = d->t->pipeline;
	double foot = get_row_y(rank) + BAR + GAP + LINE, step = (double)LINE / d->peak;
	double peak_x = 0;
	int32_t n = 0;

	fprintf(d->f, "<path class=\"kept\" d=\"M%.1f %.1f", get_time_x(d, 0), foot);
	for (int32_t i = 0; i < p->nactions[rank]; i++) {
		const struct tess_timeline_span *s = &d->t->spans[rank][i];

		if (s->kept != n)
			fprintf(d->f, "H%.1fV%.1f", get_time_x(d, s->start), foot - s->kept * step);
		if (s->kept == d->t->live[rank] && !peak_x)
			peak_x = get_time_x(d, s->start);
		n = s->left;
		if (n != s->kept)
			fprintf(d->f, "H%.1fV%.1f", get_time_x(d, s->end), foot - n * step);
	}
	fprintf(d->f, "H%.1f\"/>\n<circle class=\"peak\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n",
	        get_time_x(d, d->t->length), peak_x, foot - d->t->live[rank] * step);
	svg_draw_label(d->f, get_time_x(d, d->t->length) + 10, foot, "soft", 24, "peak %d live",
	               (int)d->t->live[rank]);
}

static void draw_rank_row(const struct timeline_picture *d, int32_t rank)
{
	double y = get_row_y(rank);

	svg_draw_label(d->f, MARGIN, y + 14, "head", 16, "rank %d", (int)rank);
	fprintf(d->f, "<rect class=\"bubble\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n",
	        MARGIN + NAME_WIDTH, y, d->width, BAR);
	for (int32_t i = 0; i < d->t->pipeline->nactions[rank]; i++)
		draw_computation(d, rank, i);
	draw_kept(d, rank);
}

/* Draws a box with its name. Returns the end of the text. */
static double draw_key(const struct timeline_picture *d, double x, const char *class,
                       const char *name, double width)
{
	double y = get_row_y(d->t->pipeline->nranks) + 10;

	fprintf(d->f, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\"/>\n",
	        class, x, y);
	svg_draw_label(d->f, x + 18, y + 10, "soft", 60, "%s", name);
	return x + width;
}

static void draw_keys(const struct timeline_picture *d)
{
	static const struct {
		const char *name;
		double width;
	} kinds[] = { [TESS_PIPELINE_FORWARD] = { "forward", 76 },
		      [TESS_PIPELINE_BACKWARD] = { "backward", 84 },
		      [TESS_PIPELINE_BACKWARD_INPUTS] = { "backward of inputs", 130 },
		      [TESS_PIPELINE_BACKWARD_WEIGHTS] = { "of weights", 92 } };
	double x = MARGIN + NAME_WIDTH;

	for (int32_t k = 0; k <= TESS_PIPELINE_BACKWARD_WEIGHTS; k++)
		if (tess_schedule_has_kind(d->t->pipeline, k))
			x = draw_key(d, x, tess_schedule_name_kind(k), kinds[k].name,
			             kinds[k].width);
	x = draw_key(d, x, "bubble", "idle", 56);
	draw_key(d, x, "kept", "line: micro-batches with live values", 0);
}

void timeline_draw(const struct tess_timeline *t, FILE *f)
{
	struct timeline_picture d = { .t = t, .f = f, .peak = 1 };
	double unit = timeline_find_unit(t);

	d.width = unit > 0 ? UNIT * t->length / unit : WIDTH_MIN;
	d.width = d.width < WIDTH_MIN ? WIDTH_MIN : d.width > WIDTH_MAX ? WIDTH_MAX : d.width;
	d.scale = t->length > 0 ? d.width / t->length : 0;
	for (int32_t r = 0; r < t->pipeline->nranks; r++)
		d.peak = t->live[r] > d.peak ? t->live[r] : d.peak;
	draw_timeline_title(&d);
	for (int32_t r = 0; r < t->pipeline->nranks; r++)
		draw_rank_row(&d, r);
	draw_keys(&d);
	fprintf(f, "</svg>\n");
}

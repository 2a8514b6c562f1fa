/* chart.c - draws times and bus bandwidths over sizes as SVG, with logarithmic axes. */
#include "bench.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 948, HEIGHT = 440, LEFT = 64, TOP = 72, PANEL = 380, TALL = 300, APART = 460 };

struct panel { /* one of the two diagrams */
	const struct bench_result *b;
	const char *title;
	double (*value)(const struct bench_result *b, const struct bench_row *r, int32_t series);
	double x; /* left edge */
	double min_power, max_power; /* powers of ten */
};

static double get_time(const struct bench_result *b, const struct bench_row *r, int32_t series)
{
	(void)b;
	return r->cell[series].us;
}

static double compute_x(const struct panel *p, uint64_t bytes)
{
	double lo = log2((double)p->b->row[0].bytes);
	double hi = log2((double)p->b->row[p->b->nrows - 1].bytes);

	return p->x + (hi > lo ? (log2((double)bytes) - lo) / (hi - lo) : 0.5) * PANEL;
}

static double compute_y(const struct panel *p, double value)
{
	return TOP + TALL - (log10(value) - p->min_power) / (p->max_power - p->min_power) * TALL;
}

static void find_range(struct panel *p)
{
	double min = INFINITY, max = 0;

	for (size_t i = 0; i < p->b->nrows; i++)
		for (int32_t s = 0; s < BENCH_SERIES; s++) {
			double v = p->b->has[s] ? p->value(p->b, &p->b->row[i], s) : 0;

			if (v <= 0)
				continue;
			min = v < min ? v : min;
			max = v > max ? v : max;
		}
	p->min_power = max > 0 ? floor(log10(min)) : 0;
	p->max_power = max > 0 ? ceil(log10(max)) : 1;
	if (p->max_power <= p->min_power)
		p->max_power = p->min_power + 1;
}

static void draw_axes(const struct panel *p, FILE *f)
{
	const struct bench_result *b = p->b;
	size_t every = (b->nrows + 6) / 7;
	char size[32];

	fprintf(f, "<text class=\"title\" x=\"%.1f\" y=\"%d\">%s</text>\n", p->x, TOP - 14,
	        p->title);
	for (double power = p->min_power; power <= p->max_power; power++) {
		double y = compute_y(p, pow(10, power));

		fprintf(f, "<path class=\"grid\" d=\"M%.1f %.1fh%d\"/>\n", p->x, y, PANEL);
		fprintf(f, "<text class=\"y\" x=\"%.1f\" y=\"%.1f\">%g</text>\n", p->x - 8, y + 4,
		        pow(10, power));
	}
	for (size_t i = 0; i < b->nrows; i += every) {
		double x = compute_x(p, b->row[i].bytes);

		bench_format_size(b->row[i].bytes, size);
		fprintf(f, "<path class=\"grid\" d=\"M%.1f %dv%d\"/>\n", x, TOP, TALL);
		fprintf(f, "<text class=\"x\" x=\"%.1f\" y=\"%d\">%s</text>\n", x, TOP + TALL + 20,
		        size);
	}
}

static void draw_series(const struct panel *p, int32_t series, FILE *f)
{
	const struct bench_result *b = p->b;
	char join = 'M', size[32];

	fprintf(f, "<path class=\"line s%d\" d=\"", (int)series);
	for (size_t i = 0; i < b->nrows; i++) {
		double v = p->value(b, &b->row[i], series);

		if (v <= 0)
			continue;
		fprintf(f, "%c%.1f %.1f", join, compute_x(p, b->row[i].bytes), compute_y(p, v));
		join = 'L';
	}
	fprintf(f, "\"/>\n");
	for (size_t i = 0; i < b->nrows; i++) {
		double v = p->value(b, &b->row[i], series);

		if (v <= 0)
			continue;
		bench_format_size(b->row[i].bytes, size);
		fprintf(f, "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\">", (int)series,
		        compute_x(p, b->row[i].bytes), compute_y(p, v));
		fprintf(f, "<title>%s: %.*f</title></circle>\n", size,
		        v < 10     ? 3
		        : v < 1000 ? 1
		                   : 0,
		        v);
	}
}

static void draw_panel(struct panel *p, FILE *f)
{
	find_range(p);
	draw_axes(p, f);
	for (int32_t s = 0; s < BENCH_SERIES; s++)
		if (p->b->has[s])
			draw_series(p, s, f);
}

static void draw_head(const struct bench_result *b, FILE *f)
{
	/* distinct colors, visible on white and on black */
	static const char *const colors[BENCH_SERIES] = { "#2f81f7", "#d9730d", "#2da44e",
		                                          "#a371f7" };
	const struct bench_options *a = b->options;
	bool reduces = tess_kind_reduces(a->kind);
	double x = LEFT;

	fprintf(f,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
	        "height=\"%d\" "
	        "role=\"img\">\n"
	        "<style>\n"
	        "text { font: 12px system-ui, sans-serif; fill: #1f2328; }\n"
	        ".title { font-weight: 600; }\n.x { text-anchor: middle; }\n.y { text-anchor: end; "
	        "}\n"
	        ".back { fill: #ffffff; }\n.grid { stroke: #d0d7de; fill: none; }\n"
	        ".line { fill: none; stroke-width: 2; }\n"
	        "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .back { fill: "
	        "#0d1117; } .grid { stroke: #3d444d; } }\n",
	        WIDTH, HEIGHT, WIDTH, HEIGHT);
	for (int s = 0; s < BENCH_SERIES; s++)
		fprintf(f, "path.s%d { stroke: %s; }\ncircle.s%d { fill: %s; }\n", s, colors[s], s,
		        colors[s]);
	fprintf(f, "</style>\n<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n", WIDTH, HEIGHT);
	fprintf(f,
	        "<text class=\"title\" x=\"%d\" y=\"26\">%s of %s%s%s: %d ranks over %s, %s "
	        "memory%s</text>\n",
	        LEFT, bench_kind_name(a->kind), tess_dtype_name(a->dtype), reduces ? ", " : "",
	        reduces ? tess_reduce_op_name(a->op) : "", (int)b->nranks, b->backend,
	        b->shared ? "shared" : "own", a->in_place ? ", in place" : "");
	for (int32_t s = 0; s < BENCH_SERIES; s++) {
		if (!b->has[s])
			continue;
		fprintf(f, "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%d\" r=\"5\"/>\n", (int)s, x + 5,
		        HEIGHT - 20);
		fprintf(f, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", x + 16, HEIGHT - 16,
		        bench_series_name(a, s));
		x += 120;
	}
}

tess_status bench_write_chart(const struct bench_result *b, FILE *f)
{
	struct panel panels[] = {
		{ .b = b, .title = "time (us)", .value = get_time, .x = LEFT },
		{ .b = b,
		  .title = "bus bandwidth (GB/s)",
		  .value = bench_compute_busbw,
		  .x = LEFT + APART },
	};

	draw_head(b, f);
	if (b->nrows)
		for (size_t i = 0; i < sizeof panels / sizeof *panels; i++)
			draw_panel(&panels[i], f);
	fprintf(f, "</svg>\n");
	if (fflush(f) || ferror(f))
		return tess_fail(TESS_EIO, "--svg %s: %s", b->options->svg, strerror(errno));
	return TESS_OK;
}

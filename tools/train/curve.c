/* curve.c - draws the loss over the steps as SVG. */
#include "train.h"

#include <math.h>

enum { WIDE = 900, HIGH = 420, PLOT_X = 64, PLOT_Y = 48, PLOT_W = 812, PLOT_H = 312 };

struct axis {
	double lo, hi, tick;
};

struct column { /* the steps in one column of points of the picture */
	double x, sum, least, most;
	int64_t n;
};

/* Returns the distance of at most `most` ticks: 1, 2 or 5 times a power of ten. */
static double choose_tick(double range, int most)
{
	double power = pow(10, floor(log10(range / most)));

	for (int i = 0; i < 3; i++)
		if (range / (power * (double[]){ 1, 2, 5 }[i]) <= most)
			return power * (double[]){ 1, 2, 5 }[i];
	return 10 * power;
}

/* Returns whether an axis with `v` has finite ticks and labels. */
static bool is_drawable(double v)
{
	return fabs(v) < 1e100;
}

/* Returns the axis from tick to tick around the losses; neighbouring labels differ. */
static struct axis make_loss_axis(const struct train_point *points, int64_t n)
{
	struct axis a = { .lo = INFINITY, .hi = -INFINITY };

	for (int64_t i = 0; i < n; i++)
		for (int k = 0; k < 2; k++) {
			double v = k ? points[i].evaluation : points[i].loss;

			a.lo = is_drawable(v) && v < a.lo ? v : a.lo;
			a.hi = is_drawable(v) && v > a.hi ? v : a.hi;
		}
	if (!(a.hi - a.lo > 1e-9 * fmax(1, fabs(a.lo)))) { /* at most one value */
		double half = isfinite(a.lo) ? fmax(0.5, 1e-6 * fabs(a.lo)) : 0.5;

		a.lo = isfinite(a.lo) ? a.lo - half : 0;
		a.hi = a.lo + 2 * half;
	}
	a.tick = choose_tick(a.hi - a.lo, 6);
	a.lo = floor(a.lo / a.tick) * a.tick;
	a.hi = ceil(a.hi / a.tick) * a.tick;
	return a;
}

static double map_step(const struct axis *x, double step)
{
	return PLOT_X + (step - x->lo) / (x->hi - x->lo) * PLOT_W;
}

static double map_loss(const struct axis *y, double loss)
{
	return PLOT_Y + PLOT_H - (loss - y->lo) / (y->hi - y->lo) * PLOT_H;
}

static void draw_grid(const struct axis *x, const struct axis *y, FILE *f)
{
	int digits = y->tick < 1 ? (int)ceil(-log10(y->tick) - 1e-9) : 0;
	int rows = (int)lround((y->hi - y->lo) / y->tick);
	double first = ceil(x->lo / x->tick), last = floor(x->hi / x->tick);

	for (int i = 0; i <= rows; i++) {
		double v = y->lo + i * y->tick;

		fprintf(f,
		        "<path class=\"grid\" d=\"M%d %.1fh%d\"/>\n"
		        "<text class=\"y\" x=\"%d\" y=\"%.1f\">%.*f</text>\n",
		        PLOT_X, map_loss(y, v), PLOT_W, PLOT_X - 8, map_loss(y, v) + 4, digits,
		        fabs(v) < y->tick / 2 ? 0 : v);
	}
	for (int i = 0; i <= (int)(last - first); i++) {
		double v = (first + i) * x->tick;

		fprintf(f,
		        "<path class=\"grid\" d=\"M%.1f %dv%d\"/>\n"
		        "<text class=\"x\" x=\"%.1f\" y=\"%d\">%.0f</text>\n",
		        map_step(x, v), PLOT_Y, PLOT_H, map_step(x, v), PLOT_Y + PLOT_H + 20, v);
	}
	fprintf(f, "<text class=\"x\" x=\"%d\" y=\"%d\">step</text>\n", PLOT_X + PLOT_W / 2,
	        HIGH - 12);
}

/* Fills the columns that have steps; returns their number. */
static int64_t make_columns(const struct train_point *points, int64_t n, const struct axis *x,
                            struct column columns[PLOT_W + 1])
{
	int64_t last = -1, count = 0;

	for (int64_t i = 0; i < n; i++) {
		double at = map_step(x, (double)points[i].step), v = points[i].loss;
		struct column *c;

		if (!is_drawable(v))
			continue;
		if ((int64_t)at != last)
			columns[count++] = (struct column){ .x = at, .least = v, .most = v };
		last = (int64_t)at;
		c = &columns[count - 1];
		c->sum += v;
		c->n++;
		c->least = v < c->least ? v : c->least;
		c->most = v > c->most ? v : c->most;
	}
	return count;
}

/* Draws the mean of each column, and the range of columns with several steps. */
static void draw_losses(const struct train_point *points, int64_t n, const struct axis *x,
                        const struct axis *y, FILE *f)
{
	struct column columns[PLOT_W + 1];
	int64_t count = make_columns(points, n, x, columns);

	if (n > count) {
		fprintf(f, "<path class=\"band\" d=\"");
		for (int64_t i = 0; i < count; i++)
			fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', columns[i].x,
			        map_loss(y, columns[i].most));
		for (int64_t i = count; i-- > 0;)
			fprintf(f, "L%.1f %.1f", columns[i].x, map_loss(y, columns[i].least));
		fprintf(f, "z\"/>\n");
	}
	fprintf(f, "<path class=\"loss\" d=\"");
	for (int64_t i = 0; i < count; i++)
		fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', columns[i].x,
		        map_loss(y, columns[i].sum / (double)columns[i].n));
	fprintf(f, "\"/>\n");
}

static void draw_evaluations(const struct train_point *points, int64_t n, const struct axis *x,
                             const struct axis *y, FILE *f)
{
	bool any = false;

	for (int64_t i = 0; i < n; i++)
		if (is_drawable(points[i].evaluation)) {
			fprintf(f,
			        "<circle class=\"eval\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>"
			        "step %lld: %.4f</title></circle>\n",
			        map_step(x, (double)points[i].step),
			        map_loss(y, points[i].evaluation), (long long)points[i].step,
			        points[i].evaluation);
			any = true;
		}
	fprintf(f,
	        "<path class=\"loss\" d=\"M%d 24h28\"/>\n<text x=\"%d\" y=\"28\">training loss: "
	        "%.4f at step %lld</text>\n",
	        PLOT_X, PLOT_X + 36, points[n - 1].loss, (long long)points[n - 1].step);
	if (any)
		fprintf(f,
		        "<circle class=\"eval\" cx=\"%d\" cy=\"24\" r=\"3.5\"/>\n"
		        "<text x=\"%d\" y=\"28\">evaluation</text>\n",
		        PLOT_X + 330, PLOT_X + 342);
}

void train_draw_curve(const struct train_point *points, int64_t n, FILE *f)
{
	struct axis y = make_loss_axis(points, n);
	struct axis x = { .lo = (double)points[0].step, .hi = (double)points[n - 1].step };

	x.hi = fmax(x.hi, x.lo + fmax(1, 1e-9 * x.lo));
	x.tick = fmax(1, choose_tick(x.hi - x.lo, 10));
	fprintf(f,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
	        "height=\"%d\" role=\"img\">\n<style>\n"
	        "text { font: 12px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2328; }\n"
	        ".x { text-anchor: middle; }\n.y { text-anchor: end; }\n"
	        ".back { fill: #ffffff; }\n.grid { stroke: #d0d7de; fill: none; }\n"
	        ".loss { stroke: #2f81f7; stroke-width: 1.6; fill: none; stroke-linejoin: round; "
	        "}\n.band { fill: #2f81f7; fill-opacity: 0.22; }\n.eval { fill: #d9730d; }\n"
	        "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .back { fill: "
	        "#0d1117; } .grid { stroke: #3d444d; } }\n</style>\n"
	        "<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n",
	        WIDE, HIGH, WIDE, HIGH, WIDE, HIGH);
	draw_grid(&x, &y, f);
	draw_losses(points, n, &x, &y, f);
	draw_evaluations(points, n, &x, &y, f);
	fprintf(f, "</svg>\n");
}

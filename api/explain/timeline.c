/* timeline.c - the forms of a timeline: as text, the time of all ranks in cells. */
#include "api/explain/timeline.h"

#include "core/base/memory_file.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "nn/schedule/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 100, NAME_COLUMNS = 9, CELLS_MAX = 1 << 20, LABEL_MAX = 40 };

struct time_cells { /* a cell for each rank and unit of time: the shortest computation */
	const struct tess_timeline *t;
	double unit;
	int32_t n, width; /* cells of a rank; characters of a cell, with a space */
	char (*label)[LABEL_MAX]; /* by rank and cell */
};

/* ---- cells ----------------------------------------------------------------------------------- */

double timeline_find_unit(const struct tess_timeline *t)
{
	double unit = t->length;

	for (int32_t r = 0; r < t->pipeline->nranks; r++)
		for (int32_t i = 0; i < t->pipeline->nactions[r]; i++) {
			double time = t->spans[r][i].end - t->spans[r][i].start;

			if (!tess_schedule_is_message(t->pipeline->actions[r][i].kind) &&
			    time > 0 && time < unit)
				unit = time;
		}
	return unit;
}

/* Formats "F1", or "4F1" where a rank has several stages. Returns its length. */
static int32_t format_label(const struct tess_pipeline *p, const struct tess_pipeline_action *a,
                            char out[LABEL_MAX])
{
	const char *kind = tess_schedule_name_kind(a->kind);

	return p->nstages > p->nranks
	               ? snprintf(out, LABEL_MAX, "%d%s%d", (int)a->stage, kind, (int)a->micro)
	               : snprintf(out, LABEL_MAX, "%s%d", kind, (int)a->micro);
}

static void fill_rank_cells(struct time_cells *c, int32_t rank)
{
	const struct tess_pipeline *p = c->t->pipeline;
	char(*row)[LABEL_MAX] = &c->label[(int64_t)rank * c->n];

	for (int32_t i = 0; i < p->nactions[rank]; i++) {
		const struct tess_timeline_span *s = &c->t->spans[rank][i];
		int64_t first = llround(s->start / c->unit), end = llround(s->end / c->unit);
		int32_t len;

		if (tess_schedule_is_message(p->actions[rank][i].kind) || first >= c->n)
			continue;
		len = format_label(p, &p->actions[rank][i], row[first]);
		c->width = len + 1 > c->width ? len + 1 : c->width;
		while (++first < end && first < c->n)
			strcpy(row[first], "-");
	}
}

/* Prints the time above cells [from, to): of the first one, and each fifth. */
static void print_scale(const struct time_cells *c, int32_t from, int32_t to, FILE *f)
{
	int32_t spaces = NAME_COLUMNS - 4;

	fprintf(f, "time");
	for (int32_t i = from; i < to; i++) {
		spaces += c->width;
		if (i != from && i % 5)
			continue;
		fprintf(f, "%*d", (int)spaces, (int)i);
		spaces = 0;
	}
	fprintf(f, "\n");
}

static void print_cells(const struct time_cells *c, FILE *f)
{
	int32_t most = (COLUMNS - NAME_COLUMNS) / c->width, nparts = (c->n + most - 1) / most;
	int32_t each = (c->n + nparts - 1) / nparts;

	for (int32_t from = 0; from < c->n; from += each) {
		int32_t to = from + each < c->n ? from + each : c->n;

		print_scale(c, from, to, f);
		for (int32_t r = 0; r < c->t->pipeline->nranks; r++) {
			fprintf(f, "rank %-*d", NAME_COLUMNS - 5, (int)r);
			for (int32_t i = from; i < to; i++) {
				const char *label = c->label[(int64_t)r * c->n + i];

				fprintf(f, "%*s", (int)c->width, *label ? label : ".");
			}
			fprintf(f, "\n");
		}
		fprintf(f, "\n");
	}
}

static tess_status print_time(const struct tess_timeline *t, FILE *f)
{
	struct time_cells c = { .t = t, .unit = timeline_find_unit(t), .width = 3 };
	double n = c.unit > 0 ? ceil(t->length / c.unit - 1e-9) : 0;

	if (n * t->pipeline->nranks > CELLS_MAX || n < 1) {
		fprintf(f, "the timeline is not printed: it has no time, or more than %d cells\n\n",
		        CELLS_MAX);
		return TESS_OK;
	}
	c.n = (int32_t)n;
	c.label = calloc((size_t)c.n * (size_t)t->pipeline->nranks, LABEL_MAX);
	if (!c.label)
		return tess_fail(TESS_ENOMEM, "out of memory for a timeline");
	for (int32_t r = 0; r < t->pipeline->nranks; r++)
		fill_rank_cells(&c, r);
	print_cells(&c, f);
	free(c.label);
	return TESS_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void print_ranks(const struct tess_timeline *t, FILE *f)
{
	const struct tess_pipeline *p = t->pipeline;

	fprintf(f, "rank   idle  live micro-batches (of each stage)\n");
	for (int32_t r = 0; r < p->nranks; r++) {
		double idle = t->length > 0 ? 100 * (1 - t->work[r] / t->length) : 0;
		const char *before = "  (";

		fprintf(f, "%4d %5.1f%%  %4d", (int)r, idle, (int)t->live[r]);
		for (int32_t s = 0; s < p->nstages; s++)
			if (p->rank_of[s] == r) {
				fprintf(f, "%s%d: %d", before, (int)s, (int)t->stage_live[s]);
				before = ", ";
			}
		fprintf(f, ")\n");
	}
}

void timeline_format_size(const struct tess_pipeline *p, char out[TIMELINE_LINE])
{
	snprintf(out, TIMELINE_LINE, "%d ranks along pp, %d stages, %d micro-batch%s",
	         (int)p->nranks, (int)p->nstages, (int)p->nmicro, p->nmicro == 1 ? "" : "es");
}

void timeline_format_bubble(const struct tess_timeline *t, char out[TIMELINE_LINE])
{
	double unit = timeline_find_unit(t), ideal = t->ideal > 0 ? t->ideal : 1;

	unit = unit > 0 ? unit : 1;
	snprintf(out, TIMELINE_LINE, "a step takes %.4g, work %.4g: bubble %.1f%% of the work",
	         t->length / unit, t->ideal / unit, 100 * (t->length / ideal - 1));
}

static tess_status print_timeline(const struct tess_timeline *t, FILE *f)
{
	const struct tess_pipeline *p = t->pipeline;
	double unit = timeline_find_unit(t);
	char size[TIMELINE_LINE], bubble[TIMELINE_LINE];
	tess_status st;

	timeline_format_size(p, size);
	timeline_format_bubble(t, bubble);
	fprintf(f, "pipeline schedule %s: %s\n%s\n", p->name ? p->name : "", size, bubble);
	if (t->longest < t->length)
		fprintf(f, "if no rank waits for others before the optimizer step: bubble %.1f%%\n",
		        100 * (t->longest / t->ideal - 1));
	fprintf(f, "unit of time: the shortest computation");
	if (unit > 0 && unit != 1)
		fprintf(f, ", %.4g of the times given", unit);
	fprintf(f, "\n\n");
	st = print_time(t, f);
	print_ranks(t, f);
	return st;
}

tess_status tess_timeline_format(const struct tess_timeline *t, int32_t form, char **text)
{
	tess_status st = TESS_REQUIRE(t, text);
	char *made = NULL;
	size_t len;
	bool failed;
	FILE *f;

	if (!st && form != TESS_TIMELINE_TEXT && form != TESS_TIMELINE_SVG)
		st = tess_fail(TESS_EINVAL,
		               "form %d of a timeline; use TESS_TIMELINE_TEXT or TESS_TIMELINE_SVG",
		               (int)form);
	if (st)
		return st;
	f = tess_memory_file_open(&made, &len);
	if (!f)
		return TESS_ENOMEM;
	if (form == TESS_TIMELINE_SVG)
		timeline_draw(t, f);
	else
		st = print_timeline(t, f);
	failed = ferror(f);
	failed = fclose(f) || failed;
	if (!st && failed)
		st = tess_fail(TESS_ENOMEM, "out of memory for the text of a timeline");
	if (st)
		free(made);
	else
		*text = made;
	return st;
}

/* report.c - prints a table with a row per part, or TAP with a point per job; the result. */
#include "conform.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUTPUT_LINES = 12 };

struct conform_report {
	bool tap, on_terminal, quick;
	const char *name, *only; /* name: of what is tested */
	int64_t started_at, row_started_at;
	/* the row */
	char part[64], faulty_parts[512]; /* faulty_parts: all parts with faults so far */
	char text[16384]; /* its faults */
	char note[CONFORM_TEXT];
	size_t len;
	uint32_t ranks, cases, points;
	/* the job */
	char job[128];
	int32_t nranks;
	bool bad, row_bad;
	/* in all */
	unsigned long all_cases;
	int point, faults;
	char gaps[512];
};

struct conform_report *conform_report_open(const struct conform_options *options)
{
	struct conform_report *r = calloc(1, sizeof *r);

	if (!r)
		return NULL;
	r->tap = options->tap;
	r->on_terminal = !options->tap && isatty(STDOUT_FILENO);
	r->quick = options->quick;
	r->name = options->style ? options->style : options->backend;
	r->only = options->part;
	r->started_at = tess_now();
	if (r->tap)
		printf("TAP version 13\n");
	return r;
}

static void print_table_head(const struct conform_report *r)
{
	if (!r->tap)
		printf("\n  %-18s %-16s %7s  %8s\n", "part", "ranks", "cases", "time");
}

void conform_report_print_head(struct conform_report *r, const struct conform_backend_info *f,
                               const char *ranks)
{
	const char *hash = r->tap ? "# " : "";

	printf("%s%s: %s\n%s%s; its ranks are %s\n", hash, f->name, f->summary, hash, f->path,
	       ranks);
	print_table_head(r);
}

void conform_report_print_style(struct conform_report *r, const char *style, const char *path)
{
	const char *hash = r->tap ? "# " : "";

	printf("%s%s%s, %s\n", r->point && !r->tap ? "\n" : "", hash, style, path);
	print_table_head(r);
}

void conform_report_begin(struct conform_report *r, const char *part, const char *about)
{
	snprintf(r->part, sizeof r->part, "%s", part);
	r->row_started_at = tess_now();
	r->len = 0;
	r->note[0] = '\0';
	r->ranks = r->cases = r->points = 0;
	r->row_bad = false;
	if (r->on_terminal) {
		printf("\r\033[K  %-18s %s", part, about);
		fflush(stdout);
	}
}

void conform_report_show_progress(struct conform_report *r, int32_t nranks, const char *variant,
                                  uint32_t cases)
{
	if (!r->on_terminal)
		return;
	printf("\r\033[K  %-18s %d rank%s%s%s, case %u", r->part, (int)nranks,
	       nranks == 1 ? "" : "s", variant ? ", " : "", variant ? variant : "",
	       (unsigned)cases);
	fflush(stdout);
}

void conform_report_begin_job(struct conform_report *r, int32_t nranks, const char *variant)
{
	size_t n = 0;

	r->bad = false;
	r->nranks = nranks;
	r->job[0] = '\0';
	if (nranks)
		n = (size_t)snprintf(r->job, sizeof r->job, ", %d rank%s", (int)nranks,
		                     nranks == 1 ? "" : "s");
	if (variant)
		snprintf(r->job + n, sizeof r->job - n, ", %s", variant);
}

/* Appends to the text of the row, up to its capacity. */
static void TESS_PRINTF(2, 3) append_row_text(struct conform_report *r, const char *fmt, ...)
{
	size_t left = sizeof r->text - r->len;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(r->text + r->len, left, fmt, ap);
	va_end(ap);
	r->len += n > 0 && (size_t)n < left ? (size_t)n : left - 1;
}

void conform_report_add_fault(struct conform_report *r, const char *what, const char *text)
{
	r->faults++;
	if (!r->row_bad) {
		size_t n = strlen(r->faulty_parts);

		snprintf(r->faulty_parts + n, sizeof r->faulty_parts - n, "%s%s", n ? "; " : "",
		         r->part);
	}
	r->bad = r->row_bad = true;
	if (r->tap)
		append_row_text(r, "# %s%s%s\n", what, *what ? ": " : "", text);
	else
		append_row_text(r, "      %s%s%s%s: %s\n", r->part, r->job, *what ? ": " : "", what,
		                text);
}

void conform_report_add_output(struct conform_report *r, const char *text)
{
	const char *indent = r->tap ? "#   | " : "        | ", *from = text + strlen(text);
	int lines = 0;

	if (!*text)
		return;
	while (from > text && (from[-1] != '\n' || ++lines < OUTPUT_LINES))
		from--;
	append_row_text(r, "%sthe end of the output of its ranks:\n", r->tap ? "# " : "      ");
	for (size_t len; *from; from += len + (from[len] == '\n')) {
		len = strcspn(from, "\n");
		append_row_text(r, "%s%.*s\n", indent, (int)len, from);
	}
}

void conform_report_end_job(struct conform_report *r, uint32_t cases)
{
	r->cases += cases;
	r->all_cases += cases;
	r->ranks |= UINT32_C(1) << r->nranks;
	r->points++;
	r->point++;
	if (!r->tap)
		return;
	printf("%sok %d - %s%s: %u cases\n", r->bad ? "not " : "", r->point, r->part, r->job,
	       (unsigned)cases);
	fputs(r->bad ? r->text : "", stdout);
	if (*r->note)
		printf("# %s\n", r->note);
	fflush(stdout);
	r->len = 0;
}

void conform_report_end(struct conform_report *r)
{
	char ranks[64] = "";
	double took = conform_get_seconds(tess_now() - r->row_started_at);

	if (r->tap || !r->points)
		return;
	for (int32_t n = 1; n <= CONFORM_RANKS; n++)
		if (r->ranks >> n & 1)
			snprintf(ranks + strlen(ranks), sizeof ranks - strlen(ranks), "%s%d",
			         *ranks ? " " : "", (int)n);
	printf("%s  %-18s %-16s %7u  %6.1f s  %s\n", r->on_terminal ? "\r\033[K" : "", r->part,
	       ranks, (unsigned)r->cases, took, r->row_bad ? "FAILED" : "ok");
	fputs(r->row_bad ? r->text : "", stdout);
	if (*r->note)
		printf("      %s\n", r->note);
	fflush(stdout);
}

void conform_report_set_note(struct conform_report *r, const char *text)
{
	snprintf(r->note, sizeof r->note, "%s", text);
}

void conform_report_print_note(struct conform_report *r, const char *text)
{
	printf("%s%s\n", r->tap ? "# " : "  ", text);
}

void conform_report_set_gaps(struct conform_report *r, const char *gaps)
{
	snprintf(r->gaps, sizeof r->gaps, "%s", gaps);
}

int conform_report_close(struct conform_report *r)
{
	double took = conform_get_seconds(tess_now() - r->started_at);
	bool good = !r->faults;

	if (r->on_terminal)
		printf("\r\033[K");
	if (r->tap)
		printf("1..%d\n# ", r->point);
	else
		printf("\n");
	if (good)
		printf("%s conforms%s%s%s: %lu cases, %.0f s%s%s\n", r->name, r->only ? " in " : "",
		       r->only ? r->only : "", r->quick ? ", with --quick" : "", r->all_cases, took,
		       *r->gaps ? "; the core emulates its gaps: " : "", r->gaps);
	else
		printf("%s does not conform: %d fault%s in %s\n", r->name, r->faults,
		       r->faults == 1 ? "" : "s", r->faulty_parts);
	free(r);
	return good ? 0 : 1;
}

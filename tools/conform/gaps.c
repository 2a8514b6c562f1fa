/*
 * What a backend lacks, and says so: beside tess-backend-NAME.so lies tess-backend-NAME.gaps. A line is
 * KIND [DTYPE [OP]], a word that is left out stands for all of them; # begins a comment. A gap that is not
 * listed is a fault, and so is a line for what is there: the file tells the truth.
 */
#include "conform.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
	int32_t kind, dtype, op;
	bool used;
};

struct gaps {
	const struct conform_found *found;
	struct conform_report *report;
	char path[600];
	struct line line[256];
	int32_t n;
};

static int32_t number_of(const char *word, int32_t most, const char *(*name)(int32_t))
{
	for (int32_t i = 1; i <= most; i++)
		if (!strcmp(word, name(i)))
			return i;
	return -1;
}

static void read_line(struct gaps *g, char *text, int number)
{
	char *rest = NULL, *kind, *dtype, *op, said[160];
	struct line l = { 0 };

	text[strcspn(text, "#\n")] = '\0';
	kind = strtok_r(text, " \t\r", &rest);
	dtype = strtok_r(NULL, " \t\r", &rest);
	op = strtok_r(NULL, " \t\r", &rest);
	if (!kind)
		return;
	l.kind = number_of(kind, CONFORM_KINDS, tess_kind_name);
	l.dtype = dtype ? number_of(dtype, CONFORM_DTYPES, tess_dtype_name) : 0;
	l.op = op ? number_of(op, CONFORM_OPS, tess_op_name) : 0;
	if (l.kind < 0 || l.dtype < 0 || l.op < 0 || strtok_r(NULL, " \t\r", &rest) ||
	    g->n == 256) {
		snprintf(
			said, sizeof said,
			"line %d is not understood. The rule: KIND [DTYPE [OP]], as in \"all_reduce f16 prod\"",
			number);
		conform_report_fault(g->report, g->path, said);
		return;
	}
	g->line[g->n++] = l;
}

static tess_status read_file(struct gaps *g)
{
	size_t stem = strlen(g->found->path) - strlen(".so");
	char text[512];
	FILE *f;
	int number = 0;

	snprintf(g->path, sizeof g->path, "%.*s.gaps", (int)stem, g->found->path);
	f = fopen(g->path, "re");
	if (!f && errno == ENOENT)
		return TESS_OK;
	if (!f)
		return tess_fail(TESS_EIO, "%s: %s", g->path, strerror(errno));
	while (fgets(text, sizeof text, f))
		read_line(g, text, ++number);
	fclose(f);
	return TESS_OK;
}

static bool listed(struct gaps *g, int32_t kind, int32_t dtype, int32_t op)
{
	bool found = false;

	for (int32_t i = 0; i < g->n; i++) {
		struct line *l = &g->line[i];

		if (l->kind != kind || (l->dtype && l->dtype != dtype) || (l->op && l->op != op))
			continue;
		l->used = found = true;
	}
	return found;
}

static bool needed(int32_t kind)
{
	return kind == TESS_BARRIER || kind == TESS_SEND || kind == TESS_RECV;
}

/* How many of a kind there are, and are lacked. */
struct tally {
	int32_t all, lacked, unlisted;
	char line[48];
};

static bool is_pair(int32_t kind, int32_t dtype, int32_t op)
{
	return tess_kind_reduces(kind) ? op < TESS_BAND || !conform_is_float(dtype)
	                               : op == TESS_SUM;
}

static void count(struct gaps *g, int32_t kind, struct tally *t)
{
	bool reduces = tess_kind_reduces(kind);

	*t = (struct tally){ 0 };
	for (int32_t dtype = TESS_F32; dtype <= TESS_U8; dtype++) {
		int32_t ops = 0, lacked = 0, unlisted = 0, last = 0;

		for (int32_t op = TESS_SUM; op <= TESS_BXOR; op++) {
			if (!is_pair(kind, dtype, op))
				continue;
			ops++;
			if (!g->found->lacks[kind][dtype][reduces ? op : 0])
				continue;
			lacked++;
			if (listed(g, kind, dtype, reduces ? op : 0))
				continue;
			unlisted++;
			last = op;
		}
		if (unlisted && !t->unlisted)
			snprintf(t->line, sizeof t->line, "%s %s%s%s", tess_kind_name(kind),
			         tess_dtype_name(dtype), unlisted < ops ? " " : "",
			         unlisted < ops ? tess_op_name(last) : "");
		t->all += ops;
		t->lacked += lacked;
		t->unlisted += unlisted;
	}
}

static void judge_kind(struct gaps *g, int32_t kind, char *gaps, size_t room)
{
	char said[CONFORM_TEXT];
	struct tally t;
	size_t n = strlen(gaps);

	count(g, kind, &t);
	if (!t.lacked)
		return;
	if (needed(kind)) {
		snprintf(
			said, sizeof said,
			"supports() says no to %d of %d. The rule: every backend has barrier, send and recv",
			(int)t.lacked, (int)t.all);
		conform_report_fault(g->report, tess_kind_name(kind), said);
		return;
	}
	snprintf(gaps + n, room - n, "%s%s%s", n ? ", " : "", tess_kind_name(kind),
	         t.lacked < t.all ? " of some dtypes or operations" : "");
	if (!t.unlisted)
		return;
	snprintf(
		said, sizeof said,
		"it is lacked, and no line of %s says so. The rule: gaps are told; add the line \"%s\"",
		g->path, t.unlisted == t.all ? tess_kind_name(kind) : t.line);
	conform_report_fault(g->report, tess_kind_name(kind), said);
}

static void judge_lines(struct gaps *g)
{
	for (int32_t i = 0; i < g->n; i++) {
		const struct line *l = &g->line[i];
		char what[64];

		if (l->used)
			continue;
		snprintf(what, sizeof what, "%s%s%s%s%s", tess_kind_name(l->kind),
		         l->dtype ? " " : "", l->dtype ? tess_dtype_name(l->dtype) : "",
		         l->op ? " " : "", l->op ? tess_op_name(l->op) : "");
		conform_report_fault(
			g->report, what,
			"it is listed as a gap, but supports() says yes. The rule: the file tells "
			"the truth; remove the line");
	}
}

tess_status conform_judge_gaps(const struct conform_found *f, struct conform_report *r)
{
	struct gaps *g = calloc(1, sizeof *g);
	char gaps[400] = "";
	tess_status st;

	if (!g)
		return tess_fail(TESS_ENOMEM, "out of memory");
	g->found = f;
	g->report = r;
	conform_report_begin(r, "gaps", "what it lacks is told in a file beside it");
	conform_report_job(r, 0, NULL);
	st = read_file(g);
	for (int32_t kind = TESS_BARRIER; kind <= TESS_RECV && !st; kind++)
		judge_kind(g, kind, gaps, sizeof gaps);
	if (!st)
		judge_lines(g);
	conform_report_gaps(r, gaps);
	conform_report_job_end(r, 0);
	conform_report_end(r);
	free(g);
	return st;
}

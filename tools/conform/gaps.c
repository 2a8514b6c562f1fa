/*
 * gaps.c - checks the list of unsupported calls, tess-backend-NAME.gaps next to
 * tess-backend-NAME.so. A line is KIND [DTYPE [OP]]; an omitted word stands for all values; #
 * begins a comment. An unlisted gap is a fault, and so is a line for a supported call.
 */
#include "conform.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

struct gap_line {
	int32_t kind, dtype, op;
	bool used;
};

struct gaps {
	const struct conform_backend_info *backend;
	struct conform_report *report;
	char path[600];
	struct gap_line line[256];
	int32_t n;
};

static int32_t find_number(const char *word, int32_t max, const char *(*name)(int32_t))
{
	for (int32_t i = 1; i <= max; i++)
		if (!strcmp(word, name(i)))
			return i;
	return -1;
}

static void parse_gap_line(struct gaps *g, char *text, int number)
{
	char *rest = NULL, *kind, *dtype, *op, text_of_fault[160];
	struct gap_line l = { 0 };

	text[strcspn(text, "#\n")] = '\0';
	kind = strtok_r(text, " \t\r", &rest);
	dtype = strtok_r(NULL, " \t\r", &rest);
	op = strtok_r(NULL, " \t\r", &rest);
	if (!kind)
		return;
	l.kind = find_number(kind, CONFORM_KINDS, tess_kind_name);
	l.dtype = dtype ? find_number(dtype, CONFORM_DTYPES, tess_dtype_name) : 0;
	l.op = op ? find_number(op, CONFORM_OPS, tess_reduce_op_name) : 0;
	if (l.kind < 0 || l.dtype < 0 || l.op < 0 || strtok_r(NULL, " \t\r", &rest) ||
	    g->n == 256) {
		snprintf(text_of_fault, sizeof text_of_fault,
		         "line %d cannot be read. The rule: KIND [DTYPE [OP]], as in \"all_reduce "
		         "f16 prod\"",
		         number);
		conform_report_add_fault(g->report, g->path, text_of_fault);
		return;
	}
	g->line[g->n++] = l;
}

static tess_status read_gaps_file(struct gaps *g)
{
	size_t stem = strlen(g->backend->path) - strlen(".so");
	char text[512];
	FILE *f;
	int number = 0;

	snprintf(g->path, sizeof g->path, "%.*s.gaps", (int)stem, g->backend->path);
	f = fopen(g->path, "re");
	if (!f && errno == ENOENT)
		return TESS_OK;
	if (!f)
		return tess_fail(TESS_EIO, "%s: %s", g->path, strerror(errno));
	while (fgets(text, sizeof text, f))
		parse_gap_line(g, text, ++number);
	fclose(f);
	return TESS_OK;
}

static bool is_listed(struct gaps *g, int32_t kind, int32_t dtype, int32_t op)
{
	bool found = false;

	for (int32_t i = 0; i < g->n; i++) {
		struct gap_line *l = &g->line[i];

		if (l->kind != kind || (l->dtype && l->dtype != dtype) || (l->op && l->op != op))
			continue;
		l->used = found = true;
	}
	return found;
}

static bool is_required(int32_t kind)
{
	return kind == TESS_BARRIER || kind == TESS_SEND || kind == TESS_RECV;
}

struct tally { /* calls of a kind: all, and gaps */
	int32_t all, lacked, unlisted;
	char line[48];
};

static void count_gaps(struct gaps *g, int32_t kind, struct tally *t)
{
	bool reduces = tess_kind_reduces(kind);

	*t = (struct tally){ 0 };
	for (int32_t dtype = TESS_F32; dtype <= TESS_U8; dtype++) {
		int32_t ops = 0, lacked = 0, unlisted = 0, last = 0;

		for (int32_t op = TESS_SUM; op <= TESS_BXOR; op++) {
			if (!conform_is_operation(kind, dtype, op))
				continue;
			ops++;
			if (!g->backend->unsupported[kind][dtype][reduces ? op : 0])
				continue;
			lacked++;
			if (is_listed(g, kind, dtype, reduces ? op : 0))
				continue;
			unlisted++;
			last = op;
		}
		if (unlisted && !t->unlisted)
			snprintf(t->line, sizeof t->line, "%s %s%s%s", tess_kind_name(kind),
			         tess_dtype_name(dtype), unlisted < ops ? " " : "",
			         unlisted < ops ? tess_reduce_op_name(last) : "");
		t->all += ops;
		t->lacked += lacked;
		t->unlisted += unlisted;
	}
}

static void check_kind(struct gaps *g, int32_t kind, char *gaps, size_t size)
{
	char text[CONFORM_TEXT];
	struct tally t;
	size_t n = strlen(gaps);

	count_gaps(g, kind, &t);
	if (!t.lacked)
		return;
	if (is_required(kind)) {
		snprintf(text, sizeof text,
		         "supports() refuses %d of %d. The rule: every backend has barrier, send "
		         "and recv",
		         (int)t.lacked, (int)t.all);
		conform_report_add_fault(g->report, tess_kind_name(kind), text);
		return;
	}
	snprintf(gaps + n, size - n, "%s%s%s", n ? ", " : "", tess_kind_name(kind),
	         t.lacked < t.all ? " of some dtypes or operations" : "");
	if (!t.unlisted)
		return;
	snprintf(text, sizeof text,
	         "it is not supported, and %s does not list it. The rule: gaps are listed; add the "
	         "line \"%s\"",
	         g->path, t.unlisted == t.all ? tess_kind_name(kind) : t.line);
	conform_report_add_fault(g->report, tess_kind_name(kind), text);
}

static void check_gap_lines(struct gaps *g)
{
	for (int32_t i = 0; i < g->n; i++) {
		const struct gap_line *l = &g->line[i];
		char what[64];

		if (l->used)
			continue;
		snprintf(what, sizeof what, "%s%s%s%s%s", tess_kind_name(l->kind),
		         l->dtype ? " " : "", l->dtype ? tess_dtype_name(l->dtype) : "",
		         l->op ? " " : "", l->op ? tess_reduce_op_name(l->op) : "");
		conform_report_add_fault(
			g->report, what,
			"it is listed as a gap, but supports() accepts it. The rule: only gaps are "
			"listed; remove the line");
	}
}

tess_status conform_check_gaps(const struct conform_backend_info *f, struct conform_report *r)
{
	struct gaps *g = calloc(1, sizeof *g);
	char gaps[400] = "";
	tess_status st;

	if (!g)
		return tess_fail(TESS_ENOMEM, "out of memory");
	g->backend = f;
	g->report = r;
	conform_report_begin(r, "gaps", "calls that it does not support are listed beside it");
	conform_report_begin_job(r, 0, NULL);
	st = read_gaps_file(g);
	for (int32_t kind = TESS_BARRIER; kind <= TESS_RECV && !st; kind++)
		check_kind(g, kind, gaps, sizeof gaps);
	if (!st)
		check_gap_lines(g);
	conform_report_set_gaps(r, gaps);
	conform_report_end_job(r, 0);
	conform_report_end(r);
	free(g);
	return st;
}

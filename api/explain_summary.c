/* explain_summary.c - counts the parameters of a model, and lists the modules of its stages. */
#include "api/explaining.h"
#include "core/base/memory_file.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- parameters ------------------------------------------------------------------------------ */

static bool is_own_parameter(const struct tess_weight *w)
{
	return !w->table && !w->copies;
}

/* Counts the elements of the experts that a token does not request. */
static int64_t count_idle_elements(const struct tess_record *rec)
{
	int64_t idle = 0, top = (int64_t)rec->num[TESS_EXPERTS_TOP];

	if (rec->kind != TESS_OP_EXPERTS || rec->repeats || !top)
		return 0;
	for (int32_t i = 0; i < rec->nweight; i++) {
		int64_t experts = rec->weight[i]->dim[0]->size;

		idle += tess_weight_count_elements(rec->weight[i]) / experts * (experts - top);
	}
	return idle;
}

static void count_all_elements(struct explanation *x)
{
	const struct tess_program *p = x->program;

	for (int32_t i = 0; i < p->nweights; i++)
		if (is_own_parameter(p->weight[i]))
			x->e.elements += tess_weight_count_elements(p->weight[i]);
	x->e.active = x->e.elements;
	for (int32_t i = 0; i < p->nrecords; i++)
		x->e.active -= count_idle_elements(p->record[i]);
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* A module in the list of a stage: a layer, or the module of a parameter outside layers. */
struct listed_module {
	const char *name;
	int len; /* of the name, up to the number of a layer */
	long layer; /* -1: not a layer */
};

static struct listed_module find_listed_module(const struct tess_weight *w)
{
	const char *end = strrchr(w->name, '.');
	size_t len = end ? (size_t)(end - w->name) : strlen(w->name);

	for (const char *c = w->name; (c = strchr(c, '.'));) {
		char *after;
		long layer = strtol(++c, &after, 10);

		if (after != c && *after == '.')
			return (struct listed_module){ w->name, (int)(c - w->name), layer };
	}
	return (struct listed_module){ w->name, (int)len, -1 };
}

static bool is_same_module(struct listed_module a, struct listed_module b)
{
	return a.layer == b.layer && a.len == b.len && !strncmp(a.name, b.name, (size_t)a.len);
}

/* Returns whether another stage has a part of this module, too. */
static bool is_shared(const struct tess_program *p, int32_t stage, struct listed_module m)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (p->weight[i]->stage != stage && !p->weight[i]->copies &&
		    is_same_module(find_listed_module(p->weight[i]), m))
			return true;
	return false;
}

struct module_list { /* prints modules, layers with adjacent numbers as one range */
	FILE *f;
	struct listed_module first, last; /* of the range; len 0: nothing was added */
	const char *prefix; /* of a range of one module: "part of ", "a copy of "; else "" */
	bool printed;
};

static void print_range(struct module_list *l)
{
	if (!l->first.len)
		return;
	fprintf(l->f, "%s%s%.*s", l->printed ? ", " : "", l->prefix, l->first.len, l->first.name);
	if (l->first.layer >= 0)
		fprintf(l->f, "%ld", l->first.layer);
	if (l->last.layer != l->first.layer)
		fprintf(l->f, "-%ld", l->last.layer);
	l->printed = true;
}

static void add_module(struct module_list *l, struct listed_module m, const char *prefix)
{
	struct listed_module next = m;

	next.layer = l->last.layer;
	if (m.layer < 0 || *prefix || *l->prefix || !is_same_module(l->last, next) ||
	    m.layer != l->last.layer + 1) {
		print_range(l);
		l->first = m;
	}
	l->last = m;
	l->prefix = prefix;
}

static tess_status describe_stage(struct explanation *x, int32_t stage,
                                  struct tess_explained_stage *out)
{
	const struct tess_program *p = x->program;
	char *text = NULL;
	size_t len;
	struct module_list l = { .f = tess_memory_file_open(&text, &len), .prefix = "" };
	bool failed;

	if (!l.f)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i];
		struct listed_module m = find_listed_module(w);

		if (p->nstages > 1 && w->stage != stage)
			continue;
		out->elements += is_own_parameter(w) ? tess_weight_count_elements(w) : 0;
		if (l.first.len && is_same_module(l.last, m))
			continue;
		add_module(&l, m,
		           w->copies                                  ? "a copy of "
		           : p->nstages > 1 && is_shared(p, stage, m) ? "part of "
		                                                      : "");
	}
	print_range(&l);
	failed = ferror(l.f);
	failed = fclose(l.f) || failed;
	out->rank = p->stage_rank ? p->stage_rank[stage] : 0;
	out->modules = failed ? NULL : tess_arena_copy(&x->arena, text, strlen(text));
	free(text);
	return out->modules ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

tess_status tess_explaining_summarize(struct explanation *x)
{
	int32_t n = x->program->nstages > 1 ? x->program->nstages : 1;
	struct tess_explained_stage *stages = TESS_NEW(&x->arena, struct tess_explained_stage, n);
	tess_status st = stages ? TESS_OK : TESS_ENOMEM;

	count_all_elements(x);
	for (int32_t i = 0; i < n && !st; i++)
		st = describe_stage(x, i, &stages[i]);
	x->e.nstages = n;
	x->e.stages = stages;
	return st;
}

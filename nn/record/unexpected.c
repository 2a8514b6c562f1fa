#include "nn/record/unexpected.h"

#include "core/base/arena.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/record/task.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/model.h>
#include <tessera/reduce.h>

enum { SHOWN = 3, ROWS_COMPARED = 64 };

struct expected { /* a file */
	const char *name;
	const struct tess_weight *table; /* the table of a tied head stored in this file; or NULL */
};

struct expected_list {
	struct tess_arena arena;
	struct expected *file; /* sorted */
	size_t n;
};

struct names { /* for a message: the first names, and their number */
	const char *first[SHOWN], *last;
	size_t n;
};

struct leftover { /* tensors that no module uses */
	struct names refused, predictors;
};

static int compare_expected_names(const void *a, const void *b)
{
	return strcmp(((const struct expected *)a)->name, ((const struct expected *)b)->name);
}

static int64_t count_files(const struct tess_weight *w)
{
	return w->files.nparts * (w->files.by_expert ? w->dim[0]->size : 1);
}

static tess_status add_expected(struct expected_list *l, const char *name,
                                const struct tess_weight *table)
{
	const char *copy = tess_arena_copy(&l->arena, name, SIZE_MAX);

	if (!copy)
		return TESS_ENOMEM;
	l->file[l->n++] = (struct expected){ copy, table };
	return TESS_OK;
}

/* Lists the files that the program reads, and those of tied heads. */
static tess_status list_expected(const struct tess_program *p, const struct tess_model *model,
                                 const struct tess_source *source, struct expected_list *l)
{
	char text[TESS_FILE_NAME];
	struct tess_files files;
	int64_t most = p->nrecords;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nweights; i++)
		most += p->weight[i]->table ? 0 : count_files(p->weight[i]);
	l->file = TESS_NEW(&l->arena, struct expected, most);
	if (!l->file)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i];

		for (int64_t k = 0; !w->table && !st && k < count_files(w); k++)
			st = add_expected(l,
			                  tess_files_format(&w->files, k / w->files.nparts,
			                                    (int32_t)(k % w->files.nparts), text),
			                  NULL);
	}
	for (int32_t i = 0; i < p->nrecords && !st; i++) {
		const struct tess_record *rec = p->record[i];
		const struct tess_weight *table;
		const char *name;

		table = rec->nweight && rec->kind != TESS_REC_GRADIENT
		                ? tess_weight_get_table(rec->weight[0])
		                : NULL;
		if (!table)
			continue;
		name = tess_arena_format(&l->arena, "%s.weight", rec->module);
		st = name ? tess_files_find(&l->arena, model->stored, source, name, &files)
		          : TESS_ENOMEM;
		if (!st)
			st = add_expected(l, files.pattern[0], table);
	}
	qsort(l->file, l->n, sizeof *l->file, compare_expected_names);
	return st;
}

/* Tensors of all families computed from config.json, which older checkpoints store. */
static const char *const computed[] = { "*rotary_emb.inv_freq", NULL };

static bool matches_any(const char *const *pattern, const char *name)
{
	for (; pattern && *pattern; pattern++)
		if (!fnmatch(*pattern, name, 0))
			return true;
	return false;
}

/* ---- multi-token prediction ------------------------------------------------------------------ */

static bool is_in_module(const char *name, const char *module)
{
	size_t len = strlen(module);

	return !strncmp(name, module, len) && name[len] == '.';
}

static bool has_expected_in(const struct expected_list *l, const char *module)
{
	for (size_t i = 0; i < l->n; i++)
		if (is_in_module(l->file[i].name, module))
			return true;
	return false;
}

static bool is_number(const char *text, size_t len)
{
	return len && strspn(text, "0123456789") >= len;
}

/*
 * Returns the module for multi-token prediction that contains a tensor, or NULL: a module mtp...,
 * or a layer with a projection of two hidden states, eh_proj. The program reads none of it.
 */
static const char *find_predictor(struct expected_list *l, const struct tess_source *source,
                                  const char *name)
{
	const char *at = name, *module, *joins;

	for (size_t n; *(at + (n = strcspn(at, "."))); at += n + 1) {
		bool number = is_number(at, n);

		if (!number && strncmp(at, "mtp", 3) != 0)
			continue;
		module = tess_arena_format(&l->arena, "%.*s", (int)(at + n - name), name);
		joins = module ? tess_arena_format(&l->arena, "%s.eh_proj.weight", module) : NULL;
		if (joins && (!number || source->has(source->self, joins)) &&
		    !has_expected_in(l, module))
			return module;
	}
	return NULL;
}

static void add_name(struct names *list, const char *name)
{
	list->last = name;
	if (list->n < SHOWN)
		list->first[list->n] = name;
	list->n++;
}

static const char *format_names(const struct names *list, size_t size, char *out)
{
	size_t at = 0;

	for (size_t i = 0; i < list->n && i < SHOWN; i++)
		at += (size_t)snprintf(out + at, size - at, "%s%.200s",
		                       !i                 ? ""
		                       : i + 1 == list->n ? " and "
		                                          : ", ",
		                       list->first[i]);
	if (list->n > SHOWN)
		snprintf(out + at, size - at, " and %zu more", list->n - SHOWN);
	return out;
}

static const char *find_nearest_reader(const struct tess_program *p, const char *name,
                                       struct tess_arena *arena)
{
	const struct tess_weight *near = NULL;
	size_t min_distance = SIZE_MAX;

	for (int32_t i = 0; i < p->nweights; i++) {
		size_t d = tess_edit_distance(name, p->weight[i]->name);

		if (d < min_distance) {
			min_distance = d;
			near = p->weight[i];
		}
	}
	return near ? tess_arena_copy(arena, near->name,
	                              (size_t)(strrchr(near->name, '.') - near->name))
	            : NULL;
}

static tess_status fail_unexpected(const struct tess_program *p, const struct tess_model *model,
                                   const struct tess_source *source, const struct names *list,
                                   struct tess_arena *arena)
{
	const char *module = find_nearest_reader(p, list->first[0], arena),
		   *classifier = tess_source_find_classifier(source);
	char text[1024];

	if (classifier)
		return tess_source_fail_classifier(source, classifier);
	return tess_fail(
		TESS_EINVAL,
		"%s: no module of model %s asks for %s (the nearest is %s): config.json, or "
		"the model, does not fit this checkpoint; --ignore-unexpected leaves out what "
		"is not asked for",
		source->name, model->name, format_names(list, sizeof text, text),
		module ? module : "none");
}

/* Compares some rows: a table and a separately trained head share none. */
static tess_status compare_rows(const struct tess_source *source, const struct expected *e,
                                const struct tess_view *a, const struct tess_view *b,
                                struct tess_arena *arena, bool *same)
{
	int64_t rows = a->shape[0], step = rows / ROWS_COMPARED + 1;
	uint64_t bytes = (uint64_t)a->shape[1] * tess_width(a->dtype);
	tess_status st = TESS_OK;
	char *row;

	*same = a->dtype == b->dtype && a->ndim == 2 && b->ndim == 2 && b->shape[0] == rows &&
	        a->shape[1] == b->shape[1];
	if (!*same)
		return TESS_OK;
	row = tess_arena_alloc(arena, 2 * bytes);
	if (!row)
		return TESS_ENOMEM;
	for (int64_t i = 0; i < rows && *same && !st; i += step) {
		st = tess_source_read(source, e->name, a, (uint64_t)i * bytes, bytes, row);
		if (!st)
			st = tess_source_read(source, e->table->files.pattern[0], b,
			                      (uint64_t)i * bytes, bytes, row + bytes);
		*same = !memcmp(row, row + bytes, bytes);
	}
	return st;
}

static tess_status warn_tied_copy(const struct tess_source *source, const struct expected *e,
                                  struct tess_arena *arena)
{
	struct tess_view head = { 0 }, table = { 0 };
	uint64_t bytes;
	bool same;
	tess_status st;

	if (source->find(source->self, e->name, &head) ||
	    source->find(source->self, e->table->files.pattern[0], &table) ||
	    head.layout != table.layout)
		return TESS_OK;
	st = compare_rows(source, e, &head, &table, arena, &same);
	if (!st && !same)
		tess_log(TESS_WARN, "hf",
		         "%s: %s differs from %s, but config.json ties the two "
		         "(tie_word_embeddings): it "
		         "is not used",
		         source->name, e->name, e->table->name);
	bytes = (uint64_t)(head.shape[0] * head.stride[0]) * tess_width(head.dtype);
	source->drop(source->self, head.data, bytes);
	return st;
}

static void add_leftover(struct expected_list *l, const struct tess_model *model,
                         const struct tess_source *source, const char *name, struct leftover *out)
{
	const char *module = out->predictors.last;

	if (matches_any(model->unexpected, name) || matches_any(computed, name) ||
	    (module && is_in_module(name, module)))
		return;
	module = find_predictor(l, source, name);
	if (module)
		add_name(&out->predictors, module);
	else
		add_name(&out->refused, name);
}

static void log_leftover(const struct tess_source *source, const struct leftover *left)
{
	char text[1024];

	if (left->predictors.n)
		tess_log(TESS_INFO, "hf", "%s: %s: for multi-token prediction; not used",
		         source->name, format_names(&left->predictors, sizeof text, text));
	if (left->refused.n)
		tess_log(TESS_WARN, "hf", "%s: no module asks for %s; ignored", source->name,
		         format_names(&left->refused, sizeof text, text));
}

tess_status tess_unexpected_check(const struct tess_program *p, const struct tess_model *model,
                                  const struct tess_source *source, bool warn)
{
	struct expected_list l = { 0 };
	struct leftover left = { 0 };
	tess_status st = list_expected(p, model, source, &l);

	for (size_t i = 0; i < source->count && !st; i++) {
		const struct expected key = { source->at(source->self, i), NULL };
		const struct expected *e =
			bsearch(&key, l.file, l.n, sizeof *l.file, compare_expected_names);

		if (e && e->table && warn)
			st = warn_tied_copy(source, e, &l.arena);
		if (!e)
			add_leftover(&l, model, source, key.name, &left);
	}
	if (!st && left.refused.n && !source->ignore_unexpected)
		st = fail_unexpected(p, model, source, &left.refused, &l.arena);
	else if (!st && warn)
		log_leftover(source, &left);
	tess_arena_free(&l.arena);
	return st;
}

/* layers.c - finds alike layers, and makes models with fewer of them. */
#include "api/plan/planner.h"
#include "core/base/hash.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 4096 };

/* Keys of config.json with the number of layers. */
static const char *const layer_keys[] = { "num_hidden_layers", "n_layer", "num_layers", NULL };

struct layer_list { /* hashes of the numbered modules, in order */
	uint64_t hash[LAYERS_MAX];
	int64_t n, experts;
	char path[256]; /* "model.layers." */
	char attention[64]; /* "self_attn" */
};

/* Hashes what a record computes, without the number of its layer. */
static uint64_t hash_record(const struct tess_record *rec, const char *rest)
{
	uint64_t h = TESS_HASH_EMPTY;

	h = tess_hash_word(h, (uint64_t)rec->kind);
	for (; *rest; rest++)
		h = tess_hash_word(h, (unsigned char)*rest);
	for (int32_t i = 0; i < rec->nnum && rec->kind != TESS_OP_ATTENTION; i++)
		h = tess_hash_word(h, (uint64_t)(int64_t)(rec->num[i] * 1024));
	if (rec->kind == TESS_OP_ATTENTION)
		h = tess_hash_word(h, (uint64_t)(int64_t)rec->num[TESS_ATTENTION_WINDOW]);
	for (int32_t i = 0; i < rec->nweight; i++)
		for (int32_t a = 0; a < rec->weight[i]->ndim; a++)
			h = tess_hash_word(h, (uint64_t)rec->weight[i]->dim[a]->size);
	return h;
}

static void list_layers(const struct tess_program *p, struct layer_list *l)
{
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		size_t len; /* of "model.layers." */
		int64_t at;
		char *rest;

		if (!tess_module_measure_number(rec->module, &len) || !len || len >= sizeof l->path)
			continue;
		if (!l->n)
			memcpy(l->path, rec->module, len);
		at = strtol(rec->module + len, &rest, 10);
		if (at < 0 || at >= LAYERS_MAX || strncmp(l->path, rec->module, len) != 0)
			continue;
		l->n = at + 1 > l->n ? at + 1 : l->n;
		if (rec->kind == TESS_OP_EXPERTS && rec->nweight && rec->weight[0]->ndim &&
		    rec->weight[0]->dim[0]->size > l->experts)
			l->experts = rec->weight[0]->dim[0]->size;
		if (rec->kind == TESS_OP_ATTENTION && !l->attention[0] && *rest == '.')
			snprintf(l->attention, sizeof l->attention, "%.*s",
			         (int)strcspn(rest + 1, "."), rest + 1);
		l->hash[at] = tess_hash_word(l->hash[at], hash_record(rec, rest));
	}
}

/* Sets the least period of layers, from layer `first` on. Returns whether two of them are fewer. */
static bool find_period(const struct layer_list *l, int64_t *first, int64_t *period)
{
	for (*period = 1; 2 * *period < l->n; *period += 1)
		for (*first = 0; *first + 2 * *period < l->n && *first < 8; *first += 1) {
			int64_t i = *first;

			while (i + *period < l->n && l->hash[i] == l->hash[i + *period])
				i++;
			if (i + *period == l->n)
				return true;
		}
	return false;
}

/* Cuts the lists of a configuration that have an entry for each of `from` layers. */
static void cut_lists(json_t *config, int64_t from, int64_t to)
{
	const char *key;
	json_t *value;

	json_object_foreach(config, key, value) {
		if (!json_is_array(value) || json_array_size(value) != (size_t)from)
			continue;
		for (int64_t i = from; i > to; i--)
			json_array_remove(value, (size_t)i - 1);
	}
}

/* Makes the model with the first n layers. */
static tess_status make_shallow(const struct tess_planner *p, int64_t n, struct tess_shallow *s)
{
	const char *const *key = layer_keys;

	s->model = p->model;
	s->config = json_deep_copy(p->model.source.config);
	if (!s->config)
		return tess_fail(TESS_ENOMEM, "out of memory for a configuration");
	while (key[1] && !json_object_get(s->config, *key) &&
	       !strstr(p->model.model->defaults ? p->model.model->defaults : "", *key))
		key++;
	cut_lists(s->config, p->layers, n);
	if (json_object_set_new(s->config, *key, json_integer(n)) != 0)
		return tess_fail(TESS_ENOMEM, "out of memory for a configuration");
	s->model.source.config = s->config;
	s->model.source.count = 0;
	s->layers = n;
	return TESS_OK;
}

static tess_status read_layers(struct tess_planner *p, struct layer_list *l)
{
	struct tess_mesh_shape one = tess_mesh_shape_make("tp", 1);
	struct tess_planned_model model = p->model;
	struct tess_program *program = NULL;
	tess_status st;

	st = tess_planned_model_record(&model, &one, 1, 1, &program);
	if (st)
		return st;
	list_layers(program, l);
	tess_program_free(program);
	return TESS_OK;
}

tess_status tess_planner_find_layers(struct tess_planner *p)
{
	struct layer_list *l = calloc(1, sizeof *l);
	int64_t first, period;
	tess_status st = l ? read_layers(p, l) : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st) {
		p->layers = l->n;
		p->experts = l->experts;
		p->path = tess_arena_format(&p->arena, "%s*", l->path);
		p->attention = tess_arena_copy(&p->arena, l->attention, strlen(l->attention));
		st = p->path && p->attention ? TESS_OK : TESS_ENOMEM;
	}
	if (!st && find_period(l, &first, &period)) {
		p->first = first;
		p->period = period;
		st = make_shallow(p, first + period, &p->shallow[0]);
		if (!st)
			st = make_shallow(p, first + 2 * period, &p->shallow[1]);
		if (!st && first + 4 * period <= l->n)
			st = make_shallow(p, first + 4 * period, &p->shallow[2]);
	}
	free(l);
	return st;
}

void tess_planner_close_layers(struct tess_planner *p)
{
	for (int i = 0; i < 3; i++)
		json_decref(p->shallow[i].config);
}

#include "nn/program/strategy.h"

#include "core/base/arena.h"
#include "core/base/json.h"
#include "core/base/option.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { STRATEGY_BYTES = 16 << 20, THREADS_MAX = 1024, MICRO_MAX = 1 << 20 };

static const char *const strategy_keys[] = { "plan",
	                                     "mesh",
	                                     "plan_overrides",
	                                     "micro_batches",
	                                     "pipeline_schedule",
	                                     "recompute",
	                                     "bucket",
	                                     "threads",
	                                     "offload_optimizer",
	                                     "offload_weights",
	                                     "tile",
	                                     "predicted",
	                                     NULL };

struct read_strategy {
	struct tess_strategy s; /* first: callers have a pointer to it */
	struct tess_arena arena;
};

/* ---- reading --------------------------------------------------------------------------------- */

bool tess_strategy_has_key(const char *key)
{
	int i = 0;

	while (strategy_keys[i] && strcmp(strategy_keys[i], key) != 0)
		i++;
	return strategy_keys[i];
}

static tess_status check_strategy_keys(const struct read_strategy *r, const json_t *root)
{
	char list[256] = "";

	for (int i = 0; strategy_keys[i]; i++)
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
		         strategy_keys[i]);
	for (void *it = json_object_iter((json_t *)root); it;
	     it = json_object_iter_next((json_t *)root, it)) {
		const char *key = json_object_iter_key(it), *near = NULL;
		size_t best = TESS_NEAREST_INIT;

		if (tess_strategy_has_key(key))
			continue;
		for (int i = 0; strategy_keys[i]; i++)
			if (tess_nearest_update(key, strategy_keys[i], &best))
				near = strategy_keys[i];
		return tess_fail(
			TESS_EINVAL,
			"%s: \"%s\" is no key of a strategy, which has %s%s%s%s; among rules, "
			"\"tp:plan\" is that of a module plan",
			r->s.name, key, list, near ? "; did you mean " : "", near ? near : "",
			near ? "?" : "");
	}
	return TESS_OK;
}

static tess_status fail_strategy_value(const struct read_strategy *r, const char *key,
                                       const char *needed)
{
	return tess_fail(TESS_EINVAL, "%s: %s: must be %s", r->s.name, key, needed);
}

/* Reads a string; *out is unchanged without the key. needed: for the message. */
static tess_status read_text(struct read_strategy *r, const json_t *root, const char *key,
                             const char *needed, const char **out)
{
	const json_t *value = json_object_get(root, key);

	if (!value || json_is_null(value))
		return TESS_OK;
	if (!json_is_string(value) || !*json_string_value(value))
		return fail_strategy_value(r, key, needed);
	*out = tess_arena_copy(&r->arena, json_string_value(value), SIZE_MAX);
	return *out ? TESS_OK : TESS_ENOMEM;
}

/* Reads a list of strings, which ends with NULL; an empty one as NULL. */
static tess_status read_list(struct read_strategy *r, const json_t *root, const char *key,
                             const char *needed, const char *const **out)
{
	const json_t *value = json_object_get(root, key);
	size_t n = json_array_size(value);
	const char **list;

	if (!value || json_is_null(value))
		return TESS_OK;
	list = TESS_NEW(&r->arena, const char *, n + 1);
	if (!list)
		return TESS_ENOMEM;
	for (size_t i = 0; i < n; i++) {
		const char *text = json_string_value(json_array_get(value, i));

		if (!text || !*text)
			return fail_strategy_value(r, key, needed);
		list[i] = tess_arena_copy(&r->arena, text, SIZE_MAX);
		if (!list[i])
			return TESS_ENOMEM;
	}
	if (!json_is_array(value))
		return fail_strategy_value(r, key, needed);
	*out = n ? list : NULL;
	return TESS_OK;
}

/* Copies an object as text; NULL: it has no such key. */
static tess_status read_object_text(struct read_strategy *r, const json_t *root, const char *key,
                                    const char **out)
{
	const json_t *value = json_object_get(root, key);
	char *text = json_is_object(value) ? json_dumps(value, JSON_COMPACT) : NULL;

	if (!json_is_object(value))
		return TESS_OK;
	*out = text ? tess_arena_copy(&r->arena, text, SIZE_MAX) : NULL;
	free(text);
	return *out ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", r->s.name);
}

static tess_status read_plan(struct read_strategy *r, const json_t *root)
{
	static const char needed[] = "the name of a plan, such as \"tp+sp\", or an object of rules "
				     "{pattern: style}";
	tess_status st = read_object_text(r, root, "plan", &r->s.plan);

	if (!st && !r->s.plan)
		st = read_text(r, root, "plan", needed, &r->s.plan);
	return st || r->s.plan ? st : fail_strategy_value(r, "plan", needed);
}

static tess_status read_mesh(struct read_strategy *r, const json_t *root)
{
	struct tess_mesh_shape shape;
	tess_status st = read_text(r, root, "mesh", "text, such as \"dp=2,tp=4\"", &r->s.mesh);

	if (!st && r->s.mesh && tess_mesh_shape_parse(r->s.mesh, 0, &shape))
		st = tess_fail_in(TESS_EINVAL, "%s: mesh", r->s.name);
	return st;
}

static tess_status read_counts(struct read_strategy *r, const json_t *root)
{
	int64_t threads = 0, bucket = 0, tile = 0;
	tess_status st = tess_json_get_int(r->s.name, root, "micro_batches", 1, MICRO_MAX,
	                                   &r->s.micro_batches);

	if (!st)
		st = tess_json_get_int(r->s.name, root, "bucket", 1, INT64_MAX, &bucket);
	if (!st)
		st = tess_json_get_int(r->s.name, root, "threads", 1, THREADS_MAX, &threads);
	if (!st)
		st = tess_json_get_int(r->s.name, root, "tile", 1, INT64_MAX, &tile);
	r->s.bucket = (uint64_t)bucket;
	r->s.tile = (uint64_t)tile;
	r->s.threads = (int32_t)threads;
	return st;
}

/* Reads "disk" or "host". */
static tess_status read_location(struct read_strategy *r, const json_t *root, const char *key,
                                 const char **out)
{
	static const char needed[] = "\"disk\" or \"host\"; the folder is an option of the command";
	tess_status st = read_text(r, root, key, needed, out);

	if (st || !*out || !strcmp(*out, "disk") || !strcmp(*out, "host"))
		return st;
	return fail_strategy_value(r, key, needed);
}

/* Reads the object of a strategy. */
static tess_status read_keys(struct read_strategy *r, const json_t *root)
{
	const json_t *predicted = json_object_get(root, "predicted");
	tess_status st = check_strategy_keys(r, root);

	if (!st)
		st = read_plan(r, root);
	if (!st)
		st = read_mesh(r, root);
	if (!st)
		st = read_list(r, root, "plan_overrides",
		               "a list of rules PATTERN=STYLE, such as [\"dp:**=zero3\"]",
		               &r->s.overrides);
	if (!st)
		st = read_list(r, root, "recompute",
		               "a list of patterns of modules, such as [\"model.layers.*\"]",
		               &r->s.recompute);
	if (!st)
		st = read_text(r, root, "pipeline_schedule", "text, such as \"1f1b\"",
		               &r->s.pipeline_schedule);
	if (!st)
		st = read_counts(r, root);
	if (!st)
		st = read_location(r, root, "offload_optimizer", &r->s.offload_optimizer);
	if (!st)
		st = read_location(r, root, "offload_weights", &r->s.offload_weights);
	if (!st && predicted && !json_is_object(predicted))
		st = fail_strategy_value(r, "predicted", "an object");
	return st ? st : read_object_text(r, root, "predicted", &r->s.predicted);
}

static tess_status make_strategy(const char *name, const json_t *root, struct tess_strategy **out)
{
	struct read_strategy *r = calloc(1, sizeof *r);
	tess_status st;

	if (!r)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", name);
	r->s.size = sizeof r->s;
	r->s.name = tess_arena_copy(&r->arena, name, SIZE_MAX);
	st = r->s.name ? read_keys(r, root) : TESS_ENOMEM;
	if (st)
		tess_strategy_free(&r->s);
	else
		*out = &r->s;
	return st;
}

tess_status tess_strategy_read(const char *spec, struct tess_strategy **out)
{
	bool text = spec && spec[0] == '{';
	struct stat about;
	json_t *root = NULL;
	tess_status st = TESS_REQUIRE(out);

	if (st)
		return st;
	*out = NULL;
	if (text)
		st = tess_json_parse("the plan", spec, strlen(spec), &root);
	else if (spec && strpbrk(spec, "./") && !stat(spec, &about) && S_ISREG(about.st_mode))
		st = tess_json_load(spec, STRATEGY_BYTES, &root);
	if (!st && json_object_get(root, "plan"))
		st = make_strategy(text ? "the strategy" : spec, root, out);
	json_decref(root);
	return st;
}

void tess_strategy_free(struct tess_strategy *s)
{
	struct read_strategy *r = (struct read_strategy *)s;

	if (!r)
		return;
	tess_arena_free(&r->arena);
	free(r);
}

tess_status tess_strategy_check_ranks(const struct tess_strategy *s, int32_t n)
{
	struct tess_mesh_shape shape, any;
	tess_status st = TESS_REQUIRE(s);

	if (st || !s->mesh || !tess_mesh_shape_parse(s->mesh, n, &shape))
		return st;
	st = tess_mesh_shape_parse(s->mesh, 0, &any);
	return st ? st
	          : tess_fail(TESS_EINVAL,
	                      "%s is for the mesh %s of %d ranks, not for %d; use %d ranks, or "
	                      "another mesh, as in --mesh tp=%d",
	                      s->name ? s->name : "the strategy", s->mesh, (int)any.nranks, (int)n,
	                      (int)any.nranks, (int)n);
}

tess_status tess_strategy_complete(struct tess_trainer_options *o,
                                   const struct tess_mesh_shape *mesh, struct tess_strategy **out)
{
	int32_t pp = tess_mesh_shape_find(mesh, "pp", 2);
	struct tess_strategy *s;
	tess_status st = tess_strategy_read(o->plan, &s);

	if (st)
		return st;
	*out = s;
	if (!s)
		return TESS_OK;
	o->threads = o->threads ? o->threads : s->threads;
	o->bucket = o->bucket ? o->bucket : s->bucket;
	o->micro_batches = o->micro_batches ? o->micro_batches : s->micro_batches;
	o->recompute = o->recompute ? o->recompute : s->recompute;
	o->tile = o->tile ? o->tile : s->tile;
	if (!o->offload_optimizer)
		o->offload_optimizer = s->offload_optimizer;
	if (!o->offload_weights)
		o->offload_weights = s->offload_weights;
	if (!o->pipeline_schedule && pp >= 0 && mesh->dim[pp].size > 1)
		o->pipeline_schedule = s->pipeline_schedule;
	return TESS_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void set_strategy_text(json_t **root, const char *key, const char *text)
{
	if (text)
		tess_json_set(root, key, json_string(text));
}

static void set_strategy_list(json_t **root, const char *key, const char *const *list)
{
	json_t *all = list ? json_array() : NULL;

	for (; list && *list; list++)
		tess_json_append(&all, json_string(*list));
	if (all || list)
		tess_json_set(root, key, all);
}

static void set_strategy_number(json_t **root, const char *key, int64_t n)
{
	if (n)
		tess_json_set(root, key, json_integer(n));
}

/* Sets an object from its text; other text as a string. */
static tess_status set_object_text(json_t **root, const char *key, const char *text)
{
	json_t *value = NULL;
	tess_status st = TESS_OK;

	if (text && text[0] == '{')
		st = tess_json_parse(key, text, strlen(text), &value);
	if (value)
		tess_json_set(root, key, value);
	else if (!st)
		set_strategy_text(root, key, text);
	return st;
}

static tess_status make_object(const struct tess_strategy *s, json_t **out)
{
	tess_status st;

	*out = json_object();
	st = set_object_text(out, "plan", s->plan ? s->plan : "");
	set_strategy_text(out, "mesh", s->mesh);
	set_strategy_list(out, "plan_overrides", s->overrides);
	set_strategy_number(out, "micro_batches", s->micro_batches);
	set_strategy_text(out, "pipeline_schedule", s->pipeline_schedule);
	set_strategy_list(out, "recompute", s->recompute);
	set_strategy_number(out, "bucket", (int64_t)s->bucket);
	set_strategy_number(out, "threads", s->threads);
	set_strategy_text(out, "offload_optimizer", s->offload_optimizer);
	set_strategy_text(out, "offload_weights", s->offload_weights);
	set_strategy_number(out, "tile", (int64_t)s->tile);
	if (!st)
		st = set_object_text(out, "predicted", s->predicted);
	return st || *out ? st : tess_fail(TESS_ENOMEM, "a strategy: out of memory");
}

tess_status tess_strategy_format(const struct tess_strategy *s, char **text)
{
	struct tess_strategy mine = { .size = sizeof mine }, *checked = NULL;
	json_t *root = NULL;
	tess_status st = TESS_REQUIRE(s, text);
	char *made;

	if (!st)
		st = tess_sized_copy("tess_strategy", s, &mine, sizeof mine);
	if (!st)
		st = make_object(&mine, &root);
	if (!st)
		st = make_strategy("the strategy", root, &checked);
	made = st ? NULL : json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	if (made)
		*text = made;
	else if (!st)
		st = tess_fail(TESS_ENOMEM, "a strategy: out of memory");
	tess_strategy_free(checked);
	json_decref(root);
	return st;
}

tess_status tess_strategy_write(const struct tess_strategy *s, const char *path)
{
	char *text = NULL;
	tess_status st = TESS_REQUIRE(path);
	FILE *f;

	if (!st)
		st = tess_strategy_format(s, &text);
	if (st)
		return st;
	f = fopen(path, "w");
	if (!f || fprintf(f, "%s\n", text) < 0 || fflush(f))
		st = tess_fail(TESS_EIO, "%s: %s", path, strerror(errno));
	if (f)
		fclose(f);
	free(text);
	return st;
}

#include "checkpoint.h"

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "hf/index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JSON_MOST = 16 << 20 };

struct named {
	const struct tess_slice *slice;
	const struct tess_safetensors *part;
};

struct tess_checkpoint {
	struct tess_arena arena;
	const char *dir;
	struct tess_config config;
	struct tess_generation generation;
	size_t nparts, n;
	struct tess_safetensors **part;
	struct named *tensor; /* by name */
};

static const char *path_of(struct tess_checkpoint *c, const char *file)
{
	return tess_arena_format(&c->arena, "%s/%s", c->dir, file);
}

/* ---- opening ---------------------------------------------------------------------------- */

static tess_status configs_load(struct tess_checkpoint *c)
{
	const char *path = path_of(c, "config.json"), *more = path_of(c, "generation_config.json");
	json_t *generation = NULL;
	tess_status st;

	if (!path || !more)
		return TESS_ENOMEM;
	st = tess_config_load(path, &c->config);
	if (st)
		return st;
	st = tess_json_load(more, JSON_MOST, &generation);
	if (st && st != TESS_ENOENT)
		return st;
	st = tess_generation_make(more, generation, c->config.root, &c->generation);
	json_decref(generation);
	return st;
}

static tess_status room_make(struct tess_checkpoint *c, size_t nparts, size_t n)
{
	if (!c->part)
		c->part = TESS_NEW(&c->arena, struct tess_safetensors *, nparts);
	if (n)
		c->tensor = TESS_NEW(&c->arena, struct named, n);
	return c->part && (c->tensor || !n) ? TESS_OK : TESS_ENOMEM;
}

static tess_status single_load(struct tess_checkpoint *c, const char *path)
{
	tess_status st = room_make(c, 1, 0);

	if (!st)
		st = tess_safetensors_open(path, &c->part[0]);
	if (st)
		return st;
	c->nparts = 1;
	st = room_make(c, 1, tess_safetensors_count(c->part[0]));
	for (; !st && c->n < tess_safetensors_count(c->part[0]); c->n++)
		c->tensor[c->n] =
			(struct named){ tess_safetensors_at(c->part[0], c->n), c->part[0] };
	return st;
}

static tess_status parts_open(struct tess_checkpoint *c, const char *path,
                              const struct tess_index *ix)
{
	tess_status st = room_make(c, ix->nparts, ix->n);

	for (; !st && c->nparts < ix->nparts; c->nparts += !st) {
		const char *part = path_of(c, ix->part[c->nparts]);

		st = part ? tess_safetensors_open(part, &c->part[c->nparts]) : TESS_ENOMEM;
		if (st == TESS_ENOENT)
			tess_fail_in(st, "%s: weight_map names a part that is missing", path);
	}
	return st;
}

/* What the index names is what is found. */
static tess_status tensors_take(struct tess_checkpoint *c, const char *path,
                                const struct tess_index *ix)
{
	size_t all = 0;

	for (; c->n < ix->n; c->n++) {
		const struct tess_indexed *t = &ix->tensor[c->n];
		const struct tess_slice *slice = tess_safetensors_find(c->part[t->part], t->name);

		if (!slice)
			return tess_fail(TESS_EINVAL, "%s: weight_map: %.200s is not in %s", path,
			                 t->name, ix->part[t->part]);
		c->tensor[c->n] = (struct named){ slice, c->part[t->part] };
	}
	for (size_t i = 0; i < c->nparts; i++)
		all += tess_safetensors_count(c->part[i]);
	if (all > c->n)
		tess_log(TESS_INFO, "hf",
		         "%s: its parts hold %zu tensors that it does not name; they are not used",
		         path, all - c->n);
	return TESS_OK;
}

static tess_status sharded_load(struct tess_checkpoint *c, const char *path)
{
	struct tess_index ix = { 0 };
	tess_status st = tess_index_load(path, &ix);

	if (!st)
		st = parts_open(c, path, &ix);
	if (!st)
		st = tensors_take(c, path, &ix);
	tess_index_free(&ix);
	return st;
}

static tess_status weights_load(struct tess_checkpoint *c)
{
	const char *single = path_of(c, "model.safetensors"),
		   *index = path_of(c, "model.safetensors.index.json");
	const char *torch = path_of(c, "pytorch_model.bin"),
		   *torch_index = path_of(c, "pytorch_model.bin.index.json");

	if (!single || !index || !torch || !torch_index)
		return TESS_ENOMEM;
	if (!access(single, F_OK))
		return single_load(c, single);
	if (!access(index, F_OK))
		return sharded_load(c, index);
	if (!access(torch, F_OK) || !access(torch_index, F_OK))
		return tess_fail(
			TESS_ENOTSUP,
			"%s: its weights are pickled (pytorch_model.bin), which is never read; save them "
			"as safetensors",
			c->dir);
	return tess_fail(TESS_ENOENT,
	                 "%s: neither model.safetensors nor model.safetensors.index.json is there",
	                 c->dir);
}

tess_status tess_checkpoint_open(const char *dir, struct tess_checkpoint **out)
{
	struct tess_checkpoint *c;
	size_t len = strlen(dir);
	tess_status st = TESS_OK;
	struct stat about;

	if (stat(dir, &about))
		return tess_fail(errno == ENOENT ? TESS_ENOENT : TESS_EIO, "%s: %s", dir,
		                 strerror(errno));
	if (!S_ISDIR(about.st_mode))
		return tess_fail(TESS_EINVAL,
		                 "%s: the directory of a checkpoint is needed, not a file", dir);
	c = calloc(1, sizeof *c);
	if (!c)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", dir);
	while (len > 1 && dir[len - 1] == '/')
		len--;
	c->dir = tess_arena_copy(&c->arena, dir, len);
	if (!c->dir)
		st = TESS_ENOMEM;
	if (!st)
		st = configs_load(c);
	if (!st)
		st = weights_load(c);
	if (st)
		tess_checkpoint_close(c);
	else
		*out = c;
	return st;
}

void tess_checkpoint_close(struct tess_checkpoint *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->nparts; i++)
		tess_safetensors_close(c->part[i]);
	tess_config_free(&c->config);
	tess_arena_free(&c->arena);
	free(c);
}

/* ---- reading ---------------------------------------------------------------------------- */

const char *tess_checkpoint_dir(const struct tess_checkpoint *c)
{
	return c->dir;
}

const struct tess_config *tess_checkpoint_config(const struct tess_checkpoint *c)
{
	return &c->config;
}

const struct tess_generation *tess_checkpoint_generation(const struct tess_checkpoint *c)
{
	return &c->generation;
}

size_t tess_checkpoint_count(const struct tess_checkpoint *c)
{
	return c->n;
}

const struct tess_slice *tess_checkpoint_at(const struct tess_checkpoint *c, size_t i)
{
	return c->tensor[i].slice;
}

static int by_name(const void *name, const void *named)
{
	return strcmp(name, ((const struct named *)named)->slice->name);
}

static tess_status missing(const struct tess_checkpoint *c, const char *name)
{
	const char *near = NULL;
	size_t best = TESS_FAR;

	for (size_t i = 0; i < c->n; i++)
		if (tess_nearer(name, c->tensor[i].slice->name, &best))
			near = c->tensor[i].slice->name;
	return tess_fail(TESS_ENOENT, "%s: tensor %s is not among its %zu%s%.200s", c->dir, name,
	                 c->n, near ? "; the nearest is " : "", near ? near : "");
}

tess_status tess_checkpoint_find(const struct tess_checkpoint *c, const char *name,
                                 struct tess_view *out)
{
	const struct named *found = bsearch(name, c->tensor, c->n, sizeof *c->tensor, by_name);
	const struct tess_slice *s;
	struct tess_view view = { 0 };
	int64_t stride = 1;

	if (!found)
		return missing(c, name);
	s = found->slice;
	if (s->dtype != TESS_F32 && s->dtype != TESS_BF16 && s->dtype != TESS_F16)
		return tess_fail(
			TESS_ENOTSUP,
			"%s: tensor %s: weights of dtype %s are not supported; F32, BF16 and F16 are",
			tess_safetensors_path(found->part), name, s->type);
	if (s->ndim > TESS_DIMS)
		return tess_fail(TESS_ENOTSUP,
		                 "%s: tensor %s: %d dimensions; at most %d are supported",
		                 tess_safetensors_path(found->part), name, s->ndim, TESS_DIMS);
	view.data = (void *)(uintptr_t)s->data;
	view.dtype = s->dtype;
	view.ndim = s->ndim;
	view.layout = TESS_ROWS;
	for (int32_t i = s->ndim - 1; i >= 0; i--) {
		view.shape[i] = s->shape[i];
		view.stride[i] = stride;
		stride *= s->shape[i] ? s->shape[i] : 1;
	}
	*out = view;
	return TESS_OK;
}

void tess_checkpoint_drop(const struct tess_checkpoint *c, const void *data, uint64_t bytes)
{
	for (size_t i = 0; i < c->nparts; i++)
		tess_safetensors_drop(c->part[i], data, bytes);
}

static tess_status source_find(void *self, const char *name, struct tess_view *out)
{
	return tess_checkpoint_find(self, name, out);
}

static void source_drop(void *self, const void *data, uint64_t bytes)
{
	tess_checkpoint_drop(self, data, bytes);
}

struct tess_source tess_checkpoint_source(struct tess_checkpoint *c)
{
	return (struct tess_source){
		.self = c,
		.name = c->dir,
		.config = c->config.root,
		.find = source_find,
		.drop = source_drop,
	};
}

#include "hf/checkpoint.h"

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "hf/directory.h"
#include "hf/index.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JSON_BYTES_MAX = 16 << 20 };

struct tensor_entry {
	const struct tess_slice *slice;
	const struct tess_safetensors *part;
};

struct parameter { /* a tensor, or the two of a weight in MXFP4 */
	const char *name;
	const struct tensor_entry *tensor; /* MXFP4: NAME_blocks */
	const struct tess_mxfp4 *mxfp4; /* else NULL */
};

struct tess_checkpoint {
	struct tess_arena arena;
	const char *dir;
	struct tess_config config;
	struct tess_generation_config generation;
	const char *config_path, *generation_path;
	json_t *generation_root; /* NULL: no such file */
	int32_t how; /* TESS_CHECKPOINT_... */
	int32_t absent_dtype; /* dtype of parameters whose files are absent, by config.json */
	const char *prefix; /* prefix of wrappers removed from all names; NULL: none */
	bool indexed; /* the files are those of an index */
	bool unnamed; /* no file lists the parameters */
	size_t nparts, n, nparameters;
	struct tess_safetensors **part;
	struct tensor_entry *tensor; /* by name */
	struct parameter *parameter; /* by name */
};

static const char *format_path(struct tess_checkpoint *c, const char *file)
{
	return tess_arena_format(&c->arena, "%s/%s", c->dir, file);
}

/* ---- open ---------------------------------------------------------------------------- */

static tess_status load_configs(struct tess_checkpoint *c)
{
	tess_status st;

	c->config_path = format_path(c, "config.json");
	c->generation_path = format_path(c, "generation_config.json");
	if (!c->config_path || !c->generation_path)
		return TESS_ENOMEM;
	st = tess_config_load(c->config_path, &c->config);
	if (st == TESS_ENOENT)
		return tess_directory_fail_config(c->dir);
	if (!st)
		st = tess_json_load(c->generation_path, JSON_BYTES_MAX, &c->generation_root);
	if (st && st != TESS_ENOENT)
		return st;
	return tess_generation_make(c->generation_path, c->generation_root, c->config_path,
	                            c->config.root, &c->generation);
}

tess_status tess_checkpoint_set_settings(struct tess_checkpoint *c, const json_t *settings)
{
	if (c->generation_root)
		return TESS_OK;
	return tess_generation_make(c->generation_path, NULL, c->config_path, settings,
	                            &c->generation);
}

/* Warns of model.safetensors next to another complete set of weights: either may be stale. */
static void warn_two_copies(const struct tess_checkpoint *c)
{
	char path[PATH_MAX];
	struct tess_index ix = { 0 };
	bool complete = true, other = false;

	snprintf(path, sizeof path, "%s/model.safetensors.index.json", c->dir);
	if (c->indexed || access(path, F_OK) || tess_index_load(path, &ix))
		return;
	for (size_t i = 0; i < ix.nparts; i++) {
		snprintf(path, sizeof path, "%s/%s", c->dir, ix.part[i]);
		complete &= !access(path, F_OK);
		other |= strcmp(ix.part[i], "model.safetensors") != 0;
	}
	if (complete && other)
		tess_log(TESS_WARN, "hf",
		         "%s/model.safetensors is used, and not the %zu files of "
		         "%s/model.safetensors.index.json beside it; remove what is stale",
		         c->dir, ix.nparts, c->dir);
	tess_index_free(&ix);
}

void tess_checkpoint_log_prefix(const struct tess_checkpoint *c)
{
	if (c->prefix)
		tess_log(TESS_INFO, "hf",
		         "%s: its names begin with \"%s\", the prefix of a wrapper (torch.compile, "
		         "DDP); they are read, and written, without it",
		         c->dir, c->prefix);
}

void tess_checkpoint_warn_unused(const struct tess_checkpoint *c)
{
	tess_checkpoint_log_prefix(c);
	if (c->config.text_part)
		tess_log(TESS_WARN, "hf",
		         "%s: of this model only the text part, %s, is read; images and other "
		         "inputs are not",
		         c->dir, c->config.type);
	warn_two_copies(c);
	tess_generation_warn_unused(c->generation_path, c->generation_root, c->config_path,
	                            c->config.root);
}

static tess_status alloc_tables(struct tess_checkpoint *c, size_t nparts, size_t n)
{
	if (!c->part)
		c->part = TESS_NEW(&c->arena, struct tess_safetensors *, nparts);
	if (n)
		c->tensor = TESS_NEW(&c->arena, struct tensor_entry, n);
	return c->part && (c->tensor || !n) ? TESS_OK : TESS_ENOMEM;
}

static tess_status read_absent_dtype(struct tess_checkpoint *c)
{
	return tess_config_get_dtype(c->config_path, &c->config, &c->absent_dtype);
}

static tess_status load_single_file(struct tess_checkpoint *c, const char *path)
{
	tess_status st = alloc_tables(c, 1, 0);

	if (!st)
		st = tess_safetensors_open(path, c->how != TESS_CHECKPOINT_WHOLE, &c->part[0]);
	if (st)
		return st;
	c->nparts = 1;
	st = alloc_tables(c, 1, tess_safetensors_count(c->part[0]));
	for (; !st && c->n < tess_safetensors_count(c->part[0]); c->n++)
		c->tensor[c->n] =
			(struct tensor_entry){ tess_safetensors_at(c->part[0], c->n), c->part[0] };
	return st;
}

static tess_status open_parts(struct tess_checkpoint *c, const char *path,
                              const struct tess_index *ix)
{
	tess_status st = alloc_tables(c, ix->nparts, ix->n);

	for (; !st && c->nparts < ix->nparts; c->nparts += !st) {
		const char *part = format_path(c, ix->part[c->nparts]);

		if (!part)
			st = TESS_ENOMEM;
		else if (c->how == TESS_CHECKPOINT_CONFIG && access(part, F_OK))
			st = read_absent_dtype(c);
		else
			st = tess_safetensors_open(part, c->how != TESS_CHECKPOINT_WHOLE,
			                           &c->part[c->nparts]);
		if (st == TESS_ENOENT)
			tess_fail_in(st, "%s: weight_map names a part that is missing", path);
	}
	return st;
}

/* Makes the entry of a tensor whose file is absent; NULL: no memory. */
static const struct tess_slice *make_absent_tensor(struct tess_checkpoint *c, const char *name)
{
	struct tess_slice *s = TESS_NEW(&c->arena, struct tess_slice, 1);
	const char *copy = tess_arena_copy(&c->arena, name, SIZE_MAX);

	if (s && copy)
		*s = (struct tess_slice){ .name = copy, .dtype = c->absent_dtype, .ndim = -1 };
	return copy ? s : NULL;
}

/* Builds the list of tensors that can be found: those that the index names. */
static tess_status index_tensors(struct tess_checkpoint *c, const char *path,
                                 const struct tess_index *ix)
{
	size_t all = 0;

	for (; c->n < ix->n; c->n++) {
		const struct tess_indexed *t = &ix->tensor[c->n];
		const struct tess_safetensors *part = c->part[t->part];
		const struct tess_slice *slice = part ? tess_safetensors_find(part, t->name)
		                                      : make_absent_tensor(c, t->name);

		if (!slice && !part)
			return TESS_ENOMEM;
		if (!slice)
			return tess_fail(TESS_EINVAL, "%s: weight_map: %.200s is not in %s", path,
			                 t->name, ix->part[t->part]);
		c->tensor[c->n] = (struct tensor_entry){ slice, part };
	}
	for (size_t i = 0; i < c->nparts; i++)
		all += c->part[i] ? tess_safetensors_count(c->part[i]) : 0;
	if (all > c->n)
		tess_log(TESS_INFO, "hf",
		         "%s: its parts hold %zu tensors that it does not list; they are not used",
		         path, all - c->n);
	return TESS_OK;
}

static tess_status load_sharded_files(struct tess_checkpoint *c, const char *path)
{
	struct tess_index ix = { 0 };
	tess_status st = tess_index_load(path, &ix);

	if (!st)
		st = open_parts(c, path, &ix);
	if (!st)
		st = index_tensors(c, path, &ix);
	tess_index_free(&ix);
	return st;
}

static tess_status load_weights(struct tess_checkpoint *c)
{
	const char *single = format_path(c, "model.safetensors"),
		   *index = format_path(c, "model.safetensors.index.json");
	tess_status st;

	if (!single || !index)
		return TESS_ENOMEM;
	c->indexed = access(single, F_OK) != 0;
	if (!c->indexed)
		return load_single_file(c, single);
	if (!access(index, F_OK))
		return load_sharded_files(c, index);
	st = tess_directory_fail_weights(c->dir);
	if (c->how != TESS_CHECKPOINT_CONFIG || st == TESS_ENOTSUP)
		return st;
	c->unnamed = true;
	return read_absent_dtype(c);
}

static bool begins_with(const struct tess_slice *s, const char *prefix, size_t len)
{
	return !strncmp(s->name, prefix, len) && s->name[len];
}

/* Returns whether all names in the files begin with `prefix`, listed by the index or not. */
static bool have_all_prefix(const struct tess_checkpoint *c, const char *prefix, size_t len)
{
	bool all = c->n > 0;

	for (size_t i = 0; i < c->n && all; i++)
		all = begins_with(c->tensor[i].slice, prefix, len);
	for (size_t i = 0; i < c->nparts; i++)
		for (size_t k = 0; all && c->part[i] && k < tess_safetensors_count(c->part[i]); k++)
			all = begins_with(tess_safetensors_at(c->part[i], k), prefix, len);
	return all;
}

static tess_status strip_prefix(struct tess_checkpoint *c, const char *prefix, size_t len)
{
	c->prefix = tess_arena_format(&c->arena, "%s%s", c->prefix ? c->prefix : "", prefix);
	if (!c->prefix)
		return TESS_ENOMEM;
	for (size_t i = 0; i < c->nparts; i++)
		if (c->part[i])
			tess_safetensors_strip_names(c->part[i], len);
	for (size_t i = 0; i < c->n; i++)
		if (!c->tensor[i].part) { /* its file is absent */
			c->tensor[i].slice = make_absent_tensor(c, c->tensor[i].slice->name + len);
			if (!c->tensor[i].slice)
				return TESS_ENOMEM;
		}
	return TESS_OK;
}

/* Removes the prefixes of wrappers, which may be nested in any order. */
static tess_status strip_wrappers(struct tess_checkpoint *c)
{
	static const char *const prefixes[] = { "_orig_mod.", "module." };
	size_t i = 0;
	tess_status st = TESS_OK;

	while (i < sizeof prefixes / sizeof *prefixes && !st) {
		size_t len = strlen(prefixes[i]);

		if (have_all_prefix(c, prefixes[i], len)) {
			st = strip_prefix(c, prefixes[i], len);
			i = 0;
		} else {
			i++;
		}
	}
	return st;
}

/* ---- text part ----------------------------------------------------------------------- */

static int compare_entries(const void *a, const void *b)
{
	return strcmp(((const struct tensor_entry *)a)->slice->name,
	              ((const struct tensor_entry *)b)->slice->name);
}

/*
 * Returns what follows *prefix in the name of a tensor in its text model: language_model.model.X is
 * model.X, and model.language_model.X is, too. NULL: a tensor of another part.
 */
static const char *find_text_name(const char *name, const char **prefix)
{
	static const char old[] = "language_model.", new[] = "model.language_model.";

	*prefix = "";
	if (!strncmp(name, old, strlen(old)))
		return name + strlen(old);
	if (!strncmp(name, "lm_head.", strlen("lm_head.")))
		return name;
	*prefix = "model.";
	return strncmp(name, new, strlen(new)) ? NULL : name + strlen(new);
}

static bool has_text_names(const struct tess_checkpoint *c)
{
	for (size_t i = 0; i < c->n; i++)
		if (strstr(c->tensor[i].slice->name, "language_model."))
			return true;
	return false;
}

/* Keeps the tensors of the text part, by their names there. */
static tess_status select_text_part(struct tess_checkpoint *c)
{
	size_t kept = 0;

	if (!c->config.text_part || !has_text_names(c))
		return TESS_OK;
	for (size_t i = 0; i < c->n; i++) {
		const char *prefix, *name = find_text_name(c->tensor[i].slice->name, &prefix);
		struct tess_slice *s;

		if (!name)
			continue;
		s = TESS_NEW(&c->arena, struct tess_slice, 1);
		name = tess_arena_format(&c->arena, "%s%s", prefix, name);
		if (!s || !name)
			return TESS_ENOMEM;
		*s = *c->tensor[i].slice;
		s->name = name;
		c->tensor[kept++] = (struct tensor_entry){ s, c->tensor[i].part };
	}
	c->n = kept;
	qsort(c->tensor, c->n, sizeof *c->tensor, compare_entries);
	return TESS_OK;
}

/* ---- parameters ---------------------------------------------------------------------- */

static int compare_tensor_name(const void *name, const void *named)
{
	return strcmp(name, ((const struct tensor_entry *)named)->slice->name);
}

static const struct tensor_entry *find_tensor_entry(const struct tess_checkpoint *c,
                                                    const char *name)
{
	return c->n ? bsearch(name, c->tensor, c->n, sizeof *c->tensor, compare_tensor_name) : NULL;
}

static int compare_parameters(const void *a, const void *b)
{
	return strcmp(((const struct parameter *)a)->name, ((const struct parameter *)b)->name);
}

/* Finds the other tensor of a weight in MXFP4: its name ends with `end` instead of `own`. */
static tess_status find_other(struct tess_checkpoint *c, const struct tensor_entry *t,
                              const char *own, const char *end, const struct tensor_entry **out)
{
	const char *name = t->slice->name, *other;

	other = tess_arena_format(&c->arena, "%.*s%s", (int)(strlen(name) - strlen(own)), name,
	                          end);
	if (!other)
		return TESS_ENOMEM;
	*out = find_tensor_entry(c, other);
	return *out ? TESS_OK
	            : tess_fail(TESS_EINVAL,
	                        "%s: tensor %s is half of a weight in MXFP4, and %s is not in the "
	                        "checkpoint; fetch it again",
	                        c->dir, name, other);
}

/* Adds a weight in MXFP4, unless `t` is its second tensor. */
static tess_status add_mxfp4(struct tess_checkpoint *c, const struct tensor_entry *t,
                             const char *own, const char *end)
{
	const char *name = t->slice->name;
	const struct tensor_entry *scales;
	struct tess_mxfp4 *w;
	tess_status st = find_other(c, t, own, end, &scales);

	if (st || !strcmp(own, TESS_MXFP4_SCALES))
		return st;
	w = TESS_NEW(&c->arena, struct tess_mxfp4, 1);
	name = tess_arena_copy(&c->arena, name, strlen(name) - strlen(own));
	if (!w || !name)
		return TESS_ENOMEM;
	*w = (struct tess_mxfp4){ t->slice, scales->slice, t->part, scales->part };
	c->parameter[c->nparameters++] = (struct parameter){ name, t, w };
	return t->part && scales->part ? tess_mxfp4_check(w) : TESS_OK;
}

static bool has_suffix(const char *name, const char *end)
{
	size_t len = strlen(name), n = strlen(end);

	return len > n && !strcmp(name + len - n, end);
}

/* Lists the parameters: a weight in MXFP4 is one. */
static tess_status index_parameters(struct tess_checkpoint *c)
{
	static const char blocks[] = TESS_MXFP4_BLOCKS, scales[] = TESS_MXFP4_SCALES;
	tess_status st = TESS_OK;

	c->parameter = TESS_NEW(&c->arena, struct parameter, c->n + 1);
	if (!c->parameter)
		return TESS_ENOMEM;
	for (size_t i = 0; i < c->n && !st; i++) {
		const struct tensor_entry *t = &c->tensor[i];
		const char *name = t->slice->name;

		if (c->config.mxfp4 && has_suffix(name, blocks))
			st = add_mxfp4(c, t, blocks, scales);
		else if (c->config.mxfp4 && has_suffix(name, scales))
			st = add_mxfp4(c, t, scales, blocks);
		else
			c->parameter[c->nparameters++] = (struct parameter){ name, t, NULL };
	}
	qsort(c->parameter, c->nparameters, sizeof *c->parameter, compare_parameters);
	for (size_t i = 1; i < c->nparameters && !st; i++)
		if (!compare_parameters(&c->parameter[i - 1], &c->parameter[i]))
			st = tess_fail(TESS_EINVAL,
			               "%s: %s is in the checkpoint twice, in MXFP4 (%s%s) and as "
			               "one tensor; remove one of both",
			               c->dir, c->parameter[i].name, c->parameter[i].name, blocks);
	return st;
}

const struct tess_mxfp4 *tess_checkpoint_get_mxfp4(const struct tess_checkpoint *c, size_t i)
{
	const struct tess_slice *s = c->tensor[i].slice;

	for (size_t k = 0; k < c->nparameters && c->config.mxfp4; k++) {
		const struct tess_mxfp4 *w = c->parameter[k].mxfp4;

		if (w && (w->blocks == s || w->scales == s))
			return w;
	}
	return NULL;
}

/* ---- open a directory ---------------------------------------------------------------- */

/* Returns whether a path may be the name of a model on a hub: "ORG/NAME". */
static bool looks_like_id(const char *path)
{
	const char *slash = strchr(path, '/');

	return slash && slash != path && slash[1] && !strchr(slash + 1, '/') && *path != '.';
}

static tess_status check_dir(const char *dir)
{
	struct stat about;
	tess_status st;

	if (!dir)
		return tess_fail(TESS_EINVAL, "the directory of a checkpoint is needed, not NULL");
	if (stat(dir, &about)) {
		st = tess_file_fail_open(dir);
		return st != TESS_ENOENT || !looks_like_id(dir)
		               ? st
		               : tess_fail(st,
		                           "%s; nothing is downloaded: if this is the id of a "
		                           "model on a hub, fetch it first and name its directory",
		                           tess_error());
	}
	if (!S_ISDIR(about.st_mode))
		return tess_fail(TESS_EINVAL,
		                 "%s: the directory of a checkpoint is needed, not a file", dir);
	return TESS_OK;
}

tess_status tess_checkpoint_open(const char *dir, int32_t how, struct tess_checkpoint **out)
{
	tess_status st = check_dir(dir);
	struct tess_checkpoint *c;
	size_t len;

	if (st)
		return st;
	c = calloc(1, sizeof *c);
	if (!c)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", dir);
	c->how = how;
	for (len = strlen(dir); len > 1 && dir[len - 1] == '/';)
		len--;
	c->dir = tess_arena_copy(&c->arena, dir, len);
	if (!c->dir)
		st = TESS_ENOMEM;
	if (!st)
		st = load_configs(c);
	if (!st)
		st = load_weights(c);
	if (!st)
		st = strip_wrappers(c);
	if (!st)
		st = select_text_part(c);
	if (!st)
		st = index_parameters(c);
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
	json_decref(c->generation_root);
	tess_arena_free(&c->arena);
	free(c);
}

/* ---- read ---------------------------------------------------------------------------- */

const char *tess_checkpoint_dir(const struct tess_checkpoint *c)
{
	return c->dir;
}

const struct tess_config *tess_checkpoint_config(const struct tess_checkpoint *c)
{
	return &c->config;
}

const struct tess_generation_config *tess_checkpoint_generation(const struct tess_checkpoint *c)
{
	return &c->generation;
}

const json_t *tess_checkpoint_generation_root(const struct tess_checkpoint *c)
{
	return c->generation_root;
}

size_t tess_checkpoint_count_parts(const struct tess_checkpoint *c)
{
	return c->nparts;
}

const struct tess_safetensors *tess_checkpoint_part(const struct tess_checkpoint *c, size_t i)
{
	return c->part[i];
}

size_t tess_checkpoint_count(const struct tess_checkpoint *c)
{
	return c->n;
}

const struct tess_slice *tess_checkpoint_at(const struct tess_checkpoint *c, size_t i)
{
	return c->tensor[i].slice;
}

static tess_status fail_missing_tensor(const struct tess_checkpoint *c, const char *name)
{
	const char *near = NULL;
	size_t best = TESS_NEAREST_INIT;

	for (size_t i = 0; i < c->nparts; i++)
		if (c->part[i] && tess_safetensors_find(c->part[i], name))
			return tess_fail(TESS_ENOENT,
			                 "%s/model.safetensors.index.json does not list tensor %s, "
			                 "which %s holds; list it there, or fetch the index again",
			                 c->dir, name, tess_safetensors_path(c->part[i]));
	for (size_t i = 0; i < c->n; i++)
		if (tess_nearest_update(name, c->tensor[i].slice->name, &best))
			near = c->tensor[i].slice->name;
	return tess_fail(TESS_ENOENT, "%s: tensor %s is not among its %zu%s%.200s", c->dir, name,
	                 c->n, near ? "; the nearest is " : "", near ? near : "");
}

static int compare_parameter_name(const void *name, const void *named)
{
	return strcmp(name, ((const struct parameter *)named)->name);
}

static const struct parameter *find_listed_parameter(const struct tess_checkpoint *c,
                                                     const char *name)
{
	return c->nparameters ? bsearch(name, c->parameter, c->nparameters, sizeof *c->parameter,
	                                compare_parameter_name)
	                      : NULL;
}

/* Returns the dtype of a parameter whose file is absent. */
static int32_t guess_dtype(const struct tess_checkpoint *c, const char *name)
{
	const struct parameter *p = find_listed_parameter(c, name);
	bool experts =
		has_suffix(name, ".experts.gate_up_proj") || has_suffix(name, ".experts.down_proj");

	return c->config.mxfp4 && (p ? p->mxfp4 != NULL : experts) ? TESS_MXFP4 : c->absent_dtype;
}

static struct tess_view make_rows_view(const struct tess_slice *s, int32_t dtype)
{
	struct tess_view view = { .data = (void *)(uintptr_t)s->data,
		                  .dtype = dtype,
		                  .ndim = s->ndim,
		                  .layout = TESS_ROWS };
	int64_t stride = 1;

	for (int32_t i = s->ndim - 1; i >= 0; i--) {
		view.shape[i] = s->shape[i];
		view.stride[i] = stride;
		stride *= s->shape[i] ? s->shape[i] : 1;
	}
	return view;
}

/* Views a weight in MXFP4, which tess_mxfp4_read reads. */
static struct tess_view view_mxfp4(const struct tess_mxfp4 *w)
{
	int64_t shape[3];
	struct tess_slice s = { .ndim = 3, .shape = shape };

	memcpy(shape, w->scales->shape, sizeof shape);
	shape[2] *= TESS_MXFP4_ELEMENTS;
	return make_rows_view(&s, TESS_MXFP4);
}

tess_status tess_checkpoint_find(const struct tess_checkpoint *c, const char *name,
                                 struct tess_view *out)
{
	const struct parameter *p = find_listed_parameter(c, name);
	const struct tess_slice *s = p ? p->tensor->slice : NULL;

	if (!p && !c->unnamed)
		return fail_missing_tensor(c, name);
	if (!p || s->ndim < 0 || (p->mxfp4 && p->mxfp4->scales->ndim < 0)) {
		*out = (struct tess_view){ .dtype = guess_dtype(c, name), .ndim = -1 };
		return TESS_OK;
	}
	if (p->mxfp4) {
		*out = view_mxfp4(p->mxfp4);
		return TESS_OK;
	}
	if (s->dtype != TESS_F32 && s->dtype != TESS_BF16 && s->dtype != TESS_F16)
		return tess_fail(TESS_ENOTSUP,
		                 "%s: tensor %s: its weights are %s, which is not computed "
		                 "with; " TESS_UNPACKED_WEIGHTS,
		                 tess_safetensors_path(p->tensor->part), name, s->type);
	if (s->ndim > TESS_DIMS)
		return tess_fail(TESS_ENOTSUP,
		                 "%s: tensor %s: %d dimensions; at most %d are supported",
		                 tess_safetensors_path(p->tensor->part), name, s->ndim, TESS_DIMS);
	*out = make_rows_view(s, s->dtype);
	return TESS_OK;
}

const char *tess_checkpoint_find_unlisted(const struct tess_checkpoint *c)
{
	for (size_t i = 0; i < c->nparts; i++)
		for (size_t k = 0; c->part[i] && k < tess_safetensors_count(c->part[i]); k++) {
			const struct tess_slice *s = tess_safetensors_at(c->part[i], k);
			const struct tensor_entry *found = find_tensor_entry(c, s->name);

			if (!found || found->slice != s)
				return s->name;
		}
	return NULL;
}

void tess_checkpoint_drop(const struct tess_checkpoint *c, const void *data, uint64_t bytes)
{
	for (size_t i = 0; i < c->nparts; i++)
		tess_safetensors_drop(c->part[i], data, bytes);
}

tess_status tess_checkpoint_read(const struct tess_checkpoint *c, const char *name, uint64_t at,
                                 uint64_t bytes, void *out)
{
	const struct tensor_entry *found = find_tensor_entry(c, name);

	return found ? tess_safetensors_read(found->part, found->slice, at, bytes, out)
	             : fail_missing_tensor(c, name);
}

static bool has_source_tensor(void *self, const char *name)
{
	const struct tess_checkpoint *c = self;

	return c->unnamed || find_listed_parameter(c, name);
}

static tess_status find_source_tensor(void *self, const char *name, struct tess_view *out)
{
	return tess_checkpoint_find(self, name, out);
}

static tess_status read_source_tensor(void *self, const char *name, uint64_t at, uint64_t bytes,
                                      void *out)
{
	const struct tess_checkpoint *c = self;
	const struct parameter *p = find_listed_parameter(c, name);

	if (!p)
		return fail_missing_tensor(c, name);
	if (!p->mxfp4)
		return tess_safetensors_read(p->tensor->part, p->tensor->slice, at, bytes, out);
	return tess_mxfp4_read(p->mxfp4, at / TESS_MXFP4_BYTES, bytes / TESS_MXFP4_BYTES, out);
}

tess_status tess_checkpoint_reopen(struct tess_checkpoint *c)
{
	tess_status st = TESS_OK;

	for (size_t i = 0; i < c->nparts && !st; i++)
		if (c->part[i])
			st = tess_safetensors_reopen(c->part[i]);
	return st;
}

static void advise_source(void *self, const char *name, uint64_t at, uint64_t bytes, int32_t how)
{
	const struct parameter *p = find_listed_parameter(self, name);

	if (p && p->mxfp4)
		tess_mxfp4_advise(p->mxfp4, at / TESS_MXFP4_BYTES, bytes / TESS_MXFP4_BYTES, how);
	else if (p)
		tess_safetensors_advise(p->tensor->part, p->tensor->slice, at, bytes, how);
}

static tess_status check_source_file(void *self, const char *name)
{
	const struct parameter *p = find_listed_parameter(self, name);
	tess_status st = p ? tess_safetensors_check(p->tensor->part) : TESS_OK;

	return st || !p || !p->mxfp4 ? st : tess_safetensors_check(p->mxfp4->scales_part);
}

static void drop_source_pages(void *self, const void *data, uint64_t bytes)
{
	tess_checkpoint_drop(self, data, bytes);
}

static const char *get_source_name(void *self, size_t i)
{
	const struct tess_checkpoint *c = self;

	return c->parameter[i].name;
}

struct tess_source tess_checkpoint_make_source(struct tess_checkpoint *c)
{
	return (struct tess_source){
		.self = c,
		.name = c->dir,
		.config = c->config.root,
		.find = find_source_tensor,
		.has = has_source_tensor,
		.read = read_source_tensor,
		.drop = drop_source_pages,
		.advise = advise_source,
		.check = check_source_file,
		.count = c->nparameters,
		.at = get_source_name,
		.unread =
			c->how != TESS_CHECKPOINT_WHOLE && strcmp(tess_option_get("load"), "copy"),
	};
}

/*
 * save.c - what a trainer has, on disk and back: the weights as a checkpoint, the state of the
 * optimizer by whole tensors, so that it fits any mesh, and a small file of all else.
 */
#include "hf/save.h"

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "hf/convert.h"
#include "hf/safetensors.h"
#include "nn/program/agree.h"
#include "nn/train/trainer.h"
#include "nn/weights/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <unistd.h>

enum { STATE_BYTES_MAX = 64 << 20, SYNC_BYTES = 64 << 20, FORMAT = 1 };

static const struct {
	const char *prefix;
	int32_t what;
} saved_kinds[] = { { "", TESS_WEIGHT },
	            { "master.", TESS_MASTER },
	            { "m.", TESS_MOMENT1 },
	            { "v.", TESS_MOMENT2 } };
enum { KINDS = sizeof saved_kinds / sizeof *saved_kinds };

struct saved_tensor { /* in a file: one of the checkpoint's, or what is kept of it */
	const struct tess_stored_tensor *tensor;
	int32_t what; /* TESS_WEIGHT, ... */
	char *name;
};

struct saved_file {
	const char *name;
	int32_t n;
	struct saved_tensor *tensor;
	struct tess_slice *slice; /* by the same index */
	char *header;
	uint64_t header_bytes, bytes; /* bytes: of the whole file */
};

struct save { /* being written, or read */
	struct tess_trainer *trainer;
	const struct tess_trainer_parts *parts;
	const struct tess_parameters *parameters;
	int64_t step;
	char path[PATH_MAX], part[PATH_MAX];
	struct saved_file file[2]; /* of weights, of the optimizer */
	int64_t infinite; /* weights that are, of those that this rank has written */
	const char *first_infinite; /* the tensor of the first */
};

/* ---- what there is --------------------------------------------------------------------------- */

static bool is_saved(const struct save *s, const struct tess_stored_tensor *t, int32_t what)
{
	int32_t moments = tess_optimizer_count_moments(tess_trainer_get_optimizer(s->trainer));

	switch (what) {
	case TESS_WEIGHT:
		return true;
	case TESS_MASTER:
		return t->about.trained && t->about.dtype != TESS_F32;
	default:
		return t->about.trained && what - TESS_MOMENT1 < moments;
	}
}

static tess_status add_saved_tensor(struct saved_file *f, const struct tess_stored_tensor *t,
                                    int32_t kind)
{
	struct saved_tensor *to = &f->tensor[f->n];
	int32_t what = saved_kinds[kind].what;

	*to = (struct saved_tensor){ .tensor = t, .what = what };
	if (asprintf(&to->name, "%s%s", saved_kinds[kind].prefix, t->about.name) < 0) {
		to->name = NULL;
		return tess_fail(TESS_ENOMEM, "%s: out of memory", f->name);
	}
	f->slice[f->n++] = (struct tess_slice){
		.name = to->name,
		.dtype = what == TESS_WEIGHT ? t->about.dtype : TESS_F32,
		.ndim = t->about.ndim,
		.shape = t->about.shape,
	};
	return TESS_OK;
}

/* The files, by the tensors of the checkpoint alone: the same on all ranks and for any mesh. */
static tess_status plan_file(struct save *s, struct saved_file *f, bool weights)
{
	const struct tess_parameters *p = s->parameters;
	tess_status st = TESS_OK;

	f->name = weights ? "model.safetensors" : TESS_SAVED_OPTIMIZER;
	f->tensor = calloc((size_t)p->ntensors * KINDS + 1, sizeof *f->tensor);
	f->slice = calloc((size_t)p->ntensors * KINDS + 1, sizeof *f->slice);
	if (!f->tensor || !f->slice)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", f->name);
	for (int64_t i = 0; i < p->ntensors; i++)
		for (int32_t k = !weights; k < (weights ? 1 : KINDS) && !st; k++)
			if (is_saved(s, &p->tensor[i], saved_kinds[k].what))
				st = add_saved_tensor(f, &p->tensor[i], k);
	return st;
}

static tess_status open_save(struct save *s, struct tess_trainer *t)
{
	struct tess_trainer_info info = { .size = sizeof info };
	tess_status st;

	tess_trainer_get_info(t, &info);
	s->trainer = t;
	s->parts = tess_trainer_get_parts(t);
	s->parameters = tess_trainer_get_parameters(t);
	s->step = info.step;
	st = plan_file(s, &s->file[0], true);
	return st ? st : plan_file(s, &s->file[1], false);
}

static void close_save(struct save *s)
{
	for (struct saved_file *f = s->file; f < s->file + 2; f++) {
		for (int32_t i = 0; i < f->n; i++)
			free(f->tensor[i].name);
		free(f->tensor);
		free(f->slice);
		free(f->header);
	}
}

/* The walk over the runs of a tensor on this rank. */
static void begin_runs(const struct save *s, const struct tess_stored_tensor *t, int32_t what,
                       int32_t owned, struct tess_kept_walk *walk)
{
	tess_kept_walk_begin(walk, s->parameters->program, t, s->parameters->rank,
	                     what == TESS_WEIGHT ? TESS_REST : TESS_STATE, owned);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* On rank 0: a directory with the files, their headers, and room for all else. */
static tess_status create_save(struct save *s, const char *dir)
{
	tess_status st = tess_save_choose_path(dir, s->step, s->path);

	if (!st)
		st = tess_convert_make_part(s->path, s->part);
	for (struct saved_file *f = s->file; f < s->file + 2 && !st; f++)
		st = tess_convert_create_file(s->path, s->part, f->name, f->header, f->header_bytes,
		                              f->bytes);
	return st;
}

static tess_status layout_files(struct save *s)
{
	tess_status st = TESS_OK;

	for (struct saved_file *f = s->file; f < s->file + 2 && !st; f++) {
		st = tess_safetensors_layout(f->name, f->n, f->slice, &f->header, &f->header_bytes);
		f->bytes = f->header_bytes;
		for (int32_t i = 0; i < f->n && !st; i++)
			f->bytes += f->slice[i].bytes;
	}
	return st;
}

static tess_status fail_save(const struct save *s, const struct saved_file *f)
{
	return tess_fail(TESS_EIO, "%s/%s: cannot be written: %s; what was saved before is there",
	                 s->path, f->name, strerror(errno));
}

static int64_t count_infinite(int32_t dtype, const void *values, int64_t n)
{
	const uint16_t *half = values, infinity = dtype == TESS_BF16 ? 0x7f80 : 0x7c00;
	const float *single = values;
	int64_t count = 0;

	for (int64_t i = 0; i < n; i++)
		count += dtype == TESS_F32 ? isinf(single[i]) != 0 : (half[i] & 0x7fff) == infinity;
	return count;
}

/* What this rank owns of a tensor. */
static tess_status write_runs(struct save *s, const struct saved_file *f, int32_t i, int fd,
                              uint64_t *unsynced)
{
	uint64_t begin = f->header_bytes + f->slice[i].begin, width;
	const struct saved_tensor *t = &f->tensor[i];
	struct tess_kept_walk walk;
	struct tess_kept_run run;
	struct tess_kept kept;
	tess_status st = TESS_OK;

	tess_kept_open(s->parameters, t->tensor->weight, t->what, false, &kept);
	width = tess_width(kept.dtype);
	begin_runs(s, t->tensor, t->what, TESS_OWNED, &walk);
	while (!st && tess_kept_walk_next(&walk, &run)) {
		for (int64_t at = 0, n; at < run.n && !st; at += n) {
			void *memory;

			n = run.n - at;
			st = tess_kept_map(&kept, run.kept + at, &n, &memory);
			if (!st && t->what == TESS_WEIGHT && t->tensor->about.trained)
				s->infinite += count_infinite(kept.dtype, memory, n);
			if (!st && !tess_file_write(fd, memory, (uint64_t)n * width,
			                            begin + (uint64_t)(run.stored + at) * width))
				st = fail_save(s, f);
		}
		*unsynced += (uint64_t)run.n * width;
	}
	st = tess_kept_close(&kept, st);
	if (st)
		return st;
	if (s->infinite && !s->first_infinite)
		s->first_infinite = f->slice[i].name;
	if (*unsynced >= SYNC_BYTES || i == f->n - 1) {
		if (fdatasync(fd))
			return fail_save(s, f);
		*unsynced = 0;
	}
	return TESS_OK;
}

/* Collective: no rank goes on for long after another has failed. */
static tess_status write_shares(struct save *s, const struct saved_file *f)
{
	char path[PATH_MAX + 64];
	uint64_t unsynced = 0;
	tess_status st = TESS_OK;
	int fd;

	snprintf(path, sizeof path, "%s/%s", s->part, f->name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		st = tess_fail(TESS_EIO, "%s: %s; all ranks need the file system of rank 0", path,
		               strerror(errno));
	st = tess_group_agree_status(s->parts->group, st, "save");
	for (int32_t i = 0; i < f->n && !st; i++)
		st = tess_group_agree_status(s->parts->group, write_runs(s, f, i, fd, &unsynced),
		                             "save");
	if (fd >= 0)
		close(fd);
	return st;
}

/* As tess_convert does: each rank of those that it has written. */
static tess_status warn_infinite_weights(const struct save *s)
{
	int64_t all = 0;
	tess_status st =
		tess_all_reduce(s->parts->group, &s->infinite, &all, 1, TESS_I64, TESS_SUM, "save");

	if (!st && s->infinite)
		tess_log(TESS_WARN, "hf",
		         "%s: %lld values of %lld are too large for the dtype of the weights and "
		         "became infinite, the first in tensor %s; use a lower learning rate, or "
		         "train the checkpoint in another dtype (tessera convert --dtype f32)",
		         s->path, (long long)s->infinite, (long long)all, s->first_infinite);
	return st;
}

/* Of config.json, whatever its spaces and the order of its keys. */
static tess_status hash_config(const struct save *s, char out[17])
{
	char *text = json_dumps(s->parts->source->config, JSON_COMPACT | JSON_SORT_KEYS);
	uint64_t h = 0xcbf29ce484222325u;

	if (!text)
		return tess_fail(TESS_ENOMEM, "out of memory");
	for (const char *c = text; *c; c++)
		h = (h ^ (unsigned char)*c) * 0x100000001b3u; /* FNV-1a */
	free(text);
	snprintf(out, 17, "%016llx", (unsigned long long)h);
	return TESS_OK;
}

static const char *get_saved_optimizer(const struct save *s)
{
	return tess_trainer_get_optimizer(s->trainer)->kind == TESS_SGD ? "sgd" : "adamw";
}

/* On rank 0. */
static tess_status finish_save(const struct save *s, const char *state)
{
	char config[17], *text = NULL;
	json_t *program = NULL, *root;
	tess_status st = hash_config(s, config);

	if (!st)
		st = tess_json_parse("the state to save", state, strlen(state), &program);
	if (st)
		return st;
	root = json_pack("{s:i, s:I, s:s, s:s, s:o}", "format", FORMAT, "step", (json_int_t)s->step,
	                 "config", config, "optimizer", get_saved_optimizer(s), "program", program);
	if (root)
		text = json_dumps(root, JSON_INDENT(2));
	json_decref(root);
	st = text ? tess_convert_write_file(s->part, TESS_SAVED_STATE, text, strlen(text))
	          : tess_fail(TESS_ENOMEM, "%s: out of memory", s->path);
	free(text);
	if (!st)
		st = tess_convert_copy_files(s->parts->source->name, s->part, 0);
	return st ? st : tess_convert_rename_part(s->part, s->path);
}

tess_status tess_trainer_save(struct tess_trainer *t, const char *dir, int32_t keep,
                              const char *state)
{
	struct save *s = calloc(1, sizeof *s);
	struct tess_group *g = tess_trainer_get_parts(t)->group;
	bool first = tess_group_rank(g) == 0;
	tess_status st = s ? open_save(s, t) : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = layout_files(s);
	if (!st && first)
		st = create_save(s, dir);
	st = tess_group_agree_status(g, st, "save");
	if (!st)
		st = tess_broadcast(g, s->part, sizeof s->part, TESS_I8, 0, "save");
	if (!st && !first) /* for sentences */
		snprintf(s->path, sizeof s->path, "%s/step-%lld", dir, (long long)s->step);
	for (int i = 0; i < 2 && !st; i++)
		st = write_shares(s, &s->file[i]);
	if (!st)
		st = warn_infinite_weights(s);
	if (!st)
		st = tess_group_agree_status(
			g, first ? finish_save(s, state ? state : "{}") : TESS_OK, "save");
	if (first && s && st && *s->part)
		tess_convert_remove_part(s->part);
	if (first && !st)
		tess_save_remove_old(dir, s->path, s->parts->source->name, keep);
	if (s)
		close_save(s);
	free(s);
	return st;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* training.json; *state, of the program, is the caller's. */
static tess_status read_saved_state(struct save *s, char **state)
{
	char path[PATH_MAX + 64], config[17];
	json_t *root = NULL;
	const char *saved, *optimizer;
	int64_t format = 0;
	tess_status st;

	snprintf(path, sizeof path, "%s/" TESS_SAVED_STATE, s->path);
	st = tess_json_load(path, STATE_BYTES_MAX, &root);
	if (st == TESS_ENOENT)
		return tess_fail(st, "%s: is no save of a training: it has no " TESS_SAVED_STATE,
		                 s->path);
	if (!st)
		st = tess_json_get_int(path, root, "format", 1, INT32_MAX, &format);
	if (!st && format != FORMAT)
		st = tess_fail(TESS_ENOTSUP, "%s: format %lld: this version reads format %d", path,
		               (long long)format, FORMAT);
	if (!st)
		st = tess_json_get_int(path, root, "step", 0, INT64_MAX, &s->step);
	if (!st)
		st = hash_config(s, config);
	saved = json_string_value(json_object_get(root, "config"));
	optimizer = json_string_value(json_object_get(root, "optimizer"));
	if (!st && (!saved || strcmp(saved, config) != 0))
		st = tess_fail(TESS_EINVAL,
		               "%s: was saved from another model than %s: their config.json "
		               "differ; resume with the model that it began with",
		               s->path, s->parts->source->name);
	if (!st && (!optimizer || strcmp(optimizer, get_saved_optimizer(s)) != 0))
		st = tess_fail(TESS_EINVAL, "%s: was saved with the optimizer %s, and this is %s",
		               s->path, optimizer ? optimizer : "?", get_saved_optimizer(s));
	*state = st ? NULL : json_dumps(json_object_get(root, "program"), JSON_COMPACT);
	if (!st && !*state)
		st = tess_fail(TESS_EINVAL, "%s: \"program\" must be an object", path);
	json_decref(root);
	return st;
}

static tess_status check_saved_tensor(const struct tess_safetensors *in,
                                      const struct tess_slice *want, const struct tess_slice *have)
{
	const char *path = tess_safetensors_path(in);
	bool same = have && have->dtype == want->dtype && have->ndim == want->ndim;

	if (!have)
		return tess_fail(TESS_ENOENT, "%s: has no tensor %s, which this model has", path,
		                 want->name);
	for (int32_t d = 0; d < want->ndim && same; d++)
		same = have->shape[d] == want->shape[d];
	return same ? TESS_OK
	            : tess_fail(TESS_EINVAL,
	                        "%s: tensor %s has another shape or dtype than in this model", path,
	                        want->name);
}

/* What this rank holds of a tensor, as `what`. */
static tess_status read_runs(const struct save *s, const struct tess_stored_tensor *t, int32_t what,
                             const struct tess_safetensors *in, const struct tess_slice *from)
{
	struct tess_kept_walk walk;
	struct tess_kept_run run;
	struct tess_kept kept;
	uint64_t width;
	tess_status st = TESS_OK;

	tess_kept_open(s->parameters, t->weight, what, true, &kept);
	width = tess_width(kept.dtype);
	begin_runs(s, t, what, TESS_HELD, &walk);
	while (!st && tess_kept_walk_next(&walk, &run))
		for (int64_t at = 0, n; at < run.n && !st; at += n) {
			void *memory;

			n = run.n - at;
			st = tess_kept_map(&kept, run.kept + at, &n, &memory);
			if (!st)
				st = tess_safetensors_read(in, from,
				                           (uint64_t)(run.stored + at) * width,
				                           (uint64_t)n * width, memory);
		}
	return tess_kept_close(&kept, st);
}

static tess_status read_saved_tensor(const struct save *s, const struct saved_file *f, int32_t i,
                                     const struct tess_safetensors *in)
{
	const struct tess_slice *from = tess_safetensors_find(in, f->slice[i].name);
	tess_status st = check_saved_tensor(in, &f->slice[i], from);

	if (!st)
		st = read_runs(s, f->tensor[i].tensor, f->tensor[i].what, in, from);
	if (!st && from->data)
		tess_safetensors_drop(in, from->data, from->bytes);
	return st;
}

static tess_status read_saved_file(const struct save *s, const struct saved_file *f)
{
	char path[PATH_MAX + 64];
	struct tess_safetensors *in;
	tess_status st;

	snprintf(path, sizeof path, "%s/%s", s->path, f->name);
	st = tess_safetensors_open(path, false, &in);
	if (st)
		return st;
	for (int32_t i = 0; i < f->n && !st; i++)
		st = read_saved_tensor(s, f, i, in);
	tess_safetensors_close(in);
	return st;
}

tess_status tess_trainer_load(struct tess_trainer *t, const char *path, char **state)
{
	struct save *s = calloc(1, sizeof *s);
	char *text = NULL;
	tess_status st = s ? open_save(s, t) : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st && snprintf(s->path, sizeof s->path, "%s", path) >= PATH_MAX)
		st = tess_fail(TESS_EINVAL, "%s: the path is too long", path);
	if (!st)
		st = read_saved_state(s, &text);
	for (int i = 0; i < 2 && !st; i++)
		st = read_saved_file(s, &s->file[i]);
	st = tess_group_agree_status(tess_trainer_get_parts(t)->group, st, "resume");
	if (!st) {
		tess_trainer_set_step(t, s->step);
		*state = text;
	} else {
		free(text);
	}
	if (s)
		close_save(s);
	free(s);
	return st;
}

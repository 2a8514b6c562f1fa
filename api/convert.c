/* convert.c - converts a checkpoint: plans the files, then each rank writes a share of them. */
#include "api/convert.h"

#include "api/fingerprint.h"
#include "core/base/arena.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "hf/convert_dir.h"
#include "nn/program/agree.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <unistd.h>

enum { PIECE = 1 << 20 }; /* elements at a time */
enum { ROUND = 256 << 20 }; /* bytes that a rank writes before it checks for failures */

struct output_file {
	const char *name;
	char *header;
	uint64_t header_bytes, bytes; /* bytes: size of its tensors */
	uint64_t at; /* offset of its tensors among those of all files */
	size_t first, n; /* range of its tensors */
};

struct tensor_source {
	const struct tess_slice *from;
	const struct tess_mxfp4 *mxfp4; /* a weight in MXFP4 that is widened; else NULL */
};

struct conversion {
	struct tess_arena arena;
	const struct tess_convert_options *options;
	struct tess_checkpoint *from;
	struct tess_slice *tensor; /* the converted ones, in the order of the checkpoint */
	struct tensor_source *source; /* of each of them */
	struct output_file *file;
	size_t ntensors, nfiles;
	uint64_t bytes; /* size of all tensors */
	uint64_t infinite; /* values that became infinite on this rank, the first in this tensor */
	const char *first_infinite;
	void *in, *out; /* [PIECE] elements; in: f64 too */
	float *middle;
	char path[PATH_MAX], part[PATH_MAX]; /* the result, and the directory before its rename */
};

/* ---- plan ------------------------------------------------------------------------------------ */

/* Returns whether a tensor keeps its dtype: a router does, as in transformers. */
static bool is_kept(const char *name)
{
	static const char end[] = "e_score_correction_bias";
	size_t len = strlen(name);

	return len >= sizeof end - 1 && !strcmp(name + len - (sizeof end - 1), end);
}

static bool is_float(const struct tess_slice *s)
{
	return s->dtype == TESS_F64 || s->dtype == TESS_F32 || s->dtype == TESS_BF16 ||
	       s->dtype == TESS_F16;
}

/* Adds a weight in MXFP4 as transformers dequantizes it: [experts, inputs, outputs]. */
static tess_status place_mxfp4(struct conversion *c, const struct tess_mxfp4 *w)
{
	const int64_t *shape = w->scales->shape;
	size_t len = strlen(w->scales->name) - strlen(TESS_MXFP4_SCALES);
	struct tess_slice *to = &c->tensor[c->ntensors];
	int64_t *widened = TESS_NEW(&c->arena, int64_t, 3);

	*to = (struct tess_slice){ .name = tess_arena_copy(&c->arena, w->scales->name, len),
		                   .dtype = c->options->dtype,
		                   .ndim = 3,
		                   .shape = widened };
	if (!widened || !to->name)
		return TESS_ENOMEM;
	widened[0] = shape[0];
	widened[1] = shape[2] * TESS_MXFP4_ELEMENTS;
	widened[2] = shape[1];
	to->bytes = w->blocks->bytes * 2 * tess_width(to->dtype);
	c->source[c->ntensors++] = (struct tensor_source){ w->blocks, w };
	return TESS_OK;
}

static tess_status place_tensor(struct conversion *c, size_t i)
{
	const struct tess_slice *s = tess_checkpoint_at(c->from, i);
	const struct tess_mxfp4 *w =
		c->options->dtype ? tess_checkpoint_get_mxfp4(c->from, i) : NULL;
	bool changes = c->options->dtype && is_float(s) && !is_kept(s->name);
	struct tess_slice *to = &c->tensor[c->ntensors];

	if (w)
		return s == w->blocks ? place_mxfp4(c, w) : TESS_OK;
	if (c->options->dtype && *s->type == 'F' && !is_float(s))
		return tess_fail(
			TESS_ENOTSUP,
			"%s: tensor %s: its values are packed as %s; " TESS_UNPACKED_WEIGHTS,
			tess_checkpoint_dir(c->from), s->name, s->type);
	*to = *s;
	to->data = NULL;
	if (changes) {
		to->dtype = c->options->dtype;
		to->bytes = s->bytes / tess_width(s->dtype) * tess_width(to->dtype);
	}
	c->source[c->ntensors++] = (struct tensor_source){ s, NULL };
	return TESS_OK;
}

/* Divides the tensors into files, in their order. */
static tess_status divide_tensors(struct conversion *c)
{
	uint64_t most = c->options->file_bytes;
	struct output_file *f = NULL;

	c->file = TESS_NEW(&c->arena, struct output_file, c->ntensors + 1);
	if (!c->file)
		return TESS_ENOMEM;
	for (size_t i = 0; i < c->ntensors; i++) {
		uint64_t bytes = c->tensor[i].bytes;

		if (!f || (f->bytes && (bytes > most || f->bytes > most - bytes))) {
			f = &c->file[c->nfiles++];
			f->first = i;
		}
		f->bytes += bytes;
		f->n++;
	}
	return TESS_OK;
}

static tess_status lay_out_file(struct conversion *c, struct output_file *f)
{
	int number = (int)(f - c->file) + 1;

	f->at = c->bytes;
	c->bytes += f->bytes;
	f->name = c->nfiles == 1 ? "model.safetensors"
	                         : tess_arena_format(&c->arena, "model-%05d-of-%05d.safetensors",
	                                             number, (int)c->nfiles);
	return f->name ? tess_safetensors_layout(f->name, (int32_t)f->n, &c->tensor[f->first],
	                                         &f->header, &f->header_bytes)
	               : TESS_ENOMEM;
}

static tess_status plan_files(struct conversion *c)
{
	const char *lost = tess_checkpoint_find_unlisted(c->from);
	size_t n = tess_checkpoint_count(c->from);
	tess_status st = TESS_OK;

	if (tess_checkpoint_config(c->from)->text_part)
		return tess_fail(
			TESS_ENOTSUP,
			"%s: only the text part of this model is read, and its other parts "
			"would be lost; convert it with the library that made it",
			tess_checkpoint_dir(c->from));
	if (lost)
		return tess_fail(TESS_EINVAL,
		                 "%s: model.safetensors.index.json does not list tensor %.200s of "
		                 "its parts, which would be lost; list it, or remove it from there",
		                 tess_checkpoint_dir(c->from), lost);
	c->tensor = TESS_NEW(&c->arena, struct tess_slice, n + 1);
	c->source = TESS_NEW(&c->arena, struct tensor_source, n + 1);
	if (!c->tensor || !c->source)
		return TESS_ENOMEM;
	for (size_t i = 0; i < n && !st; i++)
		st = place_tensor(c, i);
	if (!st)
		st = divide_tensors(c);
	for (size_t i = 0; i < c->nfiles && !st; i++)
		st = lay_out_file(c, &c->file[i]);
	return st;
}

static tess_status open_conversion(struct conversion *c, const char *dir, const char *out, bool run)
{
	int32_t how = run ? TESS_CHECKPOINT_WHOLE : TESS_CHECKPOINT_HEADERS;
	tess_status st = tess_checkpoint_open(dir, how, &c->from);

	if (!st)
		st = tess_convert_find_output(dir, out, c->path);
	if (!st)
		st = plan_files(c);
	if (st || !run)
		return st;
	c->in = malloc(PIECE * sizeof(double));
	c->out = malloc(PIECE * sizeof(float));
	c->middle = malloc(PIECE * sizeof(float));
	return c->in && c->out && c->middle ? TESS_OK
	                                    : tess_fail(TESS_ENOMEM, "%s: out of memory", out);
}

static void close_conversion(struct conversion *c)
{
	for (size_t i = 0; i < c->nfiles; i++)
		free(c->file[i].header);
	free(c->in);
	free(c->out);
	free(c->middle);
	tess_checkpoint_close(c->from);
	tess_arena_free(&c->arena);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Converts values to f32; returns how many became infinite. */
static uint64_t load_values(int32_t dtype, const void *from, size_t n, float *to)
{
	const uint16_t *half = from;
	const double *wide = from;
	uint64_t infinite = 0;

	for (size_t i = 0; i < n && dtype == TESS_F64; i++) {
		to[i] = (float)wide[i];
		infinite += isinf(to[i]) && !isinf(wide[i]);
	}
	for (size_t i = 0; i < n && dtype == TESS_BF16; i++)
		to[i] = tess_bf16_load(half[i]);
	for (size_t i = 0; i < n && dtype == TESS_F16; i++)
		to[i] = tess_f16_load(half[i]);
	if (dtype == TESS_F32)
		memcpy(to, from, n * sizeof *to);
	return infinite;
}

static uint64_t round_values(int32_t dtype, const float *from, size_t n, void *to)
{
	uint16_t *half = to;
	uint64_t infinite = 0;

	for (size_t i = 0; i < n && dtype == TESS_BF16; i++) {
		half[i] = tess_bf16_round(from[i]);
		infinite += (half[i] & 0x7fff) == 0x7f80 && !isinf(from[i]);
	}
	for (size_t i = 0; i < n && dtype == TESS_F16; i++) {
		half[i] = tess_f16_round(from[i]);
		infinite += (half[i] & 0x7fff) == 0x7c00 && !isinf(from[i]);
	}
	if (dtype == TESS_F32)
		memcpy(to, from, n * sizeof *from);
	return infinite;
}

/* ---- writing --------------------------------------------------------------------------------- */

static tess_status fail_output(const struct conversion *c, const char *name)
{
	return tess_fail(TESS_EIO, "%s/%s: cannot be written: %s", c->path, name, strerror(errno));
}

/* Opens a file of the result; -1, with errno, on failure. */
static int open_output_file(const struct conversion *c, const struct output_file *f)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof path, "%s/%s", c->part, f->name);
	return open(path, O_WRONLY | O_CLOEXEC);
}

/* Returns the size of an indivisible unit: one converted element, or one copied byte. */
static uint64_t get_unit_bytes(const struct tess_slice *to)
{
	return to->dtype ? tess_width(to->dtype) : 1;
}

/* Reads elements [first, first + n) of tensor i as f32 to `middle`; *infinite: new infinities. */
static tess_status read_values(struct conversion *c, size_t i, uint64_t first, uint64_t n,
                               uint64_t *infinite)
{
	const struct tess_slice *from = c->source[i].from;
	uint64_t width = tess_width(from->dtype);
	tess_status st;

	*infinite = 0;
	if (c->source[i].mxfp4)
		return tess_mxfp4_widen(c->source[i].mxfp4, first, n, c->middle);
	st = tess_checkpoint_read(c->from, from->name, first * width, n * width, c->in);
	if (from->data)
		tess_checkpoint_drop(c->from, (const char *)from->data + first * width, n * width);
	if (!st)
		*infinite = load_values(from->dtype, c->in, n, c->middle);
	return st;
}

/* Reads bytes [lo, hi) of the converted tensor i, complete units, to `out`. */
static tess_status convert_piece(struct conversion *c, size_t i, uint64_t lo, uint64_t hi)
{
	const struct tess_slice *to = &c->tensor[i];
	uint64_t width = tess_width(to->dtype), n = (hi - lo) / width, infinite;
	tess_status st = read_values(c, i, lo / width, n, &infinite);

	if (st)
		return st;
	infinite += round_values(to->dtype, c->middle, n, c->out);
	if (infinite && !c->infinite)
		c->first_infinite = to->name;
	c->infinite += infinite;
	return st;
}

/* Writes bytes [lo, hi) of a tensor, complete units. */
static tess_status write_tensor_piece(struct conversion *c, const struct output_file *f, int fd,
                                      size_t i, uint64_t lo, uint64_t hi)
{
	const struct tess_slice *from = c->source[i].from, *to = &c->tensor[i];
	bool same = !c->source[i].mxfp4 && from->dtype == to->dtype;
	tess_status st;

	if (same) {
		st = tess_checkpoint_read(c->from, from->name, lo, hi - lo, c->in);
		if (from->data)
			tess_checkpoint_drop(c->from, (const char *)from->data + lo, hi - lo);
	} else {
		st = convert_piece(c, i, lo, hi);
	}
	if (!st &&
	    !tess_file_write(fd, same ? c->in : c->out, hi - lo, f->header_bytes + to->begin + lo))
		st = fail_output(c, f->name);
	if (!st && c->options->progress)
		st = c->options->progress(c->options->self, hi - lo, c->bytes);
	return st;
}

/* Writes the part of a tensor in bytes [lo, hi) of all tensors; a cut in a unit moves up. */
static tess_status write_tensor(struct conversion *c, const struct output_file *f, int fd, size_t i,
                                uint64_t lo, uint64_t hi)
{
	const struct tess_slice *t = &c->tensor[i];
	uint64_t unit = get_unit_bytes(t), start = f->at + t->begin;
	uint64_t most = PIECE * unit;
	uint64_t a = lo > start ? lo - start : 0, b = hi > start ? hi - start : 0;
	tess_status st = TESS_OK;

	a = a < t->bytes ? (a + unit - 1) / unit * unit : t->bytes;
	b = b < t->bytes ? (b + unit - 1) / unit * unit : t->bytes;
	while (a < b && !st) {
		uint64_t n = b - a < most ? b - a : most;

		st = write_tensor_piece(c, f, fd, i, a, a + n);
		a += n;
	}
	return st;
}

static tess_status write_range(struct conversion *c, uint64_t lo, uint64_t hi)
{
	tess_status st = TESS_OK;

	for (const struct output_file *f = c->file; f < c->file + c->nfiles && !st; f++) {
		int fd;

		if (f->at >= hi || f->at + f->bytes <= lo)
			continue;
		fd = open_output_file(c, f);
		if (fd < 0)
			return tess_fail(TESS_EIO,
			                 "%s/%s: %s; all ranks need the file system of rank 0",
			                 c->part, f->name, strerror(errno));
		for (size_t i = 0; i < f->n && !st; i++)
			st = write_tensor(c, f, fd, f->first + i, lo, hi);
		if (!st && fdatasync(fd))
			st = fail_output(c, f->name);
		close(fd);
	}
	return st;
}

/* Writes part r of n of all bytes on rank r; stops soon after another rank has failed. */
static tess_status write_share(struct conversion *c, struct tess_group *g)
{
	uint64_t n = (uint64_t)tess_group_size(g), r = (uint64_t)tess_group_rank(g);
	uint64_t share = c->bytes / n + 1, end = (r + 1) * share, lo, hi;
	tess_status st = TESS_OK;

	for (uint64_t done = 0; done < share && !st; done += ROUND) {
		lo = r * share + done;
		hi = lo + ROUND < end ? lo + ROUND : end;
		st = write_range(c, lo, hi < c->bytes ? hi : c->bytes);
		st = tess_group_agree_status(g, st, "convert");
	}
	return st;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* Creates the files with their headers, and reserves disk space where possible. */
static tess_status create_files(struct conversion *c)
{
	tess_status st = tess_convert_make_part(c->path, c->part);

	for (struct output_file *f = c->file; f < c->file + c->nfiles && !st; f++)
		st = tess_convert_create_file(c->path, c->part, f->name, f->header, f->header_bytes,
		                              f->header_bytes + f->bytes);
	return st;
}

static tess_status write_weight_map(const struct conversion *c)
{
	json_t *map = json_object(), *root;
	int64_t elements = 0;
	size_t len = 0;
	char *text;
	tess_status st;

	for (const struct output_file *f = c->file; f < c->file + c->nfiles; f++)
		for (size_t i = f->first; i < f->first + f->n; i++) {
			int64_t count = 1;

			for (int32_t d = 0; d < c->tensor[i].ndim; d++)
				count *= c->tensor[i].shape[d];
			elements += count;
			tess_json_set(&map, c->tensor[i].name, json_string(f->name));
		}
	root = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters",
	                 (json_int_t)elements, "total_size", (json_int_t)c->bytes, "weight_map",
	                 map);
	text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
	json_decref(root);
	if (!text)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", c->path);
	len = strlen(text);
	text[len] = '\n'; /* in place of the terminating 0 */
	st = tess_convert_write_file(c->part, "model.safetensors.index.json", text, len + 1);
	free(text);
	return st;
}

static tess_status finish_output(const struct conversion *c)
{
	tess_status st =
		tess_convert_copy_files(tess_checkpoint_dir(c->from), c->part, c->options->dtype);

	if (!st && c->nfiles > 1)
		st = write_weight_map(c);
	return st ? st : tess_convert_rename_part(c->part, c->path);
}

/* ---- convert --------------------------------------------------------------------------------- */

static tess_status warn_infinite(const struct conversion *c, struct tess_group *g)
{
	int64_t mine = (int64_t)c->infinite, all;
	tess_status st = tess_all_reduce(g, &mine, &all, 1, TESS_I64, TESS_SUM, "convert");

	if (!st && mine)
		tess_log(TESS_WARN, "hf",
		         "%lld values of %lld are too large for the dtype and became infinite, the "
		         "first in tensor %s",
		         (long long)mine, (long long)all, c->first_infinite);
	return st;
}

static tess_status run_conversion(struct conversion *c, struct tess_group *g)
{
	bool first = tess_group_rank(g) == 0;
	tess_status st = first ? create_files(c) : TESS_OK;

	if (first)
		tess_checkpoint_log_prefix(c->from);
	st = tess_group_agree_status(g, st, "convert");
	if (!st)
		st = tess_broadcast(g, c->part, sizeof c->part, TESS_I8, 0, "convert");
	if (!st)
		st = write_share(c, g);
	if (!st)
		st = warn_infinite(c, g);
	if (!st)
		st = tess_group_agree_status(g, first ? finish_output(c) : TESS_OK, "convert");
	return st;
}

tess_status tess_convert(struct tess_world *w, const char *dir, const char *out,
                         const struct tess_convert_options *options)
{
	struct tess_group *g = tess_world_group(w);
	struct conversion *c = calloc(1, sizeof *c);
	fenv_t callers;
	tess_status st;

	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	if (c)
		c->options = options;
	st = c ? open_conversion(c, dir, out, true) : tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_checkpoint_compare(c ? c->from : NULL, g, st, "convert");
	if (!st)
		st = run_conversion(c, g);
	if (st && c && *c->part && tess_group_rank(g) == 0)
		tess_convert_remove_part(c->part);
	if (c)
		close_conversion(c);
	free(c);
	fesetenv(&callers);
	return st;
}

tess_status tess_convert_check(const char *dir, const char *out,
                               const struct tess_convert_options *options)
{
	struct conversion *c = calloc(1, sizeof *c);
	tess_status st;

	if (!c)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", out);
	c->options = options;
	st = open_conversion(c, dir, out, false);
	close_conversion(c);
	free(c);
	return st;
}

/*
 * save.c - saves a trainer: the weights as a checkpoint, the optimizer state as full tensors, which
 * fit any mesh, and training.json for the rest.
 */
#include "api/save.h"

#include "api/saving.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/checksum.h"
#include "hf/convert_dir.h"
#include "nn/program/agree.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <unistd.h>

enum { SYNC_BYTES = 64 << 20 };

/* Creates the directory and the files with their headers and space for data, on rank 0. */
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

/* Counts values that are infinite or NaN. */
static int64_t count_infinite(int32_t dtype, const void *values, int64_t n)
{
	const uint16_t *half = values, infinity = dtype == TESS_BF16 ? 0x7f80 : 0x7c00;
	const float *single = values;
	int64_t count = 0;

	for (int64_t i = 0; i < n; i++)
		count += dtype == TESS_F32 ? !isfinite(single[i]) : (half[i] & 0x7fff) >= infinity;
	return count;
}

/* Counts non-finite and impossible values that are saved. */
static void count_odd_values(struct save *s, const struct saved_tensor *t, int32_t dtype,
                             const void *values, int64_t n)
{
	if (t->what == TESS_WEIGHT && t->tensor->about.trained)
		s->infinite += count_infinite(dtype, values, n);
	s->impossible += tess_save_count_impossible(t->what, values, n);
	if (s->infinite && !s->first_infinite)
		s->first_infinite = t->name;
	if (s->impossible && !s->first_impossible)
		s->first_impossible = t->name;
}

/* Writes what this rank owns of a tensor. */
static tess_status write_runs(struct save *s, const struct saved_file *f, int32_t i, int fd,
                              uint64_t *unsynced)
{
	uint64_t begin = f->header_bytes + f->slice[i].begin, width;
	struct saved_tensor *t = &f->tensor[i];
	struct tess_checksum sum = { 0 };
	struct tess_kept_walk walk;
	struct tess_kept_run run;
	struct tess_kept kept;
	tess_status st = TESS_OK;

	tess_kept_open(s->parameters, t->tensor->weight, t->what, false, &kept);
	width = tess_width(kept.dtype);
	tess_save_begin_runs(s, t->tensor, t->what, TESS_OWNED, &walk);
	while (!st && tess_kept_walk_next(&walk, &run)) {
		for (int64_t at = 0, n; at < run.n && !st; at += n) {
			void *memory;

			n = tess_save_limit_piece(run.n - at, width);
			st = tess_kept_map(&kept, run.kept + at, &n, &memory);
			if (st)
				break;
			count_odd_values(s, t, kept.dtype, memory, n);
			tess_checksum_add(&sum, (uint64_t)(run.stored + at) * width, memory,
			                  (uint64_t)n * width);
			if (!tess_file_write(fd, memory, (uint64_t)n * width,
			                     begin + (uint64_t)(run.stored + at) * width))
				st = fail_save(s, f);
		}
		*unsynced += (uint64_t)run.n * width;
	}
	st = tess_kept_close(&kept, st);
	if (st)
		return st;
	t->sum = tess_checksum_end(&sum, f->slice[i].bytes);
	if (*unsynced >= SYNC_BYTES || i == f->n - 1) {
		if (fdatasync(fd))
			return fail_save(s, f);
		*unsynced = 0;
	}
	return TESS_OK;
}

/* Collective. After a failure of a rank, others stop at the end of their current tensor. */
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

/*
 * Warns of non-finite and impossible values that this rank has written, as tess_convert does.
 * *sound: no rank has written moments that make resuming impossible.
 */
static tess_status warn_odd_values(const struct save *s, bool *sound)
{
	int64_t mine[] = { s->infinite, s->impossible }, all[2] = { 0 };
	tess_status st = tess_all_reduce(s->parts->group, mine, all, 2, TESS_I64, TESS_SUM, "save");

	if (!st && s->infinite)
		tess_log(TESS_WARN, "hf",
		         "%s: %lld weights of %lld are infinite or NaN, the first in tensor %s; "
		         "use a lower learning rate, or, where they became too large for their "
		         "dtype, train the checkpoint in another one (tessera convert --dtype f32)",
		         s->path, (long long)s->infinite, (long long)all[0], s->first_infinite);
	if (!st && s->impossible)
		tess_log(TESS_WARN, "hf",
		         "%s: %lld moments of %lld are not finite, or are negative squares, the "
		         "first in tensor %s: it cannot be resumed, and older saves are kept; "
		         "resume from one of them with a lower learning rate",
		         s->path, (long long)s->impossible, (long long)all[1], s->first_impossible);
	*sound = !all[1];
	return st;
}

/* Lists the checksums of all tensors, by file and name; NULL: no memory. */
static json_t *list_checksums(const struct save *s)
{
	json_t *sums = json_object();
	bool good = sums != NULL;

	for (const struct saved_file *f = s->file; f < s->file + 2 && good; f++) {
		json_t *file = json_object();

		good = !json_object_set_new(sums, f->name, file);
		for (int32_t i = 0; i < f->n && good; i++)
			good = !json_object_set_new(file, f->tensor[i].name,
			                            json_sprintf("%08x", f->tensor[i].sum));
	}
	if (!good)
		json_decref(sums);
	return good ? sums : NULL;
}

/* Writes the state and renames the directory, on rank 0. */
static tess_status finish_save(const struct save *s, const char *state)
{
	char config[17];
	json_t *program = NULL, *keys;
	tess_status st = tess_save_hash_config(s->parts->source->config, config);

	if (!st)
		st = tess_json_parse("the state to save", state, strlen(state), &program);
	if (!st && !json_is_object(program)) {
		json_decref(program);
		st = tess_fail(TESS_EINVAL, "the state to save: a JSON object is needed");
	}
	if (st)
		return st;
	keys = json_pack("{s:I, s:s, s:s, s:o, s:o}", "step", (json_int_t)s->step, "config", config,
	                 "optimizer", tess_save_get_optimizer(s), "program", program, "checksums",
	                 list_checksums(s));
	st = tess_save_write_state(s->part, keys);
	json_decref(keys);
	if (!st)
		st = tess_convert_copy_files(s->parts->source->name, s->part, 0);
	return st ? st : tess_convert_rename_part(s->part, s->path);
}

tess_status tess_trainer_save(struct tess_trainer *t, const char *dir, int32_t keep,
                              const char *state)
{
	tess_status st = TESS_REQUIRE(t, dir);
	struct tess_group *g;
	struct save *s;
	bool first, sound = false;

	if (!st && keep < 0)
		st = tess_fail(TESS_EINVAL, "tess_trainer_save: %d saves are kept", (int)keep);
	if (!st)
		st = tess_trainer_settle(t);
	if (!st)
		st = tess_trainer_check_usable(t);
	if (st)
		return st;
	g = tess_trainer_get_parts(t)->group;
	first = tess_group_rank(g) == 0;
	s = calloc(1, sizeof *s);
	st = s ? tess_save_open(s, t) : tess_fail(TESS_ENOMEM, "out of memory");
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
	for (int i = 0; i < 2 && !st; i++)
		st = tess_save_combine_checksums(s, &s->file[i]);
	if (!st)
		st = warn_odd_values(s, &sound);
	if (!st)
		st = tess_group_agree_status(
			g, first ? finish_save(s, state ? state : "{}") : TESS_OK, "save");
	if (first && s && st && *s->part)
		tess_convert_remove_part(s->part);
	if (first && !st)
		tess_save_remove_old(dir, s->path, s->parts->source->name, sound ? keep : 0);
	if (s)
		tess_save_close(s);
	free(s);
	return st;
}

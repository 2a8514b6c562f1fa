/* save_load.c - reads a save into a trainer on any mesh. */
#include "api/fingerprint.h"
#include "api/saving.h"
#include "core/base/json.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/checksum.h"
#include "nn/program/agree.h"
#include "nn/weights/tied.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

/* Reads training.json; *state is the program's part of it. Free *state. */
static tess_status read_saved_state(struct save *s, char **state)
{
	const char *saved, *optimizer;
	char config[17];
	tess_status st = tess_save_read_state(s->path, &s->state);

	if (!st)
		st = tess_save_hash_config(s->parts->source->config, config);
	if (st)
		return st;
	s->step = json_integer_value(json_object_get(s->state, "step"));
	saved = json_string_value(json_object_get(s->state, "config"));
	optimizer = json_string_value(json_object_get(s->state, "optimizer"));
	if (strcmp(saved, config) != 0)
		return tess_fail(TESS_EINVAL,
		                 "%s: was saved from another model than %s: their config.json "
		                 "differ; resume with the model that it began with",
		                 s->path, s->parts->source->name);
	if (strcmp(optimizer, tess_save_get_optimizer(s)) != 0)
		return tess_fail(TESS_EINVAL, "%s: was saved with the optimizer %s, and this is %s",
		                 s->path, optimizer, tess_save_get_optimizer(s));
	*state = json_dumps(json_object_get(s->state, "program"), JSON_COMPACT);
	return *state ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", s->path);
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

struct read_share { /* this rank's share of the checksum of a tensor that is read */
	struct tess_kept_walk walk;
	struct tess_kept_run run; /* the next range; n 0: none */
	struct tess_checksum sum;
	uint64_t width;
};

/* Adds elements [first, first + n) of the tensor, which have been read. */
static void add_to_share(struct read_share *s, int64_t first, int64_t n, const char *bytes)
{
	int64_t end = first + n;

	while (s->run.n && s->run.stored < end) {
		int64_t run_end = s->run.stored + s->run.n;
		int64_t lo = s->run.stored > first ? s->run.stored : first;
		int64_t hi = run_end < end ? run_end : end;

		if (lo < hi)
			tess_checksum_add(&s->sum, (uint64_t)lo * s->width,
			                  bytes + (uint64_t)(lo - first) * s->width,
			                  (uint64_t)(hi - lo) * s->width);
		if (run_end > end)
			return;
		if (!tess_kept_walk_next(&s->walk, &s->run))
			s->run.n = 0;
	}
}

static tess_status check_moments(const struct tess_safetensors *in, const struct saved_tensor *t,
                                 const void *values, int64_t n)
{
	return tess_save_count_impossible(t->what, values, n)
	               ? tess_fail(TESS_EINVAL,
	                           "%s: tensor %s: a moment is not finite, or is a negative "
	                           "square; resume from an earlier save",
	                           tess_safetensors_path(in), t->name)
	               : TESS_OK;
}

/* Reads the ranges of a tensor that this rank holds. */
static tess_status read_runs(const struct save *s, struct saved_tensor *t,
                             const struct tess_safetensors *in, const struct tess_slice *from)
{
	struct tess_kept_walk walk;
	struct tess_kept_run run;
	struct tess_kept kept;
	struct read_share share = { 0 };
	tess_status st = TESS_OK;

	tess_kept_open(s->parameters, t->tensor->weight, t->what, true, &kept);
	share.width = tess_width(kept.dtype);
	tess_save_begin_runs(s, t->tensor, t->what, TESS_OWNED_IN_COPY, &share.walk);
	if (!tess_kept_walk_next(&share.walk, &share.run))
		share.run.n = 0;
	tess_save_begin_runs(s, t->tensor, t->what, TESS_HELD, &walk);
	while (!st && tess_kept_walk_next(&walk, &run))
		for (int64_t at = 0, n; at < run.n && !st; at += n) {
			void *memory;

			n = tess_save_limit_piece(run.n - at, share.width);
			st = tess_kept_map(&kept, run.kept + at, &n, &memory);
			if (!st)
				st = tess_safetensors_read(
					in, from, (uint64_t)(run.stored + at) * share.width,
					(uint64_t)n * share.width, memory);
			if (!st)
				st = check_moments(in, t, memory, n);
			if (!st)
				add_to_share(&share, run.stored + at, n, memory);
		}
	t->sum = tess_checksum_end(&share.sum, from->bytes);
	return tess_kept_close(&kept, st);
}

static tess_status read_saved_tensor(const struct save *s, const struct saved_file *f, int32_t i,
                                     const struct tess_safetensors *in)
{
	const struct tess_slice *from = tess_safetensors_find(in, f->slice[i].name);
	tess_status st = check_saved_tensor(in, &f->slice[i], from);

	if (!st)
		st = read_runs(s, &f->tensor[i], in, from);
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
	static const char *const files[] = { TESS_SAVED_STATE };
	tess_status st = TESS_REQUIRE(t, path, state);
	char *text = NULL;
	struct save *s;

	if (!st)
		st = tess_trainer_settle(t);
	if (st)
		return st;
	s = calloc(1, sizeof *s);
	st = s ? tess_save_open(s, t) : tess_fail(TESS_ENOMEM, "out of memory");
	if (!st && snprintf(s->path, sizeof s->path, "%s", path) >= PATH_MAX)
		st = tess_fail(TESS_EINVAL, "%s: the path is too long", path);
	/* the state has a checksum of each tensor, so equal states are of equal saves */
	st = tess_files_compare(path, files, 1, tess_trainer_get_parts(t)->group, st, "resume");
	if (!st)
		st = read_saved_state(s, &text);
	for (int i = 0; i < 2 && !st; i++)
		st = read_saved_file(s, &s->file[i]);
	st = tess_group_agree_status(tess_trainer_get_parts(t)->group, st, "resume");
	for (int i = 0; i < 2 && !st; i++)
		st = tess_save_combine_checksums(s, &s->file[i]);
	st = tess_group_agree_status(tess_trainer_get_parts(t)->group, st, "resume");
	if (!st)
		st = tess_tied_copy_tables(tess_trainer_get_parameters(t),
		                           tess_trainer_get_parts(t)->along);
	if (!st) {
		tess_trainer_set_step(t, s->step);
		*state = text;
	} else {
		free(text);
	}
	if (s)
		tess_save_close(s);
	free(s);
	return st;
}

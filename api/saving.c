#include "api/saving.h"

#include "core/base/status.h"
#include "nn/program/agree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUMMED_BYTES = 1 << 20, SUMS_AT_ONCE = 4096 };

static const struct {
	const char *prefix;
	int32_t what;
} saved_kinds[] = { { "", TESS_WEIGHT },
	            { "master.", TESS_MASTER },
	            { "m.", TESS_MOMENT1 },
	            { "v.", TESS_MOMENT2 } };
enum { KINDS = sizeof saved_kinds / sizeof *saved_kinds };

/* ---- files and tensors ----------------------------------------------------------------------- */

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

/* Plans a file by the tensors of the checkpoint alone: equal on all ranks and for any mesh. */
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

tess_status tess_save_open(struct save *s, struct tess_trainer *t)
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

void tess_save_close(struct save *s)
{
	for (struct saved_file *f = s->file; f < s->file + 2; f++) {
		for (int32_t i = 0; i < f->n; i++)
			free(f->tensor[i].name);
		free(f->tensor);
		free(f->slice);
		free(f->header);
	}
	json_decref(s->state);
}

static int32_t get_storage(int32_t what)
{
	return what == TESS_WEIGHT ? TESS_REST : TESS_STATE;
}

void tess_save_begin_runs(const struct save *s, const struct tess_stored_tensor *t, int32_t what,
                          int32_t owned, struct tess_kept_walk *walk)
{
	tess_kept_walk_begin(walk, s->parameters->program, t, s->parameters->rank,
	                     get_storage(what), owned);
}

/* ---- checksums ------------------------------------------------------------------------------- */

/*
 * Combines the ranks' shares of one tensor; copies: room for one sum per rank. Saving uses the
 * first copy. Reading compares every copy, since ranks may read the file through different nodes.
 */
static tess_status combine_checksum(const struct save *s, const struct saved_file *f, int32_t i,
                                    const uint32_t *shares, int32_t stride, uint32_t *copies)
{
	struct saved_tensor *t = &f->tensor[i];
	int32_t nranks = tess_group_size(s->parts->group), ncopies = 0;
	tess_status st = TESS_OK;

	memset(copies, 0, (size_t)nranks * sizeof *copies);
	for (int32_t r = 0; r < nranks; r++) {
		int32_t copy = tess_weight_get_copy(s->parameters->program, t->tensor->weight, r,
		                                    get_storage(t->what));

		copies[copy] ^= shares[(int64_t)r * stride];
		ncopies = copy < ncopies ? ncopies : copy + 1;
	}
	t->sum = copies[0];
	for (int32_t k = 0; k < ncopies && s->state && !st; k++)
		if (!k || copies[k] != copies[0])
			st = tess_save_compare_checksum(s->path, s->state, f->name, t->name,
			                                copies[k]);
	return st;
}

tess_status tess_save_combine_checksums(const struct save *s, const struct saved_file *f)
{
	int32_t nranks = tess_group_size(s->parts->group);
	uint32_t mine[SUMS_AT_ONCE];
	uint32_t *all = calloc((size_t)nranks * (SUMS_AT_ONCE + 1), sizeof *all);
	tess_status st = all ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", s->path);

	st = tess_group_agree_status(s->parts->group, st, "checksums");
	for (int32_t at = 0, n; at < f->n && !st; at += n) {
		n = f->n - at < SUMS_AT_ONCE ? f->n - at : SUMS_AT_ONCE;
		for (int32_t i = 0; i < n; i++)
			mine[i] = f->tensor[at + i].sum;
		st = tess_all_gather(s->parts->group, mine, all, (uint64_t)n, TESS_I32,
		                     "checksums");
		for (int32_t i = 0; i < n && !st; i++)
			st = combine_checksum(s, f, at + i, all + i, n,
			                      all + (size_t)nranks * SUMS_AT_ONCE);
	}
	free(all);
	return st;
}

/* ---- values --------------------------------------------------------------------------------- */

int64_t tess_save_count_impossible(int32_t what, const void *values, int64_t n)
{
	const float *moment = values;
	int64_t count = 0;

	if (what != TESS_MOMENT1 && what != TESS_MOMENT2)
		return 0;
	for (int64_t i = 0; i < n; i++)
		count += !isfinite(moment[i]) || (what == TESS_MOMENT2 && moment[i] < 0);
	return count;
}

int64_t tess_save_limit_piece(int64_t n, uint64_t width)
{
	return n < SUMMED_BYTES / (int64_t)width ? n : SUMMED_BYTES / (int64_t)width;
}

const char *tess_save_get_optimizer(const struct save *s)
{
	return tess_trainer_get_optimizer(s->trainer)->kind == TESS_SGD ? "sgd" : "adamw";
}

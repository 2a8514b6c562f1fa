#include "generate.h"

#include "core/base/status.h"
#include "nn/agree.h"
#include "nn/check.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct run {
	struct tess_runner *s;
	struct tess_group *group;
	const struct tess_generate *how;
	struct tess_sampler *sampler; /* rank 0 only */
	int32_t *seen; /* prompt and text so far */
	int64_t nseen;
	tess_status failed; /* of a callback; told to all with the next id */
	char sentence[1024];
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of rank 0 alone: the others are in the next call, and hear it there. */
static void keep_failure(struct run *r, tess_status st)
{
	r->failed = st;
	if (st)
		snprintf(r->sentence, sizeof r->sentence, "%s", tess_error());
}

/* Rank 0's failure, on all ranks. */
static tess_status share_failure(struct run *r)
{
	if (r->failed)
		tess_fail(r->failed, "%s", r->sentence);
	return tess_agree(r->group, r->failed, "generate");
}

/* One step; with `all` its rows go to whoever asked. *last: the row that chooses the next id. */
static tess_status step(struct run *r, const int32_t *ids, int64_t n, const float **last)
{
	const float *rows;
	tess_status st = tess_runner_step(r->s, ids, n, r->how->all, &rows);

	if (st)
		return st;
	*last = r->how->all ? rows + (n - 1) * tess_runner_vocabulary(r->s) : rows;
	if (r->how->all && r->how->logits && r->sampler && !r->failed)
		keep_failure(r, r->how->logits(r->how->self, rows, n));
	return TESS_OK;
}

static tess_status prefill(struct run *r, const float **last)
{
	int64_t n = r->how->nprompt, chunk = r->how->chunk > 0 ? r->how->chunk : n;
	tess_status st = TESS_OK;

	for (int64_t at = 0; at < n && !st; at += chunk)
		st = step(r, r->how->prompt + at, n - at < chunk ? n - at : chunk, last);
	return st;
}

static bool stops(const struct tess_generate *how, int32_t id)
{
	for (int64_t i = 0; i < how->nstop; i++)
		if (how->stop[i] == id)
			return true;
	return false;
}

/* They would choose the first id, or any. */
static tess_status check_logits(const struct run *r, const float *logits)
{
	int64_t n = tess_runner_vocabulary(r->s), at = tess_find_not_finite(logits, n), odd = 0;

	for (int64_t i = at; at >= 0 && i < n; i++)
		odd += !isfinite(logits[i]);
	if (at < 0)
		return TESS_OK;
	return tess_fail(
		TESS_EINVAL,
		"%lld of the %lld logits that choose an id at position %lld are not "
		"finite (id %lld: %s); a weight of the checkpoint is, or a value grows too "
		"large: --check or TESSERA_CHECK=1 names the first module where that is so",
		(long long)odd, (long long)n, (long long)r->nseen, (long long)at,
		isnan(logits[at]) ? "NaN" : "Inf");
}

/* On rank 0: the id, and TESS_FINISH_... where it is the last. */
static tess_status draw(struct run *r, const float *logits, int64_t step_no, int32_t *id,
                        int32_t *finish)
{
	tess_status st = check_logits(r, logits);
	int enough = 0;

	if (st)
		return st;
	*id = tess_sampler_draw(r->sampler, &r->how->sampling, logits, r->seen, r->nseen,
	                        (uint64_t)step_no);
	if (r->how->chosen)
		enough = r->how->chosen(r->how->self, *id, logits);
	if (enough < 0)
		return enough;
	*finish = enough                              ? TESS_FINISH_INTERRUPT
	          : stops(r->how, *id)                ? TESS_FINISH_STOP
	          : step_no + 1 == r->how->max_tokens ? TESS_FINISH_LENGTH
	                                              : 0;
	return TESS_OK;
}

/* Rank 0 chooses and says whether it was the last, or failed; the others hear it. */
static tess_status choose(struct run *r, const float *logits, int64_t step_no, int32_t *id,
                          int32_t *finish)
{
	int32_t word[3] = { 0, 0, 0 };
	tess_status st;

	if (r->sampler && !r->failed)
		keep_failure(r, draw(r, logits, step_no, &word[0], &word[1]));
	word[2] = r->failed != 0;
	st = tess_broadcast(r->group, word, 3, TESS_I32, 0, "generate:next");
	if (!st && word[2])
		st = share_failure(r);
	if (st)
		return st;
	*id = word[0];
	*finish = word[1];
	r->seen[r->nseen++] = word[0];
	return TESS_OK;
}

static tess_status generate(struct run *r, struct tess_generated *out)
{
	struct tess_generated done = { 0 };
	double start = now();
	const float *logits = NULL;
	int32_t id;
	tess_status st = prefill(r, &logits);

	done.prefill = now() - start;
	start = now();
	if (!st && !r->how->max_tokens) {
		done.finish = TESS_FINISH_LENGTH;
		st = share_failure(r);
	}
	while (!st && !done.finish) {
		if (done.ntokens)
			st = step(r, &id, 1, &logits);
		if (!st)
			st = choose(r, logits, done.ntokens, &id, &done.finish);
		done.ntokens++;
	}
	done.decode = now() - start;
	if (!st)
		*out = done;
	return st;
}

static tess_status open_and_generate(struct tess_runner *s, const struct tess_generate *how,
                                     struct tess_generated *out)
{
	struct run r = { .s = s, .group = tess_runner_group(s), .how = how };
	int64_t room = how->nprompt + how->max_tokens;
	tess_status st;

	if (how->nprompt < 1)
		return tess_fail(TESS_EINVAL, "nothing to start from: the prompt has no ids");
	st = tess_sampling_check(&how->sampling);
	if (!st)
		st = tess_runner_reserve(s, room);
	if (!st && tess_group_rank(r.group) == 0)
		st = tess_sampler_new(tess_runner_vocabulary(s), &r.sampler);
	r.seen = st ? NULL : malloc((size_t)(room + 1) * sizeof *r.seen);
	if (!st && !r.seen)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_agree(r.group, st, "generate");
	if (!st) {
		memcpy(r.seen, how->prompt, (size_t)how->nprompt * sizeof *r.seen);
		r.nseen = how->nprompt;
		st = generate(&r, out);
	}
	free(r.seen);
	tess_sampler_free(r.sampler);
	return st;
}

/* Steps and samples in the default floating-point state, whatever the caller's is. */
tess_status tess_generate_run(struct tess_runner *s, const struct tess_generate *how,
                              struct tess_generated *out)
{
	fenv_t callers;
	tess_status st;

	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = open_and_generate(s, how, out);
	fesetenv(&callers);
	return st;
}

#include "nn/generate.h"

#include "core/base/clock.h"
#include "core/base/status.h"
#include "nn/agree.h"
#include "nn/check.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512 }; /* rows of a step, unless the request has another number */

struct generation {
	struct tess_runner *runner;
	int32_t slot;
	struct tess_group *group;
	const struct tess_generate_request *request;
	struct tess_sampler *sampler; /* rank 0 only */
	int32_t *seen; /* prompt and text so far */
	int64_t nseen;
	tess_status failed; /* of a callback; sent with the next id */
	char sentence[1024];
};

/* On rank 0: the other ranks are in the next call already, and get the failure with it. */
static void store_generate_failure(struct generation *r, tess_status st)
{
	r->failed = st;
	if (st)
		snprintf(r->sentence, sizeof r->sentence, "%s", tess_error());
}

/* Makes rank 0's failure a failure of all ranks. */
static tess_status share_generate_failure(struct generation *r)
{
	if (r->failed)
		tess_fail(r->failed, "%s", r->sentence);
	return tess_group_agree_status(r->group, r->failed, "generate");
}

/* One step; with `all` its rows go to on_logits. *last: on rank 0 the last row of `nselected`. */
static tess_status run_generate_step(struct generation *r, const int32_t *ids, int64_t n,
                                     int64_t nselected, const float **last)
{
	struct tess_rows one = { r->slot, n, r->request->all ? n : nselected, ids };
	const float *rows;
	tess_status st = tess_runner_step(r->runner, &one, 1, 0, &rows);

	if (st)
		return st;
	if (rows)
		*last = rows + (one.nselected - 1) * tess_runner_vocabulary(r->runner);
	if (r->request->all && r->request->on_logits && r->sampler && !r->failed)
		store_generate_failure(r, r->request->on_logits(r->request->self, rows, n));
	return TESS_OK;
}

static tess_status prefill_prompt(struct generation *r, const float **last)
{
	int64_t n = r->request->nprompt, chunk = r->request->chunk > 0 ? r->request->chunk : CHUNK;
	tess_status st = TESS_OK;

	for (int64_t at = 0; at < n && !st; at += chunk)
		st = run_generate_step(r, r->request->prompt + at, n - at < chunk ? n - at : chunk,
		                       n - at <= chunk, last);
	return st;
}

static bool is_stop_id(const struct tess_generate_request *request, int32_t id)
{
	for (int64_t i = 0; i < request->nstop; i++)
		if (request->stop[i] == id)
			return true;
	return false;
}

/* NaN or Inf would choose an arbitrary id. */
static tess_status check_logits(const struct generation *r, const float *logits)
{
	int64_t n = tess_runner_vocabulary(r->runner), at = tess_logits_find_not_finite(logits, n),
		odd = 0;

	for (int64_t i = at; at >= 0 && i < n; i++)
		odd += !isfinite(logits[i]);
	if (at < 0)
		return TESS_OK;
	return tess_fail(
		TESS_EINVAL,
		"%lld of the %lld logits that choose an id at position %lld are not "
		"finite (id %lld: %s); a weight of the checkpoint is not finite, or a value "
		"overflows: "
		"--check or TESSERA_CHECK=1 names the first module where that happens",
		(long long)odd, (long long)n, (long long)r->nseen, (long long)at,
		isnan(logits[at]) ? "NaN" : "Inf");
}

/* On rank 0: the id, and TESS_FINISH_... where it is the last. */
static tess_status draw_next_id(struct generation *r, const float *logits, int64_t step_no,
                                int32_t *id, int32_t *finish)
{
	tess_status st = check_logits(r, logits);
	int enough = 0;

	if (st)
		return st;
	*id = tess_sampler_draw(r->sampler, &r->request->sampling, logits, r->seen, r->nseen,
	                        (uint64_t)step_no);
	if (r->request->on_token)
		enough = r->request->on_token(r->request->self, *id, logits);
	if (enough < 0)
		return enough;
	*finish = enough                                  ? TESS_FINISH_INTERRUPT
	          : is_stop_id(r->request, *id)           ? TESS_FINISH_STOP
	          : step_no + 1 == r->request->max_tokens ? TESS_FINISH_LENGTH
	                                                  : 0;
	return TESS_OK;
}

/* Rank 0 chooses and broadcasts the id, and whether it is the last or rank 0 failed. */
static tess_status choose_next_id(struct generation *r, const float *logits, int64_t step_no,
                                  int32_t *id, int32_t *finish)
{
	int32_t word[3] = { 0, 0, 0 };
	tess_status st;

	if (r->sampler && !r->failed)
		store_generate_failure(r, draw_next_id(r, logits, step_no, &word[0], &word[1]));
	word[2] = r->failed != 0;
	st = tess_broadcast(r->group, word, 3, TESS_I32, 0, "generate:next");
	if (!st && word[2])
		st = share_generate_failure(r);
	if (st)
		return st;
	*id = word[0];
	*finish = word[1];
	r->seen[r->nseen++] = word[0];
	return TESS_OK;
}

static tess_status generate_tokens(struct generation *r, struct tess_generate_result *out)
{
	struct tess_generate_result result = { 0 };
	int64_t start = tess_now();
	const float *logits = NULL;
	int32_t id;
	tess_status st = prefill_prompt(r, &logits);

	result.prefill = 1e-9 * (double)(tess_now() - start);
	start = tess_now();
	if (!st && !r->request->max_tokens) {
		result.finish = TESS_FINISH_LENGTH;
		st = share_generate_failure(r);
	}
	while (!st && !result.finish) {
		if (result.ntokens)
			st = run_generate_step(r, &id, 1, 1, &logits);
		if (!st)
			st = choose_next_id(r, logits, result.ntokens, &id, &result.finish);
		result.ntokens++;
	}
	result.decode = 1e-9 * (double)(tess_now() - start);
	if (!st)
		*out = result;
	return st;
}

static tess_status open_and_generate(struct tess_runner *s, const struct tess_generate_request *how,
                                     struct tess_generate_result *out)
{
	struct generation r = { .runner = s, .group = tess_runner_group(s), .request = how };
	int64_t capacity = how->nprompt + how->max_tokens;
	tess_status st;

	if (how->nprompt < 1)
		return tess_fail(TESS_EINVAL, "the prompt is empty: it has no ids");
	st = tess_sampling_check(&how->sampling);
	if (!st && tess_group_rank(r.group) == 0)
		st = tess_sampler_new(tess_runner_vocabulary(s), &r.sampler);
	r.seen = st ? NULL : malloc((size_t)(capacity + 1) * sizeof *r.seen);
	if (!st && !r.seen)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_group_agree_status(r.group, st, "generate");
	if (!st)
		st = tess_runner_open_slot(s, &r.slot);
	if (!st) {
		memcpy(r.seen, how->prompt, (size_t)how->nprompt * sizeof *r.seen);
		r.nseen = how->nprompt;
		st = generate_tokens(&r, out);
		tess_runner_close_slot(s, r.slot);
	}
	free(r.seen);
	tess_sampler_free(r.sampler);
	return st;
}

/* Runs in the default floating-point state, whatever the caller has set. */
tess_status tess_generate_run(struct tess_runner *runner,
                              const struct tess_generate_request *request,
                              struct tess_generate_result *out)
{
	fenv_t callers;
	tess_status st;

	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = open_and_generate(runner, request, out);
	fesetenv(&callers);
	return st;
}

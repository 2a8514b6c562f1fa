#include "nn/generate/generate_state.h"

#include "core/base/clock.h"
#include "core/base/status.h"
#include "nn/program/agree.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOGITS_ROWS = 512 };

/* ---- callbacks, on rank 0 -------------------------------------------------------------------- */

/* Keeps a failure, which the other ranks, already in the next call, get with that call. */
static void store_generate_failure(struct tess_generate_state *g, tess_status st)
{
	if (!st || g->failed)
		return;
	g->failed = st;
	snprintf(g->sentence, sizeof g->sentence, "%s", tess_error());
}

bool tess_generate_take_answer(struct tess_generate_state *g, int answer)
{
	if (answer < 0)
		store_generate_failure(g, answer);
	g->end_wanted = g->end_wanted || answer == TESS_END_ALL;
	return answer != TESS_GO_ON;
}

tess_status tess_generate_share_failure(struct tess_generate_state *g)
{
	tess_status st = tess_generate_drop_steps(g);

	if (st)
		return st;
	if (g->failed)
		tess_fail(g->failed, "%s", g->sentence);
	return tess_group_agree_status(g->group, g->failed, "generate");
}

/* ---- starting and ending --------------------------------------------------------------------- */

void tess_generate_end_request(struct tess_generate_state *g, struct tess_running_request *r,
                               int32_t finish, tess_status status)
{
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	struct tess_generate_result *result = &g->results[r->request];
	int64_t now = tess_now(), first = r->first_token ? r->first_token : now;

	result->finish = finish;
	result->status = status;
	result->prefill = 1e-9 * (double)(first - r->start);
	result->decode = 1e-9 * (double)(now - first);
	if (r->sequence && !r->asked->sequence) { /* a caller's sequence keeps its pages */
		tess_sequence_free(r->sequence);
		g->room -= r->room;
	}
	r->sequence = NULL;
	if (g->calls_back && c->on_end && !g->failed)
		tess_generate_take_answer(g, c->on_end(c->self, r->request, result, r->sentence));
	free(r->sentence);
	r->sentence = NULL;
}

/* Fails a request with this thread's message. */
static void fail_request(struct tess_generate_state *g, struct tess_running_request *r,
                         tess_status st)
{
	if (!r->sentence && g->calls_back)
		r->sentence = strdup(tess_error());
	tess_generate_end_request(g, r, TESS_FINISH_FAILED, st);
}

/* Returns the room in the KV cache that the request will use beyond that of its sequence. */
static uint64_t count_request_room(const struct tess_generate_state *g,
                                   const struct tess_generate_request *q)
{
	int64_t before = q->sequence ? q->sequence->nids : 0;
	/* the last chosen id is not computed, and needs no room */
	int64_t positions = before + q->nprompt + (q->max_tokens ? q->max_tokens - 1 : 0);
	uint64_t has = before ? tess_runner_count_room(g->runner, before, g->options.chunk) : 0;
	uint64_t needs = tess_runner_count_room(g->runner, positions, g->options.chunk);

	return needs > has ? needs - has : 0;
}

/*
 * Starts a request. TESS_PENDING: there is no room until another request ends. Any other failure is
 * that of the request alone.
 */
static tess_status start_request(struct tess_generate_state *g, struct tess_running_request *r)
{
	const struct tess_generate_request *q = r->asked;
	uint64_t limit = tess_runner_get_room(g->runner).limit;
	tess_status st = q->status ? q->status : tess_sampling_check(&q->sampling);

	if (!st && q->nprompt + (q->sequence ? q->sequence->nids - q->sequence->ncached : 0) < 1)
		st = tess_fail(TESS_EINVAL, "the prompt is empty: it has no ids");
	if (st)
		return st;
	r->room = count_request_room(g, q);
	if (g->room + r->room > limit && g->nrunning)
		return TESS_PENDING;
	if (g->room + r->room > limit)
		return tess_fail(
			TESS_ENOMEM,
			"a prompt of %lld ids and %lld tokens needs %.2f MiB of KV cache, and "
			"%.2f of %.2f MiB are free; use fewer, or a larger --kv-memory",
			(long long)q->nprompt, (long long)q->max_tokens, (double)r->room / 1048576,
			g->room < limit ? (double)(limit - g->room) / 1048576 : 0,
			(double)limit / 1048576);
	r->sequence = q->sequence;
	if (!r->sequence)
		st = tess_sequence_new(g->runner, true, &r->sequence);
	if (!st)
		st = tess_sequence_append(r->sequence, q->prompt, q->nprompt);
	if (!st)
		g->room += r->room;
	else if (!q->sequence)
		tess_sequence_free(r->sequence);
	if (st)
		r->sequence = NULL;
	return st;
}

/* Starts requests in their order, as far as there is room. */
static void start_requests(struct tess_generate_state *g)
{
	int64_t most = g->options.batch ? g->options.batch : tess_runner_get_batch(g->runner);

	while (g->next < g->n && !g->end_all && g->nrunning < most) {
		struct tess_running_request *r = &g->request[g->next];
		tess_status st;

		*r = (struct tess_running_request){ .request = g->next,
			                            .asked = &g->requests[g->next],
			                            .start = tess_now(),
			                            .set = -1,
			                            .row = -1 };
		g->results[g->next] = (struct tess_generate_result){
			.nprompt = g->requests[g->next].nprompt,
		};
		st = start_request(g, r);
		if (st == TESS_PENDING)
			return;
		g->next++;
		if (st)
			fail_request(g, r, st);
		else
			g->running[g->nrunning++] = r;
	}
}

/* Removes ended requests, and keeps the order of the others. */
static void remove_ended(struct tess_generate_state *g)
{
	int64_t kept = 0, before = 0;

	for (int64_t i = 0; i < g->nrunning; i++) {
		before += i < g->cursor && g->running[i]->sequence;
		if (g->running[i]->sequence)
			g->running[kept++] = g->running[i];
	}
	g->nrunning = kept;
	g->cursor = before < kept ? before : 0;
}

/* Drops what is under way after a failure, whose message stays. */
static tess_status drop_failed_steps(struct tess_generate_state *g, tess_status st)
{
	char sentence[sizeof g->sentence];

	snprintf(sentence, sizeof sentence, "%s", tess_error());
	if (g->queued)
		tess_runner_drop_chosen(g->runner);
	tess_generate_drop_steps(g);
	return tess_fail(st, "%s", sentence);
}

static tess_status generate_texts(struct tess_generate_state *g)
{
	tess_status st = TESS_OK;

	g->room = tess_runner_get_room(g->runner).used;
	start_requests(g);
	while (!st && g->nrunning) {
		st = tess_generate_run_step(g);
		remove_ended(g);
		if (!st)
			start_requests(g);
	}
	if (st)
		return drop_failed_steps(g, st);
	if (g->queued) { /* rows of ended sequences */
		const struct tess_chosen *unused;

		st = tess_runner_read_chosen(g->runner, &unused);
	}
	/* requests that have not started when everything was ended */
	while (!st && g->next < g->n) {
		struct tess_running_request r = { .request = g->next,
			                          .asked = &g->requests[g->next],
			                          .start = tess_now() };

		g->next++;
		tess_generate_end_request(g, &r, TESS_FINISH_INTERRUPT, TESS_OK);
	}
	return st ? st : tess_generate_share_failure(g);
}

/* Allocates the ring of steps. */
static bool alloc_step_ring(struct tess_generate_state *g, size_t n)
{
	bool all = true;

	g->ring = g->ahead > 1 ? 2 * g->ahead : 1;
	g->step = calloc((size_t)g->ring, sizeof *g->step);
	for (int32_t i = 0; g->step && i < g->ring; i++) {
		struct tess_begun_step *s = &g->step[i];

		s->part = calloc(n, sizeof *s->part);
		s->choices = calloc(n, sizeof *s->choices);
		s->ids = calloc(n, sizeof *s->ids);
		all = all && s->part && s->choices && s->ids;
	}
	return g->step && all;
}

static tess_status alloc_generation(struct tess_generate_state *g)
{
	struct tess_vocabulary_cut cut = tess_runner_get_vocabulary_cut(g->runner);
	bool here = g->stages.stage == g->stages.logits;
	size_t n = (size_t)g->n + 1;
	tess_status st = TESS_OK;

	if (here && g->stages.first)
		st = tess_sampler_new(tess_runner_vocabulary(g->runner), &g->sampler);
	g->request = calloc(n, sizeof *g->request);
	g->running = calloc(n, sizeof *g->running);
	g->rows = calloc(n, sizeof *g->rows);
	g->cut_rows = calloc(n, sizeof *g->cut_rows);
	g->draws = calloc(n, sizeof *g->draws);
	if (!st && (!alloc_step_ring(g, n) || !g->request || !g->running || !g->rows ||
	            !g->cut_rows || !g->draws))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_group_agree_status(g->group, st, "generate");
	return st || !cut.group || !here ? st : tess_cut_logits_new(&cut, &g->cut);
}

static void free_generation(struct tess_generate_state *g)
{
	for (int64_t i = 0; g->running && i < g->nrunning; i++) {
		if (!g->running[i]->asked->sequence)
			tess_sequence_free(g->running[i]->sequence);
		free(g->running[i]->sentence);
	}
	for (int32_t i = 0; g->step && i < g->ring; i++) {
		free(g->step[i].part);
		free(g->step[i].choices);
		free(g->step[i].ids);
		free(g->step[i].logits);
	}
	free(g->step);
	free(g->request);
	free(g->running);
	free(g->rows);
	free(g->cut_rows);
	free(g->draws);
	tess_cut_logits_free(g->cut);
	tess_sampler_free(g->sampler);
}

/* Returns the prompt rows of a step: fewer if a request has `all`, whose logits are large. */
static int64_t choose_chunk(const struct tess_generate_state *g)
{
	int64_t rows = tess_runner_get_prompt_rows(g->runner);

	for (int64_t i = 0; i < g->n && rows > LOGITS_ROWS; i++)
		rows = g->requests[i].all ? LOGITS_ROWS : rows;
	return rows;
}

/* Runs in the default floating-point state, regardless of the caller's. */
tess_status tess_generate_run(struct tess_runner *r, const struct tess_generate_request *requests,
                              int64_t n, const struct tess_generate_options *options,
                              struct tess_generate_result *results)
{
	struct tess_generate_state g = { .runner = r,
		                         .group = tess_runner_group(r),
		                         .stages = tess_runner_get_stages(r),
		                         .calls_back = tess_group_rank(tess_runner_group(r)) == 0,
		                         .ahead = tess_runner_count_ahead(r),
		                         .requests = requests,
		                         .options = *options,
		                         .results = results,
		                         .n = n };
	fenv_t callers;
	tess_status st;

	g.nbegun = g.nfinished = g.ncompleted = tess_runner_get_next_step(r);
	if (!g.options.chunk)
		g.options.chunk = choose_chunk(&g);
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = alloc_generation(&g);
	if (!st)
		st = generate_texts(&g);
	free_generation(&g);
	fesetenv(&callers);
	return st;
}

#include "nn/generate.h"

#include "core/base/clock.h"
#include "core/base/status.h"
#include "nn/agree.h"
#include "nn/cut_logits.h"
#include "nn/program.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_ROWS = 512, SENTENCE = 1024 };

struct running { /* a request under way */
	int64_t request;
	struct tess_sequence *sequence;
	int64_t start, first_token; /* tess_now(); 0: none is chosen yet */
	int64_t nrows; /* of the current step */
	uint64_t room; /* in the KV cache that it may come to use */
	bool selected; /* the step gives its logits: a row, or with `all` nrows of them */
	int64_t row; /* of the ids that the device chooses in the step that is queued; -1: none */
	bool end_wanted; /* rank 0: with the next id */
	char *sentence; /* rank 0: of a failure of this request */
};

struct choice { /* what rank 0 broadcasts for each request whose logits chose an id */
	int32_t id, finish, status;
};

struct generation {
	struct tess_runner *runner;
	struct tess_group *group;
	const struct tess_generate_request *requests;
	struct tess_generate_options options;
	struct tess_generate_result *results;
	int64_t n, next; /* requests; the first that has not started */
	struct running *running;
	int64_t nrunning;
	struct tess_rows *rows;
	struct choice *choices; /* [n + 1]: the last one is about the step */
	struct tess_sampler *sampler; /* rank 0 only */
	struct tess_cut_logits *cut; /* NULL: rank 0 gets whole rows */
	struct tess_cut_row *cut_rows; /* of the texts that are selected, in order */
	uint64_t room; /* in the KV cache: used by others, or to be used by what runs */
	int64_t nchosen; /* ids of the step that is queued */
	bool queued; /* a step whose ids the device chooses, and which were not read */
	bool end_all;
	bool end_wanted; /* rank 0: by a callback; sent with the next choices */
	tess_status failed; /* the same */
	char sentence[SENTENCE];
};

static const struct tess_generate_request *get_request(const struct generation *g,
                                                       const struct running *r)
{
	return &g->requests[r->request];
}

/* ---- callbacks, on rank 0 -------------------------------------------------------------------- */

/* The other ranks are in the next call already, and get the failure with it. */
static void store_generate_failure(struct generation *g, tess_status st)
{
	if (!st || g->failed)
		return;
	g->failed = st;
	snprintf(g->sentence, sizeof g->sentence, "%s", tess_error());
}

/* Keeps a callback's failure, or its wish to end everything; true: to end this request. */
static bool take_answer(struct generation *g, int answer)
{
	if (answer < 0)
		store_generate_failure(g, answer);
	g->end_wanted = g->end_wanted || answer == TESS_END_ALL;
	return answer != TESS_GO_ON;
}

/* ---- starting and ending --------------------------------------------------------------------- */

static void end_request(struct generation *g, struct running *r, int32_t finish, tess_status status)
{
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	struct tess_generate_result *result = &g->results[r->request];
	int64_t now = tess_now(), first = r->first_token ? r->first_token : now;

	result->finish = finish;
	result->status = status;
	result->prefill = 1e-9 * (double)(first - r->start);
	result->decode = 1e-9 * (double)(now - first);
	if (r->sequence && !get_request(g, r)->sequence) { /* a caller's keeps its pages */
		tess_sequence_free(r->sequence);
		g->room -= r->room;
	}
	r->sequence = NULL;
	if (g->sampler && c->on_end && !g->failed)
		take_answer(g, c->on_end(c->self, r->request, result, r->sentence));
	free(r->sentence);
	r->sentence = NULL;
}

/* With this thread's sentence. */
static void fail_request(struct generation *g, struct running *r, tess_status st)
{
	if (!r->sentence && g->sampler)
		r->sentence = strdup(tess_error());
	end_request(g, r, TESS_FINISH_FAILED, st);
}

/* The room in the KV cache that the request will use beyond what its sequence has. */
static uint64_t count_request_room(const struct generation *g,
                                   const struct tess_generate_request *q)
{
	int64_t before = q->sequence ? q->sequence->nids : 0;
	/* the last id that is chosen is not computed, and needs no room */
	int64_t positions = before + q->nprompt + (q->max_tokens ? q->max_tokens - 1 : 0);
	uint64_t has = before ? tess_runner_count_room(g->runner, before, g->options.chunk) : 0;
	uint64_t needs = tess_runner_count_room(g->runner, positions, g->options.chunk);

	return needs > has ? needs - has : 0;
}

/*
 * TESS_PENDING: there is no room until another request ends. Another failure is that of the request
 * alone.
 */
static tess_status start_request(struct generation *g, struct running *r)
{
	const struct tess_generate_request *q = get_request(g, r);
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
static void start_requests(struct generation *g)
{
	while (g->next < g->n && !g->end_all &&
	       (!g->options.batch || g->nrunning < g->options.batch)) {
		struct running *r = &g->running[g->nrunning];
		tess_status st;

		*r = (struct running){ .request = g->next, .start = tess_now(), .row = -1 };
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
			g->nrunning++;
	}
}

/* Frees what has ended, in place; those that run stay in their order. */
static void remove_ended(struct generation *g)
{
	int64_t kept = 0;

	for (int64_t i = 0; i < g->nrunning; i++)
		if (g->running[i].sequence)
			g->running[kept++] = g->running[i];
	g->nrunning = kept;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Whether the last of its ids has been computed. */
static bool is_computed(const struct running *r)
{
	return r->sequence->ncached == r->sequence->nids;
}

/* Whether the step that was computed chooses the next id of the text. */
static bool chooses_id(const struct generation *g, const struct running *r)
{
	return is_computed(r) && get_request(g, r)->max_tokens;
}

/* One row of each text, and rows of prompts up to the limit; returns how many took part. */
static int32_t compose_rows(struct generation *g)
{
	int64_t left = g->options.chunk;
	int32_t n = 0;

	for (int64_t i = 0; i < g->nrunning; i++) {
		struct running *r = &g->running[i];
		const struct tess_generate_request *q = get_request(g, r);
		int64_t remaining = r->sequence->nids - r->sequence->ncached, nselected;

		r->nrows = r->first_token ? remaining : remaining < left ? remaining : left;
		left -= r->first_token ? 0 : r->nrows;
		r->selected = r->nrows && (q->all || (r->nrows == remaining && q->max_tokens));
		nselected = !r->selected ? 0 : q->all ? r->nrows : 1;
		if (r->nrows)
			g->rows[n++] = tess_sequence_get_rows(r->sequence, r->nrows, nselected);
	}
	return n;
}

static bool is_stop_id(const struct tess_generate_request *request, int32_t id)
{
	for (int64_t i = 0; i < request->nstop; i++)
		if (request->stop[i] == id)
			return true;
	return false;
}

/* NaN or Inf would choose an arbitrary id. `logits` NULL: there are candidates. */
static tess_status check_logits(const struct running *r, const struct tess_cut_row *row,
                                const float *logits)
{
	int64_t n = tess_runner_vocabulary(r->sequence->runner);
	struct tess_odd_logits odd = logits ? tess_logits_find_odd(logits, n) : row->odd;

	if (!odd.count)
		return TESS_OK;
	return tess_fail(
		TESS_EINVAL,
		"%lld of the %lld logits that choose an id at position %lld are not "
		"finite (id %lld: %s); a weight of the checkpoint is not finite, or a value "
		"overflows: "
		"--check or TESSERA_CHECK=1 names the first module where that happens",
		(long long)odd.count, (long long)n, (long long)r->sequence->nids, (long long)odd.id,
		odd.is_nan ? "NaN" : "Inf");
}

/* On rank 0: the id that the last row chooses, and TESS_FINISH_... where it is the last. */
static struct choice draw_next_id(struct generation *g, struct running *r,
                                  const struct tess_cut_row *row)
{
	const float *logits =
		row->logits ? row->logits + (row->nrows - 1) * tess_runner_vocabulary(g->runner)
			    : NULL;
	const struct tess_generate_request *q = get_request(g, r);
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	int64_t ntokens = g->results[r->request].ntokens;
	struct choice word = { .status = check_logits(r, row, logits) };
	bool enough = r->end_wanted;

	if (word.status) {
		word.finish = TESS_FINISH_FAILED;
		r->sentence = strdup(tess_error());
		return word;
	}
	word.id = logits ? tess_sampler_draw(g->sampler, &q->sampling, logits, r->sequence->ids,
	                                     r->sequence->nids, (uint64_t)ntokens)
	                 : tess_sampler_draw_candidates(g->sampler, &q->sampling, row->candidates,
	                                                row->ncandidates, (uint64_t)ntokens);
	if (c->on_token)
		enough |= take_answer(
			g, c->on_token(c->self, r->request, word.id, q->logits ? logits : NULL));
	word.finish = enough                         ? TESS_FINISH_INTERRUPT
	              : is_stop_id(q, word.id)       ? TESS_FINISH_STOP
	              : ntokens + 1 == q->max_tokens ? TESS_FINISH_LENGTH
	                                             : 0;
	return word;
}

/* The same of an id that the device has chosen. */
static struct choice take_chosen_id(struct generation *g, struct running *r,
                                    const struct tess_chosen *chosen)
{
	const struct tess_candidate only = { 0, chosen->id };

	return draw_next_id(
		g, r,
		&(struct tess_cut_row){ .odd = { chosen->odd, chosen->first_odd, chosen->is_nan },
	                                .candidates = &only,
	                                .ncandidates = 1 });
}

/* On rank 0: gives the logits of a step away, and chooses an id for each text that needs one. */
static void draw_next_ids(struct generation *g)
{
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	const struct tess_cut_row *row = g->cut_rows;
	int64_t k = 0;

	for (int64_t i = 0; i < g->nrunning && !g->failed; i++) {
		struct running *r = &g->running[i];

		if (!r->selected)
			continue;
		if (get_request(g, r)->all && c->on_logits)
			r->end_wanted |= take_answer(
				g, c->on_logits(c->self, r->request, row->logits, row->nrows));
		if (chooses_id(g, r))
			g->choices[k++] = draw_next_id(g, r, row);
		row++;
	}
	if (c->on_step && !g->failed)
		take_answer(g, c->on_step(c->self));
}

/* Makes rank 0's failure a failure of all ranks. */
static tess_status share_generate_failure(struct generation *g)
{
	if (g->failed)
		tess_fail(g->failed, "%s", g->sentence);
	return tess_group_agree_status(g->group, g->failed, "generate");
}

/* Gives all ranks rank 0's choices, and whether to go on. */
static tess_status share_choices(struct generation *g, int64_t n)
{
	struct tess_profile *profile = tess_runner_get_profile(g->runner);
	struct choice *end = &g->choices[n];
	int64_t began;
	tess_status st;

	*end = (struct choice){ .finish = g->end_wanted, .status = g->failed };
	began = tess_profile_begin(profile);
	st = tess_broadcast(g->group, g->choices, (uint64_t)(n + 1) * 3, TESS_I32, 0,
	                    "generate:next");
	tess_profile_add_call(profile, g->group, began);
	if (!st && end->status)
		st = share_generate_failure(g);
	g->end_all = end->finish != 0;
	return st;
}

/* What the choices do to each text, on every rank. */
static tess_status apply_choices(struct generation *g)
{
	const struct choice *word = g->choices;
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < g->nrunning && !st; i++) {
		struct running *r = &g->running[i];
		bool chooses = chooses_id(g, r);
		int32_t finish = is_computed(r) && !chooses ? TESS_FINISH_LENGTH : 0;

		if (chooses && word->finish == TESS_FINISH_FAILED) {
			end_request(g, r, TESS_FINISH_FAILED, (word++)->status);
			continue;
		}
		if (chooses) {
			st = tess_sequence_append(r->sequence, &word->id, 1);
			finish = (word++)->finish;
			g->results[r->request].ntokens++;
			r->first_token = r->first_token ? r->first_token : tess_now();
		}
		if (finish || g->end_all)
			end_request(g, r, finish ? finish : TESS_FINISH_INTERRUPT, TESS_OK);
	}
	return st;
}

/* What the logits of the step are for, and where they are: whole on rank 0, or in parts. */
static tess_status find_logits(struct generation *g, const float *logits)
{
	int64_t n = 0, vocab = tess_runner_vocabulary(g->runner);

	for (int64_t i = 0; i < g->nrunning; i++) {
		const struct running *r = &g->running[i];
		const struct tess_generate_request *q = get_request(g, r);
		struct tess_cut_row *row = &g->cut_rows[n];

		if (!r->selected)
			continue;
		*row = (struct tess_cut_row){ .nrows = q->all ? r->nrows : 1,
			                      .sampling = chooses_id(g, r) ? &q->sampling : NULL,
			                      .seen = r->sequence->ids,
			                      .nseen = r->sequence->nids,
			                      .whole = q->all || q->logits,
			                      .logits = logits };
		if (logits)
			logits += row->nrows * (g->cut ? 0 : vocab);
		n++;
	}
	return g->cut ? tess_cut_logits_read(g->cut, logits, g->cut_rows, n) : TESS_OK;
}

/* ---- steps whose ids the device chooses ------------------------------------------------------ */

/* Whether the largest logit is the next id, and nothing else of the logits is asked for. */
static bool is_greedy(const struct tess_generate_request *q)
{
	double p = q->sampling.repetition_penalty;

	return q->sampling.temperature == 0 && (p == 0 || p == 1) && !q->all && !q->logits;
}

/* Whether the device can choose the ids of the rows that were composed; numbers them. */
static bool number_chosen_rows(struct generation *g)
{
	int64_t n = 0;

	for (int64_t i = 0; i < g->nrunning; i++) {
		struct running *r = &g->running[i];

		r->row = r->selected ? n++ : -1;
		if (r->selected && !is_greedy(get_request(g, r)))
			return false;
	}
	return n && n <= TESS_CHOSEN_MAX && tess_runner_can_choose(g->runner);
}

/*
 * Whether the next step can be queued before the ids of the last one are known: it takes a row of
 * the same texts, none of which ends by its length, or is to be forgotten if a stop id ended it.
 */
static bool can_go_ahead(const struct generation *g)
{
	for (int64_t i = 0; i < g->nrunning; i++) {
		const struct running *r = &g->running[i];
		const struct tess_generate_request *q = get_request(g, r);

		if (r->row != i || q->sequence ||
		    g->results[r->request].ntokens + 1 >= q->max_tokens ||
		    tess_runner_needs_page(g->runner, r->sequence->slot))
			return false;
	}
	return g->nrunning == g->nchosen;
}

/* Queues a row of each text, whose ids are those that the last step chooses. */
static tess_status queue_ahead(struct generation *g)
{
	for (int64_t i = 0; i < g->nrunning; i++)
		g->rows[i] = (struct tess_rows){ .slot = g->running[i].sequence->slot,
			                         .n = 1,
			                         .nselected = 1 };
	return tess_runner_choose(g->runner, g->rows, g->nrunning, true);
}

/* Reads the ids of the step that was queued first. */
static tess_status share_chosen_ids(struct generation *g)
{
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	const struct tess_chosen *ids;
	int64_t n = 0;
	tess_status st = tess_runner_read_chosen(g->runner, &ids);

	for (int64_t i = 0; i < g->nrunning && !st; i++) {
		struct running *r = &g->running[i];

		if (!chooses_id(g, r))
			continue;
		if (g->sampler && !g->failed)
			g->choices[n] = take_chosen_id(g, r, &ids[r->row]);
		n++;
	}
	if (!st && g->sampler && c->on_step && !g->failed)
		take_answer(g, c->on_step(c->self));
	return st ? st : share_choices(g, n);
}

/* A step is under way while the ids of the one before it are read, told and compared. */
static tess_status run_chosen_step(struct generation *g)
{
	bool ahead = can_go_ahead(g);
	tess_status st = ahead ? queue_ahead(g) : TESS_OK;

	if (!st)
		st = share_chosen_ids(g);
	if (!st)
		st = apply_choices(g);
	for (int64_t i = 0; i < g->nrunning && !st; i++) {
		struct running *r = &g->running[i];

		if (!ahead)
			r->row = -1;
		else if (r->sequence)
			r->sequence->ncached++;
	}
	g->queued = ahead;
	return st;
}

/* The first step, of rows whose ids are known. */
static tess_status queue_chosen_step(struct generation *g, int32_t n)
{
	tess_status st = tess_runner_choose(g->runner, g->rows, n, false);

	g->nchosen = 0;
	for (int64_t i = 0; i < g->nrunning && !st; i++) {
		g->running[i].sequence->ncached += g->running[i].nrows;
		g->nchosen += g->running[i].row >= 0;
	}
	return st ? st : run_chosen_step(g);
}

static tess_status run_step(struct generation *g)
{
	const float *logits;
	int64_t nchoices = 0;
	int32_t n;
	tess_status st;

	if (g->queued)
		return run_chosen_step(g);
	n = compose_rows(g);
	if (number_chosen_rows(g))
		return queue_chosen_step(g, n);
	st = tess_runner_step(g->runner, g->rows, n, g->cut ? TESS_LOGITS_CUT : 0, &logits);
	if (st)
		return st;
	for (int64_t i = 0; i < g->nrunning; i++) {
		struct running *r = &g->running[i];

		r->sequence->ncached += r->nrows;
		nchoices += chooses_id(g, r);
	}
	st = find_logits(g, logits);
	if (st)
		return st;
	if (g->sampler)
		draw_next_ids(g);
	st = share_choices(g, nchoices);
	return st ? st : apply_choices(g);
}

static tess_status generate_texts(struct generation *g)
{
	tess_status st = TESS_OK;

	g->room = tess_runner_get_room(g->runner).used;
	start_requests(g);
	while (!st && g->nrunning) {
		st = run_step(g);
		remove_ended(g);
		if (!st)
			start_requests(g);
	}
	if (g->queued && st) {
		tess_runner_drop_chosen(g->runner);
	} else if (g->queued) { /* a row of texts that have ended */
		const struct tess_chosen *unused;

		st = tess_runner_read_chosen(g->runner, &unused);
	}
	/* what never ran: everything was ended */
	while (!st && g->next < g->n) {
		struct running r = { .request = g->next++, .start = tess_now() };

		end_request(g, &r, TESS_FINISH_INTERRUPT, TESS_OK);
	}
	return st ? st : share_generate_failure(g);
}

static tess_status alloc_generation(struct generation *g)
{
	struct tess_vocabulary_cut cut = tess_runner_get_vocabulary_cut(g->runner);
	size_t n = (size_t)g->n + 1;
	tess_status st = TESS_OK;

	if (tess_group_rank(g->group) == 0)
		st = tess_sampler_new(tess_runner_vocabulary(g->runner), &g->sampler);
	g->running = calloc(n, sizeof *g->running);
	g->rows = calloc(n, sizeof *g->rows);
	g->choices = calloc(n, sizeof *g->choices);
	g->cut_rows = calloc(n, sizeof *g->cut_rows);
	if (!st && (!g->running || !g->rows || !g->choices || !g->cut_rows))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_group_agree_status(g->group, st, "generate");
	return st || !cut.group ? st : tess_cut_logits_new(&cut, &g->cut);
}

static void free_generation(struct generation *g)
{
	for (int64_t i = 0; g->running && i < g->nrunning; i++) {
		if (!get_request(g, &g->running[i])->sequence)
			tess_sequence_free(g->running[i].sequence);
		free(g->running[i].sentence);
	}
	free(g->running);
	free(g->rows);
	free(g->choices);
	free(g->cut_rows);
	tess_cut_logits_free(g->cut);
	tess_sampler_free(g->sampler);
}

/* Runs in the default floating-point state, whatever the caller has set. */
tess_status tess_generate_run(struct tess_runner *r, const struct tess_generate_request *requests,
                              int64_t n, const struct tess_generate_options *options,
                              struct tess_generate_result *results)
{
	struct generation g = { .runner = r,
		                .group = tess_runner_group(r),
		                .requests = requests,
		                .options = *options,
		                .results = results,
		                .n = n };
	fenv_t callers;
	tess_status st;

	if (!g.options.chunk)
		g.options.chunk = PROMPT_ROWS;
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = alloc_generation(&g);
	if (!st)
		st = generate_texts(&g);
	free_generation(&g);
	fesetenv(&callers);
	return st;
}

/*
 * generate_step.c - runs a step of all running requests: composes rows, draws the next ids on rank
 * 0 and broadcasts them. If the device can choose ids, a step is queued before the ids of the
 * previous one are read.
 */
#include "nn/generate/generate_state.h"

#include "core/base/clock.h"
#include "core/base/status.h"
#include "nn/program/program.h"

#include <string.h>

/* Returns true if the last of its ids has been computed. */
static bool is_computed(const struct tess_running_request *r)
{
	return r->sequence->ncached == r->sequence->nids;
}

/* Returns true if the completed step chooses the next id of the sequence. */
static bool chooses_id(const struct tess_running_request *r)
{
	return is_computed(r) && r->asked->max_tokens;
}

/*
 * Takes one row of each sequence, and rows of prompts up to the limit; returns how many took part.
 */
static int32_t compose_rows(struct tess_generate_state *g)
{
	int64_t left = g->options.chunk;
	int32_t n = 0;

	for (int64_t i = 0; i < g->nrunning; i++) {
		struct tess_running_request *r = &g->running[i];
		const struct tess_generate_request *q = r->asked;
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

/* Rejects non-finite logits, which would choose an arbitrary id. logits NULL: uses candidates. */
static tess_status check_logits(const struct tess_running_request *r,
                                const struct tess_cut_row *row, const float *logits)
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

/* Draws the id that the last row chooses, and TESS_FINISH_... if it is the last id. On rank 0. */
static struct tess_id_choice draw_next_id(struct tess_generate_state *g,
                                          struct tess_running_request *r,
                                          const struct tess_cut_row *row)
{
	const float *logits =
		row->logits ? row->logits + (row->nrows - 1) * tess_runner_vocabulary(g->runner)
			    : NULL;
	const struct tess_generate_request *q = r->asked;
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	int64_t ntokens = g->results[r->request].ntokens;
	struct tess_id_choice word = { .status = check_logits(r, row, logits) };
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
		enough |= tess_generate_take_answer(
			g, c->on_token(c->self, r->request, word.id, q->logits ? logits : NULL));
	word.finish = enough                         ? TESS_FINISH_INTERRUPT
	              : is_stop_id(q, word.id)       ? TESS_FINISH_STOP
	              : ntokens + 1 == q->max_tokens ? TESS_FINISH_LENGTH
	                                             : 0;
	return word;
}

/* Passes on the logits of a step, and draws an id for each sequence that needs one. On rank 0. */
static void draw_next_ids(struct tess_generate_state *g)
{
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	const struct tess_cut_row *row = g->cut_rows;
	int64_t k = 0;

	for (int64_t i = 0; i < g->nrunning && !g->failed; i++) {
		struct tess_running_request *r = &g->running[i];

		if (!r->selected)
			continue;
		if (r->asked->all && c->on_logits)
			r->end_wanted |= tess_generate_take_answer(
				g, c->on_logits(c->self, r->request, row->logits, row->nrows));
		if (chooses_id(r))
			g->choices[k++] = draw_next_id(g, r, row);
		row++;
	}
	if (c->on_step && !g->failed)
		tess_generate_take_answer(g, c->on_step(c->self));
}

/* Broadcasts rank 0's n choices, and its decision to continue. */
static tess_status share_choices(struct tess_generate_state *g, int64_t n)
{
	struct tess_profile *profile = tess_runner_get_profile(g->runner);
	struct tess_id_choice *end = &g->choices[n];
	int64_t began;
	tess_status st;

	*end = (struct tess_id_choice){ .finish = g->end_wanted, .status = g->failed };
	began = tess_profile_begin(profile);
	st = tess_broadcast(g->group, g->choices, (uint64_t)(n + 1) * 3, TESS_I32, 0,
	                    "generate:next");
	tess_profile_add_call(profile, g->group, began);
	if (!st && end->status)
		st = tess_generate_share_failure(g);
	g->end_all = end->finish != 0;
	return st;
}

/* Applies the choices to each sequence, on every rank. */
static tess_status apply_choices(struct tess_generate_state *g)
{
	const struct tess_id_choice *word = g->choices;
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < g->nrunning && !st; i++) {
		struct tess_running_request *r = &g->running[i];
		bool chooses = chooses_id(r);
		int32_t finish = is_computed(r) && !chooses ? TESS_FINISH_LENGTH : 0;

		if (chooses && word->finish == TESS_FINISH_FAILED) {
			tess_generate_end_request(g, r, TESS_FINISH_FAILED, (word++)->status);
			continue;
		}
		if (chooses) {
			st = tess_sequence_append(r->sequence, &word->id, 1);
			finish = (word++)->finish;
			g->results[r->request].ntokens++;
			r->first_token = r->first_token ? r->first_token : tess_now();
		}
		if (finish || g->end_all)
			tess_generate_end_request(g, r, finish ? finish : TESS_FINISH_INTERRUPT,
			                          TESS_OK);
	}
	return st;
}

/* Sets the logits of each request: complete on rank 0, or in parts. */
static tess_status find_logits(struct tess_generate_state *g, const float *logits)
{
	int64_t n = 0, vocab = tess_runner_vocabulary(g->runner);

	for (int64_t i = 0; i < g->nrunning; i++) {
		const struct tess_running_request *r = &g->running[i];
		const struct tess_generate_request *q = r->asked;
		struct tess_cut_row *row = &g->cut_rows[n];

		if (!r->selected)
			continue;
		*row = (struct tess_cut_row){ .nrows = q->all ? r->nrows : 1,
			                      .sampling = chooses_id(r) ? &q->sampling : NULL,
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

/* Returns the next draw; ahead: for the step after the unread one. */
static struct tess_draw get_next_draw(const struct tess_generate_state *g,
                                      const struct tess_running_request *r, bool ahead)
{
	struct tess_draw d = tess_sampling_get_draw(
		&r->asked->sampling, (uint64_t)(g->results[r->request].ntokens + ahead));

	d.set = r->set;
	return d;
}

/* Numbers the composed rows whose ids the device chooses; false: it cannot choose them. */
static bool number_chosen_rows(struct tess_generate_state *g)
{
	int64_t n = 0;

	for (int64_t i = 0; i < g->nrunning; i++) {
		struct tess_running_request *r = &g->running[i];

		r->row = -1;
		if (!r->selected)
			continue;
		if (r->asked->all || r->asked->logits || n == TESS_CHOSEN_MAX)
			return false;
		r->row = n++;
	}
	return n && tess_runner_can_choose(g->runner);
}

/*
 * Returns true if the next step can be queued before the ids of the last one are read. It takes a
 * row of the same sequences, none of which ends by its length. Rows of a sequence that a stop id
 * has ended are discarded.
 */
static bool can_go_ahead(const struct tess_generate_state *g)
{
	for (int64_t i = 0; i < g->nrunning; i++) {
		const struct tess_running_request *r = &g->running[i];
		const struct tess_generate_request *q = r->asked;

		if (r->row != i || q->sequence ||
		    g->results[r->request].ntokens + 1 >= q->max_tokens)
			return false;
	}
	return g->nrunning == g->nchosen;
}

/* Queues a row of each sequence, with the ids that the last step chooses. */
static tess_status queue_ahead(struct tess_generate_state *g)
{
	for (int64_t i = 0; i < g->nrunning; i++) {
		g->rows[i] = (struct tess_rows){ .slot = g->running[i].sequence->slot,
			                         .n = 1,
			                         .nselected = 1 };
		g->draws[i] = get_next_draw(g, &g->running[i], true);
	}
	return tess_runner_choose(g->runner, g->rows, g->nrunning, g->draws, true);
}

/* Passes the ids that the device chose to the callbacks, on rank 0. */
static void take_chosen_ids(struct tess_generate_state *g, const struct tess_chosen *ids)
{
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	int64_t n = 0;

	for (int64_t i = 0; i < g->nrunning && !g->failed; i++) {
		struct tess_running_request *r = &g->running[i];
		struct tess_candidate only = { 0 };
		struct tess_cut_row row = { .candidates = &only, .ncandidates = 1 };

		if (!chooses_id(r))
			continue;
		only.id = ids[r->row].id;
		row.odd = (struct tess_odd_logits){ ids[r->row].odd, ids[r->row].first_odd,
			                            ids[r->row].is_nan };
		g->choices[n++] = draw_next_id(g, r, &row);
	}
	if (c->on_step && !g->failed)
		tess_generate_take_answer(g, c->on_step(c->self));
}

/* Reads the ids of the oldest queued step. */
static tess_status share_chosen_ids(struct tess_generate_state *g)
{
	const struct tess_chosen *ids;
	int64_t n = 0;
	tess_status st = tess_runner_read_chosen(g->runner, &ids);

	for (int64_t i = 0; i < g->nrunning; i++)
		n += chooses_id(&g->running[i]);
	if (!st && g->sampler)
		take_chosen_ids(g, ids);
	return st ? st : share_choices(g, n);
}

/* Reads and applies the ids of a step, while the next step runs. */
static tess_status run_chosen_step(struct tess_generate_state *g)
{
	bool ahead = can_go_ahead(g);
	tess_status st = ahead ? queue_ahead(g) : TESS_OK;

	if (!st)
		st = share_chosen_ids(g);
	if (!st)
		st = apply_choices(g);
	for (int64_t i = 0; ahead && i < g->nrunning && !st; i++)
		if (g->running[i].sequence)
			g->running[i].sequence->ncached++;
	g->queued = ahead;
	return st;
}

/* Gives a sequence an unused set; sequences with sets choose an id in each step. */
static tess_status send_seen(struct tess_generate_state *g, struct tess_running_request *r)
{
	const struct tess_sequence *s = r->sequence;
	bool used[TESS_CHOSEN_MAX] = { false };

	for (int64_t i = 0; i < g->nrunning; i++)
		if (g->running[i].set >= 0)
			used[g->running[i].set] = true;
	for (r->set = 0; used[r->set]; r->set++)
		;
	return tess_runner_send_seen(g->runner, r->set, s->ids, s->nids);
}

/* Queues the first step, of rows whose ids are already read. */
static tess_status queue_chosen_step(struct tess_generate_state *g, int32_t n)
{
	tess_status st = TESS_OK;

	g->nchosen = 0;
	for (int64_t i = 0; i < g->nrunning && !st; i++) {
		struct tess_running_request *r = &g->running[i];

		if (r->row < 0)
			continue;
		if (r->set < 0 && tess_sampling_has_penalty(&r->asked->sampling))
			st = send_seen(g, r);
		g->draws[g->nchosen++] = get_next_draw(g, r, false);
	}
	if (!st)
		st = tess_runner_choose(g->runner, g->rows, n, g->draws, false);
	for (int64_t i = 0; i < g->nrunning && !st; i++)
		g->running[i].sequence->ncached += g->running[i].nrows;
	return st ? st : run_chosen_step(g);
}

/*
 * Returns true if ranks exchange choices after a step. The stages of a pipeline continue with the
 * next part of a prompt while later stages compute the last one; they check for an end in some
 * steps only.
 */
static bool shares_choices(struct tess_generate_state *g, int64_t nchoices)
{
	int32_t stages = tess_runner_count_stages(g->runner);
	bool alone = stages > 1 && !nchoices && g->nunshared < 4 * stages;

	g->nunshared = alone ? g->nunshared + 1 : 0;
	return !alone;
}

tess_status tess_generate_run_step(struct tess_generate_state *g)
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
		struct tess_running_request *r = &g->running[i];

		r->sequence->ncached += r->nrows;
		r->set = -1; /* the device does not see the host's choices */
		nchoices += chooses_id(r);
	}
	st = find_logits(g, logits);
	if (st)
		return st;
	if (g->sampler)
		draw_next_ids(g);
	if (shares_choices(g, nchoices))
		st = share_choices(g, nchoices);
	return st ? st : apply_choices(g);
}

/*
 * generate_step.c - the steps of all running requests: composed, begun, finished, completed.
 *
 * A step takes one row of each sequence that generates, and rows of prompts up to a limit. It is
 * begun (the rank computes it), finished (ids are drawn where the logits are) and completed (rank
 * 0's choices are applied to the sequences, on all ranks).
 *
 * Without a pipeline one step is under way at a time. The p stages of a pipeline have up to p of
 * them, each with an equal share of the sequences: while the last stage computes one group of
 * sequences, the one before it computes the next group, and so on. Groups follow from the order of
 * the requests: a step takes the next ones whose last id is known, so groups stay balanced when
 * requests start and end. Rows of a prompt do not wait for an id, so the parts of one prompt may be
 * in several steps under way.
 *
 * Each rank begins and completes steps in one order, which follows from the choices that it has
 * applied: step i is begun after the choices of step i - p. So no stage waits for a later one,
 * except for the ids of the step that would follow next in any case:
 *
 *	stage 0   begin 0   begin 1   ids 0, begin 2    ids 1, begin 3
 *	stage 1             begin 0   begin 1, ids 0    begin 2, ids 1
 *
 * If the device can choose ids, a step is queued before the ids of the previous one are read.
 *
 * A sequence keeps its bits: rows depend on the keys and values of their own sequence only, and
 * those are computed in order on each stage.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "nn/generate/generate_state.h"
#include "nn/program/program.h"

#include <stdio.h>
#include <string.h>

static struct tess_begun_step *get_begun_step(const struct tess_generate_state *g, int64_t number)
{
	return &g->step[number % g->ring];
}

/* ---- composed -------------------------------------------------------------------------------- */

static int64_t count_remaining(const struct tess_running_request *r)
{
	return r->sequence->nids - r->sequence->ncached;
}

/* Gives a row to the next sequences that generate, in turn; returns their number. */
static int64_t give_rows_to_sequences(struct tess_generate_state *g)
{
	int64_t n = 0, generating = 0, first = g->cursor;

	for (int64_t i = 0; i < g->nrunning; i++)
		generating += g->running[i]->first_token != 0;
	for (int64_t i = 0; i < g->nrunning && n < tess_up(generating, g->ahead); i++) {
		int64_t at = (first + i) % g->nrunning;
		struct tess_running_request *r = g->running[at];

		if (!r->first_token || r->waits)
			continue;
		r->nrows = count_remaining(r);
		g->cursor = (at + 1) % g->nrunning;
		n++;
	}
	return n;
}

/* Gives rows to prompts in the order of their starts, up to the limit. */
static void give_rows_to_prompts(struct tess_generate_state *g, int64_t n)
{
	int64_t left = g->options.chunk;

	for (int64_t i = 0; i < g->nrunning && n < tess_up(g->nrunning, g->ahead); i++) {
		struct tess_running_request *r = g->running[i];
		int64_t remaining = count_remaining(r);

		if (r->first_token || r->waits)
			continue;
		r->nrows = remaining < left ? remaining : left;
		left -= r->nrows;
		n += r->nrows != 0;
	}
}

static void add_step_part(struct tess_generate_state *g, struct tess_begun_step *s,
                          struct tess_running_request *r)
{
	const struct tess_generate_request *q = r->asked;
	bool computed = r->nrows == count_remaining(r);
	struct tess_step_part part = { .request = r,
		                       .nrows = r->nrows,
		                       .chooses = computed && q->max_tokens,
		                       .ends = computed && !q->max_tokens };
	int64_t nselected;

	part.selected = q->all || part.chooses;
	nselected = !part.selected ? 0 : q->all ? r->nrows : 1;
	s->nchoices += part.chooses;
	s->nwhole += q->all || q->logits ? nselected : 0;
	g->rows[s->n] = tess_sequence_get_rows(r->sequence, r->nrows, nselected);
	s->part[s->n++] = part;
}

/* Composes the next step; false: all sequences wait for ids of steps that are under way. */
static bool compose_step(struct tess_generate_state *g, struct tess_begun_step *s)
{
	for (int64_t i = 0; i < g->nrunning; i++)
		g->running[i]->nrows = 0;
	give_rows_to_prompts(g, give_rows_to_sequences(g));
	s->n = s->nchoices = s->nwhole = 0;
	for (int64_t i = 0; i < g->nrunning; i++)
		if (g->running[i]->nrows)
			add_step_part(g, s, g->running[i]);
	return s->n;
}

/* ---- begun, finished, completed -------------------------------------------------------------- */

static tess_status begin_step(struct tess_generate_state *g, struct tess_begun_step *s)
{
	int32_t root = g->cut || g->stages.n > 1 ? TESS_LOGITS_CUT : 0;
	tess_status st = tess_runner_begin_step(g->runner, g->rows, s->n, root);

	if (st)
		return st;
	g->nbegun++;
	for (int64_t i = 0; i < g->nrunning; i++)
		g->running[i]->set = -1; /* the device does not see the host's choices */
	for (int64_t i = 0; i < s->n; i++) {
		s->part[i].request->sequence->ncached += s->part[i].nrows;
		s->part[i].request->waits = s->part[i].chooses || s->part[i].ends;
	}
	return TESS_OK;
}

static tess_status finish_oldest_step(struct tess_generate_state *g)
{
	struct tess_begun_step *s = get_begun_step(g, g->nfinished++);
	const float *logits;
	tess_status st = tess_runner_finish_step(g->runner, &logits);

	return st ? st : tess_generate_draw_ids(g, s, logits);
}

/* Applies the choices of a step to its sequences, on every rank. */
static tess_status apply_choices(struct tess_generate_state *g, const struct tess_begun_step *s)
{
	const struct tess_id_choice *word = s->choices;
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < s->n && !st; i++) {
		const struct tess_step_part *part = &s->part[i];
		struct tess_running_request *r = part->request;
		int32_t finish = part->ends ? TESS_FINISH_LENGTH : 0;

		if (part->chooses && r->sequence && word->finish == TESS_FINISH_FAILED) {
			tess_generate_end_request(g, r, TESS_FINISH_FAILED, word->status);
		} else if (part->chooses && r->sequence) {
			st = tess_sequence_append(r->sequence, &word->id, 1);
			finish = word->finish;
			g->results[r->request].ntokens++;
			r->first_token = r->first_token ? r->first_token : tess_now();
			r->waits = false;
		}
		word += part->chooses;
		if (finish && r->sequence)
			tess_generate_end_request(g, r, finish, TESS_OK);
	}
	for (int64_t i = 0; i < g->nrunning && g->end_all && !st; i++)
		if (g->running[i]->sequence)
			tess_generate_end_request(g, g->running[i], TESS_FINISH_INTERRUPT, TESS_OK);
	return st;
}

static tess_status complete_step(struct tess_generate_state *g)
{
	struct tess_begun_step *s = get_begun_step(g, g->ncompleted);
	tess_status st = g->nfinished == g->ncompleted ? finish_oldest_step(g) : TESS_OK;

	if (!st)
		st = tess_generate_receive_ids(g, s);
	g->ncompleted++;
	if (st)
		return st;
	if (g->calls_back)
		tess_generate_take_ids(g, s);
	st = tess_generate_share_choices(g, s);
	return st ? st : apply_choices(g, s);
}

/* Returns true if this stage finishes the oldest step before it begins another one. */
static bool must_finish(const struct tess_generate_state *g)
{
	int64_t most = g->ahead - g->stages.stage;

	return g->nfinished < g->nbegun && g->nbegun - g->nfinished >= most;
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

/* Numbers the rows whose ids the device chooses; false: it cannot choose the ids of the step. */
static bool number_chosen_rows(struct tess_generate_state *g, const struct tess_begun_step *s)
{
	int64_t n = 0;

	if (!tess_runner_can_choose(g->runner))
		return false;
	for (int64_t i = 0; i < g->nrunning; i++)
		g->running[i]->row = -1;
	for (int64_t i = 0; i < s->n; i++) {
		struct tess_running_request *r = s->part[i].request;

		if (!s->part[i].selected)
			continue;
		if (r->asked->all || r->asked->logits || n == TESS_CHOSEN_MAX)
			return false;
		r->row = n++;
	}
	return n;
}

/*
 * Returns true if the next step can be queued before the ids of the last one are read. It takes a
 * row of the same sequences, none of which ends by its length. Rows of a sequence that a stop id
 * has ended are discarded.
 */
static bool can_go_ahead(const struct tess_generate_state *g)
{
	for (int64_t i = 0; i < g->nrunning; i++) {
		const struct tess_running_request *r = g->running[i];
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
		g->rows[i] = (struct tess_rows){ .slot = g->running[i]->sequence->slot,
			                         .n = 1,
			                         .nselected = 1 };
		g->draws[i] = get_next_draw(g, g->running[i], true);
	}
	return tess_runner_choose(g->runner, g->rows, g->nrunning, g->draws, true);
}

/* Reads the ids of the oldest queued step. */
static tess_status read_chosen_ids(struct tess_generate_state *g, struct tess_begun_step *s)
{
	const struct tess_chosen *ids;
	int64_t n = 0;
	tess_status st = tess_runner_read_chosen(g->runner, &ids);

	if (st || !g->calls_back)
		return st;
	for (int64_t i = 0; i < s->n; i++)
		if (s->part[i].chooses)
			s->ids[n++] = ids[s->part[i].request->row];
	tess_generate_take_ids(g, s);
	return TESS_OK;
}

/* Completes a queued step, while the next one runs. */
static tess_status complete_chosen(struct tess_generate_state *g, struct tess_begun_step *s)
{
	bool ahead = can_go_ahead(g);
	tess_status st = ahead ? queue_ahead(g) : TESS_OK;

	if (!st)
		st = read_chosen_ids(g, s);
	if (!st)
		st = tess_generate_share_choices(g, s);
	if (!st)
		st = apply_choices(g, s);
	for (int64_t i = 0; ahead && i < g->nrunning && !st; i++)
		if (g->running[i]->sequence)
			g->running[i]->sequence->ncached++;
	g->queued = ahead;
	return st;
}

/* Completes the queued step: a row of each sequence. */
static tess_status run_chosen_step(struct tess_generate_state *g)
{
	struct tess_begun_step *s = g->step;

	s->n = s->nchoices = g->nrunning;
	s->nwhole = 0;
	for (int64_t i = 0; i < s->n; i++)
		s->part[i] = (struct tess_step_part){
			.request = g->running[i], .nrows = 1, .selected = true, .chooses = true
		};
	return complete_chosen(g, s);
}

/* Gives a sequence an unused set; sequences with sets choose an id in each step. */
static tess_status send_seen(struct tess_generate_state *g, struct tess_running_request *r)
{
	const struct tess_sequence *s = r->sequence;
	bool used[TESS_CHOSEN_MAX] = { false };

	for (int64_t i = 0; i < g->nrunning; i++)
		if (g->running[i]->set >= 0)
			used[g->running[i]->set] = true;
	for (r->set = 0; used[r->set]; r->set++)
		;
	return tess_runner_send_seen(g->runner, r->set, s->ids, s->nids);
}

/* Queues a step whose ids are already read, and completes it. */
static tess_status queue_chosen_step(struct tess_generate_state *g, struct tess_begun_step *s)
{
	tess_status st = TESS_OK;

	g->nchosen = 0;
	for (int64_t i = 0; i < s->n && !st; i++) {
		struct tess_running_request *r = s->part[i].request;

		if (r->row < 0)
			continue;
		if (r->set < 0 && tess_sampling_has_penalty(&r->asked->sampling))
			st = send_seen(g, r);
		g->draws[g->nchosen++] = get_next_draw(g, r, false);
	}
	if (!st)
		st = tess_runner_choose(g->runner, g->rows, s->n, g->draws, false);
	for (int64_t i = 0; i < s->n && !st; i++)
		s->part[i].request->sequence->ncached += s->part[i].nrows;
	return st ? st : complete_chosen(g, s);
}

/* ---- all steps ------------------------------------------------------------------------------- */

tess_status tess_generate_run_step(struct tess_generate_state *g)
{
	tess_status st = TESS_OK;

	if (g->queued)
		return run_chosen_step(g);
	while (!st && g->nbegun - g->ncompleted < g->ahead) {
		struct tess_begun_step *s = get_begun_step(g, g->nbegun);

		st = tess_runner_wait_for_messages(g->runner, g->nbegun - g->ring);
		s->number = g->nbegun;
		if (st || !compose_step(g, s))
			break;
		if (number_chosen_rows(g, s))
			return queue_chosen_step(g, s);
		st = begin_step(g, s);
		while (!st && must_finish(g))
			st = finish_oldest_step(g);
	}
	return st ? st : complete_step(g);
}

tess_status tess_generate_drop_steps(struct tess_generate_state *g)
{
	tess_status st = TESS_OK, mine;

	for (; g->ncompleted < g->nbegun && !st; g->ncompleted++) {
		if (g->nfinished == g->ncompleted)
			st = finish_oldest_step(g);
		if (!st)
			st = tess_generate_receive_ids(g, get_begun_step(g, g->ncompleted));
	}
	mine = tess_runner_settle(g->runner);
	return st ? st : mine;
}

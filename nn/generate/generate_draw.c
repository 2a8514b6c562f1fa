/*
 * generate_draw.c - the way from the logits of a step to rank 0's choices, on all ranks.
 *
 * Without a pipeline, rank 0 draws ids, passes them to the callbacks, and broadcasts what they
 * decide. In a pipeline, the first rank of the stage with the logits draws, and sends 16 bytes for
 * each id to rank 0, and complete rows of logits if a callback asks for them. Rank 0 decides, and
 * its choices pass from stage to stage, since each stage needs them later than the one before.
 */
#include "core/base/status.h"
#include "nn/generate/generate_state.h"
#include "nn/program/agree.h"

#include <stdlib.h>
#include <string.h>

enum {
	ID_WORDS = sizeof(struct tess_chosen) / sizeof(int32_t),
	CHOICE_WORDS = sizeof(struct tess_id_choice) / sizeof(int32_t)
};

/* ---- drawn ids ------------------------------------------------------------------------------- */

/* Sets the logits of each selected part: complete on the rank that draws, or candidates. */
static tess_status read_rows(struct tess_generate_state *g, const struct tess_begun_step *s,
                             const float *logits)
{
	int64_t n = 0, vocabulary = tess_runner_vocabulary(g->runner);

	for (int64_t i = 0; i < s->n; i++) {
		const struct tess_step_part *part = &s->part[i];
		const struct tess_generate_request *q = part->request->asked;
		const struct tess_sequence *sequence = part->request->sequence;
		struct tess_cut_row *row = &g->cut_rows[n];

		if (!part->selected)
			continue;
		*row = (struct tess_cut_row){ .nrows = q->all ? part->nrows : 1,
			                      .whole = q->all || q->logits,
			                      .logits = logits };
		if (part->chooses && sequence) { /* it may have ended since */
			row->sampling = &q->sampling;
			row->seen = sequence->ids;
			row->nseen = sequence->nids;
		}
		if (logits)
			logits += row->nrows * (g->cut ? 0 : vocabulary);
		n++;
	}
	return g->cut ? tess_cut_logits_read(g->cut, logits, g->cut_rows, n) : TESS_OK;
}

/* Draws the id that the last row chooses, unless logits are non-finite. */
static struct tess_chosen draw_next_id(struct tess_generate_state *g,
                                       const struct tess_step_part *part,
                                       const struct tess_cut_row *row)
{
	int64_t n = tess_runner_vocabulary(g->runner);
	const float *logits = row->logits ? row->logits + (row->nrows - 1) * n : NULL;
	struct tess_odd_logits odd = logits ? tess_logits_find_odd(logits, n) : row->odd;
	uint64_t step = (uint64_t)g->results[part->request->request].ntokens;

	if (odd.count)
		return (struct tess_chosen){ .odd = (int32_t)odd.count,
			                     .first_odd = (int32_t)odd.id,
			                     .is_nan = (int32_t)odd.is_nan };
	return (struct tess_chosen){
		.id = logits ? tess_sampler_draw(g->sampler, row->sampling, logits, row->seen,
		                                 row->nseen, step)
		             : tess_sampler_draw_candidates(g->sampler, row->sampling,
		                                            row->candidates, row->ncandidates, step)
	};
}

static bool passes_logits(const struct tess_step_part *part)
{
	return part->selected && (part->request->asked->all || part->request->asked->logits);
}

static int64_t count_part_rows(const struct tess_step_part *part)
{
	return part->request->asked->all ? part->nrows : 1;
}

static tess_status reserve_logits(struct tess_generate_state *g, struct tess_begun_step *s)
{
	int64_t vocabulary = tess_runner_vocabulary(g->runner);
	float *more;

	if (s->nwhole <= s->nlogits)
		return TESS_OK;
	more = realloc(s->logits, (size_t)(s->nwhole * vocabulary) * sizeof *more);
	if (!more)
		return tess_group_agree_unless_apart(
			g->group, true, tess_fail(TESS_ENOMEM, "out of memory"), "generate");
	s->logits = more;
	s->nlogits = s->nwhole;
	return TESS_OK;
}

/* Sends ids and complete rows of logits to rank 0. The next step has its rows in their place. */
static tess_status send_ids(struct tess_generate_state *g, struct tess_begun_step *s)
{
	int64_t vocabulary = tess_runner_vocabulary(g->runner);
	tess_status st = reserve_logits(g, s);
	float *to = s->logits;

	for (int64_t i = 0; i < s->n && !st; i++) {
		const struct tess_step_part *part = &s->part[i];
		int64_t n = count_part_rows(part) * vocabulary;

		if (!passes_logits(part))
			continue;
		memcpy(to, part->logits, (size_t)n * sizeof *to);
		to += n;
	}
	if (!st && s->nchoices)
		st = tess_runner_send(g->runner, 0, s->ids, s->nchoices * ID_WORDS, "generate:ids",
		                      s->number);
	if (!st && s->nwhole)
		st = tess_runner_send(g->runner, 0, s->logits, s->nwhole * vocabulary,
		                      "generate:logits", s->number);
	return st;
}

tess_status tess_generate_draw_ids(struct tess_generate_state *g, struct tess_begun_step *s,
                                   const float *logits)
{
	int64_t n = 0, row = 0;
	tess_status st;

	if (g->stages.stage != g->stages.logits)
		return TESS_OK;
	st = read_rows(g, s, logits);
	if (st || !g->sampler)
		return st;
	for (int64_t i = 0; i < s->n; i++) {
		struct tess_step_part *part = &s->part[i];

		if (!part->selected)
			continue;
		part->logits = g->cut_rows[row].logits;
		if (part->chooses)
			s->ids[n++] = part->request->sequence
			                      ? draw_next_id(g, part, &g->cut_rows[row])
			                      : (struct tess_chosen){ 0 };
		row++;
	}
	return g->calls_back ? TESS_OK : send_ids(g, s);
}

tess_status tess_generate_receive_ids(struct tess_generate_state *g, struct tess_begun_step *s)
{
	int64_t vocabulary = tess_runner_vocabulary(g->runner);
	const float *logits;
	tess_status st;

	if (!g->calls_back || g->sampler)
		return TESS_OK;
	st = reserve_logits(g, s);
	if (!st && s->nchoices)
		st = tess_runner_receive(g->runner, g->stages.logits, s->ids,
		                         s->nchoices * ID_WORDS, "generate:ids");
	if (!st && s->nwhole)
		st = tess_runner_receive(g->runner, g->stages.logits, s->logits,
		                         s->nwhole * vocabulary, "generate:logits");
	logits = s->logits;
	for (int64_t i = 0; i < s->n && !st; i++)
		if (passes_logits(&s->part[i])) {
			s->part[i].logits = logits;
			logits += count_part_rows(&s->part[i]) * vocabulary;
		}
	return st;
}

/* ---- choices, on rank 0 ---------------------------------------------------------------------- */

static bool is_stop_id(const struct tess_generate_request *request, int32_t id)
{
	for (int64_t i = 0; i < request->nstop; i++)
		if (request->stop[i] == id)
			return true;
	return false;
}

/* Rejects non-finite logits, which would choose an arbitrary id. */
static tess_status check_logits(const struct tess_running_request *r, const struct tess_chosen *id)
{
	if (!id->odd)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "%d of the %lld logits that choose an id at position %lld are not "
	                 "finite (id %d: %s); a weight of the checkpoint is not finite, or a value "
	                 "overflows: "
	                 "--check or TESSERA_CHECK=1 names the first module where that happens",
	                 (int)id->odd, (long long)tess_runner_vocabulary(r->sequence->runner),
	                 (long long)r->sequence->nids, (int)id->first_odd,
	                 id->is_nan ? "NaN" : "Inf");
}

/* Passes an id to the callback, and decides whether it is the last one: TESS_FINISH_... */
static struct tess_id_choice choose_id(struct tess_generate_state *g,
                                       const struct tess_step_part *part,
                                       const struct tess_chosen *id)
{
	struct tess_running_request *r = part->request;
	const struct tess_generate_request *q = r->asked;
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	int64_t ntokens = g->results[r->request].ntokens;
	struct tess_id_choice word = { .id = id->id, .status = check_logits(r, id) };
	const float *logits = NULL;
	bool enough = r->end_wanted, at_text = false;
	int answer;

	if (word.status) {
		word.finish = TESS_FINISH_FAILED;
		r->sentence = strdup(tess_error());
		return word;
	}
	if (q->logits)
		logits = part->logits +
		         (count_part_rows(part) - 1) * tess_runner_vocabulary(g->runner);
	if (c->on_token) {
		answer = c->on_token(c->self, r->request, word.id, logits);
		at_text = answer == TESS_END_AT_TEXT;
		enough |= !at_text && tess_generate_take_answer(g, answer);
	}
	word.finish = enough                         ? TESS_FINISH_INTERRUPT
	              : at_text                      ? TESS_FINISH_TEXT
	              : is_stop_id(q, word.id)       ? TESS_FINISH_STOP
	              : ntokens + 1 == q->max_tokens ? TESS_FINISH_LENGTH
	                                             : 0;
	return word;
}

void tess_generate_take_ids(struct tess_generate_state *g, struct tess_begun_step *s)
{
	const struct tess_generate_callbacks *c = &g->options.callbacks;
	int64_t n = 0;

	memset(s->choices, 0, sizeof *s->choices * (size_t)s->nchoices);
	for (int64_t i = 0; i < s->n && !g->failed; i++) {
		const struct tess_step_part *part = &s->part[i];
		struct tess_running_request *r = part->request;

		if (r->sequence && part->selected && r->asked->all && c->on_logits)
			r->end_wanted |= tess_generate_take_answer(
				g, c->on_logits(c->self, r->request, part->logits, part->nrows));
		if (part->chooses && r->sequence)
			s->choices[n] = choose_id(g, part, &s->ids[n]);
		n += part->chooses;
	}
	if (c->on_step && !g->failed)
		tess_generate_take_answer(g, c->on_step(c->self));
}

/* ---- choices, on all ranks ------------------------------------------------------------------- */

/* Passes choices along a pipeline: each stage gets them from the one before. */
static tess_status pass_choices(struct tess_generate_state *g, struct tess_begun_step *s, int64_t n)
{
	const struct tess_runner_stages *at = &g->stages;
	tess_status st = at->stage ? tess_runner_receive(g->runner, at->stage - 1, s->choices, n,
	                                                 "generate:next")
	                           : tess_runner_broadcast_in_stage(g->runner, s->choices,
	                                                            (uint64_t)n, "generate:next");

	if (st || at->stage + 1 == at->n)
		return st;
	return tess_runner_send(g->runner, at->stage + 1, s->choices, n, "generate:next",
	                        s->number);
}

tess_status tess_generate_share_choices(struct tess_generate_state *g, struct tess_begun_step *s)
{
	struct tess_profile *profile = tess_runner_get_profile(g->runner);
	struct tess_id_choice *end = &s->choices[s->nchoices];
	int64_t n = (s->nchoices + 1) * CHOICE_WORDS, began;
	tess_status st;

	*end = (struct tess_id_choice){ .finish = g->end_wanted, .status = g->failed };
	if (g->stages.n > 1) {
		st = pass_choices(g, s, n);
	} else {
		began = tess_profile_begin(profile);
		st = tess_broadcast(g->group, s->choices, (uint64_t)n, TESS_I32, 0,
		                    "generate:next");
		tess_profile_add_call(profile, g->group, began);
	}
	if (!st && end->status)
		st = tess_generate_share_failure(g);
	g->end_all = end->finish != 0;
	return st;
}

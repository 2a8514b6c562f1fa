/*
 * A runner and the text that is generated with it, in one process: where a text ends, what is fed and given out, and
 * that it starts anew. Greedy, so that ids are known.
 */
#include "hf/checkpoint.h"
#include "nn/generate.h"

#include "../unit/suite.h"

#include <core/base/status.h>
#include <core/registry/registry.h>
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, PROMPT = 7, ROOM = 64 };
static const int32_t prompt[PROMPT] = { 1, 403, 407, 261, 378, 5, 90 };

struct open { /* a runner of the checkpoint in data, on one rank */
	struct tess_checkpoint *checkpoint;
	struct tess_source source;
	struct tess_plan plan;
	struct tess_runner *runner;
	int32_t rank;
};

static tess_status open_runner(struct tess_world *w, const char *plan, struct open *o)
{
	struct tess_runner_parts parts = { .group = tess_world_group(w), .threads = 1 };
	tess_status st = tess_checkpoint_open(SOURCE_ROOT "/data", &o->checkpoint);

	o->rank = tess_world_rank(w);
	if (!st)
		st = tess_plugin_model("llama", &parts.model);
	if (!st)
		st = tess_plan_open(parts.model, plan, NULL, 0, &o->plan);
	if (st)
		return st;
	o->source = tess_checkpoint_source(o->checkpoint);
	parts.plan = &o->plan;
	parts.source = &o->source;
	return tess_runner_new(&parts, &o->runner);
}

static void close_runner(struct open *o)
{
	tess_runner_free(o->runner);
	tess_plan_free(&o->plan);
	tess_checkpoint_close(o->checkpoint);
}

struct text { /* what rank 0 is given */
	int64_t n, nrows, enough; /* enough: ids after which its reader has had enough; 0: never */
	int32_t id[MOST];
	float *rows; /* [nrows][vocabulary] */
	int64_t vocabulary;
	bool chosen_by_best; /* each id is the largest of the logits that came with it */
};

static int chosen(void *self, int32_t id, const float *logits)
{
	struct text *t = self;

	for (int64_t i = 0; i < t->vocabulary; i++)
		t->chosen_by_best = t->chosen_by_best && logits[i] <= logits[id];
	t->id[t->n++] = id;
	return t->n == t->enough;
}

static tess_status rows_come(void *self, const float *rows, int64_t n)
{
	struct text *t = self;

	memcpy(t->rows + t->nrows * t->vocabulary, rows,
	       sizeof *rows * (size_t)(n * t->vocabulary));
	t->nrows += n;
	return TESS_OK;
}

#define HOLDS(condition) \
	do { \
		if (!(condition)) \
			return tess_fail_in(TESS_EBUG, "line %d: %s", __LINE__, #condition); \
	} while (0)

/* One text; *text is empty but on rank 0. */
static tess_status write_text(struct open *o, const struct tess_generate *how, struct text *text,
                              struct tess_generated *done)
{
	struct tess_generate ask = *how;

	*text = (struct text){ .vocabulary = tess_runner_vocabulary(o->runner),
		               .rows = text->rows,
		               .enough = text->enough,
		               .chosen_by_best = true };
	if (!ask.sampling.repetition_penalty)
		ask.sampling.repetition_penalty = 1;
	ask.prompt = prompt;
	ask.nprompt = PROMPT;
	ask.self = text;
	ask.chosen = o->rank ? NULL : chosen;
	ask.logits = o->rank ? NULL : rows_come;
	return tess_generate_run(o->runner, &ask, done);
}

static tess_status ends(struct tess_world *w, void *arg)
{
	struct open o = { 0 };
	struct text first = { 0 }, text = { 0 };
	struct tess_generated done;
	int32_t stop[3];

	(void)arg;
	HOLDS(!open_runner(w, "tp", &o));
	HOLDS(!write_text(&o, &(struct tess_generate){ .max_tokens = 9 }, &first, &done));
	HOLDS(done.finish == TESS_FINISH_LENGTH && done.ntokens == 9);
	HOLDS(o.rank ? !first.n : first.n == 9 && first.chosen_by_best);
	HOLDS(!tess_broadcast(tess_world_group(w), first.id, 9, TESS_I32, 0, "ids"));
	for (int64_t at = 0; at < 3;
	     at++) { /* whichever of the stops it is, and the first of them in the text */
		memcpy(stop, (int32_t[]){ -7, -7, -7 }, sizeof stop);
		stop[at] = first.id[4];
		HOLDS(!write_text(
			&o, &(struct tess_generate){ .max_tokens = 9, .stop = stop, .nstop = 3 },
			&text, &done));
		HOLDS(done.finish == TESS_FINISH_STOP && done.ntokens == 5);
		HOLDS(o.rank || (text.n == 5 && !memcmp(text.id, first.id, 5 * sizeof *text.id)));
		/* one that is not among the `nstop` first is none */
		HOLDS(!write_text(
			&o, &(struct tess_generate){ .max_tokens = 9, .stop = stop, .nstop = at },
			&text, &done));
		HOLDS(done.finish == TESS_FINISH_LENGTH && done.ntokens == 9);
	}
	text.enough = 3;
	HOLDS(!write_text(&o, &(struct tess_generate){ .max_tokens = 9 }, &text, &done));
	HOLDS(done.finish == TESS_FINISH_INTERRUPT && done.ntokens == 3);
	text.enough = 0;
	HOLDS(!write_text(&o, &(struct tess_generate){ .max_tokens = 0 }, &text, &done));
	HOLDS(done.finish == TESS_FINISH_LENGTH && !done.ntokens && !text.n);
	close_runner(&o);
	return TESS_OK;
}

/* Prompts in chunks of any size: the same rows of logits, and the last of them chooses. */
static tess_status feeds(struct tess_world *w, void *arg)
{
	struct open o = { 0 };
	struct text want = { 0 }, have = { 0 };
	struct tess_generated done;
	size_t bytes;

	(void)arg;
	HOLDS(!open_runner(w, "tp", &o));
	bytes = (size_t)(MOST * tess_runner_vocabulary(o.runner)) * sizeof *want.rows;
	want.rows = calloc(1, bytes);
	have.rows = calloc(1, bytes);
	HOLDS(want.rows && have.rows);
	HOLDS(!write_text(&o, &(struct tess_generate){ .max_tokens = 4, .all = true }, &want,
	                  &done));
	HOLDS(o.rank || (want.nrows == PROMPT + 3 && want.chosen_by_best));
	for (int64_t chunk = 1; chunk <= PROMPT + 1; chunk++) {
		memset(have.rows, 0, bytes);
		HOLDS(!write_text(
			&o, &(struct tess_generate){ .max_tokens = 4, .all = true, .chunk = chunk },
			&have, &done));
		HOLDS(done.ntokens == 4 && have.n == want.n && have.nrows == want.nrows &&
		      have.chosen_by_best);
		HOLDS(!memcmp(have.id, want.id, sizeof want.id) &&
		      !memcmp(have.rows, want.rows, bytes));
	}
	HOLDS(!write_text(&o, &(struct tess_generate){ .max_tokens = 4, .chunk = 3 }, &have,
	                  &done));
	HOLDS(!have.nrows && !memcmp(have.id, want.id, sizeof want.id));
	free(want.rows);
	free(have.rows);
	close_runner(&o);
	return TESS_OK;
}

/* An id that was in the prompt or was chosen is penalised from then on: no id comes twice. */
static tess_status penalises(struct tess_world *w, void *arg)
{
	struct tess_generate how = { .max_tokens = 12, .sampling = { .repetition_penalty = 1e6 } };
	struct open o = { 0 };
	struct text text = { 0 };
	struct tess_generated done;

	(void)arg;
	HOLDS(!open_runner(w, "tp", &o));
	HOLDS(!write_text(&o, &how, &text, &done));
	for (int64_t i = 0; i < text.n; i++) {
		for (int64_t k = 0; k < i; k++)
			HOLDS(text.id[i] != text.id[k]);
		for (int64_t k = 0; k < PROMPT; k++)
			HOLDS(text.id[i] != prompt[k]);
	}
	close_runner(&o);
	return TESS_OK;
}

static bool refuses(struct tess_runner *r, int32_t id, int64_t n, const char *says)
{
	int32_t ids[MOST];
	const float *rows;

	for (int64_t i = 0; i < n; i++)
		ids[i] = id;
	return tess_runner_step(r, ids, n, false, &rows) == TESS_EINVAL &&
	       strstr(tess_error(), says);
}

/* A refusal changes nothing: the next step is at the position where it would have been. */
static tess_status bounds(struct tess_world *w, void *arg)
{
	struct open o = { 0 };
	int32_t last;
	const float *rows;

	(void)arg;
	HOLDS(!open_runner(w, "tp", &o));
	last = (int32_t)tess_runner_vocabulary(o.runner) - 1;
	HOLDS(!tess_runner_reserve(o.runner, 3)); /* which is room for 64 */
	HOLDS(refuses(o.runner, -1, 1, "id -1 at position 0") &&
	      refuses(o.runner, last + 1, 2, "outside the vocabulary") &&
	      refuses(o.runner, 1, 0, "without ids"));
	for (int i = 0; i < ROOM / PROMPT; i++)
		HOLDS(!tess_runner_step(o.runner, prompt, PROMPT, false, &rows));
	HOLDS(refuses(o.runner, last, 2, "position 64: the caches have room for 64"));
	HOLDS(!tess_runner_step(o.runner, &last, 1, false, &rows));
	HOLDS(refuses(o.runner, last, 1, "position 64: the caches have room for 64"));
	HOLDS(!tess_runner_reserve(o.runner, 3) &&
	      !tess_runner_step(o.runner, prompt, PROMPT, false, &rows));
	close_runner(&o);
	return TESS_OK;
}

/* Rank 1 has another plan: as many records, or more of them. */
static tess_status differs(struct tess_world *w, void *arg)
{
	const char *const *plans = arg;
	struct open o = { 0 };
	tess_status st = open_runner(w, plans[tess_world_rank(w) == 1], &o);

	HOLDS(st == TESS_EMISMATCH && strstr(tess_error(), plans[2]));
	close_runner(&o);
	return TESS_OK;
}

static void on_ranks(int32_t n, tess_status (*fn)(struct tess_world *, void *), void *arg)
{
	if (tess_world_spawn(n, fn, arg))
		ck_abort_msg("%d ranks: %s", n, tess_error());
}

START_TEST(a_text_ends_where_it_is_asked_to)
{
	on_ranks(1, ends, NULL);
	on_ranks(3, ends, NULL);
}
END_TEST

START_TEST(a_prompt_may_come_in_chunks)
{
	on_ranks(1, feeds, NULL);
	on_ranks(2, feeds, NULL);
}
END_TEST

START_TEST(what_was_there_is_penalised)
{
	on_ranks(2, penalises, NULL);
}
END_TEST

START_TEST(a_step_is_refused_as_a_whole)
{
	on_ranks(1, bounds, NULL);
	on_ranks(2, bounds, NULL);
}
END_TEST

START_TEST(ranks_with_other_programs_are_told)
{
	on_ranks(3, differs, (const char *[]){ "tp", "none", "rank 1 recorded" });
	on_ranks(3, differs,
	         (const char *[]){ "{\"model.layers.1.mlp.up_proj\":\"colwise_rep\"}",
	                           "{\"model.layers.0.mlp.up_proj\":\"colwise_rep\"}",
	                           "rank 1 differs from rank 0 at record" });
}
END_TEST

SUITE_MAIN("runner", a_text_ends_where_it_is_asked_to, a_prompt_may_come_in_chunks,
           what_was_there_is_penalised, a_step_is_refused_as_a_whole,
           ranks_with_other_programs_are_told)

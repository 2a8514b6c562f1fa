/*
 * test_runner.c - a runner and the text that it generates, in one process: the end of a text, the
 * rows fed and returned, and a restart; and the text of a session. Greedy, so ids are known.
 */
#include "api/session.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "core/world/cpus.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <check.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IDS_MAX = 64, PROMPT = 7 };
static const int32_t prompt[PROMPT] = { 1, 403, 407, 261, 378, 5, 90 };

struct open_runner_state { /* a runner of `dir`, or of the checkpoint in data/, on one rank */
	const char *dir;
	int32_t math;
	struct tess_checkpoint *checkpoint;
	struct tess_source source;
	struct tess_plan plan;
	struct tess_runner *runner;
	int32_t rank;
};

static tess_status open_test_runner(struct tess_world *w, const char *plan,
                                    struct open_runner_state *o)
{
	struct tess_runner_parts parts = { .group = tess_world_group(w),
		                           .threads = 1,
		                           .math = o->math };
	tess_status st = tess_checkpoint_open(o->dir ? o->dir : SOURCE_ROOT "/data",
	                                      TESS_CHECKPOINT_WHOLE, &o->checkpoint);

	o->rank = tess_world_rank(w);
	if (!st)
		st = tess_plugin_find_model("llama", &parts.model);
	if (!st)
		st = tess_plan_open(parts.model, plan, NULL, 0, &o->plan);
	if (st)
		return st;
	o->source = tess_checkpoint_make_source(o->checkpoint);
	parts.plan = &o->plan;
	parts.source = &o->source;
	return tess_runner_new(&parts, &o->runner);
}

static void close_test_runner(struct open_runner_state *o)
{
	tess_runner_free(o->runner);
	tess_plan_free(&o->plan);
	tess_checkpoint_close(o->checkpoint);
}

struct generated_text { /* the text on rank 0 */
	int64_t n, nrows, enough; /* enough: number of ids after which the reader stops; 0: never */
	int32_t id[IDS_MAX];
	float *rows; /* [nrows][vocabulary] */
	int64_t vocabulary;
	bool chosen_by_best; /* each id has the largest of its row's logits */
};

static int append_id(void *self, int64_t i, int32_t id, const float *logits)
{
	struct generated_text *t = self;

	(void)i;
	for (int64_t k = 0; k < t->vocabulary; k++)
		t->chosen_by_best = t->chosen_by_best && logits[k] <= logits[id];
	t->id[t->n++] = id;
	return t->n == t->enough ? TESS_END_ONE : TESS_GO_ON;
}

static int append_rows(void *self, int64_t i, const float *rows, int64_t n)
{
	struct generated_text *t = self;

	(void)i;
	memcpy(t->rows + t->nrows * t->vocabulary, rows,
	       sizeof *rows * (size_t)(n * t->vocabulary));
	t->nrows += n;
	return TESS_OK;
}

/* Generates one text; *text is empty on all ranks but 0. */
static tess_status generate_text_in_chunks(struct open_runner_state *o, int64_t chunk,
                                           const struct tess_generate_request *how,
                                           struct generated_text *text,
                                           struct tess_generate_result *done)
{
	struct tess_generate_options options = {
		.chunk = chunk,
		.callbacks = { .self = text, .on_token = append_id, .on_logits = append_rows }
	};
	struct tess_generate_request ask = *how;

	*text = (struct generated_text){ .vocabulary = tess_runner_vocabulary(o->runner),
		                         .rows = text->rows,
		                         .enough = text->enough,
		                         .chosen_by_best = true };
	if (!ask.sampling.repetition_penalty)
		ask.sampling.repetition_penalty = 1;
	ask.prompt = prompt;
	ask.nprompt = PROMPT;
	ask.logits = true;
	return tess_generate_run(o->runner, &ask, 1, &options, done);
}

static tess_status generate_text(struct open_runner_state *o,
                                 const struct tess_generate_request *how,
                                 struct generated_text *text, struct tess_generate_result *done)
{
	return generate_text_in_chunks(o, 0, how, text, done);
}

static tess_status check_ends_of_text(struct tess_world *w, void *arg)
{
	struct open_runner_state o = { 0 };
	struct generated_text first = { 0 }, text = { 0 };
	struct tess_generate_result done;
	int32_t stop[3];

	(void)arg;
	HOLDS(!open_test_runner(w, "tp", &o));
	HOLDS(!generate_text(&o, &(struct tess_generate_request){ .max_tokens = 9 }, &first,
	                     &done));
	HOLDS(done.finish == TESS_FINISH_LENGTH && done.ntokens == 9);
	HOLDS(o.rank ? !first.n : first.n == 9 && first.chosen_by_best);
	HOLDS(!tess_broadcast(tess_world_group(w), first.id, 9, TESS_I32, 0, "ids"));
	for (int64_t at = 0; at < 3; at++) { /* the first occurrence of any stop ends the text */
		memcpy(stop, (int32_t[]){ -7, -7, -7 }, sizeof stop);
		stop[at] = first.id[4];
		HOLDS(!generate_text(&o,
		                     &(struct tess_generate_request){
					     .max_tokens = 9, .stop = stop, .nstop = 3 },
		                     &text, &done));
		HOLDS(done.finish == TESS_FINISH_STOP && done.ntokens == 5);
		HOLDS(o.rank || (text.n == 5 && !memcmp(text.id, first.id, 5 * sizeof *text.id)));
		/* an id after the first `nstop` is not a stop */
		HOLDS(!generate_text(&o,
		                     &(struct tess_generate_request){
					     .max_tokens = 9, .stop = stop, .nstop = at },
		                     &text, &done));
		HOLDS(done.finish == TESS_FINISH_LENGTH && done.ntokens == 9);
	}
	text.enough = 5; /* the reader is called before the stop is checked */
	HOLDS(!generate_text(
		&o, &(struct tess_generate_request){ .max_tokens = 9, .stop = stop, .nstop = 3 },
		&text, &done));
	HOLDS(done.finish == TESS_FINISH_INTERRUPT && done.ntokens == 5);
	text.enough = 3;
	HOLDS(!generate_text(&o, &(struct tess_generate_request){ .max_tokens = 9 }, &text, &done));
	HOLDS(done.finish == TESS_FINISH_INTERRUPT && done.ntokens == 3);
	text.enough = 0;
	HOLDS(!generate_text(&o, &(struct tess_generate_request){ .max_tokens = 0 }, &text, &done));
	HOLDS(done.finish == TESS_FINISH_LENGTH && !done.ntokens && !text.n);
	close_test_runner(&o);
	return TESS_OK;
}

/* Checks that prompts in chunks of any size give equal rows of logits; the last row decides. */
static tess_status check_prompt_chunks(struct tess_world *w, void *arg)
{
	struct open_runner_state o = { 0 };
	struct generated_text want = { 0 }, have = { 0 };
	struct tess_generate_result done;
	size_t bytes;

	(void)arg;
	HOLDS(!open_test_runner(w, "tp", &o));
	bytes = (size_t)(IDS_MAX * tess_runner_vocabulary(o.runner)) * sizeof *want.rows;
	want.rows = calloc(1, bytes);
	have.rows = calloc(1, bytes);
	HOLDS(want.rows && have.rows);
	HOLDS(!generate_text(&o, &(struct tess_generate_request){ .max_tokens = 4, .all = true },
	                     &want, &done));
	HOLDS(o.rank || (want.nrows == PROMPT + 3 && want.chosen_by_best));
	for (int64_t chunk = 1; chunk <= PROMPT + 1; chunk++) {
		memset(have.rows, 0, bytes);
		HOLDS(!generate_text_in_chunks(
			&o, chunk, &(struct tess_generate_request){ .max_tokens = 4, .all = true },
			&have, &done));
		HOLDS(done.ntokens == 4 && have.n == want.n && have.nrows == want.nrows &&
		      have.chosen_by_best);
		HOLDS(!memcmp(have.id, want.id, sizeof want.id) &&
		      !memcmp(have.rows, want.rows, bytes));
	}
	HOLDS(!generate_text_in_chunks(&o, 4, &(struct tess_generate_request){ .max_tokens = 4 },
	                               &have, &done));
	HOLDS(!have.nrows && !memcmp(have.id, want.id, sizeof want.id));
	free(want.rows);
	free(have.rows);
	close_test_runner(&o);
	return TESS_OK;
}

/* Checks that ids of the prompt, and ids chosen before, are penalised: no id occurs twice. */
static tess_status check_penalty(struct tess_world *w, void *arg)
{
	struct tess_generate_request how = { .max_tokens = 40,
		                             .sampling = { .repetition_penalty = 1e6 } };
	struct open_runner_state o = { 0 };
	struct generated_text text = { 0 };
	struct tess_generate_result done;

	(void)arg;
	HOLDS(!open_test_runner(w, "tp", &o));
	HOLDS(!generate_text(&o, &how, &text, &done));
	for (int64_t i = 0; i < text.n; i++) {
		for (int64_t k = 0; k < i; k++)
			HOLDS(text.id[i] != text.id[k]);
		for (int64_t k = 0; k < PROMPT; k++)
			HOLDS(text.id[i] != prompt[k]);
	}
	close_test_runner(&o);
	return TESS_OK;
}

static bool is_step_refused(struct tess_runner *r, struct tess_rows rows, int64_t n,
                            const char *says)
{
	struct tess_rows list[2] = { rows, rows };
	const float *logits;

	return tess_runner_step(r, list, n, 0, &logits) == TESS_EINVAL &&
	       strstr(tess_error(), says);
}

/* Checks that a refusal changes nothing: the next step has the position of the refused one. */
static tess_status check_bounds(struct tess_world *w, void *arg)
{
	struct open_runner_state o = { 0 };
	int32_t slot, other, bad[2] = { 1, -1 }, after[2] = { 1 };
	const float *logits;

	(void)arg;
	HOLDS(!open_test_runner(w, "tp", &o));
	after[1] = (int32_t)tess_runner_vocabulary(o.runner);
	HOLDS(!tess_runner_open_slot(o.runner, &slot) && !tess_runner_open_slot(o.runner, &other));
	HOLDS(slot == 0 && other == 1);
	HOLDS(!tess_runner_step(o.runner, &(struct tess_rows){ slot, PROMPT, 1, prompt }, 1, 0,
	                        &logits));
	HOLDS(is_step_refused(o.runner, (struct tess_rows){ slot, 2, 1, bad }, 1,
	                      "id -1 at position 8") &&
	      is_step_refused(o.runner, (struct tess_rows){ slot, 2, 1, after }, 1,
	                      "outside the vocabulary") &&
	      is_step_refused(o.runner, (struct tess_rows){ slot, 0, 0, prompt }, 1,
	                      "at least one id") &&
	      is_step_refused(o.runner, (struct tess_rows){ slot, 3, 4, prompt }, 1,
	                      "4 of 3 rows") &&
	      is_step_refused(o.runner, (struct tess_rows){ slot, 3, -1, prompt }, 1, "rows") &&
	      is_step_refused(o.runner, (struct tess_rows){ slot, 1, 1, prompt }, 0, "no rows") &&
	      is_step_refused(o.runner, (struct tess_rows){ slot, 1, 1, prompt }, 2, "twice") &&
	      is_step_refused(o.runner, (struct tess_rows){ 2, 1, 1, prompt }, 1, "slot 2") &&
	      is_step_refused(o.runner, (struct tess_rows){ -1, 1, 1, prompt }, 1, "slot -1"));
	tess_runner_close_slot(o.runner, other);
	tess_runner_close_slot(o.runner, other);
	HOLDS(!tess_runner_get_length(o.runner, other) && !tess_runner_get_length(o.runner, -1));
	HOLDS(tess_runner_step(o.runner, &(struct tess_rows){ slot, 1, 1, prompt }, 1,
	                       tess_world_size(w), &logits) == TESS_EINVAL);
	HOLDS(is_step_refused(o.runner, (struct tess_rows){ other, 1, 1, prompt }, 1, "not open"));
	HOLDS(tess_runner_get_length(o.runner, slot) == PROMPT);
	HOLDS(!tess_runner_step(o.runner, &(struct tess_rows){ slot, 1, 0, prompt }, 1, 0,
	                        &logits) &&
	      !logits && tess_runner_get_length(o.runner, slot) == PROMPT + 1);
	close_test_runner(&o);
	return TESS_OK;
}

/* Gives rank 1 another plan, with as many records or more. */
static tess_status check_different_plans(struct tess_world *w, void *arg)
{
	const char *const *plans = arg;
	struct open_runner_state o = { 0 };
	tess_status st = open_test_runner(w, plans[tess_world_rank(w) == 1], &o);

	HOLDS(st == TESS_EMISMATCH && strstr(tess_error(), plans[2]));
	close_test_runner(&o);
	return TESS_OK;
}

/* Gives rank 1 products of bf16. */
static tess_status check_different_math(struct tess_world *w, void *arg)
{
	struct open_runner_state o = { .dir = arg,
		                       .math = tess_world_rank(w) == 1 ? TESS_BF16 : 0 };

	HOLDS(open_test_runner(w, "tp", &o) == TESS_EMISMATCH);
	HOLDS(strstr(tess_error(), "rank 1 differs from rank 0 at record") != NULL);
	close_test_runner(&o);
	return TESS_OK;
}

/* ---- sessions -------------------------------------------------------------------------------- */

enum { STORY = 6 };

struct story { /* the result on rank 0 */
	const char *dir, *mesh; /* mesh NULL: tp */
	int64_t max;
	char text[512];
	size_t n, nids;
	int32_t id[STORY];
};

static int append_story(void *self, int64_t i, int32_t id, const float *logits, const char *bytes,
                        uint64_t n)
{
	struct story *s = self;

	(void)i, (void)logits;
	s->id[s->nids++ % STORY] = id;
	if (n)
		memcpy(s->text + s->n, bytes, n);
	s->n += n;
	s->text[s->n] = 0;
	return TESS_GO_ON;
}

static int end_story(void *self, int64_t i, const struct tess_result *r, const char *bytes,
                     uint64_t n)
{
	struct story *s = self;

	(void)i, (void)r;
	if (n)
		memcpy(s->text + s->n, bytes, n);
	s->n += n;
	s->text[s->n] = 0;
	return TESS_GO_ON;
}

static tess_status generate_story(struct tess_world *w, void *arg)
{
	static const struct tess_sampling greedy = { .repetition_penalty = 1 };
	struct story *to = arg;
	struct tess_request ask = { .size = sizeof ask,
		                    .text = "Once upon a time",
		                    .ntext = 16,
		                    .max_tokens = to->max,
		                    .sampling = &greedy };
	const struct tess_request *const list[] = { &ask };
	struct tess_generation how = {
		.size = sizeof how, .self = to, .on_token = append_story, .on_end = end_story
	};
	bool first = tess_world_rank(w) == 0;
	struct tess_session *s;
	struct tess_mesh *mesh;

	HOLDS(!tess_mesh_open(w, to->mesh ? to->mesh : "tp", &mesh) &&
	      !tess_session_open(mesh, to->dir, NULL, &s));
	if (first)
		to->n = 0, to->nids = 0;
	/* requests of other ranks are ignored */
	HOLDS(!tess_session_generate(s, first ? list : NULL, first, &how));
	tess_session_close(s);
	tess_mesh_close(mesh);
	return TESS_OK;
}

static void write_json(const char *dir, const char *file, json_t *o)
{
	char path[128];

	snprintf(path, sizeof path, "%s/%s", dir, file);
	ck_assert(o && !json_dump_file(o, path, 0));
	json_decref(o);
}

/* Makes a copy of the checkpoint with these two end ids, in which token `id` is the byte E2. */
static void make_checkpoint(char *dir, int32_t end, int32_t other_end, int32_t id)
{
	static const char *const same[] = { "config.json", "model.safetensors",
		                            "tokenizer_config.json" };
	json_t *t = json_load_file(SOURCE_ROOT "/data/tokenizer.json", 0, NULL), *vocab, *value;
	const char *token;
	char from[512], to[128];

	ck_assert(t && mkdtemp(dir));
	for (int i = 0; i < 3; i++) {
		snprintf(from, sizeof from, "%s/data/%s", SOURCE_ROOT, same[i]);
		snprintf(to, sizeof to, "%s/%s", dir, same[i]);
		ck_assert(!symlink(from, to));
	}
	write_json(dir, "generation_config.json",
	           json_pack("{s:[i,i]}", "eos_token_id", end, other_end));
	vocab = json_object_get(json_object_get(t, "model"), "vocab");
	json_object_foreach(vocab, token, value)
		if (json_integer_value(value) == id)
			break;
	json_object_set(vocab, token, json_object_get(vocab, "<0xE2>"));
	json_object_set_new(vocab, "<0xE2>", json_integer(id));
	write_json(dir, "tokenizer.json", t);
}

static void remove_checkpoint(const char *dir)
{
	static const char *const files[] = { "config.json", "model.safetensors",
		                             "tokenizer_config.json", "generation_config.json",
		                             "tokenizer.json" };
	char path[128];

	for (int i = 0; i < 5; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, files[i]);
		unlink(path);
	}
	rmdir(dir);
}

/* Checks the number of CPUs of this process, among ranks that may all use them. */
static tess_status check_share_of_cpus(struct tess_world *w, void *arg)
{
	int32_t all = *(int32_t *)arg / tess_world_size(w), share;

	HOLDS(!tess_world_count_cpus(w, &share) && share == (all > 1 ? all : 1));
	return TESS_OK;
}

START_TEST(a_text_ends_where_requested)
{
	spawn_ranks(1, check_ends_of_text, NULL);
	spawn_ranks(3, check_ends_of_text, NULL);
}
END_TEST

START_TEST(a_prompt_may_come_in_chunks)
{
	spawn_ranks(1, check_prompt_chunks, NULL);
	spawn_ranks(2, check_prompt_chunks, NULL);
}
END_TEST

START_TEST(earlier_ids_are_penalised)
{
	spawn_ranks(2, check_penalty, NULL);
}
END_TEST

START_TEST(a_step_is_refused_as_a_whole)
{
	spawn_ranks(1, check_bounds, NULL);
	spawn_ranks(2, check_bounds, NULL);
}
END_TEST

static void set_cpus(struct tess_rank_cpus *c, const char *host, int first, int n)
{
	*c = (struct tess_rank_cpus){ 0 };
	strcpy(c->host, host);
	for (int i = first; i < first + n; i++)
		CPU_SET(i, &c->may_use);
}

/*
 * Checks that a rank shares its CPUs with all ranks of its host that may use them, and no others.
 */
START_TEST(cpus_are_shared_within_a_host)
{
	struct tess_rank_cpus all[8], mine;
	int32_t cpus;

	for (int r = 0; r < 8; r++) /* two hosts */
		set_cpus(&all[r], r < 6 ? "a" : "b", 0, 12);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[0], all, 8), 2);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[7], all, 8), 6);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[7], all + 7, 1), 12);
	for (int r = 0; r < 8; r++) /* each bound to CPUs of its own, or two to one */
		set_cpus(&all[r], "a", r < 7 ? 4 * r : 24, 4);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[0], all, 8), 4);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[7], all, 8), 2);
	for (int r = 0; r < 8; r++)
		set_cpus(&all[r], "a", 0, 3);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[0], all, 8), 1);
	for (int r = 0; r < 8; r++) { /* two containers of a host: 5.5 CPUs, and no limit */
		set_cpus(&all[r], "a", 0, 64);
		if (r < 3)
			all[r].quota = (struct tess_cpu_quota){ .cpus = 5.5, .group = 7 };
	}
	ck_assert_int_eq(tess_rank_cpus_count(&all[0]), 6);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[0], all, 1), 6);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[0], all, 8), 2);
	ck_assert_int_eq(tess_rank_cpus_divide(&all[7], all, 8), 8);
	all[0].quota.cpus = all[1].quota.cpus = 0.5;
	ck_assert_int_eq(tess_rank_cpus_divide(&all[0], all, 2), 1);
	tess_rank_cpus_read(&mine);
	cpus = tess_rank_cpus_count(&mine);
	ck_assert(cpus > 0 && *mine.host);
	spawn_ranks(1, check_share_of_cpus, &cpus);
	spawn_ranks(3, check_share_of_cpus, &cpus);
}
END_TEST

START_TEST(ranks_with_other_programs_are_refused)
{
	spawn_ranks(3, check_different_plans, (const char *[]){ "tp", "none", "rank 1 recorded" });
	spawn_ranks(3, check_different_plans,
	            (const char *[]){ "{\"model.layers.1.mlp.up_proj\":\"colwise_rep\"}",
	                              "{\"model.layers.0.mlp.up_proj\":\"colwise_rep\"}",
	                              "rank 1 differs from rank 0 at record" });
	spawn_ranks(3, check_different_math, SOURCE_ROOT "/tests/data/goldens/llama-bf16");
}
END_TEST

START_TEST(a_story_ends_at_any_end_of_text)
{
	char dir[] = "/tmp/test_runner.XXXXXX";
	struct story ids = { .dir = SOURCE_ROOT "/data", .max = STORY };
	struct story four = { .dir = ids.dir, .max = 4 };
	struct story story = { .dir = dir, .max = STORY };

	spawn_ranks(1, generate_story, &ids);
	spawn_ranks(2, generate_story, &four);
	ck_assert_uint_gt(four.n, 0);
	for (int i = 0; i < 2; i++) {
		make_checkpoint(strcpy(dir, "/tmp/test_runner.XXXXXX"), i ? 7 : ids.id[3],
		                i ? ids.id[3] : 7, 511);
		spawn_ranks(2, generate_story, &story);
		ck_assert_str_eq(story.text, four.text);
		remove_checkpoint(dir);
	}
}
END_TEST

/* Checks that replicas generate separately; rank 0 of the world returns the text. */
START_TEST(a_story_in_replicas)
{
	static const char *const meshes[] = { "tp,dp=2", "dp=2,tp=2", "dp" };
	struct story want = { .dir = SOURCE_ROOT "/data", .max = STORY };

	spawn_ranks(1, generate_story, &want);
	for (int i = 0; i < 3; i++) {
		struct story story = { .dir = want.dir, .mesh = meshes[i], .max = STORY };

		spawn_ranks(i < 2 ? 4 : 3, generate_story, &story);
		ck_assert_str_eq(story.text, want.text);
	}
}
END_TEST

/*
 * Checks that an incomplete character is held back, and replaced by U+FFFD at the end of the text.
 */
START_TEST(a_story_ends_with_incomplete_bytes)
{
	char dir[] = "/tmp/test_runner.XXXXXX";
	struct story ids = { .dir = SOURCE_ROOT "/data", .max = STORY };
	struct story three = { .dir = ids.dir, .max = 3 };
	struct story story = { .dir = dir, .max = 4 };

	spawn_ranks(1, generate_story, &ids);
	spawn_ranks(1, generate_story, &three);
	make_checkpoint(dir, 7, 7, ids.id[3]);
	spawn_ranks(1, generate_story, &story);
	remove_checkpoint(dir);
	ck_assert_uint_eq(story.n, three.n + 3);
	ck_assert(!memcmp(story.text, three.text, three.n));
	ck_assert_str_eq(story.text + three.n, "\xef\xbf\xbd");
}
END_TEST

SUITE_MAIN("runner", a_text_ends_where_requested, a_prompt_may_come_in_chunks,
           earlier_ids_are_penalised, a_step_is_refused_as_a_whole, cpus_are_shared_within_a_host,
           ranks_with_other_programs_are_refused, a_story_ends_at_any_end_of_text,
           a_story_in_replicas, a_story_ends_with_incomplete_bytes)

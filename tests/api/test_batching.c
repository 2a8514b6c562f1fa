/*
 * test_batching.c - concurrent texts: in random schedules each has the ids and logits that it has
 * alone on one rank; their shared KV cache; callbacks; a text that continues.
 */
#include "tests/support/draw.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <tessera/split.h>

enum {
	PROMPTS = THIN > 1 ? 64 / THIN : 40,
	PROMPT_MAX = TSAN ? 100 : 200,
	NEW_MAX = 6,
	SCHEDULES = 17,
	MORE_SCHEDULES = 5, /* for a backend whose ranks may be processes */
	TEXT_PAGES = 4,
	PAGE = 64
};

static const char *const copies[] = { SOURCE_ROOT "/data",
	                              SOURCE_ROOT "/tests/data/stories260K-bf16",
	                              SOURCE_ROOT "/tests/data/stories260K-f16",
	                              SOURCE_ROOT "/tests/data/stories260K-sharded",
	                              SOURCE_ROOT "/tests/data/goldens/gpt_oss",
	                              SOURCE_ROOT "/tests/data/goldens/gemma3_text" };
/* bytes on one rank: f32, 5 layers, keys and values, 4 heads of 8 */
enum { ONE_PAGE = 4 * 5 * 2 * 4 * 8 * PAGE };
enum { COPIES = sizeof copies / sizeof *copies, VOCABULARY = 512, POSITIONS = 512 };
/* the last two: windows in some layers; the head of gpt_oss is not its table */
enum { GPT_OSS = COPIES - 2, GEMMA3 };
static const int64_t vocabularies[COPIES] = { [GPT_OSS] = 90, [GEMMA3] = 106 };
enum { IDS = 90 }; /* ids that all have */

/* ---- prompts and what became of them --------------------------------------------------------- */

struct batch_prompt {
	int32_t id[PROMPT_MAX];
	struct tess_sampling sampling;
	struct tess_request request;
};

struct batch_text {
	int32_t id[NEW_MAX], finish;
	int64_t n;
	uint64_t hash, rows; /* of the logits that chose the ids; of all rows */
	char sentence[256];
};

struct batch { /* the results that callbacks receive */
	struct tess_session *session; /* rank 0's, if `used` is measured */
	uint64_t used; /* bytes of the KV cache: maximum after a step */
	int64_t base, nsteps; /* base: first index of the texts */
	int64_t vocabulary; /* 0: VOCABULARY */
	/* for one callback at its call number `at` from 1: its return value and name */
	int answer, at, ncalls;
	const char *answers;
	struct batch_text text[PROMPTS];
};

static struct batch_prompt prompts[PROMPTS];

static void make_prompts(void)
{
	uint64_t seed = 7;

	for (int k = 0; k < PROMPTS; k++) {
		struct batch_prompt *p = &prompts[k];
		int64_t n = 1 + (int64_t)draw_below(&seed, 1 + draw_below(&seed, PROMPT_MAX));

		if (k < 2)
			n = k ? PROMPT_MAX : 1;
		for (int64_t i = 0; i < n; i++)
			p->id[i] = (int32_t)draw_below(&seed, IDS);
		p->sampling = (struct tess_sampling){
			.temperature = 0.5 * (double)draw_below(&seed, 3),
			.top_p = k % 3 ? 1 : 0.9,
			.min_p = k % 5 ? 0 : 0.02,
			.repetition_penalty = k % 4 ? 1 : 1.3,
			.top_k = (int64_t)draw_below(&seed, 3) * 7,
			.seed = (uint64_t)k,
		};
		p->request = (struct tess_request){
			.size = sizeof p->request,
			.ids = p->id,
			.nids = n,
			.flags = TESS_TOKEN_LOGITS,
			.sampling = &p->sampling,
			.max_tokens = 1 + (int64_t)draw_below(&seed, NEW_MAX),
		};
	}
}

/* Adds to FNV-1a over 32-bit words. */
static void hash_row(const struct batch *b, uint64_t *hash, const float *logits)
{
	for (int64_t i = 0; i < (b->vocabulary ? b->vocabulary : VOCABULARY); i++) {
		uint32_t bits;

		memcpy(&bits, &logits[i], sizeof bits);
		*hash = (*hash ^ bits) * 0x100000001b3u;
	}
}

static int get_answer(struct batch *b, const char *callback)
{
	if (!b->answers || strcmp(b->answers, callback) != 0 || ++b->ncalls != b->at)
		return TESS_GO_ON;
	return b->answer < 0 ? tess_fail(b->answer, "%s has failed", callback) : b->answer;
}

static int keep_token(void *self, int64_t i, int32_t id, const float *logits, const char *bytes,
                      uint64_t n)
{
	struct batch *b = self;
	struct batch_text *t = &b->text[b->base + i];

	(void)bytes, (void)n;
	t->id[t->n++] = id;
	if (logits)
		hash_row(b, &t->hash, logits);
	return get_answer(b, "on_token");
}

static int keep_rows(void *self, int64_t i, const float *rows, int64_t n)
{
	struct batch *b = self;

	for (int64_t k = 0; k < n; k++)
		hash_row(b, &b->text[b->base + i].rows, rows + k * VOCABULARY);
	return get_answer(b, "on_logits");
}

static int keep_end(void *self, int64_t i, const struct tess_result *r, const char *bytes,
                    uint64_t n)
{
	struct batch *b = self;
	struct batch_text *t = &b->text[b->base + i];

	(void)bytes, (void)n;
	t->finish = r->finish;
	snprintf(t->sentence, sizeof t->sentence, "%s", r->sentence ? r->sentence : "");
	return get_answer(b, "on_end");
}

static int keep_step(void *self)
{
	struct batch *b = self;
	struct tess_session_info info = { .size = sizeof info };

	b->nsteps++;
	if (b->session)
		tess_session_get_info(b->session, &info);
	b->used = info.kv_used_bytes > b->used ? info.kv_used_bytes : b->used;
	return get_answer(b, "on_step");
}

/*
 * Makes a generation. Several replicas share `to`: they have different texts, and none may count
 * steps.
 */
static struct tess_generation make_batch_generation(struct batch *to, bool steps)
{
	return (struct tess_generation){ .size = sizeof(struct tess_generation),
		                         .self = to,
		                         .on_token = keep_token,
		                         .on_logits = keep_rows,
		                         .on_end = keep_end,
		                         .on_step = steps ? keep_step : NULL };
}

/* ---- jobs: a session on each rank ------------------------------------------------------------ */

struct batch_job {
	const char *dir, *mesh;
	struct tess_session_options options;
	tess_status (*run)(struct tess_session *s, bool first, void *arg);
	void *arg;
};

static tess_status run_job_on_rank(struct tess_world *w, void *arg)
{
	const struct batch_job *job = arg;
	struct tess_session_options options = job->options;
	struct tess_session_info info = { .size = sizeof info };
	struct tess_session *s = NULL;
	struct tess_mesh *mesh = NULL;
	tess_status st = tess_mesh_open(w, job->mesh, &mesh);

	options.size = sizeof options;
	if (!st)
		st = tess_session_open(mesh, job->dir, &options, &s);
	if (!st)
		st = job->run(s, tess_world_rank(w) == 0, job->arg);
	if (!st) {
		tess_session_get_info(s, &info);
		HOLDS(!info.kv_used_bytes);
	}
	tess_session_close(s);
	tess_mesh_close(mesh);
	return st;
}

/* ---- schedules ------------------------------------------------------------------------------- */

struct schedule {
	int copy, kv, nranks, n;
	char mesh[32];
	const char *plan;
	bool cut; /* logits stay partitioned by vocabulary */
	int64_t chunk;
	int32_t batch;
	uint64_t kv_memory;
	int order[PROMPTS]; /* of n prompts */
	struct batch got;
};

/*
 * Returns whether text i requests logits; with partitioned logits, others are chosen from
 * candidates.
 */
static bool asks_for_logits(const struct schedule *c, int i)
{
	return !c->cut || c->order[i] % 3 == 0;
}

static tess_status run_schedule(struct tess_session *s, bool first, void *arg)
{
	struct schedule *c = arg;
	struct tess_generation how = make_batch_generation(&c->got, false);
	struct tess_request requests[PROMPTS];
	const struct tess_request *list[PROMPTS];

	for (int i = 0; i < c->n; i++) {
		requests[i] = prompts[c->order[i]].request;
		requests[i].flags = asks_for_logits(c, i) ? TESS_TOKEN_LOGITS : 0;
		list[i] = &requests[i];
	}
	how.chunk = c->chunk;
	how.batch = c->batch;
	return tess_session_generate(s, first ? list : NULL, first ? c->n : 0, &how);
}

static tess_status run_each_alone(struct tess_session *s, bool first, void *arg)
{
	struct batch *b = arg;
	struct tess_generation how = make_batch_generation(b, false);

	(void)first;
	for (; b->base < PROMPTS; b->base++) {
		const struct tess_request *one = &prompts[b->base].request;
		const struct batch_text *t = &b->text[b->base];

		HOLDS(!tess_session_generate(s, &one, 1, &how));
		HOLDS(t->finish == TESS_FINISH_LENGTH || t->finish == TESS_FINISH_STOP);
	}
	return TESS_OK;
}

static const int32_t kv_dtypes[] = { TESS_F32, TESS_BF16 };

/* Returns the texts of all prompts, each alone on one rank. */
static const struct batch_text *get_texts_alone(int copy, int kv)
{
	static struct batch b[COPIES][2];
	struct batch_job job = { .dir = copies[copy],
		                 .mesh = "tp",
		                 .options.kv_dtype = kv_dtypes[kv],
		                 .run = run_each_alone,
		                 .arg = &b[copy][kv] };

	b[copy][kv].vocabulary = vocabularies[copy];
	if (!b[copy][kv].base)
		spawn_ranks(1, run_job_on_rank, &job);
	return b[copy][kv].text;
}

static void draw_order(struct schedule *c, uint64_t *seed)
{
	for (int i = 0; i < PROMPTS; i++) {
		int k = (int)draw_below(seed, (uint64_t)i + 1);

		c->order[i] = c->order[k];
		c->order[k] = i;
	}
}

static struct schedule draw_schedule(uint64_t seed)
{
	static const char *const plans[] = { NULL, "none", "tp+sp" };
	/* key-value heads of the most loaded rank, by tp */
	static const uint64_t kv_heads[] = { 4, 4, 2, 2, 1, 2, 2, 2, 1 };
	struct schedule c = { .copy = (int)draw_below(&seed, GPT_OSS),
		              .kv = (int)draw_below(&seed, 2),
		              .nranks = 1 + (int)draw_below(&seed, 8),
		              .n = 1 + (int)draw_below(&seed, PROMPTS),
		              .plan = plans[draw_below(&seed, 3)] };
	int tp = c.nranks, dp = 1 + (int)draw_below(&seed, 4), pp = 1;
	uint64_t page;

	draw_order(&c, &seed);
	strcpy(c.mesh, "tp");
	if (draw_below(&seed, 2) && c.nranks % dp == 0) {
		tp /= dp;
		snprintf(c.mesh, sizeof c.mesh, tp > 1 ? "dp=%d,tp=%d" : "dp=%d", dp, tp);
	}
	if (draw_below(&seed, 3) == 0 && tp % 2 == 0) {
		pp = 2;
		tp /= 2;
		snprintf(c.mesh, sizeof c.mesh, "dp=%d,pp=2%s", c.nranks / (2 * tp),
		         tp > 1 ? ",tp" : "");
	}
	c.chunk = (int64_t)draw_below(&seed, 1 + draw_below(&seed, 600));
	c.batch = (int32_t)draw_below(&seed, 1 + draw_below(&seed, PROMPTS));
	/* stories260K: 5 layers, 3 in the second of two stages; 4 key-value heads of 8 */
	page = (c.plan && !strcmp(c.plan, "none") ? 4 : kv_heads[tp]) * (pp > 1 ? 3 : 5) * 2 * 8 *
	       PAGE * (c.kv ? 2 : 4);
	if (draw_below(&seed, 2))
		c.kv_memory = page * (TEXT_PAGES + draw_below(&seed, 60));
	c.cut = draw_below(&seed, 2);
	return c;
}

/* Compares the texts of schedule k with those of the same prompts, each alone on one rank. */
static void check_schedule(struct schedule *c, int k)
{
	static const char *const cut[] = { "lm_head=loss_parallel", NULL };
	const struct batch_text *want = get_texts_alone(c->copy, c->kv);
	struct batch_job job = { .dir = copies[c->copy],
		                 .mesh = c->mesh,
		                 .options.plan = c->plan,
		                 .options.overrides = c->cut ? cut : NULL,
		                 .options.kv_dtype = kv_dtypes[c->kv],
		                 .options.kv_memory = c->kv_memory,
		                 .run = run_schedule,
		                 .arg = c };

	c->got.vocabulary = vocabularies[c->copy];
	spawn_ranks(c->nranks, run_job_on_rank, &job);
	for (int i = 0; i < c->n; i++) {
		const struct batch_text *a = &c->got.text[i], *b = &want[c->order[i]];
		uint64_t hash = asks_for_logits(c, i) ? b->hash : 0;

		ck_assert_msg(a->finish == b->finish && a->n == b->n && a->hash == hash &&
		                      !memcmp(a->id, b->id, sizeof a->id),
		              "schedule %d: %s -n %d --mesh %s --plan %s%s --batch %d "
		              "--prefill-chunk %d --kv-memory %llu: text %d of %d, "
		              "prompt %d, differs %s",
		              k, copies[c->copy], c->nranks, c->mesh, c->plan ? c->plan : "auto",
		              c->cut ? " --plan-override lm_head=loss_parallel" : "", (int)c->batch,
		              (int)c->chunk, (unsigned long long)c->kv_memory, i, c->n, c->order[i],
		              a->sentence);
	}
}

START_TEST(texts_do_not_depend_on_the_schedule)
{
	uint64_t from = strtoul(getenv("SCHEDULE"), NULL, 10); /* differs by backend */
	int64_t n = tess_up(from ? MORE_SCHEDULES : SCHEDULES, THIN);

	for (uint64_t k = from; k < from + (uint64_t)n; k++) {
		static struct schedule c;

		c = draw_schedule(k);
		check_schedule(&c, (int)k);
	}
}
END_TEST

/*
 * Groups of texts in the stages of a pipeline: a tied head, whose values return to the first stage;
 * a head in the last stage; windows.
 */
static const struct stage_case {
	int copy, nranks;
	const char *mesh;
} stage_cases[] = { { 0, 5, "pp=5" },       { 0, 6, "pp=3,tp=2" },
	            { GPT_OSS, 2, "pp=2" }, { GPT_OSS, 8, "dp=2,tp=2,pp=2" },
	            { GEMMA3, 3, "pp=3" },  { GEMMA3, 8, "pp=4,tp=2" } };

START_TEST(texts_pass_through_stages)
{
	uint64_t seed = (uint64_t)_i + 1;

	for (int k = 0; k < (THIN > 1 ? 1 : 4); k++) {
		static struct schedule c;

		c = (struct schedule){ .copy = stage_cases[_i].copy,
			               .nranks = stage_cases[_i].nranks,
			               .n = PROMPTS,
			               .cut = k % 2 };
		strcpy(c.mesh, stage_cases[_i].mesh);
		draw_order(&c, &seed);
		c.chunk = (int64_t)draw_below(&seed, 600);
		c.batch = (int32_t)draw_below(&seed, PROMPTS);
		check_schedule(&c, k);
	}
}
END_TEST

/* Two stages have a group of two texts each, so that a step has a row of two of four texts. */
static tess_status check_groups(struct tess_session *s, bool first, void *arg)
{
	static struct batch got;
	struct tess_generation how = make_batch_generation(&got, true);
	static const int32_t none = 0;
	struct tess_request r[4];
	const struct tess_request *list[4] = { &r[0], &r[1], &r[2], &r[3] };

	(void)arg;
	if (first)
		got = (struct batch){ .vocabulary = 0 };
	for (int i = 0; i < 4; i++) {
		r[i] = prompts[0].request;
		r[i].stop = &none;
		r[i].max_tokens = NEW_MAX;
	}
	HOLDS(!tess_session_generate(s, list, 4, &how));
	HOLDS(!first ||
	      got.nsteps == 2 * NEW_MAX + 1); /* the last two texts are shared out again */
	return TESS_OK;
}

START_TEST(stages_have_groups_of_texts)
{
	struct batch_job job = { .dir = copies[0], .mesh = "pp", .run = check_groups };

	spawn_ranks(2, run_job_on_rank, &job);
}
END_TEST

/* ---- the KV cache ---------------------------------------------------------------------------- */

enum { TEXTS = THIN > 1 ? 64 / THIN : 16, TEXT = 100 };

static tess_status step_once(struct tess_session *s, struct tess_sequence *q, int64_t n)
{
	struct tess_input in = { .sequence = q, .ids = prompts[1].id, .n = n };
	const float *logits;

	return tess_session_step(s, &in, 1, -1, &logits);
}

static tess_status check_kv_memory(struct tess_session *s, bool first, void *arg)
{
	struct tess_sequence *q[TEXTS];
	struct tess_session_info one = { .size = sizeof one }, all = one, end = one;

	(void)first, (void)arg;
	for (int i = 0; i < TEXTS; i++) {
		HOLDS(!tess_sequence_open(s, &q[i]));
		HOLDS(!step_once(s, q[i], i ? TEXT : PAGE));
		if (!i) {
			tess_session_get_info(s, &one);
			HOLDS(!step_once(s, q[i], TEXT - PAGE));
		}
	}
	tess_session_get_info(s, &all);
	HOLDS(one.kv_used_bytes && one.kv_bytes);
	HOLDS(all.kv_used_bytes == one.kv_used_bytes * TEXTS * 2);
	HOLDS((double)all.kv_bytes <= 1.1 * (double)(one.kv_bytes * TEXTS * 2));
	for (int i = 0; i < TEXTS; i++)
		tess_sequence_close(q[i]);
	tess_session_get_info(s, &end);
	HOLDS(!end.kv_used_bytes && end.kv_bytes == all.kv_bytes);
	/* and are used again */
	for (int i = 0; i < TEXTS; i++) {
		HOLDS(!tess_sequence_open(s, &q[i]));
		HOLDS(!step_once(s, q[i], TEXT));
	}
	tess_session_get_info(s, &end);
	HOLDS(end.kv_used_bytes == all.kv_used_bytes && end.kv_bytes == all.kv_bytes);
	for (int i = 0; i < TEXTS; i++)
		tess_sequence_close(q[i]);
	return TESS_OK;
}

START_TEST(memory_is_that_of_the_pages)
{
	struct batch_job job = { .dir = copies[0], .mesh = "tp", .run = check_kv_memory };

	for (int n = 1; n <= 3; n += 2)
		spawn_ranks(n, run_job_on_rank, &job);
}
END_TEST

static tess_status run_all_prompts(struct tess_session *s, bool first, void *arg)
{
	struct batch *got = arg;
	struct tess_generation how = make_batch_generation(got, true);
	const struct tess_request *list[PROMPTS];

	(void)first;
	got->session = s;
	for (int i = 0; i < PROMPTS; i++)
		list[i] = &prompts[i].request;
	return tess_session_generate(s, list, PROMPTS, &how);
}

/* Gives too little memory for all at once, and too little for the longest. */
START_TEST(texts_wait_for_memory)
{
	const struct batch_text *want = get_texts_alone(0, 0);
	const uint64_t page = ONE_PAGE;

	for (int pages = 2; pages <= TEXT_PAGES; pages++) {
		static struct batch got;
		struct batch_job job = { .dir = copies[0],
			                 .mesh = "tp",
			                 .options.kv_memory = page * (uint64_t)pages,
			                 .run = run_all_prompts,
			                 .arg = &got };
		int nfailed = 0;

		got = (struct batch){ .nsteps = 0 };
		spawn_ranks(1, run_job_on_rank, &job);
		ck_assert(got.used <= page * (uint64_t)pages && got.used > page);
		for (int i = 0; i < PROMPTS; i++) {
			const struct tess_request *r = &prompts[i].request;
			const struct batch_text *t = &got.text[i];
			bool fits = r->nids + r->max_tokens - 1 <= (int64_t)pages * PAGE;

			ck_assert_int_eq(t->finish, fits ? want[i].finish : TESS_FINISH_FAILED);
			ck_assert(!fits || (t->n == want[i].n && t->hash == want[i].hash));
			if (!fits)
				expect_part(t->sentence, "MiB of KV cache");
			nfailed += !fits;
		}
		ck_assert(pages == TEXT_PAGES ? !nfailed : nfailed > 0 && nfailed < PROMPTS);
	}
}
END_TEST

/* Checks that a chunk counts only rows of prompts: a text in generation delays no prompt. */
static tess_status check_steps(struct tess_session *s, bool first, void *arg)
{
	static const int32_t none = -1;
	struct batch *got = arg;
	struct tess_generation how = make_batch_generation(got, true);
	struct tess_request r[2] = { prompts[0].request, prompts[1].request };
	const struct tess_request *list[] = { &r[0], &r[1] };

	r[0].stop = r[1].stop = &none;
	r[0].max_tokens = NEW_MAX;
	r[1].nids = 20;
	r[1].max_tokens = 2;
	how.chunk = 1;
	HOLDS(!tess_session_generate(s, list, 2, &how));
	HOLDS(!first || got->nsteps == r[0].nids + r[1].nids + 1);
	return TESS_OK;
}

START_TEST(prompts_enter_beside_texts)
{
	static struct batch got;
	struct batch_job job = { .dir = copies[0], .mesh = "tp", .run = check_steps, .arg = &got };

	spawn_ranks(2, run_job_on_rank, &job);
}
END_TEST

/* ---- callbacks ------------------------------------------------------------------------------- */

struct callback_case {
	const char *callback;
	int at, answer;
};

static const struct callback_case callback_cases[] = {
	{ "on_token", 5, TESS_EIO },      { "on_logits", 2, TESS_EIO },
	{ "on_end", 1, TESS_EIO },        { "on_end", 3, TESS_EIO },
	{ "on_step", 2, TESS_EIO },       { "on_token", 5, TESS_END_ONE },
	{ "on_logits", 1, TESS_END_ONE }, { "on_token", 5, TESS_END_ALL },
	{ "on_logits", 2, TESS_END_ALL }, { "on_end", 1, TESS_END_ALL },
	{ "on_end", 2, TESS_END_ALL },    { "on_step", 2, TESS_END_ALL },
};

enum { ASKED = 5 }; /* the first is not runnable */

static tess_status check_callback(struct tess_session *s, bool first, void *arg)
{
	const struct callback_case *c = arg;
	static struct batch got;
	struct batch_text *t = got.text;
	struct tess_generation how = make_batch_generation(&got, true);
	struct tess_request r[ASKED];
	const struct tess_request *list[ASKED];
	static const int32_t odd = VOCABULARY, none;
	int nended = 0, ninterrupted = 0;
	tess_status st;

	if (first)
		got = (struct batch){ .answers = c->callback, .at = c->at, .answer = c->answer };
	for (int i = 0; i < ASKED; i++) {
		r[i] = prompts[i].request;
		r[i].stop = &none;
		r[i].max_tokens = 2 + i;
		r[i].flags = TESS_ALL_LOGITS;
		list[i] = &r[i];
	}
	r[0].ids = &odd;
	r[0].nids = 1;
	how.chunk = 64;
	st = tess_session_generate(s, list, ASKED, &how);
	if (c->answer < 0) {
		HOLDS(st == c->answer && strstr(tess_error(), "has failed"));
		HOLDS(strstr(tess_error(), c->callback));
		return TESS_OK;
	}
	HOLDS(!st);
	for (int i = 0; i < ASKED && first; i++) {
		nended += t[i].finish != 0;
		ninterrupted += t[i].finish == TESS_FINISH_INTERRUPT;
	}
	HOLDS(!first || (nended == ASKED && t[0].finish == TESS_FINISH_FAILED));
	HOLDS(!first || strstr(t[0].sentence, "outside the vocabulary"));
	if (c->answer == TESS_END_ONE)
		HOLDS(!first || ninterrupted == 1);
	else
		HOLDS(!first || ninterrupted > 1);
	return TESS_OK;
}

/*
 * Checks that the result of a callback on rank 0 applies to all ranks, and that the session
 * continues.
 */
START_TEST(callbacks_decide)
{
	const struct callback_case *c = &callback_cases[_i];
	struct batch_job job = {
		.dir = copies[0], .mesh = "tp", .run = check_callback, .arg = (void *)(uintptr_t)c
	};
	int n = 1 + 2 * (_i % 2);

	if (n > TSAN)
		spawn_ranks(n, run_job_on_rank, &job);
	job.mesh = "pp"; /* steps are under way */
	spawn_ranks(2, run_job_on_rank, &job);
}
END_TEST

/* Ends all texts on rank 0 in the second step of a prompt, when stages have begun others. */
static tess_status check_end_in_prompt(struct tess_session *s, bool first, void *arg)
{
	static struct batch got;
	struct tess_generation how = make_batch_generation(&got, true);
	const struct tess_request *long_prompt = &prompts[1].request;

	(void)arg;
	if (first)
		got = (struct batch){ .answers = "on_step", .at = 2, .answer = TESS_END_ALL };
	how.chunk = 1;
	HOLDS(!tess_session_generate(s, &long_prompt, 1, &how));
	HOLDS(!first || (got.text[0].finish == TESS_FINISH_INTERRUPT && got.text[0].n == 0));
	HOLDS(!first || got.nsteps == 2);
	return TESS_OK;
}

START_TEST(an_end_reaches_all_stages)
{
	struct batch_job job = { .dir = copies[0], .mesh = "pp", .run = check_end_in_prompt };

	ck_assert_int_gt(prompts[1].request.nids, 40);
	spawn_ranks(2, run_job_on_rank, &job);
}
END_TEST

/* ---- a text that goes on --------------------------------------------------------------------- */

enum { TURN = 20 };

/* Generates one text; to: on rank 0 */
static tess_status generate_one(struct tess_session *s, const struct tess_request *r,
                                struct batch *to)
{
	struct tess_generation how = make_batch_generation(to, true);

	if (to)
		*to = (struct batch){ .nsteps = 0 };
	how.chunk = 1; /* one step for each row */
	return tess_session_generate(s, &r, 1, &how);
}

/* Compares two turns with all ids at once: equal bits; a turn computes only its new rows. */
static tess_status check_chat(struct tess_session *s, bool first, void *arg)
{
	struct batch *got = first ? arg : NULL;
	struct tess_request turn = { .size = sizeof turn,
		                     .ids = prompts[1].id,
		                     .nids = TURN,
		                     .sampling = &prompts[1].sampling,
		                     .flags = TESS_TOKEN_LOGITS,
		                     .max_tokens = 4 };
	struct tess_sequence *q;
	const int32_t *ids;
	uint64_t hash;
	int64_t n;

	HOLDS(!tess_sequence_open(s, &q));
	turn.sequence = q;
	HOLDS(!generate_one(s, &turn, got));
	HOLDS(!first || got->nsteps == TURN + 3);
	turn.ids = prompts[1].id + TURN;
	HOLDS(!generate_one(s, &turn, got));
	/* the last turn's last id was chosen, but not computed */
	HOLDS(!first || got->nsteps == 1 + TURN + 3);
	hash = first ? got->text[0].hash : 0;
	ids = tess_sequence_ids(q, &n);
	HOLDS(n == 2 * (TURN + 4));
	turn = (struct tess_request){ .size = sizeof turn,
		                      .ids = ids,
		                      .nids = n - 4,
		                      .flags = TESS_TOKEN_LOGITS,
		                      .sampling = &prompts[1].sampling,
		                      .max_tokens = 4 };
	HOLDS(!generate_one(s, &turn, got));
	HOLDS(!first || (got->nsteps == n - 1 && got->text[0].hash == hash));
	HOLDS(!first || !memcmp(got->text[0].id, ids + n - 4, 4 * sizeof *ids));
	tess_sequence_close(q);
	return TESS_OK;
}

START_TEST(a_turn_computes_what_is_new)
{
	static struct batch got;
	struct batch_job job = { .dir = copies[0], .mesh = "tp", .run = check_chat, .arg = &got };

	for (int n = 1 + 2 * TSAN; n <= 3; n++)
		spawn_ranks(n, run_job_on_rank, &job);
	job.mesh = "dp=2,tp";
	spawn_ranks(4, run_job_on_rank, &job);
}
END_TEST

/* Checks that a refusal leaves sequences unchanged on all ranks and replicas. */
static tess_status check_refusals(struct tess_session *s, bool first, void *arg)
{
	static const int32_t odd[] = { 1, VOCABULARY };
	struct batch *got = arg;
	struct tess_sequence *q[2];
	struct tess_input in[2] = { { .ids = prompts[1].id, .n = 3, .nselected = 1 },
		                    { .ids = odd, .n = 2 } };
	struct tess_request r[2] = { { .size = sizeof *r }, { .size = sizeof *r } };
	const struct tess_request *list[] = { &r[0], &r[1] };
	struct tess_generation how = make_batch_generation(got, false);
	const float *logits, *one;
	int64_t n;

	if (first)
		*got = (struct batch){ .nsteps = 0 };
	for (int i = 0; i < 2; i++)
		HOLDS(!tess_sequence_open(s, &q[i]));
	in[0].sequence = in[1].sequence = q[0];
	HOLDS(tess_session_step(s, in, 2, -1, &logits) == TESS_EINVAL);
	HOLDS(strstr(tess_error(), "inputs 0 and 1 are of one sequence"));
	HOLDS(tess_session_step(s, in, 1, -1, NULL) == TESS_EINVAL);
	HOLDS(tess_session_generate(s, list, 2, NULL) == TESS_EINVAL);
	in[1].sequence = q[1];
	HOLDS(tess_session_step(s, in, 2, -1, &logits) == TESS_EINVAL);
	HOLDS(strstr(tess_error(), "id 512 at position 1"));
	in[1] = (struct tess_input){ .sequence = q[1], .ids = prompts[1].id, .n = PROMPT_MAX };
	HOLDS(tess_session_step(s, in, 2, -1, &logits) == TESS_ENOMEM);
	tess_sequence_ids(q[1], &n);
	HOLDS(!n);
	in[0].nselected = 2;
	HOLDS(tess_session_step(s, in, 1, -1, &logits) == TESS_EINVAL);
	in[0].nselected = 1;
	tess_sequence_ids(q[0], &n);
	HOLDS(!n);
	HOLDS(!tess_session_step(s, in, 1, -1, &logits));
	tess_sequence_ids(q[0], &n);
	HOLDS(n == 3);
	/* logits without a new id; nothing to continue; two requests of one sequence */
	in[0].n = 0;
	HOLDS(tess_session_step(s, in, 1, -1, &one) == TESS_EINVAL);
	for (int i = 0; i < 2; i++)
		r[i] = (struct tess_request){
			.size = sizeof *r, .ids = odd, .sequence = q[i], .max_tokens = 2
		};
	HOLDS(!tess_session_generate(s, list, 2, &how));
	for (int i = 0; i < 2; i++)
		HOLDS(!first || strstr(got->text[i].sentence, "the prompt is empty"));
	r[1].sequence = q[0];
	r[0].nids = r[1].nids = 1;
	HOLDS(!tess_session_generate(s, list, 2, &how));
	HOLDS(!first || got->text[0].finish != TESS_FINISH_FAILED);
	HOLDS(!first || strstr(got->text[1].sentence, "requests 0 and 1 go on with one sequence"));
	for (int i = 0; i < 2; i++)
		tess_sequence_close(q[i]);
	return TESS_OK;
}

START_TEST(refusals_change_nothing)
{
	static struct batch got;
	struct batch_job job = { .dir = copies[0],
		                 .mesh = "tp",
		                 .options.kv_memory = ONE_PAGE,
		                 .run = check_refusals,
		                 .arg = &got };

	for (int n = 1; n <= 2; n++)
		spawn_ranks(n, run_job_on_rank, &job);
	job.mesh = "dp=2,tp";
	spawn_ranks(2, run_job_on_rank, &job);
}
END_TEST

/* Checks options that are refused without ranks. */
START_TEST(options_are_checked)
{
	static const struct {
		struct tess_session_options options;
		const char *says;
	} cases[] = {
		{ { .size = 0, .math = 77 }, "its field `size` is not set" },
		{ { .size = sizeof cases->options, .kv_dtype = TESS_I8 }, "a KV cache is of" },
		{ { .size = sizeof cases->options, .threads = -5 }, "threads -5" },
		{ { .size = sizeof cases->options, .positions = -5 }, "positions -5" },
	};
	struct tess_session_options shorter = { .size = TESS_UPTO(tess_session_options, threads),
		                                .plan = "nonsense" };
	struct tess_session_info info = { .size = sizeof info };

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		ck_assert_int_eq(tess_session_check(copies[0], "tp", 1, &cases[i].options, &info),
		                 TESS_EINVAL);
		expect_part(tess_error(), cases[i].says);
	}
	ck_assert_msg(!tess_session_check(copies[0], "tp", 1, &shorter, &info), "%s", tess_error());
}
END_TEST

/* Checks that a text has at most the number of positions given to the session. */
static tess_status check_positions(struct tess_session *s, bool first, void *arg)
{
	enum { LONGEST = 5 };
	struct batch *got = arg;
	struct tess_session_info info = { .size = sizeof info };
	struct tess_input in = { .ids = prompts[1].id, .n = LONGEST + 1 };
	struct tess_request r[2] = { { .size = sizeof *r, .ids = in.ids, .nids = LONGEST + 1 },
		                     { .size = sizeof *r, .ids = in.ids, .nids = 3 } };
	const struct tess_request *list[] = { &r[0], &r[1] };
	struct tess_generation how = make_batch_generation(got, false);
	const float *logits;
	int64_t n;

	if (first)
		*got = (struct batch){ .nsteps = 0 };
	tess_session_get_info(s, &info);
	HOLDS(info.positions == LONGEST);
	HOLDS(!tess_sequence_open(s, &in.sequence));
	HOLDS(tess_session_step(s, &in, 1, -1, &logits) == TESS_EINVAL);
	HOLDS(strstr(tess_error(), "6 positions are too many; at most 5"));
	in.n = LONGEST;
	HOLDS(!tess_session_step(s, &in, 1, -1, &logits));
	in.n = 1;
	HOLDS(tess_session_step(s, &in, 1, -1, &logits) == TESS_EINVAL);
	tess_sequence_ids(in.sequence, &n);
	HOLDS(n == LONGEST);
	tess_sequence_close(in.sequence);
	HOLDS(!tess_session_generate(s, list, 2, &how));
	HOLDS(!first || strstr(got->text[0].sentence, "a text has at most 5 positions"));
	HOLDS(!first ||
	      (got->text[1].finish == TESS_FINISH_LENGTH && got->text[1].n == LONGEST + 1 - 3));
	return TESS_OK;
}

START_TEST(texts_have_the_positions_of_the_session)
{
	static struct batch got;
	struct batch_job job = { .dir = copies[0],
		                 .mesh = "tp",
		                 .options.positions = 5,
		                 .run = check_positions,
		                 .arg = &got };

	spawn_ranks(2, run_job_on_rank, &job);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("batching", 240, &r);

	make_prompts();
	tcase_add_test(t, texts_do_not_depend_on_the_schedule);
	tcase_add_test(t, prompts_enter_beside_texts);
	tcase_add_loop_test(t, texts_pass_through_stages, 0,
	                    sizeof stage_cases / sizeof *stage_cases);
	if (strcmp(getenv("TESSERA_BACKEND"), "loopback")) /* the other tests are above backends */
		return suite_end(r);
	tcase_add_loop_test(t, callbacks_decide, 0, sizeof callback_cases / sizeof *callback_cases);
	tcase_add_test(t, an_end_reaches_all_stages);
	tcase_add_test(t, stages_have_groups_of_texts);
	if (!TSAN) { /* each rank has its own pages */
		tcase_add_test(t, memory_is_that_of_the_pages);
		tcase_add_test(t, texts_wait_for_memory);
	}
	tcase_add_test(t, a_turn_computes_what_is_new);
	tcase_add_test(t, refusals_change_nothing);
	tcase_add_test(t, options_are_checked);
	tcase_add_test(t, texts_have_the_positions_of_the_session);
	return suite_end(r);
}

/*
 * test_steps.c - steps with rows of several sequences, in random mixtures: each row has the bits
 * that it has if its sequence runs alone; and the pages of the KV cache. The model is small and
 * random; some of its layers have windows.
 */
#include "nn/generate/runner.h"
#include "nn/program/plan.h"
#include "tests/support/draw.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdio.h>
#include <tessera/model.h>

enum { VOCABULARY = 96, HIDDEN = 32, HEADS = 4, GROUPS = 2, HEAD = 8, LAYERS = 4, PAGE = 64 };
enum { TEXTS = 7, LENGTH_MAX = 220, OPEN_MAX = 4 };

static const int64_t windows[LAYERS] = { 0, 70, 0, 128 };
static const int64_t class_layers[] = { 2, 1, 1 }, class_windows[] = { 0, 70, 128 };
enum { CLASSES = sizeof class_windows / sizeof *class_windows };

/* ---- the model ------------------------------------------------------------------------------- */

static struct tess_tensor *record_layer(struct tess_nn *nn, struct tess_tensor *x, int i,
                                        struct tess_dim *heads, struct tess_dim *groups,
                                        struct tess_dim *hidden)
{
	const struct tess_attention how = { .size = sizeof how,
		                            .scale = 0.9,
		                            .window = windows[i] };
	struct tess_tensor *h[3], *y;

	x = nn->enter(nn, x, "layers.%d", i);
	y = nn->enter(nn, nn->norm(nn, "norm", x, TESS_RMS, 1e-5), "attn");
	nn->linear(
		nn, y,
		(struct tess_linear[]){
			{ "q", heads, 0, 0 }, { "k", groups, 0, 0 }, { "v", groups, 0, 0 }, { 0 } },
		h);
	y = nn->attention(nn, nn->rope(nn, h[0], NULL), nn->rope(nn, h[1], NULL), h[2], &how);
	nn->linear(nn, y, (struct tess_linear[]){ { "o", hidden, 0, 0 }, { 0 } }, &y);
	return nn->leave(nn, nn->add(nn, x, nn->leave(nn, y)));
}

static struct tess_tensor *record_windowed(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *vocab = nn->dim(nn, "vocabulary", VOCABULARY, 0),
			*hidden = nn->dim(nn, "hidden", HIDDEN, TESS_HIDDEN),
			*heads = nn->dim(nn, "heads", HEADS, HEAD),
			*groups = nn->grouped(nn, "groups", heads, GROUPS);
	struct tess_tensor *x = nn->embed(nn, "table", ids, vocab, hidden), *y;

	for (int i = 0; i < LAYERS; i++)
		x = record_layer(nn, x, i, heads, groups, hidden);
	x = nn->select_rows(nn, nn->norm(nn, "norm", x, TESS_RMS, 1e-5));
	nn->linear(nn, x, (struct tess_linear[]){ { "lm_head", vocab, 0, 0 }, { 0 } }, &y);
	return y;
}

static const struct tess_model windowed = { .size = sizeof windowed,
	                                    .name = "windowed",
	                                    .forward = record_windowed };

static tess_status find_tensor(void *self, const char *name, struct tess_view *out)
{
	const float *random = self;
	bool norm = strstr(name, "norm") != NULL;
	size_t length = strlen(name);
	char kind = name[length - strlen("q.weight")];
	int64_t rows = kind == 'q' || kind == 'o'   ? HEADS * HEAD
	               : kind == 'k' || kind == 'v' ? GROUPS * HEAD
	                                            : VOCABULARY;
	uint64_t seed = (uint64_t)length * 131 + (uint64_t)kind * 7 + (uint64_t)name[length / 2];

	if (!strncmp(name, "table", 5) || !strncmp(name, "lm_head", 7))
		rows = VOCABULARY;
	*out = (struct tess_view){ .data = (float *)random + draw_below(&seed, 1000),
		                   .dtype = TESS_F32,
		                   .ndim = norm ? 1 : 2,
		                   .shape = { norm ? HIDDEN : rows, norm ? 0 : HIDDEN },
		                   .stride = { norm ? 1 : HIDDEN, 1 } };
	return TESS_OK;
}

static void ignore_drop(void *self, const void *data, uint64_t bytes)
{
	(void)self, (void)data, (void)bytes;
}

static const char *const plans[] = {
	"none",
	"{\"table\":\"embedding_rowwise\",\"layers.*.attn.q\":\"colwise\",\"layers.*.attn.k\":"
	"\"colwise\",\"layers.*.attn.v\":\"colwise\",\"layers.*.attn.o\":\"rowwise\","
	"\"lm_head\":\"colwise_rep\"}",
	"{\"table\":\"vocab_reduce_scatter\",\"layers.*.norm\":\"sequence_parallel\","
	"\"layers.*.attn\":\"module_allgather\",\"layers.*.attn.q\":\"colwise\","
	"\"layers.*.attn.k\":\"colwise\",\"layers.*.attn.v\":\"colwise\","
	"\"layers.*.attn.o\":\"rowwise_reduce_scatter\",\"norm\":\"sequence_parallel\","
	"\"lm_head\":\"colwise\"}",
	"{\"layers.*.attn.q\":\"colwise\",\"layers.*.attn.k\":\"colwise\",\"layers.*.attn.v\":"
	"\"colwise\",\"layers.*.attn.o\":\"rowwise\",\"lm_head\":\"rowwise\"}",
};
enum { PLANS = sizeof plans / sizeof *plans };

/* ---- texts ----------------------------------------------------------------------------------- */

struct test { /* settings, equal on all ranks */
	struct tess_source source;
	float random[8192];
	const char *plan;
	int32_t dtype;
	uint64_t seed, limit;
	int32_t id[TEXTS][LENGTH_MAX];
	int64_t n[TEXTS];
	float *want[TEXTS]; /* [n][VOCABULARY] */
};

static void make_test(struct test *t, int32_t dtype)
{
	uint64_t seed = 1;

	*t = (struct test){ .source = { .self = t->random,
		                        .name = "random",
		                        .config = json_object(),
		                        .find = find_tensor,
		                        .drop = ignore_drop },
		            .dtype = dtype };
	for (size_t i = 0; i < sizeof t->random / sizeof *t->random; i++)
		t->random[i] = (float)draw_below(&seed, 4096) / 2048 - 1;
	for (int k = 0; k < TEXTS; k++) {
		t->n[k] = LENGTH_MAX - (int64_t)draw_below(&seed, k < 3 ? 40 : LENGTH_MAX);
		t->want[k] = calloc((size_t)(t->n[k] * VOCABULARY), sizeof *t->want[k]);
		for (int64_t i = 0; i < t->n[k]; i++)
			t->id[k][i] = (int32_t)draw_below(&seed, VOCABULARY);
	}
}

static void free_test(struct test *t)
{
	for (int k = 0; k < TEXTS; k++)
		free(t->want[k]);
	json_decref((json_t *)t->source.config);
}

static tess_status open_windowed(struct tess_world *w, const struct test *t, struct tess_plan *plan,
                                 struct tess_runner **out)
{
	struct tess_runner_parts parts = { .model = &windowed,
		                           .plan = plan,
		                           .source = &t->source,
		                           .group = tess_world_group(w),
		                           .threads = 1,
		                           .kv_dtype = t->dtype,
		                           .kv_memory = t->limit };
	tess_status st = tess_plan_open(&windowed, t->plan, NULL, 0, plan);

	return st ? st : tess_runner_new(&parts, out);
}

static tess_status compute_texts_alone(struct tess_world *w, void *arg)
{
	struct test *t = arg;
	struct tess_plan plan;
	struct tess_runner *r;
	const float *logits;
	int32_t slot;

	t->plan = "none";
	HOLDS(!open_windowed(w, t, &plan, &r));
	for (int k = 0; k < TEXTS; k++) {
		struct tess_rows rows = { 0, t->n[k], t->n[k], t->id[k] };

		HOLDS(!tess_runner_open_slot(r, &slot) && slot == 0);
		HOLDS(!tess_runner_step(r, &rows, 1, 0, &logits));
		memcpy(t->want[k], logits, sizeof *logits * (size_t)(t->n[k] * VOCABULARY));
		tess_runner_close_slot(r, slot);
	}
	tess_runner_free(r);
	tess_plan_free(&plan);
	return TESS_OK;
}

/* ---- mixtures -------------------------------------------------------------------------------- */

struct mixing { /* state of one rank; all ranks draw equal numbers */
	struct tess_runner *runner;
	const struct test *test;
	uint64_t seed;
	int32_t rank, nranks, nopen, nended;
	int32_t text[OPEN_MAX], slot[OPEN_MAX];
	bool begun[TEXTS];
};

/* Opens sequences, and sometimes discards one, which will restart. */
static tess_status change_open_texts(struct mixing *m)
{
	while (m->nopen < OPEN_MAX && m->nopen + m->nended < TEXTS &&
	       (!m->nopen || draw_below(&m->seed, 3) == 0)) {
		int32_t k = (int32_t)draw_below(&m->seed, TEXTS);

		while (m->begun[k])
			k = (k + 1) % TEXTS;
		m->begun[k] = true;
		m->text[m->nopen] = k;
		HOLDS(!tess_runner_open_slot(m->runner, &m->slot[m->nopen]));
		HOLDS(tess_runner_get_length(m->runner, m->slot[m->nopen++]) == 0);
	}
	if (m->nopen > 1 && draw_below(&m->seed, 20) == 0) {
		tess_runner_close_slot(m->runner, m->slot[--m->nopen]);
		m->begun[m->text[m->nopen]] = false;
	}
	return TESS_OK;
}

/* Draws rows of some of the open sequences, the first of them at any place. */
static int64_t draw_rows(struct mixing *m, struct tess_rows *rows, int32_t *of)
{
	int32_t first = (int32_t)draw_below(&m->seed, (uint64_t)m->nopen);
	int64_t count = 0;

	for (int32_t i = 0; i < m->nopen; i++) {
		int32_t at = (first + i) % m->nopen, k = m->text[at];
		int64_t done = tess_runner_get_length(m->runner, m->slot[at]), n = 1;

		if (count && draw_below(&m->seed, 4) == 0)
			continue;
		if (draw_below(&m->seed, 2))
			n += (int64_t)draw_below(&m->seed, 40);
		n = n < m->test->n[k] - done ? n : m->test->n[k] - done;
		of[count] = at;
		rows[count++] = (struct tess_rows){ m->slot[at], n,
			                            (int64_t[]){ 0, 1, n }[draw_below(&m->seed, 3)],
			                            m->test->id[k] + done };
	}
	return count;
}

/* Returns the bytes of pages that the open sequences need on the rank with the most heads. */
static uint64_t count_needed_bytes(const struct mixing *m)
{
	int64_t heads = m->nranks > 1 && strcmp(m->test->plan, "none") ? 1 : GROUPS, bytes = 0;

	for (int32_t i = 0; i < m->nopen; i++) {
		int64_t length = tess_runner_get_length(m->runner, m->slot[i]);

		for (int c = 0; c < CLASSES; c++) {
			int64_t w = class_windows[c], first = w && length >= w ? length - w + 1 : 0;
			int64_t pages = tess_up(length, PAGE) - first / PAGE;

			MUST(!w || pages <= tess_up(w, PAGE) + 1);
			bytes += pages * class_layers[c] * heads * HEAD * PAGE * 2 *
			         (m->test->dtype == TESS_BF16 ? 2 : 4);
		}
	}
	return (uint64_t)bytes;
}

static tess_status run_random_mixture(struct mixing *m)
{
	int32_t root = (int32_t)draw_below(&m->seed, (uint64_t)m->nranks + 1) - 1, of[OPEN_MAX];
	struct tess_rows rows[OPEN_MAX];
	int64_t n = draw_rows(m, rows, of), done[OPEN_MAX];
	const float *logits;

	for (int64_t i = 0; i < n; i++)
		done[i] = tess_runner_get_length(m->runner, rows[i].slot);
	HOLDS(!tess_runner_step(m->runner, rows, n, root, &logits));
	HOLDS(root < 0 || root == m->rank || !logits);
	for (int64_t i = 0; i < n; i++) {
		const float *want = m->test->want[m->text[of[i]]] +
		                    (done[i] + rows[i].n - rows[i].nselected) * VOCABULARY;
		size_t count = (size_t)(rows[i].nselected * VOCABULARY);

		HOLDS(tess_runner_get_length(m->runner, rows[i].slot) == done[i] + rows[i].n);
		if (!logits || !count)
			continue;
		HOLDS(!memcmp(logits, want, count * sizeof *want));
		logits += count;
	}
	HOLDS(tess_runner_get_room(m->runner).used == count_needed_bytes(m));
	return TESS_OK;
}

static void close_ended_texts(struct mixing *m)
{
	for (int32_t i = 0; i < m->nopen; i++) {
		if (tess_runner_get_length(m->runner, m->slot[i]) < m->test->n[m->text[i]])
			continue;
		tess_runner_close_slot(m->runner, m->slot[i]);
		m->nended++;
		m->nopen--;
		m->text[i] = m->text[m->nopen];
		m->slot[i--] = m->slot[m->nopen];
	}
}

static tess_status mix_texts(struct tess_world *w, void *arg)
{
	struct test *t = arg;
	struct mixing m = {
		.test = t, .seed = t->seed, .rank = tess_world_rank(w), .nranks = tess_world_size(w)
	};
	struct tess_plan plan;
	tess_status st = TESS_OK;

	HOLDS(!open_windowed(w, t, &plan, &m.runner));
	while (m.nended < TEXTS && !st) {
		st = change_open_texts(&m);
		if (!st)
			st = run_random_mixture(&m);
		close_ended_texts(&m);
	}
	HOLDS(st || !tess_runner_get_room(m.runner).used);
	tess_runner_free(m.runner);
	tess_plan_free(&plan);
	return st ? tess_fail_in(st, "%s, seed %d", t->plan, (int)t->seed) : TESS_OK;
}

START_TEST(mixed_rows_have_the_bits_of_rows_alone)
{
	struct test t;

	make_test(&t, _i ? TESS_BF16 : TESS_F32);
	spawn_ranks(1, compute_texts_alone, &t);
	for (int p = 0; p < PLANS; p++) {
		for (int32_t n = 1 + 2 * TSAN; n <= 3; n += 1 + THIN / 4) {
			t.plan = plans[p];
			t.seed = (uint64_t)(10 * p + n);
			spawn_ranks(n, mix_texts, &t);
		}
	}
	free_test(&t);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

enum { MANY = 64, EACH = 100 };

/* Holds 64 sequences of 100 tokens in little more memory than their pages, and then frees all. */
static tess_status hold_many_texts(struct tess_world *w, void *arg)
{
	struct test *t = arg;
	struct tess_rows rows[MANY];
	struct tess_plan plan;
	struct tess_runner *r;
	const float *logits;
	uint64_t used;

	HOLDS(!open_windowed(w, t, &plan, &r));
	for (int32_t i = 0; i < MANY; i++) {
		HOLDS(!tess_runner_open_slot(r, &rows[i].slot) && rows[i].slot == i);
		rows[i].n = EACH;
		rows[i].nselected = 0;
		rows[i].ids = t->id[0];
	}
	for (int32_t i = 0; i < MANY; i += 8)
		HOLDS(!tess_runner_step(r, rows + i, 8, 0, &logits));
	used = tess_runner_get_room(r).used;
	HOLDS(used == MANY * tess_runner_count_room(r, EACH, EACH));
	HOLDS(10 * tess_runner_get_memory(r).cache <= 11 * used);
	for (int32_t i = 0; i < MANY; i++)
		tess_runner_close_slot(r, rows[i].slot);
	HOLDS(!tess_runner_get_room(r).used);
	tess_runner_free(r);
	tess_plan_free(&plan);
	return TESS_OK;
}

START_TEST(many_texts_take_their_pages)
{
	struct test t;

	make_test(&t, TESS_F32);
	t.plan = "none";
	spawn_ranks(1, hold_many_texts, &t);
	free_test(&t);
}
END_TEST

/*
 * Counts the sequences of the default limit: half of the eighth that the KV cache leaves is for
 * logits.
 */
static tess_status count_default_texts(struct tess_world *w, void *arg)
{
	static const int texts[] = { 300, TESS_CHOSEN_MAX, 2000 };
	struct tess_plan plan;
	struct tess_runner *r;
	char memory[32];

	for (int i = 0; i < 3; i++) {
		snprintf(memory, sizeof memory, "%d", 16 * texts[i] * VOCABULARY * 4);
		setenv("DISCRETE_MEMORY", memory, 1);
		HOLDS(!open_windowed(w, arg, &plan, &r));
		HOLDS(tess_runner_get_batch(r) == (i ? TESS_CHOSEN_MAX : texts[i]));
		tess_runner_free(r);
		tess_plan_free(&plan);
	}
	return TESS_OK;
}

START_TEST(default_texts_fit)
{
	struct test t;

	make_test(&t, TESS_F32);
	t.plan = "none";
	setenv("TESSERA_DEVICE", "discrete", 1);
	spawn_ranks(1, count_default_texts, &t);
	free_test(&t);
}
END_TEST

/*
 * Fills a cache for two sequences of one page: a third waits until one of them ends, and the others
 * continue.
 */
static tess_status fill_limited_cache(struct tess_world *w, void *arg)
{
	struct test *t = arg;
	struct tess_plan plan;
	struct tess_runner *r;
	struct tess_rows rows[3];
	const float *logits;

	HOLDS(!open_windowed(w, t, &plan, &r));
	HOLDS(tess_runner_get_room(r).limit == t->limit);
	for (int32_t i = 0; i < 3; i++) {
		rows[i] = (struct tess_rows){ i, 30, 1, t->id[i] };
		HOLDS(!tess_runner_open_slot(r, &rows[i].slot));
	}
	HOLDS(!tess_runner_step(r, rows, 2, -1, &logits));
	HOLDS(tess_runner_step(r, rows + 2, 1, -1, &logits) == TESS_ENOMEM &&
	      strstr(tess_error(), "--kv-memory"));
	HOLDS(tess_runner_get_length(r, rows[2].slot) == 0);
	rows[0].ids += 30;
	HOLDS(!tess_runner_step(r, rows, 1, -1, &logits));
	HOLDS(!memcmp(logits, t->want[0] + 59 * VOCABULARY, sizeof *logits * VOCABULARY));
	tess_runner_close_slot(r, rows[1].slot);
	HOLDS(!tess_runner_step(r, rows + 2, 1, -1, &logits));
	HOLDS(!memcmp(logits, t->want[2] + 29 * VOCABULARY, sizeof *logits * VOCABULARY));
	tess_runner_free(r);
	tess_plan_free(&plan);
	return TESS_OK;
}

START_TEST(a_full_cache_waits_for_a_text_to_end)
{
	struct test t;

	make_test(&t, TESS_F32);
	spawn_ranks(1, compute_texts_alone, &t);
	t.plan = plans[1];
	for (int32_t n = 1; n <= 3;
	     n++) { /* 2.5 pages of each class, on the rank with the most heads */
		t.limit = (n == 1 ? GROUPS : 1) * 5 * LAYERS * HEAD * PAGE * 4;
		spawn_ranks(n, fill_limited_cache, &t);
	}
	free_test(&t);
}
END_TEST

/* Computes the last logits of a long prompt, fed in chunks of `t->seed` rows. */
static tess_status feed_long_prompt(struct tess_world *w, void *arg)
{
	enum { LONG = 8192 / THIN };
	static int32_t ids[LONG];
	struct test *t = arg;
	int64_t chunk = (int64_t)t->seed;
	struct tess_rows rows = { .n = chunk, .nselected = 1 };
	uint64_t first = 0;
	struct tess_plan plan;
	struct tess_runner *r;
	const float *logits = NULL;

	for (int64_t i = 0; i < LONG; i++)
		ids[i] = (int32_t)(i * i % VOCABULARY);
	HOLDS(!open_windowed(w, t, &plan, &r) && !tess_runner_open_slot(r, &rows.slot));
	for (int64_t at = 0; at < LONG; at += chunk) {
		rows.ids = ids + at;
		rows.n = LONG - at < chunk ? LONG - at : chunk;
		HOLDS(!tess_runner_step(r, &rows, 1, 0, &logits));
		first = first ? first : tess_runner_get_memory(r).step;
	}
	HOLDS(tess_runner_get_memory(r).step == first);
	HOLDS(tess_runner_get_memory(r).cache <= 2 * tess_runner_count_room(r, LONG, chunk));
	memcpy(t->want[chunk == 512 / THIN], logits, sizeof *logits * VOCABULARY);
	tess_runner_free(r);
	tess_plan_free(&plan);
	return TESS_OK;
}

START_TEST(a_long_prompt_takes_the_memory_of_a_chunk)
{
	struct test t;

	make_test(&t, TESS_F32);
	t.plan = "none";
	t.seed = 512 / THIN;
	spawn_ranks(1, feed_long_prompt, &t);
	t.seed = 3000 / THIN;
	spawn_ranks(1, feed_long_prompt, &t);
	ck_assert(!memcmp(t.want[0], t.want[1], sizeof(float) * VOCABULARY));
	free_test(&t);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *t = suite_begin("steps", 120, &runner);

	tcase_add_loop_test(t, mixed_rows_have_the_bits_of_rows_alone, 0, TSAN ? 1 : 2);
	tcase_add_test(t, a_full_cache_waits_for_a_text_to_end);
	if (!TSAN)
		tcase_add_test(t, many_texts_take_their_pages);
	tcase_add_test(t, default_texts_fit);
	if (!TSAN)
		tcase_add_test(t, a_long_prompt_takes_the_memory_of_a_chunk);
	return suite_end(runner);
}

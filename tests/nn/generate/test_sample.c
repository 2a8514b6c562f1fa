/*
 * test_sample.c - draws, and processed probabilities against transformers' processors
 * (tests/data/sampling.json).
 */
#include "core/base/math.h"
#include "nn/generate/sample.h"
#include "tests/support/logits.h"
#include "tests/support/suite.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { VOCABULARY_MAX = 1024 };

static json_t *goldens;

static double get_param(const json_t *params, const char *key, double preset)
{
	const json_t *v = json_object_get(params, key);

	return json_is_number(v) ? json_number_value(v) : preset;
}

static int64_t load_logits(const char *name, float *out)
{
	const json_t *list = json_object_get(json_object_get(goldens, "logits"), name);

	for (size_t i = 0; i < json_array_size(list); i++)
		out[i] = (float)json_number_value(json_array_get(list, i));
	return (int64_t)json_array_size(list);
}

static int64_t load_history(int32_t *out)
{
	const json_t *list = json_object_get(goldens, "history");

	for (size_t i = 0; i < json_array_size(list); i++)
		out[i] = (int32_t)json_integer_value(json_array_get(list, i));
	return (int64_t)json_array_size(list);
}

START_TEST(as_transformers)
{
	const json_t *c = json_array_get(json_object_get(goldens, "cases"), (size_t)_i), *params,
		     *steps, *want;
	struct tess_sampling how;
	struct tess_sampler *s;
	float logits[VOCABULARY_MAX];
	int32_t seen[64];
	const float *have;
	int64_t n, nseen = load_history(seen);

	n = load_logits(json_string_value(json_object_get(c, "logits")), logits);
	params = json_object_get(c, "params");
	steps = json_object_get(c, "steps");
	want = json_object_get(json_array_get(steps, json_array_size(steps) - 1), "probs");
	how = (struct tess_sampling){
		get_param(params, "temperature", 1),    get_param(params, "top_p", 1),
		get_param(params, "min_p", 0),          get_param(params, "repetition_penalty", 1),
		(int64_t)get_param(params, "top_k", 0), 0
	};
	ck_assert(n > 0 && n <= VOCABULARY_MAX && (int64_t)json_array_size(want) == n);
	ck_assert(!tess_sampling_check(&how) && !tess_sampler_new(n, &s));
	have = tess_sampler_compute_probabilities(s, &how, logits, seen, nseen);
	for (int64_t i = 0; i < n; i++)
		ck_assert_msg(fabs(have[i] - json_number_value(json_array_get(want, (size_t)i))) <=
		                      1e-6,
		              "case %d, id %lld: %g", _i, (long long)i, (double)have[i]);
	tess_sampler_free(s);
}
END_TEST

START_TEST(draws_follow_the_probabilities)
{
	struct tess_sampling how = { .temperature = 1, .top_p = 1, .top_k = 4, .seed = 7 };
	const float logits[] = { 0, 1, 2, 3, 4, 4 };
	int32_t count[6] = { 0 }, again[3];
	struct tess_sampler *s;
	const float *p;
	enum { DRAWS = 20000 };

	ck_assert(!tess_sampler_new(6, &s));
	for (uint64_t i = 0; i < DRAWS; i++)
		count[tess_sampler_draw(s, &how, logits, NULL, 0, i)]++;
	p = tess_sampler_compute_probabilities(s, &how, logits, NULL, 0);
	for (int i = 0; i < 6; i++) /* five standard deviations */
		ck_assert(fabs(count[i] - DRAWS * (double)p[i]) <= 5 * sqrt(DRAWS * (double)p[i]));
	for (int i = 0; i < 3; i++)
		again[i] = tess_sampler_draw(s, &how, logits, NULL, 0, 5);
	ck_assert(again[0] == again[1] && again[1] == again[2]);
	how.temperature = 0;
	ck_assert_int_eq(tess_sampler_draw(s, &how, logits, NULL, 0, 9),
	                 4); /* the lowest of equal ids */
	tess_sampler_free(s);
}
END_TEST

START_TEST(refuses)
{
	static const struct tess_sampling bad[] = {
		{ .temperature = -1 },        { .top_p = 1.5 }, { .min_p = -0.1 },
		{ .repetition_penalty = -2 }, { .top_k = -1 },  { .temperature = NAN }
	};

	ck_assert_int_eq(tess_sampling_check(&bad[_i]), TESS_EINVAL);
	ck_assert_str_ne(tess_error(), "");
}
END_TEST

/* Checks that a probability equal to the limit of min-p is kept. */
START_TEST(min_p_keeps_its_edge)
{
	static const float logits[] = { 2, 1, 2, -1, 2 };
	struct tess_sampling how = {
		.temperature = 1, .top_p = 1, .min_p = 1, .repetition_penalty = 1
	};
	struct tess_sampler *s;
	const float *have;

	ck_assert(!tess_sampler_new(5, &s));
	have = tess_sampler_compute_probabilities(s, &how, logits, NULL, 0);
	for (int i = 0; i < 5; i++)
		ck_assert(have[i] == (i % 2 ? 0 : 1.0f / 3));
	tess_sampler_free(s);
}
END_TEST

/* ---- against a sort of the whole vocabulary -------------------------------------------------- */

struct scored {
	double score, weight;
	int32_t id;
};

static int compare_scored(const void *a, const void *b)
{
	const struct scored *x = a, *y = b;

	return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
	                            : (x->id > y->id) - (x->id < y->id);
}

static double sum_scored(const struct scored *list, int64_t n)
{
	double sum = 0;

	while (n > 0)
		sum += list[--n].weight;
	return sum;
}

/* Sorts all scores; returns the number of best ones within `top_k`, whose weights it sets. */
static int64_t rank_all(const struct tess_sampling *how, const float *logits, int64_t n,
                        struct scored *list)
{
	int64_t k = how->top_k > 0 && how->top_k < n ? how->top_k : n;

	for (int64_t i = 0; i < n; i++)
		list[i] = (struct scored){ logits[i] / how->temperature + 0.0, 0, (int32_t)i };
	qsort(list, (size_t)n, sizeof *list, compare_scored);
	while (k < n && list[k].score == list[k - 1].score)
		k++;
	for (int64_t i = 0; i < k; i++)
		list[i].weight = tess_exp_f64(list[i].score - list[0].score);
	return k;
}

/* Returns the sum of the probabilities of all but the best `keep`. */
static double sum_removed(const struct scored *list, int64_t n, int64_t keep)
{
	double total = sum_scored(list, n), below = 0;

	while (n > keep)
		below += list[--n].weight / total;
	return below;
}

/* Draws by removing candidates from the end of the list; u: the drawn number. */
static int32_t draw_plainly(const struct tess_sampling *how, const struct scored *list, int64_t n,
                            double u)
{
	double left;
	int64_t keep = n;

	while (how->top_p < 1 && keep > 1 && sum_removed(list, n, keep - 1) <= 1 - how->top_p)
		keep--;
	while (how->min_p > 0 && keep > 1 && list[keep - 1].weight < how->min_p)
		keep--;
	left = u * sum_scored(list, keep);
	for (int64_t i = 0; i < keep - 1; i++) {
		left -= list[i].weight;
		if (left < 0)
			return list[i].id;
	}
	return list[keep - 1].id;
}

/* Returns 53 bits of the step's Philox4x32-10 under the seed. */
static double draw_number(uint64_t seed, uint64_t step)
{
	uint32_t c0 = (uint32_t)step, c1 = (uint32_t)(step >> 32), c2 = 0, c3 = 0;
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

	for (int i = 0; i < 10; i++, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
		uint64_t a = 0xD2511F53 * (uint64_t)c0, b = 0xCD9E8D57 * (uint64_t)c2;

		c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)b;
		c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)a;
	}
	return (double)(((uint64_t)c0 << 32 | c1) >> 11) * 0x1p-53;
}

START_TEST(a_part_draws_as_the_whole)
{
	static const double temperatures[] = { 1, 0.3, 4, 1e-3, 1e6 },
			    ps[] = { 1, 0.9, 0, 0.5, 0.999999 }, mins[] = { 0, 0.05, 1, 1e-9 };
	static const int64_t ks[] = { 0, 0, 1, 50, 1000, 5000 };
	enum { VOCAB = 500, ROUNDS = 300 };
	struct scored *list = malloc(VOCAB * sizeof *list);
	float *x = malloc(VOCAB * sizeof *x);
	uint64_t seed = (uint64_t)_i + 1;

	for (uint64_t i = 0; i < ROUNDS; i++) {
		struct tess_sampling how = { .temperature = temperatures[draw_below(&seed, 5)],
			                     .top_p = ps[draw_below(&seed, 5)],
			                     .min_p = mins[draw_below(&seed, 4)],
			                     .top_k = ks[draw_below(&seed, 6)],
			                     .seed = seed };
		int64_t n = 1 + (int64_t)draw_below(&seed, VOCAB), kept;
		struct tess_sampler *s;

		make_logits(_i, &seed, x, n);
		kept = rank_all(&how, x, n, list);
		if (i % 3 == 0) /* close to the edge where the order of a sum decides */
			how.top_p = 1 - sum_removed(list, kept,
			                            (int64_t)draw_below(&seed, (uint64_t)kept));
		ck_assert(!tess_sampler_new(n, &s));
		for (uint64_t step = i; step < i + 4; step++)
			ck_assert_int_eq(
				tess_sampler_draw(s, &how, x, NULL, 0, step),
				draw_plainly(&how, list, kept, draw_number(how.seed, step)));
		tess_sampler_free(s);
	}
	free(list);
	free(x);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("sample", 4, &r);
	int failed;

	goldens = json_load_file(SOURCE_ROOT "/tests/data/sampling.json", 0, NULL);
	tcase_add_loop_test(t, as_transformers, 0,
	                    (int)json_array_size(json_object_get(goldens, "cases")));
	tcase_add_test(t, draws_follow_the_probabilities);
	tcase_add_test(t, min_p_keeps_its_edge);
	tcase_add_loop_test(t, refuses, 0, 6);
	tcase_add_loop_test(t, a_part_draws_as_the_whole, 0, KINDS);
	srunner_set_fork_status(r, CK_NOFORK);
	failed = suite_end(r);
	json_decref(goldens);
	return failed;
}

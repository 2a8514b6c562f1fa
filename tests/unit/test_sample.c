/*
 * Processed probabilities against transformers' processors (tests/data/sampling.json), and draws.
 */
#include "nn/sample.h"
#include "suite.h"

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
	                 4); /* the lowest of equal ones */
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

/* A probability that equals the limit of min-p is kept. */
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
	srunner_set_fork_status(r, CK_NOFORK);
	failed = suite_end(r);
	json_decref(goldens);
	return failed;
}

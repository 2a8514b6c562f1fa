/*
 * test_values.c - values of modules: lists and files of them, where two lists differ, and what
 * sessions and trainers keep. Kept values have the bits of one rank on every mesh, and no other bit
 * of a run changes.
 */
#include "tests/support/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>
#include <unistd.h>

static const char *model; /* of the running case */

static struct tess_values *make_list(void)
{
	struct tess_values *v = NULL;

	ck_assert_int_eq(tess_values_new(&v), TESS_OK);
	return v;
}

static void add_floats(struct tess_values *v, const char *name, const float *data, int64_t rows,
                       int64_t columns, const char *holders)
{
	struct tess_value value = { .size = sizeof value,
		                    .dtype = TESS_F32,
		                    .name = name,
		                    .data = data,
		                    .shape = { rows, columns },
		                    .ndim = 2,
		                    .holders = holders };

	ck_assert_msg(!tess_values_add(v, &value), "%s", tess_error());
}

static struct tess_value find_kept(const struct tess_values *v, const char *name)
{
	struct tess_value value = { .size = sizeof value };
	int64_t i = tess_values_find(v, name);

	ck_assert_msg(i >= 0, "there is no %s", name);
	ck_assert_msg(!tess_values_get(v, i, &value), "%s", tess_error());
	return value;
}

/* ---- lists and files ------------------------------------------------------------------------- */

START_TEST(files_keep_order_shape_holders_and_bits)
{
	static const float numbers[6] = { 1, -0.0f, 3, NAN, INFINITY, 1e-40f };
	static const double loss = 0.1;
	struct tess_value one = { .size = sizeof one,
		                  .dtype = TESS_F64,
		                  .name = "loss",
		                  .data = &loss,
		                  .shape = { 1 },
		                  .ndim = 1 };
	char path[] = "/tmp/tessera-values-XXXXXX";
	struct tess_values *v = make_list(), *w = NULL;
	struct tess_value value = { .size = sizeof value };

	close(mkstemp(path));
	add_floats(v, "z", numbers, 2, 3, "1:0:0 1:2:4");
	add_floats(v, "a", numbers, 3, 2, NULL);
	for (int i = 0; i < 200; i++) {
		char name[16];

		snprintf(name, sizeof name, "m.%d", 7 * i % 200);
		add_floats(v, name, numbers, 1, i % 7, NULL);
	}
	ck_assert_int_eq(tess_values_add(v, &one), TESS_OK);
	ck_assert_msg(!tess_values_save(v, path), "%s", tess_error());
	ck_assert_msg(!tess_values_load(path, &w), "%s", tess_error());
	ck_assert_int_eq(tess_values_count(w), 203);
	ck_assert_int_eq(tess_values_get(w, 1, &value), TESS_OK); /* wider elements come first */
	ck_assert_str_eq(value.name, "z");
	ck_assert_str_eq(value.holders, "1:0:0 1:2:4");
	ck_assert_int_eq(tess_value_find_rank(&value, 1, 1), 0);
	ck_assert_int_eq(tess_value_find_rank(&value, 1, 2), 4);
	ck_assert_int_eq(value.shape[0], 2);
	ck_assert_int_eq(value.shape[1], 3);
	ck_assert_mem_eq(value.data, numbers, sizeof numbers);
	ck_assert_ptr_null(find_kept(w, "a").holders);
	ck_assert_mem_eq(find_kept(w, "loss").data, &loss, sizeof loss);
	ck_assert_str_eq(tess_values_get_numerics(w), "");
	tess_values_free(w);
	tess_values_free(v);
	unlink(path);
}
END_TEST

/* ---- comparing ------------------------------------------------------------------------------- */

START_TEST(comparison_names_the_first_difference)
{
	static const float x[6] = { 1, 2, 3, 4, 5, 6 }, y[6] = { 1, 2, 3, 4, 5.0000005f, 7 };
	struct tess_values *a = make_list(), *b = make_list();
	const struct tess_value_comparison *r;
	struct tess_comparison *c = NULL;

	add_floats(a, "same", x, 2, 3, NULL);
	add_floats(a, "only a", x, 1, 1, NULL);
	add_floats(a, "moved", x, 2, 3, "0:0:0 0:1:1 1:0:0 1:1:2");
	add_floats(a, "shape", x, 2, 3, NULL);
	add_floats(b, "only b", x, 1, 1, NULL);
	add_floats(b, "shape", x, 3, 2, NULL);
	add_floats(b, "moved", y, 2, 3, NULL);
	add_floats(b, "same", x, 2, 3, NULL);
	ck_assert_int_eq(tess_values_compare(a, b, 0, &c), TESS_OK);
	ck_assert_int_eq(c->nvalues, 5);
	ck_assert_int_eq(c->ncompared, 3);
	ck_assert_int_eq(c->ndifferent, 2);
	ck_assert_int_eq(c->first, 2);
	r = c->values[2];
	ck_assert_str_eq(r->name, "moved");
	ck_assert_int_eq(r->row, 1);
	ck_assert_int_eq(r->column, 1);
	ck_assert_int_eq(r->rank, 3); /* 1 along the rows, and 2 along the columns */
	ck_assert_uint_eq(r->ulps, 1);
	ck_assert_int_eq(r->ndifferent, 2);
	ck_assert(r->a == 5 && r->b == y[4] && r->largest == 1);
	ck_assert_int_eq(c->values[0]->state, TESS_VALUE_EQUAL);
	ck_assert_int_eq(c->values[1]->state, TESS_VALUE_ONLY_FIRST);
	ck_assert_int_eq(c->values[3]->state, TESS_VALUE_RESHAPED);
	ck_assert_int_eq(c->values[4]->state, TESS_VALUE_ONLY_SECOND);
	tess_comparison_free(c);

	/* 1e-5 of 6: the ulp passes, and the 7 does not */
	ck_assert_int_eq(tess_values_compare(a, b, TESS_TOLERANCE_AUTO, &c), TESS_OK);
	ck_assert(c->tolerance == 1e-5 && fabs(c->values[2]->allowed - 6e-5) < 1e-12);
	ck_assert_int_eq(c->values[2]->column, 2);
	ck_assert_int_eq(c->values[2]->ndifferent, 1);
	tess_comparison_free(c);
	ck_assert_int_eq(tess_values_compare(a, b, 0.2, &c), TESS_OK);
	ck_assert_int_eq(c->ndifferent, 1);
	ck_assert_int_eq(c->first, 3);
	tess_comparison_free(c);
	tess_values_free(a);
	tess_values_free(b);
}
END_TEST

START_TEST(comparison_of_special_numbers)
{
	static const struct {
		float a, b;
		int bits, tolerant; /* whether they differ */
	} pairs[] = { { NAN, NAN, 0, 0 },    { NAN, 1, 1, 1 },
		      { 1, NAN, 1, 1 },      { INFINITY, INFINITY, 0, 0 },
		      { INFINITY, 1, 1, 1 }, { INFINITY, -INFINITY, 1, 1 },
		      { 0.0f, -0.0f, 1, 0 }, { 1, 1.000002f, 1, 0 },
		      { 1, 1.0001f, 1, 1 },  { 1e-45f, -1e-45f, 1, 0 } };

	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		/* the second element is the largest one */
		const float x[2] = { pairs[i].a, 1 }, y[2] = { pairs[i].b, 1 };
		struct tess_values *a = make_list(), *b = make_list();
		struct tess_comparison *c = NULL;

		add_floats(a, "x", x, 1, 2, NULL);
		add_floats(b, "x", y, 1, 2, NULL);
		ck_assert_int_eq(tess_values_compare(a, b, 0, &c), TESS_OK);
		ck_assert_msg(c->ndifferent == pairs[i].bits, "bits of pair %zu", i);
		if (x[0] == 1e-45f) /* the smallest number, and its negative */
			ck_assert_uint_eq(c->values[0]->ulps, 2);
		tess_comparison_free(c);
		ck_assert_int_eq(tess_values_compare(a, b, 1e-5, &c), TESS_OK);
		ck_assert_msg(c->ndifferent == pairs[i].tolerant, "pair %zu", i);
		tess_comparison_free(c);
		tess_values_free(a);
		tess_values_free(b);
	}
}
END_TEST

/* A gradient of zeros may have either sign: its largest element allows no difference. */
START_TEST(zeros_are_equal_within_a_tolerance)
{
	static const float x[2] = { 0, 0 }, y[2] = { -0.0f, 0 }, z[2] = { 1e-30f, 0 };
	struct tess_values *a = make_list(), *b = make_list();
	struct tess_comparison *c = NULL;

	add_floats(a, "x", x, 1, 2, NULL);
	add_floats(a, "z", x, 1, 2, NULL);
	add_floats(b, "x", y, 1, 2, NULL);
	add_floats(b, "z", z, 1, 2, NULL);
	ck_assert_int_eq(tess_values_compare(a, b, 1e-5, &c), TESS_OK);
	ck_assert_int_eq(c->values[0]->state, TESS_VALUE_EQUAL);
	ck_assert_int_eq(c->values[1]->state, TESS_VALUE_DIFFERENT);
	tess_comparison_free(c);
	tess_values_free(a);
	tess_values_free(b);
}
END_TEST

START_TEST(element_types_are_compared_as_numbers)
{
	static const float x[4] = { 1.5f, -2, 0.5f, 0 };
	static const uint16_t bf16[4] = { 0x3fc0, 0xc000, 0x3f00, 0 },
			      f16[4] = { 0x3e00, 0xc000, 0x3800, 0 };
	static const double f64[4] = { 1.5, -2, 0.5, 0 };
	static const struct {
		int32_t dtype;
		const void *data;
	} types[] = { { TESS_BF16, bf16 }, { TESS_F16, f16 }, { TESS_F64, f64 } };

	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		struct tess_values *a = make_list(), *b = make_list();
		struct tess_comparison *c = NULL;
		struct tess_value value = { .size = sizeof value,
			                    .dtype = types[i].dtype,
			                    .name = "x",
			                    .data = types[i].data,
			                    .shape = { 2, 2 },
			                    .ndim = 2 };

		add_floats(a, "x", x, 2, 2, NULL);
		ck_assert_int_eq(tess_values_add(b, &value), TESS_OK);
		ck_assert_int_eq(tess_values_compare(a, b, 0, &c), TESS_OK);
		ck_assert_int_eq(c->ndifferent, 0);
		tess_comparison_free(c);
		tess_values_free(a);
		tess_values_free(b);
	}
}
END_TEST

START_TEST(lists_without_a_common_name_are_refused)
{
	static const float x = 1;
	struct tess_values *a = make_list(), *b = make_list();
	struct tess_comparison *c = NULL;

	add_floats(a, "a", &x, 1, 1, NULL);
	add_floats(b, "b", &x, 1, 1, NULL);
	ck_assert_int_eq(tess_values_compare(a, b, 0, &c), TESS_EINVAL);
	expect_part(tess_error(), "no name in common");
	tess_values_free(a);
	tess_values_free(b);
}
END_TEST

/* ---- sessions -------------------------------------------------------------------------------- */

struct steps { /* steps of a session on all ranks, and what rank 0 gets */
	const char *mesh, *plan, *pattern;
	int32_t root;
	struct tess_values *values;
	float *logits; /* of all steps, [10][vocabulary] */
	int64_t vocabulary;
};

/* Runs a prompt of 7 ids in two steps, and 3 ids one by one. */
static tess_status run_steps(struct tess_session *s, struct steps *j, bool keeps)
{
	static const int32_t ids[10] = { 1, 5, 9, 20, 3, 50, 7, 2, 40, 11 };
	static const int64_t counts[] = { 4, 3, 1, 1, 1 };
	struct tess_input in = { .ids = ids };
	tess_status st = tess_sequence_open(s, &in.sequence);
	int64_t row = 0;

	for (size_t i = 0; i < sizeof counts / sizeof *counts && !st; i++) {
		const float *logits = NULL;

		in.n = in.nselected = counts[i];
		st = tess_session_step(s, &in, 1, j->root, &logits);
		if (!st && logits && keeps)
			memcpy(j->logits + row * j->vocabulary, logits,
			       (size_t)(in.n * j->vocabulary) * sizeof *logits);
		in.ids += in.n;
		row += in.n;
	}
	tess_sequence_close(in.sequence);
	return st;
}

static tess_status take_from_session(struct tess_world *w, void *arg)
{
	struct steps *j = arg;
	struct tess_session_options options = {
		.size = sizeof options, .threads = 1, .plan = j->plan, .values = j->pattern
	};
	struct tess_session_info info = { .size = sizeof info };
	struct tess_mesh *mesh = NULL;
	struct tess_session *s = NULL;
	struct tess_values *v = NULL;
	bool first = tess_world_rank(w) == 0;
	tess_status st = tess_mesh_open(w, j->mesh, &mesh);

	if (!st)
		st = tess_session_open(mesh, model, &options, &s);
	if (!st) {
		tess_session_get_info(s, &info);
		if (tess_world_rank(w) == j->root) {
			j->vocabulary = info.vocabulary;
			j->logits = calloc(10 * (size_t)info.vocabulary, sizeof *j->logits);
		}
		st = run_steps(s, j, tess_world_rank(w) == j->root);
	}
	if (!st && j->pattern)
		st = tess_session_take_values(s, &v);
	ck_assert(st || !j->pattern || first == (v != NULL));
	if (first)
		j->values = v;
	tess_session_close(s);
	tess_mesh_close(mesh);
	return st;
}

static struct steps run_session(const char *mesh, const char *plan, int32_t n, const char *pattern,
                                int32_t root)
{
	struct steps j = { .mesh = mesh, .plan = plan, .pattern = pattern, .root = root };

	ck_assert_msg(!tess_world_spawn(n, take_from_session, &j), "%s on %s: %s", plan, mesh,
	              tess_error());
	return j;
}

static void expect_equal_bits(const struct tess_values *a, const struct tess_values *b,
                              double tolerance, const char *where)
{
	struct tess_comparison *c = NULL;

	ck_assert_msg(!tess_values_compare(a, b, tolerance, &c), "%s", tess_error());
	ck_assert_msg(c->first < 0, "%s: %s differs", where,
	              c->first < 0 ? "" : c->values[c->first]->name);
	ck_assert(c->tolerance == 0); /* bits */
	ck_assert_int_eq(c->ncompared, c->nvalues);
	tess_comparison_free(c);
}

/* Runs of one exact arithmetic: without a tolerance bits are compared. */
static void expect_equal_lists(const struct tess_values *a, const struct tess_values *b,
                               const char *where)
{
	expect_equal_bits(a, b, TESS_TOLERANCE_AUTO, where);
}

static const struct { /* mesh, plan, ranks, and the rank that gets the logits */
	const char *mesh, *plan;
	int32_t n, root;
} layouts[] = {
	{ "tp", NULL, 3, 0 },        { "tp", "tp+sp", 2, 1 },
	{ "tp", "none", 2, 1 },      { "tp", "{\"lm_head\": \"colwise_rep\"}", 3, 2 },
	{ "pp=2", NULL, 2, 1 },      { "pp=2,tp=2", "tp+sp", 4, 2 },
	{ "dp=2,tp=2", NULL, 4, 0 },
};

/* Checks values and logits of one model on all layouts against one rank. */
static void check_session(const char *dir)
{
	struct steps one, plain;
	size_t bytes;

	model = dir;
	one = run_session("tp", NULL, 1, "*", 0);
	plain = run_session("tp", NULL, 1, NULL, 0);
	bytes = 10 * (size_t)one.vocabulary * sizeof *one.logits;
	ck_assert_mem_eq(one.logits, plain.logits, bytes);
	if (!strstr(dir, "gemma2")) /* caps the logits behind its head */
		ck_assert_mem_eq(find_kept(one.values, "lm_head").data, plain.logits, bytes);
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
		struct steps j = run_session(layouts[i].mesh, layouts[i].plan, layouts[i].n, "*",
		                             layouts[i].root);

		expect_equal_lists(one.values, j.values, layouts[i].mesh);
		ck_assert_mem_eq(one.logits, j.logits, bytes);
		tess_values_free(j.values);
		free(j.logits);
	}
	tess_values_free(one.values);
	free(one.logits);
	free(plain.logits);
}

START_TEST(values_of_sessions_have_the_bits_of_one_rank)
{
	static const char *const names[] = { "llama-odd", "gemma2", "qwen3_moe", "deepseek_v3" };
	char dir[4096];

	snprintf(dir, sizeof dir, "%s/%s", getenv("GOLDENS_DIR"), names[_i]);
	check_session(dir);
}
END_TEST

/* Checks that experts with biases, which are all that the block returns, are kept with them. */
START_TEST(values_of_experts_have_their_biases)
{
	struct tess_value experts, block;
	struct steps j;
	char dir[4096];

	snprintf(dir, sizeof dir, "%s/gpt_oss", getenv("GOLDENS_DIR"));
	model = dir;
	j = run_session("tp", NULL, 2, "*", 0);
	experts = find_kept(j.values, "model.layers.0.mlp.experts");
	block = find_kept(j.values, "model.layers.0.mlp");
	ck_assert_int_eq(experts.shape[1], block.shape[1]);
	ck_assert_mem_eq(experts.data, block.data, 10 * (size_t)block.shape[1] * sizeof(float));
	tess_values_free(j.values);
	free(j.logits);
}
END_TEST

START_TEST(a_pattern_selects_modules_and_names_ranks)
{
	struct steps j;
	struct tess_value value;

	model = getenv("DATA_DIR");
	j = run_session("tp", NULL, 2, "model.layers.*.mlp.up_proj", 0);
	ck_assert_int_eq(tess_values_count(j.values), 5);
	value = find_kept(j.values, "model.layers.3.mlp.up_proj");
	ck_assert_int_eq(value.shape[0], 10);
	ck_assert_int_eq(value.shape[1], 172);
	ck_assert_int_eq(tess_value_find_rank(&value, 3, 85), 0);
	ck_assert_int_eq(tess_value_find_rank(&value, 3, 86), 1);
	expect_part(tess_values_get_numerics(j.values), "exact sums, products of f32");
	tess_values_free(j.values);
	free(j.logits);
	j = (struct steps){ .mesh = "tp", .pattern = "model.layer.*" };
	ck_assert_int_eq(tess_world_spawn(2, take_from_session, &j), TESS_EINVAL);
	expect_part(tess_error(), "values \"model.layer.*\": no module matches it");
}
END_TEST

/* ---- trainers -------------------------------------------------------------------------------- */

struct training { /* a step of a trainer on all ranks */
	const char *mesh, *plan, *pattern;
	int64_t nmicro;
	struct tess_values *values; /* of rank 0 */
	double norm;
};

static tess_status take_from_trainer(struct tess_world *w, void *arg)
{
	static const int64_t lengths[6] = { 5, 33, 2, 7, 40, 1 };
	static int32_t ids[88];
	struct training *j = arg;
	const char *const again[] = { "model.layers.*", NULL };
	struct tess_trainer_options options = { .size = sizeof options,
		                                .threads = 1,
		                                .plan = j->plan,
		                                .recompute = j->plan ? NULL : again,
		                                .dropout = -1,
		                                .values = j->pattern };
	struct tess_training_result r = { .size = sizeof r };
	const struct tess_batch all = { 6, lengths, ids, NULL };
	const struct tess_batch two[2] = { { 3, lengths, ids, NULL },
		                           { 3, lengths + 3, ids + 40, NULL } };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	struct tess_values *v = NULL;
	bool first = tess_world_rank(w) == 0;
	tess_status st = tess_mesh_open(w, j->mesh, &mesh);

	if (!st)
		st = tess_trainer_open(mesh, model, &options, &t);
	if (!st)
		st = tess_trainer_compute_gradients(t, j->nmicro == 2 ? two : &all, j->nmicro, &r);
	if (!st && j->pattern)
		st = tess_trainer_take_values(t, &v);
	ck_assert(st || !j->pattern || first == (v != NULL));
	if (first) {
		j->values = v;
		j->norm = r.norm;
	}
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return st;
}

START_TEST(values_of_trainers_have_the_bits_of_one_rank)
{
	static const struct training layouts_of_training[] = {
		{ .mesh = "tp=3", .plan = "tp+sp", .nmicro = 1 },
		{ .mesh = "dp=2,tp=2", .nmicro = 1 },
		{ .mesh = "dp=3", .nmicro = 2 },
		{ .mesh = "pp=2", .nmicro = 2 },
		{ .mesh = "dp=2,pp=2", .plan = "none", .nmicro = 2 },
	};
	struct training one = { .mesh = "tp", .pattern = "*", .nmicro = 1 };
	struct training plain = { .mesh = "tp", .nmicro = 1 };
	char dir[4096];

	snprintf(dir, sizeof dir, "%s/llama-odd", getenv("GOLDENS_DIR"));
	model = dir;
	ck_assert_msg(!tess_world_spawn(1, take_from_trainer, &one), "%s", tess_error());
	ck_assert_msg(!tess_world_spawn(1, take_from_trainer, &plain), "%s", tess_error());
	ck_assert(one.norm == plain.norm);
	ck_assert_int_eq(find_kept(one.values, "lm_head").shape[0], 88);
	for (size_t i = 0; i < sizeof layouts_of_training / sizeof *layouts_of_training; i++) {
		struct training j = layouts_of_training[i];
		int32_t n = 0;

		j.pattern = "*";
		ck_assert_int_eq(tess_mesh_count_ranks(j.mesh, &n), TESS_OK);
		ck_assert_msg(!tess_world_spawn(n, take_from_trainer, &j), "%s: %s", j.mesh,
		              tess_error());
		ck_assert_msg(j.nmicro == 2 || j.norm == one.norm, "%s: the norm", j.mesh);
		/* outputs of modules do not depend on micro-batches, but gradients do */
		expect_equal_bits(one.values, j.values, j.nmicro == 2 ? 0 : TESS_TOLERANCE_AUTO,
		                  j.mesh);
		ck_assert_str_eq(tess_values_get_numerics(j.values),
		                 j.nmicro == 2 ? "exact sums, micro-batches 2"
		                               : "exact sums, micro-batches 1");
		tess_values_free(j.values);
	}
	tess_values_free(one.values);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("values", 60, &r);

	tcase_add_test(t, files_keep_order_shape_holders_and_bits);
	tcase_add_test(t, comparison_names_the_first_difference);
	tcase_add_test(t, comparison_of_special_numbers);
	tcase_add_test(t, zeros_are_equal_within_a_tolerance);
	tcase_add_test(t, element_types_are_compared_as_numbers);
	tcase_add_test(t, lists_without_a_common_name_are_refused);
	tcase_add_loop_test(t, values_of_sessions_have_the_bits_of_one_rank, 0, 4);
	tcase_add_test(t, values_of_experts_have_their_biases);
	tcase_add_test(t, a_pattern_selects_modules_and_names_ranks);
	tcase_add_test(t, values_of_trainers_have_the_bits_of_one_rank);
	return suite_end(r);
}

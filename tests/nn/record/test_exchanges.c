/*
 * test_exchanges.c - styles that communicate by hand (tests/fixtures/exchanges.c): local values,
 * calls on Partials, collectives and their gradients. Parameters are whole numbers, so that sums
 * are exact in any order: 1 to 8 ranks give the logits, loss and gradients of one replicated rank.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 53, HIDDEN = 44, WIDE = 70, IDS = 11 };

static struct tess_tensor *record_exchanges(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *vocabulary = nn->dim(nn, "vocabulary", VOCABULARY, 0);
	struct tess_dim *hidden = nn->dim(nn, "hidden", HIDDEN, TESS_HIDDEN);
	struct tess_dim *wide = nn->dim(nn, "wide", WIDE, 0);
	struct tess_tensor *x = nn->embed(nn, "table", ids, vocabulary, hidden), *y;

	x = nn->enter(nn, x, "block");
	nn->linear(nn, x, (struct tess_linear[]){ { "m", wide, 0, 0 }, { 0 } }, &y);
	return nn->leave(nn, y);
}

static tess_status find_whole_tensor(void *self, const char *name, struct tess_view *out)
{
	static float data[16 * 1024];
	static bool made;
	uint32_t state = 7;

	(void)self;
	for (size_t i = 0; i < sizeof data / sizeof *data && !made; i++) {
		state = state * 1664525 + 1013904223;
		data[i] = (float)((int)(state >> 28) - 8);
	}
	made = true;
	*out = (struct tess_view){ .data = data + strlen(name), .dtype = TESS_F32, .ndim = 2 };
	out->shape[0] = *name == 't' ? VOCABULARY : WIDE;
	out->shape[1] = out->stride[0] = HIDDEN;
	out->stride[1] = 1;
	return TESS_OK;
}

static const struct tess_model model = { .size = sizeof model,
	                                 .name = "exchanges",
	                                 .forward = record_exchanges };
static const struct tess_source whole = { .name = "whole",
	                                  .find = find_whole_tensor,
	                                  .drop = lockstep_ignore_drop };
static const int32_t some_ids[IDS] = { 3, 52, 0, 17, 17, 40, 9, 1, 33, 26, 51 };

static tess_status run_exchanges(const char *plan, int32_t nranks, int64_t nids, const char *mesh,
                                 float **logits, int64_t *count)
{
	struct lockstep how = { &model, &whole, plan, nranks, some_ids, nids, true, mesh };

	return lockstep_run(&how, logits, count);
}

static tess_status train_exchanges(const char *plan, int32_t nranks, const char *mesh,
                                   const char *const *recompute, struct lockstep_gradients *out)
{
	static const int64_t lengths[] = { 36, 2 };
	int32_t ids[38], labels[38];
	struct lockstep how = { &model, &whole, plan, nranks, ids, 38, true, mesh };
	struct lockstep_step step = {
		.how = &how, .lengths = lengths, .nsequences = 2, .labels = labels
	};

	for (int i = 0; i < 38; i++) {
		ids[i] = i * i % VOCABULARY;
		labels[i] = i % 4 ? i % WIDE : -100;
	}
	return lockstep_train_again(&step, recompute, out);
}

/* ---- results --------------------------------------------------------------------------------- */

static const struct exchange_case {
	const char *plan;
	bool trains;
} cases[] = {
	{ "{\"block.m\":\"exchange_sum:nodes\"}", true },
	{ "{\"block.m\":\"exchange_kept:addends\"}", true },
	{ "{\"block.m\":\"exchange_kept:offsets\",\"block\":\"gather\"}", false },
	{ "{\"block.m\":\"exchange_sum:scatter\"}", true },
	{ "{\"block.m\":\"exchange_sum:scatter_f64\"}", true },
	{ "{\"block.m\":\"exchange_sum:scatter_i64\"}", false },
	{ "{\"block.m\":\"exchange_sum:scatter_i32\"}", false },
	{ "{\"block.m\":\"exchange_sum:exchange\"}", true },
	{ "{\"block.m\":\"exchange_sum:straight-i8\"}", true },
	{ "{\"block.m\":\"exchange_kept:rows\"}", true },
	{ "{\"block.m\":\"exchange_over:rowwise\"}", true },
	{ "{\"block.m\":\"exchange_over:exchange_over:colwise_rep\"}", true },
	{ "{\"block.m\":\"exchange_kept:broadcast\"}", true },
	{ "{\"block.m\":\"exchange_kept:send\"}", true },
};

static void expect_exchanged_bits(const char *plan, int64_t nids)
{
	float *want, *have;
	int64_t count, other;

	ck_assert_msg(!run_exchanges("none", 1, nids, NULL, &want, &count), "%s", tess_error());
	for (int32_t ranks = 1; ranks <= 8; ranks++) {
		ck_assert_msg(!run_exchanges(plan, ranks, nids, NULL, &have, &other),
		              "%s, %d ranks: %s", plan, ranks, tess_error());
		ck_assert_int_eq(count, other);
		ck_assert_msg(!memcmp(want, have, 4 * (size_t)count),
		              "%s: other bits with %d ranks", plan, ranks);
		free(have);
	}
	free(want);
}

static void expect_exchanged_gradients(const char *plan)
{
	struct lockstep_gradients want, have;

	ck_assert_msg(!train_exchanges("none", 1, NULL, NULL, &want), "%s", tess_error());
	for (int32_t ranks = 1; ranks <= 8; ranks++) {
		ck_assert_msg(!train_exchanges(plan, ranks, NULL, NULL, &have), "%s, %d ranks: %s",
		              plan, ranks, tess_error());
		lockstep_compare_gradients(plan, &want, &have);
		lockstep_free_gradients(&have);
	}
	lockstep_free_gradients(&want);
}

START_TEST(results)
{
	expect_exchanged_bits(cases[_i].plan, IDS);
	expect_exchanged_bits(cases[_i].plan, 3); /* fewer tokens than ranks */
	if (cases[_i].trains)
		expect_exchanged_gradients(cases[_i].plan);
}
END_TEST

/* Trains replicas with rows of their own, and recomputes what hooks record. */
START_TEST(replicas_and_recomputation)
{
	static const char *const plans[] = { "{\"block.m\":\"exchange_sum:straight-i8\"}",
		                             "{\"block.m\":\"exchange_sum:exchange\"}",
		                             "{\"block.m\":\"exchange_kept:broadcast\"}" };
	static const char *const recompute[] = { "block", NULL };
	struct lockstep_gradients want, have;

	ck_assert_msg(!train_exchanges("none", 1, NULL, NULL, &want), "%s", tess_error());
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
		for (int k = 0; k < 3; k++) {
			ck_assert_msg(!train_exchanges(plans[i], 3, k ? "dp=2,tp=3" : NULL,
			                               k == 1 ? NULL : recompute, &have),
			              "%s: %s", plans[i], tess_error());
			lockstep_compare_gradients(plans[i], &want, &have);
			lockstep_free_gradients(&have);
		}
	lockstep_free_gradients(&want);
}
END_TEST

/* Moves the bits of f32 as elements of each type. */
START_TEST(dtypes)
{
	static const char *const ways[] = { "exchange_sum:exchange", "exchange_kept:rows",
		                            "exchange_kept:broadcast", "exchange_kept:send" };
	char plan[128];

	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		snprintf(plan, sizeof plan, "{\"block.m\":\"%s-%s\"}", ways[i],
		         tess_dtype_name(TESS_F32 + _i));
		expect_exchanged_bits(plan, IDS);
	}
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_exchange_refused(const char *plan, const char *mesh, const char *says)
{
	float *logits;
	int64_t count;

	ck_assert_msg(run_exchanges(plan, 2, IDS, mesh, &logits, &count) < 0, "not refused: %s",
	              plan);
	expect_part(tess_error(), says);
	expect_part(tess_error(), "block.m");
}

START_TEST(refuses_training)
{
	struct lockstep_gradients have;

	ck_assert_int_eq(
		train_exchanges("{\"block.m\":\"exchange_sum:exchange-i8\"}", 2, NULL, NULL, &have),
		TESS_ENOTSUP);
	expect_part(tess_error(), "a value of i8, which has no gradient (host->straight_through");
	ck_assert_int_eq(
		train_exchanges("{\"block.m\":\"exchange_kept:offsets\"}", 2, NULL, NULL, &have),
		TESS_ENOTSUP);
	expect_part(tess_error(), "grad is NULL");
}
END_TEST

START_TEST(refuses)
{
	static const struct {
		const char *config, *says;
	} wrong[] = {
		{ "finish", "would finish a sum" },
		{ "dtype", "unknown dtype 99" },
		{ "columns", "a local value of 2 x 2147483647; use 1 to 2^31 elements" },
		{ "like", "a local value with the shape of another value (like)" },
		{ "placed", "a local value with a placement (out)" },
		{ "left", "prepare_output() left a local value" },
		{ "move", "moves a local value" },
		{ "place", "gives a local value a placement" },
		{ "wrong_rows", "all_to_all of 2 rows over 2 ranks; use a multiple of 4" },
		{ "wrong_root", "broadcast with root 2; use 0 to 1" },
		{ "wrong_kind", "all_reduce is not for hooks; use all_gather" },
		{ "wrong_shift", "all_to_all with a shift, which only send takes" },
		{ "wrong_placed", "all_gather of a value with placements" },
		{ "wrong_size", "all_gather of more than 2^31 elements" },
		{ "straight_wrong", "straight_through() of values that differ in shape" },
	};
	char plan[128];

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		snprintf(plan, sizeof plan, "{\"block.m\":\"exchange_sum:%s\"}", wrong[i].config);
		expect_exchange_refused(plan, NULL, wrong[i].says);
	}
	expect_exchange_refused("{\"block.m\":\"exchange_over\"}", NULL,
	                        "style exchange_over goes over another; name it after a colon");
	expect_exchange_refused("{\"block.m\":\"exchange_over:rowwide\"}", NULL,
	                        "exchange_over:rowwide over rowwide: ");
	expect_exchange_refused("{\"block.m\":\"exchange_over:rowwise:4\"}", NULL,
	                        "exchange_over:rowwise:4 over rowwise:4: block.m: rowwise takes no "
	                        "configuration, not \"4\"");
	expect_exchange_refused("{\"block.m\":\"exchange_over:packed_colwise\"}", NULL,
	                        "exchange_over:packed_colwise over packed_colwise: ");
	expect_exchange_refused("{\"block.m\":\"exchange_over:exchange_sum:nodes\"}", NULL,
	                        "exchange_sum has hooks of its own");
	expect_exchange_refused(
		"{\"block.m\":\"exchange_over:exchange_over:exchange_over:exchange_over:"
		"rowwise\"}",
		NULL, "more than 4 styles over one another");
	expect_exchange_refused("{\"block\":\"prepare_input:in=shard(0)\","
	                        "\"xp:block.m\":\"exchange_sum:left\"}",
	                        "tp=2,xp=2",
	                        "which is Shard(0) along tp; replicate it along tp first");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("exchanges", 120, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_loop_test(t, results, 0, sizeof cases / sizeof *cases);
	tcase_add_loop_test(t, dtypes, 0, TESS_U8);
	tcase_add_test(t, replicas_and_recomputation);
	tcase_add_test(t, refuses);
	tcase_add_test(t, refuses_training);
	return suite_end(r);
}

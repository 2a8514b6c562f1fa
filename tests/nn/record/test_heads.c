/*
 * test_heads.c - ops inside each head, on whole numbers and so without rounding: parts, values
 * joined to one, and rows of a weight by head. Forward and backward, on 1 to 8 ranks, by every
 * placement.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 6, SHORT = 3, LONG = 4, HEAD = SHORT + LONG, ROWS = 6, IN = 4, IDS = 9, WORDS = 11 };
/* the value that the model returns */
enum { PART, REST, UP, DOWN, JOINED, VALUES };
static int wanted;
static int change; /* the change of the recorded ops that is refused */
enum { SIZES = 1, COUNT, TWICE, BEYOND, SUM, OTHER };

static struct tess_tensor *record_heads(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *heads = nn->dim(nn, "heads", HEADS, HEAD);
	struct tess_dim *in = nn->dim(nn, "in", IN, TESS_HIDDEN);
	struct tess_dim *parts[] = { nn->heads(nn, "short", heads, HEADS, SHORT),
		                     nn->heads(nn, "long", heads, HEADS, LONG + (change == SIZES)),
		                     NULL };
	/* SHORT becomes IN + a rest of 1, by rows 1 and 2; IN becomes rows 3 to 5 */
	struct tess_head_linear up = { sizeof up, TESS_IN_OUT,
		                       "w",       nn->heads(nn, "rows", heads, HEADS, ROWS),
		                       in,        nn->heads(nn, "up", heads, HEADS, IN + 1),
		                       1,         2 };
	struct tess_head_linear down = { sizeof down, 0,  "w",
		                         up.rows,     in, nn->heads(nn, "down", heads, HEADS, 3),
		                         3,           3 };
	struct tess_tensor *x = nn->embed(nn, "table", ids, nn->dim(nn, "words", WORDS, 0), heads);
	struct tess_tensor *part[2] = { 0 }, *y[2];

	down.first += change == BEYOND;
	down.first -= change == TWICE;
	down.out = change == COUNT ? up.out : down.out;
	down.in = change == OTHER ? nn->dim(nn, "other", IN, 0) : in;
	nn->split_heads(nn, x, parts, part);
	y[0] = nn->head_linear(nn, part[0], &up);
	y[1] = nn->head_linear(nn, part[1], &down);
	if (wanted == JOINED)
		return nn->join(nn, y, 2,
		                nn->dim(nn, "all", HEADS * (IN + 4) + (change == SUM), 0));
	return wanted == UP ? y[0] : wanted == DOWN ? y[1] : part[wanted == REST];
}

static const struct tess_model model = { .size = sizeof model,
	                                 .name = "heads",
	                                 .forward = record_heads };
static float table[WORDS][HEADS][HEAD], weight[HEADS][ROWS][IN];

static tess_status find_whole_numbers(void *self, const char *name, struct tess_view *out)
{
	bool w = *name == 'w';

	(void)self;
	*out = (struct tess_view){ .data = w ? (void *)weight : (void *)table,
		                   .dtype = TESS_F32,
		                   .ndim = 2,
		                   .shape = { w ? HEADS * ROWS : WORDS, w ? IN : HEADS * HEAD },
		                   .stride = { w ? IN : HEADS * HEAD, 1 } };
	return TESS_OK;
}

static const struct tess_source source = { .name = "whole numbers",
	                                   .find = find_whole_numbers,
	                                   .drop = lockstep_ignore_drop };
static const int32_t some_ids[IDS] = { 3, 10, 0, 7, 7, 4, 9, 1, 2 };

static void make_whole_numbers(void)
{
	for (int i = 0; i < WORDS * HEADS * HEAD; i++)
		(&table[0][0][0])[i] = (float)(i * 7 % 23 - 11);
	for (int i = 0; i < HEADS * ROWS * IN; i++)
		(&weight[0][0][0])[i] = (float)(i * 5 % 19 - 9);
}

/* Returns element e of head h of the returned value for a word. */
static float compute_element(int value, int word, int h, int e)
{
	const float *x = table[word][h];
	float sum = 0;

	switch (value) {
	case PART:
		return x[e];
	case REST:
		return x[SHORT + e];
	case UP:
		for (int k = 0; k < 2; k++)
			sum += x[k] * weight[h][1 + k][e < IN ? e : 0];
		return e < IN ? sum : x[2];
	default:
		for (int k = 0; k < IN; k++)
			sum += x[SHORT + k] * weight[h][3 + e][k];
		return sum;
	}
}

static const int each_of[] = { SHORT, LONG, IN + 1, 3 };

static float compute_logit(int value, int word, int at)
{
	if (value == JOINED)
		return at < HEADS * (IN + 1) ? compute_logit(UP, word, at)
		                             : compute_logit(DOWN, word, at - HEADS * (IN + 1));
	return compute_element(value, word, at / each_of[value], at % each_of[value]);
}

static tess_status run_heads(const char *plan, int32_t nranks, float **logits, int64_t *count)
{
	struct lockstep how = { &model, &source, plan, nranks, some_ids, IDS, true, NULL };

	make_whole_numbers();
	return lockstep_run(&how, logits, count);
}

static const struct {
	const char *plan;
	bool whole; /* complete rows: they can be joined */
} plans[] = {
	{ "none", true },
	{ "{\"table\":\"embedding_rowwise\"}", true },
	{ "{\"table\":\"vocab_reduce_scatter\"}", true },
	{ "{\"table\":\"embedding_colwise:keep\"}", false },
	{ "{\"table\":\"embedding_colwise:keep\",\"w\":\"colwise\"}", false },
	{ "{\"w\":\"colwise\"}", false },
	{ "{\"w\":\"colwise_rep\"}", true },
	{ "{\"table\":\"vocab_reduce_scatter\",\"w\":\"colwise_rep\"}", true },
	{ "{\"w\":\"prepare_input:in=shard(0)\"}", true },
};
enum { PLANS = sizeof plans / sizeof *plans };

START_TEST(heads_are_apart)
{
	const char *plan = plans[_i / 8].plan;
	int32_t ranks = 1 + _i % 8;
	int64_t count;
	float *have;

	change = 0;
	for (wanted = 0; wanted < VALUES; wanted++) {
		tess_status st = run_heads(plan, ranks, &have, &count);
		int64_t row = count / IDS;

		if (st && (ranks > HEADS || (wanted == JOINED && !plans[_i / 8].whole))) {
			expect_part(tess_error(), ranks > HEADS ? "6 units cannot be cut"
			                                        : "a join needs whole rows");
			continue;
		}
		ck_assert_msg(!st, "%s, %d ranks: %s", plan, (int)ranks, tess_error());
		for (int64_t i = 0; i < count; i++)
			ck_assert_msg(
				have[i] == compute_logit(wanted, some_ids[i / row], (int)(i % row)),
				"%s, %d ranks, value %d: element %d is %g", plan, (int)ranks,
				wanted, (int)i, (double)have[i]);
		free(have);
	}
}
END_TEST

START_TEST(refuses_wrong_heads)
{
	static const struct {
		int change;
		const char *plan, *says;
	} cases[] = {
		{ SIZES, "none", "table: heads of 7 elements cannot be split so" },
		{ COUNT, "none",
		  "w: heads of 4 elements become heads of 5, but the first 4 of each "
		  "become 3" },
		{ TWICE, "none", "w.weight: rows of a head from 2 on are read in two ways" },
		{ BEYOND, "none", "w: rows 4 to 7 of 6 of each head" },
		{ SUM, "none", "a join of 48 elements into all, which has 49" },
		{ OTHER, "none", "w.weight: another record has it with other dimensions" },
		{ 0, "{\"w\":\"rowwise\"}",
		  "w: style rowwise cuts the weight inside its heads; use "
		  "colwise" },
		{ 0, "{\"table\":\"vocab_reduce_scatter\",\"w.weight\":\"colwise\"}",
		  "w: needs Shard(1), but table gives Shard(0)" },
		{ 0, "{\"table\":\"embedding_colwise:keep\"}", "a join needs whole rows" },
		{ 0, "{\"w\":\"negated_twice\"}",
		  "w: style negated_twice communicates by hand, which is not supported" },
	};
	int64_t count;
	float *have;

	change = cases[_i].change;
	wanted = JOINED;
	ck_assert_int_ne(run_heads(cases[_i].plan, 2, &have, &count), TESS_OK);
	expect_part(tess_error(), cases[_i].says);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("heads", 120, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_loop_test(t, heads_are_apart, 0, PLANS * 8);
	tcase_add_loop_test(t, refuses_wrong_heads, 0, 10);
	return suite_end(r);
}

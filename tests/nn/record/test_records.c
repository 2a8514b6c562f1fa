/*
 * test_records.c - the records of the options of rope, attention, scale and positions: equal bits
 * on any number of ranks, and refusals that name the fault.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/lower/lower.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/draw.h"
#include "tests/support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 53, HIDDEN = 44, HEADS = 6, HEAD = 6, IDS = 11, TABLE = 17 };
enum { RANDOM = 1 << 14 };

static const int32_t ids[IDS] = { 3, 52, 0, 17, 17, 40, 9, 1, 33, 26, 51 };

static tess_status find_block_tensor(void *self, const char *name, struct tess_view *out)
{
	static float data[2 * RANDOM];
	int64_t rows = strstr(name, "words")       ? VOCABULARY
	               : strstr(name, "places")    ? TABLE
	               : strstr(name, "norm")      ? 0
	               : !strcmp(name, "o.weight") ? HIDDEN
	                                           : HEADS * HEAD;
	int64_t columns = !strcmp(name, "o.weight") ? HEADS * HEAD : HIDDEN;
	uint64_t seed = 1;

	(void)self;
	for (int i = 0; i < 2 * RANDOM; i++)
		data[i] = (float)draw_below(&seed, 1 << 16) / (1 << 15) - 1;
	*out = (struct tess_view){ .data = data + 100 * *name,
		                   .dtype = TESS_F32,
		                   .ndim = rows ? 2 : 1,
		                   .shape = { rows ? rows : HIDDEN, columns },
		                   .stride = { rows ? columns : 1, 1 } };
	return TESS_OK;
}

static struct tess_attention attention;
static struct tess_rotary rotary;
static double growth; /* of queries by their positions */
static int32_t norm;
static enum {
	SOUND,
	ALL_ROWS,
	TIED_TO_VECTOR,
	NO_PARTS,
	NO_OUT,
	NOT_FUSED,
	WRONG_VALUE
} fault; /* the model's fault */
static size_t wrong; /* index of the value */

/* Arguments of a model that are not rows of elements, or absent, and their messages. */
static const char *const wrong_values[] = {
	"mlp: linear needs rows of elements, as embed() gives them, not the positions",
	"mlp: linear needs rows of elements, as embed() gives them, not NULL",
	"mlp: a linear op without weights; they end with name NULL",
	"mlp: rope needs rows of elements",
	"mlp: attention needs rows of elements",
	"mlp: split needs rows of elements",
	"mlp: split_heads needs rows of elements",
	"mlp: routing needs rows of elements",
	"mlp: experts needs rows of elements",
	"mlp: a join needs rows of elements",
	"mlp: a join of -3 values; it needs one or more, and their dimension",
	"mlp: a norm needs rows of elements",
	"mlp: an addition needs rows of elements",
	"mlp: a glu needs rows of elements",
	"mlp: no activation is 99; use TESS_SILU, or what activation() gives",
	"mlp: a scale needs rows of elements",
	"mlp: dropout needs rows of elements",
	"mlp: head_linear needs rows of elements",
	"mlp.w: embed needs ids or positions, and two dimensions",
	"mlp: a fused dimension without parts",
	"kv: heads of no other dimension",
	"mlp: a setting of config.json without a key",
	"mlp: a module is entered without a name",
	"mlp: a module is left without a value",
	"mlp: a product needs rows of elements",
	"mlp: a clamp needs rows of elements",
	"mlp: a clamp to [1, -1]; the first limit must not be above the second",
	"mlp: a clamp to [nan, 1]",
	"mlp: a product of rows needs rows of elements",
	"mlp: attention in chunks of 3 with a window of 2; chunks have 1 or more positions",
	"the model: forward's result needs rows of elements",
};

static struct tess_tensor *pass_wrong_value(struct tess_nn *nn, struct tess_tensor *x)
{
	const struct tess_linear w[] = { { "w", nn->dim(nn, "out", 8, 0), 0, 0 }, { 0 } };
	struct tess_tensor *flat = nn->positions(nn, 0), *y[2];

	nn->enter(nn, x, "mlp");
	switch (wrong) {
	case 0:
		return nn->linear(nn, flat, w, y), x;
	case 1:
		return nn->linear(nn, NULL, w, y), x;
	case 2:
		return nn->linear(nn, x, NULL, y), x;
	case 3:
		return nn->rope(nn, flat, NULL);
	case 4:
		return nn->attention(nn, x, x, flat, NULL);
	case 5:
		return nn->split(nn, flat, y), x;
	case 6:
		return nn->split_heads(nn, flat, NULL, y), x;
	case 7:
		return nn->route(nn, flat, NULL);
	case 8:
		return nn->experts(nn, "w", x, flat, NULL);
	case 9:
		return nn->join(nn, &flat, 1, w[0].out);
	case 10:
		return nn->join(nn, &x, -3, w[0].out);
	case 11:
		return nn->norm(nn, "w", flat, TESS_RMS, 0);
	case 12:
		return nn->add(nn, x, NULL);
	case 13:
		return nn->glu(nn, flat, NULL, TESS_SILU);
	case 14:
		return nn->glu(nn, x, NULL, 99);
	case 15:
		return nn->scale(nn, flat, 2);
	case 16:
		return nn->dropout(nn, flat, 0.5);
	case 17:
		return nn->head_linear(nn, flat, NULL);
	case 18:
		return nn->embed(nn, "w", x, w[0].out, w[0].out);
	case 19:
		return nn->fused(nn, NULL) ? x : NULL;
	case 20:
		return nn->grouped(nn, "kv", NULL, 3) ? x : NULL;
	case 21:
		return nn->integer(nn, NULL, 1) ? x : NULL;
	case 22:
		return nn->enter(nn, x, NULL);
	case 23:
		return nn->leave(nn, NULL);
	case 24:
		return nn->multiply(nn, x, flat);
	case 25:
		return nn->clamp(nn, flat, -1, 1);
	case 26:
		return nn->clamp(nn, x, 1, -1);
	case 27:
		return nn->clamp(nn, x, (double)NAN, 1);
	case 28:
		return nn->dot(nn, x, flat);
	case 29:
		return nn->attention(
			nn, x, x, x,
			&(struct tess_attention){ .size = sizeof(struct tess_attention),
		                                  .scale = 1,
		                                  .window = 2,
		                                  .chunk = 3 });
	default:
		return nn->leave(nn, x), flat;
	}
}

/* Records a mistake of a model's author. */
static struct tess_tensor *record_fault(struct tess_nn *nn, struct tess_tensor *x)
{
	const struct tess_linear no_out[] = { { "w", NULL, 0, 0 }, { 0 } };
	struct tess_tensor *y[2];

	if (fault == TIED_TO_VECTOR)
		return nn->tied(nn, "head", x, "norm");
	if (fault == NO_PARTS)
		nn->fused(nn, (struct tess_dim *[]){ NULL });
	if (fault == NO_OUT)
		nn->linear(nn, x, no_out, y);
	if (fault == WRONG_VALUE)
		return pass_wrong_value(nn, x);
	if (fault == NOT_FUSED)
		nn->split(nn, nn->enter(nn, x, "mlp"), y);
	return fault == ALL_ROWS ? x : nn->select_rows(nn, nn->select_rows(nn, x));
}

static struct tess_tensor *record_block(struct tess_nn *nn, struct tess_tensor *words)
{
	struct tess_dim *vocab = nn->dim(nn, "vocabulary", VOCABULARY, 0);
	struct tess_dim *hidden = nn->dim(nn, "hidden", HIDDEN, TESS_HIDDEN);
	struct tess_dim *heads = nn->dim(nn, "heads", HEADS, HEAD);
	const struct tess_linear qkv[] = {
		{ "q", heads, 0, 0 }, { "k", heads, 0, 0 }, { "v", heads, 0, 0 }, { 0 }
	};
	const struct tess_linear o[] = { { "o", hidden, 0, 0 }, { 0 } };
	struct tess_rotary of_queries = rotary;
	struct tess_tensor *h[3], *x, *y;

	x = nn->embed(nn, "words", words, vocab, hidden);
	x = nn->add(nn, x,
	            nn->embed(nn, "places", nn->positions(nn, 0),
	                      nn->dim(nn, "positions", TABLE, 0), hidden));
	x = nn->norm(nn, "norm", nn->scale(nn, x, 0.7), norm, 1e-5);
	nn->linear(nn, x, qkv, h);
	of_queries.growth = growth;
	of_queries.period = 4 * growth;
	y = nn->attention(nn, nn->rope(nn, h[0], &of_queries), nn->rope(nn, h[1], &rotary), h[2],
	                  attention.size ? &attention : NULL);
	nn->linear(nn, nn->scale(nn, y, 3), o, &y);
	return record_fault(nn, y);
}

static const struct tess_model model = { .size = sizeof model,
	                                 .name = "options",
	                                 .forward = record_block };
static const struct tess_source source = { .name = "random",
	                                   .find = find_block_tensor,
	                                   .drop = lockstep_ignore_drop };

static void reset_options(void)
{
	attention = (struct tess_attention){ .size = sizeof attention, .scale = 0.4 };
	rotary = (struct tess_rotary){ .size = sizeof rotary };
	norm = TESS_RMS;
	growth = 0;
	fault = SOUND;
}

static tess_status run_options_block(const char *plan, int32_t nranks, float **logits,
                                     int64_t *count)
{
	struct lockstep how = { &model, &source, plan, nranks, ids, IDS, true, NULL };

	return lockstep_run(&how, logits, count);
}

#define COLWISE "\"q\":\"colwise\",\"k\":\"colwise\",\"v\":\"colwise\","
static const char *const plans[] = {
	"{" COLWISE "\"o\":\"rowwise\",\"words\":\"embedding_rowwise\"}",
	"{" COLWISE "\"o\":\"rowwise\",\"words\":\"embedding_rowwise\","
	"\"places\":\"embedding_rowwise\"}",
	"{" COLWISE "\"o\":\"rowwise_reduce_scatter\",\"words\":\"vocab_reduce_scatter\","
	"\"places\":\"sequence_parallel\",\"norm\":\"sequence_parallel\"}",
	"{" COLWISE "\"o\":\"rowwise\",\"places\":\"embedding_colwise\"}",
};

static void expect_one_result(float **first)
{
	int64_t count, other;

	ck_assert_msg(!run_options_block("none", 1, first, &count), "%s", tess_error());
	for (int32_t i = 0; i < 4 * 4; i++) {
		float *have;

		ck_assert_msg(!run_options_block(plans[i % 4], 2 + i / 4, &have, &other),
		              "%s, %d: %s", plans[i % 4], (int)(2 + i / 4), tess_error());
		ck_assert(count == other);
		ck_assert_msg(!memcmp(*first, have, 4 * (size_t)count), "%s: other bits with %d",
		              plans[i % 4], (int)(2 + i / 4));
		free(have);
	}
}

static const struct {
	struct tess_attention attention;
	struct tess_rotary rotary;
	int32_t norm;
} options[] = {
	{ { .scale = 0.4 }, { 0 }, TESS_RMS },
	{ { .scale = 0.4 }, { 0 }, TESS_RMS | TESS_OFFSET },
	{ { .scale = 0.4 }, { 0 }, TESS_LAYER },
	{ { .scale = 0.4, .softcap = 0.3 }, { 0 }, TESS_RMS },
	{ { .scale = 0.4, .window = 4 }, { 0 }, TESS_RMS },
	{ { .scale = 0.4 }, { .flags = TESS_INTERLEAVED }, TESS_RMS },
	{ { .scale = 0.4 }, { .width = 4 }, TESS_RMS },
	{ { .scale = 0.4 }, { .first = 2 }, TESS_RMS },
	{ { .scale = 0.4 }, { .first = 1, .width = 4, .flags = TESS_INTERLEAVED }, TESS_RMS },
};
enum { OPTIONS = sizeof options / sizeof *options };

/* Checks that each option changes the result, which does not depend on ranks and plans. */
START_TEST(options_on_any_ranks)
{
	float *result[OPTIONS];

	for (int i = 0; i < OPTIONS; i++) {
		attention = options[i].attention;
		attention.size = sizeof attention;
		rotary = options[i].rotary;
		rotary.size = sizeof rotary;
		norm = options[i].norm;
		expect_one_result(&result[i]);
		for (int k = 0; k < i; k++)
			ck_assert_msg(memcmp(result[i], result[k], 4 * IDS * HIDDEN),
			              "cases %d and %d give the same", k, i);
	}
	for (int i = 0; i < OPTIONS; i++)
		free(result[i]);
}
END_TEST

/* Checks that a plugin with fewer fields than the core leaves the later ones at their defaults. */
START_TEST(options_may_be_shorter)
{
	float *want, *have;
	int64_t count;

	reset_options();
	ck_assert(!run_options_block("none", 1, &want, &count));
	attention.softcap = 0.3;
	attention.size = TESS_UPTO(tess_attention, scale);
	rotary.first = 4;
	rotary.size = TESS_UPTO(tess_rotary, flags);
	ck_assert(!run_options_block("none", 1, &have, &count));
	ck_assert(!memcmp(want, have, 4 * (size_t)count));
	free(want);
	free(have);
}
END_TEST

static void expect_block_refused(const char *plan, const char *says)
{
	float *logits;
	int64_t count;

	ck_assert_msg(run_options_block(plan, 2, &logits, &count) < 0, "not refused: %s", says);
	expect_part(tess_error(), says);
	reset_options();
}

START_TEST(refuses)
{
	reset_options();
	rotary.first = 3;
	rotary.width = 4;
	expect_block_refused("none",
	                     "rope needs an even number of elements inside each head, not 4 "
	                     "from 3 on of heads of 6");
	rotary.width = 3;
	expect_block_refused("none", "not 3 from 0 on");
	rotary.first = -2;
	expect_block_refused("none", "not 8 from -2 on");
	attention.size = 0;
	expect_block_refused("none", "attention needs a scale");
	attention.softcap = -1;
	expect_block_refused("none", "not 0.4, -1 and 0");
	attention.window = -1;
	expect_block_refused("none", "not 0.4, 0 and -1");
	expect_block_refused("{\"q\":\"local_rowwise\"}", "rope of an unfinished sum of q");
	norm = TESS_RMS | TESS_LAYER;
	expect_block_refused("none", "norm: no kind of norm is 3; use TESS_RMS or TESS_LAYER");
	fault = TIED_TO_VECTOR;
	expect_block_refused("none", "head: tied to norm.weight, which is no table");
	fault = NO_PARTS;
	expect_block_refused("none", "a fused dimension without parts");
	fault = NO_OUT;
	expect_block_refused("none", "w: a linear op without an out dimension");
	fault = NOT_FUSED;
	expect_block_refused("none", "mlp: split of hidden, which o gives and which was not");
}
END_TEST

START_TEST(refuses_wrong_values)
{
	reset_options();
	fault = WRONG_VALUE;
	wrong = (size_t)_i;
	expect_block_refused("none", wrong_values[wrong]);
}
END_TEST

/*
 * Checks that the model selects the rows of a step whose logits are requested, once or more often.
 */
START_TEST(rows_are_selected)
{
	struct lockstep how = { &model, &source, "none", 1, ids, IDS, false, NULL };
	float *logits;
	int64_t count;

	reset_options();
	ck_assert_msg(!lockstep_run(&how, &logits, &count), "%s", tess_error());
	ck_assert_int_eq(count, HIDDEN);
	free(logits);
	fault = ALL_ROWS;
	ck_assert_int_lt(lockstep_run(&how, &logits, &count), 0);
	expect_part(tess_error(), "model options: forward gave the logits of all rows; call "
	                          "select_rows() before the head");
	how.all_rows = true;
	ck_assert_msg(!lockstep_run(&how, &logits, &count), "%s", tess_error());
	free(logits);
}
END_TEST

/* Checks that the table limits the positions of a sequence. */
START_TEST(positions_have_an_end)
{
	struct lockstep how = { &model, &source, "none", 1, NULL, 3, false, NULL };
	struct tess_program *p;

	reset_options();
	ck_assert_msg(!lockstep_record(&how, &p), "%s", tess_error());
	ck_assert_int_eq(p->max_positions, TABLE);
	tess_program_free(p);
}
END_TEST

static const void *tables[2]; /* of the first two ROPEs */

/* Notes the tables of two adjacent ROPEs. */
static int32_t note_tables(const struct tess_op *op)
{
	if (op->kind != TESS_OP_ROPE || op->next->kind != TESS_OP_ROPE)
		return 0;
	tables[0] = op->in[2].data;
	tables[1] = op->next->in[2].data;
	return 0;
}

/* Checks that a device that fuses ROPEs sees which of them read the same table. */
START_TEST(tables_of_rope_are_apart)
{
	static const struct tess_device device = { .fuses = note_tables };
	struct lockstep how = { &model, &source, "none", 1, ids, IDS, false, NULL };
	struct tess_rank_program *low;
	struct tess_program *p;

	for (int i = 0; i < 2; i++) {
		reset_options();
		growth = i;
		ck_assert_msg(!lockstep_record(&how, &p), "%s", tess_error());
		ck_assert_msg(!tess_program_lower(p, 0, NULL, &low), "%s", tess_error());
		tables[0] = tables[1] = NULL;
		ck_assert(!tess_rank_program_fuse(low, &device));
		ck_assert(tables[0] && (tables[0] != tables[1]) == i);
		tess_rank_program_free(low);
		tess_program_free(p);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("records", 60, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	tcase_add_test(t, options_on_any_ranks);
	tcase_add_test(t, options_may_be_shorter);
	tcase_add_test(t, refuses);
	tcase_add_loop_test(t, refuses_wrong_values, 0, sizeof wrong_values / sizeof *wrong_values);
	tcase_add_test(t, rows_are_selected);
	tcase_add_test(t, positions_have_an_end);
	tcase_add_test(t, tables_of_rope_are_apart);
	return suite_end(r);
}

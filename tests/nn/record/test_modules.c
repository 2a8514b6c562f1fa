/*
 * test_modules.c - modules missing in test_style_matrix.c: fused and stored in other ways, with
 * heads, with hooks, several in one op; and every redistribution. With random data of uneven sizes,
 * 1 to 8 ranks give the bits of one replicated rank, and in training its gradients.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "nn/compile/hash.h"
#include "nn/lower/lower.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { BIAS = 1, FUSED = 2, TWINS = 4, FUSED_IN = 8, IN_OUT = 16, HEADS = 32 };
enum {
	GROUPED = 64,
	MIXED_IN = 128,
	WHOLE = 256,
	SECOND = 512,
	HALF = 1024,
	SPLIT = 2048,
	ROPE = 4096,
	BARE = 8192,
	TWICE = 16384,
	MANY_IN = 32768
};
enum { VOCABULARY = 53, HIDDEN = 44, WIDE = 70, NARROW = 45, IDS = 11, NHEADS = 9, HEAD = 6 };
enum { GROUPS = 3, SOME = 13, PARTS = 20, PART = 9 };

/*
 * ids -> table -> norm -> block { m } -> output; WHOLE: whole numbers and no norm, so that every
 * sum is exact
 */
static int module_flags;
static const char *second = "n";
static int64_t wide_units; /* 0, TESS_HIDDEN */

static struct tess_tensor *record_module(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *vocab = nn->dim(nn, "vocabulary", VOCABULARY, 0), *hidden, *wide, *narrow;
	struct tess_dim *parts[PARTS + 1] = { NULL };
	struct tess_tensor *x, *y, *out[2], *part[3] = { 0 };

	wide = nn->dim(nn, "wide", WIDE, wide_units);
	narrow = nn->dim(nn, "narrow", NARROW, 0);
	hidden = nn->dim(nn, "hidden", HIDDEN, TESS_HIDDEN);
	if (module_flags & FUSED_IN)
		hidden = nn->fused(nn, (struct tess_dim *[]){ narrow, narrow, NULL });
	if (module_flags &
	    MIXED_IN) /* parts with different units: a tree each, two terms in the first */
		hidden = nn->fused(nn, (struct tess_dim *[]){ narrow, nn->dim(nn, "some", SOME, 0),
		                                              narrow, NULL });
	for (int i = 0; i < PARTS && module_flags & MANY_IN; i++)
		parts[i] = nn->dim(nn, "part", PART, 0);
	if (module_flags & MANY_IN) /* a tree each */
		hidden = nn->fused(nn, parts);
	if (module_flags & FUSED)
		wide = nn->fused(nn, (struct tess_dim *[]){ narrow, wide, wide, NULL });
	if (module_flags & TWINS)
		wide = nn->fused(nn, (struct tess_dim *[]){ wide, wide, NULL });
	if (module_flags & HEADS)
		wide = nn->dim(nn, "heads", NHEADS, HEAD);
	if (module_flags & GROUPED) /* ranks hold heads that another rank owns */
		wide = nn->grouped(nn, "groups", nn->dim(nn, "heads", NHEADS, HEAD), GROUPS);
	x = nn->embed(nn, "table", ids, vocab, hidden);
	if (!(module_flags & WHOLE))
		x = nn->norm(nn, "norm", x, TESS_RMS, 1e-5);
	if (!(module_flags & WHOLE)) /* which accepts only rows that are cut too */
		x = nn->select_rows(nn, x);
	x = nn->enter(nn, x, "block");
	nn->linear(nn, x,
	           (struct tess_linear[]){ { "m", wide,
	                                     (module_flags & BIAS ? TESS_BIAS : 0) |
	                                             (module_flags & IN_OUT ? TESS_IN_OUT : 0),
	                                     0 },
	                                   { module_flags & SECOND ? second : NULL, narrow, 0,
	                                     0 }, /* the other position of the op, unused */
	                                   { 0 } },
	           out);
	y = out[0];
	if (module_flags & SPLIT) {
		nn->split(nn, y, part);
		y = part[1];
	}
	if (module_flags & ROPE)
		y = nn->rope(nn, nn->rope(nn, y, NULL),
		             NULL); /* both read their positions at the same place */
	if (module_flags & HEADS)
		y = nn->norm(nn, "head_norm", y, TESS_RMS | TESS_HEADS, 1e-5);
	y = nn->leave(nn, y);
	if (module_flags & (BARE | TWICE))
		return module_flags & TWICE ? nn->add(nn, y, y) : y;
	return module_flags & SPLIT ? nn->glu(nn, y, NULL, TESS_RELU) : y;
}

static const struct tess_model model = { .size = sizeof model,
	                                 .name = "alone",
	                                 .forward = record_module };

/* ---- random parameters ----------------------------------------------------------------------- */

static float hash_to_float(uint32_t i)
{
	i = (i ^ 61) ^ (i >> 16);
	i *= 9;
	i ^= i >> 4;
	i *= 0x27d4eb2d;
	i ^= i >> 15;
	return (float)(i & 0xffff) / 32768.0f - 1.0f;
}

static int64_t get_hidden_size(void)
{
	return module_flags & MANY_IN    ? PARTS * PART
	       : module_flags & FUSED_IN ? 2 * NARROW
	       : module_flags & MIXED_IN ? 2 * NARROW + SOME
	                                 : HIDDEN;
}

static tess_status find_random_tensor(void *self, const char *name, struct tess_view *out)
{
	static float fractions[64 * 1024], wholes[64 * 1024];
	static uint16_t halves[WIDE * 4];
	static bool made;
	float *data = module_flags & WHOLE ? wholes : fractions;
	int64_t in = get_hidden_size();
	int64_t wide = module_flags & FUSED   ? NARROW + 2 * WIDE
	               : module_flags & TWINS ? 2 * WIDE
	                                      : WIDE;

	wide = module_flags & HEADS ? NHEADS * HEAD : module_flags & GROUPED ? GROUPS * HEAD : wide;

	(void)self;
	for (uint32_t i = 0; !made && i < sizeof wholes / sizeof *wholes; i++) {
		fractions[i] = hash_to_float(i + 1);
		wholes[i] = (float)(int)(8 * fractions[i]);
	}
	for (uint32_t i = 0; i < sizeof halves / sizeof *halves; i++) /* bf16 */
		memcpy(&halves[i], (char *)&fractions[i] + 2, 2);
	made = true;
	*out = (struct tess_view){ .data = data, .dtype = TESS_F32, .ndim = 1, .stride = { 1 } };
	if (!strcmp(name, "table.weight") || !strcmp(name, "block.m.weight")) {
		out->ndim = 2;
		out->shape[0] = *name == 't' ? VOCABULARY : module_flags & IN_OUT ? in : wide;
		out->shape[1] = out->stride[0] = *name != 't' && module_flags & IN_OUT ? wide : in;
		out->stride[1] = 1;
		out->data = data + (*name == 't' ? 1 : 7777);
	} else if (module_flags & SECOND && !strncmp(name, "block.", 6) && name[6] == *second) {
		out->ndim = 2;
		out->shape[0] = NARROW;
		out->shape[1] = out->stride[0] = in;
		out->stride[1] = 1;
	} else {
		out->shape[0] = strstr(name, "head_norm")     ? HEAD
		                : strcmp(name, "norm.weight") ? wide
		                                              : in;
		if (module_flags & HALF && !strcmp(name, "block.m.bias")) {
			out->dtype = TESS_BF16;
			out->data = halves;
		}
	}
	return TESS_OK;
}

/* ---- cases ----------------------------------------------------------------------------------- */

struct module_case {
	int flags;
	const char *plan;
};

static const struct module_case cases[] = {
	{ BIAS | FUSED, "{\"block.m\":\"colwise\"}" },
	{ BIAS, "{\"block.m\":\"colwise\",\"block.m.bias\":\"replicate\"}" },
	{ BIAS | HALF, "{\"block.m\":\"colwise\",\"block.m.bias\":\"replicate\"}" },
	{ BIAS | HALF | FUSED, "{\"block.m\":\"colwise\",\"block.m.bias\":\"replicate\"}" },
	{ BIAS | FUSED_IN, "{\"block.m\":\"rowwise\"}" },
	{ BIAS | FUSED_IN | SECOND, "{\"block.m\":\"rowwise\"}" },
	{ SECOND, "{\"block.m\":\"colwise\",\"block.n\":\"prepare_input:in=shard(0)\"}" },
	{ BIAS | TWINS, "{\"block.m\":\"packed_colwise\"}" },
	{ BIAS | FUSED, "{\"block.m\":\"packed_colwise:parts=45,70,70\"}" },
	{ BIAS | FUSED_IN, "{\"block.m\":\"packed_rowwise\"}" },
	{ FUSED_IN, "{\"block.m\":\"local_packed_rowwise\"}" },
	{ BIAS | FUSED_IN, "{\"table\":\"embedding_colwise\"}" },
	{ 0, "{\"block.m\":\"local_rowwise\",\"block\":\"gather\"}" },
	{ 0, "{\"block.m\":\"local_rowwise\",\"block\":\"all_reduce\"}" },
	{ BIAS, "{\"block.m\":\"colwise\",\"block\":\"all_gather\"}" },
	{ BIAS, "{\"norm\":\"sequence_parallel\",\"block\":\"local\"}" },
	{ BIAS, "{\"norm\":\"sequence_parallel\",\"block\":\"module_allgather\",\"block.m\":"
	        "\"colwise\"}" },
	/* redistributions: R->S0, S0->R, S0->S1, S1->S0, P->S0, P->S1, R->P */
	{ BIAS, "{\"block\":\"prepare_input:in=shard(0)\"}" },
	{ BIAS, "{\"block\":\"prepare_output:out=shard(0)\"}" },
	{ BIAS, "{\"block\":\"prepare_input_output:in=shard(0),out=shard(1)\"}" },
	{ BIAS | FUSED, "{\"block\":\"prepare_input_output:in=shard(0),out=shard(-1)\"}" },
	{ BIAS, "{\"block.m\":\"colwise\",\"block\":\"prepare_output:out=shard(0)\"}" },
	{ BIAS | FUSED, "{\"block.m\":\"colwise\",\"block\":\"prepare_output:out=shard(0)\"}" },
	{ 0, "{\"block.m\":\"local_rowwise\",\"block\":\"prepare_output:out=shard(0)\"}" },
	{ 0, "{\"block.m\":\"local_rowwise\",\"block\":\"prepare_output:out=shard(1)\"}" },
	{ FUSED, "{\"block.m\":\"local_rowwise\",\"block\":\"prepare_output:out=shard(1)\"}" },
	{ BIAS, "{\"block\":\"prepare_output:out=partial\"}" },
	/* one part of a fused value, whose rows have gaps */
	{ FUSED | SPLIT, "{\"block\":\"prepare_output:out=shard(0)\"}" },
	{ FUSED | SPLIT, "{\"block\":\"prepare_output:out=shard(1)\"}" },
	{ FUSED | SPLIT, "{\"block.m\":\"colwise\",\"block\":\"prepare_output:out=shard(0)\"}" },
	{ FUSED | SPLIT, "{\"block.m\":\"colwise\"}" },
	/* weights stored [in, out] */
	{ BIAS | IN_OUT, "{\"block.m\":\"colwise\"}" },
	{ BIAS | IN_OUT | FUSED, "{\"block.m\":\"colwise\"}" },
	{ BIAS | IN_OUT, "{\"block.m\":\"rowwise\"}" },
	{ BIAS | IN_OUT | FUSED_IN, "{\"block.m\":\"rowwise\"}" },
	/* a norm of each head, where heads are cut */
	{ HEADS, "{\"block.m\":\"colwise\"}" },
	{ HEADS, "{\"block.m\":\"rowwise\"}" },
	{ HEADS | ROPE, "{\"norm\":\"sequence_parallel\"}" },
	{ HEADS | ROPE, "{\"block.m\":\"colwise\"}" },
	/* heads held by several ranks and owned by one: S1->R, S1->S0, P->S1, R->S1 */
	{ GROUPED | BIAS, "{\"block.m\":\"colwise\"}" },
	{ GROUPED, "{\"block.m\":\"colwise_rep\"}" },
	{ GROUPED | BIAS, "{\"block.m\":\"colwise\",\"block\":\"prepare_output:out=shard(0)\"}" },
	{ GROUPED, "{\"block.m\":\"local_rowwise\",\"block\":\"prepare_output:out=shard(1)\"}" },
	{ GROUPED, "{\"block\":\"prepare_output:out=shard(1)\"}" },
	/* by_hand.c */
	{ BIAS, "{\"block.m\":\"negated_twice\"}" },
	{ 0, "{\"block.m\":\"rowsplit_by_hand\"}" },
	{ BIAS, "{\"block.m\":\"rowsplit_by_hand\"}" },
	{ BIAS, "{\"block.m\":\"stored\"}" },
	{ BIAS, "{\"block.m\":\"stored:host\"}" },
};
enum { CASES = sizeof cases / sizeof *cases };
static const int32_t some_ids[IDS] = { 3, 52, 0, 17, 17, 40, 9, 1, 33, 26, 51 };

static const struct tess_source random_source = { .name = "random",
	                                          .find = find_random_tensor,
	                                          .drop = lockstep_ignore_drop };

static tess_status run_module(const char *json, int32_t nranks, int64_t nids, bool all,
                              float **logits, int64_t *count)
{
	struct lockstep how = { &model, &random_source, json, nranks, some_ids, nids, all, NULL };

	return lockstep_run(&how, logits, count);
}

static void expect_same_bits(const char *json, int64_t nids, bool all)
{
	float *want, *have;
	int64_t count, other;

	ck_assert_msg(!run_module("none", 1, nids, all, &want, &count), "%s", tess_error());
	for (int32_t ranks = 1; ranks <= 8; ranks += 1 + THIN / 2) {
		ck_assert_msg(!run_module(json, ranks, nids, all, &have, &other),
		              "%s, %d ranks: %s", json, ranks, tess_error());
		ck_assert_int_eq(count, other);
		ck_assert_msg(!memcmp(want, have, 4 * (size_t)count),
		              "%s: other bits with %d ranks", json, ranks);
		free(have);
	}
	free(want);
}

static tess_status train_module(const char *json, int32_t nranks, struct lockstep_gradients *out)
{
	static const int64_t lengths[] = { 36, 2 };
	int32_t ids[38], labels[38];
	struct lockstep how = { &model, &random_source, json, nranks, ids, 38, true, NULL };
	struct lockstep_step step = {
		.how = &how, .lengths = lengths, .nsequences = 2, .labels = labels
	};

	for (int i = 0; i < 38; i++) {
		ids[i] = i * i % VOCABULARY;
		labels[i] = i % 4 ? i % NARROW : -100;
	}
	return lockstep_train(&step, out);
}

/*
 * Checks that training gives the gradients of one rank; an unused weight has none, and is refused.
 */
static void expect_same_gradients(const char *json)
{
	struct lockstep_gradients want, have;

	if (train_module(json, 1, &want)) {
		ck_assert_msg(strstr(tess_error(), "its gradient is not known") ||
		                      strstr(tess_error(), "cannot train"),
		              "%s: %s", json, tess_error());
		return;
	}
	for (int32_t ranks = 2; ranks <= 8; ranks += 3) {
		ck_assert_msg(!train_module(json, ranks, &have), "%s, %d ranks: %s", json, ranks,
		              tess_error());
		lockstep_compare_gradients(json, &want, &have);
		lockstep_free_gradients(&have);
	}
	lockstep_free_gradients(&want);
}

START_TEST(alone)
{
	module_flags = cases[_i].flags;
	expect_same_gradients(cases[_i].plan);
	expect_same_bits(cases[_i].plan, IDS, true);
	expect_same_bits(cases[_i].plan, 3, true); /* fewer tokens than ranks */
	expect_same_bits(cases[_i].plan, 2, true);
	expect_same_bits(cases[_i].plan, 1, false);
	if (!(module_flags & ROPE)) /* which requires the positions of all rows */
		expect_same_bits(cases[_i].plan, IDS, false);
}
END_TEST

/* Compares with sums of integers: another run could have an equal fault. */
START_TEST(sums_are_of_all_parts)
{
	static const int kinds[] = {
		0,       FUSED_IN,          MIXED_IN,         MIXED_IN | IN_OUT, MIXED_IN | BIAS,
		MANY_IN, FUSED_IN | SECOND, MIXED_IN | SECOND
	};
	static const char *const plans[] = { "none", "{\"block.m\":\"rowwise\"}",
		                             "{\"block.m\":\"colwise\"}",
		                             "{\"table\":\"embedding_colwise:keep\","
		                             "\"block.m\":\"rowwise\"}" };
	struct tess_view table, w, b;
	int64_t in, count, sum;
	float *have;

	module_flags = kinds[_i] | WHOLE;
	in = get_hidden_size();
	ck_assert(!find_random_tensor(NULL, "table.weight", &table) &&
	          !find_random_tensor(NULL, "block.m.weight", &w) &&
	          !find_random_tensor(NULL, "block.m.bias", &b));
	for (int32_t at = 0; at < 8 * 4; at++) {
		if (at % 4 == 3 && module_flags & SECOND)
			continue; /* requires full rows */
		ck_assert_msg(!run_module(plans[at % 4], 1 + at / 4, IDS, true, &have, &count),
		              "%s", tess_error());
		ck_assert_int_eq(count, IDS * WIDE);
		for (int64_t i = 0; i < count; i++) {
			const float *x = (float *)table.data + some_ids[i / WIDE] * in;
			int64_t k = i % WIDE, step = module_flags & IN_OUT ? 1 : in;

			sum = module_flags & BIAS ? (int64_t)((float *)b.data)[k] : 0;
			for (int64_t j = 0; j < in; j++)
				sum += (int64_t)(x[j] *
				                 ((float *)
				                          w.data)[k * step +
				                                  j * (module_flags & IN_OUT ? WIDE
				                                                             : 1)]);
			if (have[i] != (float)sum)
				ck_abort_msg("%s, %d ranks: element %lld is %g, not %lld",
				             plans[at % 4], (int)(1 + at / 4), (long long)i,
				             (double)have[i], (long long)sum);
		}
		free(have);
	}
	ck_assert_int_ne(sum, 0); /* the sum has terms */
}
END_TEST

/* Returns a part of a value, with gaps between its rows: as logits it is half of an op's sum. */
START_TEST(output_may_be_a_part)
{
	static const char *const plans[] = {
		"none", "{\"block.m\":\"colwise\"}",
		"{\"block.m\":\"rowwise\",\"block\":\"prepare_output:out=shard(0)\"}"
	};
	float *have, *want;
	int64_t count, other;

	for (int32_t at = 0; at < 4 * 3; at++) {
		module_flags = FUSED | SPLIT | TWICE;
		ck_assert_msg(!run_module("none", 1, IDS, true, &want, &count), "%s", tess_error());
		module_flags = FUSED | SPLIT | BARE;
		ck_assert_msg(!run_module(plans[at % 3], 1 + at / 3, IDS, true, &have, &other),
		              "%s", tess_error());
		ck_assert(count == other);
		for (int64_t i = 0; i < count; i++)
			if (2 * have[i] != want[i])
				ck_abort_msg("%s, %d ranks: element %lld is %g, not %g",
				             plans[at % 3], (int)(1 + at / 3), (long long)i,
				             (double)have[i], (double)want[i]);
		free(have);
		free(want);
	}
}
END_TEST

static void expect_module_refused(int how, const char *json, const char *says)
{
	float *logits;
	int64_t count;

	module_flags = how;
	ck_assert_msg(run_module(json, 2, IDS, true, &logits, &count) < 0, "not refused: %s", json);
	expect_part(tess_error(), says);
}

START_TEST(refuses)
{
	expect_module_refused(BIAS, "{\"block.m\":\"local_rowwise\"}", "bias");
	expect_module_refused(BIAS, "{\"block.m.bias\":\"colwise\"}", "the bias is cut");
	expect_module_refused(FUSED | SPLIT, "{\"block.m\":\"local_rowwise\"}",
	                      "split of an unfinished sum");
	expect_module_refused(0,
	                      "{\"block.m\":\"colwise\",\"block\":\"prepare_output:out=partial\"}",
	                      "cannot become Partial");
	expect_module_refused(
		0,
		"{\"table\":\"prepare_input:in=shard(0)\",\"table.weight\":\"embedding_rowwise\"}",
		"a cut table cannot look up ids");
	expect_module_refused(0, "{\"block.m\":\"packed_colwise\"}", "parts");
	expect_module_refused(TWINS, "{\"block.m\":\"packed_colwise:parts=2,1\"}", "parts");
	expect_module_refused(0, "{\"block\":\"prepare_input:in=partial\"}", "Partial");
	expect_module_refused(0, "{\"block\":\"prepare_input:in=shard(7)\"}", "Shard(7)");
	expect_module_refused(0, "{\"block.n\":\"colwise\"}", "nearest: block.m");
	expect_module_refused(0, "{\"block.m\":\"colwise:gather\"}", "gather");
	expect_module_refused(0, "{\"block.m\":\"stored:rest\"}", "dp in training only");
	expect_module_refused(0, "{\"block.m\":\"stored:state\"}", "dp in training only");
	expect_module_refused(0, "{\"block.m\":\"stored:type\"}",
	                      "stores it as f64, where it is f32");
	expect_module_refused(0, "{\"block.m\":\"stored:kind\"}", "by kind 3; use asis or shard");
	expect_module_refused(0, "{\"block.m\":\"stored:disk\"}", "on disk, which is for training");
	expect_module_refused(0, "{\"block.m\":\"stored:location\"}", "use location 0 to 2");
}
END_TEST

/* Returns the program for two ranks; the caller frees it. theta 0: not in the config. */
static struct tess_program *record_with_theta(const char *json, double theta)
{
	json_t *config = theta > 0 ? json_pack("{s:f}", "rope_theta", theta) : NULL;
	struct tess_source source = random_source;
	struct lockstep how = { &model, &source, json, 2, NULL, 3, true, NULL };
	struct tess_program *p;

	source.config = config;
	ck_assert_msg(!lockstep_record(&how, &p), "%s", tess_error());
	json_decref(config);
	return p;
}

static struct tess_program *record_for_two_ranks(const char *json)
{
	return record_with_theta(json, 0);
}

/* Checks that programs that differ only in the names of their weights have different hashes. */
START_TEST(names_of_weights_count)
{
	static const char *const names[] = { "n", "n", "k" };
	uint64_t hash[3];

	module_flags = SECOND;
	for (int i = 0; i < 3; i++) {
		struct tess_program *p;

		second = names[i];
		p = record_for_two_ranks("none");
		ck_assert(!tess_program_hash(p));
		hash[i] = p->hash[p->nrecords - 1];
		tess_program_free(p);
	}
	second = "n";
	ck_assert(hash[0] == hash[1]);
	ck_assert(hash[0] != hash[2]);
}
END_TEST

static uint64_t hash_with_theta(double theta)
{
	struct tess_program *p = record_with_theta("none", theta);
	uint64_t hash;

	ck_assert(!tess_program_hash(p));
	hash = p->hash[p->nrecords - 1];
	tess_program_free(p);
	return hash;
}

/* Checks that the settings of rope, and the units of a dim, change the hash. */
START_TEST(rope_and_units_count)
{
	uint64_t hash[2];

	module_flags = HEADS | ROPE;
	ck_assert(hash_with_theta(0) == hash_with_theta(10000)); /* the default */
	ck_assert(hash_with_theta(0) != hash_with_theta(10001));
	module_flags = HEADS;
	ck_assert(hash_with_theta(0) == hash_with_theta(10001));
	for (int i = 0; i < 2; i++) {
		wide_units = i ? TESS_HIDDEN : 0;
		module_flags = BIAS;
		hash[i] = hash_with_theta(0);
	}
	wide_units = 0;
	ck_assert(hash[0] != hash[1]);
}
END_TEST

/* Checks that a value that several ops read at one place is moved there once. */
START_TEST(moves_are_made_once)
{
	struct tess_program *p;
	int moves = 0;

	module_flags = HEADS | ROPE;
	p = record_for_two_ranks("{\"norm\":\"sequence_parallel\"}");
	for (int32_t i = 0; i < p->nrecords; i++)
		moves += p->record[i]->kind == TESS_REC_MOVE && p->record[i]->in[0] == p->positions;
	ck_assert_int_eq(moves, 1);
	tess_program_free(p);
}
END_TEST

/* Checks that the comparison finds a difference: modules with other weights give other bits. */
START_TEST(the_check_can_fail)
{
	float *one, *other;
	int64_t count;

	module_flags = BIAS;
	ck_assert(!run_module("none", 1, IDS, true, &one, &count));
	module_flags = BIAS | TWINS;
	ck_assert(!run_module("{\"block.m\":\"colwise\"}", 3, IDS, true, &other, &count));
	ck_assert(memcmp(one, other, 4 * IDS * WIDE) != 0);
	free(one);
	free(other);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("modules", 120, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_loop_test(t, alone, 0, CASES);
	tcase_add_loop_test(t, sums_are_of_all_parts, 0, 8);
	tcase_add_test(t, output_may_be_a_part);
	tcase_add_test(t, refuses);
	tcase_add_test(t, names_of_weights_count);
	tcase_add_test(t, rope_and_units_count);
	tcase_add_test(t, moves_are_made_once);
	tcase_add_test(t, the_check_can_fail);
	return suite_end(r);
}

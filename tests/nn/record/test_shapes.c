/*
 * test_shapes.c - programs of unusual shape: records limited only by memory, in linear time; the
 * number of units of a dimension; and weights that are read in slabs.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "nn/lower/build.h"
#include "nn/record/unexpected.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/reference/scalar.h"
#include "tests/support/draw.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VOCABULARY = 53, HIDDEN = 44, IDS = 11 };

static int64_t vocabulary, rows; /* of the table; of each other weight */

static tess_status find_test_tensor(void *self, const char *name, struct tess_view *out)
{
	static float data[1 << 16];
	uint64_t seed = 1;

	(void)self;
	for (size_t i = 0; i < sizeof data / sizeof *data; i++)
		data[i] = (float)draw_below(&seed, 1 << 16) / (1 << 15) - 1;
	*out = (struct tess_view){ .data = data + 100 * *name,
		                   .dtype = TESS_F32,
		                   .ndim = 2,
		                   .shape = { *name == 't' ? vocabulary : rows, HIDDEN },
		                   .stride = { HIDDEN, 1 } };
	return TESS_OK;
}

static struct tess_tensor *record_table(struct tess_nn *nn, struct tess_tensor *ids)
{
	return nn->embed(nn, "table", ids, nn->dim(nn, "vocabulary", vocabulary, 0),
	                 nn->dim(nn, "hidden", HIDDEN, TESS_HIDDEN));
}

static tess_status record_test_program(const struct tess_model *model, const char *plan,
                                       const struct tess_source *source, int32_t nranks,
                                       struct tess_program **out)
{
	struct lockstep how = { model, source, plan, nranks, NULL, 1, false, NULL };

	return lockstep_record(&how, out);
}

/* ---- rope of several widths ------------------------------------------------------------------ */

/* Digits of the rotated ones of three values, two of them of one width; the last is the output. */
static const char *rotated;

static struct tess_tensor *record_ropes(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *heads = nn->dim(nn, "heads", 4, 4), *halves = nn->dim(nn, "halves", 8, 2);
	struct tess_linear linear[] = {
		{ "a", heads, 0, 0 }, { "b", halves, 0, 0 }, { "c", heads, 0, 0 }, { 0 }
	};
	struct tess_tensor *y[3] = { 0 }, *out = NULL;

	nn->linear(nn, record_table(nn, ids), linear, y);
	for (const char *at = rotated; *at; at++)
		out = nn->rope(nn, y[*at - 'a'], NULL);
	return out;
}

static void run_ropes(const char *which, int32_t nranks, float **logits, int64_t *count)
{
	static const struct tess_model model = { .size = sizeof model,
		                                 .name = "ropes",
		                                 .forward = record_ropes };
	static const int32_t ids[IDS] = { 3, 52, 0, 17, 17, 40, 9, 1, 33, 26, 51 };
	struct tess_source source = { .name = "random",
		                      .find = find_test_tensor,
		                      .drop = lockstep_ignore_drop };
	struct lockstep how = { &model, &source, "{\"*\":\"colwise\",\"table\":\"replicate\"}",
		                nranks, ids,     IDS,
		                true,   NULL };

	rotated = which;
	ck_assert_msg(!lockstep_run(&how, logits, count), "%s", tess_error());
}

/* Checks that a value is rotated by the table of its own width, whatever else is rotated. */
START_TEST(ropes_of_two_widths)
{
	static const char *const alone[] = { "a", "b", "c" }, *const among[] = { "bca", "acb",
		                                                                 "abc" };
	float *want, *have;
	int64_t count, other;

	vocabulary = VOCABULARY;
	rows = 16;
	for (int32_t i = 0; i < 6; i++) {
		run_ropes(alone[i / 2], 1, &want, &count);
		run_ropes(among[i / 2], 1 + i % 2, &have, &other);
		ck_assert(count == other && !memcmp(want, have, 4 * (size_t)count));
		free(want);
		free(have);
	}
}
END_TEST

/* ---- depth, width, types --------------------------------------------------------------------- */

enum { DEPTH = 100, OUTPUTS = 40, NAME = 300 };

static struct tess_tensor *record_deep(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_tensor *x = record_table(nn, ids), *y[OUTPUTS];
	struct tess_dim *out = nn->dim(nn, "out", HIDDEN, 0);
	struct tess_linear linear[OUTPUTS + 1] = { 0 };

	for (int i = 0; i < DEPTH; i++)
		x = nn->enter(nn, x, "%0*d", i ? 1 : NAME, i);
	for (int i = 0; i < OUTPUTS; i++)
		linear[i] = (struct tess_linear){ "m", out, 0, 0 };
	nn->linear(nn, x, linear, y);
	x = y[OUTPUTS - 1];
	for (int i = 0; i < DEPTH; i++)
		x = nn->leave(nn, x);
	return x;
}

START_TEST(deep_and_wide)
{
	static const struct tess_model model = { .size = sizeof model,
		                                 .name = "deep",
		                                 .forward = record_deep };
	const struct tess_source source = { .name = "random", .find = find_test_tensor };
	struct tess_program *p;
	const char *name;

	vocabulary = VOCABULARY;
	rows = HIDDEN;
	ck_assert_msg(!record_test_program(&model, "none", &source, 1, &p), "%s", tess_error());
	ck_assert_int_eq(p->nweights, 1 + OUTPUTS);
	name = p->weight[OUTPUTS]->name; /* 0...0.1.2. ... .99.m.weight */
	ck_assert_uint_eq(strlen(name), NAME + 9 * 2 + 90 * 3 + strlen(".m.weight"));
	ck_assert_str_eq(strrchr(name, '9'), "9.m.weight");
	tess_program_free(p);
}
END_TEST

static struct tess_tensor *record_fused_twice(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *one = nn->dim(nn, "one", HIDDEN, 0);
	struct tess_dim *two = nn->fused(nn, (struct tess_dim *[]){ one, one, NULL });
	struct tess_tensor *y = NULL;

	two = nn->fused(nn, (struct tess_dim *[]){ two, one, NULL });
	nn->linear(nn, record_table(nn, ids), (struct tess_linear[]){ { "m", two, 0, 0 }, { 0 } },
	           &y);
	return y;
}

START_TEST(parts_are_not_fused)
{
	static const struct tess_model model = { .size = sizeof model,
		                                 .name = "fused",
		                                 .forward = record_fused_twice };
	const struct tess_source source = { .name = "random", .find = find_test_tensor };
	struct tess_program *p;

	vocabulary = VOCABULARY;
	ck_assert_int_eq(record_test_program(&model, "none", &source, 1, &p), TESS_ENOTSUP);
	ck_assert_str_eq(tess_error(), "one+one: a part of a fused dimension that is fused itself; "
	                               "list its parts instead");
}
END_TEST

/* Checks that sizes and places in a step's memory follow the type of a value. */
START_TEST(values_have_the_width_of_their_type)
{
	static const struct {
		int32_t dtype;
		uint64_t width;
	} types[] = { { TESS_BF16, 2 }, { TESS_F32, 4 }, { TESS_I32, 4 }, { TESS_I64, 8 } };
	struct tess_rank_program l = { 0 };
	struct build b = { .l = &l };

	for (int i = 0; i < 4; i++) {
		struct value v = build_add_temporary(&b, 2, 3, 32, types[i].dtype), part;

		part = build_slice_value(&v, 1, 2, 16, 16);
		ck_assert_uint_eq(b.buffer[i].life.bytes, 2 * 3 * 32 * types[i].width);
		ck_assert_uint_eq(part.offset, (32 + 16) * types[i].width);
	}
	tess_arena_free(&l.arena);
}
END_TEST

/* ---- large weights --------------------------------------------------------------------------- */

enum { LARGE_IN = 2048, LARGE_OUT = 3000, READ_MAX = 5 << 20 };

static int32_t large_flags;
static uint64_t bytes_read, most_read;

static struct tess_tensor *record_large(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *in = nn->dim(nn, "in", LARGE_IN, 0),
			*out = nn->dim(nn, "out", LARGE_OUT, 0);
	struct tess_tensor *y;

	y = nn->embed(nn, "table", ids, nn->dim(nn, "vocabulary", 1, 0), in);
	nn->linear(nn, y, (struct tess_linear[]){ { "m", out, large_flags, 0 }, { 0 } }, &y);
	return y;
}

/* Returns element i of m.weight; the pattern has no period that divides a row. */
static float get_large_element(int64_t i)
{
	return (float)(i % 99991);
}

static tess_status find_unread_tensor(void *self, const char *name, struct tess_view *out)
{
	int64_t n = *name == 't' ? 1 : large_flags & TESS_IN_OUT ? LARGE_IN : LARGE_OUT;
	int64_t m = *name == 'm' && large_flags & TESS_IN_OUT ? LARGE_OUT : LARGE_IN;

	(void)self;
	*out = (struct tess_view){
		.dtype = TESS_F32, .ndim = 2, .shape = { n, m }, .stride = { m, 1 }
	};
	return TESS_OK;
}

static tess_status read_large_tensor(void *self, const char *name, uint64_t at, uint64_t bytes,
                                     void *out)
{
	float *to = out;

	(void)self;
	for (uint64_t i = 0; i < bytes / 4; i++)
		to[i] = get_large_element((int64_t)(at / 4 + i));
	if (*name == 'm') {
		bytes_read += bytes;
		most_read = bytes > most_read ? bytes : most_read;
	}
	return TESS_OK;
}

/* Checks that the panels contain a rank's part of m.weight [out, in], in any storage order. */
static void check_panels(const struct tess_view *v, int64_t out_at, int64_t in_at)
{
	const float *data = v->data;

	ck_assert_int_eq(v->layout, TESS_PANELS);
	for (int64_t j = 0; j < v->shape[0]; j++)
		for (int64_t k = 0; k < v->shape[1]; k++) {
			int64_t o = out_at + j, i = in_at + k;

			MUST(data[j / 16 * v->stride[0] + k * 16 + j % 16] ==
			     get_large_element(large_flags & TESS_IN_OUT ? i * LARGE_OUT + o
			                                                 : o * LARGE_IN + i));
		}
}

/* Checks that weights are read in slabs, once, and only the part that the rank holds. */
START_TEST(slabs_of_large_weights)
{
	static const struct tess_model model = { .size = sizeof model,
		                                 .name = "large",
		                                 .forward = record_large };
	static const char *const plans[] = { "none", "{\"m\":\"colwise\"}", "{\"m\":\"rowwise\"}" };
	const struct tess_source source = { .name = "unread",
		                            .find = find_unread_tensor,
		                            .read = read_large_tensor,
		                            .drop = lockstep_ignore_drop };
	struct tess_opened_device cpu = { 0 };
	struct tess_rank_weights held;
	struct tess_program *p;
	struct tess_run part;

	ck_assert_msg(!tess_plugin_find_device("cpu", &cpu.table) &&
	                      !cpu.table->open(0, 1, &cpu.self),
	              "%s", tess_error());
	tess_option_set("layout", "panels");
	large_flags = _i % 2 ? TESS_IN_OUT : 0;
	bytes_read = most_read = 0;
	ck_assert_msg(!record_test_program(&model, plans[_i / 2], &source, 3, &p), "%s",
	              tess_error());
	ck_assert_msg(!tess_rank_weights_load(p, &source, 1, &cpu, NULL, &held), "%s",
	              tess_error());
	part = (struct tess_run){ 0, 0 };
	if (_i / 2)
		tess_dim_get_local_runs(p->weight[1]->dim[_i / 2 == 1 ? p->weight[1]->out_dim
		                                                      : p->weight[1]->in_dim],
		                        3, 1, &part);
	ck_assert_int_eq(held.view[1].shape[0], _i / 2 == 1 ? part.len : LARGE_OUT);
	ck_assert_int_eq(held.view[1].shape[1], _i / 2 == 2 ? part.len : LARGE_IN);
	check_panels(&held.view[1], _i / 2 == 1 ? part.start : 0, _i / 2 == 2 ? part.start : 0);
	ck_assert_uint_eq(bytes_read,
	                  4 * (uint64_t)(held.view[1].shape[0] * held.view[1].shape[1]));
	ck_assert_uint_le(most_read, READ_MAX);
	tess_option_set("layout", "rows");
	tess_rank_weights_free(&held);
	cpu.table->close(cpu.self);
	tess_program_free(p);
}
END_TEST

static const struct tess_device *of_host;
static int allocations;

static tess_status count_allocation(void *self, uint64_t bytes, void **out)
{
	allocations++;
	return of_host->alloc(self, bytes, out);
}

/*
 * Checks that the offsets between weights of a device, on which it may rely, are equal in each run.
 */
START_TEST(weights_of_a_device_are_one_block)
{
	static const struct tess_model model = { .size = sizeof model,
		                                 .name = "large",
		                                 .forward = record_large };
	const struct tess_source source = { .name = "unread",
		                            .find = find_unread_tensor,
		                            .read = read_large_tensor,
		                            .drop = lockstep_ignore_drop };
	struct tess_device own;
	struct tess_opened_device d = { .table = &own };
	struct tess_rank_weights held;
	struct tess_program *p;

	ck_assert_msg(!tess_plugin_find_device("cpu", &of_host) && !of_host->open(0, 1, &d.self),
	              "%s", tess_error());
	own = *of_host;
	own.mem = TESS_MEM_MAX;
	own.layout = TESS_ROWS;
	own.alloc = count_allocation;
	large_flags = allocations = 0;
	ck_assert_msg(!record_test_program(&model, "{\"m\":\"colwise\"}", &source, 3, &p), "%s",
	              tess_error());
	ck_assert_msg(!tess_rank_weights_load(p, &source, 1, &d, NULL, &held), "%s", tess_error());
	ck_assert_int_eq(allocations, 1);
	ck_assert_int_gt(p->nweights, 1);
	for (int32_t i = 1; i < p->nweights; i++)
		ck_assert_ptr_eq(
			held.view[i].data,
			(char *)held.view[i - 1].data +
				tess_up(4 * held.view[i - 1].shape[0] * held.view[i - 1].shape[1],
		                        256) *
					256);
	tess_rank_weights_free(&held);
	of_host->close(d.self);
	tess_program_free(p);
}
END_TEST

/* ---- units ----------------------------------------------------------------------------------- */

/* Checks that up to 16383 elements, as in all checkpoints of the tests, give at most 32 units. */
START_TEST(units_of_elements)
{
	static const int64_t sizes[][2] = { { 1, 1 },        { 31, 31 },     { 53, 32 },
		                            { 172, 32 },     { 512, 32 },    { 14336, 32 },
		                            { 16383, 32 },   { 16384, 64 },  { 28672, 64 },
		                            { 32000, 64 },   { 32767, 64 },  { 32768, 128 },
		                            { 128256, 128 }, { 151936, 128 } };
	static const struct tess_model model = { .size = sizeof model,
		                                 .name = "table",
		                                 .forward = record_table };
	const struct tess_source source = { .name = "random", .find = find_test_tensor };
	struct tess_program *p;

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		vocabulary = sizes[i][0];
		ck_assert(!record_test_program(&model, "none", &source, 1, &p));
		ck_assert_int_eq(p->weight[0]->dim[0]->nunits, sizes[i][1]);
		tess_program_free(p);
	}
}
END_TEST

enum { LARGE_HIDDEN = 8192, LARGE_FFN = 28672, LARGE_VOCABULARY = 128256, LARGE_KV = 1024 };

static tess_status find_large_tensor(void *self, const char *name, struct tess_view *out)
{
	int64_t out_size = strstr(name, "k_proj") || strstr(name, "v_proj")       ? LARGE_KV
	                   : strstr(name, "gate_proj") || strstr(name, "up_proj") ? LARGE_FFN
	                   : strstr(name, "embed") || strstr(name, "lm_head")     ? LARGE_VOCABULARY
	                                                                          : LARGE_HIDDEN;
	int64_t in_size = strstr(name, "down_proj") ? LARGE_FFN : LARGE_HIDDEN;

	(void)self;
	*out = (struct tess_view){ .dtype = TESS_BF16,
		                   .ndim = strstr(name, "norm") ? 1 : 2,
		                   .shape = { out_size, in_size },
		                   .stride = { in_size, 1 } };
	return TESS_OK;
}

/* Checks that the heads limit a model of 64 heads, not its ffn. */
START_TEST(heads_limit_ranks)
{
	json_t *config =
		json_pack("{s:i,s:i,s:i,s:i,s:i,s:i}", "hidden_size", LARGE_HIDDEN,
	                  "num_attention_heads", 64, "num_key_value_heads", 8, "intermediate_size",
	                  LARGE_FFN, "vocab_size", LARGE_VOCABULARY, "num_hidden_layers", 1);
	const struct tess_source source = { .name = "large",
		                            .config = config,
		                            .find = find_large_tensor };
	const struct tess_model *llama;
	struct tess_rank_program *lowered;
	struct tess_program *p;
	const char *plan = _i ? "tp+sp" : "tp";

	ck_assert_msg(!tess_plugin_find_model("llama", &llama), "%s", tess_error());
	ck_assert_msg(!record_test_program(llama, plan, &source, 64, &p), "%s", tess_error());
	ck_assert_msg(!tess_program_lower(p, 63, NULL, &lowered), "%s", tess_error());
	tess_rank_program_free(lowered);
	tess_program_free(p);
	ck_assert_int_eq(record_test_program(llama, plan, &source, 65, &p), TESS_EINVAL);
	ck_assert_msg(strstr(tess_error(), "heads: 64 units cannot be cut for 65 ranks"), "%s",
	              tess_error());
	json_decref(config);
}
END_TEST

/* ---- many layers ----------------------------------------------------------------------------- */

static int nlayers;

static struct tess_tensor *record_many_layers(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *hidden = nn->dim(nn, "hidden", HIDDEN, TESS_HIDDEN);
	struct tess_tensor *x =
		nn->embed(nn, "table", ids, nn->dim(nn, "vocabulary", VOCABULARY, 0), hidden);

	for (int i = 0; i < nlayers; i++) {
		struct tess_tensor *y;

		y = nn->enter(nn, x, "layers.%d", i);
		nn->linear(nn, y, (struct tess_linear[]){ { "m", hidden, 0, 0 }, { 0 } }, &y);
		x = nn->add(nn, x, nn->leave(nn, y));
	}
	return nn->select_rows(nn, x);
}

static tess_status find_square_tensor(void *self, const char *name, struct tess_view *out)
{
	static float data[VOCABULARY * HIDDEN];

	(void)self;
	*out = (struct tess_view){ .data = data,
		                   .dtype = TESS_F32,
		                   .ndim = 2,
		                   .shape = { *name == 't' ? VOCABULARY : HIDDEN, HIDDEN },
		                   .stride = { HIDDEN, 1 } };
	return TESS_OK;
}

static const char *get_layer_name(void *self, size_t i)
{
	static char name[64];

	(void)self;
	snprintf(name, sizeof name, i ? "layers.%zu.m.weight" : "table.weight", i - 1);
	return name;
}

/* Makes a plan with a rule for each layer. */
static char *make_long_plan(int n)
{
	char *json;
	size_t len;
	FILE *f = open_memstream(&json, &len);

	for (int i = 0; i < n; i++)
		fprintf(f, "%s\"layers.%d.m\":\"rowwise\"", i ? "," : "{", i);
	fputc('}', f);
	ck_assert(!fclose(f));
	return json;
}

/*
 * Returns the CPU seconds to record a model of n layers, to check and load its weights and to lower
 * it for one of two ranks.
 */
static double measure_recording(int n)
{
	static const struct tess_model many = { .size = sizeof many,
		                                .name = "many",
		                                .forward = record_many_layers };
	const struct tess_source source = { .find = find_square_tensor,
		                            .drop = lockstep_ignore_drop,
		                            .count = (size_t)n + 1,
		                            .at = get_layer_name,
		                            .name = "random" };
	char *plan = make_long_plan(n);
	const struct tess_opened_device device = { .table = &scalar_device };
	struct lockstep how = { &many, &source, plan, 2, NULL, 1, false, NULL };
	struct tess_program *p = NULL;
	struct tess_rank_program *low = NULL;
	struct tess_rank_weights held;
	clock_t began = clock();

	nlayers = n;
	ck_assert_msg(!lockstep_record(&how, &p), "%s", tess_error());
	ck_assert_msg(!tess_unexpected_check(p, &many, &source, true), "%s", tess_error());
	ck_assert_msg(!tess_rank_weights_load(p, &source, 1, &device, NULL, &held), "%s",
	              tess_error());
	ck_assert_msg(!tess_program_lower(p, 1, held.view, &low), "%s", tess_error());
	tess_rank_program_free(low);
	tess_rank_weights_free(&held);
	tess_program_free(p);
	free(plan);
	return (double)(clock() - began) / CLOCKS_PER_SEC;
}

/* Checks that 32 times the layers take 32 times as long, not 1024. */
START_TEST(time_grows_with_layers)
{
	double few = measure_recording(625), many;

	for (int i = 0; i < 4; i++) { /* the minimum, least disturbed by other processes */
		double again = measure_recording(625);

		few = again < few ? again : few;
	}
	many = measure_recording(20000);
	ck_assert_msg(many < 128 * few, "%g s for 625 layers, %g s for 20000", few, many);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("shapes", 60, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_test(t, ropes_of_two_widths);
	tcase_add_test(t, deep_and_wide);
	tcase_add_test(t, parts_are_not_fused);
	tcase_add_test(t, values_have_the_width_of_their_type);
	tcase_add_test(t, weights_of_a_device_are_one_block);
	tcase_add_loop_test(t, slabs_of_large_weights, 0, 6);
	tcase_add_test(t, units_of_elements);
	tcase_add_loop_test(t, heads_limit_ranks, 0, 2);
	tcase_add_test(t, time_grows_with_layers);
	return suite_end(r);
}

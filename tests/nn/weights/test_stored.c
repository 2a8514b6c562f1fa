/*
 * test_stored.c - names of parameters in files, and experts that are stored one by one or together.
 * A rank reads only its own experts and parts; recording and listing take linear time; a mismatch
 * is refused by both names.
 */
#include "core/base/option.h"
#include "core/registry/registry.h"
#include "nn/record/unexpected.h"
#include "nn/weights/weights.h"
#include "tests/support/mixture.h"

#include <stdio.h>

/* ---- names ----------------------------------------------------------------------------------- */

START_TEST(names_in_files)
{
	const struct tess_stored table[] = {
		{ "a.*.b", (const char *const[]){ "one.*", NULL } },
		{ "a.*.*", (const char *const[]){ "*.#.*", "*.#.second.*", NULL } },
		{ "p.**", (const char *const[]){ "**", NULL } },
		{ "a.**", (const char *const[]){ "q.**", NULL } },
		{ 0 }
	};
	static const struct {
		const char *stored, *name, *first, *last; /* last: the name of expert 12 */
		int32_t nparts;
	} cases[] = {
		{ "one.x", "a.x.b", "one.x", "one.x", 1 },
		{ "x.0.b", "a.x.b", "x.0.b", "x.12.second.b", 2 }, /* the second alternative */
		{ "x.0.y", "a.x.y", "x.0.y", "x.12.second.y", 2 },
		{ "w.1.z", "p.w.1.z", "w.1.z", "w.1.z", 1 },
		{ "q.x.y.z", "a.x.y.z", "q.x.y.z", "q.x.y.z", 1 },
		{ "other", "a.x.b", "a.x.b", "a.x.b", 1 }, /* no alternative: its own name */
		{ "one.x", "a.x.bb", "a.x.bb", "a.x.bb", 1 },
		{ "one.x.y", "a.x.y.b", "a.x.y.b", "a.x.y.b", 1 },
	};
	struct tess_arena arena = { 0 };
	char text[TESS_FILE_NAME];

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct store s = { .n = 1 };
		struct tess_source source = store_make_source(&s);
		struct tess_files f;

		snprintf(s.file[0].name, sizeof s.file[0].name, "%s", cases[i].stored);
		ck_assert(!tess_files_find(&arena, table, &source, cases[i].name, &f));
		ck_assert_int_eq(f.nparts, cases[i].nparts);
		ck_assert_str_eq(tess_files_format(&f, 0, 0, text), cases[i].first);
		ck_assert_str_eq(tess_files_format(&f, 12, f.nparts - 1, text), cases[i].last);
	}
	tess_arena_free(&arena);
}
END_TEST

START_TEST(refuses_tables)
{
	const struct {
		struct tess_stored entry;
		const char *says;
	} cases[] = {
		{ { "a.*.b", NULL }, "\"a.*.b\" has no files" },
		{ { "a.*.b", (const char *const[]){ NULL } }, "\"a.*.b\" has no files" },
		{ { "a.*.b", (const char *const[]){ "x.*", "x.*.*", NULL } },
		  "\"a.*.b\" has 1 times *, and its file \"x.*.*\" 2" },
		{ { "norm", (const char *const[]){ "x.**", NULL } },
		  "\"norm\" has 0 times *, and its file \"x.**\" 1" },
		{ { "a.*.**", (const char *const[]){ "x.*", NULL } }, "has 2 times *" },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct tess_stored table[] = {
			{ "x.*", (const char *const[]){ "y.*", NULL } }, cases[i].entry, { 0 }
		};
		const struct tess_model model = { .name = "odd", .stored = table };

		ck_assert_int_eq(tess_stored_check(&model), TESS_EABI);
		expect_part(tess_error(), "model odd: stored: ");
		expect_part(tess_error(), cases[i].says);
	}
}
END_TEST

/* ---- what a rank reads ----------------------------------------------------------------------- */

/* Returns element (out, in) of a matrix in rows or panels. */
static float get_loaded(const struct tess_view *v, int64_t e, int64_t o, int64_t i)
{
	const float *data = (const float *)v->data + e * v->stride[0];

	return v->layout == TESS_PANELS ? data[o / 16 * v->stride[1] + i * 16 + o % 16]
	                                : data[o * v->stride[1] + i * v->stride[2]];
}

/* Checks gate_up: the rank has experts from `first` on, and of each part outs from `from` on. */
static void check_gate_up(const struct tess_view *v, int64_t first, int64_t from)
{
	int64_t each = v->shape[1] / 2;

	for (int64_t e = 0; e < v->shape[0]; e++)
		for (int64_t o = 0; o < 2 * each; o++)
			for (int64_t i = 0; i < v->shape[2]; i++)
				MUST(get_loaded(v, e, o, i) ==
				     mixture_get_element(
					     1, first + e,
					     from + o % each + (o < each ? 0 : mixture->ffn), i));
}

static void check_down(const struct tess_view *v, int64_t first, int64_t from)
{
	for (int64_t e = 0; e < v->shape[0]; e++)
		for (int64_t o = 0; o < v->shape[1]; o++)
			for (int64_t i = 0; i < v->shape[2]; i++)
				MUST(get_loaded(v, e, o, i) ==
				     mixture_get_element(2, first + e, o, from + i));
}

/*
 * Checks ranks of ep=3,tp=2: rank 1 has experts [2, 4) of 5, and the second half of their ffn; rank
 * 3 has [4, 5).
 */
START_TEST(a_rank_reads_its_own)
{
	static const char plan[] =
		"{" BY_EXPERT("ep:", "ep_dispatch_experts") "," INSIDE("", "moe_tp_experts") "}";
	struct tess_opened_device cpu = { 0 };
	struct tess_rank_weights held;
	struct tess_source source;
	struct tess_program *p;
	uint64_t others;
	struct store *s;

	mixture = &mixtures[_i / 4 ? 3 : 0];
	s = store_make(_i & 2);
	source = store_make_source(s);
	ck_assert_msg(!tess_plugin_find_device("cpu", &cpu.table) &&
	                      !cpu.table->open(0, 1, &cpu.self),
	              "%s", tess_error());
	tess_option_set("layout", _i & 1 ? "rows" : "panels");
	ck_assert_msg(!mixture_record(s, plan, "ep=3,tp=2", 1, &p), "%s", tess_error());
	for (int32_t rank = 0; rank < 6; rank++) {
		int32_t ep = rank / 2, tp = rank % 2;
		int64_t first = tess_edge(mixture->experts, 3, ep),
			n = tess_edge(mixture->experts, 3, ep + 1) - first,
			half = tess_edge(mixture->ffn, 2, 1), f = tp ? mixture->ffn - half : half;

		s->bytes_read = 0;
		memset(s->read_names, 0, sizeof s->read_names);
		ck_assert_msg(!tess_rank_weights_load(p, &source, rank, &cpu, NULL, &held), "%s",
		              tess_error());
		ck_assert_int_eq(held.view[2].shape[0], n);
		ck_assert_int_eq(held.view[2].shape[1], 2 * f);
		ck_assert_int_eq(held.view[3].shape[2], f);
		check_gate_up(&held.view[2], first, tp ? half : 0);
		check_down(&held.view[3], first, tp ? half : 0);
		others = 4 * (uint64_t)(mixture->hidden * (2 * VOCABULARY + mixture->experts));
		ck_assert_uint_eq(s->bytes_read,
		                  others + 4 * (uint64_t)(n * 3 * f * mixture->hidden));
		for (int64_t e = 0; e < mixture->experts && !(_i & 2); e++) {
			char name[NAME_MAX_BYTES];

			snprintf(name, sizeof name, "[x.%d.w3]", (int)e);
			ck_assert_int_eq(strstr(s->read_names, name) != NULL,
			                 e >= first && e < first + n);
		}
		tess_rank_weights_free(&held);
	}
	tess_option_set("layout", "rows");
	cpu.table->close(cpu.self);
	tess_program_free(p);
	store_free(s);
}
END_TEST

/* ---- many experts ---------------------------------------------------------------------------- */

enum { LAYERS = 48, EXPERTS = 128, MANY = LAYERS * (EXPERTS * 3 + 9) + 3 };

static char (*many_names)[NAME_MAX_BYTES];
static int64_t many_finds;

static int compare_many_names(const void *a, const void *b)
{
	return strcmp(a, b);
}

static bool has_one_of_many(void *self, const char *name)
{
	(void)self;
	many_finds++;
	return bsearch(name, many_names, MANY, sizeof *many_names, compare_many_names) != NULL;
}

static tess_status find_one_of_many(void *self, const char *name, struct tess_view *out)
{
	*out = (struct tess_view){ .dtype = TESS_F32, .ndim = -1 };
	return has_one_of_many(self, name) ? TESS_OK : tess_fail(TESS_ENOENT, "no %s", name);
}

static const char *get_one_of_many(void *self, size_t i)
{
	(void)self;
	return many_names[i];
}

static void make_many_names(void)
{
	static const char *const own[] = { "input_layernorm",  "post_attention_layernorm",
		                           "self_attn.q_proj", "self_attn.k_proj",
		                           "self_attn.v_proj", "self_attn.o_proj",
		                           "self_attn.q_norm", "self_attn.k_norm",
		                           "mlp.gate" };
	static const char *const parts[] = { "gate_proj", "up_proj", "down_proj" };
	static const char *const others[] = { "model.embed_tokens", "model.norm", "lm_head" };
	size_t n = 0;

	many_names = calloc(MANY, sizeof *many_names);
	for (int i = 0; i < LAYERS; i++) {
		for (int k = 0; k < 9; k++)
			snprintf(many_names[n++], NAME_MAX_BYTES, "model.layers.%d.%s.weight", i,
			         own[k]);
		for (int k = 0; k < EXPERTS * 3; k++)
			snprintf(many_names[n++], NAME_MAX_BYTES,
			         "model.layers.%d.mlp.experts.%d.%s.weight", i, k / 3,
			         parts[k % 3]);
	}
	for (int k = 0; k < 3; k++)
		snprintf(many_names[n++], NAME_MAX_BYTES, "%s.weight", others[k]);
	ck_assert_uint_eq(n, MANY);
	qsort(many_names, MANY, sizeof *many_names, compare_many_names);
}

/* Looks up 18435 tensors: each once while recording, and once in the list of expected names. */
START_TEST(many_experts)
{
	json_t *config = json_pack("{si si si si si si si si si si}", "hidden_size", 16,
	                           "num_attention_heads", 2, "num_key_value_heads", 2,
	                           "num_hidden_layers", LAYERS, "intermediate_size", 32,
	                           "moe_intermediate_size", 8, "num_experts", EXPERTS,
	                           "num_experts_per_tok", 8, "vocab_size", 32, "head_dim", 8);
	struct tess_source source = { .name = "many",
		                      .config = config,
		                      .find = find_one_of_many,
		                      .has = has_one_of_many,
		                      .drop = lockstep_ignore_drop,
		                      .count = MANY,
		                      .at = get_one_of_many };
	const struct tess_model *model;
	struct tess_program *p;

	make_many_names();
	ck_assert_msg(!tess_plugin_find_model("qwen3_moe", &model), "%s", tess_error());
	many_finds = 0;
	ck_assert_msg(
		!lockstep_record(
			&(struct lockstep){ model, &source, "ep", 2, NULL, 1, false, NULL }, &p),
		"%s", tess_error());
	/* and one look-up per weight of experts, for its first file */
	ck_assert_int_le(many_finds, MANY + 2 * LAYERS);
	many_finds = 0;
	ck_assert_msg(!tess_unexpected_check(p, model, &source, true), "%s", tess_error());
	ck_assert_int_eq(many_finds, 0);
	tess_program_free(p);
	json_decref(config);
	free(many_names);
}
END_TEST

/* Checks that a missing or mismatched file is named by the plan's name and by the file's. */
START_TEST(refuses_files)
{
	struct tess_source source;
	struct tess_program *p;
	struct store *s;

	mixture = &mixtures[0];
	s = store_make(false);
	ck_assert_msg(!mixture_record(s, "none", "tp=1", 1, &p), "%s", tess_error());
	strcpy(store_find(s, "x.3.w3")->name, "x.3.w4"); /* at its old place */
	mixture_expect_refused(s, "none", "tp=1",
	                       "mlp.experts.gate_up_proj: store: tensor x.3.w3 is not there");
	source = store_make_source(s);
	ck_assert_int_lt(tess_unexpected_check(p, &mixture_model, &source, true), 0);
	expect_part(tess_error(), "no module of model mixture asks for x.3.w4 (the nearest is ");
	strcpy(store_find(s, "x.3.w4")->name, "x.3.w3");
	store_find(s, "x.4.w2")->shape[1] = 14;
	mixture_expect_refused(
		s, "none", "tp=1",
		"store: mlp.experts.down_proj (x.4.w2 in files): shape [12, 14], but "
		"config.json makes it [12, 13]");
	store_find(s, "x.4.w2")->shape[1] = 13;
	store_find(s, "renamed.head")->shape[0] = 3;
	mixture_expect_refused(s, "none", "tp=1",
	                       "store: head.weight (renamed.head in files): shape [3, 12]");
	tess_program_free(p);
	store_free(s);
	s = store_make(true);
	store_find(s, "mlp.experts.down_proj")->shape[0] = 6;
	mixture_expect_refused(
		s, "none", "tp=1",
		"store: mlp.experts.down_proj: shape [6, 12, 13], but config.json makes "
		"it [5, 12, 13]");
	store_free(s);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("stored", 120, &r);

	setenv("TESSERA_LAYOUT", "rows", 1);
	tcase_add_test(t, names_in_files);
	tcase_add_test(t, refuses_tables);
	tcase_add_loop_test(t, a_rank_reads_its_own, 0, 8);
	tcase_add_test(t, many_experts);
	tcase_add_test(t, refuses_files);
	return suite_end(r);
}

/*
 * test_explain.c - tess_explain, of libtessera.so: its numbers add up, and do not change for a
 * directory without the files of weights.
 */
#include "tests/support/scratch.h"

#include <jansson.h>
#include <stdbool.h>
#include <tessera/names.h>
#include <tessera/tessera.h>

static struct tess_explanation *explain_directory(const char *dir, const char *mesh,
                                                  const char *plan)
{
	struct tess_session_options options = { .size = sizeof options, .plan = plan };
	struct tess_explanation *e = NULL;

	ck_assert_msg(!tess_explain(dir, mesh, 0, 2, &options, &e), "%s", tess_error());
	return e;
}

/*
 * Checks that a parameter is cut over the ranks along its placement's axis, and full along the
 * others.
 */
static void expect_shards_of_parameter(const struct tess_explanation *e, int32_t i, uint64_t *bytes)
{
	const struct tess_explained_parameter *p = e->parameters[i];
	struct tess_place place = p->places[0];
	int64_t shape[TESS_DIMS], sum = 0;

	for (int32_t r = 0; r < e->nranks; r++) {
		uint64_t n = tess_explanation_shard(e, i, r, shape), expected = 4;

		for (int32_t a = 0; a < p->ndim; a++) {
			bool cut = place.kind == TESS_SHARD && place.dim == a;

			MUST(cut || shape[a] == p->shape[a]);
			sum += cut ? shape[a] : 0;
			expected *= (uint64_t)shape[a];
		}
		MUST(n == (p->tied ? 0 : expected));
		bytes[r] += n;
	}
	/* key-value heads are held by each rank that reads them */
	if (place.kind == TESS_SHARD)
		ck_assert_msg(strstr(p->name, "k_proj") || strstr(p->name, "v_proj")
		                      ? sum >= p->shape[place.dim]
		                      : sum == p->shape[place.dim],
		              "%s", p->name);
}

static void expect_collectives(const struct tess_explanation *e)
{
	const struct tess_explained_collective *first = NULL;
	int32_t moves = 0;

	for (int32_t i = 0; i < e->ncollectives; i++) {
		const struct tess_explained_collective *c = e->collectives[i];
		const struct tess_explained_record *r = e->records[c->record];

		ck_assert_str_eq(r->move, tess_kind_name(c->kind));
		ck_assert_str_eq(r->module, c->module);
		ck_assert(!memcmp(&r->in[0]->places[c->dim], &c->from, sizeof c->from) &&
		          !memcmp(&r->out[0]->places[c->dim], &c->to, sizeof c->to));
		ck_assert(c->bytes > 0 && c->sent > 0 && !r->in[1] && !r->parameters[0]);
		if (!strcmp(c->module, "model.layers.0.mlp.down_proj"))
			first = c;
		if (!strcmp(c->module, "model.layers.4.mlp.down_proj"))
			ck_assert(first && c->bytes == first->bytes && c->sent == first->sent);
	}
	for (int32_t i = 0; i < e->nrecords; i++)
		moves += e->records[i]->move && strcmp(e->records[i]->move, "slice") &&
		         strcmp(e->records[i]->move, "keep");
	ck_assert_int_eq(moves, e->ncollectives);
}

START_TEST(adds_up)
{
	static const char *const plans[] = { "tp", "tp+sp", "none" };
	struct tess_explanation *e = explain_directory(format_data_path("."), "tp=3", plans[_i]);
	uint64_t bytes[3] = { 0 };

	ck_assert(e->nranks == 3 && e->ndims == 1 && e->dim_sizes[0] == 3 && e->tokens == 2);
	ck_assert_str_eq(e->dim_names[0], "tp");
	ck_assert_str_eq(e->model, "llama");
	ck_assert_str_eq(e->plan, plans[_i]);
	ck_assert_int_eq(e->positions, 512);
	ck_assert_int_eq(e->nparameters, 48);
	for (int32_t i = 0; i < e->nparameters; i++)
		expect_shards_of_parameter(e, i, bytes);
	for (int r = 0; r < 3; r++)
		ck_assert(e->ranks[r]->weights == bytes[r] && e->ranks[r]->step > 0 &&
		          e->ranks[r]->cache > 0);
	/* 5 layers of 4 heads of 8 keys and values in f32 */
	ck_assert(strcmp(plans[_i], "none") || e->ranks[0]->cache == 5 * 4 * 8 * 8);
	expect_collectives(e);
	ck_assert(_i < 2 ? e->ncollectives > 10 : !e->ncollectives);
	tess_explanation_free(e);
}
END_TEST

/*
 * Checks that a position caches, in each of 3 layers, a latent of 12 and a rotated key of 4 in f32.
 */
START_TEST(a_latent_is_cached_once)
{
	struct tess_explanation *e = explain_directory(
		format_data_path("../tests/data/goldens/deepseek_v3"), "tp=3", "tp");

	for (int r = 0; r < 3; r++)
		ck_assert_uint_eq(e->ranks[r]->cache, 3 * 4 * (12 + 4));
	for (int32_t i = 0, n = 0; i < e->nparameters; i++)
		ck_assert(!strstr(e->parameters[i]->name, "kv_b_proj") || ++n <= 3);
	tess_explanation_free(e);
}
END_TEST

/*
 * Checks attention along tp and mlp along xp, in two replicas: the cuts and moves of each
 * dimension.
 */
START_TEST(a_mesh_of_three)
{
	struct tess_explanation *e =
		explain_directory(format_data_path("."), "xp=3,dp=2,tp=2",
	                          "{\"tp\":{\"**.q_proj\":\"colwise\","
	                          "\"**.o_proj\":\"rowwise\"},\"xp\":{\"**.gate_proj\":\"colwise\","
	                          "\"**.up_proj\":\"colwise\",\"**.down_proj\":\"rowwise\"}}");
	int32_t along[3] = { 0 };

	ck_assert(e->nranks == 12 && e->ndims == 3 && e->dim_sizes[0] == 3);
	ck_assert_str_eq(e->dim_names[1], "dp");
	for (int32_t i = 0; i < e->nparameters; i++) {
		const struct tess_explained_parameter *p = e->parameters[i];
		bool down = strstr(p->name, "down_proj"), q = strstr(p->name, "q_proj");

		ck_assert_int_eq(p->places[0].kind == TESS_SHARD,
		                 down || strstr(p->name, "up_proj") ||
		                         strstr(p->name, "gate_proj"));
		ck_assert_int_eq(p->places[1].kind, TESS_REPLICATE);
		ck_assert_int_eq(p->places[2].kind == TESS_SHARD, q || strstr(p->name, "o_proj"));
		ck_assert_str_eq(p->styles[0], down                              ? "rowwise"
		                               : p->places[0].kind == TESS_SHARD ? "colwise"
		                                                                 : "replicate");
	}
	for (int32_t i = 0; i < e->ncollectives; i++)
		along[e->collectives[i]->dim]++;
	ck_assert(along[0] == 5 && !along[1] && along[2] == 5);
	expect_collectives(e);
	for (int32_t r = 0; r < 12; r++) { /* ranks that differ in dp have equal shards */
		int32_t twin = r / 2 % 2 ? r - 2 : r + 2;

		ck_assert_uint_eq(e->ranks[r]->weights, e->ranks[twin]->weights);
	}
	ck_assert_uint_ne(e->ranks[0]->weights, e->ranks[4]->weights);
	tess_explanation_free(e);
	e = explain_directory(format_data_path("."), "dp=3", NULL);
	ck_assert(e->nranks == 3 && e->ndims == 2);
	ck_assert_str_eq(e->dim_names[1], "tp");
	ck_assert(e->collectives[0]->dim == 1 && !e->collectives[0]->sent);
	tess_explanation_free(e);
}
END_TEST

/* Checks that the ranges of an axis increase, have the shard's length, and are inside the axis. */
START_TEST(runs_of_fused_weights)
{
	struct tess_explanation *e = explain_directory(
		format_data_path("../tests/data/goldens/phi3-partial"), "tp=2", "tp");
	int64_t shape[TESS_DIMS], run[8][2], most = 0;

	for (int32_t i = 0; i < e->nparameters; i++)
		for (int32_t r = 0; r < 2; r++) {
			const struct tess_explained_parameter *p = e->parameters[i];

			tess_explanation_shard(e, i, r, shape);
			for (int32_t a = 0; a < p->ndim; a++) {
				int64_t n = tess_explanation_list_ranges(e, i, r, a, run, 8),
					sum = 0;

				ck_assert(n >= 1 && n <= 3 && (r || !run[0][0]) &&
				          (!r || run[n - 1][1] == p->shape[a]));
				for (int64_t k = 0; k < n; k++) {
					ck_assert(run[k][0] < run[k][1] &&
					          (!k || run[k][0] >= run[k - 1][1]));
					sum += run[k][1] - run[k][0];
				}
				ck_assert_int_eq(sum, shape[a]);
				most = n > most ? n : most;
			}
		}
	ck_assert_int_eq(most, 3); /* q, k and v */
	tess_explanation_free(e);
}
END_TEST

/* ---- without files of weights ---------------------------------------------------------------- */

/*
 * Writes a directory with the project's config.json, in which dtype and torch_dtype are replaced.
 */
static const char *write_config(const char *folder, const char *dtype, const char *torch_dtype)
{
	json_t *config = json_load_file(format_data_path("config.json"), 0, NULL);
	char path[128];

	scratch_make_folder(folder);
	json_object_del(config, "torch_dtype");
	if (dtype)
		json_object_set_new(config, "dtype", json_string(dtype));
	if (torch_dtype)
		json_object_set_new(config, "torch_dtype", json_string(torch_dtype));
	snprintf(path, sizeof path, "%s/config.json", folder);
	ck_assert(!json_dump_file(config, scratch_format_path(path), 0));
	json_decref(config);
	return scratch_format_path(folder);
}

/* Expects the checkpoint's parameters with any dtype; `absent` of them have no file. */
static void expect_shapes_of_checkpoint(const char *dir, int32_t dtype, int32_t absent)
{
	struct tess_explanation *e = explain_directory(dir, "tp=3", NULL),
				*whole = explain_directory(format_data_path("."), "tp=3", NULL);
	int32_t marked = 0;

	ck_assert_int_eq(e->from_config, absent);
	ck_assert_int_eq(e->nparameters, whole->nparameters);
	for (int32_t i = 0; i < e->nparameters; i++) {
		const struct tess_explained_parameter *a = e->parameters[i],
						      *b = whole->parameters[i];
		uint64_t width = a->from_config && dtype != TESS_F32 ? 2 : 4;

		ck_assert_str_eq(a->name, b->name);
		ck_assert_int_eq(a->dtype, a->from_config ? dtype : TESS_F32);
		ck_assert(a->ndim == b->ndim && !b->from_config);
		ck_assert(!memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim));
		for (int32_t r = 0; r < 3; r++)
			ck_assert_uint_eq(tess_explanation_shard(e, i, r, NULL) * 4,
			                  tess_explanation_shard(whole, i, r, NULL) * width);
		marked += a->from_config && !a->tied;
	}
	ck_assert_int_eq(marked, absent);
	tess_explanation_free(e);
	tess_explanation_free(whole);
}

static void expect_explain_refused(const char *dir, const char *mesh, int64_t tokens,
                                   const char *part)
{
	struct tess_explanation *e = NULL;

	ck_assert_msg(tess_explain(dir, mesh, 0, tokens, NULL, &e) < 0 && !e, "%s: accepted", part);
	expect_part(tess_error(), part);
}

START_TEST(reads_config_alone)
{
	expect_shapes_of_checkpoint(write_config("none", NULL, NULL), TESS_F32, 47);
	expect_shapes_of_checkpoint(write_config("bf16", NULL, "bfloat16"), TESS_BF16, 47);
	expect_shapes_of_checkpoint(write_config("both", "float16", "float32"), TESS_F16, 47);
	expect_explain_refused(
		write_config("f64", "float64", NULL), "tp=1", 1,
		"f64/config.json: dtype \"float64\" of the weights is not supported");
	expect_explain_refused(write_config("pickled", NULL, NULL), "tp=16", 1, "heads");
	unlink(scratch_format_path("pickled/config.json"));
	expect_explain_refused(scratch_format_path("pickled"), "tp=1", 1,
	                       "no config.json is there");
	write_config("bin", NULL, NULL);
	scratch_write_text("bin/pytorch_model.bin", "");
	expect_explain_refused(scratch_format_path("bin"), "tp=1", 1, "pickled");
}
END_TEST

/*
 * Numbers of parameters, counted by hand from the shapes. The layer for multi-token prediction of
 * GLM 4.5 and the parts of Llama 4 and Gemma 3 for images are not read.
 */
static const struct {
	const char *model, *config;
	int64_t want, idle; /* idle: elements of experts that a token does not request */
} counts[] = {
	{ "glm-4.5",
	  "{\"model_type\": \"glm4_moe\", \"hidden_size\": 5120, \"num_hidden_layers\": 92, "
	  "\"intermediate_size\": 12288, \"moe_intermediate_size\": 1536, \"head_dim\": 128, "
	  "\"n_routed_experts\": 160, \"first_k_dense_replace\": 3, \"attention_bias\": true, "
	  "\"use_qk_norm\": true, \"num_nextn_predict_layers\": 1, \"dtype\": \"bfloat16\"}",
	  2 * 151552LL * 5120 + 5120 /* embeddings, head, norm */
	          + 92LL * (2 * 5120 + 2 * 128 /* norms */
	                    + (96 + 2 * 8) * 128 * (5120 + 1) + 96 * 128 * 5120) /* q, k, v, o */
	          + 3LL * 3 * 5120 * 12288 /* dense layers */
	          + 89LL * (160 * (5120 + 1) + (160 + 1) * 3LL * 5120 * 1536),
	  89LL * (160 - 8) * 3 * 5120 * 1536 },
	{ "gpt-oss-120b", "{\"model_type\": \"gpt_oss\", \"dtype\": \"bfloat16\"}",
	  2 * 201088LL * 2880 + 2880 /* embeddings, head, norm */
	          + 36LL * (2 * 2880 /* norms */
	                    + (64 + 2 * 8) * 64 * 2881 + 64 * 64 * 2880 + 2880 + 64 /* attention */
	                    + 128 * 2881 + 128LL * 2880 * (2 * 2881 + 2881)),
	  36LL * (128 - 4) * 2880 * (2 * 2881 + 2880) },
	{ "llama-4-scout",
	  "{\"model_type\": \"llama4\", \"vision_config\": {\"hidden_size\": 1408}, "
	  "\"dtype\": \"bfloat16\", \"text_config\": {\"model_type\": \"llama4_text\", "
	  "\"hidden_size\": 5120, \"intermediate_size\": 8192, \"num_hidden_layers\": 48, "
	  "\"num_attention_heads\": 40, \"num_key_value_heads\": 8, \"num_local_experts\": 16, "
	  "\"interleave_moe_layer_step\": 1, \"vocab_size\": 202048}}",
	  2 * 202048LL * 5120 + 5120 /* embeddings, head, norm */
	          + 48LL * (2 * 5120 /* norms */
	                    + (40 + 2 * 8) * 128 * 5120 + 40 * 128 * 5120 /* q, k, v, o */
	                    + 16 * 5120 + (16 + 1) * 3LL * 5120 * 8192),
	  48LL * (16 - 1) * 3 * 5120 * 8192 },
	{ "gemma-3-27b",
	  "{\"model_type\": \"gemma3\", \"vision_config\": {\"hidden_size\": 1152}, "
	  "\"dtype\": \"bfloat16\", \"text_config\": {\"model_type\": \"gemma3_text\", "
	  "\"hidden_size\": 5376, \"intermediate_size\": 21504, \"num_hidden_layers\": 62, "
	  "\"num_attention_heads\": 32, \"num_key_value_heads\": 16, \"head_dim\": 128, "
	  "\"rope_scaling\": {\"factor\": 8, \"rope_type\": \"linear\"}}}",
	  262208LL * 5376 + 5376 /* embeddings, norm */
	          + 62LL * (4 * 5376 + 2 * 128 /* norms */
	                    + (32 + 2 * 16) * 128 * 5376 + 32 * 128 * 5376 /* q, k, v, o */
	                    + 3 * 5376 * 21504),
	  0 },
};

/*
 * The bytes of rows that request experts: rows of 32 f32, 2 of 8 experts of a row, 4 ranks. A row
 * goes to at most 2 ranks, to each of 3 with probability 13/28. A rank returns one sum each.
 */
START_TEST(bytes_of_requested_rows)
{
	struct tess_session_options options = { .size = sizeof options, .plan = "ep+sp" };
	/* of 32 bytes a rank 15/28 are saved: just 768 KiB, and less */
	static const int64_t tokens[] = { 45876, 45872 };
	static const char *const why[] = { NULL, "requested rows alone would save few bytes" };
	const uint64_t rows = 45876 / 4; /* of a rank */
	struct tess_explanation *e;

	for (int k = 0; k < 2; k++) {
		uint64_t sent[2] = { 0 }, expected[2] = { 0 };

		ck_assert_msg(!tess_explain(format_data_path("../tests/data/goldens/mixtral"),
		                            "tp=4", 0, tokens[k], &options, &e),
		              "%s", tess_error());
		for (int32_t i = 0; i < e->ncollectives; i++) {
			const struct tess_explained_collective *c = e->collectives[i];
			bool back = c->from.kind == TESS_PARTIAL;

			if (c->kind != TESS_ALL_TO_ALL || (!back && c->to.kind == TESS_SHARD))
				continue;
			ck_assert_str_eq(c->module + strlen(c->module) - 11, "mlp.experts");
			sent[back] = c->sent;
			expected[back] = c->expected;
		}
		ck_assert_uint_eq(sent[0], k ? 0 : rows * 2 * 128);
		ck_assert_uint_eq(sent[1], k ? 0 : 3 * rows * 128);
		for (int back = 0; back < 2; back++)
			ck_assert_uint_eq(expected[back], k ? 0 : 3 * rows * 13 * 128 / 28);
		ck_assert_pstr_eq(e->all_expert_rows, why[k]);
		tess_explanation_free(e);
	}
}
END_TEST

/*
 * The bytes of gpt-oss-120b as the hub has it: experts in MXFP4, 17 bytes for 32 elements, and the
 * rest in bf16. Ranks that cut inside experts, or by expert, have whole blocks.
 */
START_TEST(bytes_of_mxfp4)
{
	static const struct {
		const char *mesh, *plan;
		int64_t parts; /* of which rank 0 has one */
	} cuts[] = { { "tp=1", NULL, 1 }, { "ep=8,tp=1", "ep", 8 }, { "tp=9", NULL, 9 } };
	const int64_t matrix = 2880LL * 2880 / 32 * 17, experts = 36LL * 128 * 3 * matrix;

	scratch_make_folder("hub");
	scratch_write_text("hub/config.json",
	                   "{\"model_type\": \"gpt_oss\", \"quantization_config\": "
	                   "{\"quant_method\": \"mxfp4\"}}");
	for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
		struct tess_explanation *e =
			explain_directory(scratch_format_path("hub"), cuts[i].mesh, cuts[i].plan);
		uint64_t have = 0;

		for (int32_t k = 0; k < e->nparameters; k++)
			if (e->parameters[k]->dtype == TESS_MXFP4)
				have += tess_explanation_shard(e, k, 0, NULL);
			else
				ck_assert_int_eq(e->parameters[k]->dtype, TESS_BF16);
		ck_assert_int_eq(have, experts / cuts[i].parts);
		if (e->nranks == 1)
			ck_assert_int_eq(e->ranks[0]->weights, 65248815744);
		tess_explanation_free(e);
	}
	scratch_write_text("hub/config.json",
	                   "{\"model_type\": \"llama4_text\", \"hidden_size\": 2880, "
	                   "\"quantization_config\": {\"quant_method\": \"mxfp4\"}}");
	expect_explain_refused(scratch_format_path("hub"), "tp=1", 1,
	                       "it is stored in MXFP4, in blocks of 32 inputs, but model "
	                       "llama4_text cuts its inputs, hidden, in other units; use a");
	scratch_write_text("hub/model.safetensors.index.json",
	                   "{\"weight_map\": {\"model.embed_tokens.weight_blocks\": \"absent\", "
	                   "\"model.embed_tokens.weight_scales\": \"absent\"}}");
	expect_explain_refused(scratch_format_path("hub"), "tp=1", 1,
	                       "model.embed_tokens.weight: it is stored in MXFP4, as only weights "
	                       "of experts can be; use a");
}
END_TEST

START_TEST(counts_of_parameters)
{
	struct tess_explanation *e;
	int64_t have = 0;
	char path[64];

	scratch_make_folder(counts[_i].model);
	snprintf(path, sizeof path, "%s/config.json", counts[_i].model);
	scratch_write_text(path, counts[_i].config);
	e = explain_directory(scratch_format_path(counts[_i].model), "tp=1", NULL);
	for (int32_t i = 0; i < e->nparameters; i++) {
		int64_t n = !e->parameters[i]->tied;

		for (int32_t a = 0; a < e->parameters[i]->ndim; a++)
			n *= e->parameters[i]->shape[a];
		have += n;
	}
	ck_assert_int_eq(have, counts[_i].want);
	ck_assert_int_eq(e->elements, have);
	ck_assert_int_eq(e->active, have - counts[_i].idle);
	tess_explanation_free(e);
}
END_TEST

/* Counts the copies of the table, which only the last of three ranks may have. */
static int32_t count_copies(const struct tess_explanation *e, uint64_t bytes)
{
	int32_t n = 0;

	for (int32_t i = 0; i < e->nparameters; i++) {
		if (e->parameters[i]->tied != 2)
			continue;
		ck_assert_str_eq(e->parameters[i]->name, "model.embed_tokens.weight");
		for (int32_t r = 0; r < 3; r++)
			ck_assert_uint_eq(tess_explanation_shard(e, i, r, NULL),
			                  r == 2 ? bytes : 0);
		n++;
	}
	return n;
}

/* Checks where a copy is, and what training sends for it. */
START_TEST(a_copy_for_a_tied_head)
{
	enum { TABLE = 4 * 512 * 64 };
	struct tess_trainer_options options = { .size = sizeof options, .plan = "none" };
	struct tess_explanation *e = explain_directory(format_data_path("."), "pp=3", NULL);

	ck_assert_int_eq(count_copies(e, TABLE), 1);
	tess_explanation_free(e);
	ck_assert_msg(!tess_explain_training(format_data_path("."), "pp=3", 0, 2, 8, &options, &e),
	              "%s", tess_error());
	ck_assert_uint_eq(e->traffic[0].gradients, 2 * TABLE);
	tess_explanation_free(e);
	/* the first and the last stage are on one rank */
	options.pipeline_schedule = "zb-v";
	ck_assert_msg(!tess_explain_training(format_data_path("."), "pp=2", 0, 2, 8, &options, &e),
	              "%s", tess_error());
	ck_assert_int_eq(count_copies(e, 0), 0);
	ck_assert_uint_eq(e->traffic[0].gradients, 0);
	tess_explanation_free(e);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* Checks that sequences of inference use pages of 64 positions, and rows of logits. */
START_TEST(sequences_that_fit)
{
	enum { POSITIONS = 100, ROWS = 64, SEQUENCES = 7 };
	struct tess_session_options options = { .size = sizeof options };
	struct tess_explanation *e = NULL;
	const struct tess_explained_rank *r;
	uint64_t pages, memory;

	ck_assert_msg(!tess_explain(format_data_path("."), "dp=2,tp=2", 0, ROWS, &options, &e),
	              "%s", tess_error());
	r = e->ranks[0];
	pages = r->cache * 128;
	memory = r->total + pages;
	ck_assert_int_eq(tess_explanation_fit(e, memory, POSITIONS), TESS_OK);
	ck_assert(e->fit->used == memory && e->fit->rank == 0 && e->fit->memory == memory);
	ck_assert_int_eq(e->fit->positions, POSITIONS);
	ck_assert_int_eq(e->fit->sequences, 1);
	ck_assert_int_eq(e->fit->longest, 0);
	ck_assert_int_eq(tess_explanation_fit(e, memory - 1, POSITIONS), TESS_OK);
	ck_assert(e->fit->used == memory && e->fit->sequences == 0);
	memory = r->total + SEQUENCES * pages + pages / 2; /* the half is enough for the logits */
	ck_assert_int_eq(tess_explanation_fit(e, memory, POSITIONS), TESS_OK);
	ck_assert_int_eq(e->fit->sequences, SEQUENCES);
	ck_assert_int_eq(e->fit->longest, (SEQUENCES * 2 + 1) / (512 / 64));
	/* default positions: the maximum of the checkpoint, 512 */
	ck_assert_int_eq(tess_explanation_fit(e, 80000000000, 0), TESS_OK);
	ck_assert(e->fit->positions == 512 && e->fit->longest == e->fit->sequences);
	ck_assert_int_gt(e->fit->sequences, 80000000000 / (4 * (int64_t)pages) * 9 / 10);
	tess_explanation_free(e);
}
END_TEST

static struct tess_explanation *explain_step(const char *mesh, int64_t sequences,
                                             const struct tess_trainer_options *options)
{
	struct tess_explanation *e = NULL;

	ck_assert_msg(
		!tess_explain_training(format_data_path("."), mesh, 0, sequences, 40, options, &e),
		"%s", tess_error());
	return e;
}

/* Checks that the largest step fits, and that one more sequence a replica does not. */
START_TEST(steps_that_fit)
{
	static const struct {
		const char *mesh, *schedule;
		int64_t replicas, micro;
		const char *recompute[2];
	} cases[] = {
		{ "tp=2", NULL, 1, 1, { NULL } },
		{ "ddp=2,dp=2,tp=2", NULL, 4, 1, { "model.layers.*", NULL } },
		{ "dp=2,pp=2", "interleaved:2", 2, 4, { NULL } },
	};
	const int64_t replicas = cases[_i].replicas;
	char recompute[64] = "";
	const char *patterns[2] = { recompute, NULL };
	struct tess_trainer_options options = { .size = sizeof options,
		                                .micro_batches = cases[_i].micro,
		                                .pipeline_schedule = cases[_i].schedule };
	struct tess_explanation *e, *most, *more;
	uint64_t memory;
	int64_t n;

	if (cases[_i].recompute[0]) {
		strcpy(recompute, cases[_i].recompute[0]);
		options.recompute = patterns;
	}
	e = explain_step(cases[_i].mesh, replicas, &options);
	memory = e->total.total * 5 + 12345;
	memset(recompute, 'x', sizeof recompute - 1); /* options are read during the call only */
	ck_assert_int_eq(tess_explanation_fit(e, memory, 0), TESS_OK);
	n = e->fit->sequences;
	ck_assert(e->fit->used == e->total.total && n > 3 * replicas && n % replicas == 0);
	ck_assert(e->fit->positions == 40 && e->micro_batches == cases[_i].micro);
	if (cases[_i].recompute[0])
		strcpy(recompute, cases[_i].recompute[0]);
	most = explain_step(cases[_i].mesh, n, &options);
	more = explain_step(cases[_i].mesh, n + replicas, &options);
	ck_assert(most->total.total <= memory && more->total.total > memory);
	ck_assert_int_eq(tess_explanation_fit(e, e->total.total - 1, 0), TESS_OK);
	ck_assert_int_eq(e->fit->sequences, 0);
	ck_assert_int_eq(tess_explanation_fit(e, e->total.total, 0), TESS_OK);
	ck_assert_int_eq(e->fit->sequences, replicas);
	tess_explanation_free(e);
	tess_explanation_free(most);
	tess_explanation_free(more);
}
END_TEST

static uint64_t explain_step_bytes(const char *mesh, const struct tess_trainer_options *options)
{
	struct tess_explanation *e = NULL;
	uint64_t step;

	ck_assert_msg(
		!tess_explain_training(scratch_format_path("wide"), mesh, 0, 4, 8, options, &e),
		"%s", tess_error());
	step = e->total.step;
	tess_explanation_free(e);
	return step;
}

/*
 * Checks that a step has two tiles of a table and a head of 51 MB each, instead of all of them.
 */
START_TEST(tiles_of_weights)
{
	const char *const shares[] = { "dp:**=zero3", NULL }, *const states[] = { "dp:**=zero1",
		                                                                  NULL };
	const uint64_t table = 50000 * 256 * 4, tile = 1 << 20, sum = 4 * 8 * 256 * 4;
	struct tess_trainer_options whole = { .size = sizeof whole, .overrides = shares };
	struct tess_trainer_options tiles = whole, rest = whole;
	uint64_t most;

	scratch_make_folder("wide");
	scratch_write_text("wide/config.json",
	                   "{\"model_type\": \"llama\", \"hidden_size\": 256, "
	                   "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
	                   "\"intermediate_size\": 512, \"vocab_size\": 50000, "
	                   "\"torch_dtype\": \"float32\", \"tie_word_embeddings\": false}");
	tiles.tile = rest.tile = tile;
	rest.overrides = states;
	for (int dp = 2; dp <= 4; dp += 2) {
		const char *mesh = dp == 2 ? "dp=2,tp=1" : "dp=4,tp=1";

		/* a node of the gradient of the head's input for each halving of the head */
		most = explain_step_bytes(mesh, &rest) + tile + 8 * sum;
		ck_assert_uint_le(explain_step_bytes(mesh, &tiles), most);
		ck_assert_uint_gt(explain_step_bytes(mesh, &whole), table + tile);
	}
}
END_TEST

/* Checks a step of more than 2^20 rows: it holds twice as much as one of half as many. */
START_TEST(steps_of_many_rows)
{
	struct tess_trainer_options options = { .size = sizeof options };
	struct tess_explanation *e = NULL, *half = NULL;

	ck_assert(!tess_explain_training(format_data_path("."), "tp=2", 0, 1 << 13, 512, &options,
	                                 &e));
	ck_assert(!tess_explain_training(format_data_path("."), "tp=2", 0, 1 << 12, 512, &options,
	                                 &half));
	ck_assert_int_eq(e->tokens, 1 << 22);
	ck_assert_uint_eq(e->ranks[0]->weights, half->ranks[0]->weights);
	ck_assert(e->ranks[0]->step > half->ranks[0]->step * 19 / 10 &&
	          e->ranks[0]->step < half->ranks[0]->step * 21 / 10);
	tess_explanation_free(e);
	tess_explanation_free(half);
}
END_TEST

/* Writes an index in which all parameters but the `last` are in an absent file. */
static void write_index(const char *folder, const char *last, const char *more)
{
	struct tess_explanation *e = explain_directory(format_data_path("."), "tp=1", NULL);
	json_t *map = json_object();
	json_t *index = json_pack("{s:o}", "weight_map", map);
	char path[128];

	for (int32_t i = 0; i < e->nparameters; i++)
		json_object_set_new(map, e->parameters[i]->name,
		                    json_string(strcmp(e->parameters[i]->name, last)
		                                        ? "absent.safetensors"
		                                        : "there.safetensors"));
	if (more)
		json_object_set_new(map, more, json_string("absent.safetensors"));
	else
		json_object_del(map, "model.layers.2.mlp.up_proj.weight");
	tess_explanation_free(e);
	snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
	ck_assert(!json_dump_file(index, scratch_format_path(path), 0));
	json_decref(index);
}

START_TEST(reads_an_index_alone)
{
	char dir[512], data[4096];

	strcpy(dir, write_config("index", NULL, "bfloat16"));
	write_index("index", "", "model.norm.weight");
	expect_shapes_of_checkpoint(dir, TESS_BF16, 47);
	write_index("index", "", NULL);
	expect_explain_refused(dir, "tp=1", 1,
	                       "tensor model.layers.2.mlp.up_proj.weight is not among its 46");
	write_index("index", "", "model.layers.5.mlp.up_proj.weight");
	expect_explain_refused(
		dir, "tp=1", 1,
		"no module of model llama asks for model.layers.5.mlp.up_proj.weight");
	/* one of its files exists */
	ck_assert_ptr_nonnull(realpath(format_data_path("model.safetensors"), data));
	ck_assert(!symlink(data, scratch_format_path("index/there.safetensors")));
	write_index("index", "model.layers.3.mlp.down_proj.weight", "model.norm.weight");
	expect_shapes_of_checkpoint(dir, TESS_BF16, 46);
}
END_TEST

START_TEST(refuses_arguments)
{
	char data[512];
	struct tess_session_options early = { .size = TESS_UPTO(tess_session_options, threads),
		                              .plan = "nosuch" };
	struct tess_explanation *e = NULL;

	strcpy(data, format_data_path("."));
	expect_explain_refused(data, "tp=0", 1, "the mesh \"tp=0\"");
	expect_explain_refused(data, "tp=2,tp=2", 1, "two dimensions tp");
	expect_explain_refused(data, "tp=2,xp=2", 1, "no rule for mesh dimension xp");
	expect_explain_refused(data, "xp=2", 1, "is for mesh dimension tp");
	expect_explain_refused(data, "tp=1025", 1, "the mesh \"tp=1025\"");
	expect_explain_refused(data, "tp=9", 1, "cannot be cut for 9 ranks");
	expect_explain_refused(data, "tp=2", 0, "a step of 0 rows");
	expect_explain_refused(
		data, "tp=2", INT64_MAX,
		"a step of 1 sequences of 9223372036854775807 rows; it has 1 to 2147483647 rows");
	/* a program built with an older header */
	ck_assert_msg(!tess_explain(data, "tp", 1, 1, &early, &e), "%s", tess_error());
	tess_explanation_free(e);
	tess_explanation_free(NULL);
}
END_TEST

/*
 * Checks 8-bit linear weights and experts, and a tied head next to its table; no router, and no
 * untied head.
 */
START_TEST(eight_bit_weights)
{
	static const char *const folders[] = { "mixtral", "qwen3_moe", "deepseek_v3", "gpt2" };
	static const char *const wide[] = { "embed", "norm",  "mlp.gate.weight", "kv_b_proj.weight",
		                            "bias",  ".wte.", ".wpe.",           ".ln_" };
	struct tess_session_options options = { .size = sizeof options, .weights = TESS_Q8 };
	uint64_t bytes[2] = { 0 };
	struct tess_explanation *e;
	char dir[512];

	snprintf(dir, sizeof dir, "%s/../tests/data/goldens/%s", format_data_path("."),
	         folders[_i]);
	ck_assert_msg(!tess_explain(dir, "tp=2", 2, 1, &options, &e), "%s", tess_error());
	for (int32_t i = 0; i < e->nparameters; i++) {
		const struct tess_explained_parameter *p = e->parameters[i];
		bool is_wide = false;

		for (size_t k = 0; k < sizeof wide / sizeof *wide && !p->tied; k++)
			is_wide = is_wide || strstr(p->name, wide[k]);
		ck_assert_msg((p->dtype == TESS_Q8) == !is_wide, "%s is %s", p->name,
		              tess_dtype_name(p->dtype));
		for (int r = 0; r < 2; r++)
			bytes[r] += tess_explanation_shard(e, i, r, NULL);
	}
	for (int r = 0; r < 2; r++)
		MUST(e->ranks[r]->weights == bytes[r]);
	tess_explanation_free(e);
	options.weights = TESS_F32;
	ck_assert_int_eq(tess_explain(dir, "tp=2", 2, 1, &options, &e), TESS_EINVAL);
	ck_assert_msg(strstr(tess_error(), "use 0, TESS_BF16, TESS_Q8, TESS_BF12 or TESS_MXFP4"),
	              "%s", tess_error());
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("explain", 60, &r);
	int failed;

	scratch_make();
	tcase_add_loop_test(t, adds_up, 0, 3);
	tcase_add_loop_test(t, eight_bit_weights, 0, 4);
	tcase_add_test(t, a_latent_is_cached_once);
	tcase_add_test(t, a_mesh_of_three);
	tcase_add_test(t, runs_of_fused_weights);
	tcase_add_test(t, reads_config_alone);
	tcase_add_test(t, bytes_of_requested_rows);
	tcase_add_test(t, bytes_of_mxfp4);
	tcase_add_loop_test(t, counts_of_parameters, 0, (int)(sizeof counts / sizeof *counts));
	tcase_add_test(t, sequences_that_fit);
	tcase_add_loop_test(t, steps_that_fit, 0, 3);
	tcase_add_test(t, steps_of_many_rows);
	tcase_add_test(t, tiles_of_weights);
	tcase_add_test(t, a_copy_for_a_tied_head);
	tcase_add_test(t, reads_an_index_alone);
	tcase_add_test(t, refuses_arguments);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

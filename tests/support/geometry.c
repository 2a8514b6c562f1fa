#include "geometry.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "draw.h"
#include "nn/program/mxfp4.h"
#include "tests/reference/lockstep.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

/* ---- config.json ----------------------------------------------------------------------------- */

static int64_t draw_between(uint64_t *seed, int64_t lo, int64_t hi)
{
	return lo + (int64_t)draw_below(seed, (uint64_t)(hi - lo + 1));
}

static bool draw_one_in(uint64_t *seed, uint64_t n)
{
	return !draw_below(seed, n);
}

static void set_integer(json_t *o, const char *key, int64_t value)
{
	json_object_set_new(o, key, json_integer(value));
}

static void set_number(json_t *o, const char *key, double value)
{
	json_object_set_new(o, key, json_real(value));
}

static void set_bool(json_t *o, const char *key, bool value)
{
	json_object_set_new(o, key, json_boolean(value));
}

static void set_text(json_t *o, const char *key, const char *value)
{
	json_object_set_new(o, key, json_string(value));
}

static void draw_rope(uint64_t *seed, json_t *config)
{
	static const char *const types[] = { "default", "linear", "llama3", "yarn" };
	int type = (int)draw_below(seed, 4);
	json_t *o = json_object();

	set_number(o, "rope_theta", draw_one_in(seed, 2) ? 10000 : 5e5);
	set_text(o, "rope_type", types[type]);
	set_number(o, "factor", 2.5);
	set_number(o, "low_freq_factor", 1);
	set_number(o, "high_freq_factor", 4);
	set_integer(o, "original_max_position_embeddings", 64);
	json_object_set_new(config, "rope_parameters", o);
}

/* Draws windows: usually some layers have one. */
static void draw_windows(uint64_t *seed, json_t *config, int64_t layers)
{
	json_t *types = json_array();

	for (int64_t i = 0; i < layers; i++)
		json_array_append_new(
			types,
			json_string(draw_one_in(seed, 2) ? "full_attention" : "sliding_attention"));
	set_integer(config, "sliding_window", draw_between(seed, 1, 70));
	set_bool(config, "use_sliding_window", true);
	json_object_set_new(config, "layer_types", types);
}

/* Draws the settings of decoders of Llama's form. */
static int32_t draw_decoder(uint64_t *seed, json_t *config)
{
	static const char *const acts[] = { "silu", "gelu", "gelu_pytorch_tanh", "relu" };
	int64_t groups = draw_between(seed, 1, 4), heads = groups * draw_between(seed, 1, 4),
		layers = draw_between(seed, 1, 3);
	const char *act = acts[draw_below(seed, 4)];

	set_integer(config, "hidden_size", draw_between(seed, 8, 70));
	set_integer(config, "num_attention_heads", heads);
	set_integer(config, "num_key_value_heads", groups);
	set_integer(config, "head_dim", 2 * draw_between(seed, 1, 13));
	set_integer(config, "num_hidden_layers", layers);
	set_integer(config, "intermediate_size", draw_between(seed, 8, 150));
	set_integer(config, "vocab_size", draw_between(seed, 8, 150));
	set_number(config, "rms_norm_eps", 1e-5);
	set_bool(config, "tie_word_embeddings", draw_one_in(seed, 2));
	set_text(config, "hidden_act", act);
	set_text(config, "hidden_activation", act);
	set_bool(config, "attention_bias", draw_one_in(seed, 2));
	set_bool(config, "mlp_bias", draw_one_in(seed, 2));
	draw_rope(seed, config);
	draw_windows(seed, config, layers);
	return (int32_t)heads;
}

static int32_t draw_qwen2(uint64_t *seed, json_t *config)
{
	int64_t heads = draw_decoder(seed, config);

	/* without a head_dim of its own */
	set_integer(config, "hidden_size",
	            heads * json_integer_value(json_object_get(config, "head_dim")));
	json_object_del(config, "head_dim");
	return (int32_t)heads;
}

/* Draws the rotated part of heads. */
static void draw_partial_rope(uint64_t *seed, json_t *config, int64_t each)
{
	int64_t width = 2 * draw_between(seed, 1, each / 2);

	set_number(json_object_get(config, "rope_parameters"), "partial_rotary_factor",
	           width == each ? 1 : ((double)width + 0.5) / (double)each);
}

/* phi3, glm4 */
static int32_t draw_partial(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);

	draw_partial_rope(seed, config, json_integer_value(json_object_get(config, "head_dim")));
	return heads;
}

/* Draws heads that are hidden / heads wide, and a part of each that rotates. */
static int32_t draw_partial_of_hidden(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_qwen2(seed, config);

	draw_partial_rope(seed, config,
	                  json_integer_value(json_object_get(config, "hidden_size")) / heads);
	return heads;
}

/* Draws a rope for each kind of layers, or one for all. */
static int32_t draw_two_ropes(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);
	json_t *both;

	if (draw_one_in(seed, 3)) {
		set_number(config, "rope_local_base_freq", 800);
		return heads;
	}
	both = json_object();
	json_object_set(both, "full_attention", json_object_get(config, "rope_parameters"));
	draw_rope(seed, config);
	json_object_set(both, "sliding_attention", json_object_get(config, "rope_parameters"));
	json_object_set_new(config, "rope_parameters", both);
	return heads;
}

/* ---- families -------------------------------------------------------------------------------- */

static void draw_gemma(uint64_t *seed, json_t *config)
{
	set_number(config, "query_pre_attn_scalar", (double)draw_between(seed, 1, 40));
	set_number(config, "attn_logit_softcapping", draw_one_in(seed, 3) ? 0 : 2.5);
	set_number(config, "final_logit_softcapping", draw_one_in(seed, 3) ? 0 : 3.5);
}

static int32_t draw_gemma2(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);

	draw_gemma(seed, config);
	return heads;
}

static int32_t draw_gemma3_text(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_two_ropes(seed, config);

	draw_gemma(seed, config);
	return heads;
}

static int32_t draw_granite(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);

	set_number(config, "embedding_multiplier", draw_one_in(seed, 3) ? 1 : 3.5);
	set_number(config, "attention_multiplier", draw_one_in(seed, 3) ? 1 : 0.3);
	set_number(config, "residual_multiplier", draw_one_in(seed, 3) ? 1 : 0.22);
	set_number(config, "logits_scaling", draw_one_in(seed, 3) ? 1 : 6);
	return heads;
}

/* Draws no_rope_layers: 0 or 1 for each layer. */
static json_t *draw_rope_layers(uint64_t *seed)
{
	json_t *list = json_array();

	for (int i = 0; i < 3; i++)
		json_array_append_new(list, json_integer(draw_between(seed, 0, 1)));
	return list;
}

static int32_t draw_smollm3(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);
	json_t *rope;

	set_integer(config, "no_rope_layer_interval", draw_between(seed, 1, 3));
	rope = draw_rope_layers(seed);
	if (draw_one_in(seed, 2))
		json_object_set(config, "no_rope_layers", rope);
	json_decref(rope);
	return heads;
}

static int32_t draw_biases(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);

	set_bool(config, "use_bias", draw_one_in(seed, 2)); /* starcoder2, ernie4_5 */
	set_bool(config, "attention_out_bias", draw_one_in(seed, 2)); /* seed_oss */
	return heads;
}

static int32_t draw_ministral3(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);
	json_t *rope = json_object_get(config, "rope_parameters");

	set_number(rope, "llama_4_scaling_beta", 0.3);
	set_integer(rope, "original_max_position_embeddings", draw_between(seed, 3, 64));
	return heads;
}

static int32_t draw_hunyuan_v1_dense(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);
	json_t *rope = json_object_get(config, "rope_parameters");

	if (draw_one_in(seed, 2)) {
		set_text(rope, "rope_type", "dynamic");
		set_number(rope, "alpha", 50);
	}
	return heads;
}

static int32_t draw_gpt_neox(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_partial_of_hidden(seed, config);

	json_object_del(config, "num_key_value_heads");
	set_bool(config, "use_parallel_residual", draw_one_in(seed, 2));
	return heads;
}

static int32_t draw_opt(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_qwen2(seed, config);

	json_object_del(config, "num_key_value_heads");
	set_integer(config, "ffn_dim", draw_between(seed, 8, 150));
	set_integer(config, "max_position_embeddings", draw_between(seed, 100, 200));
	set_bool(config, "do_layer_norm_before", draw_one_in(seed, 2));
	set_bool(config, "enable_bias", draw_one_in(seed, 2));
	if (draw_one_in(seed, 2))
		set_integer(config, "word_embed_proj_dim", draw_between(seed, 8, 50));
	return heads;
}

static int32_t draw_phi(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_partial_of_hidden(seed, config);

	set_bool(config, "qk_layernorm", draw_one_in(seed, 2));
	set_bool(config, "tie_word_embeddings", false);
	return heads;
}

static int32_t draw_stablelm(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_partial_of_hidden(seed, config);

	set_bool(config, "use_qkv_bias", draw_one_in(seed, 2));
	set_bool(config, "use_parallel_residual", draw_one_in(seed, 2));
	return heads;
}

static int32_t draw_exaone4(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config);

	if (draw_one_in(seed, 3))
		json_object_set_new(config, "sliding_window", json_null());
	return heads;
}

static int32_t draw_gpt2(uint64_t *seed, json_t *config)
{
	int64_t heads = draw_between(seed, 1, 9), each = draw_between(seed, 1, 13);

	while (heads * each < 8)
		each++;
	set_integer(config, "n_embd", heads * each);
	set_integer(config, "n_head", heads);
	set_integer(config, "n_layer", draw_between(seed, 1, 3));
	set_integer(config, "n_positions", draw_between(seed, 100, 200));
	set_integer(config, "vocab_size", draw_between(seed, 8, 150));
	if (draw_one_in(seed, 2))
		set_integer(config, "n_inner", draw_between(seed, 8, 150));
	set_bool(config, "scale_attn_by_inverse_layer_idx", draw_one_in(seed, 2));
	set_bool(config, "tie_word_embeddings", draw_one_in(seed, 2));
	return (int32_t)heads;
}

/* Draws experts; returns their number. */
static int32_t draw_experts(uint64_t *seed, json_t *config, const char *key)
{
	int64_t n = draw_between(seed, 3, 10);

	set_integer(config, key, n);
	set_integer(config, "num_experts_per_tok", draw_between(seed, 1, n < 4 ? n : 4));
	set_integer(config, "moe_intermediate_size", draw_between(seed, 8, 90));
	set_bool(config, "norm_topk_prob", draw_one_in(seed, 2));
	return (int32_t)n;
}

static int32_t draw_mixtral(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config),
		experts = draw_experts(seed, config, "num_local_experts");

	return heads < experts ? heads : experts;
}

static int32_t draw_qwen3_moe(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config),
		experts = draw_experts(seed, config, "num_experts");

	/* in all layers: the plans have rules for experts */
	if (json_integer_value(json_object_get(config, "num_hidden_layers")) > 1)
		set_integer(config, "decoder_sparse_step", draw_between(seed, 1, 2));
	return heads < experts ? heads : experts;
}

static int32_t draw_olmoe(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config),
		experts = draw_experts(seed, config, "num_experts");

	if (draw_one_in(seed, 2))
		set_number(config, "clip_qkv", 0.125);
	return heads < experts ? heads : experts;
}

static bool has_mxfp4(const json_t *config)
{
	return json_object_get(config, "quantization_config") != NULL;
}

static int32_t draw_gpt_oss(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config),
		experts = draw_experts(seed, config, "num_local_experts"), least, units, each;

	units = (int32_t)(2 * draw_between(seed, 0, 4) + 1); /* odd: units have `each` elements */
	each = (int32_t)(1 << draw_between(seed, 0, 5));
	if (has_mxfp4(config)) {
		each = TESS_MXFP4_ELEMENTS;
		set_integer(config, "hidden_size", each * draw_between(seed, 1, 3));
	}
	set_integer(config, "intermediate_size", units * each);
	set_integer(config, "sliding_window", draw_between(seed, 1, 70));
	set_bool(config, "attention_bias", draw_one_in(seed, 2));
	least = heads < experts ? heads : experts;
	return least < units ? least : units;
}

static int32_t draw_llama4(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config),
		experts = draw_experts(seed, config, "num_local_experts");

	json_object_set_new(config, "no_rope_layers", draw_rope_layers(seed));
	set_integer(config, "num_experts_per_tok", 1);
	set_integer(config, "intermediate_size_mlp", draw_between(seed, 8, 150));
	set_integer(config, "interleave_moe_layer_step",
	            json_integer_value(json_object_get(config, "num_hidden_layers")) > 1
	                    ? draw_between(seed, 1, 2)
	                    : 1);
	set_integer(config, "attention_chunk_size", draw_between(seed, 1, 70));
	set_integer(config, "floor_scale", draw_between(seed, 1, 9));
	set_bool(config, "use_qk_norm", draw_one_in(seed, 2));
	return heads < experts ? heads : experts;
}

static int32_t draw_qwen2_moe(uint64_t *seed, json_t *config)
{
	int32_t ranks = draw_qwen3_moe(seed, config);

	/* without a head_dim of its own */
	set_integer(config, "hidden_size",
	            json_integer_value(json_object_get(config, "num_attention_heads")) *
	                    json_integer_value(json_object_get(config, "head_dim")));
	json_object_del(config, "head_dim");
	set_integer(config, "shared_expert_intermediate_size", draw_between(seed, 8, 90));
	set_bool(config, "qkv_bias", draw_one_in(seed, 2));
	return ranks;
}

/* Draws experts in groups, shared experts, and first layers without; returns their number. */
static int32_t draw_shared_experts(uint64_t *seed, json_t *config)
{
	int32_t experts = draw_experts(seed, config, "n_routed_experts");
	int64_t groups = draw_between(seed, 1, 3), kept = draw_between(seed, 1, groups);

	if (groups > 1) /* of two or more */
		experts = (int32_t)(groups * draw_between(seed, 2, 4));
	set_integer(config, "n_routed_experts", experts);
	set_integer(config, "n_group", groups);
	set_integer(config, "topk_group", kept);
	set_integer(
		config, "num_experts_per_tok",
		draw_between(seed, 1, kept * experts / groups < 4 ? kept * experts / groups : 4));
	set_integer(config, "n_shared_experts", draw_between(seed, 1, 2));
	set_integer(config, "first_k_dense_replace", draw_between(seed, 0, 3));
	return experts;
}

static int32_t draw_deepseek(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_decoder(seed, config), experts = draw_shared_experts(seed, config);

	set_integer(config, "qk_nope_head_dim", draw_between(seed, 1, 20));
	set_integer(config, "qk_rope_head_dim", 2 * draw_between(seed, 1, 9));
	set_integer(config, "v_head_dim", draw_between(seed, 1, 35));
	set_integer(config, "kv_lora_rank", draw_between(seed, 1, 70));
	json_object_set_new(config, "q_lora_rank",
	                    draw_one_in(seed, 2) ? json_null()
	                                         : json_integer(draw_between(seed, 1, 40)));
	set_bool(config, "rope_interleave", draw_one_in(seed, 2));
	set_text(config, "topk_method", draw_one_in(seed, 2) ? "greedy" : "group_limited_greedy");
	return heads < experts ? heads : experts;
}

static int32_t draw_glm4_moe(uint64_t *seed, json_t *config)
{
	int32_t heads = draw_partial(seed, config), experts = draw_shared_experts(seed, config);

	set_bool(config, "use_qk_norm", draw_one_in(seed, 2));
	return heads < experts ? heads : experts;
}

static const struct {
	const char *family;
	int32_t (*draw)(uint64_t *seed, json_t *config);
} families[] = {
	{ "llama", draw_decoder },
	{ "mistral", draw_decoder },
	{ "qwen2", draw_qwen2 },
	{ "qwen3", draw_decoder },
	{ "olmo2", draw_decoder },
	{ "phi3", draw_partial },
	{ "gpt2", draw_gpt2 },
	{ "gemma2", draw_gemma2 },
	{ "mixtral", draw_mixtral },
	{ "qwen3_moe", draw_qwen3_moe },
	{ "deepseek_v3", draw_deepseek },
	{ "cohere2", draw_decoder },
	{ "deepseek_v2", draw_deepseek },
	{ "ernie4_5", draw_biases },
	{ "exaone4", draw_exaone4 },
	{ "gemma3_text", draw_gemma3_text },
	{ "glm4", draw_partial },
	{ "glm4_moe", draw_glm4_moe },
	{ "gpt_neox", draw_gpt_neox },
	{ "gpt_oss", draw_gpt_oss },
	{ "granite", draw_granite },
	{ "hunyuan_v1_dense", draw_hunyuan_v1_dense },
	{ "llama4_text", draw_llama4 },
	{ "ministral", draw_decoder },
	{ "ministral3", draw_ministral3 },
	{ "olmo3", draw_two_ropes },
	{ "olmoe", draw_olmoe },
	{ "opt", draw_opt },
	{ "phi", draw_phi },
	{ "qwen2_moe", draw_qwen2_moe },
	{ "seed_oss", draw_biases },
	{ "smollm3", draw_smollm3 },
	{ "stablelm", draw_stablelm },
	{ "starcoder2", draw_biases },
};

int32_t geometry_count_families(void)
{
	return (int32_t)(sizeof families / sizeof *families);
}

const char *geometry_get_family(int32_t i)
{
	return families[i].family;
}

/* Draws a config; returns the maximum number of ranks. */
static int32_t draw_config(const char *family, uint64_t *seed, json_t *config)
{
	size_t i = 0;

	while (strcmp(families[i].family, family) != 0)
		i++;
	return families[i].draw(seed, config);
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Finds no tensor while there are none: the shapes are the model's. */
static tess_status find_absent_tensor(void *self, const char *name, struct tess_view *out)
{
	const struct geometry *g = self;
	bool expert = strstr(name, ".experts.") && !strstr(name, "bias");

	*out = (struct tess_view){ .dtype = expert && has_mxfp4(g->config) ? TESS_MXFP4 : g->dtype,
		                   .ndim = -1 };
	return TESS_OK;
}

static tess_status find_geometry_tensor(void *self, const char *name, struct tess_view *out)
{
	const struct geometry *g = self;

	for (int32_t i = 0; i < g->ntensors; i++)
		if (!strcmp(g->tensor[i].name, name)) {
			*out = g->tensor[i].view;
			return TESS_OK;
		}
	return tess_fail(TESS_ENOENT, "%s: no such parameter", name);
}

/* Draws elements: norms are around 1, others around 0. */
static void draw_parameter_elements(uint64_t *seed, bool norm, int64_t n, const struct tess_view *v)
{
	for (int64_t i = 0; i < n; i++) {
		float x = (float)draw_below(seed, 1 << 20) / (1 << 19) - 1;
		uint16_t half;

		x = norm ? 1 + 0.3f * x : 0.3f * x;
		half = v->dtype == TESS_BF16 ? tess_bf16_round(x) : tess_f16_round(x);
		if (v->dtype == TESS_F32)
			((float *)v->data)[i] = x;
		else
			((uint16_t *)v->data)[i] = half;
	}
}

/* Draws blocks: scales of 2^-6 to 2^-3, any codes. */
static void draw_parameter_blocks(uint64_t *seed, int64_t bytes, uint8_t *block)
{
	for (int64_t i = 0; i < bytes; i++)
		block[i] = (uint8_t)(i % TESS_MXFP4_BYTES ? draw_below(seed, 256)
		                                          : 121 + draw_below(seed, 4));
}

static void draw_parameter(uint64_t *seed, const struct tess_weight *w, struct geometry_tensor *out)
{
	struct tess_view v = { .dtype = w->mxfp4 ? TESS_MXFP4 : w->dtype, .ndim = w->ndim };
	int64_t n = 1, bytes;

	for (int32_t a = w->ndim - 1; a >= 0; a--) {
		v.shape[a] = w->dim[a]->size;
		v.stride[a] = n;
		n *= v.shape[a];
	}
	bytes = tess_rows_count_bytes(v.dtype, n);
	v.data = malloc((size_t)bytes + 1);
	if (w->mxfp4)
		draw_parameter_blocks(seed, bytes, v.data);
	else
		draw_parameter_elements(seed, w->ndim == 1 && strstr(w->name, "weight"), n, &v);
	*out = (struct geometry_tensor){ strdup(w->name), v };
}

/* Draws whether the experts of gpt_oss are stored in MXFP4. */
static void draw_mxfp4(uint64_t *seed, const char *family, struct geometry *g)
{
	g->mxfp4 = !strcmp(family, "gpt_oss") && g->dtype == TESS_BF16 && draw_one_in(seed, 2);
	if (g->mxfp4)
		json_object_set_new(g->config, "quantization_config",
		                    json_pack("{ss}", "quant_method", "mxfp4"));
}

tess_status geometry_open(const char *family, uint64_t seed, bool mxfp4, struct geometry *g)
{
	static const int32_t dtypes[] = { TESS_F32, TESS_BF16, TESS_F16 };
	struct lockstep how = { .source = &g->source, .plan = "none", .nranks = 1, .nids = 1 };
	struct tess_program *p;
	tess_status st;

	*g = (struct geometry){ .config = json_object() };
	g->dtype = dtypes[draw_below(&seed, 3)];
	if (mxfp4)
		draw_mxfp4(&seed, family, g);
	g->most_ranks = draw_config(family, &seed, g->config);
	set_text(g->config, "dtype", g->dtype == TESS_BF16 ? "bfloat16" : "float32");
	g->vocabulary = json_integer_value(json_object_get(g->config, "vocab_size"));
	g->source = (struct tess_source){ .self = g,
		                          .name = family,
		                          .config = g->config,
		                          .find = find_absent_tensor,
		                          .drop = lockstep_ignore_drop };
	st = tess_plugin_find_model(family, &g->model);
	how.model = g->model;
	if (!st)
		st = lockstep_record(&how, &p);
	if (st)
		return st;
	g->tensor = calloc((size_t)p->nweights, sizeof *g->tensor);
	for (int32_t i = 0; i < p->nweights; i++)
		if (!tess_weight_get_table(p->weight[i]))
			draw_parameter(&seed, p->weight[i], &g->tensor[g->ntensors++]);
	g->source.find = find_geometry_tensor;
	tess_program_free(p);
	return TESS_OK;
}

void geometry_close(struct geometry *g)
{
	for (int32_t i = 0; i < g->ntensors; i++) {
		free(g->tensor[i].name);
		free(g->tensor[i].view.data);
	}
	free(g->tensor);
	json_decref(g->config);
}

/*
 * test_families.c - the interpretation of each family's config.json: the window of each layer,
 * biases, the size of heads; missing keys have the defaults of its class in transformers.
 */
#include "core/registry/registry.h"
#include "hf/checkpoint.h"
#include "nn/program/settings.h"
#include "tests/reference/lockstep.h"
#include "tests/support/suite.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 2 };

/* Finds no tensor: the shapes are the model's. */
static tess_status find_any_shape(void *self, const char *name, struct tess_view *out)
{
	(void)self, (void)name;
	*out = (struct tess_view){ .dtype = TESS_F32, .ndim = -1 };
	return TESS_OK;
}

/* Opens the golden checkpoint in *out; NULL: there is none, and settings are those of the class. */
static struct tess_source open_source(const char *name, struct tess_checkpoint **out)
{
	struct tess_source source = { .name = name,
		                      .find = find_any_shape,
		                      .drop = lockstep_ignore_drop };
	char path[512];

	*out = NULL;
	snprintf(path, sizeof path, "%s/tests/data/goldens/%s", SOURCE_ROOT, name);
	if (!access(path, F_OK)) {
		ck_assert_msg(!tess_checkpoint_open(path, TESS_CHECKPOINT_WHOLE, out), "%s",
		              tess_error());
		source = tess_checkpoint_make_source(*out);
		source.count = 0; /* tensors that no module requires do not matter here */
		source.config = json_copy((json_t *)source.config);
	} else {
		source.config = json_pack("{s:i}", "num_hidden_layers", LAYERS);
	}
	return source;
}

/*
 * Records the model of the golden checkpoint MODEL or MODEL-KIND, or with the defaults of MODEL if
 * there is none ("MODEL-defaults"), with `change` of config.json; `without`: a key or NULL.
 */
static tess_status record_changed_model(const char *name, const char *change, const char *without,
                                        struct tess_program **out)
{
	struct tess_checkpoint *checkpoint;
	struct tess_source source = open_source(name, &checkpoint);
	json_t *config = (json_t *)source.config, *more = json_loads(change, 0, NULL);
	const struct tess_model *model;
	char family[32];
	tess_status st;

	snprintf(family, sizeof family, "%.*s", (int)strcspn(name, "-"), name);
	ck_assert_msg(!tess_plugin_find_model(family, &model), "%s", tess_error());
	ck_assert_msg(more && !json_object_update(config, more), "%s", change);
	if (without)
		json_object_del(config, without);
	st = lockstep_record(&(struct lockstep){ model, &source, NULL, 1, NULL, 3, true, NULL },
	                     out);
	json_decref(more);
	json_decref(config);
	tess_checkpoint_close(checkpoint);
	return st;
}

#define WINDOWS "\"sliding_window\": 5, \"use_sliding_window\": true"

static const struct {
	const char *model, *change, *without;
	int window[LAYERS];
} windows[] = {
	{ "llama", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "mistral", "{}", NULL, { 16, 16 } },
	{ "mistral", "{\"sliding_window\": null}", NULL, { 0, 0 } },
	{ "mistral", "{}", "sliding_window", { 4096, 4096 } },
	{ "qwen2", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "qwen2", "{\"sliding_window\": 5, \"max_window_layers\": 0}", "layer_types", { 0, 0 } },
	{ "qwen2",
	  "{\"sliding_window\": 5, \"max_window_layers\": 0, \"layer_types\": null}",
	  "use_sliding_window",
	  { 0, 0 } },
	{ "qwen2", "{" WINDOWS "}", NULL, { 0, 0 } },
	{ "qwen2", "{" WINDOWS "}", "layer_types", { 0, 0 } },
	{ "qwen2", "{" WINDOWS ", \"max_window_layers\": 0}", "layer_types", { 5, 5 } },
	{ "qwen2", "{" WINDOWS ", \"max_window_layers\": 1}", "layer_types", { 0, 5 } },
	{ "qwen2",
	  "{" WINDOWS ", \"max_window_layers\": 1, \"layer_types\": null}",
	  NULL,
	  { 0, 5 } },
	{ "qwen2",
	  "{\"use_sliding_window\": true, \"max_window_layers\": 0, \"layer_types\": []}",
	  "sliding_window",
	  { 4096, 4096 } },
	{ "qwen2",
	  "{\"use_sliding_window\": true, \"max_window_layers\": 0}",
	  "layer_types",
	  { 0, 0 } },
	{ "qwen2",
	  "{" WINDOWS ", \"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
	  NULL,
	  { 5, 0 } },
	{ "gemma2", "{}", NULL, { 12, 0 } },
	{ "gemma2", "{}", "layer_types", { 12, 0 } },
	{ "gemma2",
	  "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
	  "sliding_window",
	  { 0, 4096 } },
	{ "gpt2", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "mixtral-bf16", "{}", NULL, { 0, 0 } },
	{ "mixtral-bf16", "{\"sliding_window\": 5}", NULL, { 5, 5 } },
	{ "phi3-partial", "{\"sliding_window\": 5}", NULL, { 5, 5 } },
	{ "phi3-partial", "{}", "sliding_window", { 0, 0 } },
	{ "qwen3", "{" WINDOWS ", \"max_window_layers\": 1}", "layer_types", { 0, 5 } },
	{ "qwen3",
	  "{" WINDOWS ", \"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
	  NULL,
	  { 5, 0 } },
	{ "ministral", "{}", NULL, { 4096, 4096 } },
	{ "ministral",
	  "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
	  NULL,
	  { 0, 4096 } },
	{ "ministral", "{\"sliding_window\": null}", NULL, { 0, 0 } },
	{ "ministral3", "{}", NULL, { 0, 0 } },
	{ "ministral3", "{\"sliding_window\": 5}", NULL, { 5, 5 } },
	{ "starcoder2", "{}", NULL, { 0, 0 } },
	{ "starcoder2",
	  "{\"sliding_window\": 5, \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
	  NULL,
	  { 5, 5 } },
	{ "smollm3", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "smollm3", "{" WINDOWS "}", NULL, { 0, 0 } },
	{ "smollm3", "{" WINDOWS ", \"no_rope_layers\": [0, 1]}", NULL, { 5, 0 } },
	{ "smollm3", "{" WINDOWS ", \"no_rope_layer_interval\": 2}", NULL, { 0, 5 } },
	{ "smollm3",
	  "{" WINDOWS ", \"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
	  NULL,
	  { 5, 0 } },
	{ "gemma3_text", "{\"num_hidden_layers\": 2}", "layer_types", { 10, 10 } },
	{ "gemma3_text",
	  "{\"num_hidden_layers\": 2, \"sliding_window_pattern\": 2}",
	  "layer_types",
	  { 10, 0 } },
	{ "gemma3_text",
	  "{\"num_hidden_layers\": 2, "
	  "\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
	  NULL,
	  { 0, 10 } },
	{ "cohere2", "{\"num_hidden_layers\": 2}", "layer_types", { 10, 10 } },
	{ "cohere2",
	  "{\"num_hidden_layers\": 2, \"sliding_window_pattern\": 2}",
	  "layer_types",
	  { 10, 0 } },
	{ "exaone4", "{}", NULL, { 4096, 4096 } },
	{ "exaone4", "{\"sliding_window\": null}", NULL, { 0, 0 } },
	{ "exaone4",
	  "{\"sliding_window\": 5, \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
	  NULL,
	  { 0, 5 } },
	{ "olmo3", "{}", NULL, { 4096, 4096 } },
	{ "olmo3",
	  "{\"sliding_window\": 5, \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
	  NULL,
	  { 0, 5 } },
	{ "qwen2_moe-defaults", "{}", NULL, { 0, 0 } },
	{ "qwen2_moe-defaults", "{" WINDOWS "}", NULL, { 5, 0 } },
	{ "qwen2_moe-defaults", "{" WINDOWS ", \"max_window_layers\": 0}", NULL, { 0, 0 } },
	{ "qwen2_moe-defaults",
	  "{" WINDOWS ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
	  NULL,
	  { 0, 5 } },
	{ "granite", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "glm4", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "glm4_moe", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "seed_oss", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "ernie4_5", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "hunyuan_v1_dense", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "gpt_neox", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "opt", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "phi", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "stablelm", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
	{ "olmoe-defaults", "{\"sliding_window\": 5}", NULL, { 0, 0 } },
};

START_TEST(windows_of_layers)
{
	struct tess_program *p;
	int layer = 0;

	ck_assert_msg(!record_changed_model(windows[_i].model, windows[_i].change,
	                                    windows[_i].without, &p),
	              "%s", tess_error());
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];

		if (rec->kind == TESS_OP_ATTENTION)
			ck_assert_msg(rec->num[TESS_ATTENTION_WINDOW] ==
			                      windows[_i].window[layer++],
			              "case %d, layer %d: a window of %g", _i, layer - 1,
			              rec->num[TESS_ATTENTION_WINDOW]);
	}
	ck_assert_int_eq(layer, LAYERS);
	tess_program_free(p);
}
END_TEST

static const struct {
	const char *model, *change, *without, *says;
} refusals[] = {
	{ "deepseek_v3", "{\"q_lora_rank\": null}", NULL, "model.layers.0.self_attn.q_proj" },
	{ "deepseek_v3", "{}", "q_lora_rank",
	  "model.layers.0.self_attn.q_a_proj.weight: shape [16, 32], but config.json makes it "
	  "[1536, 32]" },
	/* sums and products of sizes stay in range */
	{ "deepseek_v3", "{\"qk_nope_head_dim\": 9223372036854775807}", NULL,
	  "config.json: \"qk_nope_head_dim\" must be an integer of 32 bits or a boolean" },
	{ "deepseek_v3", "{\"n_shared_experts\": -2147483649}", NULL,
	  "config.json: \"n_shared_experts\" must be an integer of 32 bits" },
	{ "phi3-partial", "{\"rope_parameters\": {\"partial_rotary_factor\": 1e300}}", NULL,
	  "rope needs an even number of elements inside each head, not 24 from 0 on of heads of "
	  "12" },
	{ "phi3-partial", "{\"rope_parameters\": {\"partial_rotary_factor\": -1e300}}", NULL,
	  "rope needs an even number of elements inside each head, not -12 from 0 on of heads" },
	{ "deepseek_v3", "{\"attention_bias\": true}", NULL,
	  "model.layers.0.self_attn.q_a_proj.bias" },
	{ "deepseek_v3", "{}", "first_k_dense_replace", "model.layers.1.mlp.gate_proj" },
	{ "deepseek_v3", "{\"n_shared_experts\": 2}", NULL,
	  "model.layers.1.mlp.shared_experts.gate_proj.weight: shape [16, 32], but config.json "
	  "makes it [32, 32]" },
	{ "deepseek_v3", "{\"v_head_dim\": 7}", NULL,
	  "model.layers.0.self_attn.kv_b_proj.weight: shape [56, 12], but config.json makes it "
	  "[60, 12]" },
	/* transformers has no mask for such a layer either */
	{ "qwen2", "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}", NULL,
	  "config.json: layer_types.1: \"sliding_attention\" is not supported here; use "
	  "full_attention" },
	{ "qwen3", "{" WINDOWS ", \"layer_types\": [\"chunked_attention\", \"full_attention\"]}",
	  NULL,
	  "layer_types.0: \"chunked_attention\" is not supported here; use full_attention, "
	  "sliding_attention" },
	{ "qwen2", "{\"layer_types\": [\"full_attention\"]}", NULL,
	  "config.json: layer_types.1: \"(no text)\"" },
	{ "qwen2", "{\"layer_types\": [3, 4]}", NULL, "config.json: layer_types.0: \"(no text)\"" },
	{ "gemma2", "{\"layer_types\": [\"chunked_attention\", \"full_attention\"]}", NULL,
	  "layer_types.0: \"chunked_attention\" is not supported here; use full_attention, "
	  "sliding_attention" },
	{ "gemma2", "{\"use_bidirectional_attention\": true}", NULL,
	  "use_bidirectional_attention: \"(no text)\" is not supported here; use false" },
	{ "phi3-partial", "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}}", NULL,
	  "rope needs an even number of elements inside each head, not 3 from 0 on of heads of "
	  "12" },
	{ "phi3-partial",
	  "{\"rope_parameters\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 1, 1], "
	  "\"partial_rotary_factor\": 0.5}, \"original_max_position_embeddings\": 64}",
	  NULL,
	  "rope_type longrope: beyond 64 positions the table depends on the length of the text so "
	  "far, which is not supported; reserve no more for a text (--positions 64)" },
	{ "gpt2", "{\"n_positions\": 79}", NULL,
	  "transformer.wpe.weight: shape [80, 48], but config.json makes it [79, 48]" },
	{ "mistral", "{\"sliding_window\": \"16\"}", NULL,
	  "config.json: \"sliding_window\" must be an integer" },
	{ "mixtral-bf16", "{\"num_local_experts\": 9}", NULL,
	  "model.layers.0.mlp.gate.weight (model.layers.0.block_sparse_moe.gate.weight in files): "
	  "shape [8, 32], but config.json makes it [9, 32]" },
	{ "mixtral-bf16", "{\"intermediate_size\": 31}", NULL,
	  "model.layers.0.mlp.experts.gate_up_proj "
	  "(model.layers.0.block_sparse_moe.experts.0.w1.weight in files): shape [32, 32]" },
	{ "mixtral-bf16", "{\"num_experts_per_tok\": 9}", NULL,
	  "config.json: 9 experts for each token, of 8" },
	/* layers with experts: layer 1 of this checkpoint has none */
	{ "qwen3_moe", "{\"mlp_only_layers\": []}", NULL, "model.layers.1.mlp.gate.weight" },
	{ "qwen3_moe", "{}", "mlp_only_layers", "model.layers.1.mlp.gate.weight" },
	{ "qwen3_moe", "{\"mlp_only_layers\": [0, 1]}", NULL, "model.layers.0.mlp.gate_proj" },
	{ "qwen3_moe", "{\"mlp_only_layers\": [1, 2]}", NULL, "model.layers.2.mlp.gate_proj" },
	{ "qwen3_moe", "{\"decoder_sparse_step\": 2}", NULL, "model.layers.0.mlp.gate_proj" },
	{ "qwen3_moe", "{\"num_experts\": 9}", "num_local_experts",
	  "model.layers.0.mlp.gate.weight: shape [8, 32]" },
	{ "qwen3_moe", "{\"moe_intermediate_size\": 23}", NULL, "experts.0.gate_proj.weight in" },
	{ "qwen3_moe", "{\"attention_bias\": true}", NULL, "model.layers.0.self_attn.q_proj.bias" },
	{ "qwen3", "{\"attention_bias\": true}", NULL, "model.layers.0.self_attn.q_proj.bias" },
	{ "llama", "{\"partial_rotary_factor\": 0.5}", NULL,
	  "config.json: partial_rotary_factor 0.5: the model rotates whole heads (1)" },
	{ "llama", "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}}", NULL,
	  "config.json: partial_rotary_factor 0.25" },
	{ "llama", "{}", "num_hidden_layers", "model.layers.2.input_layernorm.weight" },
	{ "mistral", "{}", "num_key_value_heads",
	  "config.json: 8 key-value heads do not divide 6 heads" },
	{ "olmo2", "{\"vocab_size\": null}", NULL, "config.json: \"vocab_size\" is missing" },
	{ "qwen3", "{}", "head_dim",
	  "model.layers.0.self_attn.q_proj.weight: shape [96, 48], but config.json makes it "
	  "[768, 48]" },
	{ "stablelm", "{\"qk_layernorm\": true}", NULL, "qk_layernorm: " },
	{ "phi", "{\"tie_word_embeddings\": true}", NULL, "tie_word_embeddings: " },
	{ "opt", "{\"layer_norm_elementwise_affine\": false}", NULL,
	  "layer_norm_elementwise_affine: " },
	{ "gemma3_text", "{\"use_bidirectional_attention\": true}", NULL,
	  "use_bidirectional_attention: " },
	{ "gemma3_text", "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}}}", NULL,
	  "config.json: rope_parameters: no settings of sliding_attention layers are there" },
	{ "llama", "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}}}", NULL,
	  "full_attention: settings per layer type are not supported by this model" },
	{ "deepseek_v2", "{}", NULL, "num_experts_per_tok" },
	{ "deepseek_v2", "{\"num_experts_per_tok\": 6, \"topk_method\": \"noaux_tc\"}", NULL,
	  "topk_method: \"noaux_tc\" is not supported here; use greedy, group_limited_greedy" },
	{ "glm4_moe", "{\"use_qk_norm\": false, \"head_dim\": 10}", NULL,
	  "model.layers.0.self_attn.q_proj.weight: shape [48, 32]" },
	{ "glm4_moe", "{}", "intermediate_size", "model.layers.0.mlp.gate_proj.weight" },
	{ "gpt_neox", "{\"num_attention_heads\": 5}", NULL, "rope needs an even number" },
	{ "opt", "{}", "max_position_embeddings",
	  "embed_positions.weight: shape [102, 40], but config.json makes it [2050, 40]" },
	{ "opt", "{\"word_embed_proj_dim\": 20}", NULL,
	  "embed_tokens.weight: shape [107, 40], but config.json makes it [107, 20]" },
	{ "gpt_oss-defaults", "{\"num_experts_per_tok\": 200}", NULL,
	  "200 experts for each token" },
	{ "llama4_text-defaults", "{\"num_experts_per_tok\": 2}", NULL,
	  "num_experts_per_tok: \"(no text)\" is not supported here; use 1" },
	{ "olmoe-defaults", "{\"clip_qkv\": -1}", NULL, "a clamp to [1, -1]" },
};

START_TEST(refuses)
{
	struct tess_program *p;

	ck_assert(record_changed_model(refusals[_i].model, refusals[_i].change,
	                               refusals[_i].without, &p) < 0);
	expect_part(tess_error(), refusals[_i].says);
}
END_TEST

static const struct tess_record *find_record(const struct tess_program *p, int32_t kind, int nth)
{
	for (int32_t i = 0; i < p->nrecords; i++)
		if (p->record[i]->kind == kind && !nth--)
			return p->record[i];
	ck_abort_msg("no such record of kind %d", (int)kind);
}

#define YARN \
	"\"type\": \"yarn\", \"factor\": 40, \"mscale\": 1, \"mscale_all_dim\": 0.5, " \
	"\"original_max_position_embeddings\": 64"
#define SCALE_12 0.2886751345948129 /* 1 / sqrt(12) */
#define YARN_2 (1.1844439727056968 * 1.1844439727056968) /* 0.05 * log(40) + 1 */

/* Number `at` of record `nth` of a kind, with the changed config.json. */
static const struct {
	const char *model, *change, *without;
	int kind, nth, at;
	double want;
} numbers[] = {
	{ "deepseek_v3", "{}", NULL, TESS_OP_ATTENTION, 0, TESS_ATTENTION_VALUE, 12 },
	{ "deepseek_v3", "{\"rope_scaling\": {\"factor\": 8, \"mscale_all_dim\": 0}}", NULL,
	  TESS_OP_ATTENTION, 0, TESS_ATTENTION_SCALE, SCALE_12 },
	{ "deepseek_v3", "{\"rope_scaling\": {" YARN "}}", NULL, TESS_OP_ATTENTION, 0,
	  TESS_ATTENTION_SCALE, YARN_2 *SCALE_12 },
	{ "deepseek_v3", "{\"rope_parameters\": {" YARN "}}", NULL, TESS_OP_ATTENTION, 2,
	  TESS_ATTENTION_SCALE, YARN_2 *SCALE_12 },
	{ "deepseek_v3", "{\"rms_norm_eps\": 0.5}", NULL, TESS_OP_NORM, 0, TESS_NORM_EPS, 0.5 },
	{ "deepseek_v3", "{\"rms_norm_eps\": 0.5}", NULL, TESS_OP_NORM, 1, TESS_NORM_EPS, 1e-6 },
	{ "deepseek_v3", "{\"rms_norm_eps\": 0.5}", NULL, TESS_OP_NORM, 2, TESS_NORM_EPS, 1e-6 },
	{ "deepseek_v3", "{}", "rope_interleave", TESS_OP_ROPE, 0, TESS_ROPE_INTERLEAVED, 1 },
	{ "deepseek_v3", "{\"rope_interleave\": false}", NULL, TESS_OP_ROPE, 1,
	  TESS_ROPE_INTERLEAVED, 0 },
	{ "deepseek_v3", "{}", NULL, TESS_OP_ROPE, 1, TESS_ROPE_FIRST, 8 },
	{ "deepseek_v3", "{}", "norm_topk_prob", TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS,
	  TESS_SIGMOID | TESS_NORMALIZE },
	{ "deepseek_v3", "{\"norm_topk_prob\": false}", NULL, TESS_OP_ROUTE, 1, TESS_ROUTE_FLAGS,
	  TESS_SIGMOID },
	{ "deepseek_v3", "{}", "routed_scaling_factor", TESS_OP_ROUTE, 0, TESS_ROUTE_SCALE, 2.5 },
	{ "gemma2", "{}", NULL, TESS_OP_SCALE, 0, TESS_SCALE_FACTOR, 6.928203105926514 },
	{ "gemma2", "{\"dtype\": \"bfloat16\"}", NULL, TESS_OP_SCALE, 0, TESS_SCALE_FACTOR,
	  6.9375 },
	{ "gemma2", "{\"torch_dtype\": \"float16\"}", "dtype", TESS_OP_SCALE, 0, TESS_SCALE_FACTOR,
	  6.9296875 },
	{ "gemma2", "{}", "final_logit_softcapping", TESS_OP_SCALE, 2, TESS_SCALE_FACTOR, 30 },
	{ "gemma2", "{}", NULL, TESS_OP_ATTENTION, 0, TESS_ATTENTION_SOFTCAP, 4 },
	{ "gemma2", "{}", "attn_logit_softcapping", TESS_OP_ATTENTION, 1, TESS_ATTENTION_SOFTCAP,
	  50 },
	{ "gemma2", "{\"attn_logit_softcapping\": null}", NULL, TESS_OP_ATTENTION, 1,
	  TESS_ATTENTION_SOFTCAP, 0 },
	{ "gemma2", "{}", "query_pre_attn_scalar", TESS_OP_ATTENTION, 0, TESS_ATTENTION_SCALE,
	  1 / 16. },
	{ "gemma2", "{\"hidden_activation\": \"silu\"}", NULL, TESS_OP_GLU, 0, TESS_GLU_ACTIVATION,
	  TESS_SILU },
	{ "gemma2", "{}", "hidden_activation", TESS_OP_GLU, 1, TESS_GLU_ACTIVATION,
	  TESS_GELU_TANH },
	{ "gpt2", "{\"scale_attn_weights\": false}", NULL, TESS_OP_ATTENTION, 1,
	  TESS_ATTENTION_SCALE, 1 },
	{ "gpt2", "{\"scale_attn_weights\": false, \"scale_attn_by_inverse_layer_idx\": true}",
	  NULL, TESS_OP_ATTENTION, 1, TESS_ATTENTION_SCALE, 0.5 },
	{ "gpt2", "{}", "activation_function", TESS_OP_GLU, 0, TESS_GLU_ACTIVATION,
	  TESS_GELU_TANH },
	{ "gpt2", "{\"activation_function\": \"gelu\"}", NULL, TESS_OP_GLU, 0, TESS_GLU_ACTIVATION,
	  TESS_GELU },
	{ "gpt2", "{}", "layer_norm_epsilon", TESS_OP_NORM, 0, TESS_NORM_EPS, 1e-5 },
	{ "mixtral-bf16", "{}", "num_experts_per_tok", TESS_OP_ROUTE, 0, TESS_ROUTE_TOP, 2 },
	{ "mixtral-bf16", "{\"num_experts_per_tok\": 8}", NULL, TESS_OP_ROUTE, 1, TESS_ROUTE_TOP,
	  8 },
	{ "mixtral-bf16", "{\"norm_topk_prob\": false}", NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS,
	  TESS_NORMALIZE },
	{ "mixtral-bf16", "{}", "rms_norm_eps", TESS_OP_NORM, 0, TESS_NORM_EPS, 1e-5 },
	{ "qwen3_moe", "{}", "norm_topk_prob", TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS, 0 },
	{ "qwen3_moe", "{}", NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS, TESS_NORMALIZE },
	{ "qwen3_moe", "{}", "num_experts_per_tok", TESS_OP_ROUTE, 1, TESS_ROUTE_TOP, 8 },
	{ "qwen3_moe", "{\"hidden_act\": \"gelu\"}", NULL, TESS_OP_EXPERTS, 1,
	  TESS_EXPERTS_ACTIVATION, TESS_GELU },
	{ "qwen3_moe", "{\"sliding_window\": 5}", NULL, TESS_OP_ATTENTION, 2, TESS_ATTENTION_WINDOW,
	  0 },
	{ "qwen3_moe", "{" WINDOWS "}", NULL, TESS_OP_ATTENTION, 2, TESS_ATTENTION_WINDOW, 5 },
	{ "phi3-partial", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_WIDTH, 6 },
	{ "phi3-partial", "{\"partial_rotary_factor\": 0.34}", "rope_parameters", TESS_OP_ROPE, 0,
	  TESS_ROPE_WIDTH, 4 },
	{ "phi3-partial", "{}", "rope_parameters", TESS_OP_ROPE, 0, TESS_ROPE_WIDTH, 12 },
	{ "phi3-partial", "{}", "rms_norm_eps", TESS_OP_NORM, 0, TESS_NORM_EPS, 1e-5 },
	{ "olmo2", "{}", "rms_norm_eps", TESS_OP_NORM, 0, TESS_NORM_EPS, 1e-5 },
	{ "deepseek_v3", "{\"norm_topk_prob\": null}", NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS,
	  TESS_SIGMOID },
	{ "granite", "{}", NULL, TESS_OP_ATTENTION, 1, TESS_ATTENTION_SCALE, 1 },
	{ "granite", "{\"attention_multiplier\": 0.25}", NULL, TESS_OP_ATTENTION, 0,
	  TESS_ATTENTION_SCALE, 0.25 },
	{ "granite", "{\"embedding_multiplier\": 3, \"residual_multiplier\": 0.5}", NULL,
	  TESS_OP_SCALE, 0, TESS_SCALE_FACTOR, 3 },
	{ "granite", "{\"embedding_multiplier\": 3, \"residual_multiplier\": 0.5}", NULL,
	  TESS_OP_SCALE, 4, TESS_SCALE_FACTOR, 0.5 },
	{ "granite", "{\"logits_scaling\": 8}", NULL, TESS_OP_SCALE, 0, TESS_SCALE_FACTOR, 0.125 },
	{ "ernie4_5", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_INTERLEAVED, 1 },
	{ "ernie4_5", "{}", NULL, TESS_OP_ROPE, 1, TESS_ROPE_WIDTH, 128 },
	{ "glm4", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_INTERLEAVED, 1 },
	{ "glm4", "{}", NULL, TESS_OP_ROPE, 1, TESS_ROPE_WIDTH, 64 },
	{ "glm4", "{}", NULL, TESS_OP_NORM, 0, TESS_NORM_EPS, 1.5625e-7 },
	{ "glm4_moe", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_INTERLEAVED, 0 },
	{ "glm4_moe", "{}", "rope_parameters", TESS_OP_ROPE, 1, TESS_ROPE_WIDTH, 6 },
	{ "glm4_moe", "{\"rope_parameters\": null, \"partial_rotary_factor\": 1}", NULL,
	  TESS_OP_ROPE, 1, TESS_ROPE_WIDTH, 12 },
	{ "glm4_moe", "{}", "routed_scaling_factor", TESS_OP_ROUTE, 0, TESS_ROUTE_SCALE, 1 },
	{ "glm4_moe", "{}", "norm_topk_prob", TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS,
	  TESS_SIGMOID | TESS_NORMALIZE },
	{ "glm4_moe", "{\"norm_topk_prob\": false}", NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS,
	  TESS_SIGMOID },
	{ "gemma3_text", "{\"attn_logit_softcapping\": 4}", NULL, TESS_OP_ATTENTION, 0,
	  TESS_ATTENTION_SOFTCAP, 0 },
	{ "gemma3_text", "{\"final_logit_softcapping\": 4}", NULL, TESS_OP_SCALE, 2,
	  TESS_SCALE_FACTOR, 4 },
	{ "gemma3_text", "{}", "query_pre_attn_scalar", TESS_OP_ATTENTION, 0, TESS_ATTENTION_SCALE,
	  1 / 16. },
	{ "gemma3_text", "{}", NULL, TESS_OP_SCALE, 0, TESS_SCALE_FACTOR, 6 },
	{ "gemma3_text", "{}", "hidden_activation", TESS_OP_GLU, 1, TESS_GLU_ACTIVATION,
	  TESS_GELU_TANH },
	{ "cohere2", "{}", "logit_scale", TESS_OP_SCALE, 0, TESS_SCALE_FACTOR, 0.0625 },
	{ "cohere2", "{}", "layer_norm_eps", TESS_OP_NORM, 0, TESS_NORM_EPS, 1e-5 },
	{ "cohere2", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_INTERLEAVED, 1 },
	{ "deepseek_v2", "{\"num_experts_per_tok\": 6, \"n_group\": 8, \"topk_group\": 3}", NULL,
	  TESS_OP_ROUTE, 0, TESS_ROUTE_GROUPS, 1 },
	{ "deepseek_v2",
	  "{\"num_experts_per_tok\": 6, \"n_group\": 8, \"topk_group\": 3, "
	  "\"topk_method\": \"group_limited_greedy\"}",
	  NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_GROUPS, 8 },
	{ "deepseek_v2", "{\"num_experts_per_tok\": 6, \"norm_topk_prob\": true}", NULL,
	  TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS, TESS_GROUP_MAX },
	{ "deepseek_v2", "{\"num_experts_per_tok\": 6, \"rms_norm_eps\": 0.5}", NULL, TESS_OP_NORM,
	  1, TESS_NORM_EPS, 1e-6 },
	{ "deepseek_v2", "{\"num_experts_per_tok\": 6, \"rope_interleave\": false}", NULL,
	  TESS_OP_ROPE, 0, TESS_ROPE_INTERLEAVED, 1 },
	{ "gpt_neox", "{\"rotary_pct\": 0.2}", "rope_parameters", TESS_OP_ROPE, 0, TESS_ROPE_WIDTH,
	  2 },
	{ "gpt_neox", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_WIDTH, 4 },
	{ "gpt_neox", "{}", "hidden_act", TESS_OP_GLU, 0, TESS_GLU_ACTIVATION, TESS_GELU },
	{ "gpt_neox", "{}", "layer_norm_eps", TESS_OP_NORM, 0, TESS_NORM_EPS, 1e-5 },
	{ "opt", "{}", "activation_function", TESS_OP_GLU, 0, TESS_GLU_ACTIVATION, TESS_RELU },
	{ "opt", "{\"layer_norm_eps\": 0.5}", NULL, TESS_OP_NORM, 0, TESS_NORM_EPS, 1e-5 },
	{ "phi", "{}", NULL, TESS_OP_GLU, 0, TESS_GLU_ACTIVATION, TESS_GELU_TANH },
	{ "phi", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_WIDTH, 32 },
	{ "phi", "{\"layer_norm_eps\": 0.5}", NULL, TESS_OP_NORM, 0, TESS_NORM_EPS, 0.5 },
	{ "stablelm", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_WIDTH, 20 },
	{ "stablelm", "{\"layer_norm_eps\": 0.5}", NULL, TESS_OP_NORM, 0, TESS_NORM_EPS, 0.5 },
	{ "starcoder2", "{}", NULL, TESS_OP_GLU, 0, TESS_GLU_ACTIVATION, TESS_GELU_TANH },
	{ "starcoder2", "{\"norm_epsilon\": 0.5, \"layer_norm_eps\": 0.25}", NULL, TESS_OP_NORM, 0,
	  TESS_NORM_EPS, 0.5 },
	{ "gpt_oss-defaults", "{}", NULL, TESS_OP_ATTENTION, 0, TESS_ATTENTION_WINDOW, 128 },
	{ "gpt_oss-defaults", "{}", NULL, TESS_OP_ATTENTION, 1, TESS_ATTENTION_WINDOW, 0 },
	{ "gpt_oss-defaults", "{}", NULL, TESS_OP_EXPERTS, 0, TESS_EXPERTS_LIMIT, 7 },
	{ "gpt_oss-defaults", "{}", NULL, TESS_OP_EXPERTS, 0, TESS_EXPERTS_ALPHA, 1.702 },
	{ "gpt_oss-defaults", "{\"swiglu_limit\": 3}", NULL, TESS_OP_EXPERTS, 0, TESS_EXPERTS_LIMIT,
	  3 },
	{ "gpt_oss-defaults", "{\"swiglu_alpha\": 2}", NULL, TESS_OP_EXPERTS, 0, TESS_EXPERTS_ALPHA,
	  2 },
	{ "llama4_text-defaults", "{}", NULL, TESS_OP_ATTENTION, 0, TESS_ATTENTION_CHUNKED, 1 },
	{ "llama4_text-defaults", "{\"attention_chunk_size\": 7}", NULL, TESS_OP_ATTENTION, 1,
	  TESS_ATTENTION_WINDOW, 7 },
	{ "llama4_text-defaults", "{\"no_rope_layers\": [0, 1]}", NULL, TESS_OP_ATTENTION, 0,
	  TESS_ATTENTION_CHUNKED, 0 },
	{ "llama4_text-defaults", "{}", NULL, TESS_OP_ROPE, 0, TESS_ROPE_INTERLEAVED, 1 },
	{ "llama4_text-defaults", "{\"moe_layers\": [1]}", NULL, TESS_OP_ROUTE, 1, TESS_ROUTE_FLAGS,
	  TESS_SIGMOID },
	{ "olmoe-defaults", "{\"clip_qkv\": 6}", NULL, TESS_OP_CLAMP, 2, TESS_CLAMP_HIGH, 6 },
	{ "olmoe-defaults", "{}", NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_TOP, 8 },
	{ "olmoe-defaults", "{}", NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS, 0 },
	{ "olmoe-defaults", "{\"norm_topk_prob\": true}", NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_FLAGS,
	  TESS_NORMALIZE },
	{ "qwen2_moe-defaults", "{}", NULL, TESS_OP_ROUTE, 0, TESS_ROUTE_TOP, 4 },
	{ "qwen2_moe-defaults", "{}", NULL, TESS_OP_ROUTE, 1, TESS_ROUTE_FLAGS, 0 },
	{ "qwen2_moe-defaults", "{\"norm_topk_prob\": true}", NULL, TESS_OP_ROUTE, 0,
	  TESS_ROUTE_FLAGS, TESS_NORMALIZE },
};

START_TEST(numbers_of_records)
{
	struct tess_program *p;
	double have;

	ck_assert_msg(!record_changed_model(numbers[_i].model, numbers[_i].change,
	                                    numbers[_i].without, &p),
	              "%s", tess_error());
	have = find_record(p, numbers[_i].kind, numbers[_i].nth)->num[numbers[_i].at];
	ck_assert_msg(fabs(have - numbers[_i].want) <= 1e-15 * fabs(have), "case %d: %.17g", _i,
	              have);
	tess_program_free(p);
}
END_TEST

/*
 * Defaults of each class of transformers 5.24 (configuration_FAMILY.py), for keys that change the
 * result.
 */
/* clang-format off */
static const struct {
	const char *model, *defaults;
} classes[] = {
	{ "llama", TESS_JSON({
	  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
	  "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
	  "pad_token_id": null, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	  "mlp_bias": false, "head_dim": null, "rope_theta": 10000
	}) },
	{ "mistral", TESS_JSON({
	  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
	  "head_dim": null, "hidden_act": "silu", "max_position_embeddings": 131072,
	  "rms_norm_eps": 1e-06, "pad_token_id": null, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": false, "sliding_window": 4096, "attention_dropout": 0,
	  "rope_theta": 10000
	}) },
	{ "mixtral", TESS_JSON({
	  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
	  "head_dim": null, "hidden_act": "silu", "max_position_embeddings": 131072,
	  "rms_norm_eps": 1e-05, "pad_token_id": null, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": false, "sliding_window": null, "attention_dropout": 0,
	  "num_experts_per_tok": 2, "num_local_experts": 8, "rope_theta": 1000000
	}) },
	{ "qwen2", TESS_JSON({
	  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
	  "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
	  "tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": 4096,
	  "max_window_layers": 28, "layer_types": null, "attention_dropout": 0,
	  "pad_token_id": null, "bos_token_id": null, "eos_token_id": null, "rope_theta": 10000
	}) },
	{ "qwen3", TESS_JSON({
	  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
	  "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 32768,
	  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
	  "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
	  "layer_types": null, "attention_dropout": 0, "pad_token_id": null,
	  "bos_token_id": null, "eos_token_id": null, "rope_theta": 10000
	}) },
	{ "qwen3_moe", TESS_JSON({
	  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
	  "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4,
	  "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
	  "tie_word_embeddings": false, "attention_bias": false, "use_sliding_window": false,
	  "sliding_window": 4096, "attention_dropout": 0, "decoder_sparse_step": 1,
	  "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
	  "norm_topk_prob": false, "mlp_only_layers": null, "pad_token_id": null,
	  "bos_token_id": null, "eos_token_id": null, "rope_theta": 10000
	}) },
	{ "gemma2", TESS_JSON({
	  "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
	  "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
	  "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
	  "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "pad_token_id": 0,
	  "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": true,
	  "attention_bias": false, "attention_dropout": 0, "query_pre_attn_scalar": 256,
	  "sliding_window": 4096, "layer_types": null, "final_logit_softcapping": 30,
	  "attn_logit_softcapping": 50, "rope_theta": 10000
	}) },
	{ "olmo2", TESS_JSON({
	  "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
	  "hidden_act": "silu", "max_position_embeddings": 2048, "pad_token_id": 1,
	  "bos_token_id": null, "eos_token_id": 50279, "tie_word_embeddings": false,
	  "attention_bias": false, "attention_dropout": 0, "rms_norm_eps": 1e-05,
	  "rope_theta": 10000
	}) },
	{ "phi3", TESS_JSON({
	  "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
	  "resid_pdrop": 0, "attention_dropout": 0, "hidden_act": "silu",
	  "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
	  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "bos_token_id": 1,
	  "eos_token_id": 32000, "pad_token_id": 32000, "sliding_window": null,
	  "rope_theta": 10000, "partial_rotary_factor": 1
	}) },
	{ "gpt2", TESS_JSON({
	  "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
	  "n_inner": null, "activation_function": "gelu_new", "resid_pdrop": 0.1,
	  "embd_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-05,
	  "scale_attn_weights": true, "bos_token_id": 50256, "eos_token_id": 50256,
	  "pad_token_id": null, "scale_attn_by_inverse_layer_idx": false,
	  "tie_word_embeddings": true
	}) },
	{ "deepseek_v3", TESS_JSON({
	  "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
	  "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
	  "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
	  "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
	  "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8,
	  "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
	  "norm_topk_prob": true, "hidden_act": "silu", "max_position_embeddings": 4096,
	  "rms_norm_eps": 1e-06, "pad_token_id": null, "bos_token_id": 0, "eos_token_id": 1,
	  "tie_word_embeddings": false, "rope_interleave": true, "attention_bias": false,
	  "attention_dropout": 0, "rope_theta": 10000
	}) },
	{ "cohere2", TESS_JSON({
	  "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
	  "logit_scale": 0.0625, "num_hidden_layers": 40, "num_attention_heads": 64,
	  "num_key_value_heads": null, "hidden_act": "silu",
	  "max_position_embeddings": 8192, "layer_norm_eps": 1e-05, "pad_token_id": 0,
	  "bos_token_id": 5, "eos_token_id": 255001, "tie_word_embeddings": true,
	  "attention_bias": false, "attention_dropout": 0, "sliding_window": 4096,
	  "layer_types": null, "rope_theta": 10000
	}) },
	{ "deepseek_v2", TESS_JSON({
	  "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
	  "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
	  "pad_token_id": null, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	  "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536,
	  "n_group": null, "n_routed_experts": 64, "n_shared_experts": 2,
	  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 1,
	  "topk_group": null, "topk_method": "greedy", "v_head_dim": 128,
	  "num_experts_per_tok": null, "moe_intermediate_size": 1407, "rope_theta": 10000
	}) },
	{ "ernie4_5", TESS_JSON({
	  "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072,
	  "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2,
	  "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
	  "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": true, "use_bias": false, "head_dim": 128,
	  "rope_theta": 500000
	}) },
	{ "exaone4", TESS_JSON({
	  "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
	  "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
	  "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": null,
	  "tie_word_embeddings": false, "attention_dropout": 0, "sliding_window": 4096,
	  "layer_types": null, "rope_theta": 10000
	}) },
	{ "gemma3_text", TESS_JSON({
	  "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
	  "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
	  "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
	  "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "pad_token_id": 0,
	  "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": true,
	  "attention_bias": false, "attention_dropout": 0, "query_pre_attn_scalar": 256,
	  "sliding_window": 4096, "layer_types": null, "final_logit_softcapping": null,
	  "attn_logit_softcapping": null, "rope_theta": 1000000,
	  "rope_local_base_freq": 10000
	}) },
	{ "glm4", TESS_JSON({
	  "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
	  "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2,
	  "head_dim": 128, "hidden_act": "silu", "attention_dropout": 0,
	  "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-07,
	  "tie_word_embeddings": false, "pad_token_id": 151329,
	  "eos_token_id": [151329, 151336, 151338], "bos_token_id": null,
	  "attention_bias": true, "rope_theta": 10000, "partial_rotary_factor": 0.5
	}) },
	{ "glm4_moe", TESS_JSON({
	  "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944,
	  "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
	  "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
	  "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	  "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
	  "n_routed_experts": 128, "routed_scaling_factor": 1, "n_group": 1,
	  "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true,
	  "use_qk_norm": false, "bos_token_id": null, "eos_token_id": null,
	  "pad_token_id": null, "rope_theta": 10000, "partial_rotary_factor": 0.5
	}) },
	{ "gpt_neox", TESS_JSON({
	  "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
	  "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu",
	  "attention_dropout": 0, "hidden_dropout": 0, "max_position_embeddings": 2048,
	  "layer_norm_eps": 1e-05, "bos_token_id": 0, "eos_token_id": 2,
	  "pad_token_id": null, "tie_word_embeddings": false,
	  "use_parallel_residual": true, "attention_bias": true, "rotary_emb_base": 10000,
	  "rotary_pct": 0.25
	}) },
	{ "granite", TESS_JSON({
	  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
	  "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
	  "pad_token_id": null, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	  "mlp_bias": false, "embedding_multiplier": 1, "logits_scaling": 1,
	  "residual_multiplier": 1, "attention_multiplier": 1, "rope_theta": 10000
	}) },
	{ "hunyuan_v1_dense", TESS_JSON({
	  "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
	  "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
	  "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	  "head_dim": null, "rope_theta": 10000
	}) },
	{ "ministral", TESS_JSON({
	  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
	  "head_dim": null, "hidden_act": "silu", "max_position_embeddings": 131072,
	  "rms_norm_eps": 1e-06, "pad_token_id": null, "bos_token_id": 1,
	  "eos_token_id": 2, "tie_word_embeddings": false, "sliding_window": 4096,
	  "attention_dropout": 0, "layer_types": null, "rope_theta": 10000
	}) },
	{ "ministral3", TESS_JSON({
	  "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336,
	  "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 8,
	  "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 262144,
	  "rms_norm_eps": 1e-05, "pad_token_id": 11, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": false, "sliding_window": null, "attention_dropout": 0,
	  "rope_parameters": {"rope_theta": 1000000, "factor": 16,
	  "original_max_position_embeddings": 16384, "beta_fast": 32, "beta_slow": 1,
	  "mscale_all_dim": 1, "mscale": 1, "llama_4_scaling_beta": 0.1,
	  "rope_type": "yarn"}
	}) },
	{ "olmo3", TESS_JSON({
	  "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
	  "hidden_act": "silu", "max_position_embeddings": 2048, "pad_token_id": 1,
	  "bos_token_id": null, "eos_token_id": 50279, "tie_word_embeddings": false,
	  "attention_bias": false, "attention_dropout": 0, "rms_norm_eps": 1e-05,
	  "sliding_window": 4096, "layer_types": null, "rope_theta": 500000
	}) },
	{ "olmoe", TESS_JSON({
	  "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048,
	  "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": null,
	  "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
	  "pad_token_id": 1, "bos_token_id": null, "eos_token_id": 50279,
	  "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	  "clip_qkv": null, "num_experts_per_tok": 8, "num_experts": 64,
	  "norm_topk_prob": false, "rope_theta": 10000
	}) },
	{ "opt", TESS_JSON({
	  "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12,
	  "ffn_dim": 3072, "max_position_embeddings": 2048, "do_layer_norm_before": true,
	  "word_embed_proj_dim": null, "dropout": 0.1, "attention_dropout": 0,
	  "num_attention_heads": 12, "activation_function": "relu", "pad_token_id": 1,
	  "bos_token_id": 2, "eos_token_id": 2, "enable_bias": true,
	  "tie_word_embeddings": true,
	  "layer_norm_elementwise_affine": true
	}) },
	{ "phi", TESS_JSON({
	  "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192,
	  "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": null,
	  "resid_pdrop": 0, "embd_pdrop": 0, "attention_dropout": 0,
	  "hidden_act": "gelu_new", "max_position_embeddings": 2048,
	  "layer_norm_eps": 1e-05, "tie_word_embeddings": false, "qk_layernorm": false,
	  "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": null, "rope_theta": 10000,
	  "partial_rotary_factor": 0.5
	}) },
	{ "qwen2_moe", TESS_JSON({
	  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
	  "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
	  "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
	  "tie_word_embeddings": false, "use_sliding_window": false,
	  "sliding_window": 4096, "max_window_layers": 28, "attention_dropout": 0,
	  "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
	  "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
	  "num_experts": 60, "norm_topk_prob": false, "mlp_only_layers": null,
	  "qkv_bias": true, "layer_types": null, "pad_token_id": null,
	  "bos_token_id": null, "eos_token_id": null, "rope_theta": 10000
	}) },
	{ "seed_oss", TESS_JSON({
	  "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648,
	  "num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8,
	  "hidden_act": "silu", "max_position_embeddings": 524288, "rms_norm_eps": 1e-06,
	  "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
	  "tie_word_embeddings": false, "attention_bias": true,
	  "attention_out_bias": false, "attention_dropout": 0.1, "residual_dropout": 0.1,
	  "mlp_bias": false, "head_dim": 128, "rope_theta": 10000
	}) },
	{ "smollm3", TESS_JSON({
	  "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
	  "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
	  "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
	  "pad_token_id": 128004, "bos_token_id": 128000, "eos_token_id": 128001,
	  "use_sliding_window": false, "sliding_window": null, "no_rope_layers": null,
	  "no_rope_layer_interval": 4, "layer_types": null, "attention_bias": false,
	  "attention_dropout": 0, "mlp_bias": false, "tie_word_embeddings": true,
	  "rope_theta": 2000000
	}) },
	{ "stablelm", TESS_JSON({
	  "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560,
	  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
	  "hidden_act": "silu", "max_position_embeddings": 4096, "layer_norm_eps": 1e-05,
	  "tie_word_embeddings": false, "use_qkv_bias": false, "qk_layernorm": false,
	  "use_parallel_residual": false, "hidden_dropout": 0, "attention_dropout": 0,
	  "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": null, "rope_theta": 10000,
	  "partial_rotary_factor": 0.25
	}) },
	{ "starcoder2", TESS_JSON({
	  "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
	  "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
	  "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096,
	  "norm_epsilon": 1e-05, "bos_token_id": 50256, "eos_token_id": 50256,
	  "pad_token_id": null, "sliding_window": null, "attention_dropout": 0,
	  "residual_dropout": 0, "embedding_dropout": 0, "use_bias": true,
	  "tie_word_embeddings": true, "rope_theta": 10000
	}) },
	{ "gpt_oss", TESS_JSON({
	  "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
	  "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
	  "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072,
	  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": true,
	  "attention_dropout": 0, "sliding_window": 128, "num_local_experts": 128,
	  "num_experts_per_tok": 4, "rope_theta": 150000, "rope_parameters": {
	  "rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1,
	  "truncate": false, "original_max_position_embeddings": 4096 }
	}) },
	{ "llama4_text", TESS_JSON({
	  "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
	  "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
	  "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
	  "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
	  "pad_token_id": null, "bos_token_id": 1, "eos_token_id": 2,
	  "tie_word_embeddings": false, "attention_dropout": 0, "num_experts_per_tok": 1,
	  "num_local_experts": 16, "moe_layers": null, "interleave_moe_layer_step": 1,
	  "use_qk_norm": true, "no_rope_layers": null,
	  "no_rope_layer_interval": 4, "attention_chunk_size": 8192, "layer_types": null,
	  "attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1,
	  "attention_bias": false, "rope_theta": 500000
	}) },
};
/* clang-format on */

START_TEST(defaults_are_those_of_the_class)
{
	json_t *config = json_object(), *want = json_loads(classes[_i].defaults, 0, NULL), *value;
	const struct tess_model *model;
	json_t *have = NULL;
	const char *key;

	ck_assert_msg(!tess_plugin_find_model(classes[_i].model, &model), "%s", tess_error());
	ck_assert_msg(!tess_settings_merge(model, config, &have), "%s", tess_error());
	json_object_foreach(want, key, value) {
		json_t *is = json_object_get(have, key);

		ck_assert_msg(json_is_null(value) ? !is
		              : json_is_number(value)
		                      ? json_is_number(is) &&
		                                json_number_value(is) == json_number_value(value)
		                      : json_equal(is, value),
		              "%s: %s", classes[_i].model, key);
		json_object_del(have, key);
	}
	ck_assert_msg(!json_object_size(have), "%s: %s is not in its class", classes[_i].model,
	              json_object_iter_key(json_object_iter(have)));
	json_decref(have);
	json_decref(want);
	json_decref(config);
}
END_TEST

static const struct {
	const char *model, *change;
	double want;
} thetas[] = {
	{ "mixtral-bf16", "{\"rope_parameters\": null}", 1e6 },
	{ "mixtral-bf16", "{\"rope_parameters\": {\"rope_type\": \"default\"}}", 1e6 },
	{ "mixtral-bf16", "{\"rope_parameters\": null, \"rope_theta\": 5e4}", 5e4 },
	{ "mistral", "{\"rope_parameters\": null}", 1e4 },
	{ "smollm3", "{}", 2e6 },
	{ "ernie4_5", "{}", 5e5 },
	{ "gpt_neox", "{\"rope_parameters\": null, \"rotary_emb_base\": 5e4}", 5e4 },
	{ "phi", "{\"rope_theta\": 5e4}", 5e4 },
};

START_TEST(thetas_of_rope)
{
	struct tess_program *p;

	ck_assert_msg(!record_changed_model(thetas[_i].model, thetas[_i].change, NULL, &p), "%s",
	              tess_error());
	ck_assert_int_eq(p->nropes, 1);
	ck_assert_double_eq(p->rope[0].rope.theta, thetas[_i].want);
	tess_program_free(p);
}
END_TEST

#define TWO "\"num_hidden_layers\": 2, \"rope_parameters\": null, "
#define FIRST_SLIDES "\"layer_types\": [\"sliding_attention\", \"full_attention\"]"

/* Settings of rope of the first table and the last; without a type, the default. */
static const struct {
	const char *model, *change;
	struct tess_rope want[2];
} ropes[] = {
	/* two spellings of the same */
	{ "gemma3_text",
	  "{" TWO FIRST_SLIDES ", \"rope_theta\": 5e5, \"rope_local_base_freq\": 800, "
	  "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}",
	  { { .theta = 800 }, { .type = TESS_ROPE_LINEAR, .theta = 5e5, .factor = 8 } } },
	{ "gemma3_text",
	  "{}",
	  { { .theta = 800 }, { .type = TESS_ROPE_LINEAR, .theta = 3e5, .factor = 8 } } },
	{ "gemma3_text", "{" TWO FIRST_SLIDES "}", { { .theta = 1e4 }, { .theta = 1e6 } } },
	{ "olmo3",
	  "{" FIRST_SLIDES ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}",
	  { { .theta = 5e5 }, { .type = TESS_ROPE_LINEAR, .theta = 5e5, .factor = 8 } } },
	{ "olmo3",
	  "{" FIRST_SLIDES ", \"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 800}, "
	  "\"full_attention\": {\"rope_type\": \"linear\", \"rope_theta\": 7e5, \"factor\": 8}}}",
	  { { .theta = 800 }, { .type = TESS_ROPE_LINEAR, .theta = 7e5, .factor = 8 } } },
	{ "hunyuan_v1_dense",
	  "{\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 50, \"factor\": 4}}",
	  { { .theta = 1e4, .alpha = 50 }, { .theta = 1e4, .alpha = 50 } } },
	{ "ministral3",
	  "{}",
	  { { .type = TESS_ROPE_YARN, .theta = 1e6, .factor = 16, .growth = 0.1, .period = 16384 },
	    { .type = TESS_ROPE_YARN, .theta = 1e6, .factor = 16 } } },
};

START_TEST(ropes_of_layers)
{
	struct tess_program *p;

	ck_assert_msg(!record_changed_model(ropes[_i].model, ropes[_i].change, NULL, &p), "%s",
	              tess_error());
	ck_assert_int_le(p->nropes, 2);
	for (int i = 0; i < 2; i++) {
		const struct tess_rope *want = &ropes[_i].want[i],
				       *have = &p->rope[i ? p->nropes - 1 : 0].rope;

		ck_assert_int_eq(have->type, want->type ? want->type : TESS_ROPE_DEFAULT);
		ck_assert_double_eq(have->theta, want->theta);
		ck_assert_double_eq(have->factor, want->factor);
		ck_assert_double_eq(have->alpha, want->alpha);
		ck_assert_double_eq(have->growth, want->growth);
		if (want->growth > 0)
			ck_assert_double_eq(have->period, want->period);
	}
	tess_program_free(p);
}
END_TEST

/* Numbers of ropes in two layers, two for each layer that has rope. */
static const struct {
	const char *model, *change;
	int nropes;
} turned[] = {
	{ "smollm3", "{}", 4 },
	{ "smollm3", "{\"no_rope_layers\": [1, 0]}", 2 },
	{ "smollm3", "{\"no_rope_layer_interval\": 1}", 0 },
	{ "cohere2", "{\"num_hidden_layers\": 2}", 2 },
	{ "exaone4", "{\"layer_types\": [\"full_attention\", \"full_attention\"]}", 0 },
	{ "exaone4", "{" FIRST_SLIDES "}", 2 },
	{ "exaone4", "{\"sliding_window\": null}", 4 },
	{ "opt", "{}", 0 },
	{ "llama4_text-defaults", "{}", 4 },
	{ "llama4_text-defaults", "{\"no_rope_layers\": [1, 0]}", 3 }, /* the last grows queries */
	{ "llama4_text-defaults",
	  "{\"no_rope_layers\": [1, 0], \"attn_temperature_tuning\": false}", 2 },
};

START_TEST(layers_with_rope)
{
	struct tess_program *p;
	int n = 0;

	ck_assert_msg(!record_changed_model(turned[_i].model, turned[_i].change, NULL, &p), "%s",
	              tess_error());
	for (int32_t i = 0; i < p->nrecords; i++)
		n += p->record[i]->kind == TESS_OP_ROPE;
	ck_assert_int_eq(n, turned[_i].nropes);
	tess_program_free(p);
}
END_TEST

/* Numbers of biases in a layer: of q, k and v, and of other linear ops. */
static const struct {
	const char *model, *change;
	int qkv, others;
} biases[] = {
	/* families that ignore the keys, as transformers does */
	{ "mistral", "{\"attention_bias\": true, \"mlp_bias\": true}", 0, 0 },
	{ "qwen2", "{\"attention_bias\": true, \"mlp_bias\": true}", 3, 0 },
	{ "ministral", "{\"attention_bias\": true, \"mlp_bias\": true}", 0, 0 },
	{ "granite", "{}", 0, 0 },
	{ "granite", "{\"attention_bias\": true, \"mlp_bias\": true}", 3, 4 },
	{ "smollm3", "{\"attention_bias\": true, \"mlp_bias\": true}", 3, 4 },
	{ "seed_oss", "{}", 3, 0 },
	{ "seed_oss",
	  "{\"attention_bias\": false, \"attention_out_bias\": true, \"mlp_bias\": true}", 0, 4 },
	{ "ernie4_5", "{\"attention_bias\": true}", 0, 0 },
	{ "ernie4_5", "{\"use_bias\": true}", 3, 4 },
	{ "glm4", "{}", 3, 0 },
	{ "hunyuan_v1_dense", "{\"attention_bias\": true}", 3, 1 },
	{ "starcoder2", "{}", 3, 3 },
	{ "starcoder2", "{\"use_bias\": false}", 0, 0 },
	{ "phi", "{\"qk_layernorm\": true}", 3, 3 },
	{ "stablelm", "{}", 0, 0 },
	{ "stablelm", "{\"use_qkv_bias\": true}", 3, 0 },
	{ "exaone4", "{\"attention_bias\": true}", 0, 0 },
	{ "olmo3", "{\"attention_bias\": true}", 3, 1 },
	{ "gpt_oss-defaults", "{\"attention_bias\": false}", 0, 1 }, /* the router's */
	{ "gpt_oss-defaults", "{}", 3, 2 },
	{ "llama4_text-defaults", "{\"attention_bias\": true}", 3, 1 },
	{ "olmoe-defaults", "{\"attention_bias\": true}", 3, 1 },
	{ "qwen2_moe-defaults", "{}", 3, 0 },
	{ "qwen2_moe-defaults", "{\"qkv_bias\": false}", 0, 0 },
};

START_TEST(biases_are_the_family_s_own)
{
	int qkv = 0, others = 0;
	struct tess_program *p;

	ck_assert_msg(!record_changed_model(biases[_i].model, biases[_i].change, NULL, &p), "%s",
	              tess_error());
	for (int32_t i = 0; i < p->nweights; i++) {
		const char *name = p->weight[i]->name;

		if (!strstr(name, ".bias") || strstr(name, "norm") || !strstr(name, "layers."))
			continue;
		if (strstr(name, "q_proj") || strstr(name, "k_proj") || strstr(name, "v_proj"))
			qkv++;
		else
			others++;
	}
	ck_assert_int_eq(qkv, LAYERS * biases[_i].qkv);
	ck_assert_int_eq(others, LAYERS * biases[_i].others);
	tess_program_free(p);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("families", 60, &r);

	tcase_add_loop_test(t, windows_of_layers, 0, (int)(sizeof windows / sizeof *windows));
	tcase_add_loop_test(t, refuses, 0, (int)(sizeof refusals / sizeof *refusals));
	tcase_add_loop_test(t, numbers_of_records, 0, (int)(sizeof numbers / sizeof *numbers));
	tcase_add_loop_test(t, defaults_are_those_of_the_class, 0,
	                    (int)(sizeof classes / sizeof *classes));
	tcase_add_loop_test(t, thetas_of_rope, 0, (int)(sizeof thetas / sizeof *thetas));
	tcase_add_loop_test(t, ropes_of_layers, 0, (int)(sizeof ropes / sizeof *ropes));
	tcase_add_loop_test(t, layers_with_rope, 0, (int)(sizeof turned / sizeof *turned));
	tcase_add_loop_test(t, biases_are_the_family_s_own, 0,
	                    (int)(sizeof biases / sizeof *biases));
	return suite_end(r);
}

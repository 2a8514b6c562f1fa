/*
 * tess-model-llama4.so: Llama 4, text: layers with rope attend in chunks, the others grow queries
 * with their positions; mixtures of experts whose input is scaled by its score, and a shared
 * expert.
 */
#include <tessera/decoder.h>

static int32_t has_llama4_rope(struct tess_nn *nn, int64_t layer)
{
	int64_t interval = nn->integer(nn, "no_rope_layer_interval", 4);
	char key[64];

	snprintf(key, sizeof key, "no_rope_layers.%d", (int)layer);
	return nn->integer(nn, key, interval < 1 || (layer + 1) % interval != 0) != 0;
}

static struct tess_tensor *grow_queries(struct tess_nn *nn, struct tess_tensor *q)
{
	const struct tess_rotary still = { .size = sizeof still,
		                           .flags = TESS_STILL,
		                           .growth = nn->number(nn, "attn_scale", 0.1),
		                           .period = nn->number(nn, "floor_scale", 8192),
		                           .start = 1 };

	return nn->integer(nn, "attn_temperature_tuning", 1) ? nn->rope(nn, q, &still) : q;
}

static struct tess_tensor *attend_as_llama4(struct tess_nn *nn, const struct tess_decoder *c,
                                            int64_t layer, struct tess_tensor *x)
{
	const struct tess_linear out[] = { { "o_proj", c->hidden, c->out_bias, 0 }, { 0 } };
	struct tess_attention how = { .size = sizeof how,
		                      .scale = c->scale,
		                      .dropout = c->dropout };
	struct tess_tensor *qkv[3], *y;

	tess_decoder_project(nn, c, x, qkv);
	if (has_llama4_rope(nn, layer)) {
		tess_decoder_rotate(nn, c, qkv);
		for (int i = 0; i < 2 && nn->integer(nn, "use_qk_norm", 1); i++)
			qkv[i] = nn->norm(nn, "qk_norm", qkv[i],
			                  TESS_RMS | TESS_HEADS | TESS_NO_WEIGHT, c->eps);
		how.chunk = nn->integer(nn, "attention_chunk_size", 8192);
	} else {
		qkv[0] = grow_queries(nn, qkv[0]);
	}
	y = nn->attention(nn, qkv[0], qkv[1], qkv[2], &how);
	nn->linear(nn, y, out, &y);
	return nn->leave(nn, y);
}

static int32_t is_llama4_sparse(struct tess_nn *nn, int64_t layer)
{
	int64_t step = nn->integer(nn, "interleave_moe_layer_step", 1);
	char key[64];

	if (!nn->has(nn, "moe_layers.0"))
		return step > 0 && (layer + 1) % step == 0;
	for (int i = 0;; i++) {
		snprintf(key, sizeof key, "moe_layers.%d", i);
		if (!nn->has(nn, key))
			return 0;
		if (nn->integer(nn, key, -1) == layer)
			return 1;
	}
}

/*
 * Scales x by the score of its expert: the sum over experts of the scores times the same divided by
 * their sum, which are 1 for the only expert of a row and 0 for others.
 */
static struct tess_tensor *feed_as_llama4(struct tess_nn *nn, const struct tess_decoder *c,
                                          int64_t layer, struct tess_tensor *x)
{
	const struct tess_linear router[] = { { "router", c->experts, 0, 0 }, { 0 } };
	const struct tess_experts how = {
		.size = sizeof how, .flags = TESS_IN_OUT, .act = c->act, .ffn = c->expert_ffn
	};
	struct tess_route score = c->route, one = c->route;
	struct tess_tensor *y, *logits, *chosen, *factor;

	if (!is_llama4_sparse(nn, layer))
		return tess_decoder_gated(nn, c, "feed_forward", c->ffn, x);
	one.flags |= TESS_NORMALIZE;
	x = nn->enter(nn, x, "feed_forward");
	nn->linear(nn, x, router, &logits);
	chosen = nn->route(nn, logits, &one);
	factor = nn->dot(nn, nn->route(nn, logits, &score), chosen);
	y = nn->experts(nn, "experts", nn->multiply(nn, x, factor), chosen, &how);
	return nn->leave(
		nn, nn->add(nn, y, tess_decoder_gated(nn, c, "shared_expert", c->shared_ffn, x)));
}

static struct tess_tensor *forward_llama4(struct tess_nn *nn, struct tess_tensor *ids)
{
	static const char *const single[] = { "1", NULL };
	struct tess_decoder c = tess_decoder_read(nn, 128);
	int64_t ffn = nn->integer(nn, "intermediate_size", TESS_REQUIRED);

	if (nn->integer(nn, "num_experts_per_tok", 1) != 1)
		nn->choice(nn, single, "num_experts_per_tok");
	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c.rotary.flags = TESS_INTERLEAVED;
	c.expert_ffn = nn->dim(nn, "expert ffn", ffn, 0);
	c.shared_ffn = nn->dim(nn, "shared ffn", ffn, 0);
	c.ffn = nn->dim(nn, "dense ffn", nn->integer(nn, "intermediate_size_mlp", 16384), 0);
	c.experts = nn->dim(nn, "experts", nn->integer(nn, "num_local_experts", 16), 1);
	c.route.flags = TESS_SIGMOID;
	c.route.top = 1;
	return tess_decoder_record(nn, &c, ids, attend_as_llama4, feed_as_llama4);
}

#define LAYER TESS_DECODER_LAYER
#define SOME TESS_DECODER_SOME "feed_forward."
#define GATED(module, down) \
	{ SOME module "gate_proj", "colwise" }, { SOME module "up_proj", "colwise" }, \
	{ \
		SOME module "down_proj", down \
	}
static const struct tess_rule tp[] = { TESS_DECODER_TP_ATTENTION,
	                               GATED("", "rowwise"),
	                               GATED("shared_expert.", "rowwise"),
	                               { SOME "experts.gate_up_proj", "packed_colwise" },
	                               { SOME "experts.down_proj", "rowwise" },
	                               { SOME "experts", "moe_tp_experts" },
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_ENDS,
	                                  { LAYER "input_layernorm", "sequence_parallel" },
	                                  TESS_DECODER_TP_SP_HEADS,
	                                  { LAYER "post_attention_layernorm", "sequence_parallel" },
	                                  { LAYER "feed_forward", "module_allgather" },
	                                  GATED("", "rowwise_reduce_scatter"),
	                                  GATED("shared_expert.", "rowwise_reduce_scatter"),
	                                  { SOME "experts.gate_up_proj", "packed_colwise" },
	                                  { SOME "experts.down_proj", "rowwise" },
	                                  { SOME "experts", "moe_experts_reduce_scatter" },
	                                  { 0 } };
static const struct tess_rule ep[] = { TESS_DECODER_TP_ATTENTION,
	                               GATED("", "rowwise"),
	                               GATED("shared_expert.", "rowwise"),
	                               { "ep:" SOME "experts.gate_up_proj", "grouped_gemm" },
	                               { "ep:" SOME "experts.down_proj", "grouped_gemm" },
	                               { "ep:" SOME "experts", "ep_dispatch_experts" },
	                               { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "ep", ep }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "llama4_text", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
	"intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
	"num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
	"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
	"tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	"num_experts_per_tok": 1, "num_local_experts": 16, "interleave_moe_layer_step": 1,
	"use_qk_norm": true, "no_rope_layer_interval": 4, "attention_chunk_size": 8192,
	"attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1,
	"bos_token_id": 1, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model llama4 = {
	.size = sizeof llama4,
	.name = "llama4_text",
	.summary = "Llama 4, text: chunks, experts with scaled inputs",
	.types = types,
	.presets = presets,
	.forward = forward_llama4,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("llama4", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &llama4));

/*
 * tess-model-glm4.so: GLM 4: norms around the blocks, one weight for gate and up, rope of pairs of
 * neighbours in a part of each head.
 */
#include <tessera/decoder.h>

static struct tess_tensor *forward_glm4(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 128);

	c.qkv_bias = nn->integer(nn, "attention_bias", 1) ? TESS_BIAS : 0;
	c.norms[1] = "post_self_attn_layernorm";
	c.norms[3] = "post_mlp_layernorm";
	c.rotary.flags = TESS_INTERLEAVED;
	tess_decoder_read_rotary(nn, &c, 0.5);
	return tess_decoder_record(nn, &c, ids, tess_decoder_attention, tess_decoder_fused_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP_ATTENTION,
	                               { TESS_DECODER_LAYER "mlp.gate_up_proj", "colwise" },
	                               { TESS_DECODER_LAYER "mlp.down_proj", "rowwise" },
	                               { 0 } };
static const struct tess_rule tp_sp[] = {
	TESS_DECODER_TP_SP_ATTENTION,
	{ TESS_DECODER_LAYER "post_self_attn_layernorm", "sequence_parallel" },
	{ TESS_DECODER_LAYER "mlp.gate_up_proj", "colwise" },
	{ TESS_DECODER_LAYER "mlp.down_proj", "rowwise_reduce_scatter" },
	{ TESS_DECODER_LAYER "post_mlp_layernorm", "sequence_parallel" },
	{ 0 }
};
/* gate and up are computed by every rank */
static const struct tess_rule hf[] = {
	TESS_DECODER_TP_ATTENTION,
	{ TESS_DECODER_LAYER "mlp.gate_up_proj", "colwise_gather_output" },
	{ TESS_DECODER_LAYER "mlp.down_proj", "rowwise_split_input" },
	{ 0 }
};
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", hf }, { 0 }
};
static const char *const types[] = { "glm4", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
	"num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim":
	128, "hidden_act": "silu", "attention_dropout": 0, "max_position_embeddings": 131072,
	"rms_norm_eps": 1.5625e-7, "rope_theta": 10000, "partial_rotary_factor": 0.5,
	"tie_word_embeddings": false, "attention_bias": true, "pad_token_id": 151329,
	"eos_token_id": [151329, 151336, 151338]
});
/* clang-format on */
static const struct tess_model glm4 = {
	.size = sizeof glm4,
	.name = "glm4",
	.summary = "GLM 4: norms around the blocks",
	.types = types,
	.presets = presets,
	.forward = forward_glm4,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("glm4", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &glm4));

/*
 * tess-model-phi3.so: Phi 3: one weight for q, k and v, one for gate and up; RoPE may rotate only a
 * part of each head.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_phi3(struct tess_nn *nn, const struct tess_decoder *c,
                                          int64_t layer, struct tess_tensor *x)
{
	struct tess_dim *const parts[] = { c->heads, c->kv_heads, c->kv_heads, NULL };
	const struct tess_linear w[] = { { "qkv_proj", nn->fused(nn, parts), 0, 0 }, { 0 } };
	struct tess_tensor *qkv[3] = { 0 }, *y;

	(void)layer;
	nn->linear(nn, nn->enter(nn, x, "self_attn"), w, &y);
	nn->split(nn, y, qkv);
	y = tess_decoder_attend(nn, c, qkv, tess_decoder_read_window(nn, 0));
	return nn->dropout(nn, y, nn->number(nn, "resid_pdrop", 0));
}

static struct tess_tensor *feed_as_phi3(struct tess_nn *nn, const struct tess_decoder *c,
                                        int64_t layer, struct tess_tensor *x)
{
	x = tess_decoder_fused_mlp(nn, c, layer, x);
	return nn->dropout(nn, x, nn->number(nn, "resid_pdrop", 0));
}

static struct tess_tensor *forward_phi3(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	tess_decoder_read_rotary(nn, &c, 1);
	return tess_decoder_record(nn, &c, ids, attend_as_phi3, feed_as_phi3);
}

#define LAYER TESS_DECODER_LAYER
static const struct tess_rule tp[] = { { "model.embed_tokens", "embedding_rowwise" },
	                               { LAYER "self_attn.qkv_proj", "colwise" },
	                               { LAYER "self_attn.o_proj", "rowwise" },
	                               { LAYER "mlp.gate_up_proj", "colwise" },
	                               { LAYER "mlp.down_proj", "rowwise" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { { "model.embed_tokens", "vocab_reduce_scatter" },
	                                  { LAYER "input_layernorm", "sequence_parallel" },
	                                  { LAYER "self_attn", "module_allgather" },
	                                  { LAYER "self_attn.qkv_proj", "colwise" },
	                                  { LAYER "self_attn.o_proj", "rowwise_reduce_scatter" },
	                                  { LAYER "post_attention_layernorm", "sequence_parallel" },
	                                  { LAYER "mlp", "module_allgather" },
	                                  { LAYER "mlp.gate_up_proj", "colwise" },
	                                  { LAYER "mlp.down_proj", "rowwise_reduce_scatter" },
	                                  { "model.norm", "sequence_parallel" },
	                                  { "lm_head", "colwise_gather_output" },
	                                  { 0 } };
/* Attention and activation are replicated. */
static const struct tess_rule hf[] = { { "model.embed_tokens", "embedding_rowwise" },
	                               { LAYER "self_attn.qkv_proj", "colwise_gather_output" },
	                               { LAYER "self_attn.o_proj", "rowwise_split_input" },
	                               { LAYER "mlp.gate_up_proj", "colwise_gather_output" },
	                               { LAYER "mlp.down_proj", "rowwise_split_input" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", hf }, { 0 }
};
static const char *const types[] = { "phi3", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
	"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
	"max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
	"rms_norm_eps": 1e-5, "rope_theta": 10000, "partial_rotary_factor": 1,
	"tie_word_embeddings": false, "resid_pdrop": 0,
	"attention_dropout": 0, "bos_token_id": 1, "eos_token_id": 32000,
	"pad_token_id": 32000
});
/* clang-format on */
static const struct tess_model phi3 = {
	.size = sizeof phi3,
	.name = "phi3",
	.summary = "Phi 3: q, k, v are one weight, and gate, up another",
	.types = types,
	.presets = presets,
	.forward = forward_phi3,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("phi3", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &phi3));

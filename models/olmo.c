/*
 * tess-model-olmo.so: OLMo 2 and 3: norms after the blocks instead of before them, and one norm
 * over all heads of q, and of k. These need all heads, so attention is replicated. Some layers of
 * OLMo 3 have a window, and a rope without scaling.
 */
#include <tessera/decoder.h>

/* Computes q, k and v; norms q and k. */
static void project_normed(struct tess_nn *nn, const struct tess_decoder *c, struct tess_tensor *x,
                           struct tess_tensor *qkv[3])
{
	tess_decoder_project(nn, c, x, qkv);
	qkv[0] = nn->norm(nn, "q_norm", qkv[0], TESS_RMS, c->eps);
	qkv[1] = nn->norm(nn, "k_norm", qkv[1], TESS_RMS, c->eps);
}

static struct tess_tensor *attend_as_olmo2(struct tess_nn *nn, const struct tess_decoder *c,
                                           int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	(void)layer;
	project_normed(nn, c, x, qkv);
	return tess_decoder_attend(nn, c, qkv, 0);
}

static struct tess_tensor *attend_as_olmo3(struct tess_nn *nn, const struct tess_decoder *c,
                                           int64_t layer, struct tess_tensor *x)
{
	int32_t slides = tess_decoder_slides(nn, layer, (layer + 1) % 4 != 0);
	struct tess_decoder of_layer = *c;
	struct tess_tensor *qkv[3];

	of_layer.rotary.kind = slides ? "sliding_attention" : "full_attention";
	of_layer.rotary.theta = slides ? nn->number(nn, "rope_theta", 500000) : 0;
	project_normed(nn, c, x, qkv);
	return tess_decoder_attend(nn, &of_layer, qkv,
	                           slides ? tess_decoder_read_window(nn, 4096) : 0);
}

static struct tess_tensor *record_olmo(struct tess_nn *nn, struct tess_tensor *ids,
                                       tess_block *attend)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c.norms[0] = c.norms[2] = NULL;
	c.norms[1] = "post_attention_layernorm";
	c.norms[3] = "post_feedforward_layernorm";
	return tess_decoder_record(nn, &c, ids, attend, tess_decoder_mlp);
}

static struct tess_tensor *forward_olmo2(struct tess_nn *nn, struct tess_tensor *ids)
{
	return record_olmo(nn, ids, attend_as_olmo2);
}

static struct tess_tensor *forward_olmo3(struct tess_nn *nn, struct tess_tensor *ids)
{
	return record_olmo(nn, ids, attend_as_olmo3);
}

#define LAYER TESS_DECODER_LAYER
static const struct tess_rule tp[] = { { "model.embed_tokens", "embedding_rowwise" },
	                               { LAYER "self_attn.q_proj", "colwise_gather_output" },
	                               { LAYER "self_attn.k_proj", "colwise_gather_output" },
	                               { LAYER "self_attn.v_proj", "colwise_gather_output" },
	                               { LAYER "self_attn.o_proj", "rowwise_split_input" },
	                               { LAYER "mlp.gate_proj", "colwise" },
	                               { LAYER "mlp.up_proj", "colwise" },
	                               { LAYER "mlp.down_proj", "rowwise" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { { "model.embed_tokens", "vocab_reduce_scatter" },
	                                  { LAYER "self_attn", "module_allgather" },
	                                  { LAYER "self_attn.q_proj", "colwise_gather_output" },
	                                  { LAYER "self_attn.k_proj", "colwise_gather_output" },
	                                  { LAYER "self_attn.v_proj", "colwise_gather_output" },
	                                  { LAYER "self_attn.o_proj", "rowwise_reduce_scatter" },
	                                  { LAYER "post_attention_layernorm", "sequence_parallel" },
	                                  { LAYER "mlp", "module_allgather" },
	                                  { LAYER "mlp.gate_proj", "colwise" },
	                                  { LAYER "mlp.up_proj", "colwise" },
	                                  { LAYER "mlp.down_proj", "rowwise_reduce_scatter" },
	                                  { LAYER "post_feedforward_layernorm",
	                                    "sequence_parallel" },
	                                  { "model.norm", "sequence_parallel" },
	                                  { "lm_head", "colwise_gather_output" },
	                                  { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "olmo2", NULL }, *const types_3[] = { "olmo3", NULL };
/* those of their classes in transformers 5.24 */
/* clang-format off */
static const char defaults_2[] = TESS_JSON({
	"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
	"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
	"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000,
	"tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	"pad_token_id": 1, "eos_token_id": 50279
});
static const char defaults_3[] = TESS_JSON({
	"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
	"num_hidden_layers": 32, "num_attention_heads": 32,
	"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
	"rope_theta": 500000, "tie_word_embeddings": false, "attention_bias": false,
	"attention_dropout": 0, "sliding_window": 4096, "pad_token_id": 1,
	"eos_token_id": 50279
});
/* clang-format on */
static const struct tess_model olmo2 = {
	.size = sizeof olmo2,
	.name = "olmo2",
	.summary = "OLMo 2: norms after the blocks, and of q and k",
	.types = types,
	.presets = presets,
	.forward = forward_olmo2,
	.defaults = defaults_2,
};
static const struct tess_model olmo3 = {
	.size = sizeof olmo3,
	.name = "olmo3",
	.summary = "OLMo 3: as OLMo 2, with windows and two ropes",
	.types = types_3,
	.presets = presets,
	.forward = forward_olmo3,
	.defaults = defaults_3,
};

TESS_DEFINE_PLUGIN("olmo", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &olmo2, &olmo3));

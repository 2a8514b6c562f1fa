/* tess-model-qwen3_moe.so: Qwen 3 with mixtures of experts in some or all layers. */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_qwen3_moe(struct tess_nn *nn, const struct tess_decoder *c,
                                               int64_t layer, struct tess_tensor *x)
{
	int64_t window = nn->integer(nn, "use_sliding_window", 0);
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	tess_decoder_norm_heads(nn, c, "q_norm", "k_norm", qkv);
	return tess_decoder_attend(nn, c, qkv, window ? tess_decoder_read_window(nn, 4096) : 0);
}

static struct tess_tensor *feed_as_qwen3_moe(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	if (!tess_decoder_is_sparse(nn, layer))
		return tess_decoder_mlp(nn, c, layer, x);
	return tess_decoder_moe(nn, c, layer, x);
}

static struct tess_tensor *forward_qwen3_moe(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);
	int64_t experts = nn->integer(nn, "num_experts", 128);

	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c.experts = nn->dim(nn, "experts", nn->integer(nn, "num_local_experts", experts), 1);
	c.expert_ffn = nn->dim(nn, "expert ffn", nn->integer(nn, "moe_intermediate_size", 768), 0);
	c.route.flags = nn->integer(nn, "norm_topk_prob", 0) ? TESS_NORMALIZE : 0;
	c.route.top = nn->integer(nn, "num_experts_per_tok", 8);
	return tess_decoder_record(nn, &c, ids, attend_as_qwen3_moe, feed_as_qwen3_moe);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP_ATTENTION,
	                               TESS_DECODER_TP_EXPERTS(TESS_DECODER_LAYER),
	                               TESS_DECODER_TP_MLP(TESS_DECODER_SOME),
	                               TESS_DECODER_HEAD_NORMS(TESS_DECODER_LAYER, "q_norm",
	                                                       "k_norm"),
	                               { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_ATTENTION,
	                                  TESS_DECODER_TP_SP_EXPERTS(TESS_DECODER_LAYER),
	                                  TESS_DECODER_TP_SP_MLP(TESS_DECODER_SOME),
	                                  TESS_DECODER_HEAD_NORMS(TESS_DECODER_LAYER, "q_norm",
	                                                          "k_norm"),
	                                  { 0 } };
static const struct tess_rule ep[] = { TESS_DECODER_TP_ATTENTION,
	                               TESS_DECODER_EP_EXPERTS(TESS_DECODER_LAYER),
	                               TESS_DECODER_TP_MLP(TESS_DECODER_SOME),
	                               TESS_DECODER_HEAD_NORMS(TESS_DECODER_LAYER, "q_norm",
	                                                       "k_norm"),
	                               { 0 } };
static const struct tess_rule ep_sp[] = { TESS_DECODER_EP_SP_ATTENTION,
	                                  TESS_DECODER_EP_SP_EXPERTS(TESS_DECODER_LAYER),
	                                  TESS_DECODER_TP_SP_MLP(TESS_DECODER_SOME),
	                                  TESS_DECODER_HEAD_NORMS(TESS_DECODER_LAYER, "q_norm",
	                                                          "k_norm"),
	                                  { 0 } };
static const struct tess_preset presets[] = { { "tp", tp },       { "tp+sp", tp_sp }, { "ep", ep },
	                                      { "ep+sp", ep_sp }, { "hf", tp },       { 0 } };
static const struct tess_stored stored[] = { TESS_DECODER_STORED_EXPERTS, { 0 } };
static const char *const types[] = { "qwen3_moe", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
	"num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4,
	"hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
	"rope_theta": 10000, "tie_word_embeddings": false, "attention_bias": false,
	"use_sliding_window": false, "sliding_window": 4096, "attention_dropout": 0,
	"decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
	"num_experts": 128, "norm_topk_prob": false
});
/* clang-format on */
static const struct tess_model qwen3_moe = {
	.size = sizeof qwen3_moe,
	.name = "qwen3_moe",
	.summary = "Qwen 3 with experts",
	.types = types,
	.presets = presets,
	.forward = forward_qwen3_moe,
	.stored = stored,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("qwen3_moe", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &qwen3_moe));

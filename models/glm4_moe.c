/*
 * tess-model-glm4_moe.so: GLM 4.5: rope in a part of each head; after the first layers, mixtures of
 * experts and a shared expert.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_glm4_moe(struct tess_nn *nn, const struct tess_decoder *c,
                                              int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	if (nn->integer(nn, "use_qk_norm", 0))
		tess_decoder_norm_heads(nn, c, "q_norm", "k_norm", qkv);
	return tess_decoder_attend(nn, c, qkv, 0);
}

static struct tess_tensor *forward_glm4_moe(struct tess_nn *nn, struct tess_tensor *ids)
{
	int32_t flags = TESS_SIGMOID | (nn->integer(nn, "norm_topk_prob", 1) ? TESS_NORMALIZE : 0);
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	tess_decoder_read_rotary(nn, &c, 0.5);
	tess_decoder_read_shared_moe(nn, &c, flags);
	c.route.correction = "gate.e_score_correction_bias";
	return tess_decoder_record(nn, &c, ids, attend_as_glm4_moe, tess_decoder_shared_moe);
}

#define SOME TESS_DECODER_SOME
static const struct tess_rule tp[] = {
	TESS_DECODER_TP_ATTENTION,      TESS_DECODER_HEAD_NORMS(SOME, "q_norm", "k_norm"),
	TESS_DECODER_TP_MLP(SOME),      TESS_DECODER_TP_EXPERTS(SOME),
	TESS_DECODER_SHARED("rowwise"), { 0 }
};
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_ATTENTION,
	                                  TESS_DECODER_HEAD_NORMS(SOME, "q_norm", "k_norm"),
	                                  TESS_DECODER_TP_SP_MLP(SOME),
	                                  TESS_DECODER_TP_SP_EXPERTS(SOME),
	                                  TESS_DECODER_SHARED("rowwise_reduce_scatter"),
	                                  { 0 } };
static const struct tess_rule ep[] = {
	TESS_DECODER_TP_ATTENTION,      TESS_DECODER_HEAD_NORMS(SOME, "q_norm", "k_norm"),
	TESS_DECODER_TP_MLP(SOME),      TESS_DECODER_EP_EXPERTS(SOME),
	TESS_DECODER_SHARED("rowwise"), { 0 }
};
static const struct tess_stored stored[] = { TESS_DECODER_STORED_EXPERTS, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "ep", ep }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "glm4_moe", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944,
	"num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
	"hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
	"rope_theta": 10000, "partial_rotary_factor": 0.5, "tie_word_embeddings": false,
	"attention_bias": false, "attention_dropout": 0, "moe_intermediate_size": 1408,
	"num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
	"routed_scaling_factor": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
	"norm_topk_prob": true, "use_qk_norm": false
});
/* clang-format on */
static const struct tess_model glm4_moe = {
	.size = sizeof glm4_moe,
	.name = "glm4_moe",
	.summary = "GLM 4.5: experts and a shared expert",
	.types = types,
	.presets = presets,
	.forward = forward_glm4_moe,
	.stored = stored,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("glm4_moe", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &glm4_moe));

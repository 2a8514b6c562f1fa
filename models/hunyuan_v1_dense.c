/*
 * tess-model-hunyuan_v1_dense.so: HunYuan dense: Llama whose heads of q and k are normed after
 * rope.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_hunyuan(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	tess_decoder_rotate(nn, c, qkv);
	tess_decoder_norm_heads(nn, c, "query_layernorm", "key_layernorm", qkv);
	return tess_decoder_attend_unrotated(nn, c, qkv, 0);
}

static struct tess_tensor *forward_hunyuan_v1_dense(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	return tess_decoder_record(nn, &c, ids, attend_as_hunyuan, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP,
	                               TESS_DECODER_HEAD_NORMS(TESS_DECODER_LAYER,
	                                                       "query_layernorm", "key_layernorm"),
	                               { 0 } };
static const struct tess_rule tp_sp[] = {
	TESS_DECODER_TP_SP,
	TESS_DECODER_HEAD_NORMS(TESS_DECODER_LAYER, "query_layernorm", "key_layernorm"),
	{ 0 }
};
static const struct tess_rule hf[] = { { "model.embed_tokens", "embedding_rowwise" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", hf }, { 0 }
};
static const char *const types[] = { "hunyuan_v1_dense", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008,
	"num_hidden_layers": 32, "num_attention_heads": 32,
	"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta":
	10000, "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model hunyuan_v1_dense = {
	.size = sizeof hunyuan_v1_dense,
	.name = "hunyuan_v1_dense",
	.summary = "HunYuan dense: norms of q and k after rope",
	.types = types,
	.presets = presets,
	.forward = forward_hunyuan_v1_dense,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("hunyuan_v1_dense", "1.0", "Apache-2.0",
                   .models = TESS_LIST(tess_model, &hunyuan_v1_dense));

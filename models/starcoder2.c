/*
 * tess-model-starcoder2.so: StarCoder 2: norms with a bias, an MLP without a gate, biases, and a
 * window in every layer.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_starcoder2(struct tess_nn *nn, const struct tess_decoder *c,
                                                int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	x = tess_decoder_attend(nn, c, qkv, tess_decoder_read_window(nn, 0));
	return nn->dropout(nn, x, nn->number(nn, "residual_dropout", 0));
}

static struct tess_tensor *feed_as_starcoder2(struct tess_nn *nn, const struct tess_decoder *c,
                                              int64_t layer, struct tess_tensor *x)
{
	(void)layer;
	x = tess_decoder_plain_mlp(nn, c, "c_fc", "c_proj", x);
	return nn->dropout(nn, x, nn->number(nn, "residual_dropout", 0));
}

static struct tess_tensor *forward_starcoder2(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.norm = TESS_LAYER;
	c.eps = nn->number(nn, "norm_epsilon", 1e-5);
	c.qkv_bias = nn->integer(nn, "use_bias", 1) ? TESS_BIAS : 0;
	c.out_bias = c.mlp_bias = c.qkv_bias;
	c.embedding_dropout = nn->number(nn, "embedding_dropout", 0);
	return tess_decoder_record(nn, &c, ids, attend_as_starcoder2, feed_as_starcoder2);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP_ATTENTION,
	                               { TESS_DECODER_LAYER "mlp.c_fc", "colwise" },
	                               { TESS_DECODER_LAYER "mlp.c_proj", "rowwise" },
	                               { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_ATTENTION,
	                                  { TESS_DECODER_LAYER "mlp.c_fc", "colwise" },
	                                  { TESS_DECODER_LAYER "mlp.c_proj",
	                                    "rowwise_reduce_scatter" },
	                                  { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "starcoder2", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers":
	30, "num_attention_heads": 24, "num_key_value_heads": 2, "hidden_act":
	"gelu_pytorch_tanh", "max_position_embeddings": 4096, "norm_epsilon": 1e-5, "rope_theta":
	10000, "attention_dropout": 0, "residual_dropout": 0,
	"embedding_dropout": 0, "use_bias": true, "tie_word_embeddings": true, "bos_token_id":
	50256, "eos_token_id": 50256
});
/* clang-format on */
static const struct tess_model starcoder2 = {
	.size = sizeof starcoder2,
	.name = "starcoder2",
	.summary = "StarCoder 2: norms and products with biases, windows",
	.types = types,
	.presets = presets,
	.forward = forward_starcoder2,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("starcoder2", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &starcoder2));

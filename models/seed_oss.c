/* tess-model-seed_oss.so: Seed OSS: Llama with biases of q, k and v, and dropout after blocks. */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_seed_oss(struct tess_nn *nn, const struct tess_decoder *c,
                                              int64_t layer, struct tess_tensor *x)
{
	x = tess_decoder_attention(nn, c, layer, x);
	return nn->dropout(nn, x, nn->number(nn, "residual_dropout", 0.1));
}

static struct tess_tensor *feed_as_seed_oss(struct tess_nn *nn, const struct tess_decoder *c,
                                            int64_t layer, struct tess_tensor *x)
{
	x = tess_decoder_mlp(nn, c, layer, x);
	return nn->dropout(nn, x, nn->number(nn, "residual_dropout", 0.1));
}

static struct tess_tensor *forward_seed_oss(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 128);

	c.qkv_bias = nn->integer(nn, "attention_bias", 1) ? TESS_BIAS : 0;
	c.out_bias = nn->integer(nn, "attention_out_bias", 0) ? TESS_BIAS : 0;
	c.mlp_bias = nn->integer(nn, "mlp_bias", 0) ? TESS_BIAS : 0;
	return tess_decoder_record(nn, &c, ids, attend_as_seed_oss, feed_as_seed_oss);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "seed_oss", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648,
	"num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim":
	128, "hidden_act": "silu", "max_position_embeddings": 524288, "rms_norm_eps": 1e-6,
	"rope_theta": 10000, "tie_word_embeddings": false, "attention_bias": true,
	"attention_out_bias": false, "mlp_bias": false, "attention_dropout": 0.1,
	"residual_dropout": 0.1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model seed_oss = {
	.size = sizeof seed_oss,
	.name = "seed_oss",
	.summary = "Seed OSS: Llama with biases of q, k and v",
	.types = types,
	.presets = presets,
	.forward = forward_seed_oss,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("seed_oss", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &seed_oss));

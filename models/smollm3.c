/* tess-model-smollm3.so: SmolLM 3: Llama in which some layers have no rope, and maybe a window. */
#include <stdio.h>
#include <tessera/decoder.h>

/* Returns 1 if a layer has rope: its number in no_rope_layers, or not every fourth. */
static int32_t has_rope(struct tess_nn *nn, int64_t layer)
{
	int64_t interval = nn->integer(nn, "no_rope_layer_interval", 4);
	char key[64];

	snprintf(key, sizeof key, "no_rope_layers.%d", (int)layer);
	return nn->integer(nn, key, interval < 1 || (layer + 1) % interval != 0) != 0;
}

static struct tess_tensor *attend_as_smollm3(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	int32_t rope = has_rope(nn, layer), slides = tess_decoder_slides(nn, layer, !rope);
	struct tess_tensor *qkv[3];
	int64_t window = 0;

	if (nn->integer(nn, "use_sliding_window", 0))
		window = tess_decoder_read_window(nn, 0);
	tess_decoder_project(nn, c, x, qkv);
	if (rope)
		tess_decoder_rotate(nn, c, qkv);
	return tess_decoder_attend_unrotated(nn, c, qkv, slides ? window : 0);
}

static struct tess_tensor *forward_smollm3(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c.mlp_bias = nn->integer(nn, "mlp_bias", 0) ? TESS_BIAS : 0;
	return tess_decoder_record(nn, &c, ids, attend_as_smollm3, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "smollm3", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
	"num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
	"hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
	"rope_theta": 2000000, "use_sliding_window": false,
	"no_rope_layer_interval": 4, "attention_bias": false, "attention_dropout": 0, "mlp_bias":
	false, "tie_word_embeddings": true, "pad_token_id": 128004, "bos_token_id": 128000,
	"eos_token_id": 128001
});
/* clang-format on */
static const struct tess_model smollm3 = {
	.size = sizeof smollm3,
	.name = "smollm3",
	.summary = "SmolLM 3: some layers have no rope",
	.types = types,
	.presets = presets,
	.forward = forward_smollm3,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("smollm3", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &smollm3));

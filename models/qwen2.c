/* tess-model-qwen2.so: Qwen 2 and 2.5: q, k and v have biases; some layers may have a window. */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_qwen2(struct tess_nn *nn, const struct tess_decoder *c,
                                           int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	tess_decoder_project(nn, c, x, qkv);
	return tess_decoder_attend(nn, c, qkv, tess_decoder_select_window(nn, layer));
}

static struct tess_tensor *forward_qwen2(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = TESS_BIAS;
	return tess_decoder_record(nn, &c, ids, attend_as_qwen2, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "qwen2", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
	"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
	"hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
	"rope_theta": 10000, "tie_word_embeddings": false, "use_sliding_window": false,
	"sliding_window": 4096, "max_window_layers": 28, "attention_dropout": 0
});
/* clang-format on */
static const struct tess_model qwen2 = {
	.size = sizeof qwen2,
	.name = "qwen2",
	.summary = "Qwen 2 and 2.5: biases of q, k and v",
	.types = types,
	.presets = presets,
	.forward = forward_qwen2,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("qwen2", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &qwen2));

/* tess-model-qwen3.so: Qwen 3: each head of q and k is normed; some layers may have a window. */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_qwen3(struct tess_nn *nn, const struct tess_decoder *c,
                                           int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	tess_decoder_project(nn, c, x, qkv);
	tess_decoder_norm_heads(nn, c, "q_norm", "k_norm", qkv);
	return tess_decoder_attend(nn, c, qkv, tess_decoder_select_window(nn, layer));
}

static struct tess_tensor *forward_qwen3(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 128);

	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	return tess_decoder_record(nn, &c, ids, attend_as_qwen3, tess_decoder_mlp);
}

static const struct tess_rule tp[] = {
	TESS_DECODER_TP, TESS_DECODER_HEAD_NORMS(TESS_DECODER_LAYER, "q_norm", "k_norm"), { 0 }
};
static const struct tess_rule tp_sp[] = {
	TESS_DECODER_TP_SP, TESS_DECODER_HEAD_NORMS(TESS_DECODER_LAYER, "q_norm", "k_norm"), { 0 }
};
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "qwen3", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
	"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
	"head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 32768,
	"rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false,
	"attention_bias": false, "use_sliding_window": false, "sliding_window": 4096,
	"max_window_layers": 28, "attention_dropout": 0
});
/* clang-format on */
static const struct tess_model qwen3 = {
	.size = sizeof qwen3,
	.name = "qwen3",
	.summary = "Qwen 3: q and k are normed, head by head",
	.types = types,
	.presets = presets,
	.forward = forward_qwen3,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("qwen3", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &qwen3));

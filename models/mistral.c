/* tess-model-mistral.so: Mistral: each position sees the last sliding_window keys. */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_mistral(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	return tess_decoder_attend(nn, c, qkv, tess_decoder_read_window(nn, 4096));
}

static struct tess_tensor *forward_mistral(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	return tess_decoder_record(nn, &c, ids, attend_as_mistral, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "mistral", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
	"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
	"hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
	"rope_theta": 10000, "tie_word_embeddings": false, "sliding_window": 4096,
	"attention_dropout": 0, "bos_token_id": 1, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model mistral = {
	.size = sizeof mistral,
	.name = "mistral",
	.summary = "Mistral: Llama with a sliding window",
	.types = types,
	.presets = presets,
	.forward = forward_mistral,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("mistral", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &mistral));

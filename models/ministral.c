/* tess-model-ministral.so: Ministral: Mistral with a window in some layers. */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_ministral(struct tess_nn *nn, const struct tess_decoder *c,
                                               int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];
	int32_t slides = tess_decoder_slides(nn, layer, 1);

	tess_decoder_project(nn, c, x, qkv);
	return tess_decoder_attend(nn, c, qkv, slides ? tess_decoder_read_window(nn, 4096) : 0);
}

static struct tess_tensor *forward_ministral(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	return tess_decoder_record(nn, &c, ids, attend_as_ministral, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "ministral", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
	32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
	"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 10000,
	"tie_word_embeddings": false, "sliding_window": 4096, "attention_dropout": 0,
	"bos_token_id": 1, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model ministral = {
	.size = sizeof ministral,
	.name = "ministral",
	.summary = "Ministral: Mistral with a window in some layers",
	.types = types,
	.presets = presets,
	.forward = forward_ministral,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("ministral", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &ministral));

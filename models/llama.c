/* tess-model-llama.so: Llama 1 to 3. */
#include <tessera/decoder.h>

static struct tess_tensor *forward_llama(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c.mlp_bias = nn->integer(nn, "mlp_bias", 0) ? TESS_BIAS : 0;
	return tess_decoder_record(nn, &c, ids, tess_decoder_attention, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "llama", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
	"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
	"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000,
	"tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
	"attention_dropout": 0, "bos_token_id": 1, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model llama = {
	.size = sizeof llama,
	.name = "llama",
	.summary = "Llama 1 to 3",
	.types = types,
	.presets = presets,
	.forward = forward_llama,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("llama", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &llama));

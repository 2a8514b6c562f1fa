/* tess-model-ernie4_5.so: ERNIE 4.5: Llama with rope of pairs of neighbours. */
#include <tessera/decoder.h>

static struct tess_tensor *forward_ernie4_5(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 128);

	c.qkv_bias = nn->integer(nn, "use_bias", 0) ? TESS_BIAS : 0;
	c.out_bias = c.mlp_bias = c.qkv_bias;
	c.rotary.flags = TESS_INTERLEAVED;
	return tess_decoder_record(nn, &c, ids, tess_decoder_attention, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "ernie4_5", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers":
	18, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "hidden_act":
	"silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
	"tie_word_embeddings": true, "use_bias": false, "pad_token_id": 0, "bos_token_id": 1,
	"eos_token_id": 2
});
/* clang-format on */
static const struct tess_model ernie4_5 = {
	.size = sizeof ernie4_5,
	.name = "ernie4_5",
	.summary = "ERNIE 4.5: Llama with rope of neighbours",
	.types = types,
	.presets = presets,
	.forward = forward_ernie4_5,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("ernie4_5", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &ernie4_5));

/* tess-model-stablelm.so: StableLM: norms with a bias, rope in a part of each head. */
#include <tessera/decoder.h>

static struct tess_tensor *feed_as_stablelm(struct tess_nn *nn, const struct tess_decoder *c,
                                            int64_t layer, struct tess_tensor *x)
{
	x = tess_decoder_mlp(nn, c, layer, x);
	return nn->dropout(nn, x, nn->number(nn, "hidden_dropout", 0));
}

static struct tess_tensor *forward_stablelm(struct tess_nn *nn, struct tess_tensor *ids)
{
	static const char *const none[] = { "false", NULL };
	struct tess_decoder c = tess_decoder_read(nn, 0);

	if (nn->integer(nn, "qk_layernorm", 0)) /* norms with a weight for each head */
		nn->choice(nn, none, "qk_layernorm");
	c.norm = TESS_LAYER;
	c.eps = nn->number(nn, "layer_norm_eps", 1e-5);
	c.qkv_bias = nn->integer(nn, "use_qkv_bias", 0) ? TESS_BIAS : 0;
	c.parallel = nn->integer(nn, "use_parallel_residual", 0) != 0;
	if (c.parallel)
		c.norms[2] = NULL;
	tess_decoder_read_rotary(nn, &c, 0.25);
	return tess_decoder_record(nn, &c, ids, tess_decoder_attention, feed_as_stablelm);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_PARALLEL,
	                                  { TESS_DECODER_SOME "post_attention_layernorm",
	                                    "sequence_parallel" },
	                                  { 0 } };
static const struct tess_preset presets[] = { { "tp", tp }, { "tp+sp", tp_sp }, { 0 } };
static const char *const types[] = { "stablelm", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers":
	32, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
	"max_position_embeddings": 4096, "layer_norm_eps": 1e-5, "rope_theta": 10000,
	"partial_rotary_factor": 0.25, "tie_word_embeddings": false, "use_qkv_bias": false,
	"qk_layernorm": false, "use_parallel_residual": false, "hidden_dropout": 0,
	"attention_dropout": 0, "bos_token_id": 0, "eos_token_id": 0
});
/* clang-format on */
static const struct tess_model stablelm = {
	.size = sizeof stablelm,
	.name = "stablelm",
	.summary = "StableLM: norms with a bias",
	.types = types,
	.presets = presets,
	.forward = forward_stablelm,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("stablelm", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &stablelm));

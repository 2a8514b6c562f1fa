/*
 * tess-model-ministral3.so: Ministral 3: Mistral whose queries grow with their positions, beyond
 * the trained context length.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_ministral3(struct tess_nn *nn, const struct tess_decoder *c,
                                                int64_t layer, struct tess_tensor *x)
{
	static const char beta[] = "rope_parameters.llama_4_scaling_beta";
	static const char period[] = "rope_parameters.original_max_position_embeddings";
	struct tess_rotary of_queries = c->rotary;
	struct tess_tensor *qkv[3];

	(void)layer;
	of_queries.growth = nn->number(nn, beta, 0);
	of_queries.period = nn->number(nn, period, 16384);
	tess_decoder_project(nn, c, x, qkv);
	qkv[0] = nn->rope(nn, qkv[0], &of_queries);
	qkv[1] = nn->rope(nn, qkv[1], &c->rotary);
	return tess_decoder_attend_unrotated(nn, c, qkv, tess_decoder_read_window(nn, 0));
}

static struct tess_tensor *forward_ministral3(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 128);

	return tess_decoder_record(nn, &c, ids, attend_as_ministral3, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "ministral3", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336,
	"num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim":
	128, "hidden_act": "silu", "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
	"tie_word_embeddings": false, "attention_dropout": 0,
	"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000, "factor": 16,
	"original_max_position_embeddings": 16384, "beta_fast": 32, "beta_slow": 1,
	"mscale_all_dim": 1, "mscale": 1, "llama_4_scaling_beta": 0.1}, "pad_token_id": 11,
	"bos_token_id": 1, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model ministral3 = {
	.size = sizeof ministral3,
	.name = "ministral3",
	.summary = "Ministral 3: queries grow with their positions",
	.types = types,
	.presets = presets,
	.forward = forward_ministral3,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("ministral3", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &ministral3));

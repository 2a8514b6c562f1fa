/* tess-model-mixtral.so: Mixtral: Mistral with a mixture of experts in each layer. */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_mixtral(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	return tess_decoder_attend(nn, c, qkv, tess_decoder_read_window(nn, 0));
}

static struct tess_tensor *forward_mixtral(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.experts = nn->dim(nn, "experts", nn->integer(nn, "num_local_experts", 8), 1);
	c.expert_ffn = c.ffn;
	c.route.flags = TESS_NORMALIZE;
	c.route.top = nn->integer(nn, "num_experts_per_tok", 2);
	return tess_decoder_record(nn, &c, ids, attend_as_mixtral, tess_decoder_moe);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP_ATTENTION,
	                               TESS_DECODER_TP_EXPERTS(TESS_DECODER_LAYER),
	                               { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_ATTENTION,
	                                  TESS_DECODER_TP_SP_EXPERTS(TESS_DECODER_LAYER),
	                                  { 0 } };
static const struct tess_rule ep[] = { TESS_DECODER_TP_ATTENTION,
	                               TESS_DECODER_EP_EXPERTS(TESS_DECODER_LAYER),
	                               { 0 } };
static const struct tess_rule ep_sp[] = { TESS_DECODER_EP_SP_ATTENTION,
	                                  TESS_DECODER_EP_SP_EXPERTS(TESS_DECODER_LAYER),
	                                  { 0 } };
static const struct tess_preset presets[] = { { "tp", tp },       { "tp+sp", tp_sp }, { "ep", ep },
	                                      { "ep+sp", ep_sp }, { "hf", tp },       { 0 } };
#define MOE "model.layers.*.block_sparse_moe."
static const struct tess_stored stored[] = {
	{ "model.layers.*.mlp.gate.weight", (const char *const[]){ MOE "gate.weight", NULL } },
	{ "model.layers.*.mlp.experts.gate_up_proj",
	  (const char *const[]){ MOE "experts.#.w1.weight", MOE "experts.#.w3.weight", NULL } },
	{ "model.layers.*.mlp.experts.down_proj",
	  (const char *const[]){ MOE "experts.#.w2.weight", NULL } },
	{ 0 }
};
static const char *const types[] = { "mixtral", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
	"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
	"hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
	"rope_theta": 1e6, "tie_word_embeddings": false, "attention_dropout": 0,
	"num_experts_per_tok": 2, "num_local_experts": 8, "bos_token_id": 1,
	"eos_token_id": 2
});
/* clang-format on */
static const struct tess_model mixtral = {
	.size = sizeof mixtral,
	.name = "mixtral",
	.summary = "Mixtral: Mistral with experts",
	.types = types,
	.presets = presets,
	.forward = forward_mixtral,
	.stored = stored,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("mixtral", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &mixtral));

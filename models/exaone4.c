/*
 * tess-model-exaone4.so: EXAONE 4: norms after the blocks, and of the heads of q and k. If some
 * layers have a window, the others have no rope.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_exaone4(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	int64_t window = tess_decoder_read_window(nn, 4096);
	int32_t slides = window && tess_decoder_slides_by_period(nn, layer, 4);
	struct tess_tensor *qkv[3];

	tess_decoder_project(nn, c, x, qkv);
	tess_decoder_norm_heads(nn, c, "q_norm", "k_norm", qkv);
	if (slides || !window)
		tess_decoder_rotate(nn, c, qkv);
	return tess_decoder_attend_unrotated(nn, c, qkv, slides ? window : 0);
}

static struct tess_tensor *forward_exaone4(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.norms[0] = c.norms[2] = NULL;
	c.norms[1] = "post_attention_layernorm";
	c.norms[3] = "post_feedforward_layernorm";
	return tess_decoder_record(nn, &c, ids, attend_as_exaone4, tess_decoder_mlp);
}

#define LAYER TESS_DECODER_LAYER
static const struct tess_rule tp[] = { TESS_DECODER_TP,
	                               TESS_DECODER_HEAD_NORMS(LAYER, "q_norm", "k_norm"),
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_ENDS,
	                                  TESS_DECODER_TP_SP_HEADS,
	                                  TESS_DECODER_HEAD_NORMS(LAYER, "q_norm", "k_norm"),
	                                  { LAYER "post_attention_layernorm", "sequence_parallel" },
	                                  { LAYER "mlp", "module_allgather" },
	                                  TESS_DECODER_TP_SP_MLP(LAYER),
	                                  { LAYER "post_feedforward_layernorm",
	                                    "sequence_parallel" },
	                                  { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "exaone4", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384,
	"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
	"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta":
	10000, "tie_word_embeddings": false, "attention_dropout": 0, "sliding_window": 4096,
	"bos_token_id": 0, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model exaone4 = {
	.size = sizeof exaone4,
	.name = "exaone4",
	.summary = "EXAONE 4: norms after the blocks, and of q and k",
	.types = types,
	.presets = presets,
	.forward = forward_exaone4,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("exaone4", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &exaone4));

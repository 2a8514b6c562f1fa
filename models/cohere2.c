/*
 * tess-model-cohere2.so: Command R7B (Cohere 2): attention and MLP read one norm and are side by
 * side; layers with a window have rope, the others none.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_cohere2(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	int32_t slides = tess_decoder_slides_by_period(nn, layer, 4);
	int64_t window = slides ? tess_decoder_read_window(nn, 4096) : 0;
	struct tess_tensor *qkv[3];

	tess_decoder_project(nn, c, x, qkv);
	if (window)
		tess_decoder_rotate(nn, c, qkv);
	return tess_decoder_attend_unrotated(nn, c, qkv, window);
}

static struct tess_tensor *forward_cohere2(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c.norm = TESS_LAYER | TESS_NO_BIAS;
	c.eps = nn->number(nn, "layer_norm_eps", 1e-5);
	c.parallel = 1;
	c.norms[2] = NULL;
	c.rotary.flags = TESS_INTERLEAVED;
	c.logits_scale = nn->number(nn, "logit_scale", 0.0625);
	return tess_decoder_record(nn, &c, ids, attend_as_cohere2, tess_decoder_mlp);
}

static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_PARALLEL, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "cohere2", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
	"num_hidden_layers": 40, "num_attention_heads": 64,
	"hidden_act": "silu", "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
	"rope_theta": 10000, "logit_scale": 0.0625, "tie_word_embeddings": true, "attention_bias":
	false, "attention_dropout": 0, "sliding_window": 4096,
	"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 255001
});
/* clang-format on */
static const struct tess_model cohere2 = {
	.size = sizeof cohere2,
	.name = "cohere2",
	.summary = "Cohere 2: attention and MLP side by side",
	.types = types,
	.presets = presets,
	.forward = forward_cohere2,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("cohere2", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &cohere2));

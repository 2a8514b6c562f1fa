/*
 * tess-model-gemma.so: Gemma 2 and 3: norms before and after the blocks, which scale by 1 + w; a
 * scaled embedding; a window in some layers. Gemma 2 has soft caps of scores and logits. Gemma 3
 * norms the heads of q and k, and layers with a window have a rope of their own.
 */
#include <tessera/decoder.h>
#include <tessera/reduce.h>

/* Returns sqrt(hidden size), rounded to the dtype of the checkpoint. */
static double read_embedding_scale(struct tess_nn *nn)
{
	const char *dtype = nn->string(nn, "dtype", nn->string(nn, "torch_dtype", "float32"));
	float scale = (float)sqrt((double)nn->integer(nn, "hidden_size", 0));

	if (!strcmp(dtype, "bfloat16"))
		return tess_bf16_load(tess_bf16_round(scale));
	return !strcmp(dtype, "float16") ? tess_f16_load(tess_f16_round(scale)) : scale;
}

/* Records cap * tanh(x / cap); cap 0: x. */
static struct tess_tensor *cap_logits(struct tess_nn *nn, struct tess_tensor *x, double cap)
{
	if (cap == 0)
		return x;
	return nn->scale(nn, nn->glu(nn, nn->scale(nn, x, 1 / cap), NULL, TESS_TANH), cap);
}

static struct tess_tensor *attend_as_gemma2(struct tess_nn *nn, const struct tess_decoder *c,
                                            int64_t layer, struct tess_tensor *x)
{
	int32_t slides = tess_decoder_slides(nn, layer, layer % 2 == 0);
	struct tess_tensor *qkv[3];

	tess_decoder_project(nn, c, x, qkv);
	return tess_decoder_attend(nn, c, qkv, slides ? tess_decoder_read_window(nn, 4096) : 0);
}

static struct tess_tensor *attend_as_gemma3(struct tess_nn *nn, const struct tess_decoder *c,
                                            int64_t layer, struct tess_tensor *x)
{
	int32_t slides = tess_decoder_slides_by_period(nn, layer, 6);
	struct tess_decoder of_layer = *c;
	struct tess_tensor *qkv[3];

	of_layer.rotary.kind = slides ? "sliding_attention" : "full_attention";
	of_layer.rotary.theta = slides ? nn->number(nn, "rope_local_base_freq", 10000) : 0;
	tess_decoder_project(nn, c, x, qkv);
	tess_decoder_norm_heads(nn, c, "q_norm", "k_norm", qkv);
	return tess_decoder_attend(nn, &of_layer, qkv,
	                           slides ? tess_decoder_read_window(nn, 4096) : 0);
}

/* Reads what both have, and records the model. */
static struct tess_tensor *record_gemma(struct tess_nn *nn, struct tess_decoder *c,
                                        struct tess_tensor *ids, tess_block *attend)
{
	static const char *const causal[] = { "false", NULL };
	struct tess_tensor *y;

	if (nn->integer(nn, "use_bidirectional_attention", 0))
		nn->choice(nn, causal, "use_bidirectional_attention");
	c->qkv_bias = c->out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c->tied = (int32_t)nn->integer(nn, "tie_word_embeddings", 1);
	c->act = nn->activation(nn, "hidden_activation", "gelu_pytorch_tanh");
	c->scale = 1 / sqrt(nn->number(nn, "query_pre_attn_scalar", 256));
	c->norm = TESS_RMS | TESS_OFFSET;
	c->norms[1] = "post_attention_layernorm";
	c->norms[2] = "pre_feedforward_layernorm";
	c->norms[3] = "post_feedforward_layernorm";
	c->embedding_scale = read_embedding_scale(nn);
	y = tess_decoder_record(nn, c, ids, attend, tess_decoder_mlp);
	return cap_logits(nn, y, nn->number(nn, "final_logit_softcapping", 0));
}

static struct tess_tensor *forward_gemma2(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 256);

	c.softcap = nn->number(nn, "attn_logit_softcapping", 0);
	return record_gemma(nn, &c, ids, attend_as_gemma2);
}

static struct tess_tensor *forward_gemma3(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 256);

	return record_gemma(nn, &c, ids, attend_as_gemma3);
}

#define LAYER TESS_DECODER_LAYER
#define TP_SP \
	TESS_DECODER_TP_SP, { LAYER "pre_feedforward_layernorm", "sequence_parallel" }, \
	{ \
		LAYER "post_feedforward_layernorm", "sequence_parallel" \
	}
static const struct tess_rule tp[] = { TESS_DECODER_TP, { 0 } };
static const struct tess_rule tp_sp[] = { TP_SP, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const struct tess_rule tp_3[] = { TESS_DECODER_TP,
	                                 TESS_DECODER_HEAD_NORMS(LAYER, "q_norm", "k_norm"),
	                                 { 0 } };
static const struct tess_rule tp_sp_3[] = { TP_SP,
	                                    TESS_DECODER_HEAD_NORMS(LAYER, "q_norm", "k_norm"),
	                                    { 0 } };
static const struct tess_preset presets_3[] = {
	{ "tp", tp_3 }, { "tp+sp", tp_sp_3 }, { "hf", tp_3 }, { 0 }
};
static const char *const types[] = { "gemma2", NULL }, *const types_3[] = { "gemma3_text", NULL };
/* those of their classes in transformers 5.24 */
/* clang-format off */
static const char defaults_2[] = TESS_JSON({
	"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
	"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
	"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
	"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000,
	"tie_word_embeddings": true, "attention_bias": false, "attention_dropout": 0,
	"query_pre_attn_scalar": 256, "sliding_window": 4096,
	"final_logit_softcapping": 30, "attn_logit_softcapping": 50, "pad_token_id": 0,
	"eos_token_id": 1, "bos_token_id": 2
});
static const char defaults_3[] = TESS_JSON({
	"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
	"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
	"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
	"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
	"rope_local_base_freq": 10000, "tie_word_embeddings": true, "attention_bias": false,
	"attention_dropout": 0, "query_pre_attn_scalar": 256, "sliding_window": 4096,
	"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2
});
/* clang-format on */
static const struct tess_model gemma2 = {
	.size = sizeof gemma2,
	.name = "gemma2",
	.summary = "Gemma 2: norms around the blocks, soft caps",
	.types = types,
	.presets = presets,
	.forward = forward_gemma2,
	.defaults = defaults_2,
};
static const struct tess_model gemma3 = {
	.size = sizeof gemma3,
	.name = "gemma3_text",
	.summary = "Gemma 3: two ropes, norms of q and k",
	.types = types_3,
	.presets = presets_3,
	.forward = forward_gemma3,
	.defaults = defaults_3,
};

TESS_DEFINE_PLUGIN("gemma", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &gemma2, &gemma3));

/*
 * tess-model-gpt_oss.so: GPT-OSS: attention with sinks, windows in every other layer, and mixtures
 * of experts with biases and a limited activation.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_gpt_oss(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	const struct tess_linear out[] = { { "o_proj", c->hidden, c->out_bias, 0 }, { 0 } };
	struct tess_attention how = {
		.size = sizeof how, .scale = c->scale, .dropout = c->dropout, .sinks = "sinks"
	};
	struct tess_tensor *qkv[3], *y;

	tess_decoder_project(nn, c, x, qkv);
	tess_decoder_rotate(nn, c, qkv);
	if (tess_decoder_slides(nn, layer, layer % 2 == 0))
		how.window = tess_decoder_read_window(nn, 128);
	y = nn->attention(nn, qkv[0], qkv[1], qkv[2], &how);
	nn->linear(nn, y, out, &y);
	return nn->leave(nn, y);
}

static struct tess_tensor *feed_as_gpt_oss(struct tess_nn *nn, const struct tess_decoder *c,
                                           int64_t layer, struct tess_tensor *x)
{
	const struct tess_linear router[] = { { "router", c->experts, TESS_BIAS, 0 }, { 0 } };
	const struct tess_experts how = { .size = sizeof how,
		                          .flags = TESS_IN_OUT | TESS_BIAS,
		                          .act = TESS_SILU,
		                          .ffn = c->expert_ffn,
		                          .limit = nn->number(nn, "swiglu_limit", 7),
		                          .alpha = nn->number(nn, "swiglu_alpha", 1.702) };
	struct tess_tensor *logits, *y;

	(void)layer;
	x = nn->enter(nn, x, "mlp");
	nn->linear(nn, x, router, &logits);
	y = nn->experts(nn, "experts", x, nn->route(nn, logits, &c->route), &how);
	return nn->leave(nn, y);
}

/* Returns the largest power of two, at most that of a block of MXFP4, that divides n. */
static int64_t choose_ffn_unit(int64_t n)
{
	int64_t each = 32;

	while (n % each)
		each /= 2;
	return each;
}

/*
 * Makes the dimension of hidden states. Experts in MXFP4 may read it, so its units, of one size,
 * are complete blocks: 8 to 16 of them if their number has such a divisor, else fewer.
 */
static struct tess_dim *make_hidden_dim(struct tess_nn *nn)
{
	int64_t n = nn->integer(nn, "hidden_size", TESS_REQUIRED), units = 8;

	if (n < 1 || n % 32)
		return nn->dim(nn, "hidden", n, TESS_HIDDEN);
	while (units < 16 && n / 32 % units)
		units++;
	while (n / 32 % units)
		units--;
	return nn->dim(nn, "hidden", units, n / units);
}

static struct tess_tensor *forward_gpt_oss(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 64);
	int64_t ffn = nn->integer(nn, "intermediate_size", TESS_REQUIRED),
		each = choose_ffn_unit(ffn);

	c.hidden = make_hidden_dim(nn);
	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 1) ? TESS_BIAS : 0;
	c.experts = nn->dim(nn, "experts", nn->integer(nn, "num_local_experts", 128), 1);
	c.expert_ffn = nn->dim(nn, "expert ffn", ffn / each, each);
	c.route.flags = TESS_NORMALIZE; /* of all or of the chosen logits: the same weights */
	c.route.top = nn->integer(nn, "num_experts_per_tok", 4);
	return tess_decoder_record(nn, &c, ids, attend_as_gpt_oss, feed_as_gpt_oss);
}

#define LAYER TESS_DECODER_LAYER
#define EXPERTS LAYER "mlp.experts"
#define INSIDE(style) \
	{ EXPERTS ".gate_up_proj", "moe_tp_gate_up_colwise" }, \
		{ EXPERTS ".gate_up_proj_bias", "moe_tp_gate_up_colwise" }, \
		{ EXPERTS ".down_proj", "moe_tp_down_rowwise" }, \
	{ \
		EXPERTS, style \
	}
static const struct tess_rule tp[] = { TESS_DECODER_TP_ATTENTION, INSIDE("moe_tp_experts"), { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_ATTENTION,
	                                  INSIDE("moe_experts_reduce_scatter"),
	                                  { 0 } };
static const struct tess_rule ep[] = { TESS_DECODER_TP_ATTENTION,
	                               { "ep:" EXPERTS ".gate_up_proj", "grouped_gemm" },
	                               { "ep:" EXPERTS ".gate_up_proj_bias", "grouped_gemm" },
	                               { "ep:" EXPERTS ".down_proj", "grouped_gemm" },
	                               { "ep:" EXPERTS, "ep_dispatch_experts" },
	                               { 0 } };
static const struct tess_rule hf[] = { { "model.embed_tokens", "embedding_rowwise" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "ep", ep }, { "hf", hf }, { 0 }
};
static const char *const types[] = { "gpt_oss", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
	"num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
	"head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072,
	"rms_norm_eps": 1e-5, "rope_theta": 150000, "rope_parameters": {
		"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1,
		"truncate": false, "original_max_position_embeddings": 4096
	},
	"tie_word_embeddings": false, "attention_bias": true, "attention_dropout": 0,
	"sliding_window": 128, "num_local_experts": 128, "num_experts_per_tok": 4
});
/* clang-format on */
static const struct tess_model gpt_oss = {
	.size = sizeof gpt_oss,
	.name = "gpt_oss",
	.summary = "GPT-OSS: attention sinks, experts with biases",
	.types = types,
	.presets = presets,
	.forward = forward_gpt_oss,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("gpt_oss", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &gpt_oss));

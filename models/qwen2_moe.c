/*
 * tess-model-qwen2_moe.so: Qwen 2 with mixtures of experts in some or all layers, beside a shared
 * expert with a gate.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_qwen2_moe(struct tess_nn *nn, const struct tess_decoder *c,
                                               int64_t layer, struct tess_tensor *x)
{
	int64_t last = nn->integer(nn, "max_window_layers", 28), window = 0;
	struct tess_tensor *qkv[3];

	if (nn->integer(nn, "use_sliding_window", 0))
		window = tess_decoder_read_window(nn, 4096);
	if (!tess_decoder_slides(nn, layer, (layer + 1) % 2 && layer < last))
		window = 0;
	tess_decoder_project(nn, c, x, qkv);
	return tess_decoder_attend(nn, c, qkv, window);
}

static struct tess_tensor *feed_as_qwen2_moe(struct tess_nn *nn, const struct tess_decoder *c,
                                             int64_t layer, struct tess_tensor *x)
{
	struct tess_dim *one = nn->dim(nn, "gate of the shared expert", 1, 1);
	const struct tess_linear gate[] = { { "shared_expert_gate", one, 0, 0 }, { 0 } };
	struct tess_tensor *y, *factor;

	if (!tess_decoder_is_sparse(nn, layer))
		return tess_decoder_mlp(nn, c, layer, x);
	x = nn->enter(nn, x, "mlp");
	nn->linear(nn, x, gate, &factor);
	y = tess_decoder_gated(nn, c, "shared_expert", c->shared_ffn, x);
	y = nn->multiply(nn, y, nn->sigmoid(nn, factor));
	return nn->leave(nn, nn->add(nn, tess_decoder_experts(nn, c, x), y));
}

static struct tess_tensor *forward_qwen2_moe(struct tess_nn *nn, struct tess_tensor *ids)
{
	int64_t shared = nn->integer(nn, "shared_expert_intermediate_size", 5632);
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = nn->integer(nn, "qkv_bias", 1) ? TESS_BIAS : 0;
	c.experts = nn->dim(nn, "experts", nn->integer(nn, "num_experts", 60), 1);
	c.expert_ffn = nn->dim(nn, "expert ffn", nn->integer(nn, "moe_intermediate_size", 1408), 0);
	c.shared_ffn = nn->dim(nn, "shared ffn", shared, 0);
	c.route.flags = nn->integer(nn, "norm_topk_prob", 0) ? TESS_NORMALIZE : 0;
	c.route.top = nn->integer(nn, "num_experts_per_tok", 4);
	return tess_decoder_record(nn, &c, ids, attend_as_qwen2_moe, feed_as_qwen2_moe);
}

#define SOME TESS_DECODER_SOME
#define SHARED(down) \
	{ SOME "mlp.shared_expert.gate_proj", "colwise" }, \
		{ SOME "mlp.shared_expert.up_proj", "colwise" }, \
	{ \
		SOME "mlp.shared_expert.down_proj", down \
	}
static const struct tess_rule tp[] = { TESS_DECODER_TP_ATTENTION,
	                               TESS_DECODER_TP_MLP(SOME),
	                               TESS_DECODER_TP_EXPERTS(SOME),
	                               SHARED("rowwise"),
	                               { 0 } };
static const struct tess_rule tp_sp[] = { TESS_DECODER_TP_SP_ATTENTION,
	                                  TESS_DECODER_TP_SP_MLP(SOME),
	                                  TESS_DECODER_TP_SP_EXPERTS(SOME),
	                                  SHARED("rowwise_reduce_scatter"),
	                                  { 0 } };
static const struct tess_rule ep[] = { TESS_DECODER_TP_ATTENTION,
	                               TESS_DECODER_TP_MLP(SOME),
	                               TESS_DECODER_EP_EXPERTS(SOME),
	                               SHARED("rowwise"),
	                               { 0 } };
/* the shared expert is not cut */
static const struct tess_rule hf[] = {
	TESS_DECODER_TP_ATTENTION, TESS_DECODER_TP_MLP(SOME), TESS_DECODER_TP_EXPERTS(SOME), { 0 }
};
static const struct tess_stored stored[] = { TESS_DECODER_STORED_EXPERTS, { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "ep", ep }, { "hf", hf }, { 0 }
};
static const char *const types[] = { "qwen2_moe", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers":
	24, "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu",
	"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000,
	"tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": 4096,
	"max_window_layers": 28, "attention_dropout": 0, "decoder_sparse_step": 1,
	"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
	"num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false, "qkv_bias": true
});
/* clang-format on */
static const struct tess_model qwen2_moe = {
	.size = sizeof qwen2_moe,
	.name = "qwen2_moe",
	.summary = "Qwen 2 with experts and a shared expert",
	.types = types,
	.presets = presets,
	.forward = forward_qwen2_moe,
	.stored = stored,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("qwen2_moe", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &qwen2_moe));

/*
 * tess-model-olmoe.so: OLMoE: mixtures of experts in each layer, and one norm over all heads of q,
 * and of k. These need all heads, so attention is replicated.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_olmoe(struct tess_nn *nn, const struct tess_decoder *c,
                                           int64_t layer, struct tess_tensor *x)
{
	double limit = nn->number(nn, "clip_qkv", INFINITY);
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	qkv[0] = nn->norm(nn, "q_norm", qkv[0], TESS_RMS, c->eps);
	qkv[1] = nn->norm(nn, "k_norm", qkv[1], TESS_RMS, c->eps);
	for (int i = 0; i < 3 && limit < INFINITY; i++)
		qkv[i] = nn->clamp(nn, qkv[i], -limit, limit);
	return tess_decoder_attend(nn, c, qkv, 0);
}

static struct tess_tensor *forward_olmoe(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c.experts = nn->dim(nn, "experts", nn->integer(nn, "num_experts", 64), 1);
	c.expert_ffn = c.ffn;
	c.route.flags = nn->integer(nn, "norm_topk_prob", 0) ? TESS_NORMALIZE : 0;
	c.route.top = nn->integer(nn, "num_experts_per_tok", 8);
	return tess_decoder_record(nn, &c, ids, attend_as_olmoe, tess_decoder_moe);
}

#define LAYER TESS_DECODER_LAYER
#define PROJECTIONS \
	{ LAYER "self_attn.q_proj", "colwise_gather_output" }, \
		{ LAYER "self_attn.k_proj", "colwise_gather_output" }, \
	{ \
		LAYER "self_attn.v_proj", "colwise_gather_output" \
	}
#define ENDS \
	{ "model.embed_tokens", "embedding_rowwise" }, PROJECTIONS, \
		{ LAYER "self_attn.o_proj", "rowwise_split_input" }, \
	{ \
		"lm_head", "colwise_gather_output" \
	}
static const struct tess_rule tp[] = { ENDS, TESS_DECODER_TP_EXPERTS(LAYER), { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
#define SP \
	{ "model.embed_tokens", "vocab_reduce_scatter" }, \
		{ LAYER "input_layernorm", "sequence_parallel" }, \
		{ LAYER "self_attn", "module_allgather" }, PROJECTIONS, \
		{ LAYER "self_attn.o_proj", "rowwise_reduce_scatter" }, \
		{ LAYER "post_attention_layernorm", "sequence_parallel" }, \
		{ "model.norm", "sequence_parallel" }, \
	{ \
		"lm_head", "colwise_gather_output" \
	}
static const struct tess_rule tp_sp[] = {
	SP, { LAYER "mlp", "module_allgather" }, TESS_DECODER_TP_SP_EXPERTS(LAYER), { 0 }
};
static const struct tess_rule ep[] = { ENDS, TESS_DECODER_EP_EXPERTS(LAYER), { 0 } };
static const struct tess_rule ep_sp[] = { SP, TESS_DECODER_EP_SP_EXPERTS(LAYER), { 0 } };
static const struct tess_stored stored[] = { TESS_DECODER_STORED_EXPERTS, { 0 } };
static const struct tess_preset presets[] = { { "tp", tp },       { "tp+sp", tp_sp }, { "ep", ep },
	                                      { "ep+sp", ep_sp }, { "hf", tp },       { 0 } };
static const char *const types[] = { "olmoe", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers":
	16, "num_attention_heads": 16, "hidden_act": "silu",
	"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000,
	"tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	"num_experts_per_tok": 8, "num_experts": 64, "norm_topk_prob": false,
	"pad_token_id": 1, "eos_token_id": 50279
});
/* clang-format on */
static const struct tess_model olmoe = {
	.size = sizeof olmoe,
	.name = "olmoe",
	.summary = "OLMoE: experts, and norms of q and k",
	.types = types,
	.presets = presets,
	.forward = forward_olmoe,
	.stored = stored,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("olmoe", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &olmoe));

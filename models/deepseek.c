/*
 * tess-model-deepseek.so: DeepSeek V2 and V3: attention over a latent, which is cached with one
 * rotated key for all heads; after the first layers, mixtures of experts and shared experts.
 */
#include <tessera/decoder.h>

struct deepseek {
	struct tess_decoder c; /* first: blocks receive a pointer to it */
	int64_t nope, rotated, value,
		rank; /* elements of a head: nope to value; of the latent: rank */
	struct tess_dim *q_latent, *latent, *key, *latent_key, *latent_query, *rows, *values;
};

/* Returns yarn's factor for q and k, for sequences longer than in training. */
static double read_mscale(struct tess_nn *nn)
{
	double factor = nn->number(nn, "rope_parameters.factor", 1);
	double all = nn->number(nn, "rope_parameters.mscale_all_dim", 0);

	factor = nn->number(nn, "rope_scaling.factor", factor);
	all = nn->number(nn, "rope_scaling.mscale_all_dim", all);
	return factor <= 1 ? 1 : 0.1 * all * log(factor) + 1;
}

static void read_attention(struct tess_nn *nn, struct deepseek *m)
{
	struct tess_decoder *c = &m->c;
	int64_t heads = nn->integer(nn, "num_attention_heads", 128);
	int64_t rank = nn->integer(nn, "q_lora_rank", 0);
	double mscale = read_mscale(nn);

	m->nope = nn->integer(nn, "qk_nope_head_dim", 128);
	m->rotated = nn->integer(nn, "qk_rope_head_dim", 64);
	m->value = nn->integer(nn, "v_head_dim", 128);
	m->rank = nn->integer(nn, "kv_lora_rank", 512);
	c->scale = mscale * mscale / sqrt((double)(m->nope + m->rotated));
	c->qkv_bias = c->out_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c->heads = nn->dim(nn, "heads", heads, m->nope + m->rotated);
	m->q_latent = rank ? nn->dim(nn, "query latent", rank, TESS_HIDDEN) : NULL;
	m->latent = nn->dim(nn, "latent", m->rank, TESS_HIDDEN);
	m->key = nn->heads(nn, "rotated key", c->heads, 1, m->rotated);
	m->latent_key = nn->heads(nn, "latent key", c->heads, 1, m->rank + m->rotated);
	m->latent_query = nn->heads(nn, "latent queries", c->heads, heads, m->rank + m->rotated);
	m->rows = nn->heads(nn, "rows of heads", c->heads, heads, m->nope + m->value);
	m->values = nn->heads(nn, "values", c->heads, heads, m->value);
}

/* Projects x to q, and to the latent with the rotated key. */
static void project_latents(struct tess_nn *nn, const struct deepseek *m, struct tess_tensor *x,
                            struct tess_tensor *q_kv[2])
{
	struct tess_dim *const parts[] = { m->latent, m->key, NULL };
	const struct tess_linear q = { "q_proj", m->c.heads, 0, 0 },
				 q_a = { "q_a_proj", m->q_latent, m->c.qkv_bias, 0 },
				 kv_a = { "kv_a_proj_with_mqa", nn->fused(nn, parts), m->c.qkv_bias,
		                          0 };
	const struct tess_linear w[] = { m->q_latent ? q_a : q, kv_a, { 0 } };
	const struct tess_linear q_b[] = { { "q_b_proj", m->c.heads, 0, 0 }, { 0 } };

	nn->linear(nn, x, w, q_kv);
	if (m->q_latent)
		nn->linear(nn, nn->norm(nn, "q_a_layernorm", q_kv[0], TESS_RMS, 1e-6), q_b, q_kv);
}

/*
 * Computes attention in the space of the latent: kv_b_proj maps queries into it and each head's
 * values out of it, so that no head has a cache. The norms of latents have an eps of their own.
 */
static struct tess_tensor *attend_as_deepseek(struct tess_nn *nn, const struct tess_decoder *c,
                                              int64_t layer, struct tess_tensor *x)
{
	const struct deepseek *m = (const struct deepseek *)c;
	const struct tess_head_linear up = { sizeof up, TESS_IN_OUT,     "kv_b_proj", m->rows,
		                             m->latent, m->latent_query, 0,           m->nope };
	const struct tess_head_linear down = { sizeof down, 0,         "kv_b_proj", m->rows,
		                               m->latent,   m->values, m->nope,     m->value };
	const struct tess_linear out[] = { { "o_proj", c->hidden, c->out_bias, 0 }, { 0 } };
	const struct tess_rotary end = {
		.size = sizeof end, .flags = c->rotary.flags, .first = m->nope, .width = m->rotated
	};
	const struct tess_attention how = {
		.size = sizeof how, .scale = c->scale, .value = m->rank, .dropout = c->dropout
	};
	struct tess_tensor *q_kv[2] = { 0 }, *kv[2] = { 0 }, *q, *y;

	(void)layer;
	project_latents(nn, m, nn->enter(nn, x, "self_attn"), q_kv);
	nn->split(nn, q_kv[1], kv);
	kv[0] = nn->norm(nn, "kv_a_layernorm", kv[0], TESS_RMS, 1e-6);
	kv[1] = nn->rope(nn, kv[1], &c->rotary);
	q = nn->head_linear(nn, nn->rope(nn, q_kv[0], &end), &up);
	y = nn->attention(nn, q, nn->join(nn, kv, 2, m->latent_key), NULL, &how);
	nn->linear(nn, nn->head_linear(nn, y, &down), out, &y);
	return nn->leave(nn, y);
}

static struct tess_tensor *forward_v3(struct tess_nn *nn, struct tess_tensor *ids)
{
	int32_t flags = TESS_SIGMOID | (nn->integer(nn, "norm_topk_prob", 0) ? TESS_NORMALIZE : 0);
	struct deepseek m = { .c = tess_decoder_read(nn, 0) };

	m.c.rotary.flags = nn->integer(nn, "rope_interleave", 0) ? TESS_INTERLEAVED : 0;
	read_attention(nn, &m);
	tess_decoder_read_shared_moe(nn, &m.c, flags);
	m.c.route.correction = "gate.e_score_correction_bias";
	return tess_decoder_record(nn, &m.c, ids, attend_as_deepseek, tess_decoder_shared_moe);
}

/* Its router takes a softmax, whose weights are never divided by their sum. */
static struct tess_tensor *forward_v2(struct tess_nn *nn, struct tess_tensor *ids)
{
	static const char *const methods[] = { "greedy", "group_limited_greedy", NULL };
	struct deepseek m = { .c = tess_decoder_read(nn, 0) };

	m.c.rotary.flags = TESS_INTERLEAVED;
	read_attention(nn, &m);
	tess_decoder_read_shared_moe(nn, &m.c, TESS_GROUP_MAX);
	if (nn->choice(nn, methods, "topk_method") == 0)
		m.c.route.groups = 1;
	return tess_decoder_record(nn, &m.c, ids, attend_as_deepseek, tess_decoder_shared_moe);
}

#define LAYER TESS_DECODER_LAYER
#define SOME TESS_DECODER_SOME
#define ENDS \
	{ "model.embed_tokens", "embedding_rowwise" }, \
	{ \
		"lm_head", "colwise_gather_output" \
	}
/* q_proj without a latent for queries, else q_b_proj */
#define HEADS \
	{ SOME "self_attn.q_proj", "colwise" }, { SOME "self_attn.q_b_proj", "colwise" }, \
	{ \
		LAYER "self_attn.kv_b_proj", "colwise" \
	}
static const struct tess_rule tp[] = { ENDS,
	                               HEADS,
	                               { LAYER "self_attn.o_proj", "rowwise" },
	                               TESS_DECODER_TP_MLP(SOME),
	                               TESS_DECODER_TP_EXPERTS(SOME),
	                               TESS_DECODER_SHARED("rowwise"),
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { { "model.embed_tokens", "vocab_reduce_scatter" },
	                                  { LAYER "input_layernorm", "sequence_parallel" },
	                                  { LAYER "self_attn", "module_allgather" },
	                                  HEADS,
	                                  { LAYER "self_attn.o_proj", "rowwise_reduce_scatter" },
	                                  { LAYER "post_attention_layernorm", "sequence_parallel" },
	                                  { LAYER "mlp", "module_allgather" },
	                                  TESS_DECODER_TP_SP_MLP(SOME),
	                                  TESS_DECODER_TP_SP_EXPERTS(SOME),
	                                  TESS_DECODER_SHARED("rowwise_reduce_scatter"),
	                                  { "model.norm", "sequence_parallel" },
	                                  { "lm_head", "colwise_gather_output" },
	                                  { 0 } };
static const struct tess_rule ep[] = { ENDS,
	                               HEADS,
	                               { LAYER "self_attn.o_proj", "rowwise" },
	                               TESS_DECODER_TP_MLP(SOME),
	                               TESS_DECODER_EP_EXPERTS(SOME),
	                               TESS_DECODER_SHARED("rowwise"),
	                               { 0 } };
/* attention is not cut */
static const struct tess_rule hf[] = { ENDS,
	                               TESS_DECODER_TP_MLP(SOME),
	                               TESS_DECODER_TP_EXPERTS(SOME),
	                               TESS_DECODER_SHARED("rowwise"),
	                               { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "ep", ep }, { "hf", hf }, { 0 }
};
static const struct tess_stored stored[] = { TESS_DECODER_STORED_EXPERTS, { 0 } };
static const struct tess_preset presets_v2[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "ep", ep }, { "hf", tp }, { 0 }
};
static const char *const types_v2[] = { "deepseek_v2", NULL };
static const char *const types[] = { "deepseek_v3", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults_v3[] = TESS_JSON({
	"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
	"moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
	"num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
	"routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
	"qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8,
	"topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
	"norm_topk_prob": true, "hidden_act": "silu", "max_position_embeddings": 4096,
	"rms_norm_eps": 1e-6, "rope_theta": 10000, "rope_interleave": true,
	"tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	"bos_token_id": 0, "eos_token_id": 1
});
static const char defaults_v2[] = TESS_JSON({
	"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008,
	"moe_intermediate_size": 1407, "num_hidden_layers": 32, "num_attention_heads": 32,
	"n_shared_experts": 2, "n_routed_experts": 64,
	"routed_scaling_factor": 1, "kv_lora_rank": 512, "q_lora_rank": 1536,
	"qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
	"topk_method": "greedy", "first_k_dense_replace": 0, "hidden_act": "silu",
	"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000,
	"tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0,
	"bos_token_id": 1, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model deepseek_v2 = {
	.size = sizeof deepseek_v2,
	.name = "deepseek_v2",
	.summary = "DeepSeek V2: attention over a cached latent, and experts",
	.types = types_v2,
	.presets = presets_v2,
	.forward = forward_v2,
	.stored = stored,
	.defaults = defaults_v2,
};
static const struct tess_model deepseek_v3 = {
	.size = sizeof deepseek_v3,
	.name = "deepseek_v3",
	.summary = "DeepSeek V3: attention over a cached latent, and experts",
	.types = types,
	.presets = presets,
	.forward = forward_v3,
	.stored = stored,
	.defaults = defaults_v3,
};

TESS_DEFINE_PLUGIN("deepseek", "1.0", "Apache-2.0",
                   .models = TESS_LIST(tess_model, &deepseek_v2, &deepseek_v3));

/*
 * tessera/decoder.h - shared parts of decoders of Llama's form, recorded through tessera/model.h.
 *
 * The file of a family has only the differences: biases, windows, its attention. All functions are
 * inline and use only struct tess_nn, so a plugin keeps the version that it was compiled with.
 *
 * Example:
 *     static struct tess_tensor *record_attention(struct tess_nn *nn, const struct tess_decoder *c,
 *                                                 int64_t layer, struct tess_tensor *x)
 *     {
 *             struct tess_tensor *qkv[3];
 *
 *             (void)layer;
 *             tess_decoder_project(nn, c, x, qkv);
 *             return tess_decoder_attend(nn, c, qkv, 0);
 *     }
 */
#ifndef TESSERA_DECODER_H
#define TESSERA_DECODER_H

#include <math.h>
#include <stdio.h>
#include <tessera/model.h>

TESS_BEGIN

/* Numbers and dimensions of a decoder. Final for a plugin: it is compiled in. */
struct tess_decoder {
	/* Number of layers. */
	int64_t layers;
	/* Elements of a head. */
	int64_t head;
	/* Epsilon of norms. */
	double eps;
	/* Factor of scores; default 1 / sqrt(head). */
	double scale;
	/* Soft cap of scores; 0: none. */
	double softcap;
	/* Rate of dropout of the weights of attention, in training. */
	double dropout;
	/* Activation of the MLP: TESS_SILU, ... */
	int32_t act;
	/* TESS_BIAS: q_proj, k_proj and v_proj have biases; 0: none. */
	int32_t qkv_bias;
	/* TESS_BIAS: o_proj has a bias; 0: none. */
	int32_t out_bias;
	/* TESS_BIAS: linear ops of the MLP have biases; 0: none. */
	int32_t mlp_bias;
	/* TESS_BIAS: lm_head has a bias; 0: none. */
	int32_t head_bias;
	/* 1: tied embeddings, lm_head reads the table of the embeddings. */
	int32_t tied;
	/* Kind of the norms: TESS_RMS, the default, or TESS_LAYER; TESS_OFFSET. */
	int32_t norm;
	/* 1: attention and MLP read the same x, and both are added to it. */
	int32_t parallel;
	/* Names of the norms of a layer: before and after attention, before and after the MLP.
	 * NULL: none. Without the third, a parallel MLP reads what attention reads. */
	const char *norms[4];
	/* Names: of the module around all layers, the embeddings, the norm after the layers, and
	 * the product after attention. */
	const char *model, *table, *last_norm, *out;
	/* Rate of dropout of embeddings, in training. */
	double embedding_dropout;
	/* Factors of embeddings, of what a block adds, and of logits; 1: none. */
	double embedding_scale, block_scale, logits_scale;
	/* Number of first layers whose MLP is dense, in tess_decoder_shared_moe. */
	int64_t dense;
	/* Intermediate dimension of the shared experts; default NULL: there are none. */
	struct tess_dim *shared_ffn;
	/* Vocabulary. */
	struct tess_dim *vocab;
	/* Hidden dimension. */
	struct tess_dim *hidden;
	/* Query heads. */
	struct tess_dim *heads;
	/* Key-value heads. */
	struct tess_dim *kv_heads;
	/* Intermediate dimension of the MLP. */
	struct tess_dim *ffn;
	/* Rope; default: complete heads. */
	struct tess_rotary rotary;
	/* Choice of experts; read only in a mixture of experts. */
	struct tess_route route;
	/* Number of experts, as a dimension; default NULL. */
	struct tess_dim *experts;
	/* Intermediate dimension of an expert; default NULL. */
	struct tess_dim *expert_ffn;
};

/* Records self_attn or mlp of a layer: normalized x [tokens, hidden] -> [tokens, hidden]. */
typedef struct tess_tensor *tess_block(struct tess_nn *nn, const struct tess_decoder *c,
                                       int64_t layer, struct tess_tensor *x);

/*
 * Reads config.json. head: the elements of a head if there is no head_dim; 0: hidden / heads.
 * Errors stick in nn.
 */
static inline struct tess_decoder tess_decoder_read(struct tess_nn *nn, int64_t head)
{
	const struct tess_rotary whole = { sizeof whole, 0, 0, 0, NULL, 0, 0, 0, 0 };
	const struct tess_route none = { sizeof none, 0, 0, 0, 0, 0, 0, NULL };
	struct tess_decoder c;
	int64_t hidden = nn->integer(nn, "hidden_size", TESS_REQUIRED);
	int64_t heads = nn->integer(nn, "num_attention_heads", TESS_REQUIRED);

	if (!head && heads > 0)
		head = hidden / heads;
	head = nn->integer(nn, "head_dim", head);
	c.head = head;
	c.layers = nn->integer(nn, "num_hidden_layers", TESS_REQUIRED);
	c.eps = nn->number(nn, "rms_norm_eps", 1e-6);
	c.scale = 1 / sqrt((double)head);
	c.softcap = 0;
	c.dropout = nn->number(nn, "attention_dropout", 0);
	c.tied = (int32_t)nn->integer(nn, "tie_word_embeddings", 0);
	c.rotary = whole;
	c.route = none;
	c.experts = c.expert_ffn = NULL;
	c.qkv_bias = c.out_bias = c.mlp_bias = c.head_bias = c.parallel = 0;
	c.norm = TESS_RMS;
	c.norms[0] = "input_layernorm";
	c.norms[2] = "post_attention_layernorm";
	c.norms[1] = c.norms[3] = NULL;
	c.model = "model";
	c.table = "embed_tokens";
	c.last_norm = "norm";
	c.out = "o_proj";
	c.embedding_dropout = 0;
	c.embedding_scale = c.block_scale = c.logits_scale = 1;
	c.dense = 0;
	c.shared_ffn = NULL;
	c.act = nn->activation(nn, "hidden_act", "silu");
	c.vocab = nn->dim(nn, "vocabulary", nn->integer(nn, "vocab_size", TESS_REQUIRED), 0);
	c.hidden = nn->dim(nn, "hidden", hidden, TESS_HIDDEN);
	c.heads = nn->dim(nn, "heads", heads, head);
	c.kv_heads = nn->grouped(nn, "key-value heads", c.heads,
	                         nn->integer(nn, "num_key_value_heads", heads));
	c.ffn = nn->dim(nn, "ffn",
	                nn->integer(nn, nn->has(nn, "ffn_dim") ? "ffn_dim" : "intermediate_size",
	                            TESS_REQUIRED),
	                0);
	return c;
}

/* Makes heads rotate their first elements only: `missing` of them without partial_rotary_factor. */
static inline void tess_decoder_read_rotary(struct tess_nn *nn, struct tess_decoder *c,
                                            double missing)
{
	double part = nn->number(nn, "partial_rotary_factor", missing);

	part = nn->number(nn, "rope_parameters.partial_rotary_factor", part);
	part = part < 0 ? -1 : part > 1 ? 2 : part; /* rope refuses -1 and 2 */
	c->rotary.width = (int64_t)(part * (double)c->head);
}

/* Returns sliding_window of config.json: 0 (all keys) if null, `missing` without the key. */
static inline int64_t tess_decoder_read_window(struct tess_nn *nn, int64_t missing)
{
	return nn->integer(nn, "sliding_window", nn->has(nn, "sliding_window") ? 0 : missing);
}

/*
 * Returns the window of a layer; 0: all keys. use_sliding_window enables windows, in the layers
 * that layer_types calls sliding_attention. Without that list, layers from max_window_layers on
 * have it.
 */
static inline int64_t tess_decoder_select_window(struct tess_nn *nn, int64_t layer)
{
	static const char *const kinds[] = { "full_attention", "sliding_attention", NULL };
	static const char *const full[] = { "full_attention", NULL };
	int64_t window = 0;

	if (nn->integer(nn, "use_sliding_window", 0))
		window = tess_decoder_read_window(nn, 4096);
	if (nn->has(nn, "layer_types.0"))
		return nn->choice(nn, window ? kinds : full, "layer_types.%d", (int)layer) ? window
		                                                                           : 0;
	return layer >= nn->integer(nn, "max_window_layers", 28) ? window : 0;
}

/* Returns whether layer_types makes the attention of a layer slide; `missing` without that list. */
static inline int32_t tess_decoder_slides(struct tess_nn *nn, int64_t layer, int32_t missing)
{
	static const char *const kinds[] = { "full_attention", "sliding_attention", NULL };

	if (!nn->has(nn, "layer_types.0"))
		return missing;
	return nn->choice(nn, kinds, "layer_types.%d", (int)layer);
}

/*
 * Returns whether the attention of a layer slides: by layer_types, else in all layers but every
 * `period`-th, or as sliding_window_pattern says.
 */
static inline int32_t tess_decoder_slides_by_period(struct tess_nn *nn, int64_t layer,
                                                    int64_t period)
{
	if (nn->has(nn, "layer_types.0"))
		return tess_decoder_slides(nn, layer, 0);
	period = nn->integer(nn, "sliding_window_pattern", period);
	return period < 1 || (layer + 1) % period != 0;
}

/* Enters self_attn and computes q, k and v of x. */
static inline void tess_decoder_project(struct tess_nn *nn, const struct tess_decoder *c,
                                        struct tess_tensor *x, struct tess_tensor *qkv[3])
{
	const struct tess_linear w[] = { { "q_proj", c->heads, c->qkv_bias, 0 },
		                         { "k_proj", c->kv_heads, c->qkv_bias, 0 },
		                         { "v_proj", c->kv_heads, c->qkv_bias, 0 },
		                         { NULL, NULL, 0, 0 } };

	nn->linear(nn, nn->enter(nn, x, "self_attn"), w, qkv);
}

/* Norms each head of q and of k. */
static inline void tess_decoder_norm_heads(struct tess_nn *nn, const struct tess_decoder *c,
                                           const char *q, const char *k, struct tess_tensor *qkv[3])
{
	qkv[0] = nn->norm(nn, q, qkv[0], c->norm | TESS_HEADS, c->eps);
	qkv[1] = nn->norm(nn, k, qkv[1], c->norm | TESS_HEADS, c->eps);
}

/* Rotates q and k. */
static inline void tess_decoder_rotate(struct tess_nn *nn, const struct tess_decoder *c,
                                       struct tess_tensor *qkv[3])
{
	qkv[0] = nn->rope(nn, qkv[0], &c->rotary);
	qkv[1] = nn->rope(nn, qkv[1], &c->rotary);
}

/* Attends without rope, and leaves self_attn. window: number of keys; 0: all. */
static inline struct tess_tensor *tess_decoder_attend_unrotated(struct tess_nn *nn,
                                                                const struct tess_decoder *c,
                                                                struct tess_tensor *qkv[3],
                                                                int64_t window)
{
	const struct tess_linear w[] = { { c->out, c->hidden, c->out_bias, 0 },
		                         { NULL, NULL, 0, 0 } };
	const struct tess_attention how = { sizeof how, 0,          c->scale, c->softcap, window,
		                            0,          c->dropout, 0,        NULL };
	struct tess_tensor *y = nn->attention(nn, qkv[0], qkv[1], qkv[2], &how);

	nn->linear(nn, y, w, &y);
	return nn->leave(nn, y);
}

/* Rotates q and k, attends, and leaves self_attn. window: number of keys; 0: all. */
static inline struct tess_tensor *tess_decoder_attend(struct tess_nn *nn,
                                                      const struct tess_decoder *c,
                                                      struct tess_tensor *qkv[3], int64_t window)
{
	tess_decoder_rotate(nn, c, qkv);
	return tess_decoder_attend_unrotated(nn, c, qkv, window);
}

/* Records attention of all keys, with rope. A tess_block. */
static inline struct tess_tensor *tess_decoder_attention(struct tess_nn *nn,
                                                         const struct tess_decoder *c,
                                                         int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	return tess_decoder_attend(nn, c, qkv, 0);
}

/* Computes down_proj(act(gate_proj(x)) * up_proj(x)) in module `name`. */
static inline struct tess_tensor *tess_decoder_gated(struct tess_nn *nn,
                                                     const struct tess_decoder *c, const char *name,
                                                     struct tess_dim *ffn, struct tess_tensor *x)
{
	const struct tess_linear in[] = { { "gate_proj", ffn, c->mlp_bias, 0 },
		                          { "up_proj", ffn, c->mlp_bias, 0 },
		                          { NULL, NULL, 0, 0 } };
	const struct tess_linear out[] = { { "down_proj", c->hidden, c->mlp_bias, 0 },
		                           { NULL, NULL, 0, 0 } };
	struct tess_tensor *h[2], *y;

	nn->linear(nn, nn->enter(nn, x, "%s", name), in, h);
	y = nn->glu(nn, h[0], h[1], c->act);
	nn->linear(nn, y, out, &y);
	return nn->leave(nn, y);
}

/* Computes the gated MLP of c->ffn in module mlp. A tess_block. */
static inline struct tess_tensor *tess_decoder_mlp(struct tess_nn *nn, const struct tess_decoder *c,
                                                   int64_t layer, struct tess_tensor *x)
{
	(void)layer;
	return tess_decoder_gated(nn, c, "mlp", c->ffn, x);
}

/* Computes down(act(up(x))), with the names of both products, in module mlp. */
static inline struct tess_tensor *tess_decoder_plain_mlp(struct tess_nn *nn,
                                                         const struct tess_decoder *c,
                                                         const char *up, const char *down,
                                                         struct tess_tensor *x)
{
	const struct tess_linear in[] = { { up, c->ffn, c->mlp_bias, 0 }, { NULL, NULL, 0, 0 } };
	const struct tess_linear out[] = { { down, c->hidden, c->mlp_bias, 0 },
		                           { NULL, NULL, 0, 0 } };
	struct tess_tensor *y;

	nn->linear(nn, nn->enter(nn, x, "mlp"), in, &y);
	y = nn->glu(nn, y, NULL, c->act);
	nn->linear(nn, y, out, &y);
	return nn->leave(nn, y);
}

/* Computes the gated MLP with gate and up in one weight, in module mlp. A tess_block. */
static inline struct tess_tensor *tess_decoder_fused_mlp(struct tess_nn *nn,
                                                         const struct tess_decoder *c,
                                                         int64_t layer, struct tess_tensor *x)
{
	struct tess_dim *const parts[] = { c->ffn, c->ffn, NULL };
	const struct tess_linear in[] = { { "gate_up_proj", nn->fused(nn, parts), 0, 0 },
		                          { NULL, NULL, 0, 0 } };
	const struct tess_linear out[] = { { "down_proj", c->hidden, 0, 0 }, { NULL, NULL, 0, 0 } };
	struct tess_tensor *h[2] = { NULL, NULL }, *y;

	(void)layer;
	nn->linear(nn, nn->enter(nn, x, "mlp"), in, &y);
	nn->split(nn, y, h);
	y = nn->glu(nn, h[0], h[1], c->act);
	nn->linear(nn, y, out, &y);
	return nn->leave(nn, y);
}

/*
 * Reads dense layers, experts, their choice by groups and shared experts, with the keys of
 * DeepSeek. flags: those of the route.
 */
static inline void tess_decoder_read_shared_moe(struct tess_nn *nn, struct tess_decoder *c,
                                                int32_t flags)
{
	int64_t ffn = nn->integer(nn, "moe_intermediate_size", TESS_REQUIRED);
	int64_t shared = nn->integer(nn, "n_shared_experts", 0);

	c->dense = nn->integer(nn, "first_k_dense_replace", 0);
	c->experts = nn->dim(nn, "experts", nn->integer(nn, "n_routed_experts", TESS_REQUIRED), 1);
	c->expert_ffn = nn->dim(nn, "expert ffn", ffn, 0);
	c->shared_ffn = shared ? nn->dim(nn, "shared ffn", ffn * shared, 0) : NULL;
	c->route.flags = flags;
	c->route.top = nn->integer(nn, "num_experts_per_tok", TESS_REQUIRED);
	c->route.groups = nn->integer(nn, "n_group", 1);
	c->route.groups_kept = nn->integer(nn, "topk_group", 1);
	c->route.eps = 1e-20;
	c->route.scale = nn->number(nn, "routed_scaling_factor", 1);
}

/* Returns whether a layer has experts, by decoder_sparse_step and mlp_only_layers. */
static inline int32_t tess_decoder_is_sparse(struct tess_nn *nn, int64_t layer)
{
	int64_t step = nn->integer(nn, "decoder_sparse_step", 1);
	int32_t dense = step < 1 || (layer + 1) % step;
	char key[64];

	for (int i = 0; !dense; i++) {
		snprintf(key, sizeof key, "mlp_only_layers.%d", i);
		if (!nn->has(nn, key))
			break;
		dense = nn->integer(nn, key, -1) == layer;
	}
	return !dense;
}

/* Computes the weighted sum of the experts that `gate` chooses for each row, in module mlp. */
static inline struct tess_tensor *tess_decoder_experts(struct tess_nn *nn,
                                                       const struct tess_decoder *c,
                                                       struct tess_tensor *x)
{
	const struct tess_linear gate[] = { { "gate", c->experts, 0, 0 }, { NULL, NULL, 0, 0 } };
	const struct tess_experts how = { sizeof how, 0, c->act, 0, c->expert_ffn, 0, 0 };
	struct tess_tensor *y;

	nn->linear(nn, x, gate, &y);
	return nn->experts(nn, "experts", x, nn->route(nn, y, &c->route), &how);
}

/* Computes a mixture of experts in module mlp. A tess_block. */
static inline struct tess_tensor *tess_decoder_moe(struct tess_nn *nn, const struct tess_decoder *c,
                                                   int64_t layer, struct tess_tensor *x)
{
	(void)layer;
	return nn->leave(nn, tess_decoder_experts(nn, c, nn->enter(nn, x, "mlp")));
}

/* Computes an MLP in the first c->dense layers, then experts and shared experts. A tess_block. */
static inline struct tess_tensor *tess_decoder_shared_moe(struct tess_nn *nn,
                                                          const struct tess_decoder *c,
                                                          int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *y;

	if (layer < c->dense)
		return tess_decoder_mlp(nn, c, layer, x);
	x = nn->enter(nn, x, "mlp");
	y = tess_decoder_experts(nn, c, x);
	if (c->shared_ffn)
		y = nn->add(nn, y, tess_decoder_gated(nn, c, "shared_experts", c->shared_ffn, x));
	return nn->leave(nn, y);
}

/* Returns x * factor; x itself with factor 1. */
static inline struct tess_tensor *tess_decoder_scale(struct tess_nn *nn, struct tess_tensor *x,
                                                     double factor)
{
	return factor == 1 ? x : nn->scale(nn, x, factor);
}

/* Computes the logits of the requested rows by lm_head, which may have tied embeddings. */
static inline struct tess_tensor *tess_decoder_head(struct tess_nn *nn,
                                                    const struct tess_decoder *c,
                                                    struct tess_tensor *x)
{
	const struct tess_linear w[] = { { "lm_head", c->vocab, c->head_bias, 0 },
		                         { NULL, NULL, 0, 0 } };
	char table[64];
	struct tess_tensor *y;

	x = nn->select_rows(nn, x);
	snprintf(table, sizeof table, "%s.%s", c->model, c->table);
	if (c->tied)
		y = nn->tied(nn, "lm_head", x, table);
	else
		nn->linear(nn, x, w, &y);
	return tess_decoder_scale(nn, y, c->logits_scale);
}

/* Applies norm i of a layer, if there is one. */
static inline struct tess_tensor *tess_decoder_norm(struct tess_nn *nn,
                                                    const struct tess_decoder *c, int i,
                                                    struct tess_tensor *x)
{
	return c->norms[i] ? nn->norm(nn, c->norms[i], x, c->norm, c->eps) : x;
}

/* Records the blocks of a layer with their norms. */
static inline struct tess_tensor *tess_decoder_layer(struct tess_nn *nn,
                                                     const struct tess_decoder *c, int64_t layer,
                                                     struct tess_tensor *x, tess_block *attend,
                                                     tess_block *mlp)
{
	struct tess_tensor *h = tess_decoder_norm(nn, c, 0, x), *y, *z;

	y = tess_decoder_norm(nn, c, 1, attend(nn, c, layer, h));
	y = tess_decoder_scale(nn, y, c->block_scale);
	z = c->parallel ? x : nn->add(nn, x, y);
	if (!c->parallel || c->norms[2])
		h = tess_decoder_norm(nn, c, 2, z);
	h = tess_decoder_norm(nn, c, 3, mlp(nn, c, layer, h));
	h = tess_decoder_scale(nn, h, c->block_scale);
	return nn->add(nn, z, c->parallel ? nn->add(nn, y, h) : h);
}

/* Records a complete model: ids [tokens] -> logits. */
static inline struct tess_tensor *tess_decoder_record(struct tess_nn *nn,
                                                      const struct tess_decoder *c,
                                                      struct tess_tensor *ids, tess_block *attend,
                                                      tess_block *mlp)
{
	struct tess_tensor *x;

	ids = nn->enter(nn, ids, "%s", c->model);
	x = nn->embed(nn, c->table, ids, c->vocab, c->hidden);
	x = tess_decoder_scale(nn, x, c->embedding_scale);
	x = nn->dropout(nn, x, c->embedding_dropout);
	for (int64_t i = 0; i < c->layers; i++) {
		x = nn->enter(nn, x, "layers.%d", (int)i);
		x = nn->leave(nn, tess_decoder_layer(nn, c, i, x, attend, mlp));
	}
	x = nn->leave(nn, nn->norm(nn, c->last_norm, x, c->norm, c->eps));
	return tess_decoder_head(nn, c, x);
}

/* clang-format off */

/* Prefix of the modules of a layer, for rules. */
#define TESS_DECODER_LAYER "model.layers.*."
/* Prefix of the modules of a layer that may match none. */
#define TESS_DECODER_SOME "?" TESS_DECODER_LAYER

/* Rules of attention and embeddings in the preset tp. Rules of the family and { 0 } follow. */
#define TESS_DECODER_TP_ATTENTION \
	{ "model.embed_tokens", "embedding_rowwise" }, \
	{ TESS_DECODER_LAYER "self_attn.q_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.k_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.v_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.o_proj", "rowwise" }, \
	{ "lm_head", "colwise_gather_output" }
/* Rules of the MLP in the preset tp. layer: TESS_DECODER_LAYER or TESS_DECODER_SOME. */
#define TESS_DECODER_TP_MLP(layer) \
	{ layer "mlp.gate_proj", "colwise" }, \
	{ layer "mlp.up_proj", "colwise" }, \
	{ layer "mlp.down_proj", "rowwise" }
/* Rules of a model with an MLP in the preset tp. */
#define TESS_DECODER_TP TESS_DECODER_TP_ATTENTION, TESS_DECODER_TP_MLP(TESS_DECODER_LAYER)
/* Rules of experts in the preset tp: each expert is cut. */
#define TESS_DECODER_TP_EXPERTS(layer) \
	{ layer "mlp.experts.gate_up_proj", "packed_colwise" }, \
	{ layer "mlp.experts.down_proj", "rowwise" }, \
	{ layer "mlp.experts", "moe_tp_experts" }
/* Rules of shared experts. down: the style of their down_proj. */
#define TESS_DECODER_SHARED(down) \
	{ TESS_DECODER_SOME "mlp.shared_experts.gate_proj", "colwise" }, \
	{ TESS_DECODER_SOME "mlp.shared_experts.up_proj", "colwise" }, \
	{ TESS_DECODER_SOME "mlp.shared_experts.down_proj", down }
/* Rules of norms of the heads of q and k, in presets that cut heads. q, k: names of the norms. */
#define TESS_DECODER_HEAD_NORMS(layer, q, k) \
	{ layer "self_attn." q, "replicated_with_grad_allreduce" }, \
	{ layer "self_attn." k, "replicated_with_grad_allreduce" }
/* Rules of experts in the preset ep: ranks have different experts. */
#define TESS_DECODER_EP_EXPERTS(layer) \
	{ "ep:" layer "mlp.experts.gate_up_proj", "grouped_gemm" }, \
	{ "ep:" layer "mlp.experts.down_proj", "grouped_gemm" }, \
	{ "ep:" layer "mlp.experts", "ep_dispatch_experts" }
/*
 * Rules of experts in the preset ep+sp: between blocks each rank has a part of the tokens, and the
 * ranks exchange those rows that request their experts.
 */
#define TESS_DECODER_EP_SP_EXPERTS(layer) { "ep:" layer "mlp.experts", "ep_fewer_bytes" }
/* Rules of the embedding, the last norm and the head in the preset tp+sp (sequence parallel). */
#define TESS_DECODER_TP_SP_ENDS \
	{ "model.embed_tokens", "vocab_reduce_scatter" }, { "model.norm", "sequence_parallel" }, \
	{ "lm_head", "colwise_gather_output" }
/* Rules of self_attn in the preset tp+sp. */
#define TESS_DECODER_TP_SP_HEADS \
	{ TESS_DECODER_LAYER "self_attn", "module_allgather" }, \
	{ TESS_DECODER_LAYER "self_attn.q_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.k_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.v_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.o_proj", "rowwise_reduce_scatter" }
/* Rules of attention, norms and embeddings in the preset ep+sp. */
#define TESS_DECODER_EP_SP_ATTENTION \
	TESS_DECODER_TP_SP_ENDS, TESS_DECODER_TP_SP_HEADS, \
	{ TESS_DECODER_LAYER "input_layernorm", "sequence_parallel" }, \
	{ TESS_DECODER_LAYER "post_attention_layernorm", "sequence_parallel" }
/*
 * Rules of attention, norms and embeddings in the preset tp+sp: in norms and between blocks, each
 * rank has a part of the tokens.
 */
#define TESS_DECODER_TP_SP_ATTENTION \
	TESS_DECODER_EP_SP_ATTENTION, { TESS_DECODER_LAYER "mlp", "module_allgather" }
/* Rules of the MLP in the preset tp+sp. */
#define TESS_DECODER_TP_SP_MLP(layer) \
	{ layer "mlp.gate_proj", "colwise" }, \
	{ layer "mlp.up_proj", "colwise" }, \
	{ layer "mlp.down_proj", "rowwise_reduce_scatter" }
/* Rules of a model with an MLP in the preset tp+sp. */
#define TESS_DECODER_TP_SP TESS_DECODER_TP_SP_ATTENTION, TESS_DECODER_TP_SP_MLP(TESS_DECODER_LAYER)
/* Rules of a model whose MLP is beside attention, without a norm of its own, in tp+sp. */
#define TESS_DECODER_TP_SP_PARALLEL \
	TESS_DECODER_TP_SP_ENDS, TESS_DECODER_TP_SP_HEADS, \
	{ TESS_DECODER_LAYER "input_layernorm", "sequence_parallel" }, \
	{ TESS_DECODER_LAYER "mlp", "module_allgather" }, \
	TESS_DECODER_TP_SP_MLP(TESS_DECODER_LAYER)
/* Rules of experts in the preset tp+sp. */
#define TESS_DECODER_TP_SP_EXPERTS(layer) \
	{ layer "mlp.experts.gate_up_proj", "packed_colwise" }, \
	{ layer "mlp.experts.down_proj", "rowwise" }, \
	{ layer "mlp.experts", "moe_experts_reduce_scatter" }
/* Stored names of experts (struct tess_stored) with tensors of their own in the checkpoint. */
#define TESS_DECODER_STORED_EXPERTS \
	{ TESS_DECODER_LAYER "mlp.experts.gate_up_proj", \
	  (const char *const[]){ TESS_DECODER_LAYER "mlp.experts.#.gate_proj.weight", \
	                         TESS_DECODER_LAYER "mlp.experts.#.up_proj.weight", NULL } }, \
	{ TESS_DECODER_LAYER "mlp.experts.down_proj", \
	  (const char *const[]){ TESS_DECODER_LAYER "mlp.experts.#.down_proj.weight", NULL } }

/* clang-format on */

TESS_END
#endif

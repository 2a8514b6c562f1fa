/*
 * tessera/decoder.h - shared parts of decoders of Llama's form, recorded through tessera/model.h.
 *
 * The file of a family has only the differences: biases, windows, its attention. All functions are
 * inline and use only struct tess_nn, so a plugin keeps the version that it was compiled with. Set
 * needs_nn to TESS_UPTO(tess_nn, experts).
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
	/* 1: tied embeddings, lm_head reads the table of embed_tokens. */
	int32_t tied;
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
	const struct tess_rotary whole = { sizeof whole, 0, 0, 0 };
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
	c.qkv_bias = c.out_bias = c.mlp_bias = 0;
	c.act = nn->activation(nn, "hidden_act", "silu");
	c.vocab = nn->dim(nn, "vocabulary", nn->integer(nn, "vocab_size", TESS_REQUIRED), 0);
	c.hidden = nn->dim(nn, "hidden", hidden, TESS_HIDDEN);
	c.heads = nn->dim(nn, "heads", heads, head);
	c.kv_heads = nn->grouped(nn, "key-value heads", c.heads,
	                         nn->integer(nn, "num_key_value_heads", heads));
	c.ffn = nn->dim(nn, "ffn", nn->integer(nn, "intermediate_size", TESS_REQUIRED), 0);
	return c;
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

/* Rotates q and k, attends, and leaves self_attn. window: number of keys; 0: all. */
static inline struct tess_tensor *tess_decoder_attend(struct tess_nn *nn,
                                                      const struct tess_decoder *c,
                                                      struct tess_tensor *qkv[3], int64_t window)
{
	const struct tess_linear w[] = { { "o_proj", c->hidden, c->out_bias, 0 },
		                         { NULL, NULL, 0, 0 } };
	const struct tess_attention how = { sizeof how, 0, c->scale,  c->softcap,
		                            window,     0, c->dropout };
	struct tess_tensor *q = nn->rope(nn, qkv[0], &c->rotary);
	struct tess_tensor *k = nn->rope(nn, qkv[1], &c->rotary), *y;

	y = nn->attention(nn, q, k, qkv[2], &how);
	nn->linear(nn, y, w, &y);
	return nn->leave(nn, y);
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

/* Computes the weighted sum of the experts that `gate` chooses for each row, in module mlp. */
static inline struct tess_tensor *tess_decoder_experts(struct tess_nn *nn,
                                                       const struct tess_decoder *c,
                                                       struct tess_tensor *x)
{
	const struct tess_linear gate[] = { { "gate", c->experts, 0, 0 }, { NULL, NULL, 0, 0 } };
	const struct tess_experts how = { sizeof how, 0, c->act, 0, c->expert_ffn };
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

/* Computes the logits of the requested rows by lm_head, which may have tied embeddings. */
static inline struct tess_tensor *tess_decoder_head(struct tess_nn *nn,
                                                    const struct tess_decoder *c,
                                                    struct tess_tensor *x)
{
	const struct tess_linear w[] = { { "lm_head", c->vocab, 0, 0 }, { NULL, NULL, 0, 0 } };
	struct tess_tensor *y;

	x = nn->select_rows(nn, x);
	if (c->tied)
		return nn->tied(nn, "lm_head", x, "model.embed_tokens");
	nn->linear(nn, x, w, &y);
	return y;
}

/* Records a complete model with norms before the blocks: ids [tokens] -> logits. */
static inline struct tess_tensor *tess_decoder_record(struct tess_nn *nn,
                                                      const struct tess_decoder *c,
                                                      struct tess_tensor *ids, tess_block *attend,
                                                      tess_block *mlp)
{
	struct tess_tensor *x, *y;

	ids = nn->enter(nn, ids, "model");
	x = nn->embed(nn, "embed_tokens", ids, c->vocab, c->hidden);
	for (int64_t i = 0; i < c->layers; i++) {
		x = nn->enter(nn, x, "layers.%d", (int)i);
		y = attend(nn, c, i, nn->norm(nn, "input_layernorm", x, TESS_RMS, c->eps));
		x = nn->add(nn, x, y);
		y = nn->norm(nn, "post_attention_layernorm", x, TESS_RMS, c->eps);
		x = nn->leave(nn, nn->add(nn, x, mlp(nn, c, i, y)));
	}
	x = nn->leave(nn, nn->norm(nn, "norm", x, TESS_RMS, c->eps));
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
/* Rules of experts in the preset ep: ranks have different experts. */
#define TESS_DECODER_EP_EXPERTS(layer) \
	{ "ep:" layer "mlp.experts.gate_up_proj", "grouped_gemm" }, \
	{ "ep:" layer "mlp.experts.down_proj", "grouped_gemm" }, \
	{ "ep:" layer "mlp.experts", "ep_dispatch_experts" }
/*
 * Rules of attention, norms and embeddings in the preset tp+sp (sequence parallel): in norms and
 * between blocks, each rank has a part of the tokens.
 */
#define TESS_DECODER_TP_SP_ATTENTION \
	{ "model.embed_tokens", "vocab_reduce_scatter" }, \
	{ TESS_DECODER_LAYER "input_layernorm", "sequence_parallel" }, \
	{ TESS_DECODER_LAYER "self_attn", "module_allgather" }, \
	{ TESS_DECODER_LAYER "self_attn.q_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.k_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.v_proj", "colwise" }, \
	{ TESS_DECODER_LAYER "self_attn.o_proj", "rowwise_reduce_scatter" }, \
	{ TESS_DECODER_LAYER "post_attention_layernorm", "sequence_parallel" }, \
	{ TESS_DECODER_LAYER "mlp", "module_allgather" }, \
	{ "model.norm", "sequence_parallel" }, \
	{ "lm_head", "colwise_gather_output" }
/* Rules of the MLP in the preset tp+sp. */
#define TESS_DECODER_TP_SP_MLP(layer) \
	{ layer "mlp.gate_proj", "colwise" }, \
	{ layer "mlp.up_proj", "colwise" }, \
	{ layer "mlp.down_proj", "rowwise_reduce_scatter" }
/* Rules of a model with an MLP in the preset tp+sp. */
#define TESS_DECODER_TP_SP TESS_DECODER_TP_SP_ATTENTION, TESS_DECODER_TP_SP_MLP(TESS_DECODER_LAYER)
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

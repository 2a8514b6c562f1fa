/* tess-model-fable.so: a decoder with one weight for q, k and v, and one for gate and up. */
#include <math.h>
#include <tessera/model.h>

struct fable {
	int64_t layers;
	double eps, scale;
	int32_t act;
	struct tess_dim *vocab, *hidden, *heads, *ffn, *qkv, *gate_up;
};

static struct fable read_fable(struct tess_nn *nn)
{
	int64_t hidden = nn->integer(nn, "hidden_size", 0);
	int64_t heads = nn->integer(nn, "num_attention_heads", 1);
	int64_t each = nn->integer(nn, "head_dim", heads ? hidden / heads : 0);
	struct fable c = { .layers = nn->integer(nn, "num_hidden_layers", 0),
		           .eps = nn->number(nn, "rms_norm_eps", 1e-6),
		           .act = nn->activation(nn, "hidden_act", "silu") };
	struct tess_dim *groups;

	c.scale = 1 / sqrt((double)each);
	c.vocab = nn->dim(nn, "vocabulary", nn->integer(nn, "vocab_size", 0), 0);
	c.hidden = nn->dim(nn, "hidden", hidden, TESS_HIDDEN);
	c.heads = nn->dim(nn, "heads", heads, each);
	groups = nn->grouped(nn, "key-value heads", c.heads,
	                     nn->integer(nn, "num_key_value_heads", heads));
	c.ffn = nn->dim(nn, "ffn", nn->integer(nn, "intermediate_size", 0), 0);
	c.qkv = nn->fused(nn, (struct tess_dim *[]){ c.heads, groups, groups, NULL });
	c.gate_up = nn->fused(nn, (struct tess_dim *[]){ c.ffn, c.ffn, NULL });
	return c;
}

/* Records x W^T of one module: [tokens, in] -> [tokens, out] */
static struct tess_tensor *apply_linear(struct tess_nn *nn, const char *name, struct tess_tensor *x,
                                        struct tess_dim *out)
{
	const struct tess_linear w[] = { { name, out, 0, 0 }, { 0 } };
	struct tess_tensor *y;

	nn->linear(nn, x, w, &y);
	return y;
}

static struct tess_tensor *attend_rows(struct tess_nn *nn, const struct fable *c,
                                       struct tess_tensor *x)
{
	const struct tess_attention how = { .size = sizeof how, .scale = c->scale };
	struct tess_tensor *part[3] = { 0 }, *q, *k;

	x = nn->enter(nn, x, "attention");
	nn->split(nn, apply_linear(nn, "qkv", x, c->qkv), part);
	q = nn->rope(nn, part[0], NULL);
	k = nn->rope(nn, part[1], NULL);
	x = nn->attention(nn, q, k, part[2], &how);
	return nn->leave(nn, apply_linear(nn, "out", x, c->hidden));
}

static struct tess_tensor *feed_forward(struct tess_nn *nn, const struct fable *c,
                                        struct tess_tensor *x)
{
	struct tess_tensor *part[2] = { 0 };

	x = nn->enter(nn, x, "mlp");
	nn->split(nn, apply_linear(nn, "gate_up", x, c->gate_up), part);
	x = nn->glu(nn, part[0], part[1], c->act);
	return nn->leave(nn, apply_linear(nn, "down", x, c->hidden));
}

static struct tess_tensor *forward_fable(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct fable c = read_fable(nn);
	struct tess_tensor *x = nn->embed(nn, "embedding", ids, c.vocab, c.hidden);

	for (int64_t i = 0; i < c.layers; i++) {
		x = nn->enter(nn, x, "blocks.%d", (int)i);
		x = nn->add(nn, x, attend_rows(nn, &c, nn->norm(nn, "norm1", x, TESS_RMS, c.eps)));
		x = nn->add(nn, x, feed_forward(nn, &c, nn->norm(nn, "norm2", x, TESS_RMS, c.eps)));
		x = nn->leave(nn, x);
	}
	x = nn->select_rows(nn, nn->norm(nn, "norm", x, TESS_RMS, c.eps));
	if (nn->integer(nn, "tie_word_embeddings", 0))
		return nn->tied(nn, "head", x, "embedding");
	return apply_linear(nn, "head", x, c.vocab);
}

/* the plan: a style for each module */
static const struct tess_rule tp[] = { { "embedding", "embedding_rowwise" },
	                               { "blocks.*.attention.qkv", "colwise" },
	                               { "blocks.*.attention.out", "rowwise" },
	                               { "blocks.*.mlp.gate_up", "colwise" },
	                               { "blocks.*.mlp.down", "rowwise" },
	                               { "head", "colwise_gather_output" },
	                               { 0 } };
static const struct tess_preset presets[] = { { "tp", tp }, { 0 } };

/* the names in files */
#define FILES(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define LAYER "model.layers.*."
static const struct tess_stored stored[] = {
	{ "embedding.weight", FILES("model.embed_tokens.weight") },
	{ "blocks.*.norm1.weight", FILES(LAYER "input_layernorm.weight") },
	{ "blocks.*.attention.qkv.weight",
	  FILES(LAYER "self_attn.q_proj.weight", LAYER "self_attn.k_proj.weight",
	        LAYER "self_attn.v_proj.weight") },
	{ "blocks.*.attention.out.weight", FILES(LAYER "self_attn.o_proj.weight") },
	{ "blocks.*.norm2.weight", FILES(LAYER "post_attention_layernorm.weight") },
	{ "blocks.*.mlp.gate_up.weight",
	  FILES(LAYER "mlp.gate_proj.weight", LAYER "mlp.up_proj.weight") },
	{ "blocks.*.mlp.down.weight", FILES(LAYER "mlp.down_proj.weight") },
	{ "norm.weight", FILES("model.norm.weight") },
	{ "head.weight", FILES("lm_head.weight") },
	{ 0 },
};

static const char *const types[] = { "fable", NULL };
static const struct tess_model fable = {
	.size = sizeof fable,
	.name = "fable",
	.summary = "a decoder with fused weights",
	.types = types,
	.presets = presets,
	.forward = forward_fable,
	.stored = stored,
};

TESS_DEFINE_PLUGIN("fable", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &fable));

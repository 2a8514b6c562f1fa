/*
 * tess-model-opt.so: OPT: learned positions from row 2 on, norms with a bias, an MLP without a
 * module of its own. OPT-350m has its norms after the blocks, and embeddings of another width.
 */
#include <tessera/decoder.h>

struct opt {
	struct tess_decoder c; /* first: blocks receive a pointer to it */
	int32_t before; /* 1: norms before the blocks */
	double rate; /* of dropout */
	struct tess_dim *embedded; /* width of embeddings, if it is not the hidden one */
};

static struct tess_tensor *compute_linear(struct tess_nn *nn, const char *name,
                                          struct tess_tensor *x, struct tess_dim *out,
                                          int32_t flags)
{
	const struct tess_linear w[] = { { name, out, flags, 0 }, { 0 } };
	struct tess_tensor *y;

	nn->linear(nn, x, w, &y);
	return y;
}

static struct opt read_opt(struct tess_nn *nn)
{
	int64_t hidden = nn->integer(nn, "hidden_size", TESS_REQUIRED);
	int64_t width = nn->integer(nn, "word_embed_proj_dim", hidden);
	struct opt m = { .c = tess_decoder_read(nn, 0),
		         .before = nn->integer(nn, "do_layer_norm_before", 1) != 0,
		         .rate = nn->number(nn, "dropout", 0.1) };

	m.c.norm = TESS_LAYER;
	m.c.eps = 1e-5;
	m.c.act = nn->activation(nn, "activation_function", "relu");
	m.c.qkv_bias = nn->integer(nn, "enable_bias", 1) ? TESS_BIAS : 0;
	m.c.out_bias = m.c.mlp_bias = m.c.qkv_bias;
	m.c.model = "model.decoder";
	m.c.out = "out_proj";
	if (width != hidden)
		m.embedded = nn->dim(nn, "embedding", width, TESS_HIDDEN);
	return m;
}

static struct tess_tensor *embed_as_opt(struct tess_nn *nn, const struct opt *m,
                                        struct tess_tensor *ids)
{
	int64_t n = nn->integer(nn, "max_position_embeddings", TESS_REQUIRED);
	struct tess_dim *table = nn->dim(nn, "positions", n + 2, 0);
	struct tess_tensor *x;

	x = nn->embed(nn, "embed_tokens", ids, m->c.vocab, m->embedded ? m->embedded : m->c.hidden);
	if (m->embedded)
		x = compute_linear(nn, "project_in", x, m->c.hidden, 0);
	return nn->add(nn, x,
	               nn->embed(nn, "embed_positions", nn->positions(nn, 2), table, m->c.hidden));
}

static struct tess_tensor *record_opt_layer(struct tess_nn *nn, const struct opt *m,
                                            struct tess_tensor *x)
{
	const struct tess_decoder *c = &m->c;
	struct tess_tensor *qkv[3], *y;

	y = m->before ? nn->norm(nn, "self_attn_layer_norm", x, c->norm, c->eps) : x;
	tess_decoder_project(nn, c, y, qkv);
	y = tess_decoder_attend_unrotated(nn, c, qkv, 0);
	x = nn->add(nn, x, nn->dropout(nn, y, m->rate));
	if (!m->before)
		x = nn->norm(nn, "self_attn_layer_norm", x, c->norm, c->eps);
	y = m->before ? nn->norm(nn, "final_layer_norm", x, c->norm, c->eps) : x;
	y = nn->glu(nn, compute_linear(nn, "fc1", y, c->ffn, c->mlp_bias), NULL, c->act);
	y = compute_linear(nn, "fc2", y, c->hidden, c->mlp_bias);
	x = nn->add(nn, x, nn->dropout(nn, y, m->rate));
	return m->before ? x : nn->norm(nn, "final_layer_norm", x, c->norm, c->eps);
}

static struct tess_tensor *forward_opt(struct tess_nn *nn, struct tess_tensor *ids)
{
	static const char *const yes[] = { "true", NULL };
	const struct opt m = read_opt(nn);
	struct tess_tensor *x;

	if (!nn->integer(nn, "layer_norm_elementwise_affine", 1))
		nn->choice(nn, yes, "layer_norm_elementwise_affine");
	x = embed_as_opt(nn, &m, nn->enter(nn, ids, "%s", m.c.model));
	for (int64_t i = 0; i < m.c.layers; i++) {
		x = nn->enter(nn, x, "layers.%d", (int)i);
		x = nn->leave(nn, record_opt_layer(nn, &m, x));
	}
	if (m.before && !nn->integer(nn, "_remove_final_layer_norm", 0))
		x = nn->norm(nn, "final_layer_norm", x, m.c.norm, m.c.eps);
	if (m.embedded)
		x = compute_linear(nn, "project_out", x, m.embedded, 0);
	return tess_decoder_head(nn, &m.c, nn->leave(nn, x));
}

#define LAYER "model.decoder.layers.*."
#define HEADS \
	{ LAYER "self_attn.q_proj", "colwise" }, { LAYER "self_attn.k_proj", "colwise" }, \
	{ \
		LAYER "self_attn.v_proj", "colwise" \
	}
static const struct tess_rule tp[] = { { "model.decoder.embed_tokens", "embedding_rowwise" },
	                               HEADS,
	                               { LAYER "self_attn.out_proj", "rowwise" },
	                               { LAYER "fc1", "colwise" },
	                               { LAYER "fc2", "rowwise" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { { "model.decoder.embed_tokens", "vocab_reduce_scatter" },
	                                  { "model.decoder.embed_positions", "sequence_parallel" },
	                                  { LAYER "self_attn_layer_norm", "sequence_parallel" },
	                                  { LAYER "self_attn", "module_allgather" },
	                                  HEADS,
	                                  { LAYER "self_attn.out_proj", "rowwise_reduce_scatter" },
	                                  { LAYER "final_layer_norm", "sequence_parallel" },
	                                  { LAYER "fc1", "colwise" },
	                                  { LAYER "fc2", "rowwise_reduce_scatter" },
	                                  { "?model.decoder.final_layer_norm",
	                                    "sequence_parallel" },
	                                  { "lm_head", "colwise_gather_output" },
	                                  { 0 } };
static const struct tess_preset presets[] = { { "tp", tp }, { "tp+sp", tp_sp }, { 0 } };
static const char *const types[] = { "opt", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
	"max_position_embeddings": 2048, "do_layer_norm_before": true, "dropout": 0.1,
	"attention_dropout": 0, "num_attention_heads": 12, "activation_function": "relu",
	"enable_bias": true, "layer_norm_elementwise_affine": true, "tie_word_embeddings": true,
	"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model opt = {
	.size = sizeof opt,
	.name = "opt",
	.summary = "OPT: learned positions, norms with a bias",
	.types = types,
	.presets = presets,
	.forward = forward_opt,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("opt", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &opt));

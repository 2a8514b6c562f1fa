/*
 * tess-model-gpt2.so: GPT-2: learned positions, q, k and v in one weight, weights stored [in, out],
 * norms with a bias.
 */
#include <math.h>
#include <tessera/model.h>

struct gpt2 {
	int64_t layers;
	double eps, dropout;
	struct tess_dim *hidden, *heads, *qkv, *inner;
};

static struct tess_tensor *project_rows(struct tess_nn *nn, const char *name, struct tess_tensor *x,
                                        struct tess_dim *out)
{
	const struct tess_linear w[] = { { name, out, TESS_BIAS | TESS_IN_OUT, 0 }, { 0 } };
	struct tess_tensor *y;

	nn->linear(nn, x, w, &y);
	return y;
}

/* Returns the scale of scores: 1 / sqrt(size of a head), unless the config changes it. */
static double read_score_scale(struct tess_nn *nn, int64_t layer)
{
	double scale = 1;

	if (nn->integer(nn, "scale_attn_weights", 1))
		scale /= sqrt((double)nn->integer(nn, "n_embd", 768) /
		              (double)nn->integer(nn, "n_head", 12));
	return nn->integer(nn, "scale_attn_by_inverse_layer_idx", 0) ? scale / (double)(layer + 1)
	                                                             : scale;
}

static struct tess_tensor *attend_as_gpt2(struct tess_nn *nn, const struct gpt2 *c, int64_t layer,
                                          struct tess_tensor *x)
{
	const struct tess_attention how = { .size = sizeof how,
		                            .scale = read_score_scale(nn, layer),
		                            .dropout = nn->number(nn, "attn_pdrop", 0.1) };
	struct tess_tensor *qkv[3] = { 0 };

	nn->split(nn, project_rows(nn, "c_attn", nn->enter(nn, x, "attn"), c->qkv), qkv);
	x = nn->attention(nn, qkv[0], qkv[1], qkv[2], &how);
	x = nn->leave(nn, project_rows(nn, "c_proj", x, c->hidden));
	return nn->dropout(nn, x, c->dropout);
}

static struct tess_tensor *feed_as_gpt2(struct tess_nn *nn, const struct gpt2 *c,
                                        struct tess_tensor *x)
{
	x = project_rows(nn, "c_fc", nn->enter(nn, x, "mlp"), c->inner);
	x = nn->glu(nn, x, NULL, nn->activation(nn, "activation_function", "gelu_new"));
	x = nn->leave(nn, project_rows(nn, "c_proj", x, c->hidden));
	return nn->dropout(nn, x, c->dropout);
}

static struct gpt2 read_gpt2(struct tess_nn *nn)
{
	int64_t width = nn->integer(nn, "n_embd", 768), heads = nn->integer(nn, "n_head", 12);
	int64_t each = heads > 0 ? width / heads : 0;
	struct gpt2 c = { .layers = nn->integer(nn, "n_layer", 12),
		          .eps = nn->number(nn, "layer_norm_epsilon", 1e-5),
		          .dropout = nn->number(nn, "resid_pdrop", 0.1) };

	c.hidden = nn->dim(nn, "hidden", width, TESS_HIDDEN);
	c.heads = nn->dim(nn, "heads", heads, each);
	c.qkv = nn->fused(nn, (struct tess_dim *[]){ c.heads, c.heads, c.heads, NULL });
	c.inner = nn->dim(nn, "ffn", nn->integer(nn, "n_inner", 4 * width), 0);
	return c;
}

static struct tess_tensor *forward_gpt2(struct tess_nn *nn, struct tess_tensor *ids)
{
	const struct gpt2 c = read_gpt2(nn);
	struct tess_dim *vocab = nn->dim(nn, "vocabulary", nn->integer(nn, "vocab_size", 50257), 0);
	struct tess_dim *positions =
		nn->dim(nn, "positions", nn->integer(nn, "n_positions", 1024), 0);
	const struct tess_linear head[] = { { "lm_head", vocab, 0, 0 }, { 0 } };
	struct tess_tensor *x, *y;

	ids = nn->enter(nn, ids, "transformer");
	x = nn->add(nn, nn->embed(nn, "wte", ids, vocab, c.hidden),
	            nn->embed(nn, "wpe", nn->positions(nn, 0), positions, c.hidden));
	x = nn->dropout(nn, x, nn->number(nn, "embd_pdrop", 0.1));
	for (int64_t i = 0; i < c.layers; i++) {
		x = nn->enter(nn, x, "h.%d", (int)i);
		y = nn->norm(nn, "ln_1", x, TESS_LAYER, c.eps);
		x = nn->add(nn, x, attend_as_gpt2(nn, &c, i, y));
		y = nn->norm(nn, "ln_2", x, TESS_LAYER, c.eps);
		x = nn->leave(nn, nn->add(nn, x, feed_as_gpt2(nn, &c, y)));
	}
	x = nn->leave(nn, nn->norm(nn, "ln_f", x, TESS_LAYER, c.eps));
	x = nn->select_rows(nn, x);
	if (nn->integer(nn, "tie_word_embeddings", 1))
		return nn->tied(nn, "lm_head", x, "transformer.wte");
	nn->linear(nn, x, head, &y);
	return y;
}

#define LAYER "transformer.h.*."
static const struct tess_rule tp[] = { { "transformer.wte", "embedding_rowwise" },
	                               { LAYER "attn.c_attn", "colwise" },
	                               { LAYER "attn.c_proj", "rowwise" },
	                               { LAYER "mlp.c_fc", "colwise" },
	                               { LAYER "mlp.c_proj", "rowwise" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { { "transformer.wte", "vocab_reduce_scatter" },
	                                  { "transformer.wpe", "sequence_parallel" },
	                                  { LAYER "ln_1", "sequence_parallel" },
	                                  { LAYER "attn", "module_allgather" },
	                                  { LAYER "attn.c_attn", "colwise" },
	                                  { LAYER "attn.c_proj", "rowwise_reduce_scatter" },
	                                  { LAYER "ln_2", "sequence_parallel" },
	                                  { LAYER "mlp", "module_allgather" },
	                                  { LAYER "mlp.c_fc", "colwise" },
	                                  { LAYER "mlp.c_proj", "rowwise_reduce_scatter" },
	                                  { "transformer.ln_f", "sequence_parallel" },
	                                  { "lm_head", "colwise_gather_output" },
	                                  { 0 } };
static const struct tess_preset presets[] = { { "tp", tp }, { "tp+sp", tp_sp }, { 0 } };
static const char *const types[] = { "gpt2", NULL };
/* masks stored by older checkpoints */
static const char *const unexpected[] = { "*.attn.bias", "*.attn.masked_bias", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12,
	"n_head": 12, "activation_function": "gelu_new", "resid_pdrop": 0.1,
	"embd_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5,
	"scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
	"tie_word_embeddings": true, "bos_token_id": 50256, "eos_token_id": 50256
});
/* clang-format on */
static const struct tess_model gpt2 = {
	.size = sizeof gpt2,
	.name = "gpt2",
	.summary = "GPT-2: learned positions, norms with a bias",
	.types = types,
	.presets = presets,
	.forward = forward_gpt2,
	.unexpected = unexpected,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("gpt2", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &gpt2));

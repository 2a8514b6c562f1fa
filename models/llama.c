/* tess-model-llama.so: Llama 1 to 3. */
#include <math.h>
#include <tessera/model.h>

#define LAYER "model.layers.*."

struct config {
	int64_t layers;
	double eps;
	int32_t act;
	int32_t attention_bias, mlp_bias;
	double scale;
	struct tess_dim *vocab, *hidden, *heads, *kv_heads, *ffn;
};

static struct config read_llama_config(struct tess_nn *nn)
{
	struct config c = { 0 };
	int64_t hidden = nn->integer(nn, "hidden_size", 0),
		heads = nn->integer(nn, "num_attention_heads", 0);
	int64_t head = nn->integer(nn, "head_dim", heads ? hidden / heads : 0);

	c.layers = nn->integer(nn, "num_hidden_layers", 0);
	c.act = nn->activation(nn, "hidden_act", "silu");
	c.eps = nn->number(nn, "rms_norm_eps", 1e-6);
	c.attention_bias = nn->integer(nn, "attention_bias", 0) ? TESS_BIAS : 0;
	c.mlp_bias = nn->integer(nn, "mlp_bias", 0) ? TESS_BIAS : 0;
	c.scale = 1 / sqrt((double)head);
	c.vocab = nn->dim(nn, "vocabulary", nn->integer(nn, "vocab_size", 0), 0);
	c.hidden = nn->dim(nn, "hidden", hidden, TESS_HIDDEN);
	c.heads = nn->dim(nn, "heads", heads, head);
	c.kv_heads = nn->grouped(nn, "key-value heads", c.heads,
	                         nn->integer(nn, "num_key_value_heads", heads));
	c.ffn = nn->dim(nn, "ffn", nn->integer(nn, "intermediate_size", 0), 0);
	return c;
}

static struct tess_tensor *forward_attention(struct tess_nn *nn, const struct config *c,
                                             struct tess_tensor *x)
{
	struct tess_tensor *qkv[3], *y;

	x = nn->enter(nn, x, "self_attn");
	nn->linear(nn, x,
	           (struct tess_linear[]){ { "q_proj", c->heads, c->attention_bias, 0 },
	                                   { "k_proj", c->kv_heads, c->attention_bias, 0 },
	                                   { "v_proj", c->kv_heads, c->attention_bias, 0 },
	                                   { 0 } },
	           qkv);
	qkv[0] = nn->rope(nn, qkv[0]);
	qkv[1] = nn->rope(nn, qkv[1]);
	y = nn->attention(nn, qkv[0], qkv[1], qkv[2], c->scale, 0);
	nn->linear(nn, y,
	           (struct tess_linear[]){ { "o_proj", c->hidden, c->attention_bias, 0 }, { 0 } },
	           &y);
	return nn->leave(nn, y);
}

static struct tess_tensor *forward_mlp(struct tess_nn *nn, const struct config *c,
                                       struct tess_tensor *x)
{
	struct tess_tensor *h[2], *y;

	x = nn->enter(nn, x, "mlp");
	nn->linear(nn, x,
	           (struct tess_linear[]){ { "gate_proj", c->ffn, c->mlp_bias, 0 },
	                                   { "up_proj", c->ffn, c->mlp_bias, 0 },
	                                   { 0 } },
	           h);
	y = nn->glu(nn, h[0], h[1], c->act);
	nn->linear(nn, y,
	           (struct tess_linear[]){ { "down_proj", c->hidden, c->mlp_bias, 0 }, { 0 } }, &y);
	return nn->leave(nn, y);
}

static struct tess_tensor *forward_llama(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct config c = read_llama_config(nn);
	struct tess_tensor *x, *y;

	ids = nn->enter(nn, ids, "model");
	x = nn->embed(nn, "embed_tokens", ids, c.vocab, c.hidden);
	for (int64_t i = 0; i < c.layers; i++) {
		x = nn->enter(nn, x, "layers.%d", (int)i);
		y = forward_attention(nn, &c, nn->norm(nn, "input_layernorm", x, TESS_RMS, c.eps));
		x = nn->add(nn, x, y);
		y = forward_mlp(nn, &c,
		                nn->norm(nn, "post_attention_layernorm", x, TESS_RMS, c.eps));
		x = nn->leave(nn, nn->add(nn, x, y));
	}
	x = nn->select_rows(nn, nn->leave(nn, nn->norm(nn, "norm", x, TESS_RMS, c.eps)));
	if (nn->integer(nn, "tie_word_embeddings", 0))
		return nn->tied(nn, "lm_head", x, "model.embed_tokens");
	nn->linear(nn, x, (struct tess_linear[]){ { "lm_head", c.vocab, 0, 0 }, { 0 } }, &y);
	return y;
}

static const struct tess_rule tp[] = { { "model.embed_tokens", "embedding_rowwise" },
	                               { LAYER "self_attn.q_proj", "colwise" },
	                               { LAYER "self_attn.k_proj", "colwise" },
	                               { LAYER "self_attn.v_proj", "colwise" },
	                               { LAYER "self_attn.o_proj", "rowwise" },
	                               { LAYER "mlp.gate_proj", "colwise" },
	                               { LAYER "mlp.up_proj", "colwise" },
	                               { LAYER "mlp.down_proj", "rowwise" },
	                               { "lm_head", "colwise_rep" },
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { { "model.embed_tokens", "vocab_reduce_scatter" },
	                                  { LAYER "input_layernorm", "sequence_parallel" },
	                                  { LAYER "self_attn", "module_allgather" },
	                                  { LAYER "self_attn.q_proj", "colwise" },
	                                  { LAYER "self_attn.k_proj", "colwise" },
	                                  { LAYER "self_attn.v_proj", "colwise" },
	                                  { LAYER "self_attn.o_proj", "rowwise_reduce_scatter" },
	                                  { LAYER "post_attention_layernorm", "sequence_parallel" },
	                                  { LAYER "mlp", "module_allgather" },
	                                  { LAYER "mlp.gate_proj", "colwise" },
	                                  { LAYER "mlp.up_proj", "colwise" },
	                                  { LAYER "mlp.down_proj", "rowwise_reduce_scatter" },
	                                  { "model.norm", "sequence_parallel" },
	                                  { "lm_head", "colwise_rep" },
	                                  { 0 } };
static const struct tess_preset presets[] = { { "tp", tp }, { "tp+sp", tp_sp }, { 0 } };
static const char *const types[] = { "llama", NULL };
/* computed from rope_theta; older checkpoints store it */
static const char *const unexpected[] = { "*.rotary_emb.inv_freq", NULL };
static const struct tess_model llama = {
	.size = sizeof llama,
	.name = "llama",
	.summary = "Llama 1 to 3",
	.types = types,
	.presets = presets,
	.forward = forward_llama,
	.unexpected = unexpected,
};
static const struct tess_model *const models[] = { &llama, NULL };

TESS_PLUGIN = { .abi = TESS_ABI,
	        .size = sizeof(struct tess_plugin),
	        .name = "llama",
	        .version = "1.0",
	        .license = "Apache-2.0",
	        .models = models };

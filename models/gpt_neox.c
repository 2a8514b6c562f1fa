/*
 * tess-model-gpt_neox.so: GPT-NeoX (Pythia): q, k and v of each head in one weight, rope in a part
 * of each head, attention and MLP side by side.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_gpt_neox(struct tess_nn *nn, const struct tess_decoder *c,
                                              int64_t layer, struct tess_tensor *x)
{
	int64_t heads = nn->integer(nn, "num_attention_heads", TESS_REQUIRED);
	struct tess_dim *packed = nn->heads(nn, "query key value", c->heads, heads, 3 * c->head);
	struct tess_dim *const parts[] = { c->heads, c->heads, c->heads, NULL };
	const struct tess_linear w[] = { { "query_key_value", packed, c->qkv_bias, 0 }, { 0 } };
	struct tess_tensor *qkv[3] = { 0 }, *y;

	(void)layer;
	nn->linear(nn, nn->enter(nn, x, "attention"), w, &y);
	nn->split_heads(nn, y, parts, qkv);
	y = tess_decoder_attend(nn, c, qkv, 0);
	return nn->dropout(nn, y, nn->number(nn, "hidden_dropout", 0));
}

static struct tess_tensor *feed_as_gpt_neox(struct tess_nn *nn, const struct tess_decoder *c,
                                            int64_t layer, struct tess_tensor *x)
{
	(void)layer;
	x = tess_decoder_plain_mlp(nn, c, "dense_h_to_4h", "dense_4h_to_h", x);
	return nn->dropout(nn, x, nn->number(nn, "hidden_dropout", 0));
}

static struct tess_tensor *forward_gpt_neox(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_decoder c = tess_decoder_read(nn, 0);

	c.norm = TESS_LAYER;
	c.eps = nn->number(nn, "layer_norm_eps", 1e-5);
	c.qkv_bias = c.out_bias = nn->integer(nn, "attention_bias", 1) ? TESS_BIAS : 0;
	c.mlp_bias = TESS_BIAS;
	c.parallel = nn->integer(nn, "use_parallel_residual", 1) != 0;
	c.model = "gpt_neox";
	c.table = "embed_in";
	c.last_norm = "final_layer_norm";
	c.out = "dense";
	c.embedding_dropout = nn->number(nn, "hidden_dropout", 0);
	tess_decoder_read_rotary(nn, &c, nn->number(nn, "rotary_pct", 0.25));
	return tess_decoder_record(nn, &c, ids, attend_as_gpt_neox, feed_as_gpt_neox);
}

#define LAYER "gpt_neox.layers.*."
static const struct tess_rule tp[] = { { "gpt_neox.embed_in", "embedding_rowwise" },
	                               { LAYER "attention.query_key_value", "colwise" },
	                               { LAYER "attention.dense", "rowwise" },
	                               { LAYER "mlp.dense_h_to_4h", "colwise" },
	                               { LAYER "mlp.dense_4h_to_h", "rowwise" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { { "gpt_neox.embed_in", "vocab_reduce_scatter" },
	                                  { LAYER "input_layernorm", "sequence_parallel" },
	                                  { LAYER "attention", "module_allgather" },
	                                  { LAYER "attention.query_key_value", "colwise" },
	                                  { LAYER "attention.dense", "rowwise_reduce_scatter" },
	                                  { LAYER "post_attention_layernorm", "sequence_parallel" },
	                                  { LAYER "mlp", "module_allgather" },
	                                  { LAYER "mlp.dense_h_to_4h", "colwise" },
	                                  { LAYER "mlp.dense_4h_to_h", "rowwise_reduce_scatter" },
	                                  { "gpt_neox.final_layer_norm", "sequence_parallel" },
	                                  { "lm_head", "colwise_gather_output" },
	                                  { 0 } };
static const struct tess_stored stored[] = {
	{ "lm_head.weight", (const char *const[]){ "embed_out.weight", NULL } }, { 0 }
};
/* masks stored by older checkpoints */
static const char *const unexpected[] = { "*.attention.bias", "*.attention.masked_bias", NULL };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "gpt_neox", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers":
	44, "num_attention_heads": 64, "hidden_act": "gelu", "attention_dropout": 0,
	"hidden_dropout": 0, "max_position_embeddings": 2048, "layer_norm_eps": 1e-5,
	"rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
	"use_parallel_residual": true, "attention_bias": true, "bos_token_id": 0, "eos_token_id":
	2
});
/* clang-format on */
static const struct tess_model gpt_neox = {
	.size = sizeof gpt_neox,
	.name = "gpt_neox",
	.summary = "GPT-NeoX (Pythia): attention and MLP side by side",
	.types = types,
	.presets = presets,
	.forward = forward_gpt_neox,
	.unexpected = unexpected,
	.stored = stored,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("gpt_neox", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &gpt_neox));

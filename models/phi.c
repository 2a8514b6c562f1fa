/*
 * tess-model-phi.so: Phi 1 to 2: attention and MLP read one norm and are side by side; rope in a
 * part of each head; biases everywhere.
 */
#include <tessera/decoder.h>

static struct tess_tensor *attend_as_phi(struct tess_nn *nn, const struct tess_decoder *c,
                                         int64_t layer, struct tess_tensor *x)
{
	struct tess_tensor *qkv[3];

	(void)layer;
	tess_decoder_project(nn, c, x, qkv);
	if (nn->integer(nn, "qk_layernorm", 0))
		tess_decoder_norm_heads(nn, c, "q_layernorm", "k_layernorm", qkv);
	x = tess_decoder_attend(nn, c, qkv, 0);
	return nn->dropout(nn, x, nn->number(nn, "resid_pdrop", 0));
}

static struct tess_tensor *feed_as_phi(struct tess_nn *nn, const struct tess_decoder *c,
                                       int64_t layer, struct tess_tensor *x)
{
	(void)layer;
	x = tess_decoder_plain_mlp(nn, c, "fc1", "fc2", x);
	return nn->dropout(nn, x, nn->number(nn, "resid_pdrop", 0));
}

static struct tess_tensor *forward_phi(struct tess_nn *nn, struct tess_tensor *ids)
{
	static const char *const untied[] = { "false", NULL };
	struct tess_decoder c = tess_decoder_read(nn, 0);

	if (c.tied) /* a tied head has no bias of its own */
		nn->choice(nn, untied, "tie_word_embeddings");
	c.norm = TESS_LAYER;
	c.eps = nn->number(nn, "layer_norm_eps", 1e-5);
	c.qkv_bias = c.out_bias = c.mlp_bias = c.head_bias = TESS_BIAS;
	c.parallel = 1;
	c.norms[2] = NULL;
	c.last_norm = "final_layernorm";
	c.out = "dense";
	c.embedding_dropout = nn->number(nn, "embd_pdrop", 0);
	tess_decoder_read_rotary(nn, &c, 0.5);
	return tess_decoder_record(nn, &c, ids, attend_as_phi, feed_as_phi);
}

#define LAYER TESS_DECODER_LAYER
#define HEADS \
	{ LAYER "self_attn.q_proj", "colwise" }, { LAYER "self_attn.k_proj", "colwise" }, \
	{ \
		LAYER "self_attn.v_proj", "colwise" \
	}
static const struct tess_rule tp[] = { { "model.embed_tokens", "embedding_rowwise" },
	                               HEADS,
	                               TESS_DECODER_HEAD_NORMS(TESS_DECODER_SOME, "q_layernorm",
	                                                       "k_layernorm"),
	                               { LAYER "self_attn.dense", "rowwise" },
	                               { LAYER "mlp.fc1", "colwise" },
	                               { LAYER "mlp.fc2", "rowwise" },
	                               { "lm_head", "colwise_gather_output" },
	                               { 0 } };
/* sequence parallel: between the blocks, and in norms, each rank has some of the tokens */
static const struct tess_rule tp_sp[] = { { "model.embed_tokens", "vocab_reduce_scatter" },
	                                  { LAYER "input_layernorm", "sequence_parallel" },
	                                  { LAYER "self_attn", "module_allgather" },
	                                  HEADS,
	                                  TESS_DECODER_HEAD_NORMS(TESS_DECODER_SOME, "q_layernorm",
	                                                          "k_layernorm"),
	                                  { LAYER "self_attn.dense", "rowwise_reduce_scatter" },
	                                  { LAYER "mlp", "module_allgather" },
	                                  { LAYER "mlp.fc1", "colwise" },
	                                  { LAYER "mlp.fc2", "rowwise_reduce_scatter" },
	                                  { "model.final_layernorm", "sequence_parallel" },
	                                  { "lm_head", "colwise_gather_output" },
	                                  { 0 } };
static const struct tess_preset presets[] = {
	{ "tp", tp }, { "tp+sp", tp_sp }, { "hf", tp }, { 0 }
};
static const char *const types[] = { "phi", NULL };
/* those of its class in transformers 5.24 */
/* clang-format off */
static const char defaults[] = TESS_JSON({
	"vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers":
	24, "num_attention_heads": 32, "resid_pdrop": 0, "embd_pdrop":
	0, "attention_dropout": 0, "hidden_act": "gelu_new", "max_position_embeddings": 2048,
	"layer_norm_eps": 1e-5, "rope_theta": 10000, "partial_rotary_factor": 0.5,
	"tie_word_embeddings": false, "qk_layernorm": false, "bos_token_id": 1, "eos_token_id": 2
});
/* clang-format on */
static const struct tess_model phi = {
	.size = sizeof phi,
	.name = "phi",
	.summary = "Phi 1 to 2: attention and MLP side by side",
	.types = types,
	.presets = presets,
	.forward = forward_phi,
	.defaults = defaults,
};

TESS_DEFINE_PLUGIN("phi", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &phi));

#include "model.h"

#include "core/base/status.h"
#include "core/registry/registry.h"

#include <pthread.h>
#include <string.h>

/* ---- parameters ------------------------------------------------------------------------------ */

enum { DRAWN = 1 << 14 };

static float drawn[DRAWN];

static void draw_elements(void)
{
	uint32_t state = 1;

	for (size_t i = 0; i < DRAWN; i++) {
		state = state * 1664525 + 1013904223;
		drawn[i] = (float)(state >> 8) / (1 << 23) - 1;
	}
}

static tess_status find_drawn_tensor(void *self, const char *name, struct tess_view *out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct conform_model *m = self;
	int64_t stride = 1;

	pthread_once(&once, draw_elements);
	*out = (struct tess_view){ .data = drawn + strlen(name), .dtype = TESS_F32 };
	out->ndim = m->find_shape(m, name, out->shape);
	if (!out->ndim)
		return tess_fail(TESS_ENOENT, "%s: no such parameter", name);
	for (int32_t a = out->ndim - 1; a >= 0; stride *= out->shape[a--])
		out->stride[a] = stride;
	return TESS_OK;
}

static void drop_nothing(void *self, const void *data, uint64_t bytes)
{
	(void)self;
	(void)data;
	(void)bytes;
}

/* ---- one module ------------------------------------------------------------------------------ */

static struct tess_dim *make_dim(struct tess_nn *nn, const char *name, const char *key)
{
	struct tess_dim *half = nn->dim(nn, name, nn->integer(nn, key, 1), 0);

	return nn->integer(nn, "module", 0) == CONFORM_FUSED
	               ? nn->fused(nn, (struct tess_dim *[]){ half, half, NULL })
	               : half;
}

/* Records experts, routed by full rows, wherever x is. */
static struct tess_tensor *record_experts_module(struct tess_nn *nn, struct tess_tensor *x)
{
	int64_t n = nn->integer(nn, "out", 1);
	struct tess_linear gate[] = { { "gate", nn->dim(nn, "experts", n, 1), 0, 0 }, { 0 } };
	struct tess_route route = { .size = sizeof route, .top = n > 1 ? 2 : 1 };
	bool limited = nn->integer(nn, "op", CONFORM_PLAIN) == CONFORM_LIMITED;
	struct tess_experts experts = { .size = sizeof experts,
		                        .act = TESS_SILU,
		                        .ffn = nn->dim(nn, "ffn", nn->integer(nn, "vocabulary", 1),
		                                       limited) };
	struct tess_tensor *logits;

	if (limited) {
		experts.flags = TESS_BIAS;
		experts.limit = 0.3;
		experts.alpha = 1.7;
	}
	nn->linear(nn, x, gate, &logits);
	return nn->experts(nn, "mod", x, nn->route(nn, logits, &route), &experts);
}

static struct tess_tensor *record_block_module(struct tess_nn *nn, struct tess_tensor *x)
{
	x = nn->enter(nn, x, "mod");
	switch (nn->integer(nn, "op", CONFORM_GLU)) {
	case CONFORM_SIGMOID:
		x = nn->sigmoid(nn, x);
		break;
	case CONFORM_PRODUCT: /* both operands are x: its gradient has two contributions */
		x = nn->multiply(nn, x, x);
		break;
	case CONFORM_CLAMP:
		x = nn->clamp(nn, x, -0.1, 0.2);
		break;
	default:
		x = nn->glu(nn, x, NULL, TESS_GELU);
	}
	return nn->leave(nn, x);
}

static struct tess_tensor *record_one_module(struct tess_nn *nn, struct tess_tensor *ids)
{
	int64_t module = nn->integer(nn, "module", 0);
	struct tess_dim *vocabulary =
		nn->dim(nn, "vocabulary", nn->integer(nn, "vocabulary", 1), 0);
	struct tess_dim *in = make_dim(nn, "in", "in"), *out = make_dim(nn, "out", "out");
	struct tess_linear linear[] = { { "mod", out, module == CONFORM_BIASED ? TESS_BIAS : 0, 0 },
		                        { 0 } };
	struct tess_tensor *x;

	if (module == CONFORM_EMBEDDING) {
		ids = nn->enter(nn, ids, "source");
		return nn->leave(nn, nn->embed(nn, "mod", ids, vocabulary, in));
	}
	x = nn->embed(nn, "source", ids, vocabulary, in);
	if (module == CONFORM_NORM)
		return nn->norm(nn, "mod", x, TESS_RMS, 1e-5);
	if (module == CONFORM_EXPERTS)
		return record_experts_module(nn, x);
	if (module == CONFORM_BLOCK)
		return record_block_module(nn, x);
	nn->linear(nn, x, linear, &x);
	return x;
}

static const struct tess_model one_module = { .size = sizeof one_module,
	                                      .name = "one",
	                                      .forward = record_one_module };

/* Finds the shape of a parameter; returns the number of axes. */
static int32_t find_module_shape(const struct conform_model *m, const char *name, int64_t *shape)
{
	const int64_t *size = m->size;
	int64_t twice = m->module == CONFORM_FUSED ? 2 : 1, in = twice * size[CONFORM_IN];
	bool of_norm = m->module == CONFORM_NORM && strstr(name, "mod");

	shape[0] = strstr(name, "source") || m->module == CONFORM_EMBEDDING
	                   ? size[CONFORM_VOCABULARY]
	                   : twice * size[CONFORM_OUT];
	shape[1] = in;
	if (strstr(name, "gate_up_proj") || strstr(name, "down_proj")) {
		shape[1] = strstr(name, "down_proj") ? in : 2 * size[CONFORM_VOCABULARY];
		shape[2] = strstr(name, "down_proj") ? size[CONFORM_VOCABULARY] : in;
		return strstr(name, "bias") ? 2 : 3;
	}
	if (of_norm)
		shape[0] = in;
	return strstr(name, "bias") || of_norm ? 1 : 2;
}

static void set_source(struct conform_model *m, const char *name)
{
	m->source = (struct tess_source){ .self = m,
		                          .name = name,
		                          .config = m->config,
		                          .find = find_drawn_tensor,
		                          .drop = drop_nothing };
}

tess_status conform_model_open(int32_t module, int32_t op, const int64_t size[CONFORM_SIZES],
                               struct conform_model *m)
{
	int64_t twice = module == CONFORM_FUSED ? 2 : 1;

	*m = (struct conform_model){ .model = &one_module,
		                     .module = module,
		                     .find_shape = find_module_shape };
	m->config = json_pack("{s:i, s:i, s:I, s:I, s:I}", "module", (int)module, "op", (int)op,
	                      "vocabulary", (json_int_t)size[CONFORM_VOCABULARY], "in",
	                      (json_int_t)size[CONFORM_IN], "out", (json_int_t)size[CONFORM_OUT]);
	if (!m->config)
		return tess_fail(TESS_ENOMEM, "out of memory");
	memcpy(m->size, size, sizeof m->size);
	m->width = twice * size[module < CONFORM_NORM ? CONFORM_OUT : CONFORM_IN];
	m->nids = size[CONFORM_VOCABULARY] < m->width ? size[CONFORM_VOCABULARY] : m->width;
	set_source(m, "drawn");
	return TESS_OK;
}

const char *conform_model_get_source_style(int32_t module, char place)
{
	if (module == CONFORM_EMBEDDING)
		return place == 'R' ? "replicate" : "prepare_input:in=shard(0)";
	return place == 'R'   ? "replicate"
	       : place == '0' ? "prepare_output:out=shard(0)"
	       : place == '1' ? "embedding_colwise:keep"
	                      : "local_rowwise";
}

/* ---- decoders -------------------------------------------------------------------------------- */

enum { HIDDEN = 20, VOCABULARY = 37, HEADS = 6, GROUPS = 2, HEAD = 4, FFN = 29, LAYERS = 2 };

static const struct {
	const char *family;
	bool tied;
	int32_t hidden;
} decoders[CONFORM_DECODERS] = { { "llama", true, HIDDEN },
	                         { "phi3", false, HIDDEN },
	                         { "qwen2", false, HEADS *HEAD } };

static int32_t find_decoder_shape(const struct conform_model *m, const char *name, int64_t *shape)
{
	enum { HIDDEN_SIZE = -1 };
	static const struct {
		const char *name;
		int32_t rows, columns;
	} shapes[] = {
		{ "embed_tokens", VOCABULARY, HIDDEN_SIZE },
		{ "lm_head", VOCABULARY, HIDDEN_SIZE },
		{ "q_proj", HEADS * HEAD, HIDDEN_SIZE },
		{ "k_proj", GROUPS * HEAD, HIDDEN_SIZE },
		{ "qkv_proj", (HEADS + 2 * GROUPS) * HEAD, HIDDEN_SIZE },
		{ "v_proj", GROUPS * HEAD, HIDDEN_SIZE },
		{ "o_proj", HIDDEN_SIZE, HEADS * HEAD },
		{ "gate_up_proj", 2 * FFN, HIDDEN_SIZE },
		{ "gate_proj", FFN, HIDDEN_SIZE },
		{ "up_proj", FFN, HIDDEN_SIZE },
		{ "down_proj", HIDDEN_SIZE, FFN },
		{ "norm", HIDDEN_SIZE, 0 },
	};

	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		if (!strstr(name, shapes[i].name))
			continue;
		shape[0] = shapes[i].rows < 0 ? m->size[CONFORM_IN] : shapes[i].rows;
		shape[1] = shapes[i].columns < 0 ? m->size[CONFORM_IN] : shapes[i].columns;
		return !shapes[i].columns || strstr(name, "bias") ? 1 : 2;
	}
	return 0;
}

const char *conform_decoder_get_family(int32_t i)
{
	return decoders[i].family;
}

tess_status conform_decoder_open(int32_t i, struct conform_model *m)
{
	*m = (struct conform_model){ .module = -1,
		                     .size = { 13, VOCABULARY, decoders[i].hidden, VOCABULARY },
		                     .width = VOCABULARY,
		                     .nids = VOCABULARY,
		                     .find_shape = find_decoder_shape };
	m->config = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:s, s:i, s:f}",
	                      "model_type", decoders[i].family, "dtype", "float32", "hidden_size",
	                      (int)decoders[i].hidden, "num_attention_heads", HEADS,
	                      "num_key_value_heads", GROUPS, "num_hidden_layers", LAYERS,
	                      "intermediate_size", FFN, "vocab_size", VOCABULARY, "rms_norm_eps",
	                      1e-5, "tie_word_embeddings", (int)decoders[i].tied, "hidden_act",
	                      "silu", "max_position_embeddings", 128, "rope_theta", 10000.0);
	if (m->config && decoders[i].hidden != HEADS * HEAD)
		json_object_set_new(m->config, "head_dim", json_integer(HEAD));
	if (!m->config)
		return tess_fail(TESS_ENOMEM, "out of memory");
	set_source(m, decoders[i].family);
	return tess_plugin_find_model(decoders[i].family, &m->model);
}

void conform_model_close(struct conform_model *m)
{
	json_decref(m->config);
	m->config = NULL;
}

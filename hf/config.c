#include "hf/config.h"

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/status.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 16 << 20 };

/* ---- config.json ------------------------------------------------------------------------ */

/* Keys of sizes in all model families; a dense model may have 0 experts. */
static const struct {
	const char *key;
	int64_t min, max;
} sizes[] = {
	{ "vocab_size", 1, INT32_MAX },
	{ "hidden_size", 1, INT32_MAX },
	{ "n_embd", 1, INT32_MAX },
	{ "intermediate_size", 1, INT32_MAX },
	{ "n_inner", 1, INT32_MAX },
	{ "head_dim", 1, 1 << 16 },
	{ "num_attention_heads", 1, 1 << 16 },
	{ "num_key_value_heads", 1, 1 << 16 },
	{ "n_head", 1, 1 << 16 },
	{ "num_hidden_layers", 1, 1 << 14 },
	{ "n_layer", 1, 1 << 14 },
	{ "max_position_embeddings", 1, INT32_MAX },
	{ "n_positions", 1, INT32_MAX },
	{ "sliding_window", 0, INT32_MAX },
	{ "moe_intermediate_size", 0, INT32_MAX },
	{ "num_local_experts", 0, 1 << 16 },
	{ "num_experts", 0, 1 << 16 },
	{ "num_experts_per_tok", 0, 1 << 16 },
};

/* Pairs of keys that are the shape of a matrix. */
static const char *const matrices[][2] = {
	{ "vocab_size", "hidden_size" },        { "vocab_size", "n_embd" },
	{ "intermediate_size", "hidden_size" }, { "n_inner", "n_embd" },
	{ "head_dim", "num_attention_heads" },
};
static const int64_t elements_max = (int64_t)1 << 40;

static const char *const epsilons[] = { "rms_norm_eps", "norm_eps", "norm_epsilon",
	                                "layer_norm_eps", "layer_norm_epsilon" };

static tess_status check_sizes(const char *path, const json_t *root)
{
	int64_t a, b, any = 0;
	tess_status st = TESS_OK;
	double eps = 0;

	for (size_t i = 0; !st && i < sizeof sizes / sizeof *sizes; i++)
		st = tess_json_get_int(path, root, sizes[i].key, sizes[i].min, sizes[i].max, &any);
	for (size_t i = 0; !st && i < sizeof epsilons / sizeof *epsilons; i++)
		st = tess_json_get_number(path, root, epsilons[i], 0, 1, &eps);
	for (size_t i = 0; !st && i < sizeof matrices / sizeof *matrices; i++) {
		a = json_integer_value(json_object_get(root, matrices[i][0]));
		b = json_integer_value(json_object_get(root, matrices[i][1]));
		if (b && a > elements_max / b)
			st = tess_fail(
				TESS_EINVAL,
				"%s: %s %lld times %s %lld is more than a tensor can hold (2^40)",
				path, matrices[i][0], (long long)a, matrices[i][1], (long long)b);
	}
	return st;
}

/* Refuses quantised weights other than MXFP4, which would be read without their scales. */
static tess_status check_quantization(const char *path, const json_t *root, bool *mxfp4)
{
	static const char *const keys[] = { "quantization_config", "compression_config",
		                            "quantization" };

	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		const json_t *q = json_object_get(root, keys[i]);
		const char *method = json_string_value(json_object_get(q, "quant_method"));

		if (!q || json_is_null(q) || (json_is_object(q) && !json_object_size(q)))
			continue;
		if (!i && method && !strcmp(method, "mxfp4")) {
			*mxfp4 = true;
			continue;
		}
		return tess_fail(TESS_ENOTSUP,
		                 "%s: %s: the weights are quantised%s%.64s, a format that is not "
		                 "read; " TESS_UNPACKED_WEIGHTS,
		                 path, keys[i], method ? " by " : "", method ? method : "");
	}
	return TESS_OK;
}

/* Derives the model type, the part before the head: "Qwen3MoeForCausalLM" -> "qwen3_moe". */
static void derive_model_type(const char *architecture, size_t size, char *out)
{
	static const char *const heads[] = { "ForCausalLM", "LMHeadModel" };
	size_t len = strlen(architecture), at = 0;

	for (int i = 0; i < 2; i++) {
		const char *head = strstr(architecture, heads[i]);

		if (head)
			len = (size_t)(head - architecture);
	}
	for (size_t i = 0; i < len && at + 2 < size; i++) {
		unsigned char c = (unsigned char)architecture[i];

		if (i && isupper(c) && !isupper((unsigned char)architecture[i - 1]))
			out[at++] = '_';
		out[at++] = (char)tolower(c);
	}
	out[at] = 0;
}

static tess_status read_model_type(const char *path, const json_t *root, size_t size, char *out)
{
	const json_t *type = json_object_get(root, "model_type"),
		     *list = json_object_get(root, "architectures");
	const char *name = json_string_value(type),
		   *first = json_string_value(json_array_get(list, 0));

	if (type && !json_is_null(type) && (!name || !*name || strlen(name) >= size))
		return tess_fail(TESS_EINVAL, "%s: model_type: text of 1 to %zu bytes is needed",
		                 path, size - 1);
	if (!name && (!first || !*first || strlen(first) >= size))
		return tess_fail(TESS_EINVAL,
		                 "%s: neither model_type nor architectures says what model this is",
		                 path);
	if (name)
		memcpy(out, name, strlen(name) + 1);
	else
		derive_model_type(first, size, out);
	return TESS_OK;
}

/*
 * Replaces *root by its text_config, if it has one, with those keys beside it that also apply to
 * the text part and that text_config lacks.
 */
static tess_status keep_text_config(json_t **root)
{
	static const char *const shared[] = {
		"dtype",        "torch_dtype",  "bos_token_id",
		"eos_token_id", "pad_token_id", "tie_word_embeddings"
	};
	json_t *text = json_incref(json_object_get(*root, "text_config"));

	for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
		json_t *value = json_object_get(*root, shared[i]);

		if (value && !json_object_get(text, shared[i]) &&
		    json_object_set(text, shared[i], value)) {
			json_decref(text);
			return TESS_ENOMEM;
		}
	}
	json_decref(*root);
	*root = text;
	return TESS_OK;
}

tess_status tess_config_make(const char *path, json_t *root, struct tess_config *out)
{
	struct tess_config c = { .text_part =
		                         json_is_object(json_object_get(root, "text_config")) };
	tess_status st = TESS_OK;

	if (!json_is_object(root))
		st = tess_fail(TESS_EINVAL, "%s: an object is needed", path);
	if (c.text_part)
		st = check_quantization(path, root, &c.mxfp4);
	if (!st && c.text_part)
		st = keep_text_config(&root);
	c.root = root;
	if (!st)
		st = read_model_type(path, root, sizeof c.type, c.type);
	if (!st)
		st = check_quantization(path, root, &c.mxfp4);
	if (!st)
		st = check_sizes(path, root);
	if (st)
		json_decref(root);
	else
		*out = c;
	return st;
}

tess_status tess_config_load(const char *path, struct tess_config *out)
{
	json_t *root = NULL;
	tess_status st = tess_json_load(path, FILE_BYTES_MAX, &root);

	return st ? st : tess_config_make(path, root, out);
}

void tess_config_free(struct tess_config *c)
{
	json_decref(c->root);
	c->root = NULL;
}

tess_status tess_config_get_dtype(const char *path, const struct tess_config *c, int32_t *out)
{
	static const struct {
		const char *name;
		int32_t dtype;
	} known[] = { { "float32", TESS_F32 }, { "bfloat16", TESS_BF16 }, { "float16", TESS_F16 } };
	const json_t *value = json_object_get(c->root, "dtype");
	const char *name;

	if (!value || json_is_null(value))
		value = json_object_get(c->root, "torch_dtype");
	name = json_string_value(value);
	for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i].name, name)) {
			*out = known[i].dtype;
			return TESS_OK;
		}
	if (value && !json_is_null(value))
		return tess_fail(TESS_ENOTSUP,
		                 "%s: dtype \"%.64s\" of the weights is not supported; float32, "
		                 "bfloat16 and float16 are",
		                 path, name ? name : "(no text)");
	*out = c->mxfp4 ? TESS_BF16 : TESS_F32;
	return TESS_OK;
}

/* ---- generation_config.json ------------------------------------------------------------- */

/* Unsupported settings that change the output, each with the value that has no effect. */
static const struct {
	const char *key;
	double neutral;
} unused[] = {
	{ "num_beams", 1 },
	{ "num_beam_groups", 1 },
	{ "no_repeat_ngram_size", 0 },
	{ "encoder_no_repeat_ngram_size", 0 },
	{ "typical_p", 1 },
	{ "epsilon_cutoff", 0 },
	{ "eta_cutoff", 0 },
	{ "top_h", 1 },
	{ "penalty_alpha", 0 },
	{ "encoder_repetition_penalty", 1 },
	{ "min_length", 0 },
	{ "min_new_tokens", 0 },
	{ "guidance_scale", 1 },
	{ "suppress_tokens", 0 },
	{ "begin_suppress_tokens", 0 },
	{ "bad_words_ids", 0 },
	{ "force_words_ids", 0 },
	{ "forced_bos_token_id", -1 },
	{ "forced_eos_token_id", -1 },
	{ "sequence_bias", 0 },
	{ "stop_strings", 0 },
	{ "exponential_decay_length_penalty", 0 },
	{ "dola_layers", 0 },
	{ "watermarking_config", 0 },
};

static void warn_unused(const char *path, const json_t *g)
{
	for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
		const json_t *value = json_object_get(g, unused[i].key);

		if (!value || json_is_null(value) || json_is_false(value) ||
		    (json_is_array(value) && !json_array_size(value)) ||
		    (json_is_number(value) && json_number_value(value) == unused[i].neutral))
			continue;
		tess_log(TESS_WARN, "hf", "%s: %s is not supported and has no effect", path,
		         unused[i].key);
	}
}

static int64_t get_vocab_size(const json_t *config)
{
	const json_t *size = json_object_get(config, "vocab_size");

	return json_is_integer(size) ? json_integer_value(size) : (int64_t)INT32_MAX + 1;
}

static size_t count_ids(const json_t *value)
{
	if (!value || json_is_null(value))
		return 0;
	return json_is_array(value) ? json_array_size(value) : 1;
}

static const json_t *get_id_value(const json_t *value, size_t i)
{
	return json_is_array(value) ? json_array_get(value, i) : value;
}

/* Reads an id, a list of ids, or null; *n: capacity, then count. Drops ids that no token has. */
static tess_status read_ids_key(const char *path, const json_t *o, const char *key, int64_t vocab,
                                int32_t *n, int64_t *ids)
{
	const json_t *value = json_object_get(o, key);
	const size_t count = count_ids(value);
	int32_t kept = 0;

	if (count > (size_t)*n)
		return tess_fail(TESS_EINVAL, "%s: %s: %zu ids; at most %d are allowed", path, key,
		                 count, *n);
	for (size_t i = 0; i < count; i++) {
		const json_t *id = get_id_value(value, i);

		if (!json_is_integer(id))
			return tess_fail(TESS_EINVAL, "%s: %s: an id is a whole number from 0 on",
			                 path, key);
		if (json_integer_value(id) >= 0 && json_integer_value(id) < vocab)
			ids[kept++] = json_integer_value(id);
	}
	*n = kept;
	return TESS_OK;
}

/* Reads the special ids; those of config.json are checked even where overridden. */
static tess_status read_special_ids(const char *path, const json_t *generation,
                                    const char *config_path, const json_t *config,
                                    struct tess_generation_config *g)
{
	static const char *const keys[] = { "bos_token_id", "pad_token_id", "eos_token_id" };
	int64_t *const ids[] = { &g->bos, &g->pad, g->eos }, vocab = get_vocab_size(config);

	for (int i = 0; i < 3; i++) {
		int32_t n = i < 2 ? 1 : TESS_EOS_MAX, own = n;
		tess_status st = read_ids_key(config_path, config, keys[i], vocab, &n, ids[i]);

		if (!st && json_object_get(generation, keys[i])) {
			if (i < 2)
				*ids[i] = -1;
			st = read_ids_key(path, generation, keys[i], vocab, &own, ids[i]);
			n = own;
		}
		if (st)
			return st;
		g->neos = i < 2 ? 0 : n;
	}
	return TESS_OK;
}

static void warn_bad_ids(const char *path, const json_t *o, int64_t vocab)
{
	const json_t *value = json_object_get(o, "eos_token_id");

	for (size_t i = 0; i < count_ids(value); i++) {
		long long id = json_integer_value(get_id_value(value, i));

		if (id < 0 || id >= vocab)
			tess_log(TESS_WARN, "hf",
			         "%s: eos_token_id: no token has the id %lld, which never ends a "
			         "text; ids are 0 to %lld",
			         path, id, (long long)vocab - 1);
	}
}

void tess_generation_warn_unused(const char *path, const json_t *generation,
                                 const char *config_path, const json_t *config)
{
	bool own = json_object_get(generation, "eos_token_id") != NULL;

	warn_bad_ids(own ? path : config_path, own ? generation : config, get_vocab_size(config));
	warn_unused(path, generation);
}

tess_status tess_generation_make(const char *path, const json_t *generation,
                                 const char *config_path, const json_t *config,
                                 struct tess_generation_config *out)
{
	struct tess_generation_config g = {
		.bos = -1,
		.pad = -1,
		.temperature = 1,
		.top_p = 1,
		.repetition_penalty = 1,
		.top_k = 50,
	};
	const json_t *o = generation;
	tess_status st;

	if (o && !json_is_object(o))
		return tess_fail(TESS_EINVAL, "%s: an object is needed", path);
	st = read_special_ids(path, o, config_path, config, &g);
	if (!st)
		st = tess_json_get_bool(path, o, "do_sample", &g.sample);
	if (!st)
		st = tess_json_get_number(path, o, "temperature", 0, 1e6, &g.temperature);
	if (!st)
		st = tess_json_get_number(path, o, "top_p", 0, 1, &g.top_p);
	if (!st)
		st = tess_json_get_number(path, o, "min_p", 0, 1, &g.min_p);
	if (!st)
		st = tess_json_get_number(path, o, "repetition_penalty", 1e-6, 1e6,
		                          &g.repetition_penalty);
	if (!st)
		st = tess_json_get_int(path, o, "top_k", 0, INT32_MAX, &g.top_k);
	if (!st)
		st = tess_json_get_int(path, o, "max_new_tokens", 1, INT32_MAX, &g.max_new_tokens);
	if (!st)
		st = tess_json_get_int(path, o, "max_length", 1, INT32_MAX, &g.max_length);
	if (!st)
		*out = g;
	return st;
}

struct tess_sampling tess_generation_config_get_sampling(const struct tess_generation_config *g)
{
	return (struct tess_sampling){ .temperature = g->sample ? g->temperature : 0,
		                       .top_p = g->top_p,
		                       .min_p = g->min_p,
		                       .repetition_penalty = g->repetition_penalty,
		                       .top_k = g->top_k };
}

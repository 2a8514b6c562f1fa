/* config.h - config.json and generation_config.json: the keys that all models share. */
#ifndef TESS_HF_CONFIG_H
#define TESS_HF_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <tessera/sampling.h>

/* The way out, for messages about packed weights. */
#define TESS_UNPACKED_WEIGHTS \
	"use a checkpoint whose weights are F32, BF16 or F16, or dequantize this one with the " \
	"library that made it (transformers: model.dequantize(), save_pretrained)"

struct tess_config {
	json_t *root;
	/* model_type; without one, made of architectures[0]: Qwen3MoeForCausalLM is qwen3_moe. */
	char type[64];
	/* The text part of a model that reads images, too: `root` is its text_config. */
	bool text_part;
	/* quantization_config: some weights may be stored in MXFP4 (hf/mxfp4.h). */
	bool mxfp4;
};

/*
 * Validates config.json, or its text_config with the special ids, dtype and tie_word_embeddings
 * beside it: a model type, weights that are not quantised, except in MXFP4, numbers in their
 * ranges, and integer sizes whose products do not overflow. The model checks that sizes fit each
 * other. Takes ownership of `root`, even on failure. Free the contents of *out by tess_config_free.
 */
tess_status tess_config_make(const char *path, json_t *root, struct tess_config *out);
tess_status tess_config_load(const char *path, struct tess_config *out);
void tess_config_free(struct tess_config *c);

/*
 * Returns the dtype of the weights from `dtype` or `torch_dtype`; without either f32, or bf16
 * beside MXFP4, as in transformers. TESS_ENOTSUP: a dtype other than F32, BF16 and F16.
 */
tess_status tess_config_get_dtype(const char *path, const struct tess_config *c, int32_t *out);

enum { TESS_EOS_MAX = 64 };

struct tess_generation_config { /* the sampling settings of a checkpoint */
	int64_t bos, pad; /* ids; -1: none */
	int64_t eos[TESS_EOS_MAX]; /* any of these ends a sequence */
	int32_t neos;
	bool sample; /* false: greedy; the rest is ignored */
	double temperature, top_p, min_p, repetition_penalty; /* 1, 1, 0, 1: no effect */
	int64_t top_k; /* 0: all */
	int64_t max_new_tokens; /* 0: not given */
	int64_t max_length; /* prompt and new tokens; unused with max_new_tokens; 0: not given */
};

/*
 * Reads `generation`: generation_config.json, or NULL. Absent ids come from config.json; other
 * absent keys have the defaults of transformers (top_k 50). Ids that no token has are dropped.
 */
tess_status tess_generation_make(const char *path, const json_t *generation,
                                 const char *config_path, const json_t *config,
                                 struct tess_generation_config *out);

/* Returns the sampling of the checkpoint; greedy without do_sample. */
struct tess_sampling tess_generation_config_get_sampling(const struct tess_generation_config *g);

/*
 * Logs settings without effect: end-of-text ids that no token has, and unsupported settings that
 * would change the output (beams, ...).
 */
void tess_generation_warn_unused(const char *path, const json_t *generation,
                                 const char *config_path, const json_t *config);

#endif

/*
 * model.h - small models with drawn parameters, in memory: one module, "mod", or a decoder. They
 * are for testing a style.
 */
#ifndef TESS_TOOLS_CONFORM_STYLE_MODEL_H
#define TESS_TOOLS_CONFORM_STYLE_MODEL_H

#include "nn/program/source.h"

#include <tessera/model.h>

/*
 * Modules that a style may be for: linear, with a bias, of two fused halves; norm; embedding; one
 * with an op; as many experts as y is wide, each as wide as the vocabulary.
 */
enum conform_module {
	CONFORM_LINEAR,
	CONFORM_BIASED,
	CONFORM_FUSED,
	CONFORM_NORM,
	CONFORM_EMBEDDING,
	CONFORM_BLOCK,
	CONFORM_EXPERTS,
	CONFORM_MODULES
};
/* Ops of CONFORM_BLOCK. */
enum { CONFORM_GLU, CONFORM_SIGMOID, CONFORM_PRODUCT, CONFORM_CLAMP, CONFORM_BLOCK_OPS };
/* CONFORM_EXPERTS without and with biases and a limited activation. */
enum { CONFORM_PLAIN, CONFORM_LIMITED };
/* Sizes: tokens, the vocabulary, x and y; x and y of CONFORM_FUSED are twice as wide. */
enum { CONFORM_TOKENS, CONFORM_VOCABULARY, CONFORM_IN, CONFORM_OUT, CONFORM_SIZES };

struct conform_model {
	const struct tess_model *model;
	struct tess_source source; /* its `self` is this struct, which stays in place */
	json_t *config;
	int32_t module; /* CONFORM_LINEAR, ... */
	int64_t size[CONFORM_SIZES];
	int64_t width; /* number of logits of a row */
	int64_t nids; /* ids are less */
	int32_t (*find_shape)(const struct conform_model *m, const char *name, int64_t *shape);
};

/*
 * Opens the model of one module. The input of "mod" comes from the embedding "source", or from the
 * module "source" if it is an embedding itself; y is the logits. op: that of CONFORM_BLOCK or
 * CONFORM_EXPERTS.
 * Close *m by conform_model_close. TESS_ENOMEM.
 */
tess_status conform_model_open(int32_t module, int32_t op, const int64_t size[CONFORM_SIZES],
                               struct conform_model *m);
/*
 * Returns the style of "source" that gives "mod" an input of this place: R replicated, 0 and 1 cut
 * by tokens and by columns, P partial.
 */
const char *conform_model_get_source_style(int32_t module, char place);

/* Decoders: key-value heads that are shared, tied embeddings, fused parts, biases; odd sizes. */
enum { CONFORM_DECODERS = 3 };
/* Returns the family of a decoder, as in config.json. */
const char *conform_decoder_get_family(int32_t i);
/* Opens a decoder; close it by conform_model_close. Fails if the family is not found. */
tess_status conform_decoder_open(int32_t i, struct conform_model *m);

void conform_model_close(struct conform_model *m);

#endif

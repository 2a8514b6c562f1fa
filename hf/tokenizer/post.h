/* post.h - the ids added around a text, and its begin and end tokens. */
#ifndef TESS_HF_TOKENIZER_POST_H
#define TESS_HF_TOKENIZER_POST_H

#include "hf/tokenizer/bpe.h"

struct tess_post {
	struct tess_ids before, after;
	int32_t bos, eos; /* -1: not named */
};

/* Reads `post_processor` of tokenizer.json, or null. */
tess_status tess_post_parse(const json_t *j, const struct tess_vocab *v, struct tess_post *out);

/*
 * Reads bos_token and eos_token of tokenizer_config.json. Reads add_bos_token and add_eos_token for
 * the classes whose post-processor transformers rebuilds from these.
 */
tess_status tess_post_read_config(const json_t *config, const struct tess_vocab *v,
                                  struct tess_post *out);

void tess_post_free(struct tess_post *p);

#endif

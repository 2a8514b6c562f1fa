/* tokenizer_post.h - the ids that stand around a text, and which tokens begin and end one. */
#ifndef TESS_HF_TOKENIZER_POST_H
#define TESS_HF_TOKENIZER_POST_H

#include "bpe.h"

struct tess_post {
	struct tess_ids before, after;
	int32_t bos, eos; /* -1: not named */
};

/* `post_processor` of tokenizer.json, or null. */
tess_status tess_post_parse(const json_t *j, const struct tess_vocab *v, struct tess_post *out);

/*
 * tokenizer_config.json: its bos_token and eos_token; and add_bos_token and add_eos_token for the classes
 * for which transformers writes the post-processor anew from these two.
 */
tess_status tess_post_read_config(const json_t *config, const struct tess_vocab *v,
                                  struct tess_post *out);

void tess_post_free(struct tess_post *p);

#endif

/* added.h - added tokens, which are matched before a text is split or encoded. */
#ifndef TESS_HF_TOKENIZER_ADDED_H
#define TESS_HF_TOKENIZER_ADDED_H

#include "hf/tokenizer/bpe.h"
#include "hf/tokenizer/normalize.h"

/* A set of strings: finds the longest one that begins at a position. */
struct tess_trie {
	struct tess_trie_node *node;
	size_t n, capacity;
};

struct tess_added {
	struct tess_added_token *token;
	size_t n;
	struct tess_trie raw, normal; /* found in the original and in the normalized text */
};

/*
 * Adds the tokens that only `added_tokens_decoder` of tokenizer_config.json has to `added_tokens`
 * of tokenizer.json, in order of ids, as transformers does. The id of each is that of the
 * vocabulary, else the next free one.
 */
tess_status tess_added_extend(json_t *tokenizer, const json_t *config);

/* Counts the tokens of `added_tokens`; *ids: one more than their largest id. */
tess_status tess_added_count(const json_t *list, size_t *n, size_t *ids);

/* Reads `added_tokens` and adds them to `v`, which must have the capacity. */
tess_status tess_added_parse(const json_t *list, const struct tess_normalizer *norm,
                             struct tess_scan *scan, struct tess_vocab *v, struct tess_added *out);
void tess_added_free(struct tess_added *a);

/* Splits a text at the tokens of one of the two sets; tokens become pieces with an id. */
tess_status tess_added_split(const struct tess_added *a, const struct tess_trie *set, const char *s,
                             size_t n, bool first, struct tess_pieces *out);

#endif

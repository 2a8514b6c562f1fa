/* tokenizer_added.h - tokens that are found in a text before anything else is done to it. */
#ifndef TESS_HF_TOKENIZER_ADDED_H
#define TESS_HF_TOKENIZER_ADDED_H

#include "bpe.h"
#include "normalize.h"

/* A set of texts, byte by byte: finds the longest that begins at a place. */
struct tess_trie {
	struct tess_trie_node *node;
	size_t n, capacity;
};

struct tess_added {
	struct tess_added_token *token;
	size_t n;
	struct tess_trie raw, normal; /* found in the text as it comes, and in normalized text */
};

/* How many tokens `added_tokens` has, and one more than their largest id. */
tess_status tess_added_count(const json_t *list, size_t *n, size_t *ids);

/* Reads them into `v`, too, which has room. */
tess_status tess_added_parse(const json_t *list, const struct tess_normalizer *norm,
                             struct tess_scan *scan, struct tess_vocab *v, struct tess_added *out);
void tess_added_free(struct tess_added *a);

/* Cuts a text at the tokens of one of the two sets: these become pieces with an id. */
tess_status tess_added_split(const struct tess_added *a, const struct tess_trie *set, const char *s,
                             size_t n, bool first, struct tess_pieces *out);

#endif

/* bpe.h - a vocabulary and its byte pair encoding. */
#ifndef TESS_HF_TOKENIZER_BPE_H
#define TESS_HF_TOKENIZER_BPE_H

#include "hf/tokenizer/text.h"

enum { TESS_IDS_MAX = 1 << 22 }; /* ids are below this */

struct tess_token {
	uint32_t at, len; /* in tess_vocab.text; len 0: no token has this id */
	/* the decoded form, normalized for an added token */
	uint32_t decoded_at, decoded_len;
	bool model; /* listed in model.vocab */
	bool special;
};

struct tess_vocab {
	struct tess_text text; /* each token ends with 0 */
	struct tess_token *token; /* by id */
	int32_t n; /* one more than the largest id */
	int32_t *slot; /* ids by hash of their text, -1: free */
	uint64_t mask, seed; /* random seed: tokens cannot be crafted to collide */
};

/* Reads model.vocab. Leaves room for `more` added tokens with ids below `ids`. */
tess_status tess_vocab_parse(const json_t *vocab, size_t more, size_t ids, struct tess_vocab *out);
/* Adds a token; does nothing if it already has this id. */
tess_status tess_vocab_add(struct tess_vocab *v, const char *s, size_t n, int32_t id);
/* Sets the decoded form of an existing token. */
tess_status tess_vocab_set_decoded(struct tess_vocab *v, int32_t id, const char *s, size_t n);
/* Returns the id of a token, or -1. */
int32_t tess_vocab_find(const struct tess_vocab *v, const char *s, size_t n);
void tess_vocab_free(struct tess_vocab *v);

struct tess_ids {
	int32_t *id;
	size_t n, capacity;
	uint32_t *begin; /* offset of each id in the text; only if `placed` */
	bool placed;
	uint32_t at; /* offset of the next id in the text */
};
tess_status tess_ids_add(struct tess_ids *ids, int32_t id);
void tess_ids_free(struct tess_ids *ids);

struct tess_bpe {
	const struct tess_vocab *vocab;
	struct tess_merge *merge; /* by hash of the pair */
	uint64_t mask;
	int32_t low[0x400]; /* ids of the first code points, which include the byte alphabet */
	int32_t byte[256]; /* ids of "<0x00>" ..., with byte_fallback */
	int32_t unk; /* -1: none */
	bool fuse_unk, byte_fallback, ignore_merges;
};

/* Reads `model`, the object of that key, of type BPE. Borrows `vocab`, which is complete. */
tess_status tess_bpe_parse(const json_t *model, const struct tess_vocab *vocab,
                           struct tess_bpe *out);
void tess_bpe_free(struct tess_bpe *b);

/* Memory for encoding, reused for each piece. Start with {0}. */
struct tess_bpe_scratch {
	void *symbol, *queue;
	size_t n;
};
void tess_bpe_scratch_free(struct tess_bpe_scratch *scratch);

/* Appends the ids of a piece of valid UTF-8, which begins at out->at; O(n log n) for any piece. */
tess_status tess_bpe_encode(const struct tess_bpe *b, struct tess_bpe_scratch *scratch,
                            const char *s, size_t n, struct tess_ids *out);

#endif

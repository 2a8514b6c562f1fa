/* tokenizer.h - the internal interface of a tokenizer, in addition to tessera/tokenizer.h. */
#ifndef TESS_HF_TOKENIZER_TOKENIZER_H
#define TESS_HF_TOKENIZER_TOKENIZER_H

#include <tessera/tokenizer.h>

/* Opens a tokenizer from memory: `len` bytes of a tokenizer.json. Messages begin with `name`. */
tess_status tess_tokenizer_parse(const char *name, const char *json, size_t len,
                                 struct tess_tokenizer **out);

/* A border in a text, and the ids at it. Both are equal unless an id has bytes on both sides. */
struct tess_token_border {
	size_t at; /* its byte in the text; the caller sets it */
	size_t ends_after; /* the first id whose text ends after the border */
	size_t begins_at; /* the first id whose text begins at the border or after it */
};

/*
 * Encodes a text like tess_tokenizer_encode, without ids around it, and finds the ids at borders
 * between characters, in ascending order. The time grows by that of a segment between special
 * tokens for each border in it.
 */
tess_status tess_tokenizer_encode_borders(const struct tess_tokenizer *t, const char *text,
                                          size_t len, struct tess_token_border *border,
                                          size_t nborders, int32_t **ids, size_t *n);

/* Sets the ids that precede the pushed ones and whose text is not returned. Call once, first. */
tess_status tess_decode_stream_follow(struct tess_decode_stream *d, const int32_t *ids, int64_t n);

/* Returns one more than the largest id; a model may have more rows. */
int32_t tess_tokenizer_vocab_size(const struct tess_tokenizer *t);

/* Returns the token as in the file, borrowed, or NULL. */
const char *tess_tokenizer_id_to_token(const struct tess_tokenizer *t, int32_t id);

/* Returns the id of a token as in the file, or -1. */
int32_t tess_tokenizer_token_to_id(const struct tess_tokenizer *t, const char *token);

/* Returns whether the id is a special token, which skip_special omits. */
bool tess_tokenizer_is_special(const struct tess_tokenizer *t, int32_t id);

/* Return the begin and end token from tokenizer_config.json, or -1. */
int32_t tess_tokenizer_bos(const struct tess_tokenizer *t);
int32_t tess_tokenizer_eos(const struct tess_tokenizer *t);

#endif

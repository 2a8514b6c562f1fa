/* tokenizer.h - what hf and its tests need of a tokenizer beyond tessera/tokenizer.h. */
#ifndef TESS_HF_TOKENIZER_TOKENIZER_H
#define TESS_HF_TOKENIZER_TOKENIZER_H

#include <tessera/tokenizer.h>

/* The same from memory: `len` bytes of a tokenizer.json. Sentences begin with `name`. */
tess_status tess_tokenizer_parse(const char *name, const char *json, size_t len,
                                 struct tess_tokenizer **out);

/* The ids that come before those that are pushed: their text is not given out. Once, first. */
tess_status tess_decode_stream_follow(struct tess_decode_stream *d, const int32_t *ids, int64_t n);

/* One more than the largest id; a model may have more rows. */
int32_t tess_tokenizer_vocab_size(const struct tess_tokenizer *t);

/* The token as in the file, ended by 0, or NULL. Borrowed. */
const char *tess_tokenizer_id_to_token(const struct tess_tokenizer *t, int32_t id);

/* The id of a token as in the file, or -1. */
int32_t tess_tokenizer_token_to_id(const struct tess_tokenizer *t, const char *token);

/* Whether the id is a special token, which skip_special leaves out of the text. */
bool tess_tokenizer_is_special(const struct tess_tokenizer *t, int32_t id);

/* The tokens that begin and end a text, from tokenizer_config.json, or -1. */
int32_t tess_tokenizer_bos(const struct tess_tokenizer *t);
int32_t tess_tokenizer_eos(const struct tess_tokenizer *t);

#endif

/*
 * tokenizer.h - text to ids and back, by a checkpoint's tokenizer.json: BPE, with byte fallback
 * (Llama 2, Mistral) and on bytes (GPT-2, Llama 3, Qwen). The ids are those of Hugging Face's
 * `tokenizers`; what a file asks for and is not known here is refused with its key.
 *
 * A tokenizer is untrusted: sizes, nesting and the steps of its patterns are limited, and going
 * beyond a limit is an error. It does not change once it is open; any number of threads may use it.
 */
#ifndef TESS_HF_TOKENIZER_H
#define TESS_HF_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <tessera/plugin.h>

struct tess_tokenizer;
struct tess_decode_stream;

/*
 * Opens a directory that has a tokenizer.json, or such a file. A tokenizer_config.json beside it says
 * which tokens begin and end a text, and for the Llama family whether they are added.
 * TESS_ENOENT without tokenizer.json; the sentence has file, key and reason.
 */
tess_status tess_tokenizer_open(const char *path, struct tess_tokenizer **out);

/* The same from memory: `len` bytes of a tokenizer.json; `name` begins the sentences. */
tess_status tess_tokenizer_parse(const char *name, const char *json, size_t len,
                                 struct tess_tokenizer **out);

void tess_tokenizer_close(struct tess_tokenizer *t);

/*
 * The ids of `len` bytes of UTF-8, which may hold zeros. With `add_special` also the ids that the file
 * puts around a text. Special tokens spelled out in the text become their ids. As in `tokenizers`, a
 * character that has no token is left out where the file names no unknown token. *ids is the caller's
 * (free) and not NULL, though *n may be 0.
 */
tess_status tess_tokenizer_encode(const struct tess_tokenizer *t, const char *text, size_t len,
                                  bool add_special, int32_t **ids, size_t *n);

/* The text of n ids, ended by a 0 that *len does not count; ids without a token have none. *text: free. */
tess_status tess_tokenizer_decode(const struct tess_tokenizer *t, const int32_t *ids, size_t n,
                                  bool skip_special, char **text, size_t *len);

/* One more than the largest id; a model may have more rows than that. */
int32_t tess_tokenizer_vocab_size(const struct tess_tokenizer *t);

/* The token as the file spells it, ended by 0, or NULL. Borrowed. */
const char *tess_tokenizer_id_to_token(const struct tess_tokenizer *t, int32_t id);

/* The id of a token as the file spells it, or -1. */
int32_t tess_tokenizer_token_to_id(const struct tess_tokenizer *t, const char *token);

/* Whether the id is a special token: left out of text by skip_special. */
bool tess_tokenizer_is_special(const struct tess_tokenizer *t, int32_t id);

/* The tokens that begin and end a text, as tokenizer_config.json names them, or -1. */
int32_t tess_tokenizer_bos(const struct tess_tokenizer *t);
int32_t tess_tokenizer_eos(const struct tess_tokenizer *t);

/*
 * Decoding id by id: what is pushed, and the end, give together the very text of tess_tokenizer_decode.
 * A push gives the bytes that are final: always whole characters, perhaps none. *bytes is borrowed until
 * the next call. Borrows `t`. After the end nothing may be pushed.
 */
tess_status tess_decode_stream_open(const struct tess_tokenizer *t, bool skip_special,
                                    struct tess_decode_stream **out);
tess_status tess_decode_stream_push(struct tess_decode_stream *d, int32_t id, const char **bytes,
                                    size_t *n);
tess_status tess_decode_stream_finish(struct tess_decode_stream *d, const char **bytes, size_t *n);
void tess_decode_stream_close(struct tess_decode_stream *d);

#endif

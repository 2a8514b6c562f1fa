/*
 * tessera/tokenizer.h - encodes text to ids and decodes ids, by the tokenizer.json of a checkpoint.
 *
 * Supported is BPE, with byte fallback (Llama 2, Mistral) or on bytes (GPT-2, Llama 3, Qwen). The
 * ids are those of Hugging Face's `tokenizers`. An unsupported feature is an error that names its
 * key. Files are not trusted: sizes, nesting and the steps of patterns are limited, and exceeding a
 * limit is an error.
 *
 * Example:
 *     #include <stdlib.h>
 *
 *     static tess_status count_ids(const char *dir, const char *text, size_t len, size_t *n)
 *     {
 *             struct tess_tokenizer *t = NULL;
 *             int32_t *ids = NULL;
 *             tess_status st = tess_tokenizer_open(dir, &t);
 *
 *             st = st ? st : tess_tokenizer_encode(t, text, len, true, &ids, n);
 *             free(ids);
 *             tess_tokenizer_close(t);
 *             return st;
 *     }
 */
#ifndef TESSERA_TOKENIZER_H
#define TESSERA_TOKENIZER_H

#include <stdbool.h>
#include <tessera/plugin.h>

TESS_BEGIN

/* An open tokenizer, immutable. Any number of threads may use it. */
struct tess_tokenizer;

/* A decoder of one id after another. One thread at a time uses it. */
struct tess_decode_stream;

/*
 * Opens a tokenizer.json, or a directory that has one. A tokenizer_config.json next to it names the
 * tokens that begin and end a text. For the Llama family it also specifies if they are added. The
 * caller owns *out: tess_tokenizer_close. TESS_ENOENT: there is no tokenizer.json. TESS_EINVAL, or
 * TESS_ENOTSUP for an unsupported feature: the message names the file, the key and the reason.
 */
tess_status tess_tokenizer_open(const char *path, struct tess_tokenizer **out);

/* Closes a tokenizer. NULL is accepted. */
void tess_tokenizer_close(struct tess_tokenizer *t);

/*
 * Encodes `len` bytes of UTF-8, which may contain zeros. With `add_special`, also adds the ids that
 * the file puts around a text. Special tokens that are spelled out in the text become their ids. As
 * in `tokenizers`, a character without a token is dropped if the file names no unknown token. The
 * caller frees *ids, *n ids; it is not NULL even if *n is 0.
 */
tess_status tess_tokenizer_encode(const struct tess_tokenizer *t, const char *text, size_t len,
                                  bool add_special, int32_t **ids, size_t *n);

/*
 * Decodes n ids to *len bytes of text, followed by a 0. Unknown ids have no text; with
 * `skip_special`, special ids have none. The caller frees *text.
 */
tess_status tess_tokenizer_decode(const struct tess_tokenizer *t, const int32_t *ids, size_t n,
                                  bool skip_special, char **text, size_t *len);

/*
 * Opens a stream, which borrows `t`. All pushes and the end together give the text of
 * tess_tokenizer_decode. The caller owns *out: tess_decode_stream_close.
 */
tess_status tess_decode_stream_open(const struct tess_tokenizer *t, bool skip_special,
                                    struct tess_decode_stream **out);

/*
 * Decodes the next id: gives the *n bytes that are final, complete characters or none. *bytes is
 * borrowed until the next call.
 */
tess_status tess_decode_stream_push(struct tess_decode_stream *d, int32_t id, const char **bytes,
                                    size_t *n);

/*
 * Ends the text: gives the last *n bytes, borrowed until the stream is closed. Afterwards only
 * tess_decode_stream_close is accepted.
 */
tess_status tess_decode_stream_finish(struct tess_decode_stream *d, const char **bytes, size_t *n);

/* Closes a stream. NULL is accepted. */
void tess_decode_stream_close(struct tess_decode_stream *d);

TESS_END
#endif

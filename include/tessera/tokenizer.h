/*
 * tessera/tokenizer.h - text to ids and back, by a checkpoint's tokenizer.json: BPE, with byte
 * fallback (Llama 2, Mistral) or on bytes (GPT-2, Llama 3, Qwen). The ids are those of Hugging
 * Face's `tokenizers`; a feature that is not supported is an error that names its key.
 *
 * Files are not trusted: sizes, nesting and the steps of patterns are limited, and exceeding a
 * limit is an error. An open tokenizer is immutable; any number of threads may use it.
 */
#ifndef TESSERA_TOKENIZER_H
#define TESSERA_TOKENIZER_H

#include <stdbool.h>
#include <tessera/plugin.h>

TESS_BEGIN

struct tess_tokenizer;
struct tess_decode_stream;

/*
 * Opens a directory with a tokenizer.json, or that file. A tokenizer_config.json beside it names
 * the tokens that begin and end a text, and for the Llama family says whether they are added.
 * TESS_ENOENT: no tokenizer.json. Sentences have the file, the key and the reason.
 */
tess_status tess_tokenizer_open(const char *path, struct tess_tokenizer **out);
void tess_tokenizer_close(struct tess_tokenizer *t);

/*
 * Encodes `len` bytes of UTF-8, which may contain zeros; with `add_special` also adds the ids that
 * the file puts around a text. Special tokens spelled out in the text become their ids. As in
 * `tokenizers`, a character without a token is dropped if the file names no unknown token. *ids is
 * yours (free), and not NULL even if *n is 0.
 */
tess_status tess_tokenizer_encode(const struct tess_tokenizer *t, const char *text, size_t len,
                                  bool add_special, int32_t **ids, size_t *n);

/*
 * The text of n ids, ended by a 0 that *len does not count; unknown ids have no text. *text is
 * yours: free.
 */
tess_status tess_tokenizer_decode(const struct tess_tokenizer *t, const int32_t *ids, size_t n,
                                  bool skip_special, char **text, size_t *len);

/*
 * Decodes id by id: all pushes and the end together give the text of tess_tokenizer_decode. A push
 * gives the bytes that are final: whole characters, possibly none. *bytes is borrowed until the
 * next call. Borrows `t`. After the end only close is accepted.
 */
tess_status tess_decode_stream_open(const struct tess_tokenizer *t, bool skip_special,
                                    struct tess_decode_stream **out);
tess_status tess_decode_stream_push(struct tess_decode_stream *d, int32_t id, const char **bytes,
                                    size_t *n);
tess_status tess_decode_stream_finish(struct tess_decode_stream *d, const char **bytes, size_t *n);
void tess_decode_stream_close(struct tess_decode_stream *d);

TESS_END
#endif

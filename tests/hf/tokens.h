/*
 * tokens.h - support for tests of the tokenizer: tokenizers made in memory, texts with known ids.
 */
#ifndef TESS_TESTS_HF_TOKENS_H
#define TESS_TESTS_HF_TOKENS_H

#include "hf/tokenizer/tokenizer.h"

#include <jansson.h>

/* Returns the path of a file in $TOKENS_DIR; valid until the next call. */
const char *tokens_format_path(const char *name);
/* Loads a file; like tokens_read_*, fails the test if it cannot be read. */
json_t *tokens_load_json(const char *path);
char *tokens_load_text(const char *path, size_t *len);

/* Writes the character as UTF-8, without a zero; returns its bytes, 1 to 4. */
size_t tokens_write_utf8(uint32_t cp, char *out);

/* Makes the tokenizer.json of GPT-2 from its merges. */
json_t *tokens_make_gpt2(void);

/* Opens a tokenizer.json in memory, and releases `root`. */
struct tess_tokenizer *tokens_open(json_t *root);

/* Fails the test if `text` has other ids. `want` is an array of numbers. */
void tokens_expect(const struct tess_tokenizer *t, const char *what, const char *text, size_t len,
                   bool add_special, const json_t *want);

/* Checks a vectors.json: {"cases": [{"text", "ids", "ids_no_special"}, ...]}. */
void tokens_check_vectors(const struct tess_tokenizer *t, const char *path);

/* Checks llama.cpp's pair of files, `path` without .inp and .out. */
void tokens_check_llamacpp(const struct tess_tokenizer *t, const char *path);

/* Fails the test if pushing the ids one by one gives another text, or parts of characters. */
void tokens_check_stream(const struct tess_tokenizer *t, const int32_t *ids, size_t n,
                         bool skip_special);

#endif

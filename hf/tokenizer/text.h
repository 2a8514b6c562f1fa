/* text.h - growing text, pieces, UTF-8 and JSON keys for the tokenizer. */
#ifndef TESS_HF_TOKENIZER_TEXT_H
#define TESS_HF_TOKENIZER_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <tessera/plugin.h>

enum {
	TESS_TEXT_MAX = 1 << 24, /* bytes of a text, at any stage */
	TESS_STEPS_MAX = 64, /* steps of a normalizer, a pre-tokenizer, a decoder */
};

/* Growing text; {0} is empty. */
struct tess_text {
	char *data;
	size_t len, capacity;
};

tess_status tess_text_add(struct tess_text *t, const char *s, size_t n);
void tess_text_free(struct tess_text *t);

/* One of the consecutive pieces of a text. */
struct tess_piece {
	uint32_t start, len;
	int32_t id; /* an added token, which later stages skip; -1: text */
	bool first; /* at the beginning of the input */
};
struct tess_pieces {
	struct tess_text text;
	struct tess_piece *piece;
	size_t n, capacity;
};

/* Adds a copy of `n` bytes; does nothing if n is 0. */
tess_status tess_pieces_add(struct tess_pieces *p, const char *s, size_t n, int32_t id, bool first);
void tess_pieces_clear(struct tess_pieces *p);
void tess_pieces_free(struct tess_pieces *p);

/* Returns n if s[0..n) is valid UTF-8, else the offset of the first invalid byte. */
size_t tess_utf8_count_valid(const char *s, size_t n);
/* Decodes the character at s, in valid text; returns its length in bytes. */
size_t tess_utf8_decode(const char *s, int32_t *cp);
/* Decodes the last character of s[0..n), n > 0; returns its offset. */
size_t tess_utf8_decode_last(const char *s, size_t n, int32_t *cp);
size_t tess_utf8_encode(int32_t cp, char out[4]);

/* Returns whether a character has Unicode's White_Space. */
bool tess_char_is_space(int32_t cp);

/* Returns the byte that a character of GPT-2's byte alphabet encodes, or -1. */
int tess_byte_decode(int32_t cp);
tess_status tess_text_add_encoded(struct tess_text *t, const char *s, size_t n);

/*
 * Reading of JSON keys. `known` ends with NULL. Messages contain the key and the accepted values;
 * callers prepend the location. An absent or null key gives the preset; for tess_key_get_string it
 * is an error.
 */
tess_status tess_keys_check(const json_t *object, const char *const known[]);
tess_status tess_key_get_string(const json_t *object, const char *key, const char **s, size_t *n);
tess_status tess_key_get_bool(const json_t *object, const char *key, bool preset, bool *out);
tess_status tess_key_get_size(const json_t *object, const char *key, size_t preset, size_t max,
                              size_t *out);
/*
 * Returns the index of the string at `key` in `names`, which ends with NULL. An absent key gives
 * `preset`, or an error if that is negative.
 */
tess_status tess_key_get_choice(const json_t *object, const char *key, const char *const names[],
                                int preset, int *out);
/* Copies the string at `key`, with a final 0 that *len does not count. Free *out. */
tess_status tess_key_copy_string(const json_t *object, const char *key, char **out, size_t *len);

/*
 * Parses a stage of a tokenizer: one step, or a Sequence of steps under the key `list`. Calls
 * step() for each in order, with the index of its type in `types`, which begins with "Sequence" and
 * ends with NULL.
 */
tess_status tess_steps_parse(const json_t *stage, const char *list, const char *const types[],
                             tess_status (*step)(void *arg, const json_t *j, int type), void *arg);

#endif

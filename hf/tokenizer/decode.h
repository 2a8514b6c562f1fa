/*
 * decode.h - tokens to text, as a pipe: each step takes tokens, in parts or whole, and passes on
 * what is final. Decoding token by token thus gives the same text as decoding at once.
 */
#ifndef TESS_HF_TOKENIZER_DECODE_H
#define TESS_HF_TOKENIZER_DECODE_H

#include "hf/tokenizer/regex.h"

struct tess_decoder {
	struct tess_decode_step *step;
	size_t n;
};

/* `decoder` of tokenizer.json, or null: tokens with spaces between them. */
tess_status tess_decoder_parse(const json_t *j, struct tess_decoder *out);
void tess_decoder_free(struct tess_decoder *d);

struct tess_decoding { /* a text that is being decoded */
	const struct tess_decoder *decoder;
	struct tess_scan *scan;
	struct tess_decode_state *state; /* of each step */
	struct tess_text out; /* output of the last step */
};

tess_status tess_decoding_open(const struct tess_decoder *d, struct tess_decoding *out);
tess_status tess_decoding_push(struct tess_decoding *p, const char *token, size_t n);
/* What came so far is a text that is known: nothing that is held of it is passed on. */
tess_status tess_decoding_drop(struct tess_decoding *p);
tess_status tess_decoding_end(struct tess_decoding *p);
void tess_decoding_close(struct tess_decoding *p);

#endif

/*
 * decode.h - decodes tokens to text through a pipe of steps. Each step takes complete or partial
 * tokens and passes on final text: decoding token by token equals decoding all at once.
 */
#ifndef TESS_HF_TOKENIZER_DECODE_H
#define TESS_HF_TOKENIZER_DECODE_H

#include "hf/tokenizer/regex.h"

struct tess_decoder {
	struct tess_decode_step *step;
	size_t n;
};

/* Reads `decoder` of tokenizer.json; null joins tokens by spaces. */
tess_status tess_decoder_parse(const json_t *j, struct tess_decoder *out);
void tess_decoder_free(struct tess_decoder *d);

struct tess_decoding { /* a text that is being decoded */
	const struct tess_decoder *decoder;
	struct tess_scan *scan;
	struct tess_decode_state *state; /* one per step */
	struct tess_text out; /* output of the last step */
};

tess_status tess_decoding_open(const struct tess_decoder *d, struct tess_decoding *out);
tess_status tess_decoding_push(struct tess_decoding *p, const char *token, size_t n);
/* Discards the text held back so far. */
tess_status tess_decoding_drop(struct tess_decoding *p);
tess_status tess_decoding_end(struct tess_decoding *p);
void tess_decoding_close(struct tess_decoding *p);

#endif

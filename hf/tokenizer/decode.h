/*
 * tokenizer_decode.h - tokens to text, as a pipe: each step takes tokens, in parts or whole, and hands
 * on what is final. A text that is pushed token by token is thus the same as one decoded at once.
 */
#ifndef TESS_HF_TOKENIZER_DECODE_H
#define TESS_HF_TOKENIZER_DECODE_H

#include "regex.h"

struct tess_decoder {
	struct tess_decode_step *step;
	size_t n;
};

/* `decoder` of tokenizer.json, or null: tokens with spaces between them. */
tess_status tess_decoder_parse(const json_t *j, struct tess_decoder *out);
void tess_decoder_free(struct tess_decoder *d);

/* A text in the making. */
struct tess_pipe {
	const struct tess_decoder *decoder;
	struct tess_scan *scan;
	struct tess_decode_state *state; /* of each step */
	struct tess_text out; /* what has come out at the end */
};

tess_status tess_pipe_open(const struct tess_decoder *d, struct tess_pipe *out);
tess_status tess_pipe_push(struct tess_pipe *p, const char *token, size_t n);
tess_status tess_pipe_end(struct tess_pipe *p);
void tess_pipe_close(struct tess_pipe *p);

#endif

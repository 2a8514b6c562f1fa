/* pretokenize.h - splits a text into pieces that are encoded separately. */
#ifndef TESS_HF_TOKENIZER_PRETOKENIZE_H
#define TESS_HF_TOKENIZER_PRETOKENIZE_H

#include "hf/tokenizer/regex.h"

struct tess_pretokenizer {
	struct tess_pre_step *step;
	size_t n;
};

/* Reads `pre_tokenizer` of tokenizer.json, or null. */
tess_status tess_pretokenizer_parse(const json_t *j, struct tess_pretokenizer *out);
void tess_pretokenizer_free(struct tess_pretokenizer *pre);

/* Splits each piece further; added tokens are kept. */
tess_status tess_pretokenizer_apply(const struct tess_pretokenizer *pre, struct tess_scan *scan,
                                    struct tess_pieces *p);

/* Reads the keys of a Metaspace, also for the decoder: its mark, and where to prepend it. */
enum { TESS_PREPEND_ALWAYS, TESS_PREPEND_FIRST, TESS_PREPEND_NEVER };
tess_status tess_metaspace_parse(const json_t *j, char mark[4], size_t *len, int *prepend,
                                 bool *split);

#endif

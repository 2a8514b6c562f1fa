/* normalize.h - normalizes a text before it is split. */
#ifndef TESS_HF_TOKENIZER_NORMALIZE_H
#define TESS_HF_TOKENIZER_NORMALIZE_H

#include "hf/tokenizer/regex.h"

struct tess_normalizer {
	struct tess_norm_step *step;
	size_t n; /* 0: leaves the text as it is */
};

/* Reads `normalizer` of tokenizer.json, or null. */
tess_status tess_normalizer_parse(const json_t *j, struct tess_normalizer *out);
void tess_normalizer_free(struct tess_normalizer *norm);

/* Overwrites `out`, reusing its memory. Linear time, except for patterns. */
tess_status tess_normalizer_apply(const struct tess_normalizer *norm, struct tess_scan *scan,
                                  const char *s, size_t n, struct tess_text *out);

#endif

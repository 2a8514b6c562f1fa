/* tokenizer_pretokenize.h - how a text is cut into the pieces that are encoded each on its own. */
#ifndef TESS_HF_TOKENIZER_PRETOKENIZE_H
#define TESS_HF_TOKENIZER_PRETOKENIZE_H

#include "regex.h"

struct tess_pretokenizer {
	struct tess_pre_step *step;
	size_t n;
};

/* `pre_tokenizer` of tokenizer.json, or null. */
tess_status tess_pretokenizer_parse(const json_t *j, struct tess_pretokenizer *out);
void tess_pretokenizer_free(struct tess_pretokenizer *pre);

/* Replaces the pieces by theirs; added tokens stay. */
tess_status tess_pretokenizer_apply(const struct tess_pretokenizer *pre, struct tess_scan *scan,
                                    struct tess_pieces *p);

/* The keys of a Metaspace, here and in a decoder: what stands for a space, and where one is put in front. */
enum { TESS_PREPEND_ALWAYS, TESS_PREPEND_FIRST, TESS_PREPEND_NEVER };
tess_status tess_metaspace_parse(const json_t *j, char mark[4], size_t *len, int *prepend,
                                 bool *split);

#endif

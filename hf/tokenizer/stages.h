/* stages.h - the stages of a tokenizer, from a text to its ids and back. */
#ifndef TESS_HF_TOKENIZER_STAGES_H
#define TESS_HF_TOKENIZER_STAGES_H

#include "hf/tokenizer/added.h"
#include "hf/tokenizer/bpe.h"
#include "hf/tokenizer/decode.h"
#include "hf/tokenizer/normalize.h"
#include "hf/tokenizer/post.h"
#include "hf/tokenizer/pretokenize.h"

struct tess_tokenizer {
	struct tess_vocab vocab;
	struct tess_normalizer normalizer;
	struct tess_added added;
	struct tess_pretokenizer pre;
	struct tess_bpe bpe;
	struct tess_post post;
	struct tess_decoder decoder;
};

#endif

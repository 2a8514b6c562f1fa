/* generate.h - text from a runner: prompt in chunks, then one id a step; rank 0 samples, all ranks follow. */
#ifndef TESS_NN_GENERATE_H
#define TESS_NN_GENERATE_H

#include "nn/sample.h"
#include "nn/runner.h"

struct tess_generate_request { /* what is asked for; the same on all ranks, but the callbacks: rank 0 only */
	const int32_t *prompt, *stop; /* stop: ids that end the text */
	int64_t nprompt, nstop, max_tokens;
	int64_t chunk; /* prompt ids a step; 0: all at once */
	bool all; /* logits of every position are asked for */
	struct tess_sampling sampling;
	void *self; /* of the callbacks; each may be NULL */
	/* An id was chosen, by these logits [vocabulary]; a stop id too. 1: enough, stop here; a tess_status:
	 * failed, on all ranks. */
	int (*on_token)(void *self, int32_t id, const float *logits);
	/* With `all`: logits [n, vocabulary] of the next n positions. Failed: on all ranks. */
	tess_status (*on_logits)(void *self, const float *rows, int64_t n);
};

enum { TESS_FINISH_LENGTH = 1, TESS_FINISH_STOP, TESS_FINISH_INTERRUPT };

struct tess_generate_result {
	int32_t finish;
	int64_t ntokens; /* chosen, a stop id included */
	double prefill, decode; /* seconds */
};

/*
 * Collective; starts at position 0. TESS_EINVAL: NaN or Inf among the logits that choose an id. What fails on one
 * rank, fails on all with its sentence.
 */
tess_status tess_generate_run(struct tess_runner *s, const struct tess_generate_request *request,
                              struct tess_generate_result *out);

#endif

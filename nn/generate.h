/*
 * generate.h - generates ids: the prompt in chunks, then one id a step; rank 0 samples and
 * broadcasts.
 */
#ifndef TESS_NN_GENERATE_H
#define TESS_NN_GENERATE_H

#include "nn/runner.h"
#include "nn/sample.h"

struct tess_generate_request { /* the same on all ranks; the callbacks on rank 0 only */
	const int32_t *prompt, *stop; /* stop: ids that end the text */
	int64_t nprompt, nstop, max_tokens;
	int64_t chunk; /* prompt ids a step; 0: 512 */
	bool all; /* compute the logits of every position */
	struct tess_sampling sampling;
	void *self; /* of the callbacks; each may be NULL */
	/*
	 * Called with each chosen id, also a stop id, and its logits [vocabulary]. Returns 0 to go
	 * on, 1 to stop, or a tess_status, which fails all ranks.
	 */
	int (*on_token)(void *self, int32_t id, const float *logits);
	/* With `all`: logits [n, vocabulary] of the next n positions. A failure fails all ranks. */
	tess_status (*on_logits)(void *self, const float *rows, int64_t n);
};

enum { TESS_FINISH_LENGTH = 1, TESS_FINISH_STOP, TESS_FINISH_INTERRUPT };

struct tess_generate_result {
	int32_t finish;
	int64_t ntokens; /* chosen, a stop id included */
	double prefill, decode; /* seconds */
};

/*
 * Collective; starts at position 0. TESS_EINVAL: the logits that choose an id hold NaN or Inf. A
 * failure of one rank fails all, with its sentence.
 */
tess_status tess_generate_run(struct tess_runner *s, const struct tess_generate_request *request,
                              struct tess_generate_result *out);

#endif

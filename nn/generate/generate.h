/*
 * generate.h - generates the texts of many requests at once (continuous batching).
 *
 * Each step takes one row of every text that is being written, and rows of prompts up to a limit. A
 * request that ends makes room for the next one at once. All ranks schedule alike; rank 0 samples
 * and broadcasts the ids. The bits of a text do not depend on what else runs.
 */
#ifndef TESS_NN_GENERATE_H
#define TESS_NN_GENERATE_H

#include "nn/generate/sequence.h"

#include <tessera/session.h>

struct tess_generate_request { /* the same on all ranks; borrowed */
	struct tess_sequence *sequence; /* is continued; NULL: one of its own, freed at the end */
	const int32_t *prompt, *stop; /* appended to the sequence; ids that end the text */
	int64_t nprompt, nstop, max_tokens;
	bool all; /* give the logits of every position to on_logits */
	bool logits; /* give those that choose an id to on_token */
	tess_status status; /* not TESS_OK: it cannot run, and ends with this */
	struct tess_sampling sampling;
};

struct tess_generate_result {
	int32_t finish; /* TESS_FINISH_... */
	tess_status status; /* of TESS_FINISH_FAILED */
	int64_t nprompt, ntokens; /* given; chosen, a stop id included */
	double prefill, decode; /* seconds to the first id, and from there to the end */
};

/*
 * Called on rank 0; each may be NULL. They return TESS_GO_ON, TESS_END_ONE, TESS_END_ALL or a
 * failure, which fails all ranks.
 */
struct tess_generate_callbacks {
	void *self;
	/* Each chosen id of request i, also a stop id; with `logits` those [vocabulary]. */
	int (*on_token)(void *self, int64_t i, int32_t id, const float *logits);
	/* Of a request with `all`: logits [n, vocabulary] of its next n positions. */
	int (*on_logits)(void *self, int64_t i, const float *logits, int64_t n);
	/* Request i has ended; `sentence`: of one that failed, else NULL. */
	int (*on_end)(void *self, int64_t i, const struct tess_generate_result *result,
	              const char *sentence);
	/* After each step: whether to go on. */
	int (*on_step)(void *self);
};

struct tess_generate_options { /* the same on all ranks; zeroed: presets */
	int64_t chunk; /* rows of prompts in a step; 0: as the device has it */
	int64_t batch; /* requests that run at once, as there is room; 0: tess_runner_get_batch() */
	struct tess_generate_callbacks callbacks;
};

/*
 * Collective. Runs n requests, starting them in their order. A request that cannot run (its prompt,
 * its memory, logits that are not finite) ends alone, with TESS_FINISH_FAILED; what fails a rank or
 * a callback fails all ranks, with one sentence. results [n], on all ranks.
 */
tess_status tess_generate_run(struct tess_runner *r, const struct tess_generate_request *requests,
                              int64_t n, const struct tess_generate_options *options,
                              struct tess_generate_result *results);

#endif

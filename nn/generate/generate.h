/*
 * generate.h - runs many generation requests at once (continuous batching).
 *
 * Each step takes one row of every sequence that generates, and rows of prompts up to a limit. The
 * room of an ended request is available to the next one at once. All ranks schedule alike; rank 0
 * samples and broadcasts the ids. The bits of a sequence do not depend on other requests.
 */
#ifndef TESS_NN_GENERATE_H
#define TESS_NN_GENERATE_H

#include "nn/generate/sequence.h"

#include <tessera/session.h>

struct tess_generate_request { /* equal on all ranks; borrowed */
	struct tess_sequence *sequence; /* to be continued; NULL: a new one, freed at the end */
	const int32_t *prompt, *stop; /* ids appended to the sequence; ids that end it */
	int64_t nprompt, nstop, max_tokens;
	bool all; /* passes the logits of every position to on_logits */
	bool logits; /* passes the logits that choose an id to on_token */
	tess_status status; /* not TESS_OK: the request cannot run, and ends with this status */
	struct tess_sampling sampling;
};

struct tess_generate_result {
	int32_t finish; /* TESS_FINISH_... */
	tess_status status; /* with TESS_FINISH_FAILED */
	int64_t nprompt, ntokens; /* prompt ids; chosen ids, including a stop id */
	double prefill, decode; /* seconds to the first id, and from the first id to the end */
};

/* A result of on_token: ends this request, with TESS_FINISH_TEXT. */
enum { TESS_END_AT_TEXT = TESS_END_ALL + 1 };

/*
 * Callbacks on rank 0; each may be NULL. They return TESS_GO_ON, TESS_END_ONE, TESS_END_ALL or a
 * failure, which fails all ranks.
 */
struct tess_generate_callbacks {
	void *self;
	/*
	 * Receives each chosen id of request i, including a stop id; with `logits`, also
	 * [vocabulary].
	 */
	int (*on_token)(void *self, int64_t i, int32_t id, const float *logits);
	/* Receives logits [n, vocabulary] of the next n positions of a request with `all`. */
	int (*on_logits)(void *self, int64_t i, const float *logits, int64_t n);
	/* Receives the result of request i at its end; `sentence`: its error message, or NULL. */
	int (*on_end)(void *self, int64_t i, const struct tess_generate_result *result,
	              const char *sentence);
	/* Called after each step. */
	int (*on_step)(void *self);
};

struct tess_generate_options { /* equal on all ranks; zeroed: defaults */
	int64_t chunk; /* rows of prompts in a step; 0: the device's number */
	int64_t batch; /* maximum number of concurrent requests; 0: tess_runner_get_batch() */
	struct tess_generate_callbacks callbacks;
};

/*
 * Runs n requests, starting them in their order. A request that cannot run (by its prompt, its
 * memory or non-finite logits) ends alone, with TESS_FINISH_FAILED. A failure of a rank or of a
 * callback fails all ranks, with one message. results [n], on all ranks. Collective.
 */
tess_status tess_generate_run(struct tess_runner *r, const struct tess_generate_request *requests,
                              int64_t n, const struct tess_generate_options *options,
                              struct tess_generate_result *results);

#endif

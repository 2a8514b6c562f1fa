/* requests.h - the requests of a generation, as rank 0 gives them to all ranks. */
#ifndef TESS_API_REQUESTS_H
#define TESS_API_REQUESTS_H

#include "core/base/arena.h"
#include "hf/checkpoint.h"
#include "hf/tokenizer/tokenizer.h"
#include "nn/generate/generate.h"

struct tess_shared_request { /* complete: nothing is left to a preset */
	const int32_t *ids, *stop;
	int64_t nids, nstop, max_tokens;
	int64_t sequence; /* the number of the sequence that it continues; -1: none */
	struct tess_sampling sampling;
	int32_t flags, replica;
	tess_status status; /* it cannot run, and why */
	const char *sentence;
};

struct tess_request_source { /* on rank 0: what presets and checks need */
	const struct tess_generation_config *generation;
	int64_t positions; /* of a text; 0: any */
	int64_t vocabulary;
	const struct tess_tokenizer *tokenizer; /* NULL: there is none */
	int32_t nreplicas;
	/* The number of a sequence, its replica and the ids that it holds; -1: not open. */
	int64_t (*find_sequence)(void *self, const struct tess_sequence *q, int32_t *replica,
	                         int64_t *nids);
	void *self;
};

/* TESS_EINVAL: a text of n ids has more than these positions (0: any). */
tess_status tess_prompt_check_length(int64_t n, int64_t positions);

/*
 * Encodes and completes rank 0's requests, and deals them to replicas: each to the one that has the
 * fewest ids so far. *out [n] lies in the arena.
 */
tess_status tess_requests_prepare(struct tess_arena *arena,
                                  const struct tess_request_source *source,
                                  const struct tess_request *const *requests, int64_t n,
                                  struct tess_shared_request **out);

/* Collective: gives rank 0's n requests to all ranks of the group; others: n and *list come out. */
tess_status tess_requests_share(struct tess_arena *arena, struct tess_group *g, int64_t *n,
                                struct tess_shared_request **list);

#endif

/* requests.h - the requests of a generation, which rank 0 sends to all ranks. */
#ifndef TESS_API_REQUESTS_H
#define TESS_API_REQUESTS_H

#include "core/base/arena.h"
#include "hf/checkpoint.h"
#include "hf/tokenizer/tokenizer.h"
#include "nn/generate/generate.h"

struct tess_shared_request { /* a request with all defaults filled in */
	const int32_t *ids, *stop;
	int64_t nids, nstop, max_tokens;
	int64_t sequence; /* number of the continued sequence; -1: none */
	struct tess_sampling sampling;
	int32_t flags, replica;
	const char *stop_texts; /* one after another, each ended by a 0 */
	int64_t nstop_texts, stop_bytes;
	tess_status status; /* failure: the request cannot run */
	const char *sentence;
};

struct tess_request_source { /* on rank 0: the input of defaults and checks */
	const struct tess_generation_config *generation;
	int64_t positions; /* maximum length of a sequence; 0: unlimited */
	int64_t vocabulary;
	const struct tess_tokenizer *tokenizer; /* NULL: the checkpoint has none */
	int32_t nreplicas;
	/* Returns the number of a sequence, its replica and its ids; -1: not open. */
	int64_t (*find_sequence)(void *self, const struct tess_sequence *q, int32_t *replica,
	                         int64_t *nids);
	void *self;
};

/* Fails with TESS_EINVAL if a prompt of n ids exceeds these positions (0: unlimited). */
tess_status tess_prompt_check_length(int64_t n, int64_t positions);

/*
 * Encodes and completes rank 0's requests, and assigns each to the replica with the fewest ids so
 * far. *out [n] is in the arena.
 */
tess_status tess_requests_prepare(struct tess_arena *arena,
                                  const struct tess_request_source *source,
                                  const struct tess_request *const *requests, int64_t n,
                                  struct tess_shared_request **out);

/* Collective. Sends rank 0's n requests to the group; other ranks receive n and *list. */
tess_status tess_requests_share(struct tess_arena *arena, struct tess_group *g, int64_t *n,
                                struct tess_shared_request **list);

#endif

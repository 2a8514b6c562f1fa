/* generate.h - what `tessera generate` was asked for, and what one rank of it does. */
#ifndef TESS_TOOL_GENERATE_H
#define TESS_TOOL_GENERATE_H

#include "hf/session.h"

#include <stdbool.h>
#include <tessera/tessera.h>

enum { OVERRIDES_MAX = 64 };

struct generate_options {
	const char *model, *backend, *plan, *logits, *flight;
	const char *overrides[OVERRIDES_MAX + 1];
	int32_t ranks, threads, noverrides;
	char *prompt; /* of `len` bytes, or NULL */
	size_t len;
	int32_t *ids; /* instead, or NULL */
	int64_t nids, max_tokens, chunk; /* max_tokens -1: not said */
	bool ignore_eos, ignore_unexpected, json, stats, digest;
	/* NAN or -1: as the checkpoint says */
	double temperature, top_p, min_p, penalty;
	int64_t top_k;
	uint64_t seed;
};

/* TESS_EINVAL: a prompt of `n` ids has no room in the positions that the checkpoint was made for. */
tess_status generate_check_length(const struct tess_planned_model *p, int64_t n);

/* One rank, from checkpoint to the last token; rank 0 prints. A failure has been told to the other ranks. */
tess_status generate_run_rank(struct tess_world *world, void *options);

/* Ctrl-C came: the text ends with the next token. */
bool generate_is_interrupted(void);

#endif

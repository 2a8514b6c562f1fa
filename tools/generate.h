/* generate.h - the options of `tessera generate`, and one rank of it. */
#ifndef TESS_TOOLS_GENERATE_H
#define TESS_TOOLS_GENERATE_H

#include "hf/session.h"

#include <stdbool.h>
#include <tessera/tessera.h>

enum { OVERRIDES_MAX = 64 };

struct generate_options {
	const char *model, *backend, *mesh, *plan, *logits, *flight; /* mesh NULL: "tp" */
	const char *overrides[OVERRIDES_MAX + 1];
	int32_t ranks, threads, noverrides;
	char *prompt; /* of `len` bytes, or NULL */
	size_t len;
	int32_t *ids; /* instead, or NULL */
	int64_t nids, max_tokens, chunk; /* max_tokens -1: not given */
	bool ignore_eos, ignore_unexpected, json, stats, digest;
	/* NAN or -1: the value of the checkpoint */
	double temperature, top_p, min_p, penalty;
	int64_t top_k;
	uint64_t seed;
};

/* TESS_EINVAL: a prompt of `n` ids exceeds the positions of the checkpoint. */
tess_status generate_check_length(const struct tess_planned_model *p, int64_t n);

/* One rank, from loading to the last token; rank 0 prints. Posts a failure to the other ranks. */
tess_status generate_run_rank(struct tess_world *world, void *options);

/* Ctrl-C: the text ends with the next token. */
bool generate_is_interrupted(void);

#endif

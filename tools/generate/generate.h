/* generate.h - the options of `tessera generate`, and one rank of it. */
#ifndef TESS_TOOLS_GENERATE_H
#define TESS_TOOLS_GENERATE_H

#include "prompts.h"
#include "tools/tool.h"

struct generate_options {
	struct tess_tool_session session;
	const char *logits, *flight;
	int32_t batch;
	struct prompts prompts;
	bool from_stdin; /* no option gives a prompt, and stdin does */
	int32_t max_tokens, top_k; /* -1: not given */
	int32_t chunk;
	bool ignore_eos, json, stats, digest;
	double temperature, top_p, min_p, penalty; /* NAN: the value of the checkpoint */
	int64_t seed;
};

/* One rank, from loading to the last token; rank 0 prints. Posts a failure to the other ranks. */
tess_status generate_run_rank(struct tess_world *world, void *options);

/* A prompt could not be run, and the reason was printed. */
bool generate_has_failed(void);

#endif

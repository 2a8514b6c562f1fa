/* generate.h - the options of `tessera generate`, and one rank of it. */
#ifndef TESS_TOOLS_GENERATE_H
#define TESS_TOOLS_GENERATE_H

#include "prompts.h"
#include "tools/tool.h"

struct generate_options {
	struct tess_tool_session session;
	const char *logits, *values, *values_of, *flight;
	int32_t batch;
	struct prompts prompts;
	const char *system, *template_name; /* of --messages */
	struct tess_chat *chat; /* that renders them; NULL: none */
	struct tess_tool_list stop;
	bool from_stdin; /* the prompt is stdin, without an option */
	int32_t max_tokens, top_k; /* -1: not given */
	int32_t chunk;
	bool ignore_eos, json, stats, digest;
	double temperature, top_p, min_p, penalty; /* NAN: the checkpoint's value */
	int64_t seed;
};

/* Runs one rank, from loading to the last token; rank 0 prints. Reports a failure to all ranks. */
tess_status generate_run_rank(struct tess_world *world, void *options);

/* Returns whether a prompt could not be run; the reason is printed. */
bool generate_has_failed(void);

#endif

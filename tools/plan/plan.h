/* plan.h - `tessera plan`: the parts of the command. */
#ifndef TESS_TOOLS_PLAN_H
#define TESS_TOOLS_PLAN_H

#include "tools/tool.h"

struct plan_options {
	const char *model, *machine, *out, *consider, *strategies;
	uint64_t memory;
	int32_t ranks, batch, sequence, prompt, tokens, optimizer, most;
	struct tess_tool_session session; /* its math */
	bool train, explore, json, styles, offload_optimizer, offload_weights;
};

/*
 * Reads the words of --consider: "--mesh dp=2,tp=4 --plan tp+sp". *text: their memory, for free();
 * `out` borrows from it.
 */
tess_status plan_read_words(const char *words, struct tess_strategy *out, char **text);

/* Prints the forecasts, best first, as a table. */
void plan_print_table(const struct plan_options *a, const struct tess_forecast *const *f,
                      int32_t n);
/* Prints forecast b beside a, term by term. */
void plan_print_comparison(const struct tess_forecast *a, const struct tess_forecast *b);
/* Prints one line of JSON. */
tess_status plan_print_json(const struct tess_forecast *f);

#endif

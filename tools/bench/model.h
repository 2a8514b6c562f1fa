/*
 * model.h - `tessera bench decode|prefill|batch|load`: options, measurement, and results.
 *
 * A case is a number of concurrent sequences, each after `context` positions. A round is one
 * forward of the rows of all prompts (prefill), or `tokens` forwards of one row of each sequence.
 */
#ifndef TESS_TOOLS_BENCH_MODEL_H
#define TESS_TOOLS_BENCH_MODEL_H

#include "nn/run/profile.h"
#include "tools/tool.h"

enum { MODEL_DECODE, MODEL_PREFILL, MODEL_BATCH, MODEL_LOAD, MODEL_KINDS };

struct model_kind {
	const char *name;
	int32_t context, tokens, rounds, ncases, batch[3]; /* defaults */
};
extern const struct model_kind model_kinds[MODEL_KINDS];

enum { MODEL_CASES = 16, MODEL_ROUNDS = 1000 };

struct model_options {
	struct tess_tool_session session;
	int32_t kind; /* MODEL_... */
	int32_t context, tokens, rounds; /* -1: the default of the kind */
	int32_t chunk; /* prompt rows per forward; 0: the default of generate */
	int32_t batch[MODEL_CASES], ncases;
	bool breakdown, json;
	bool once; /* load: this process is timed */
};

struct model_limits { /* limits of all ranks together */
	double bytes, flops; /* per second; 0: not measured */
};

struct model_round { /* a round on rank 0 */
	double seconds;
	double moving, wait; /* seconds in calls of groups */
	struct tess_profile_op op[TESS_PROFILE_STEPS]; /* for --breakdown */
};

struct model_case {
	int32_t batch;
	int64_t forwards; /* forwards of a round */
	struct model_round *round;
	uint64_t weight_bytes, kv_bytes, flops; /* totals of a forward over all ranks */
};

struct model_result {
	const struct model_options *options;
	int32_t nranks, threads;
	const char *backend, *device;
	struct model_limits limits;
};

/* Runs `tessera bench` with a kind of model_has_kind() as argv[1]. */
int model_run_command(int argc, char **argv, const struct tess_tool_section *sections,
                      struct model_options *a);
bool model_has_kind(const char *name);
extern const struct tess_tool_option model_options[]; /* rows for struct model_options */

/* Measures on one rank; rank 0 prints. options: a struct model_options. */
tess_status model_run_rank(struct tess_world *w, void *options);
/* Runs a rank of a process that `bench load` times; prints a line for model_time_loads. */
tess_status model_load_rank(struct tess_world *w, void *options);
/*
 * Runs `bench load`: this command again for each round; prints. exit_status: that of a process that
 * has failed and printed the reason.
 */
tess_status model_time_loads(const struct model_options *a, char **argv, int *exit_status);

/* Returns ids of a vocabulary, determined by `seed`; NULL: no memory. The caller frees them. */
int32_t *model_make_ids(int64_t n, int64_t vocabulary, uint32_t seed);

/* Collective. Measures the memory reads and products of all ranks with these threads. */
tess_status model_measure_limits(struct tess_group *all, int32_t threads, struct model_limits *out);

void model_print_head(const struct model_result *r);
tess_status model_print_case(const struct model_result *r, const struct model_case *c);
/* Prints a JSON object as one line, and releases it; NULL: fails for memory. */
struct json_t;
tess_status model_print_json(struct json_t *o);
/* An on_end of requests: stops after a failure. */
int model_end_text(void *self, int64_t i, const struct tess_result *r, const char *text,
                   uint64_t n);

#endif

/*
 * tessera/strategy.h - strategies: a mesh, a plan and the options that change only the speed and
 * the memory of a run, read from and written to a file of JSON.
 *
 * The field `plan` of tess_session_options and tess_trainer_options takes a strategy in place of a
 * plan: the name of its file, or its text. Fields that are set precede those of the strategy, and
 * so does the mesh that the caller opens. docs/styles.md describes the file. No function here is
 * collective.
 *
 * Example:
 *     static tess_status write_best(const char *path)
 *     {
 *             static const char *const overrides[] = { "dp:**=zero3", NULL };
 *             const struct tess_strategy s = { .size = sizeof s,
 *                                              .plan = "tp+sp",
 *                                              .mesh = "dp=2,tp=4",
 *                                              .overrides = overrides,
 *                                              .predicted = "{\"seconds\": 0.25}" };
 *
 *             return tess_strategy_write(&s, path);
 *     }
 */
#ifndef TESSERA_STRATEGY_H
#define TESSERA_STRATEGY_H

#include <tessera/plugin.h>

TESS_BEGIN

/* A strategy. Zeroed except for size and plan: a plan alone. */
struct tess_strategy {
	/* sizeof(struct tess_strategy). */
	uint32_t size;
	/* Threads per rank, 1 to 1024; 0: not given. */
	int32_t threads;
	/* "auto", "none", the name of a plan of the model, or rules as JSON text. Required. */
	const char *plan;
	/* Mesh, such as "dp=2,tp=4"; NULL: not given. */
	const char *mesh;
	/* Rules that replace those of the plan, as in tess_trainer_options. Ends with NULL; NULL:
	 * none. */
	const char *const *overrides;
	/* Micro-batches of a step of training; 0: not given. */
	int64_t micro_batches;
	/* Schedule of the stages along `pp`, as tess_pipeline_open takes it; NULL: not given. A
	 * mesh without stages ignores it. */
	const char *pipeline_schedule;
	/* Patterns of modules whose values the backward computes again; ends with NULL. NULL:
	 * none. */
	const char *const *recompute;
	/* Bytes of gradients that dp adds at once, and of weights that it gathers at once; 0: not
	 * given. */
	uint64_t bucket;
	/* An object of JSON for readers: predicted time, memory, machine. It has no effect. NULL:
	 * none. */
	const char *predicted;
	/* Name for messages, set by tess_strategy_read: the file, or "the strategy" for text.
	 * tess_strategy_write ignores it. */
	const char *name;
	/* Where the optimizer's state and weights are between their uses: "disk", whose folder is
	 * an option of the trainer, or "host". NULL: not given. */
	const char *offload_optimizer;
	const char *offload_weights;
	/* Maximum bytes of a weight that is gathered or fetched at once; 0: not given. */
	uint64_t tile;
};
TESS_TIGHT(tess_strategy, tile);

/*
 * Reads a strategy. spec: text of JSON that starts with '{', or the name of a file, with a '.' or a
 * '/' in it: other names are those of plans. *out becomes NULL if spec is none of these, if there
 * is no such file, or if it has no key "plan", as a file of rules. The caller owns *out:
 * tess_strategy_free. TESS_EINVAL: no JSON, an unknown key, or a wrong value; the message names
 * file and key.
 */
tess_status tess_strategy_read(const char *spec, struct tess_strategy **out);

/* Frees a strategy of tess_strategy_read. NULL is accepted. */
void tess_strategy_free(struct tess_strategy *s);

/*
 * Checks that the mesh of a strategy has n ranks; without a mesh, any number fits. TESS_EINVAL: it
 * has another number; the message names both.
 */
tess_status tess_strategy_check_ranks(const struct tess_strategy *s, int32_t n);

/*
 * Formats a strategy as JSON text that tess_strategy_read takes, after the same checks. The caller
 * frees *text.
 */
tess_status tess_strategy_format(const struct tess_strategy *s, char **text);

/* Writes a strategy to a file, which is replaced. */
tess_status tess_strategy_write(const struct tess_strategy *s, const char *path);

TESS_END
#endif

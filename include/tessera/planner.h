/*
 * tessera/planner.h - predicts the time and the memory of a strategy on a machine, from the program
 * that it would run, and searches for the best one.
 *
 * A planner starts no rank, and reads no weight: config.json is enough. No function here is
 * collective.
 *
 * Example:
 *     static tess_status print_best(const char *model)
 *     {
 *             const struct tess_planner_options o = { .size = sizeof o,
 *                                                     .machine = "h100",
 *                                                     .train = 1,
 *                                                     .batch = 512,
 *                                                     .sequence = 4096 };
 *             struct tess_planner *p = NULL;
 *             const struct tess_forecast *const *best;
 *             int32_t n;
 *             tess_status st = tess_planner_open(model, &o, &p);
 *
 *             if (!st)
 *                     st = tess_planner_search(p, 64, 10, &best, &n);
 *             for (int32_t i = 0; i < n && !st; i++)
 *                     printf("%s %s: %g s\n", best[i]->strategy.mesh, best[i]->strategy.plan,
 *                            best[i]->seconds);
 *             tess_planner_close(p);
 *             return st;
 *     }
 */
#ifndef TESSERA_PLANNER_H
#define TESSERA_PLANNER_H

#include <tessera/strategy.h>

TESS_BEGIN

/* What to plan. Zeroed except for size and machine: generation of one sequence. */
struct tess_planner_options {
	/* sizeof(struct tess_planner_options). */
	uint32_t size;
	/* 1: steps of training; 0: generation. */
	int32_t train;
	/* A machine file, or the name of one of the box: "h100". Required. */
	const char *machine;
	/* Bytes of memory of a rank; 0: that of the machine. */
	uint64_t memory;
	/* Sequences of a step of training, or that are generated at once; 0: 8, or 1. */
	int64_t batch;
	/* Training: ids of a sequence; 0: 1024, or the checkpoint's maximum. */
	int64_t sequence;
	/* Generation: ids of a prompt, and of its continuation; 0: 512, and 128. */
	int64_t prompt;
	int64_t tokens;
	/* Training: TESS_ADAMW or TESS_SGD; 0: TESS_ADAMW. */
	int32_t optimizer;
	/* Generation: dtype of linear weights, and of the cache, as in tess_session_options. The
	 * rates of a machine file are those of the dtypes that it was measured with. */
	int32_t weights;
	int32_t kv_dtype;
	/* 1: tess_planner_search also searches a style for each module along tp, among all that are
	 * registered and call no functions of their own. */
	int32_t styles;
	/* Training: 1: searches also strategies with the optimizer's state in files. 0: only if
	 * nothing fits, for the message. */
	int32_t offload_optimizer;
	/* Training: likewise those with state, weights and gradients in files. */
	int32_t offload_weights;
	/* Training: dtype of products, as in tess_trainer_options. TESS_BF16 is for machines of
	 * CPUs: on a GPU the device sets it. */
	int32_t math;
	int32_t reserved;
	/* Training: limit of the gradient norm, as in tess_trainer_options. With 0 what is in files
	 * is updated during the backward. */
	double clip;
};
TESS_TIGHT(tess_planner_options, clip);

/* What a step spends time on: indices of tess_forecast.terms. */
enum {
	/* Linear layers, experts, heads, and their gradients. */
	TESS_TIME_PRODUCTS,
	/* Attention and its gradients. */
	TESS_TIME_ATTENTION,
	/* Ops that only move bytes. */
	TESS_TIME_MEMORY,
	/* Starting ops. */
	TESS_TIME_LATENCY,
	/* Collectives within a replica and a stage, as far as steps wait for them. */
	TESS_TIME_TENSOR,
	/* Gradients and weights along `dp`, as far as steps wait for them. */
	TESS_TIME_DATA,
	/* Values sent to other stages, as far as they are waited for. */
	TESS_TIME_PIPELINE,
	/* Stages without work. */
	TESS_TIME_BUBBLE,
	/* Optimizer. */
	TESS_TIME_OPTIMIZER,
	/* What the machine file adds to each step. */
	TESS_TIME_FIXED,
	/* Reads and writes of files, as far as they are waited for. */
	TESS_TIME_DISK,
	/* Number of terms. */
	TESS_TIMES
};

/* What the fullest rank holds: indices of tess_forecast.holds. */
enum {
	/* Weights between steps. */
	TESS_MEMORY_WEIGHTS,
	/* Gradients. */
	TESS_MEMORY_GRADIENTS,
	/* State of the optimizer, or buckets of it on their way between files and memory. */
	TESS_MEMORY_STATE,
	/* Activations of a step, without those below. */
	TESS_MEMORY_STEP,
	/* Activations that are gathered from the ranks of a replica. */
	TESS_MEMORY_GATHERED,
	/* Copies of the logits that the machine file adds. */
	TESS_MEMORY_LOSS,
	/* Keys and values of generation. */
	TESS_MEMORY_CACHE,
	/* What the machine file adds. */
	TESS_MEMORY_FIXED,
	/* Number of kinds. */
	TESS_MEMORIES
};

/* A kind of call that a rank waits for. */
struct tess_forecast_call {
	/* "all_gather"; "gradients": those that are reduced once a step. */
	const char *call;
	/* Mesh dimension: "tp". That of `ddp` is "dp". */
	const char *along;
	/* TESS_TIME_TENSOR or TESS_TIME_DATA, which includes it. */
	int32_t term;
	int32_t reserved;
	double seconds;
};

/* The forecast of a strategy. Owned by the planner. */
struct tess_forecast {
	/* The strategy; its strings are valid until the planner closes. */
	struct tess_strategy strategy;
	/* Number of ranks. */
	int32_t nranks;
	/* 1: the fullest rank fits, and its files, if the size of the disk is known. */
	int32_t fits;
	/* Seconds of a step of training, or of prompts and continuations. */
	double seconds;
	/* Tokens per second: trained, or generated. */
	double rate;
	/* Seconds of the slowest rank, by TESS_TIME_...; their sum is `seconds`. */
	double terms[TESS_TIMES];
	/* Generation: seconds of the prompts, and of one token of each sequence; else 0. */
	double prompt_seconds;
	double token_seconds;
	/* Bytes of the fullest rank. */
	double memory;
	/* Its bytes by TESS_MEMORY_.... */
	double holds[TESS_MEMORIES];
	/* Bytes that a rank sends in a step, at most. */
	double sent;
	/* What takes most of the time: "products", "all_gather along tp". */
	const char *bound;
	/* Calls that a rank waits for, slowest first; their sums are terms. */
	const struct tess_forecast_call *calls;
	int32_t ncalls;
	int32_t reserved;
	/* Bytes of memory of a rank. */
	double limit;
	/*
	 * Mean error of times that were predicted with this machine file, as a share, and what it
	 * was measured on. 0, and "": not measured.
	 */
	double error;
	const char *measured;
	/* Bytes of the files of a rank, at most, or in memory of the host next to a device with
	 * memory of its own; 0: none. */
	double disk;
	/* Bytes of a host's disk, or memory, for each of its ranks; 0: not in the machine file. */
	double disk_limit;
	/* Bytes that a rank reads from there in a step, and writes there, at most. */
	double disk_read;
	double disk_written;
	/* What the forecast assumes because the machine file lacks it; "": nothing. */
	const char *assumed;
};

/* A model, what to do with it, and a machine. */
struct tess_planner;

/*
 * Opens a directory with config.json. Close *out by tess_planner_close. TESS_EINVAL: an option, or
 * a value of the machine file, is invalid; the message names it.
 */
tess_status tess_planner_open(const char *dir, const struct tess_planner_options *options,
                              struct tess_planner **out);

/* Closes a planner and its forecasts. NULL is accepted. */
void tess_planner_close(struct tess_planner *p);

/*
 * Predicts a strategy, whose mesh is required. TESS_EINVAL: it cannot run; the message is that of
 * the run. TESS_ENOENT: the model has no such plan.
 */
tess_status tess_planner_forecast(struct tess_planner *p, const struct tess_strategy *s,
                                  const struct tess_forecast **out);

/*
 * Searches strategies of nranks ranks: meshes (ddp and ep, too), plans, ZeRO stages, recomputation,
 * micro-batches, schedules. Gives the `most` fastest that fit, best first; *n is their number, and
 * *out a list that is valid until the planner closes. If none fits, the list has the strategy with
 * the least memory and a tile, if that fits. TESS_EINVAL: nothing fits; the message has the least
 * memory of a rank, and what would fit: values in files, more ranks, a smaller batch, or shorter
 * sequences.
 */
tess_status tess_planner_search(struct tess_planner *p, int32_t nranks, int32_t most,
                                const struct tess_forecast *const **out, int32_t *n);

/*
 * Searches as tess_planner_search, but gives the strategies that no other one beats in both time
 * and memory: fastest first, each with less memory than those before it, at most `most`.
 */
tess_status tess_planner_explore(struct tess_planner *p, int32_t nranks, int32_t most,
                                 const struct tess_forecast *const **out, int32_t *n);

TESS_END
#endif

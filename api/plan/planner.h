/* planner.h - the inside of a planner: what is planned, and the forecast of one strategy. */
#ifndef TESS_API_PLAN_PLANNER_H
#define TESS_API_PLAN_PLANNER_H

#include "api/explaining.h"
#include "nn/cost/step_trace.h"

#include <tessera/planner.h>

struct tess_found_plan { /* a plan of rules along tp, as JSON text */
	int32_t tp;
	const char *text;
};

struct tess_planner {
	struct tess_arena arena;
	struct tess_planner_options options; /* with their defaults */
	struct tess_planned_model model; /* its plan is that of nothing */
	struct tess_machine *machine;
	struct tess_device device; /* of the machine: a description that runs nothing */
	double memory; /* bytes of a rank of those that were chosen last */
	/* models with the first layers, from which the others follow; layers 0: the model itself */
	struct tess_shallow {
		struct tess_planned_model model;
		json_t *config;
		int64_t layers;
	} shallow[3];
	int64_t layers; /* numbered modules of the model */
	int64_t first, period; /* with `shallow`: alike are i and i + period from `first` on */
	const char *path; /* of one, as a pattern: "model.layers.*" */
	int64_t experts; /* of a layer, at most */
	const char *attention; /* the module of attention in it: "self_attn" */
	int32_t moments; /* of the optimizer */
	struct tess_found_plan *found; /* by tess_planner_find_styles */
	int32_t nfound;
	int32_t nranks; /* of a search: samples have the rates of so many; 0: none runs */
};

/* Sets rates and memory to those of a rank of `nranks`. */
void tess_planner_choose_ranks(struct tess_planner *p, int32_t nranks);

/*
 * Sets the positions, then the slots of n sequences of `length` rows from position `from` on:
 * 2 * n * length numbers.
 */
void tess_planner_fill_rows(int32_t *at, int64_t n, int64_t length, int64_t from);

/* Returns the number of experts of a program, over which rows are spread; 0: it has none. */
int64_t tess_planner_count_experts(const struct tess_program *p);

/* Seconds and bytes of one kind of action of a stage, of its slowest rank. */
struct tess_stage_time {
	struct tess_step_time of[TESS_PIPELINE_KINDS];
	double gathered, logits; /* bytes of a micro-batch: TESS_HOLDS_GATHERED, TESS_HOLDS_LOSS */
	double slot, arena; /* bytes of its slot, and of the values that are in none */
};

/*
 * Predicts a strategy from its whole program. out->strategy is borrowed from s. TESS_EINVAL: it
 * cannot run.
 */
tess_status tess_planner_evaluate(struct tess_planner *p, const struct tess_strategy *s,
                                  struct tess_forecast *out);

/*
 * A step of training of one replica without stages, of the rank that does most, as if it did not
 * wait for files. All members are double, so that samples can be added.
 */
struct tess_sample {
	double forward, backward; /* seconds */
	double products; /* seconds of those of the backward */
	double state; /* elements that the optimizer updates */
	double returned; /* bytes of weights that it leaves in shares, those of all ranks */
	double transfers; /* seconds of the disk, of a micro-batch */
	double update; /* seconds of the disk, after the last micro-batch */
	double holds[TESS_HOLDS]; /* bytes */
};

/*
 * Measures a step of two micro-batches, of `batch` sequences together, on a mesh without stages.
 * trace: those of its forward and its backward, which the caller frees also after a failure; NULL:
 * none.
 */
tess_status tess_planner_sample(struct tess_planner *p, const struct tess_planned_model *model,
                                const struct tess_strategy *s, int64_t batch,
                                struct tess_sample *out, struct tess_step_trace *trace);

/* Kinds of computations of a stage. */
enum { TESS_STAGE_KINDS = TESS_PIPELINE_BACKWARD_WEIGHTS + 1 };
/* What a stage of one replica takes. All members are double. */
struct tess_stage_sample {
	double seconds[TESS_STAGE_KINDS]; /* TESS_PIPELINE_BACKWARD_INPUTS: or a full backward */
	double holds[TESS_HOLDS_STEP]; /* bytes of weights, gradients and state */
	double slot, arena; /* bytes: of a micro-batch that the stage keeps, and of all of them */
	double sent; /* bytes that a stage sends forward */
};

/*
 * Measures a step of two micro-batches on a mesh with pp=2. s: begins the second stage, or its
 * schedule cuts the model.
 */
tess_status tess_planner_sample_stages(struct tess_planner *p,
                                       const struct tess_planned_model *model,
                                       const struct tess_strategy *s, int64_t batch,
                                       struct tess_stage_sample out[2]);

/*
 * Finds the layers of the model, which of them are alike, and models with fewer of them: the second
 * and the third have one and three periods of alike layers more than the first.
 */
tess_status tess_planner_find_layers(struct tess_planner *p);
void tess_planner_close_layers(struct tess_planner *p);

/*
 * Finds plans with a style of its own for each module along tp, among all styles that are
 * registered, and adds them to p->found: the fastest, and some that take less memory
 * (styles/decide.c).
 */
tess_status tess_planner_find_styles(struct tess_planner *p, int32_t tp);

/* Estimates a strategy without stages from models with fewer layers. */
tess_status tess_planner_extrapolate(struct tess_planner *p, const struct tess_strategy *s,
                                     double *seconds, double *memory);

/* Copies a strategy to the planner's memory. NULL: out of memory. */
const struct tess_strategy *tess_planner_keep_strategy(struct tess_planner *p,
                                                       const struct tess_strategy *s);

#endif

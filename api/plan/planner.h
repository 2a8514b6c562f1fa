/* planner.h - the inside of a planner: what is planned, and the forecast of one strategy. */
#ifndef TESS_API_PLAN_PLANNER_H
#define TESS_API_PLAN_PLANNER_H

#include "api/explaining.h"
#include "nn/cost/step_time.h"

#include <tessera/planner.h>

struct tess_planner {
	struct tess_arena arena;
	struct tess_planner_options options; /* with their defaults */
	struct tess_planned_model model; /* its plan is that of nothing */
	struct tess_machine *machine;
	struct tess_device device; /* of the machine: a description that runs nothing */
	double memory; /* bytes of a rank */
	/* models with the first layers, from which the others follow; layers 0: the model itself */
	struct tess_shallow {
		struct tess_planned_model model;
		json_t *config;
		int64_t layers;
	} shallow[2];
	int64_t layers; /* numbered modules of the model */
	const char *path; /* of one, as a pattern: "model.layers.*" */
	const char *attention; /* the module of attention in it: "self_attn" */
	int32_t moments; /* of the optimizer */
};

/* Seconds and bytes of one kind of action of a stage, of its slowest rank. */
struct tess_stage_time {
	struct tess_step_time of[TESS_PIPELINE_KINDS];
	double gathered, logits; /* bytes of a micro-batch: TESS_HOLDS_GATHERED, TESS_HOLDS_LOSS */
};

/*
 * Predicts a strategy from its whole program. out->strategy is borrowed from s. TESS_EINVAL: it
 * cannot run.
 */
tess_status tess_planner_evaluate(struct tess_planner *p, const struct tess_strategy *s,
                                  struct tess_forecast *out);

/* A step of training of one replica without stages, of its slowest rank and its fullest. */
struct tess_sample {
	double forward[TESS_TERMS], backward[TESS_TERMS]; /* seconds */
	double data; /* seconds of calls along dp, waited for or not */
	double optimizer, returned; /* seconds of it, and of weights that it leaves in shares */
	double holds[TESS_HOLDS]; /* bytes */
};

/* Measures a step of `batch` sequences of `sequence` ids on a mesh without stages. */
tess_status tess_planner_sample(struct tess_planner *p, const struct tess_planned_model *model,
                                const struct tess_strategy *s, int64_t batch, int64_t sequence,
                                struct tess_sample *out);

/*
 * Finds the layers of the model, which of them are alike, and two models with fewer of them whose
 * difference is one period of alike layers.
 */
tess_status tess_planner_find_layers(struct tess_planner *p);
void tess_planner_close_layers(struct tess_planner *p);

/* Estimates a strategy without stages from models with fewer layers. */
tess_status tess_planner_extrapolate(struct tess_planner *p, const struct tess_strategy *s,
                                     double *seconds, double *memory);

/* Copies a strategy to the planner's memory. NULL: out of memory. */
const struct tess_strategy *tess_planner_keep_strategy(struct tess_planner *p,
                                                       const struct tess_strategy *s);

/* Sets seconds, rate and bound of a forecast from its terms and bytes. */
void tess_planner_conclude(const struct tess_planner *p, struct tess_forecast *f);

#endif

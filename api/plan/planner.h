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
	int32_t moments; /* of the optimizer */
};

/* Seconds and bytes of one kind of action of a stage, of its slowest rank. */
struct tess_stage_time {
	struct tess_step_time of[TESS_PIPELINE_KINDS];
};

/*
 * Predicts a strategy from its whole program. out->strategy is borrowed from s. TESS_EINVAL: it
 * cannot run.
 */
tess_status tess_planner_evaluate(struct tess_planner *p, const struct tess_strategy *s,
                                  struct tess_forecast *out);

/* Copies a strategy to the planner's memory. NULL: out of memory. */
const struct tess_strategy *tess_planner_keep_strategy(struct tess_planner *p,
                                                       const struct tess_strategy *s);

/* Sets seconds, rate and bound of a forecast from its terms and bytes. */
void tess_planner_conclude(const struct tess_planner *p, struct tess_forecast *f);

#endif

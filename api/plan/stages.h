/*
 * stages.h - estimates of pipelines: what stages take, from pipelines of two stages with a few
 * layers, and the waits of their ranks, from the schedule itself.
 */
#ifndef TESS_API_PLAN_STAGES_H
#define TESS_API_PLAN_STAGES_H

#include "api/plan/compose.h"

/* What a stage of n layers has: n * `layer`, and `end` of the first stage and of the last one. */
struct staged {
	struct tess_stage_sample layer, end[2];
	bool refused;
};

/* A schedule, of few micro-batches, that begins and ends as one of more. */
struct stage_schedule {
	int32_t schedule, pp; /* index of tess_candidate_get_schedule; ranks */
	struct tess_pipeline *pipeline;
	struct tess_timeline *timeline; /* with slots of its stages; times are not those of ranks */
	double *layers; /* by stage */
};

struct stager; /* programs that were lowered, and schedules */
tess_status tess_stager_open(struct tess_planner *p, struct stager **out);
void tess_stager_close(struct stager *s);

/* Estimates the stages of a candidate, without what they do along dp. */
tess_status tess_stager_compose(struct stager *s, const struct candidate *k, struct staged *out);
/* Finds the schedule of a candidate, which `s` keeps. */
tess_status tess_stager_find_schedule(struct stager *s, const struct candidate *k,
                                      const struct staged *staged,
                                      const struct stage_schedule **out);
/* Returns the seconds of a kind of computation of a stage. */
double tess_staged_sum_seconds(const struct staged *staged, const struct stage_schedule *of,
                               int32_t kind, int32_t stage);

/* Simulates a candidate: seconds from its first forward to its last backward, and work. */
struct simulated {
	double seconds, work; /* work: of the busiest rank for a micro-batch */
};
tess_status tess_stager_simulate(struct stager *s, const struct candidate *k,
                                 const struct staged *staged, const struct stage_schedule *of,
                                 struct simulated *out);

#endif

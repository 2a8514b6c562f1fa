/*
 * compose.h - estimates of many strategies from few programs: layers that are alike are lowered
 * once for each number of ranks along tp and ep, rows and recomputation, and twice for ranks along
 * dp. The best estimates are then predicted from their whole programs (evaluate.c).
 */
#ifndef TESS_API_PLAN_COMPOSE_H
#define TESS_API_PLAN_COMPOSE_H

#include "api/plan/planner.h"

enum { ZERO_NONE, ZERO_1, ZERO_3, ZEROS };
enum { RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_LAYERS, RECOMPUTES };

/* What is in files: nothing, the optimizer's state, or weights and gradients, too. */
enum { OFFLOAD_NONE, OFFLOAD_STATE, OFFLOAD_ALL, OFFLOADS };

/* Bytes of the buckets of a candidate with large ones. */
#define LARGE_BUCKET (UINT64_C(256) << 20)

/* A strategy in numbers. */
struct candidate {
	int32_t dp, tp, pp;
	int32_t ep; /* 1: experts are cut along tp, if the plan cuts them */
	int32_t shards; /* ranks along dp that share a weight; others have copies; 0: all */
	int32_t plan; /* index of the model's presets, then of the found ones; -1: auto */
	int32_t zero, recompute, offload; /* ZERO_..., RECOMPUTE_..., OFFLOAD_... */
	int32_t bucket; /* 1: large ones along dp, for many ranks */
	int64_t local, micro; /* sequences of a replica at once; micro-batches of a step */
	int32_t schedule; /* index of tess_candidate_get_schedule */
	double seconds, memory; /* estimates */
};

/* From SCHEDULE_APART on, gradients of weights are apart from those of inputs. */
enum { SCHEDULE_APART = 2, SCHEDULES = 4 };
/* Returns "1f1b", ...; *per_rank: stages of a rank. */
const char *tess_candidate_get_schedule(int32_t schedule, int32_t *per_rank);

/* Returns the plan of a candidate: a name, or rules. */
const char *tess_candidate_get_plan(const struct tess_planner *p, const struct candidate *k);
/* Returns the number of the model's presets. */
int32_t tess_planner_count_presets(const struct tess_planner *p);

/* Ranks along dp of samples, and copies of their shares; others follow from these. */
enum { REPLICAS = 2 };
/* Numbers of sequences of a replica that are measured; others are on the line through them. */
enum { LOCAL_FEW = 1, LOCAL_MORE = 4 };
/* Sums of layers: what a model of n layers has is `base` + n * `layer`. */
struct composed {
	struct tess_sample base, layer;
	/* of what is done along dp: by number of layers, of the forward and the backward */
	struct tess_step_trace trace[2][2];
	bool refused;
};
/* Sets n members of a sample, which are all double, to a * x + b * y (sample.c). */
void tess_sample_combine(double a, const void *x, double b, const void *y, void *out, size_t n);
struct composer; /* programs that were lowered */
tess_status tess_composer_open(struct tess_planner *p, struct composer **out);
void tess_composer_close(struct composer *c);

/*
 * Estimates seconds and memory of a candidate. TESS_EINVAL: its plan is refused with these numbers
 * of ranks.
 */
tess_status tess_composer_estimate(struct composer *c, struct candidate *k);

/*
 * Sets k->bucket: large buckets start fewer calls, but hide none unless a stage has many of them.
 */
tess_status tess_composer_choose_bucket(struct composer *c, struct candidate *k);

/* Returns the ranks along dp that keep shares of a weight. */
int32_t tess_candidate_count_shards(const struct candidate *k);
/* Returns the ranks of a stage of a replica. */
int32_t tess_candidate_count_cuts(const struct candidate *k);

/* Makes the strategy of a candidate, in the planner's memory. NULL: out of memory. */
const struct tess_strategy *tess_candidate_make_strategy(struct tess_planner *p,
                                                         const struct candidate *k);

#endif

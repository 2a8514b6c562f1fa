/* combine.h - the sum of a row's weighted experts, in the tree over experts. */
#ifndef TESS_DEVICES_CPU_COMBINE_H
#define TESS_DEVICES_CPU_COMBINE_H

#include "cpu.h"

struct leaf { /* an expert requested by a row */
	const float *z; /* its result */
	int64_t unit;
	float weight;
	int32_t merges; /* scratch */
};

struct combine {
	const struct cpu *cpu;
	const struct tess_op *op;
};

/* Writes row `row` of the output, or of its nodes. Leaves are in increasing order of units. */
#define combine_leaves CPU_NAME(combine_leaves)
void combine_leaves(const struct tess_op *op, struct leaf *leaf, int64_t n, int64_t row);

/* Counts the experts that row `row` of the weights requests. */
static inline int64_t cpu_count_experts(const struct tess_view *weights, int64_t row)
{
	const float *w = get_row(weights, row);
	int64_t n = 0;

	for (int64_t e = 0; e < weights->shape[1]; e++)
		n += w[e] != 0.0f;
	return n;
}

static inline tess_status cpu_fail_slots(const struct tess_op *op, int64_t n, int64_t slots)
{
	return cpu_host->fail(TESS_EINVAL,
	                      "%s: cpu: a row asks for %lld experts, but has %lld slots for them",
	                      op->where, (long long)n, (long long)slots);
}

#endif

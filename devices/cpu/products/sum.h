/*
 * sum.h - the order of a sum as a list of steps.
 *
 * The steps run on a stack of values ("levels"): a step adds a run of elements to the chain at its
 * level, then merges it with the levels below: left + right. See "Order of sums" in docs/ops.md.
 */
#ifndef TESS_DEVICES_CPU_SUM_H
#define TESS_DEVICES_CPU_SUM_H

#include <stdbool.h>
#include <tessera/device.h>

enum { GROUP = 32 }; /* elements that share a scale; a unit's last group may have fewer */

struct sum_step {
	int64_t at, before; /* first element; elements of all earlier steps */
	int64_t groups; /* of TESS_Q8 weights, before it: of GROUP elements of a unit */
	int64_t pairs; /* of elements, before it: an odd one of a step is a pair too */
	int32_t len;
	int32_t node; /* the node of the out that it completes; -1: none */
	int32_t operand; /* that of the term */
	int16_t level; /* of the chain */
	int16_t merge; /* then merges with so many levels below */
	int16_t trees; /* then, in the tree over trees, so many more */
	uint8_t fresh; /* starts a leaf at +0.0f; 0: continues the chain at `level` */
	uint8_t finish; /* adds +0.0f between merge and trees */
};

struct sum {
	struct sum_step *step;
	int64_t count, capacity;
	int64_t elements, groups, pairs; /* of all steps */
	int32_t levels, nodes; /* depth of the stack; nodes of the out, 1 if it is finished */
	struct sum_source {
		int64_t n, lo, hi, step_max; /* n is 0: not of one tree, or not planned */
		int32_t terms, partial;
		int64_t *term; /* operand and bounds of each */
	} from;
	int64_t used; /* when: the turn of the plans */
};

/* Sums that were planned last: ops of one model have few different ones. {0}: none */
struct sum_plans {
	struct sum plan[8]; /* an op uses up to three at a time */
	int64_t turn;
};

/*
 * Finds or makes the steps of op's trees; a leaf of more than `step_max` elements takes several.
 * partial: stops at the nodes of each tree; else the sum is finished. *out is valid while at most
 * 7 others are asked for. TESS_ENOMEM has no sentence.
 */
tess_status sum_plan(struct sum_plans *p, const struct tess_op *op, bool partial, int64_t step_max,
                     const struct sum **out);
/*
 * The same for a sum over tokens, whose trees are op's from `tree` on, finished or not as out[0]
 * is; the first numbers of op are TESS_TOKENS_*.
 */
tess_status sum_plan_tokens(struct sum_plans *p, const struct tess_op *op, int32_t tree,
                            int64_t step_max, const struct sum **out);
void sum_free_plans(struct sum_plans *p);

/* The number of merges after unit u of KEY_UNITS units, where those before `first` are absent. */
static inline int sum_count_merges(int64_t first, int64_t u)
{
	int level = 0;

	while ((u >> level & 1) && (u >> level) << level > first)
		level++;
	return level;
}

#endif

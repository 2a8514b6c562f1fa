/*
 * sum.h - the order of a sum as a list of steps.
 *
 * The steps run on a stack of values ("levels"): a step adds a range of elements to the chain at
 * its level, then merges it with the levels below: left + right. See "Order of sums" in
 * docs/ops.md.
 */
#ifndef TESS_DEVICES_CPU_SUM_H
#define TESS_DEVICES_CPU_SUM_H

#include <stdbool.h>
#include <tessera/device.h>

enum { GROUP = 32 }; /* elements that share a scale; a unit's last group may have fewer */

struct sum_step {
	int64_t at, before; /* first element; number of elements of earlier steps */
	int64_t groups; /* groups of GROUP elements of a unit before it */
	int64_t pairs; /* pairs of elements before it; an odd element of a step is a pair, too */
	int64_t words; /* words of 8 elements before it; the last one of a step may have fewer */
	int32_t len;
	int32_t node; /* the node of the output that it completes; -1: none */
	int32_t operand; /* operand of the term */
	int16_t level; /* level of the chain */
	int16_t merge; /* number of levels below to merge with */
	int16_t trees; /* number of further levels, in the tree over trees */
	uint8_t fresh; /* starts a leaf at +0.0f; 0: continues the chain at `level` */
	uint8_t finish; /* adds +0.0f between merge and trees */
};

struct sum {
	struct sum_step *step;
	int64_t count, capacity;
	int64_t elements, groups, pairs, words; /* totals of all steps */
	int32_t levels, nodes; /* depth of the stack; nodes of the output, 1 if finished */
	struct sum_source {
		int64_t n, lo, hi, step_max; /* n 0: not one tree, or not planned */
		int32_t terms, partial;
		int64_t *term; /* operand and bounds of each term */
	} from;
	int64_t used; /* turn of the last use */
};

/* The sums planned last: ops of one model have few different ones. {0} is empty. */
struct sum_plans {
	struct sum plan[8]; /* an op uses up to three at a time */
	int64_t turn;
};

/*
 * Finds or makes the steps of op's trees; a leaf of more than `step_max` elements takes several.
 * partial: stops at the nodes of each tree; else the sum is finished. *out is valid for the next 7
 * calls. TESS_ENOMEM has no message.
 */
tess_status sum_plan(struct sum_plans *p, const struct tess_op *op, bool partial, int64_t step_max,
                     const struct sum **out);
/*
 * Finds or makes the steps of a sum over tokens, of op's trees from `tree` on, finished or not like
 * out[0]; the first numbers of op are TESS_TOKENS_*.
 */
tess_status sum_plan_tokens(struct sum_plans *p, const struct tess_op *op, int32_t tree,
                            int64_t step_max, const struct sum **out);
void sum_free_plans(struct sum_plans *p);

/* Counts the merges after unit u of KEY_UNITS units, if those before `first` are absent. */
static inline int sum_count_merges(int64_t first, int64_t u)
{
	int level = 0;

	while ((u >> level & 1) && (u >> level) << level > first)
		level++;
	return level;
}

#endif

/*
 * sum.h - the order of a sum as a list of steps.
 *
 * A machine with a stack of values ("levels") runs them: a step adds a run of elements to the chain
 * at its level, then adds what lies below: left + right. docs/ops.md, section "Order of sums".
 */
#ifndef TESS_CPU_SUM_H
#define TESS_CPU_SUM_H

#include <tessera/device.h>

struct sum_step {
	int64_t at, before; /* first element; elements of all earlier steps */
	int32_t len;
	int32_t node; /* is then this node of the out; -1: stays on the stack */
	int16_t level; /* of the chain */
	int16_t merge; /* then so many times: left (the level below) + this */
	int16_t trees; /* then, tree over trees, so many times more */
	uint8_t fresh; /* starts a leaf at +0.0f; 0: goes on at `level` */
	uint8_t finish; /* between merge and trees: + 0.0f */
};

struct sum {
	struct sum_step *step; /* {0}: empty; sum_free */
	int64_t count, capacity;
	int64_t elements; /* of all steps */
	int32_t levels, nodes; /* depth of the stack; nodes made: 1 when it finishes */
};

/*
 * The steps of op's trees; a leaf of more than `most` elements is cut into several steps. partial:
 * up to the nodes of each tree; else all is finished. Fails with TESS_ENOMEM, without a sentence.
 */
tess_status sum_plan(struct sum *s, const struct tess_op *op, int partial, int64_t step_max);
void sum_free(struct sum *s);

/* How many merges follow unit u of KEY_UNITS units; those before `first` are absent. */
static inline int sum_count_merges(int64_t first, int64_t u)
{
	int level = 0;

	while ((u >> level & 1) && (u >> level) << level > first)
		level++;
	return level;
}

#endif

/*
 * reduction.h - reductions of one addend per rank in the order of tessera/split.h over the ranks,
 * for all dtypes, and the identity of each operation.
 */
#ifndef TESS_GROUP_REDUCTION_H
#define TESS_GROUP_REDUCTION_H

#include <tessera/tessera.h>

struct tess_reduction { /* equal on all ranks */
	int32_t dtype, op;
	uint64_t count; /* elements of one addend */
	/* NULL: every rank gets all results. Else rank r gets share[r] of them, after those of
	 * lower ranks; their total is `count`. */
	const uint64_t *share;
	uint64_t fingerprint; /* as that of tess_group_run */
	const char *where;
};

/*
 * Reduces addend[count] of all ranks to out: [count] or [share[rank]], not overlapping the addend.
 * Sums of f32 are exact sums (tess_group_sum) with a unit for each rank, so TESSERA_REDUCE applies.
 * Integers are left to the backend, since their results do not depend on the order. Floats are
 * combined here by the rules of tessera/reduce.h. Collective; blocking.
 */
tess_status tess_group_reduce(struct tess_group *g, const struct tess_reduction *r,
                              const void *addend, void *out);

/* Fills `count` elements with the value that leaves others unchanged under `op`: SUM, ... MAX. */
void tess_reduction_fill_identity(int32_t dtype, int32_t op, uint64_t count, void *out);

#endif

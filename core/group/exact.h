/*
 * exact.h - sums over ranks whose order is fixed: the same bits for any number of ranks.
 *
 * A Partial on rank r of P is, for each tree in order, the largest nodes (split.h) of the units
 * [edge(n, P, r), edge(n, P, r + 1)) of the tree's n: each a vector of `count` f32. The group moves nodes
 * and adds by itself: left + right, an empty side leaves the other as it is; a finished tree gets + 0.0f;
 * several trees are then added by the tree over trees, and that sum gets + 0.0f.
 */
#ifndef TESS_COMM_EXACT_H
#define TESS_COMM_EXACT_H

#include <tessera/tessera.h>

struct tess_sum { /* equal on all ranks, but for `share` read by all alike */
	int32_t ntree;
	const int64_t *n; /* units of each tree */
	uint64_t count; /* elements of one node */
	/*
	 * NULL: every rank gets the sum. Else rank r gets share[r] elements, which follow those of
	 * lower ranks and together are `count`.
	 */
	const uint64_t *share;
	const char *where;
};

/* How many nodes rank r of P holds, over all trees. */
int64_t tess_sum_nodes(const struct tess_sum *s, int32_t nranks, int32_t rank);

/*
 * Collective, blocking. nodes: [tess_sum_nodes][count] of this rank; out: [count] or [share[rank]], not
 * overlapping nodes. Scratch memory is the group's own and is kept between calls. With TESSERA_REDUCE=fast
 * the rank's nodes are added here and the backend sums as it likes.
 */
tess_status tess_group_sum(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                           float *out);

/*
 * The same addition where all Partials lie in this process: part[r] is rank r's nodes. Needs no group;
 * scratch: 64 * count f32. What tess_group_sum and the interpreter of the tests share.
 */
void tess_sum_finish(const struct tess_sum *s, int32_t nranks, const float *const *part,
                     float *scratch, float *out);

#endif

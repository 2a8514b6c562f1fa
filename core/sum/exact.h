/*
 * exact.h - sums over ranks in a fixed order: the same bits for any number of ranks.
 *
 * A Partial on rank r of P is, for each tree in order, the largest nodes (split.h) of the units
 * [edge(n, P, r), edge(n, P, r + 1)) of the tree's n: each a vector of `count` f32. The group moves
 * nodes and adds by itself: left + right, an empty side leaves the other as it is; a finished tree
 * gets + 0.0f; several trees are then added by the tree over trees, and that sum gets + 0.0f.
 */
#ifndef TESS_GROUP_EXACT_H
#define TESS_GROUP_EXACT_H

#include <tessera/tessera.h>

struct tess_sum { /* the same on all ranks */
	int32_t ntree;
	const int64_t *n; /* units of each tree */
	uint64_t count; /* elements of one node */
	/* NULL: every rank gets the sum. Else rank r gets share[r] elements, after those of lower
	 * ranks; their total is `count`. */
	const uint64_t *share;
	const char *where;
	int32_t mem; /* of nodes and out; 0: host memory */
	void *stream;
};

/* The number of nodes that rank `rank` holds, over all trees. */
int64_t tess_sum_nodes(const struct tess_sum *s, int32_t nranks, int32_t rank);

/*
 * Collective, blocking. nodes: [tess_sum_nodes][count] of this rank; out: [count] or [share[rank]],
 * not overlapping nodes. The group keeps the scratch memory for the next sum. With
 * TESSERA_REDUCE=fast the rank's nodes are added here, and the backend adds those sums in its own
 * order. Nodes in a device's memory are added in host memory.
 */
tess_status tess_group_sum(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                           float *out);

/*
 * The same, started: collective, in the order of the group's calls, and so is tess_sum_wait. Until
 * that nodes, out and the lists of *s belong to the sum, in which this rank adds only there and
 * where it starts later sums; other calls of the group may come between. A deadline counts from the
 * start of each call of the sum. Sums in a device's memory, of one rank, and, for every rank, of
 * more than 32 MiB are done at once.
 */
struct tess_sum_work;
tess_status tess_sum_start(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                           float *out, struct tess_sum_work **work);
/* Moves what is under way on backends that need it. TESS_PENDING; TESS_OK: wait takes no longer. */
tess_status tess_sum_test(struct tess_sum_work *w);
/* Where this rank will not wait: its memory is not in use any more, as after tess_work_abandon. */
void tess_sum_abandon(struct tess_sum_work *w);
/* Ends the work, also by a failure; nodes and out then belong to the group until it is closed. */
tess_status tess_sum_wait(struct tess_sum_work *w);
/* When the group is closed. */
void tess_group_free_sums(struct tess_group *g);

/*
 * The same addition where all Partials lie in this process: part[r] is rank r's nodes. Needs no
 * group. scratch: 64 * count f32. tess_group_sum and the interpreter of the tests share it.
 */
void tess_sum_finish(const struct tess_sum *s, int32_t nranks, const float *const *part,
                     float *scratch, float *out);

#endif

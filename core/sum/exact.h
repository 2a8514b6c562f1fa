/*
 * exact.h - sums over ranks in a fixed order, bit-identical for any number of ranks.
 *
 * A Partial on rank r of P contains, for each tree in order, the largest nodes (split.h) of the
 * units [edge(n, P, r), edge(n, P, r + 1)) of the tree's n: each is a vector of `count` f32. The
 * group moves nodes and adds left + right; an empty side leaves the other unchanged. + 0.0f
 * finishes a tree. Several trees are then added by the tree over trees, whose sum also gets + 0.0f.
 */
#ifndef TESS_GROUP_EXACT_H
#define TESS_GROUP_EXACT_H

#include <tessera/tessera.h>

struct tess_sum { /* equal on all ranks */
	int32_t ntree;
	const int64_t *n; /* units of each tree */
	uint64_t count; /* elements of one node */
	/* NULL: every rank gets the sum. Else rank r gets share[r] elements, after those of lower
	 * ranks; their total is `count`. */
	const uint64_t *share;
	const char *where;
	uint64_t fingerprint; /* as that of tess_group_run; 0: none */
	int32_t mem; /* kind of memory of nodes and out; 0: host memory */
	void *stream;
};

/* Returns the number of nodes of rank `rank`, over all trees. */
int64_t tess_sum_nodes(const struct tess_sum *s, int32_t nranks, int32_t rank);

/*
 * Sums nodes. nodes: [tess_sum_nodes][count] of this rank; out: [count] or [share[rank]], not
 * overlapping nodes. The group keeps the scratch memory for the next sum. With TESSERA_REDUCE=fast
 * this rank adds its nodes, and the backend adds those sums in its own order. Nodes in device
 * memory are added in host memory. Collective; blocking.
 */
tess_status tess_group_sum(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                           float *out);

/*
 * Starts a sum. Nodes, out and the lists of *s belong to it until tess_sum_wait. This rank adds
 * there, and when it starts later sums; other calls of the group may come between. A deadline
 * counts from the start of each call of the sum. Sums in device memory, sums of one rank, and sums
 * of more than 32 MiB for every rank are done at once. Both functions are collective, in the order
 * of the group's calls.
 */
struct tess_sum_work;
tess_status tess_sum_start(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                           float *out, struct tess_sum_work **work);
/* Progresses backends that require it. TESS_PENDING; TESS_OK: tess_sum_wait will not block. */
tess_status tess_sum_test(struct tess_sum_work *w);
/* Cancels a started sum; its buffers may be reused, as after tess_work_abandon. */
void tess_sum_abandon(struct tess_sum_work *w);
/*
 * Waits for and ends the sum. After a failure, nodes and out belong to the group until it closes.
 */
tess_status tess_sum_wait(struct tess_sum_work *w);
/* Frees works when the group is closed. */
void tess_group_free_sums(struct tess_group *g);

/*
 * Adds all Partials of one process like tess_group_sum, without a group; part[r] is rank r's nodes.
 * scratch: 64 * count f32. The tests' interpreter shares it.
 */
void tess_sum_finish(const struct tess_sum *s, int32_t nranks, const float *const *part,
                     float *scratch, float *out);

#endif

/*
 * tessera/split.h - the rule by which dimensions are cut and sums are added: parts, units, nodes.
 *
 * One rule serves ranks and sums. Part `i` of `m` of `n` units is
 * [up(i * n / m), up((i + 1) * n / m)). Sizes differ by 1 or less, and the parts of 2m nest in the
 * parts of m. Node (d, i) of the tree of a sum is part i of 2^d. A rank that holds the units
 * [lo, hi) has the largest nodes inside that range of every sum over them, in order: its Partial.
 * For 2^k ranks that is one node, for any n.
 *
 * Only inline functions, so that a device or a style adds and cuts exactly like the core.
 *
 * Example:
 *     static void get_range(int64_t n, int32_t rank, int32_t nranks, int64_t range[2])
 *     {
 *             range[0] = tess_edge(n, nranks, rank);
 *             range[1] = tess_edge(n, nranks, rank + 1);
 *     }
 */
#ifndef TESSERA_SPLIT_H
#define TESSERA_SPLIT_H

#include <stdint.h>

/* Returns a / b rounded up; a >= 0, b > 0. */
static inline int64_t tess_up(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

/*
 * Returns the first unit of part `i` of `m` of `n` units; i = m: the end. 0 <= i <= m;
 * n * m < 2^63.
 */
static inline int64_t tess_edge(int64_t n, int64_t m, int64_t i)
{
	return tess_up(i * n, m);
}

/* A node: part `at` of 2^depth of the units. A value. */
struct tess_node {
	/* First unit. */
	int64_t lo;
	/* End of the units, exclusive. */
	int64_t hi;
	/* Depth in the tree; 0: the root. */
	int32_t depth;
	/* Index among the 2^depth parts. */
	int64_t at;
};

/*
 * Gives the next of the largest nodes inside [lo, hi) of `n` units, in order of units. Start with
 * *at = lo. Returns 0 if none is left. 0 <= lo <= hi <= n <= 2^30. Empty nodes are skipped. Nodes
 * of several depths have the same units if one half is empty: *out then has the smallest depth.
 */
static inline int tess_node_next(int64_t n, int64_t lo, int64_t hi, int64_t *at,
                                 struct tess_node *out)
{
	struct tess_node a = { 0, n, 0, 0 };
	int64_t mid;

	if (*at < lo)
		*at = lo;
	if (*at >= hi)
		return 0;
	/* Descends through the nodes that contain unit *at. All units before it are done, so the
	 * first node that starts there and ends in the range is the largest. At depth log2(n) + 1
	 * it has one unit. */
	while (a.lo < *at || a.hi > hi) {
		a.depth++;
		a.at *= 2;
		mid = tess_edge(n, (int64_t)1 << a.depth, a.at + 1);
		if (*at < mid) {
			a.hi = mid;
		} else {
			a.lo = mid;
			a.at++;
		}
	}
	*at = a.hi;
	*out = a;
	return 1;
}

/* Returns the number of the largest nodes inside [lo, hi) of `n` units. */
static inline int64_t tess_node_count(int64_t n, int64_t lo, int64_t hi)
{
	struct tess_node node;
	int64_t at = lo, count = 0;

	while (tess_node_next(n, lo, hi, &at, &node))
		count++;
	return count;
}

/*
 * Returns the depth of the smallest node of n units that contains the units a and b: a sum adds
 * their halves there. 0 <= a < b < n <= 2^30.
 */
static inline int32_t tess_node_shared_depth(int64_t n, int64_t a, int64_t b)
{
	int32_t depth = 0;

	while ((a << (depth + 1)) / n == (b << (depth + 1)) / n)
		depth++;
	return depth;
}

#endif

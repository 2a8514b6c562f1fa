/*
 * tessera/split.h - how a dimension is cut, and in which order it is added: parts, units, nodes.
 *
 * One rule for ranks and for sums. Part `i` of `m` of `n` units is [up(i * n / m), up((i + 1) * n /
 * m)): sizes differ by at most one, and the parts of 2m nest in those of m. Node (d, i) of the tree
 * of a sum is part i of 2^d. A rank that holds the units [lo, hi) holds, of every sum over them,
 * the largest nodes inside that run, in order: its Partial. For 2^k ranks that is one node, for any
 * n.
 *
 * Only inline functions, so that a device or a style adds and cuts exactly as the core does.
 */
#ifndef TESSERA_SPLIT_H
#define TESSERA_SPLIT_H

#include <stdint.h>

/* a / b rounded up; a >= 0, b > 0. */
static inline int64_t tess_up(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

/* The start of part `i` of `m` of `n` units; i = m: the end. 0 <= i <= m; n * m < 2^63. */
static inline int64_t tess_edge(int64_t n, int64_t m, int64_t i)
{
	return tess_up(i * n, m);
}

struct tess_node { /* a value: units [lo, hi) = part `at` of 2^depth */
	int64_t lo, hi;
	int32_t depth;
	int64_t at;
};

/*
 * Walks the largest nodes inside [lo, hi) of `n` units in order of units: start with *at = lo; 0
 * when none is left. 0 <= lo <= hi <= n <= 2^30. Empty nodes are skipped; where several depths name
 * the same units (one half of a node is empty), the smallest depth is given.
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
	/* Down through the nodes that hold unit *at. All units before it are walked, so the first
	 * node that starts there and ends in the run is the largest: at log2(n) + 1, one unit. */
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

/* The number of largest nodes of the run [lo, hi) of `n` units. */
static inline int64_t tess_node_count(int64_t n, int64_t lo, int64_t hi)
{
	struct tess_node node;
	int64_t at = lo, count = 0;

	while (tess_node_next(n, lo, hi, &at, &node))
		count++;
	return count;
}

#endif

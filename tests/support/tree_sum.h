/*
 * tree_sum.h - a sum in the order of docs/ops.md, by definition: a recursion over the units of a
 * tree.
 */
#ifndef TESS_TESTS_SUPPORT_TREE_SUM_H
#define TESS_TESTS_SUPPORT_TREE_SUM_H

#include <stdbool.h>
#include <tessera/device.h>

/* Returns the value of the leaf of unit u of a tree. */
typedef float tree_leaf(const void *arg, const struct tess_tree *tree, int64_t u);

/* Sums node `at` of depth `depth`, restricted to units [lo, hi). False: no units there. */
static inline bool tree_sum_node(const struct tess_tree *t, int64_t lo, int64_t hi, int depth,
                                 int64_t at, tree_leaf *leaf, const void *arg, float *out)
{
	int64_t m = (int64_t)1 << depth, a = tess_edge(t->n, m, at), b = tess_edge(t->n, m, at + 1);
	float left = 0, right = 0;
	bool have_left, have_right;

	if (a >= b || b <= lo || a >= hi)
		return false;
	if (b - a == 1) {
		*out = leaf(arg, t, a);
		return true;
	}
	have_left = tree_sum_node(t, lo, hi, depth + 1, 2 * at, leaf, arg, &left);
	have_right = tree_sum_node(t, lo, hi, depth + 1, 2 * at + 1, leaf, arg, &right);
	*out = have_left && have_right ? left + right : have_left ? left : right;
	return have_left || have_right;
}

#endif

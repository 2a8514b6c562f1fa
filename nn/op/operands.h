/*
 * operands.h - predicates of operands and sums that the checks of several kinds of op share.
 *
 * A function that returns a string returns the rule that is violated, or NULL.
 */
#ifndef TESS_NN_OP_OPERANDS_H
#define TESS_NN_OP_OPERANDS_H

#include <stdbool.h>
#include <tessera/device.h>

enum { OP_UNITS_MAX = 1 << 30 };

static inline bool is_integer(double x, double lo, double hi)
{
	return x >= lo && x <= hi && x == (double)(int64_t)x;
}

/* ---- operands */

/* Returns whether `v` is f32 rows: activations [T, N], or with 3 axes the nodes of these. */
bool operand_is_rows(const struct tess_view *v, int32_t ndim);
/* Returns whether `v` is f32 rows [rows, columns]. */
bool operand_is_table(const struct tess_view *v, int64_t rows, int64_t columns);
/* Returns whether operand `i` is f32 rows of the same tokens as operand 0. */
bool operand_has_tokens(const struct tess_op *op, int32_t i);
/* Returns whether `v` is `n` dense i32. */
bool operand_is_list(const struct tess_view *v, int64_t n);
/* Returns whether `v` is `n` dense elements of `dtype`. */
bool operand_is_flat(const struct tess_view *v, int32_t dtype, int64_t n);
/* Returns whether `v` is a weight [n] in f32, bf16 or f16. */
bool operand_is_vector(const struct tess_view *v, int64_t n);
/* Returns whether `v` is a weight [N, K] in f32, bf16 or f16, in rows or in panels. */
bool operand_is_matrix(const struct tess_view *v);
/* Returns whether `v` is a weight [N, K] as operand_is_matrix, or in panels of q8, mxfp4, bf12. */
bool operand_is_linear_weight(const struct tess_view *v);
/* Returns the first matrix of a stack of them, without data. */
struct tess_view operand_get_matrix(const struct tess_view *stack);
bool operand_has_same_shape(const struct tess_view *a, const struct tess_view *b);

/* ---- sums; exact: a Partial has the nodes of its trees, else one (`exact` of tess_device) */

/* Checks that tree `t` sums [0, length) of an operand, and unless partial over all of its units. */
const char *op_check_tree(const struct tess_op *op, const struct tess_tree *t, int32_t operand,
                          int64_t length, bool partial);
/* Checks that all trees of an op are such sums over operand 0. */
const char *op_check_trees(const struct tess_op *op, int64_t length, bool partial);
/* Returns whether `y` is [rows, columns], or the nodes of that for the trees of `op`. */
bool op_is_sum(const struct tess_op *op, const struct tess_view *y, int64_t rows, int64_t columns,
               bool exact);
/* Returns whether out 0 is [rows, columns], or the nodes of that for tree `i` alone. */
bool op_is_sum_of_tree(const struct tess_op *op, int32_t i, int64_t rows, int64_t columns,
                       bool exact);
/*
 * Checks a sum over tokens of operand 0 by the trees from `first` on, into `y`, [rows, columns] or
 * nodes of that; `shape` is the rule for the shape of `y`.
 */
const char *op_check_token_sum(const struct tess_op *op, const struct tess_view *y, int32_t first,
                               int64_t rows, int64_t columns, bool exact, const char *shape);
/*
 * Checks a weight [N, K] that `ntree` trees from `t` on sum: compressed, its panels have the
 * bytes of its units. math: the dtype of products, 0 for the device's own.
 */
const char *op_check_weight(const struct tess_op *op, const struct tess_tree *t, int32_t ntree,
                            const struct tess_view *w, double math);

/* ---- numbers */

/* Returns whether a number is a dtype of products: 0, TESS_F32 or TESS_BF16. */
bool op_is_math(double number);
/* Returns the dtype of the products of an op; 0: the device's own, or there are none. */
int32_t op_get_math(const struct tess_op *op);

/* Returns whether rate and site are valid, and the last operand, `at`, is the key of the step. */
bool op_is_dropout(const struct tess_op *op, double rate, double site, int32_t at);
/* Returns whether a number is an activation of a GLU. */
bool op_is_activation(double number);

/* Returns whether the limit of experts, and biases if there is an operand `bias`, are valid. */
bool op_has_expert_form(const struct tess_op *op, int32_t bias);

#endif

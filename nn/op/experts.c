/* experts.c - checks ROUTE, EXPERTS and COMBINE. */
#include "nn/op/kinds.h"
#include "nn/op/operands.h"

const char *op_check_route(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];
	int64_t n = x->shape[1], groups;

	if (op->nin < 1 || op->nin > 2 || op->nout != 1 || op->nnum != TESS_ROUTE_NUMS)
		return "it takes logits, and a correction or not, and has six numbers";
	if (!operand_is_rows(x, 2) || !operand_is_rows(&op->out[0], 2) ||
	    !operand_has_same_shape(x, &op->out[0]) ||
	    (op->nin > 1 && !operand_is_vector(&op->in[1], n)))
		return "logits and weights must be f32 rows [T, E], a correction [E]";
	if (!is_integer(op->num[TESS_ROUTE_FLAGS], 0, 7) ||
	    !is_integer(op->num[TESS_ROUTE_GROUPS], 0, (double)n) ||
	    !is_integer(op->num[TESS_ROUTE_TOP], 1, (double)n))
		return "flags, groups and top must be integers, at most E";
	groups = (int64_t)op->num[TESS_ROUTE_GROUPS];
	if (groups > 1 &&
	    (n % groups || n / groups < 2 ||
	     !is_integer(op->num[TESS_ROUTE_GROUPS_KEPT], 1, (double)groups) ||
	     op->num[TESS_ROUTE_GROUPS_KEPT] * (double)(n / groups) < op->num[TESS_ROUTE_TOP]))
		return "groups must be equal, of two or more experts, and those that are kept "
		       "must have `top` of them";
	return NULL;
}

/* Checks that tree `i` has a unit for each column of the weights, operand 1. */
static const char *check_expert_tree(const struct tess_op *op, int32_t i, bool partial)
{
	const struct tess_tree *t = &op->tree[i];
	const char *why = op_check_tree(op, t, 1, op->in[1].shape[1], partial);

	return why ? why : t->hi - t->lo == op->in[1].shape[1] ? NULL : "an expert must be a unit";
}

const char *op_check_experts(const struct tess_op *op, bool exact)
{
	const struct tess_view *x = &op->in[0], *a = &op->in[2], *b = &op->in[3];
	struct tess_view gate_up, down;
	bool partial, slots;
	const char *why;

	if (op->nin < 4 || op->nin > 5 || op->nout != 1 || op->nnum != TESS_EXPERTS_NUMS ||
	    op->ntree != 3)
		return "it takes x, weights, gate_up, down and biases or not, gives one out, and "
		       "has six numbers and three trees";
	if (!op_has_expert_form(op, 4))
		return "the limit must not be negative, and biases are weights [e, 2F] in rows";
	gate_up = operand_get_matrix(a);
	down = operand_get_matrix(b);
	if (!operand_has_tokens(op, 0) || !operand_has_tokens(op, 1) ||
	    !operand_is_linear_weight(&gate_up) || !operand_is_linear_weight(&down) ||
	    a->shape[0] != op->in[1].shape[1] || b->shape[0] != a->shape[0] ||
	    gate_up.shape[1] != x->shape[1] || gate_up.shape[0] != 2 * down.shape[1])
		return "x must be f32 rows [T, K], weights [T, e], gate_up [e, 2F, K] and down "
		       "[e, H, F] in f32, bf16 or f16, in rows or panels";
	if (!op_is_activation(op->num[TESS_EXPERTS_ACTIVATION]) ||
	    !is_integer(op->num[TESS_EXPERTS_SLOTS], 0, 0x1p20) ||
	    !is_integer(op->num[TESS_EXPERTS_TOP], 0, 0x1p20))
		return "its numbers are the activation of a glu, the slots, and the experts "
		       "of a row";
	partial = op->out[0].ndim == 3;
	slots = op->num[TESS_EXPERTS_SLOTS] > 0;
	why = op_check_tree(op, &op->tree[0], 0, x->shape[1], false);
	why = why ? why : op_check_tree(op, &op->tree[1], 3, down.shape[1], partial && slots);
	why = why ? why : check_expert_tree(op, 2, partial || slots);
	why = why ? why
	          : op_check_weight(op, &op->tree[0], 1, &gate_up, op->num[TESS_EXPERTS_MATH]);
	why = why ? why : op_check_weight(op, &op->tree[1], 1, &down, op->num[TESS_EXPERTS_MATH]);
	if (!why &&
	    !op_is_sum_of_tree(op, slots ? 1 : 2, x->shape[0],
	                       down.shape[0] * (slots ? (int64_t)op->num[TESS_EXPERTS_SLOTS] : 1),
	                       exact))
		return "the out must be f32 rows [T, H] or [nodes, T, H], or with s slots [T, "
		       "s*H] or [nodes, T, s*H]";
	return why;
}

const char *op_check_combine(const struct tess_op *op, bool exact)
{
	const struct tess_view *y = &op->out[0];
	int64_t columns = y->ndim < 2 ? 0 : y->shape[y->ndim - 1];
	const char *why;

	if (op->nin != 2 || op->nout != 1 || op->ntree != 1)
		return "it takes the experts of rows and their weights, and has a tree";
	if (!operand_has_tokens(op, 0) || !operand_has_tokens(op, 1))
		return "both operands must be f32 rows of the same tokens";
	why = check_expert_tree(op, 0, y->ndim == 3);
	if (!why && (!op_is_sum(op, y, op->in[0].shape[0], columns, exact) ||
	             (columns && op->in[0].shape[1] % columns)))
		return "the out must be f32 rows [T, H] or [nodes, T, H], and the slots of a row "
		       "have H elements each";
	return why;
}

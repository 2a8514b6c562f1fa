/* experts_d.c - checks the ops of the backward of mixtures of experts. */
#include "nn/op/kinds.h"
#include "nn/op/operands.h"

const char *op_check_route_d(const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0], n = op->in[0].shape[1];

	if (op->nin != 3 || op->nout != 1 || op->nnum != TESS_ROUTE_NUMS)
		return "it takes logits, weights and g, and has the numbers of route";
	if (!operand_is_rows(&op->in[0], 2) || !operand_is_table(&op->in[1], rows, n) ||
	    !operand_is_table(&op->in[2], rows, n) || !operand_is_table(&op->out[0], rows, n))
		return "all must be f32 rows [T, E]";
	if (!is_integer(op->num[TESS_ROUTE_FLAGS], 0, 7))
		return "flags must be 0 to 7";
	return NULL;
}

const char *op_check_balance(const struct tess_op *op, bool exact)
{
	int64_t rows = op->in[0].shape[0], n = op->in[0].shape[1];
	struct tess_view out = op->out[0];

	if (op->nin < 2 || op->nin % 2 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS ||
	    out.ndim < 2)
		return "it takes logits and weights of each mixture, and has two numbers";
	for (int32_t i = 0; i < op->nin; i++)
		if (!operand_is_table(&op->in[i], rows, n))
			return "all operands must be f32 rows [T, E]";
	if (out.shape[out.ndim - 2] != op->nin || out.shape[out.ndim - 1] != n ||
	    out.stride[out.ndim - 2] != n)
		return "the out must be f32 rows [2L, E] or [nodes, 2L, E] without gaps";
	out.shape[out.ndim - 2] = 1;
	out.shape[out.ndim - 1] = out.stride[out.ndim - 2] = op->nin * n;
	return op_check_token_sum(op, &out, 0, 1, op->nin * n, exact,
	                          "the out must have the nodes of its trees");
}

const char *op_check_balance_d(const struct tess_op *op)
{
	int64_t n = op->in[0].shape[1];

	if (op->nin != 2 || op->nout != 1 || op->nnum != TESS_BALANCE_NUMS ||
	    !operand_is_rows(&op->in[0], 2) || !operand_is_rows(&op->in[1], 2) ||
	    op->in[1].shape[1] != n || op->in[1].shape[0] % 2 ||
	    !operand_is_table(&op->out[0], op->in[0].shape[0], n))
		return "it takes f32 rows of logits [T, E] and totals [2L, E], gives [T, E], and "
		       "has two numbers";
	return NULL;
}

const char *op_check_combine_d(const struct tess_op *op)
{
	const struct tess_view *w = &op->in[1], *g = &op->in[2];

	if (op->nin != 3 || op->nout != 1 || op->ntree != 1)
		return "it takes the experts of rows, their weights and g, and has a tree";
	if (!operand_is_rows(w, 2) || !operand_is_rows(g, 2) || !operand_is_rows(&op->in[0], 2) ||
	    g->shape[0] != w->shape[0] || op->in[0].shape[0] != w->shape[0] || !g->shape[1] ||
	    op->in[0].shape[1] % g->shape[1] ||
	    !operand_is_table(&op->out[0], w->shape[0], w->shape[1]))
		return "slots must be f32 rows [T, s*H], weights and out [T, e], g [T, H]";
	return op_check_tree(op, &op->tree[0], 2, g->shape[1], false);
}

/* Returns whether the shapes of x, weights, gate_up, down, g and the second out agree. */
static bool is_expert_backward(const struct tess_op *op, int64_t slots)
{
	const struct tess_view *x = &op->in[0];
	struct tess_view up = operand_get_matrix(&op->in[2]), down = operand_get_matrix(&op->in[3]);
	int64_t rows = x->shape[0], f = down.shape[1];

	return operand_has_tokens(op, 0) && operand_has_tokens(op, 1) && operand_is_matrix(&up) &&
	       up.layout == TESS_ROWS && operand_is_matrix(&down) && down.layout == TESS_ROWS &&
	       op->in[2].shape[0] == op->in[1].shape[1] &&
	       op->in[3].shape[0] == op->in[1].shape[1] && up.shape[1] == x->shape[1] &&
	       up.shape[0] == 2 * f && operand_is_table(&op->in[4], rows, down.shape[0]) &&
	       operand_is_table(&op->out[1], rows, slots * 3 * f);
}

const char *op_check_experts_d(const struct tess_op *op, bool exact)
{
	int64_t slots;
	const char *why;

	if (op->nin < 5 || op->nin > 6 || op->nout != 2 || op->nnum != TESS_EXPERTS_NUMS ||
	    op->ntree != 3)
		return "it takes x, weights, gate_up, down, g and biases or not, gives two outs, "
		       "and has six numbers and three trees";
	if (!op_has_expert_form(op, 5))
		return "the limit must not be negative, and biases are weights [e, 2F] in rows";
	if (!op_is_activation(op->num[TESS_EXPERTS_ACTIVATION]) ||
	    !is_integer(op->num[TESS_EXPERTS_SLOTS], 1, 0x1p20) ||
	    !op_is_math(op->num[TESS_EXPERTS_MATH]))
		return "its numbers are the activation of a glu, slots, and the dtype of products, "
		       "f32 or bf16";
	slots = (int64_t)op->num[TESS_EXPERTS_SLOTS];
	if (!is_expert_backward(op, slots))
		return "x must be f32 rows [T, K], weights [T, e], gate_up [e, 2F, K] and down "
		       "[e, H, F] in rows, g f32 [T, H], and the second out [T, s*3F]";
	why = op_check_tree(op, &op->tree[0], 0, op->in[0].shape[1], false);
	why = why ? why : op_check_tree(op, &op->tree[1], 4, op->in[4].shape[1], false);
	why = why ? why
	          : op_check_tree(op, &op->tree[2], 2, op->in[2].shape[1], op->out[0].ndim == 3);
	if (!why &&
	    !op_is_sum_of_tree(op, 2, op->in[0].shape[0], slots * op->in[0].shape[1], exact))
		return "the first out must be f32 rows [T, s*K] or [nodes, T, s*K]";
	return why;
}

/* Checks out `which`, the gradients of experts, whose matrices are [rows, columns]. */
static const char *check_expert_gradient(const struct tess_op *op, int32_t which, int64_t rows,
                                         int64_t columns, bool exact)
{
	struct tess_view v = op->out[which];
	int32_t a = v.ndim - 3, turned;

	if (a < 0 || a > 1 || v.shape[a] != op->in[1].shape[1] || v.shape[a + 1] != rows ||
	    v.shape[a + 2] != columns)
		return "the outs must be [e, 2F, K] and [e, H, F], or nodes of that";
	turned = v.stride[a + 2] != 1;
	v.ndim--; /* one expert, its contiguous axis last */
	v.stride[a] = v.stride[a + 1 + turned];
	v.shape[a] = turned ? columns : rows;
	v.shape[a + 1] = turned ? rows : columns;
	v.stride[a + 1] = op->out[which].stride[a + 2 - turned];
	return op_check_token_sum(op, &v, 0, v.shape[a], v.shape[a + 1], exact,
	                          "the outs must be f32 with the nodes of their trees");
}

const char *op_check_experts_dw(const struct tess_op *op, bool exact)
{
	int64_t f;
	const char *why;

	if (op->nin != 4 || op->nout < 2 || op->nout > 3 || op->out[1].ndim < 3 ||
	    (op->nnum != TESS_TOKENS_NUMS && op->nnum != TESS_EXPERTS_DW_NUMS))
		return "it takes x, weights, g and mid, gives two outs, or three with biases, and "
		       "has two numbers, or also the dtype of products";
	if (op->nnum == TESS_EXPERTS_DW_NUMS && !op_is_math(op->num[TESS_EXPERTS_DW_MATH]))
		return "products are of f32, or of bf16";
	f = op->out[1].shape[op->out[1].ndim - 1];
	for (int32_t i = 0; i < op->nin; i++)
		if (!operand_has_tokens(op, i) || f < 1 || op->in[3].shape[1] % (3 * f))
			return "x must be f32 rows [T, K], weights [T, e], g [T, H] and mid [T, "
			       "s*3F]";
	why = check_expert_gradient(op, 0, 2 * f, op->in[0].shape[1], exact);
	why = why ? why : check_expert_gradient(op, 1, op->in[2].shape[1], f, exact);
	return why || op->nout < 3 ? why : check_expert_gradient(op, 2, 2 * f, 1, exact);
}

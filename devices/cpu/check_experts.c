/* Checks the ops of training of mixtures of experts by docs/ops.md. */
#include "check.h"

static bool is_rows(const struct tess_view *v, int64_t rows, int64_t columns)
{
	return is_row_view(v, 2) && v->shape[0] == rows && v->shape[1] == columns;
}

static tess_status check_route_d(const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0], n = op->in[0].shape[1];

	if (op->nin != 3 || op->nout != 1 || op->nnum != TESS_ROUTE_NUMS)
		return refuse_op(op, "route_d",
		                 "it takes logits, weights and g, and has the numbers of route");
	if (!is_row_view(&op->in[0], 2) || !is_rows(&op->in[1], rows, n) ||
	    !is_rows(&op->in[2], rows, n) || !is_rows(&op->out[0], rows, n))
		return refuse_op(op, "route_d", "all must be f32 rows [T, E]");
	if (!is_integer(op->num[TESS_ROUTE_FLAGS], 0, 3))
		return refuse_op(op, "route_d", "flags must be 0 to 3");
	return TESS_OK;
}

static tess_status check_balance(const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0], n = op->in[0].shape[1];
	struct tess_view out = op->out[0];
	struct tess_op sum = *op;
	const char *why;

	if (op->nin < 2 || op->nin % 2 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS ||
	    out.ndim < 2)
		return refuse_op(
			op, "balance",
			"it takes logits and weights of each mixture, and has two numbers");
	for (int32_t i = 0; i < op->nin; i++)
		if (!is_rows(&op->in[i], rows, n))
			return refuse_op(op, "balance", "all operands must be f32 rows [T, E]");
	if (out.shape[out.ndim - 2] != op->nin || out.shape[out.ndim - 1] != n ||
	    out.stride[out.ndim - 2] != n)
		return refuse_op(op, "balance",
		                 "the out must be f32 rows [2L, E] or [nodes, 2L, E] without gaps");
	out.shape[out.ndim - 2] = 1;
	out.shape[out.ndim - 1] = out.stride[out.ndim - 2] = op->nin * n;
	sum.out = &out;
	why = cpu_check_token_sum(&sum, 0);
	if (!why && !cpu_is_token_sum(&sum, 0, 1, op->nin * n))
		why = "the out must have the nodes of its trees";
	return why ? refuse_op(op, "balance", why) : TESS_OK;
}

static tess_status check_balance_d(const struct tess_op *op)
{
	int64_t n = op->in[0].shape[1];

	if (op->nin != 2 || op->nout != 1 || op->nnum != TESS_BALANCE_NUMS ||
	    !is_row_view(&op->in[0], 2) || !is_row_view(&op->in[1], 2) || op->in[1].shape[1] != n ||
	    op->in[1].shape[0] % 2 || !is_rows(&op->out[0], op->in[0].shape[0], n))
		return refuse_op(op, "balance_d",
		                 "it takes f32 rows of logits [T, E] and totals [2L, E], gives "
		                 "[T, E], and has two numbers");
	return TESS_OK;
}

static tess_status check_combine_d(const struct tess_op *op)
{
	const struct tess_view *w = &op->in[1], *g = &op->in[2];
	const char *why;

	if (op->nin != 3 || op->nout != 1 || op->ntree != 1)
		return refuse_op(
			op, "combine_d",
			"it takes the experts of rows, their weights and g, and has a tree");
	if (!is_row_view(w, 2) || !is_row_view(g, 2) || !is_row_view(&op->in[0], 2) ||
	    g->shape[0] != w->shape[0] || op->in[0].shape[0] != w->shape[0] || !g->shape[1] ||
	    op->in[0].shape[1] % g->shape[1] || !is_rows(&op->out[0], w->shape[0], w->shape[1]))
		return refuse_op(
			op, "combine_d",
			"slots must be f32 rows [T, s*H], weights and out [T, e], g [T, H]");
	why = check_tree(op, &op->tree[0], 2, g->shape[1], false);
	return why ? refuse_op(op, "combine_d", why) : TESS_OK;
}

/* Whether the shapes of x, weights, gate_up, down, g and the two outs agree. */
static bool is_expert_backward(const struct tess_op *op, int64_t slots)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	struct tess_view up = get_matrix(&op->in[2], 0), down = get_matrix(&op->in[3], 0);
	int64_t rows = x->shape[0], f = down.shape[1];
	bool partial = y->ndim == 3;

	return is_row_view(x, 2) && is_row_view(&op->in[1], 2) && op->in[1].shape[0] == rows &&
	       is_matrix(&up) && up.layout == TESS_ROWS && is_matrix(&down) &&
	       down.layout == TESS_ROWS && op->in[2].shape[0] == op->in[1].shape[1] &&
	       op->in[3].shape[0] == op->in[1].shape[1] && up.shape[1] == x->shape[1] &&
	       up.shape[0] == 2 * f && is_rows(&op->in[4], rows, down.shape[0]) &&
	       is_row_view(y, partial ? 3 : 2) && y->shape[partial] == rows &&
	       y->shape[partial + 1] == slots * x->shape[1] &&
	       is_rows(&op->out[1], rows, slots * 3 * f);
}

static tess_status check_experts_d(const struct tess_op *op)
{
	const struct tess_view *y = &op->out[0];
	const struct tess_tree *t = &op->tree[2];
	const char *why;

	if (op->nin != 5 || op->nout != 2 || op->nnum != TESS_EXPERTS_NUMS || op->ntree != 3)
		return refuse_op(
			op, "experts_d",
			"it takes x, weights, gate_up, down and g, gives two outs, and has "
			"four numbers and three trees");
	if (!is_integer(op->num[TESS_EXPERTS_ACTIVATION], TESS_SILU, TESS_TANH) ||
	    !is_integer(op->num[TESS_EXPERTS_SLOTS], 1, 0x1p20))
		return refuse_op(op, "experts_d",
		                 "its numbers are the activation, as a glu has it, and slots");
	if (!is_expert_backward(op, (int64_t)op->num[TESS_EXPERTS_SLOTS]))
		return refuse_op(
			op, "experts_d",
			"x must be f32 rows [T, K], weights [T, e], gate_up [e, 2F, K] and "
			"down [e, H, F] in rows, g f32 [T, H], and the outs [T, s*K] or "
			"[nodes, T, s*K], and [T, s*3F]");
	why = check_tree(op, &op->tree[0], 0, op->in[0].shape[1], false);
	why = why ? why : check_tree(op, &op->tree[1], 4, op->in[4].shape[1], false);
	why = why ? why : check_tree(op, t, 2, op->in[2].shape[1], y->ndim == 3);
	if (!why && y->ndim == 3 &&
	    y->shape[0] != (CHECK_EXACT ? tess_node_count(t->n, t->lo, t->hi) : 1))
		why = "the out must have the nodes of its tree";
	return why ? refuse_op(op, "experts_d", why) : TESS_OK;
}

/* The rule that one of the gradients of experts breaks, whose matrices are [rows, columns]. */
static const char *check_expert_gradient(const struct tess_op *op, int32_t which, int64_t rows,
                                         int64_t columns)
{
	struct tess_view v = op->out[which];
	int32_t a = v.ndim - 3, turned;
	struct tess_op sum = *op;
	const char *why;

	if (a < 0 || a > 1 || v.shape[a] != op->in[1].shape[1] || v.shape[a + 1] != rows ||
	    v.shape[a + 2] != columns)
		return "the outs must be [e, 2F, K] and [e, H, F], or nodes of that";
	turned = v.stride[a + 2] != 1;
	v.ndim--; /* one expert, its contiguous axis last */
	v.stride[a] = v.stride[a + 1 + turned];
	v.shape[a] = turned ? columns : rows;
	v.shape[a + 1] = turned ? rows : columns;
	v.stride[a + 1] = op->out[which].stride[a + 2 - turned];
	sum.out = &v;
	why = cpu_check_token_sum(&sum, 0);
	return why ? why
	       : cpu_is_token_sum(&sum, 0, v.shape[a], v.shape[a + 1])
	               ? NULL
	               : "the outs must be f32 with the "
	                 "nodes of their trees";
}

static tess_status check_experts_dw(const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0], f;
	const char *why;

	if (op->nin != 4 || op->nout != 2 || op->nnum != TESS_TOKENS_NUMS || op->out[1].ndim < 3)
		return refuse_op(op, "experts_dw",
		                 "it takes x, weights, g and mid, gives two outs, and has two "
		                 "numbers");
	f = op->out[1].shape[op->out[1].ndim - 1];
	for (int32_t i = 0; i < op->nin; i++)
		if (!is_row_view(&op->in[i], 2) || op->in[i].shape[0] != rows || f < 1 ||
		    op->in[3].shape[1] % (3 * f))
			return refuse_op(
				op, "experts_dw",
				"x must be f32 rows [T, K], weights [T, e], g [T, H] and mid "
				"[T, s*3F]");
	why = check_expert_gradient(op, 0, 2 * f, op->in[0].shape[1]);
	why = why ? why : check_expert_gradient(op, 1, op->in[2].shape[1], f);
	return why ? refuse_op(op, "experts_dw", why) : TESS_OK;
}

tess_status cpu_check_experts(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_ROUTE_D:
		return check_route_d(op);
	case TESS_OP_BALANCE:
		return check_balance(op);
	case TESS_OP_BALANCE_D:
		return check_balance_d(op);
	case TESS_OP_COMBINE_D:
		return check_combine_d(op);
	case TESS_OP_EXPERTS_D:
		return check_experts_d(op);
	case TESS_OP_EXPERTS_DW:
		return check_experts_dw(op);
	}
	return cpu_check(op);
}

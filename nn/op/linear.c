/* linear.c - checks LINEAR and HEAD_LINEAR, and the ops of their backward. */
#include "nn/op/kinds.h"
#include "nn/op/operands.h"

const char *op_check_linear(const struct tess_op *op, bool exact)
{
	bool partial = op->out[0].ndim == 3;
	const char *why;

	if (op->nin != op->nout + 1)
		return "it takes x and one weight for each out";
	if (op->nnum && op->nnum != TESS_LINEAR_NUMS)
		return "its number is the dtype of its products, or none";
	if (!operand_is_rows(&op->in[0], 2))
		return "x must be f32 rows [T, K]";
	why = op_check_trees(op, op->in[0].shape[1], partial);
	for (int32_t i = 0; i < op->nout && !why; i++) {
		const struct tess_view *w = &op->in[1 + i];

		if (!operand_is_linear_weight(w) || w->shape[1] != op->in[0].shape[1])
			return "a weight must be [N, K] in f32, bf16 or f16, in rows, or in panels "
			       "of strides that fit";
		why = op_check_weight(op, op->tree, op->ntree, w,
		                      op->nnum ? op->num[TESS_LINEAR_MATH] : 0);
		if (!why && ((op->out[i].ndim == 3) != partial ||
		             !op_is_sum(op, &op->out[i], op->in[0].shape[0], w->shape[0], exact)))
			return "an out must be f32 rows [T, N], or for all weights alike [nodes, "
			       "T, N]";
	}
	return why;
}

/* Checks that each term of a tree is a sum over a gradient, one of n. */
static const char *check_gradient_tree(const struct tess_op *op, struct tess_tree t, int32_t n,
                                       bool partial)
{
	int32_t end = t.first + t.terms;
	const char *why = NULL;

	if (t.terms < 1 || t.first < 0 || t.first > op->nterm - t.terms)
		return "a tree has no terms";
	for (t.terms = 1; t.first < end && !why; t.first++) {
		int32_t of = op->term[t.first].operand;

		why = of < 0 || of >= n ? "a sum must be over the gradients"
		                        : op_check_tree(op, &t, of, op->in[of].shape[1], partial);
	}
	return why;
}

const char *op_check_linear_dx(const struct tess_op *op, bool exact)
{
	int32_t n = op->nin / 2;
	const char *why = NULL;

	if (n < 1 || op->nin % 2 || op->nout != 1 || op->ntree < 1)
		return "it takes gradients and as many weights, gives one out, and has a tree";
	if (op->nnum && (op->nnum != TESS_LINEAR_NUMS || !op_is_math(op->num[TESS_LINEAR_MATH])))
		return "its number is the dtype of its products, f32 or bf16, or none";
	for (int32_t i = 0; i < n; i++)
		if (!operand_has_tokens(op, i) || !operand_is_matrix(&op->in[n + i]) ||
		    op->in[n + i].layout != TESS_ROWS ||
		    op->in[n + i].shape[0] != op->in[i].shape[1] ||
		    op->in[n + i].shape[1] != op->in[n].shape[1])
			return "a gradient must be f32 rows [T, N], and its weight rows [N, K] in "
			       "f32, bf16 or f16, all of one T and K";
	for (int32_t i = 0; i < op->ntree && !why; i++)
		why = check_gradient_tree(op, op->tree[i], n, op->out[0].ndim == 3);
	if (!why && !op_is_sum(op, &op->out[0], op->in[0].shape[0], op->in[n].shape[1], exact))
		return "the out must be f32 rows [T, K] or [nodes, T, K]";
	return why;
}

const char *op_check_linear_dw(const struct tess_op *op, bool exact)
{
	const struct tess_view *out = &op->out[0];
	struct tess_view y = *out;
	int32_t a = y.ndim - 2;

	if (op->nin != 2 || op->nout != 1 || a < 0 ||
	    (op->nnum != TESS_TOKENS_NUMS && op->nnum != TESS_LINEAR_DW_MATH &&
	     op->nnum != TESS_LINEAR_DW_NUMS))
		return "it takes x and g, and has two numbers, or also the dtypes of the weight "
		       "and of products";
	if (op->nnum == TESS_LINEAR_DW_NUMS && !op_is_math(op->num[TESS_LINEAR_DW_MATH]))
		return "products are of f32, or of bf16";
	if (!operand_has_tokens(op, 0) || !operand_has_tokens(op, 1))
		return "x and g must be f32 rows of the same tokens";
	if (out->shape[a] != op->in[1].shape[1] || out->shape[a + 1] != op->in[0].shape[1])
		return "the out must be [N, K] or [nodes, N, K]";
	if (y.stride[a + 1] != 1) { /* its transpose */
		y.shape[a] = out->shape[a + 1], y.shape[a + 1] = out->shape[a];
		y.stride[a] = out->stride[a + 1], y.stride[a + 1] = out->stride[a];
	}
	return op_check_token_sum(op, &y, 0, y.shape[a], y.shape[a + 1], exact,
	                          "the out must be f32 [N, K] or [nodes, N, K], in rows or in "
	                          "columns");
}

const char *op_check_head_linear(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->out[0];
	struct tess_view head;
	int64_t heads;

	if (op->nin != 2 || op->nout != 1)
		return "it takes x and a weight, and gives one out";
	head = operand_get_matrix(w);
	heads = w->shape[0];
	if (!operand_is_matrix(&head) || heads < 1 || !head.shape[0] || !head.shape[1])
		return "the weight must be [heads, N, K] in f32, bf16 or f16, each head in rows, "
		       "or in panels of strides that fit";
	if (!operand_has_tokens(op, 0) || !operand_is_rows(y, 2) || x->shape[0] != y->shape[0])
		return "x and y must be f32 rows of the same tokens";
	if (x->shape[1] % heads || y->shape[1] % heads || x->shape[1] / heads < head.shape[1] ||
	    x->shape[1] / heads - head.shape[1] != y->shape[1] / heads - head.shape[0])
		return "a head of x must have K elements and a rest, and one of y N elements and "
		       "the same rest";
	return NULL;
}

const char *op_check_head_linear_dw(const struct tess_op *op, bool exact)
{
	const struct tess_view *d = &op->out[0];
	struct tess_view in[2] = { op->in[0], op->in[1] }, out = *d;
	int32_t axis = d->ndim - 3;
	struct tess_op head = *op;
	int64_t heads;

	if (op->nin != 2 || op->nout != 1 || axis < 0 || axis > 1 || in[0].ndim != 2 ||
	    in[1].ndim != 2)
		return "it takes rows x and g, and gives [heads, N, K] or [nodes, heads, N, K]";
	heads = d->shape[axis];
	if (heads < 1 || in[0].shape[1] % heads || in[1].shape[1] % heads ||
	    in[0].shape[1] / heads < d->shape[axis + 2] ||
	    in[0].shape[1] / heads - d->shape[axis + 2] !=
	            in[1].shape[1] / heads - d->shape[axis + 1])
		return "a head of x must have K elements and a rest, and one of g N elements and "
		       "the same rest";
	/* each head is a LINEAR_DW */
	in[0].shape[1] = d->shape[axis + 2];
	in[1].shape[1] = d->shape[axis + 1];
	out.ndim--;
	for (int32_t i = axis; i < out.ndim; i++) {
		out.shape[i] = d->shape[i + 1];
		out.stride[i] = d->stride[i + 1];
	}
	head.in = in;
	head.out = &out;
	return op_check_linear_dw(&head, exact);
}

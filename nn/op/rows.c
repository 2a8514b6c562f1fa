/* rows.c - checks the ops that compute, move or add rows independently, and their backward. */
#include "nn/op/kinds.h"
#include "nn/op/operands.h"

#include <tessera/reduce.h>

/* ---- of each element */

/* Checks operand 0 and the out of an op of `nin` operands: f32 rows of one shape. */
static const char *check_in_and_out(const struct tess_op *op, int32_t nin)
{
	if (op->nin != nin || op->nout != 1)
		return "wrong number of operands";
	if (!operand_is_rows(&op->in[0], 2) || !operand_is_rows(&op->out[0], 2) ||
	    !operand_has_same_shape(&op->in[0], &op->out[0]))
		return "operands and out must be f32 rows [T, N] of one shape";
	return NULL;
}

const char *op_check_bias(const struct tess_op *op)
{
	const char *why = check_in_and_out(op, 2);

	if (!why && !operand_is_vector(&op->in[1], op->in[0].shape[1]))
		return "b must be [N] in f32, bf16 or f16";
	return why;
}

const char *op_check_bias_dw(const struct tess_op *op, bool exact)
{
	if (op->nin != 1 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS ||
	    !operand_has_tokens(op, 0))
		return "it takes f32 rows [T, N], and has two numbers";
	return op_check_token_sum(op, &op->out[0], 0, 1, op->in[0].shape[1], exact,
	                          "the out must be f32 rows [1, N] or [nodes, 1, N]");
}

const char *op_check_add(const struct tess_op *op)
{
	const char *why = check_in_and_out(op, 2);

	if (!why &&
	    (!operand_is_rows(&op->in[1], 2) || !operand_has_same_shape(&op->in[0], &op->in[1])))
		return "operands and out must be f32 rows [T, N] of one shape";
	return why;
}

const char *op_check_glu(const struct tess_op *op)
{
	if (op->nnum != TESS_GLU_NUMS || !op_is_activation(op->num[TESS_GLU_ACTIVATION]))
		return "its number is the activation: 1 silu, 2 gelu, 3 gelu_tanh, 4 relu, 5 tanh";
	return op->nin == 1 ? check_in_and_out(op, 1) : op_check_add(op);
}

const char *op_check_glu_d(const struct tess_op *op)
{
	bool gated;

	if (op->nin != 3 || op->nout != 2 || op->nnum != TESS_GLU_NUMS ||
	    !op_is_activation(op->num[TESS_GLU_ACTIVATION]))
		return "it takes a, b or none, and g, gives da, and db or none, and has the "
		       "activation, as a glu has it";
	gated = op->in[1].ndim || op->out[1].ndim;
	for (int i = 0; i < 5; i++) {
		const struct tess_view *v = i < 3 ? &op->in[i] : &op->out[i - 3];

		if ((i == 1 || i == 4) && !gated)
			continue;
		if (!operand_is_rows(v, 2) || !operand_has_same_shape(v, &op->in[0]))
			return "all operands and outs must be f32 rows [T, N] of one shape";
	}
	return NULL;
}

const char *op_check_sigmoid(const struct tess_op *op)
{
	return check_in_and_out(op, 1);
}

const char *op_check_sigmoid_d(const struct tess_op *op)
{
	return op_check_add(op);
}

const char *op_check_mul(const struct tess_op *op)
{
	const char *why = check_in_and_out(op, 2);

	if (!why && !operand_is_table(&op->in[1], op->in[0].shape[0], op->in[0].shape[1]) &&
	    !operand_is_table(&op->in[1], op->in[0].shape[0], 1))
		return "b must be f32 rows [T, N] or [T, 1]";
	return why;
}

const char *op_check_row_dot(const struct tess_op *op)
{
	if (op->nin != 2 || op->nout != 1 || op->ntree != 1 || op->tree[0].terms != 1)
		return "it takes a and b, and has a tree with one term";
	if (!operand_is_rows(&op->in[0], 2) || !operand_is_rows(&op->in[1], 2) ||
	    !operand_has_same_shape(&op->in[0], &op->in[1]))
		return "a and b must be f32 rows [T, N] of one shape";
	if (!operand_is_table(&op->out[0], op->in[0].shape[0], 1))
		return "the out must be f32 rows [T, 1]";
	return op_check_tree(op, &op->tree[0], 0, op->in[0].shape[1], false);
}

/* Checks the numbers of a clamp. */
static const char *check_limits(const struct tess_op *op)
{
	bool ordered =
		op->nnum == TESS_CLAMP_NUMS && op->num[TESS_CLAMP_LOW] <= op->num[TESS_CLAMP_HIGH];

	return ordered ? NULL : "its numbers are two limits, low and high";
}

const char *op_check_clamp(const struct tess_op *op)
{
	const char *why = check_limits(op);

	return why ? why : check_in_and_out(op, 1);
}

const char *op_check_clamp_d(const struct tess_op *op)
{
	const char *why = check_limits(op);

	return why ? why : op_check_add(op);
}

const char *op_check_scale(const struct tess_op *op)
{
	return op->nnum == TESS_SCALE_NUMS ? check_in_and_out(op, 1) : "its number is the factor";
}

const char *op_check_rope(const struct tess_op *op)
{
	const char *why = check_in_and_out(op, 3);
	double head;

	if (why)
		return why;
	if (op->nnum != TESS_ROPE_NUMS || !is_integer(op->num[TESS_ROPE_HEAD], 2, 0x1p30) ||
	    op->in[0].shape[1] % (int64_t)op->num[TESS_ROPE_HEAD])
		return "heads of `head` elements must fill a row";
	head = op->num[TESS_ROPE_HEAD];
	if (!is_integer(op->num[TESS_ROPE_WIDTH], 2, head) ||
	    (int64_t)op->num[TESS_ROPE_WIDTH] % 2 ||
	    !is_integer(op->num[TESS_ROPE_FIRST], 0, head - op->num[TESS_ROPE_WIDTH]) ||
	    !is_integer(op->num[TESS_ROPE_INTERLEAVED], 0, 1) ||
	    !is_integer(op->num[TESS_ROPE_INVERSE], 0, 1))
		return "`width` elements from `first` on, an even number, must be in a head; "
		       "interleaved and inverse are 0 or 1";
	if (!operand_is_list(&op->in[1], op->in[0].shape[0]))
		return "positions must be i32, one for each row";
	if (!operand_is_rows(&op->in[2], 2) ||
	    op->in[2].shape[1] != (int64_t)op->num[TESS_ROPE_WIDTH])
		return "the table must be f32 rows [P, width]: cosines, then sines";
	return NULL;
}

const char *op_check_dropout(const struct tess_op *op)
{
	if (op->nin < 3 || op->nout != 1 || op->nnum != TESS_DROPOUT_NUMS ||
	    op->num[TESS_DROPOUT_RATE] == 0 ||
	    !op_is_dropout(op, op->num[TESS_DROPOUT_RATE], op->num[TESS_DROPOUT_SITE], 3) ||
	    !is_integer(op->num[TESS_DROPOUT_FIRST], 0, UINT32_MAX))
		return "it takes x, positions, slots and the i32 [4] of the step, gives one out, "
		       "and has a rate of more than 0 and less than 1, a site and the first column";
	if (!operand_is_rows(&op->in[0], 2) || !operand_is_rows(&op->out[0], 2) ||
	    !operand_has_same_shape(&op->in[0], &op->out[0]) ||
	    !operand_is_list(&op->in[1], op->in[0].shape[0]) ||
	    !operand_is_list(&op->in[2], op->in[0].shape[0]))
		return "x and out must be f32 rows of one shape, positions and slots i32, one for "
		       "each row";
	return NULL;
}

/* ---- copies */

const char *op_check_copy(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];

	if (op->nin != 1 || op->nout != 1)
		return "it takes one operand and gives one out";
	if (x->ndim > 3 || x->layout != TESS_ROWS || y->layout != TESS_ROWS)
		return "it takes at most 3 axes, and no panels";
	if (!tess_width(x->dtype) || x->dtype != y->dtype || !operand_has_same_shape(x, y))
		return "both sides must have one shape and one type";
	return NULL;
}

const char *op_check_select_rows(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];

	if (op->nin != 2 || op->nout != 1)
		return "it takes x and rows, and gives one out";
	if (!operand_is_rows(x, 2) || !operand_is_rows(y, 2) || x->shape[1] != y->shape[1])
		return "x and y must be f32 rows of one length";
	if (!operand_is_list(&op->in[1], y->shape[0]))
		return "rows must be i32, one for each row of y";
	return NULL;
}

const char *op_check_embed(const struct tess_op *op, bool exact)
{
	const char *why;

	if (op->nin != 2 || op->nout != 1 || op->nnum != TESS_EMBED_NUMS)
		return "it takes ids and a table, gives one out, and has one number";
	if (!operand_is_list(&op->in[0], op->in[0].shape[0]))
		return "ids must be a dense vector of i32";
	if (!operand_is_matrix(&op->in[1]) ||
	    !is_integer(op->num[TESS_EMBED_FIRST], -0x1p31, 0x1p53))
		return "the table must be [V, H] in f32, bf16 or f16, the first id an integer";
	why = op->out[0].ndim == 3 ? op_check_trees(op, op->in[1].shape[0], true) : NULL;
	if (!why && !op_is_sum(op, &op->out[0], op->in[0].shape[0], op->in[1].shape[1], exact))
		return "the out must be f32 rows [T, H] or [nodes, T, H]";
	return why;
}

const char *op_check_embed_dw(const struct tess_op *op, bool exact)
{
	const struct tess_view *y = &op->out[0];

	if (op->nin != 2 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS + TESS_EMBED_NUMS ||
	    !operand_is_list(&op->in[0], op->in[0].shape[0]) || !operand_has_tokens(op, 1) ||
	    !is_integer(op->num[TESS_TOKENS_NUMS + TESS_EMBED_FIRST], -0x1p31, 0x1p53))
		return "it takes i32 ids [T] and f32 rows [T, H], and has three numbers, the last "
		       "one the first id";
	return op_check_token_sum(op, y, 0, y->ndim < 2 ? -1 : y->shape[y->ndim - 2],
	                          op->in[1].shape[1], exact,
	                          "the out must be f32 rows [V, H] or [nodes, V, H]");
}

/* ---- sums */

const char *op_check_head_sum(const struct tess_op *op, bool exact)
{
	double width, group;
	const char *why;
	int64_t runs;

	if (op->nin != 1 || op->nout != 1 || op->nnum != TESS_HEAD_SUM_NUMS ||
	    !operand_has_tokens(op, 0) || op->ntree != 1)
		return "it takes f32 rows, and has two numbers and a tree";
	width = op->num[TESS_HEAD_SUM_WIDTH], group = op->num[TESS_HEAD_SUM_GROUP];
	if (!is_integer(width, 1, 0x1p20) || !is_integer(group, 1, 0x1p20) ||
	    op->in[0].shape[1] % (int64_t)(width * group))
		return "runs of `group` heads of `width` columns must fill a row";
	runs = op->in[0].shape[1] / (int64_t)(width * group);
	why = op_check_trees(op, (int64_t)group, op->out[0].ndim == 3);
	if (!why &&
	    (!op_is_sum(op, &op->out[0], op->in[0].shape[0], runs * (int64_t)width, exact) ||
	     (op->out[0].ndim == 3 && runs > 1)))
		return "the out must be f32 rows [T, runs * width], or [nodes, T, width] of one "
		       "run";
	return why;
}

const char *op_check_sequence_sum(const struct tess_op *op, bool exact)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	int64_t n, first;
	bool partial = y->ndim == 3;

	if (op->nin != 1 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS ||
	    !operand_is_rows(x, 2) ||
	    !is_integer(op->num[TESS_TOKENS_SEQUENCES], 0, OP_UNITS_MAX) ||
	    !is_integer(op->num[TESS_TOKENS_FIRST], 0, OP_UNITS_MAX))
		return "it takes f32 rows, one for each sequence, and has two numbers";
	n = (int64_t)op->num[TESS_TOKENS_SEQUENCES], first = (int64_t)op->num[TESS_TOKENS_FIRST];
	if (first + x->shape[0] > n || (!partial && x->shape[0] < n))
		return "the rows must be those of `sequences` from `first` on, all of them where "
		       "the sum is finished";
	if (!operand_is_rows(y, partial ? 3 : 2) || y->shape[partial] != 1 ||
	    y->shape[partial + 1] != x->shape[1] ||
	    (partial &&
	     y->shape[0] != (exact ? tess_node_count(n, first, first + x->shape[0]) : 1)))
		return "the out must be f32 rows [1, N] or [nodes, 1, N]";
	return NULL;
}

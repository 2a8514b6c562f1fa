/* norm.c - checks NORM, NORM_D and NORM_DW. */
#include "nn/op/kinds.h"
#include "nn/op/operands.h"

/* Returns the number of elements in a norm's sum: a run of a row, or the full row. */
static int64_t get_norm_run(const struct tess_op *op, const double *num)
{
	return num[TESS_NORM_RUN] > 0 ? (int64_t)num[TESS_NORM_RUN] : op->in[0].shape[1];
}

/* Returns whether a NORM or NORM_D has no weight; then there is no offset. */
static bool is_weightless(const struct tess_op *op)
{
	return !op->in[1].ndim && op->nin - (op->kind == TESS_OP_NORM_D) == 2 &&
	       op->num[TESS_NORM_OFFSET] == 0;
}

/* Checks the numbers of a norm of operand 0, rows, and its first tree. */
static const char *check_norm_sum(const struct tess_op *op, const double *num)
{
	int64_t columns = op->in[0].shape[1], run;

	if (!is_integer(num[TESS_NORM_KIND], TESS_RMS, TESS_LAYER) ||
	    !is_integer(num[TESS_NORM_OFFSET], 0, 1))
		return "its numbers are kind (1 RMS, 2 LAYER), eps, run, offset (0 or 1)";
	run = is_integer(num[TESS_NORM_RUN], 0, (double)columns) ? get_norm_run(op, num) : 0;
	if (run < 1 || columns % run)
		return "runs of `run` elements must fill a row";
	if (op->ntree < 1 || op->tree[0].terms != 1)
		return "its sum is one tree with one term";
	return op_check_tree(op, &op->tree[0], 0, run, false);
}

const char *op_check_norm(const struct tess_op *op)
{
	const char *why;

	if (op->nnum != TESS_NORM_NUMS || op->nout != 1 || op->nin < 2 || op->nin > 3 ||
	    op->ntree != 1 || (op->nin == 3 && op->num[TESS_NORM_KIND] != TESS_LAYER))
		return "it takes x and w, LAYER also b, gives one out, and has four numbers and a "
		       "tree";
	if (!operand_is_rows(&op->in[0], 2) || !operand_is_rows(&op->out[0], 2) ||
	    !operand_has_same_shape(&op->in[0], &op->out[0]))
		return "x and y must be f32 rows [T, H]";
	why = check_norm_sum(op, op->num);
	for (int32_t i = is_weightless(op) ? 2 : 1; i < op->nin && !why; i++)
		if (!operand_is_vector(&op->in[i], get_norm_run(op, op->num)))
			return "w and b must be f32, bf16 or f16, with one element for each that "
			       "is summed";
	return why;
}

const char *op_check_norm_d(const struct tess_op *op)
{
	const char *why;

	if (op->nin != 3 || op->nout != 1 || op->nnum != TESS_NORM_NUMS || op->ntree != 1)
		return "it takes x, w and g, and has a tree";
	if (!operand_has_tokens(op, 0) || !operand_is_rows(&op->in[2], 2) ||
	    !operand_has_same_shape(&op->in[0], &op->in[2]) || !operand_is_rows(&op->out[0], 2) ||
	    !operand_has_same_shape(&op->in[0], &op->out[0]))
		return "x, g and out must be f32 rows [T, H]";
	why = check_norm_sum(op, op->num);
	if (!why && !is_weightless(op) && !operand_is_vector(&op->in[1], get_norm_run(op, op->num)))
		return "w must have an element for each of a run, in f32, bf16 or f16";
	return why;
}

const char *op_check_norm_dw(const struct tess_op *op, bool exact)
{
	const char *why;

	if (op->nin != 2 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS + TESS_NORM_NUMS)
		return "it takes x and g, and has six numbers";
	if (!operand_has_tokens(op, 0) || !operand_has_tokens(op, 1) ||
	    !operand_has_same_shape(&op->in[0], &op->in[1]))
		return "x and g must be f32 rows [T, H]";
	why = check_norm_sum(op, op->num + TESS_TOKENS_NUMS);
	return why ? why
	           : op_check_token_sum(op, &op->out[0], 1, 1, op->in[0].shape[1], exact,
	                                "the out must be f32 rows [1, H] or [nodes, 1, H]");
}

/* logits.c - checks the ops on logits: the loss and its gradient, and SAMPLE. */
#include "nn/op/kinds.h"
#include "nn/op/operands.h"

/* Checks logits, operand 0, and the numbers of operands and of numbers. */
static const char *check_loss_logits(const struct tess_op *op, int32_t nin, int32_t nnum)
{
	if (op->nin != nin || op->nout != 1 || op->nnum != nnum || !operand_is_rows(&op->in[0], 2))
		return "wrong number of operands or numbers, or logits are not f32 rows";
	if (nnum && !is_integer(op->num[TESS_LOSS_FIRST], 0, 0x1p53))
		return "its number is the label of column 0";
	return NULL;
}

const char *op_check_loss_max(const struct tess_op *op)
{
	const char *why = check_loss_logits(op, 1, 0);

	if (!why && !operand_is_table(&op->out[0], op->in[0].shape[0], 1))
		return "the out must be f32 rows [T, 1]";
	return why;
}

const char *op_check_loss_sum(const struct tess_op *op, bool exact)
{
	const char *why = check_loss_logits(op, 2, 0);
	int64_t rows = op->in[0].shape[0];

	if (why)
		return why;
	why = op_check_trees(op, op->in[0].shape[1], op->out[0].ndim == 3);
	for (int32_t i = 0; i < op->ntree && !why; i++)
		why = op->tree[i].terms == 1 ? NULL : "a tree must have one term";
	if (!why &&
	    (!operand_is_table(&op->in[1], rows, 1) || !op_is_sum(op, &op->out[0], rows, 1, exact)))
		why = "max must be f32 rows [T, 1], and the out [T, 1] or [nodes, T, 1]";
	return why;
}

const char *op_check_loss_pick(const struct tess_op *op, bool exact)
{
	const char *why = check_loss_logits(op, 2, TESS_LOSS_NUMS);
	int64_t rows = op->in[0].shape[0];

	if (why)
		return why;
	why = op->out[0].ndim == 3 ? op_check_trees(op, op->in[0].shape[1], true) : NULL;
	if (!why &&
	    (!operand_is_list(&op->in[1], rows) || !op_is_sum(op, &op->out[0], rows, 1, exact)))
		why = "labels must be i32, one for each row, and the out f32 [T, 1] or "
		      "[nodes, T, 1]";
	return why;
}

const char *op_check_loss(const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0];

	if (op->nin != 4 || op->nout != 1)
		return "it takes max, sum, pick and labels";
	for (int i = 0; i < 3; i++)
		if (!operand_is_table(&op->in[i], rows, 1))
			return "max, sum and pick must be f32 rows [T, 1]";
	if (!operand_is_list(&op->in[3], rows) || !operand_is_table(&op->out[0], rows, 1))
		return "labels must be i32, one for each row, and the out f32 [T, 1]";
	return NULL;
}

const char *op_check_loss_d(const struct tess_op *op)
{
	const char *why = check_loss_logits(op, 5, TESS_LOSS_NUMS);
	int64_t rows = op->in[0].shape[0];

	if (why)
		return why;
	if (!operand_is_table(&op->in[1], rows, 1) || !operand_is_table(&op->in[2], rows, 1) ||
	    !operand_is_list(&op->in[3], rows) || !operand_is_flat(&op->in[4], TESS_F32, 1))
		return "max and sum must be f32 rows [T, 1], labels i32, one for each row, and "
		       "count one f32";
	if (!operand_is_rows(&op->out[0], 2) || !operand_has_same_shape(&op->in[0], &op->out[0]))
		return "the out must be f32 rows of the shape of logits";
	return NULL;
}

/* Returns whether `v` is dense rows [rows, columns] of `dtype`. */
static bool is_list_of_rows(const struct tess_view *v, int32_t dtype, int64_t rows, int64_t columns)
{
	return v->ndim == 2 && v->dtype == dtype && v->stride[1] == 1 && v->shape[0] == rows &&
	       v->shape[1] == columns;
}

const char *op_check_sample(const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0], columns = op->in[0].shape[1];

	if (op->nin != 2 || op->nout != 2 || columns < 1 ||
	    !is_list_of_rows(&op->in[0], TESS_F32, rows, columns) ||
	    !is_list_of_rows(&op->in[1], TESS_F64, rows, TESS_SAMPLE_NUMS) ||
	    !is_list_of_rows(&op->out[0], TESS_I32, rows, TESS_SAMPLE_OUTS) ||
	    !is_list_of_rows(&op->out[1], TESS_I32, op->out[1].shape[0], tess_up(columns, 32)))
		return "operands must be f32 rows [T, V] and f64 [T, 7], and the outs i32 [T, 4] "
		       "and [S, V / 32]";
	return NULL;
}

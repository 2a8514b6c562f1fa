/* check_training.c - checks the loss, the optimisers and the norm of gradients by docs/ops.md. */
#include "check.h"

/* Whether in[i] has one number for each row of logits. */
static bool is_number_of_rows(const struct tess_view *v, int64_t rows)
{
	return is_row_view(v, 2) && v->shape[0] == rows && v->shape[1] == 1;
}

static tess_status check_loss_logits(const struct tess_op *op, const char *kind, int32_t nin,
                                     int32_t nnum)
{
	if (op->nin != nin || op->nout != 1 || op->nnum != nnum || !is_row_view(&op->in[0], 2))
		return refuse_op(op, kind,
		                 "wrong number of operands or numbers, or logits that are no f32 "
		                 "rows");
	if (nnum && !is_integer(op->num[TESS_LOSS_FIRST], 0, 0x1p53))
		return refuse_op(op, kind, "its number is the label of column 0");
	return TESS_OK;
}

static tess_status check_loss_max(const struct tess_op *op)
{
	tess_status st = check_loss_logits(op, "loss_max", 1, 0);

	if (!st && !is_number_of_rows(&op->out[0], op->in[0].shape[0]))
		return refuse_op(op, "loss_max", "the out must be f32 rows [T, 1]");
	return st;
}

static tess_status check_loss_sum(const struct tess_op *op)
{
	tess_status st = check_loss_logits(op, "loss_sum", 2, 0);
	int64_t rows = op->in[0].shape[0];
	const char *why;

	if (st)
		return st;
	why = check_trees(op, op->in[0].shape[1], op->out[0].ndim == 3);
	for (int32_t i = 0; i < op->ntree && !why; i++)
		why = op->tree[i].terms == 1 ? NULL : "a tree must have one term";
	if (!why && (!is_number_of_rows(&op->in[1], rows) || !is_sum(op, &op->out[0], rows, 1)))
		why = "max must be f32 rows [T, 1], and the out [T, 1] or [nodes, T, 1]";
	return why ? refuse_op(op, "loss_sum", why) : TESS_OK;
}

static tess_status check_loss_pick(const struct tess_op *op)
{
	tess_status st = check_loss_logits(op, "loss_pick", 2, TESS_LOSS_NUMS);
	int64_t rows = op->in[0].shape[0];
	const char *why;

	if (st)
		return st;
	why = op->out[0].ndim == 3 ? check_trees(op, op->in[0].shape[1], true) : NULL;
	if (!why && (!is_index_list(&op->in[1], rows) || !is_sum(op, &op->out[0], rows, 1)))
		why = "labels must be i32, one for each row, and the out f32 [T, 1] or "
		      "[nodes, T, 1]";
	return why ? refuse_op(op, "loss_pick", why) : TESS_OK;
}

static tess_status check_loss(const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0];

	if (op->nin != 4 || op->nout != 1)
		return refuse_op(op, "loss", "it takes max, sum, pick and labels");
	for (int i = 0; i < 3; i++)
		if (!is_number_of_rows(&op->in[i], rows))
			return refuse_op(op, "loss", "max, sum and pick must be f32 rows [T, 1]");
	if (!is_index_list(&op->in[3], rows) || !is_number_of_rows(&op->out[0], rows))
		return refuse_op(op, "loss",
		                 "labels must be i32, one for each row, and the out f32 [T, 1]");
	return TESS_OK;
}

/* Whether v is n numbers without gaps. */
static bool is_flat(const struct tess_view *v, int32_t dtype, int64_t n)
{
	return v->dtype == dtype && v->layout == TESS_ROWS && v->ndim == 1 && v->shape[0] == n &&
	       (v->stride[0] == 1 || n < 2);
}

static tess_status check_loss_d(const struct tess_op *op)
{
	tess_status st = check_loss_logits(op, "loss_d", 5, TESS_LOSS_NUMS);
	int64_t rows = op->in[0].shape[0];

	if (st)
		return st;
	if (!is_number_of_rows(&op->in[1], rows) || !is_number_of_rows(&op->in[2], rows) ||
	    !is_index_list(&op->in[3], rows) || !is_flat(&op->in[4], TESS_F32, 1))
		return refuse_op(op, "loss_d",
		                 "max and sum must be f32 rows [T, 1], labels i32, one for each "
		                 "row, and count one f32");
	if (!is_row_view(&op->out[0], 2) || !has_same_shape(&op->in[0], &op->out[0]))
		return refuse_op(op, "loss_d", "the out must be f32 rows of the shape of logits");
	return TESS_OK;
}

/* w, `states` and the rounded w of an update by g. */
static tess_status check_update(const struct tess_op *op, const char *kind, int32_t states,
                                int32_t nnum, bool optional)
{
	int64_t n = op->in[0].shape[0];
	const struct tess_view *rounded = &op->out[1 + states];

	if (op->nin != 1 || op->nout != 2 + states || op->nnum != nnum ||
	    !is_flat(&op->in[0], TESS_F32, n))
		return refuse_op(
			op, kind,
			"it takes g [n] in f32; wrong number of operands, outs or numbers");
	for (int32_t i = 0; i <= states; i++)
		if (!is_flat(&op->out[i], TESS_F32, n) && !(i && optional && !op->out[i].ndim))
			return refuse_op(op, kind, "the weights and their state must be f32 [n]");
	if (rounded->ndim && !is_flat(rounded, TESS_BF16, n) && !is_flat(rounded, TESS_F16, n))
		return refuse_op(op, kind, "the rounded weights must be bf16 or f16 [n], or none");
	return TESS_OK;
}

static tess_status check_squares(const struct tess_op *op)
{
	if (op->nin != 1 || op->nout != 1 || !is_flat(&op->in[0], TESS_F32, op->in[0].shape[0]) ||
	    !is_flat(&op->out[0], TESS_I64, 19))
		return refuse_op(op, "squares", "it takes x [n] in f32, and its out is i64 [19]");
	return TESS_OK;
}

tess_status cpu_check_training(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_LOSS_MAX:
		return check_loss_max(op);
	case TESS_OP_LOSS_SUM:
		return check_loss_sum(op);
	case TESS_OP_LOSS_PICK:
		return check_loss_pick(op);
	case TESS_OP_LOSS:
		return check_loss(op);
	case TESS_OP_LOSS_D:
		return check_loss_d(op);
	case TESS_OP_ADAMW:
		return check_update(op, "adamw", 2, TESS_ADAMW_NUMS, false);
	case TESS_OP_SGD:
		return check_update(op, "sgd", 1, TESS_SGD_NUMS, true);
	case TESS_OP_SQUARES:
		return check_squares(op);
	}
	return cpu_check_experts(op);
}

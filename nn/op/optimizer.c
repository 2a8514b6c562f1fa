/* optimizer.c - checks the optimizers, and the squares of gradients. */
#include "core/base/accumulator.h"
#include "nn/op/kinds.h"
#include "nn/op/operands.h"

/* Checks w, its `states` and its rounded copy in an update by g. */
static const char *check_update(const struct tess_op *op, int32_t states, int32_t nnum,
                                bool optional)
{
	int64_t n = op->in[0].shape[0];
	const struct tess_view *rounded = &op->out[1 + states];

	if (op->nin != 1 || op->nout != 2 + states || op->nnum != nnum ||
	    !operand_is_flat(&op->in[0], TESS_F32, n))
		return "it takes g [n] in f32; wrong number of operands, outs or numbers";
	for (int32_t i = 0; i <= states; i++)
		if (!operand_is_flat(&op->out[i], TESS_F32, n) &&
		    !(i && optional && !op->out[i].ndim))
			return "the weights and their state must be f32 [n]";
	if (rounded->ndim && !operand_is_flat(rounded, TESS_BF16, n) &&
	    !operand_is_flat(rounded, TESS_F16, n))
		return "the rounded weights must be bf16 or f16 [n], or none";
	return NULL;
}

const char *op_check_adamw(const struct tess_op *op)
{
	return check_update(op, 2, TESS_ADAMW_NUMS, false);
}

const char *op_check_sgd(const struct tess_op *op)
{
	return check_update(op, 1, TESS_SGD_NUMS, true);
}

const char *op_check_squares(const struct tess_op *op)
{
	if (op->nin != 1 || op->nout != 1 ||
	    !operand_is_flat(&op->in[0], TESS_F32, op->in[0].shape[0]) ||
	    !operand_is_flat(&op->out[0], TESS_I64, TESS_ACCUMULATOR_FIELDS))
		return "it takes x [n] in f32, and its out is i64 [19]";
	return NULL;
}

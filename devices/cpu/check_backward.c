/* Checks the ops of training by docs/ops.md. */
#include "check.h"

static tess_status check_attention_d(const struct tess_op *op)
{
	const struct tess_view *q = &op->in[0];
	tess_status st;

	if (op->nin != 6 || op->nout != 3 || op->nnum != TESS_ATTENTION_NUMS)
		return refuse_op(op, "attention_d",
		                 "it takes q, k, v, positions, slots and g, gives dq, dk and dv, "
		                 "and has the numbers of attention");
	st = cpu_check_query_heads(op);
	if (st)
		return st;
	if (!is_values_of_queries(op, &op->in[5]) ||
	    (op->in[2].ndim ? !is_values_of_queries(op, &op->out[2]) : op->out[2].ndim))
		return refuse_op(op, "attention_d",
		                 "g, and dv where there is v, must be f32 rows of the same tokens, "
		                 "`value` elements for each head of q");
	for (int i = 0; i < 2; i++)
		if (!is_row_view(&op->out[i], 2) || !has_same_shape(&op->out[i], q))
			return refuse_op(op, "attention_d",
			                 "dq and dk must be f32 rows of the shape of q");
	return TESS_OK;
}

tess_status cpu_supports(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_ATTENTION_D:
		return check_attention_d(op);
	}
	return cpu_check(op);
}

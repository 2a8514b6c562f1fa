/* step_work.c - counts the work of a step as machine files do. */
#include "nn/cost/step_work.h"

#include "nn/op/kinds.h"
#include "nn/op/operands.h"

#include <stdio.h>

int32_t tess_op_classify(int32_t kind)
{
	switch (kind) {
	case TESS_OP_LINEAR:
	case TESS_OP_LINEAR_DX:
	case TESS_OP_LINEAR_DW:
	case TESS_OP_HEAD_LINEAR:
	case TESS_OP_HEAD_LINEAR_DW:
	case TESS_OP_EXPERTS:
	case TESS_OP_EXPERTS_D:
	case TESS_OP_EXPERTS_DW:
		return TESS_TERM_PRODUCT;
	case TESS_OP_ATTENTION:
	case TESS_OP_ATTENTION_D:
		return TESS_TERM_ATTENTION;
	default:
		return TESS_TERM_MEMORY;
	}
}

void tess_step_work_add(const struct tess_op *op, const struct tess_op_known *known,
                        struct tess_step_work *w)
{
	int32_t class = tess_op_classify(op->kind);

	if (!w->nops)
		w->rows = (double)(op->nin && op->in[0].ndim ? op->in[0].shape[0] : 1);
	if (!w->nops++ || class < w->class)
		w->class = class;
	w->bf16 = w->bf16 || op_get_math(op) == TESS_BF16;
	tess_op_add_cost(op, known, &w->cost);
}

struct tess_step_parts tess_step_work_get_parts(const struct tess_step_work *w)
{
	double work = (double)(w->class == TESS_TERM_MEMORY ? w->cost.bytes : w->cost.flops),
	       parts = w->cost.parts;

	if (parts <= 0 || w->class == TESS_TERM_MEMORY)
		return (struct tess_step_parts){ 1, w->rows, work };
	return (struct tess_step_parts){ parts, w->cost.part_rows / parts, work / parts };
}

void tess_step_work_name(const struct tess_op *op, bool bf16, char name[static TESS_STEP_NAME])
{
	size_t at = 0;

	name[0] = '\0';
	for (; op && at < TESS_STEP_NAME; op = op->next)
		at += (size_t)snprintf(name + at, TESS_STEP_NAME - at, "%s%s", at ? "+" : "",
		                       op_get_kind_name(op->kind));
	if (bf16 && at < TESS_STEP_NAME)
		snprintf(name + at, TESS_STEP_NAME - at, TESS_MACHINE_BF16);
}

/* ops.c - runs an op, or reports why the device cannot. */
#include "gpu.h"

#include <stdio.h>

static gpu_run *const launchers[TESS_OP_KINDS] = {
	[TESS_OP_EMBED] = op_run_embed,
	[TESS_OP_BIAS] = op_run_map,
	[TESS_OP_ATTENTION_D] = op_run_texts,
	[TESS_OP_SCALE] = op_run_map,
	[TESS_OP_SIGMOID] = op_run_map,
	[TESS_OP_SIGMOID_D] = op_run_map,
	[TESS_OP_MUL] = op_run_map,
	[TESS_OP_ROW_DOT] = op_run_row_dot,
	[TESS_OP_CLAMP] = op_run_map,
	[TESS_OP_CLAMP_D] = op_run_map,
	[TESS_OP_COPY] = op_run_copy,
	[TESS_OP_SELECT_ROWS] = op_run_select_rows,
	[TESS_OP_HEAD_LINEAR] = op_run_head_linear,
	[TESS_OP_ROUTE] = op_run_route,
	[TESS_OP_EXPERTS] = op_run_experts,
	[TESS_OP_COMBINE] = op_run_combine,
	[TESS_OP_HEAD_LINEAR_DW] = op_run_head_linear_dw,
	[TESS_OP_ROUTE_D] = op_run_route_d,
	[TESS_OP_EXPERTS_D] = op_run_experts_d,
	[TESS_OP_EXPERTS_DW] = op_run_experts_dw,
	[TESS_OP_COMBINE_D] = op_run_combine_d,
	[TESS_OP_BALANCE] = op_run_balance,
	[TESS_OP_BALANCE_D] = op_run_balance_d,
	[TESS_OP_SAMPLE] = op_run_sample,
	[TESS_OP_LINEAR_DX] = op_run_linear_dx,
	[TESS_OP_LINEAR_DW] = op_run_linear_dw,
	[TESS_OP_EMBED_DW] = op_run_embed_dw,
	[TESS_OP_NORM_D] = op_run_norm_d,
	[TESS_OP_NORM_DW] = op_run_norm_dw,
	[TESS_OP_BIAS_DW] = op_run_bias_dw,
	[TESS_OP_GLU_D] = op_run_glu_d,
	[TESS_OP_HEAD_SUM] = op_run_head_sum,
	[TESS_OP_SEQUENCE_SUM] = op_run_bias_dw,
	[TESS_OP_DROPOUT] = op_run_dropout,
	[TESS_OP_LOSS_MAX] = op_run_loss,
	[TESS_OP_LOSS_SUM] = op_run_loss,
	[TESS_OP_LOSS_PICK] = op_run_loss,
	[TESS_OP_LOSS] = op_run_loss,
	[TESS_OP_LOSS_D] = op_run_loss,
	[TESS_OP_ADAMW] = op_run_update,
	[TESS_OP_SGD] = op_run_update,
	[TESS_OP_SQUARES] = op_run_squares,
};

/* Launchers of ops that may be in a fused step. `to` is {0} except `op`, the one after from->op. */
static gpu_run_fused *const step_launchers[TESS_OP_KINDS] = {
	[TESS_OP_LINEAR] = op_run_linear, [TESS_OP_NORM] = op_run_norm,
	[TESS_OP_ROPE] = op_run_rope,     [TESS_OP_ATTENTION] = op_run_attention,
	[TESS_OP_GLU] = op_run_glu,       [TESS_OP_ADD] = op_run_add,
};

static bool has_launcher(int32_t kind)
{
	return kind >= 0 && kind < TESS_OP_KINDS && (launchers[kind] || step_launchers[kind]);
}

/* Runs an op, and possibly the next ones. */
static tess_status run_handed(struct gpu *g, struct handover *h)
{
	const struct handover from = *h;
	const struct tess_op *op = from.op;
	tess_status st;

	*h = (struct handover){ .op = op->next };
	snprintf(g->where, sizeof g->where, "%s", op->where ? op->where : "an op");
	if (!has_launcher(op->kind))
		st = op_check(op);
	else
		st = step_launchers[op->kind] ? step_launchers[op->kind](g, &from, h)
		                              : launchers[op->kind](g, op);
	if (!st && g->sync_ops && !g->capturing)
		st = CUDA_CALL(g->where, cuStreamSynchronize, op->stream);
	return st;
}

tess_status op_run(void *self, const struct tess_op *op)
{
	struct gpu *g = self;
	struct handover next = { .op = op };
	tess_status st = CUDA_CALL(op->where, cuCtxSetCurrent, g->context);

	while (next.op && !st)
		st = run_handed(g, &next);
	return st;
}

/* Returns an error unless products have the dtype of TESSERA_CUDA_MATH. */
static const char *find_math_limit(double math)
{
	return math == 0 || math == TESS_F32
	               ? NULL
	               : "products of bf16 are for the cpu device; TESSERA_CUDA_MATH sets the "
	                 "precision of products here";
}

static const char *find_attention_limit(const struct tess_op *op)
{
	if (op->num[TESS_ATTENTION_HEAD] > HEAD_MAX || op->num[TESS_ATTENTION_VALUE] > VALUE_MAX)
		return "attention: keys have at most 1024 elements, and values 512";
	return op->kind == TESS_OP_ATTENTION && op->in[5].ndim && op->num[TESS_ATTENTION_RATE] > 0
	               ? "attention: only sequences without pages have dropout"
	               : NULL;
}

/* Returns why the device does not support an op, or NULL. */
static const char *find_limit(const struct tess_op *op)
{
	const char *limit;

	switch (op->kind) {
	case TESS_OP_LINEAR:
	case TESS_OP_LINEAR_DX:
		return find_math_limit(op->nnum ? op->num[TESS_LINEAR_MATH] : 0);
	case TESS_OP_EXPERTS:
		limit = find_math_limit(op->num[TESS_EXPERTS_MATH]);
		return limit ? limit : op_find_experts_limit(op);
	case TESS_OP_ROUTE:
		return op_find_experts_limit(op);
	case TESS_OP_HEAD_LINEAR_DW:
	case TESS_OP_ROUTE_D:
	case TESS_OP_EXPERTS_D:
	case TESS_OP_EXPERTS_DW:
	case TESS_OP_BALANCE:
	case TESS_OP_BALANCE_D:
		return op_find_experts_d_limit(op);
	case TESS_OP_LINEAR_DW:
	case TESS_OP_EMBED_DW:
	case TESS_OP_NORM_DW:
	case TESS_OP_BIAS_DW:
	case TESS_OP_HEAD_SUM:
	case TESS_OP_LOSS_SUM:
	case TESS_OP_LOSS_PICK:
		return op_find_training_limit(op);
	case TESS_OP_ATTENTION:
	case TESS_OP_ATTENTION_D:
		return find_attention_limit(op);
	case TESS_OP_SAMPLE:
		return op->in[0].shape[1] > SAMPLE_COLUMNS_MAX ? "sample: more than 2^21 logits"
		                                               : NULL;
	default:
		return NULL;
	}
}

tess_status op_check(const struct tess_op *op)
{
	const char *where = op->where ? op->where : "an op", *limit;

	if (!has_launcher(op->kind))
		return cuda_host->fail(TESS_ENOTSUP,
		                       "%s: cuda: ops of kind %d are not supported; use another "
		                       "device, or a newer version",
		                       where, (int)op->kind);
	limit = TESS_HAS(op, tess_op, only_next) ? find_limit(op)
	                                         : "this Tessera is too old for it";
	return limit ? cuda_host->fail(TESS_ENOTSUP, "%s: cuda: %s", where, limit) : TESS_OK;
}

#include "nn/op/kinds.h"

#include <stddef.h>

static const struct op_kind kinds[] = {
	[TESS_OP_LINEAR] = { "linear", .check_sum = op_check_linear },
	[TESS_OP_LINEAR_DX] = { "linear_dx", .check_sum = op_check_linear_dx },
	[TESS_OP_LINEAR_DW] = { "linear_dw", .check_sum = op_check_linear_dw },
	[TESS_OP_EMBED] = { "embed", .check_sum = op_check_embed },
	[TESS_OP_EMBED_DW] = { "embed_dw", .check_sum = op_check_embed_dw },
	[TESS_OP_NORM] = { "norm", .check = op_check_norm },
	[TESS_OP_NORM_D] = { "norm_d", .check = op_check_norm_d },
	[TESS_OP_NORM_DW] = { "norm_dw", .check_sum = op_check_norm_dw },
	[TESS_OP_ROPE] = { "rope", .check = op_check_rope },
	[TESS_OP_ATTENTION] = { "attention", .check = op_check_attention },
	[TESS_OP_ATTENTION_D] = { "attention_d", .check = op_check_attention_d },
	[TESS_OP_GLU] = { "glu", .check = op_check_glu },
	[TESS_OP_GLU_D] = { "glu_d", .check = op_check_glu_d },
	[TESS_OP_ADD] = { "add", .check = op_check_add },
	[TESS_OP_SCALE] = { "scale", .check = op_check_scale },
	[TESS_OP_BIAS] = { "bias", .check = op_check_bias },
	[TESS_OP_BIAS_DW] = { "bias_dw", .check_sum = op_check_bias_dw },
	[TESS_OP_COPY] = { "copy", .check = op_check_copy },
	[TESS_OP_SELECT_ROWS] = { "select_rows", .check = op_check_select_rows },
	[TESS_OP_DROPOUT] = { "dropout", .check = op_check_dropout },
	[TESS_OP_HEAD_LINEAR] = { "head_linear", .check = op_check_head_linear },
	[TESS_OP_HEAD_LINEAR_DW] = { "head_linear_dw", .check_sum = op_check_head_linear_dw },
	[TESS_OP_HEAD_SUM] = { "head_sum", .check_sum = op_check_head_sum },
	[TESS_OP_SEQUENCE_SUM] = { "sequence_sum", .check_sum = op_check_sequence_sum },
	[TESS_OP_ROUTE] = { "route", .check = op_check_route },
	[TESS_OP_ROUTE_D] = { "route_d", .check = op_check_route_d },
	[TESS_OP_EXPERTS] = { "experts", .check_sum = op_check_experts },
	[TESS_OP_EXPERTS_D] = { "experts_d", .check_sum = op_check_experts_d },
	[TESS_OP_EXPERTS_DW] = { "experts_dw", .check_sum = op_check_experts_dw },
	[TESS_OP_COMBINE] = { "combine", .check_sum = op_check_combine },
	[TESS_OP_COMBINE_D] = { "combine_d", .check = op_check_combine_d },
	[TESS_OP_BALANCE] = { "balance", .check_sum = op_check_balance },
	[TESS_OP_BALANCE_D] = { "balance_d", .check = op_check_balance_d },
	[TESS_OP_LOSS_MAX] = { "loss_max", .check = op_check_loss_max },
	[TESS_OP_LOSS_SUM] = { "loss_sum", .check_sum = op_check_loss_sum },
	[TESS_OP_LOSS_PICK] = { "loss_pick", .check_sum = op_check_loss_pick },
	[TESS_OP_LOSS] = { "loss", .check = op_check_loss },
	[TESS_OP_LOSS_D] = { "loss_d", .check = op_check_loss_d },
	[TESS_OP_SAMPLE] = { "sample", .check = op_check_sample },
	[TESS_OP_ADAMW] = { "adamw", .check = op_check_adamw },
	[TESS_OP_SGD] = { "sgd", .check = op_check_sgd },
	[TESS_OP_SQUARES] = { "squares", .check = op_check_squares },
};

const struct op_kind *op_find_kind(int32_t kind)
{
	return kind >= 0 && (size_t)kind < sizeof kinds / sizeof *kinds && kinds[kind].name
	               ? &kinds[kind]
	               : NULL;
}

/* kernels.c - the kernels of one instruction set, CPU_ISA. */
#include "bf12.h"
#include "pack.h"
#include "pairs.h"
#include "mxfp4.h"
#include "quantized.h"

/* each op that the device computes, and its kernel */
#define EACH_KERNEL(X) \
	X(LINEAR, run_linear) \
	X(LINEAR_DX, run_linear_dx) \
	X(LINEAR_DW, run_linear_dw) \
	X(BIAS_DW, run_bias_dw) \
	X(EMBED_DW, run_embed_dw) \
	X(NORM_D, run_norm_d) \
	X(NORM_DW, run_norm_dw) \
	X(HEAD_SUM, run_head_sum) \
	X(SEQUENCE_SUM, run_sequence_sum) \
	X(GLU_D, run_glu_d) \
	X(LOSS_MAX, run_loss_max) \
	X(LOSS_SUM, run_loss_sum) \
	X(LOSS_PICK, run_loss_pick) \
	X(LOSS, run_loss) \
	X(LOSS_D, run_loss_d) \
	X(ADAMW, run_adamw) \
	X(SGD, run_sgd) \
	X(SQUARES, run_squares) \
	X(EMBED, run_embed) \
	X(NORM, run_norm) \
	X(BIAS, run_bias) \
	X(ROPE, run_rope) \
	X(ATTENTION, run_attention) \
	X(ATTENTION_D, run_attention_d) \
	X(DROPOUT, run_dropout) \
	X(GLU, run_glu) \
	X(ADD, run_add) \
	X(SCALE, run_scale) \
	X(SIGMOID, run_sigmoid) \
	X(SIGMOID_D, run_sigmoid_d) \
	X(MUL, run_mul) \
	X(ROW_DOT, run_row_dot) \
	X(CLAMP, run_clamp) \
	X(CLAMP_D, run_clamp_d) \
	X(COPY, run_copy) \
	X(SELECT_ROWS, run_select_rows) \
	X(HEAD_LINEAR, run_head_linear) \
	X(HEAD_LINEAR_DW, run_head_linear_dw) \
	X(ROUTE, run_route) \
	X(EXPERTS, run_experts) \
	X(COMBINE, run_combine) \
	X(ROUTE_D, run_route_d) \
	X(COMBINE_D, run_combine_d) \
	X(EXPERTS_D, run_experts_d) \
	X(EXPERTS_DW, run_experts_dw) \
	X(BALANCE, run_balance) \
	X(BALANCE_D, run_balance_d)

#define DECLARE(op, run) extern cpu_run CPU_NAME(run);
EACH_KERNEL(DECLARE)
#define ROW(op, run) [TESS_OP_##op] = CPU_NAME(run),

extern const struct cpu_kernels CPU_NAME(kernels);
const struct cpu_kernels CPU_NAME(kernels) = {
	.run = { EACH_KERNEL(ROW) },
	.pack = pack_panels,
	.quantize = quantize_panels,
	.pack_bf12 = bf12_pack_panels,
	.pack_mxfp4 = mxfp4_pack_panels,
	.pairs = &CPU_NAME(pair_tiles),
};

/* kernels.c - the kernels of one instruction set, CPU_ISA. */
#include "bf12.h"
#include "pack.h"
#include "pairs.h"
#include "quantized.h"

extern cpu_run CPU_NAME(run_linear);
extern cpu_run CPU_NAME(run_linear_dx);
extern cpu_run CPU_NAME(run_linear_dw);
extern cpu_run CPU_NAME(run_bias_dw);
extern cpu_run CPU_NAME(run_embed_dw);
extern cpu_run CPU_NAME(run_norm_d);
extern cpu_run CPU_NAME(run_norm_dw);
extern cpu_run CPU_NAME(run_head_sum);
extern cpu_run CPU_NAME(run_sequence_sum);
extern cpu_run CPU_NAME(run_glu_d);
extern cpu_run CPU_NAME(run_loss_max);
extern cpu_run CPU_NAME(run_loss_sum);
extern cpu_run CPU_NAME(run_loss_pick);
extern cpu_run CPU_NAME(run_loss);
extern cpu_run CPU_NAME(run_loss_d);
extern cpu_run CPU_NAME(run_adamw);
extern cpu_run CPU_NAME(run_sgd);
extern cpu_run CPU_NAME(run_squares);
extern cpu_run CPU_NAME(run_embed);
extern cpu_run CPU_NAME(run_norm);
extern cpu_run CPU_NAME(run_bias);
extern cpu_run CPU_NAME(run_rope);
extern cpu_run CPU_NAME(run_attention);
extern cpu_run CPU_NAME(run_attention_d);
extern cpu_run CPU_NAME(run_dropout);
extern cpu_run CPU_NAME(run_glu);
extern cpu_run CPU_NAME(run_add);
extern cpu_run CPU_NAME(run_scale);
extern cpu_run CPU_NAME(run_sigmoid);
extern cpu_run CPU_NAME(run_sigmoid_d);
extern cpu_run CPU_NAME(run_copy);
extern cpu_run CPU_NAME(run_select_rows);
extern cpu_run CPU_NAME(run_head_linear);
extern cpu_run CPU_NAME(run_head_linear_dw);
extern cpu_run CPU_NAME(run_route);
extern cpu_run CPU_NAME(run_experts);
extern cpu_run CPU_NAME(run_combine);
extern cpu_run CPU_NAME(run_route_d);
extern cpu_run CPU_NAME(run_combine_d);
extern cpu_run CPU_NAME(run_experts_d);
extern cpu_run CPU_NAME(run_experts_dw);
extern cpu_run CPU_NAME(run_balance);
extern cpu_run CPU_NAME(run_balance_d);

extern const struct cpu_kernels CPU_NAME(kernels);
const struct cpu_kernels CPU_NAME(kernels) = {
	.run[TESS_OP_LINEAR] = CPU_NAME(run_linear),
	.run[TESS_OP_LINEAR_DX] = CPU_NAME(run_linear_dx),
	.run[TESS_OP_LINEAR_DW] = CPU_NAME(run_linear_dw),
	.run[TESS_OP_BIAS_DW] = CPU_NAME(run_bias_dw),
	.run[TESS_OP_EMBED_DW] = CPU_NAME(run_embed_dw),
	.run[TESS_OP_NORM_D] = CPU_NAME(run_norm_d),
	.run[TESS_OP_NORM_DW] = CPU_NAME(run_norm_dw),
	.run[TESS_OP_HEAD_SUM] = CPU_NAME(run_head_sum),
	.run[TESS_OP_SEQUENCE_SUM] = CPU_NAME(run_sequence_sum),
	.run[TESS_OP_GLU_D] = CPU_NAME(run_glu_d),
	.run[TESS_OP_LOSS_MAX] = CPU_NAME(run_loss_max),
	.run[TESS_OP_LOSS_SUM] = CPU_NAME(run_loss_sum),
	.run[TESS_OP_LOSS_PICK] = CPU_NAME(run_loss_pick),
	.run[TESS_OP_LOSS] = CPU_NAME(run_loss),
	.run[TESS_OP_LOSS_D] = CPU_NAME(run_loss_d),
	.run[TESS_OP_ADAMW] = CPU_NAME(run_adamw),
	.run[TESS_OP_SGD] = CPU_NAME(run_sgd),
	.run[TESS_OP_SQUARES] = CPU_NAME(run_squares),
	.run[TESS_OP_EMBED] = CPU_NAME(run_embed),
	.run[TESS_OP_NORM] = CPU_NAME(run_norm),
	.run[TESS_OP_BIAS] = CPU_NAME(run_bias),
	.run[TESS_OP_ROPE] = CPU_NAME(run_rope),
	.run[TESS_OP_ATTENTION] = CPU_NAME(run_attention),
	.run[TESS_OP_ATTENTION_D] = CPU_NAME(run_attention_d),
	.run[TESS_OP_DROPOUT] = CPU_NAME(run_dropout),
	.run[TESS_OP_GLU] = CPU_NAME(run_glu),
	.run[TESS_OP_ADD] = CPU_NAME(run_add),
	.run[TESS_OP_SCALE] = CPU_NAME(run_scale),
	.run[TESS_OP_SIGMOID] = CPU_NAME(run_sigmoid),
	.run[TESS_OP_SIGMOID_D] = CPU_NAME(run_sigmoid_d),
	.run[TESS_OP_COPY] = CPU_NAME(run_copy),
	.run[TESS_OP_SELECT_ROWS] = CPU_NAME(run_select_rows),
	.run[TESS_OP_HEAD_LINEAR] = CPU_NAME(run_head_linear),
	.run[TESS_OP_HEAD_LINEAR_DW] = CPU_NAME(run_head_linear_dw),
	.run[TESS_OP_ROUTE] = CPU_NAME(run_route),
	.run[TESS_OP_EXPERTS] = CPU_NAME(run_experts),
	.run[TESS_OP_COMBINE] = CPU_NAME(run_combine),
	.run[TESS_OP_ROUTE_D] = CPU_NAME(run_route_d),
	.run[TESS_OP_COMBINE_D] = CPU_NAME(run_combine_d),
	.run[TESS_OP_EXPERTS_D] = CPU_NAME(run_experts_d),
	.run[TESS_OP_EXPERTS_DW] = CPU_NAME(run_experts_dw),
	.run[TESS_OP_BALANCE] = CPU_NAME(run_balance),
	.run[TESS_OP_BALANCE_D] = CPU_NAME(run_balance_d),
	.pack = pack_panels,
	.quantize = quantize_panels,
	.pack_bf12 = bf12_pack_panels,
	.pairs = &CPU_NAME(pair_tiles),
};

/* The kernels of one instruction set, CPU_ISA. */
#include "pack.h"

extern cpu_run CPU_NAME(run_linear);
extern cpu_run CPU_NAME(run_embed);
extern cpu_run CPU_NAME(run_norm);
extern cpu_run CPU_NAME(run_bias);
extern cpu_run CPU_NAME(run_rope);
extern cpu_run CPU_NAME(run_attention);
extern cpu_run CPU_NAME(run_attention_d);
extern cpu_run CPU_NAME(run_glu);
extern cpu_run CPU_NAME(run_add);
extern cpu_run CPU_NAME(run_scale);
extern cpu_run CPU_NAME(run_copy);
extern cpu_run CPU_NAME(run_select_rows);
extern cpu_run CPU_NAME(run_head_linear);
extern cpu_run CPU_NAME(run_route);
extern cpu_run CPU_NAME(run_experts);
extern cpu_run CPU_NAME(run_combine);

#define TEXT(x) #x
#define NAME(x) TEXT(x)

extern const struct cpu_kernels CPU_NAME(kernels);
const struct cpu_kernels CPU_NAME(kernels) = {
	.name = NAME(CPU_ISA),
	.run[TESS_OP_LINEAR] = CPU_NAME(run_linear),
	.run[TESS_OP_EMBED] = CPU_NAME(run_embed),
	.run[TESS_OP_NORM] = CPU_NAME(run_norm),
	.run[TESS_OP_BIAS] = CPU_NAME(run_bias),
	.run[TESS_OP_ROPE] = CPU_NAME(run_rope),
	.run[TESS_OP_ATTENTION] = CPU_NAME(run_attention),
	.run[TESS_OP_ATTENTION_D] = CPU_NAME(run_attention_d),
	.run[TESS_OP_GLU] = CPU_NAME(run_glu),
	.run[TESS_OP_ADD] = CPU_NAME(run_add),
	.run[TESS_OP_SCALE] = CPU_NAME(run_scale),
	.run[TESS_OP_COPY] = CPU_NAME(run_copy),
	.run[TESS_OP_SELECT_ROWS] = CPU_NAME(run_select_rows),
	.run[TESS_OP_HEAD_LINEAR] = CPU_NAME(run_head_linear),
	.run[TESS_OP_ROUTE] = CPU_NAME(run_route),
	.run[TESS_OP_EXPERTS] = CPU_NAME(run_experts),
	.run[TESS_OP_COMBINE] = CPU_NAME(run_combine),
	.pack = pack_panels,
};

/* The kernels of one instruction set, CPU_ISA. */
#include "pack.h"

cpu_run CPU_NAME(run_linear), CPU_NAME(run_embed), CPU_NAME(run_norm), CPU_NAME(run_bias),
	CPU_NAME(run_rope), CPU_NAME(run_attention), CPU_NAME(run_glu), CPU_NAME(run_add),
	CPU_NAME(run_scale), CPU_NAME(run_copy), CPU_NAME(run_select_rows),
	CPU_NAME(run_head_linear), CPU_NAME(run_route), CPU_NAME(run_experts),
	CPU_NAME(run_combine);

#define TEXT(x) #x
#define NAME(x) TEXT(x)

extern const struct cpu_kernels CPU_NAME(kernels);
const struct cpu_kernels CPU_NAME(kernels) = {
	.name = NAME(CPU_ISA),
	.linear = CPU_NAME(run_linear),
	.embed = CPU_NAME(run_embed),
	.norm = CPU_NAME(run_norm),
	.bias = CPU_NAME(run_bias),
	.rope = CPU_NAME(run_rope),
	.attention = CPU_NAME(run_attention),
	.glu = CPU_NAME(run_glu),
	.add = CPU_NAME(run_add),
	.scale = CPU_NAME(run_scale),
	.copy = CPU_NAME(run_copy),
	.select_rows = CPU_NAME(run_select_rows),
	.head_linear = CPU_NAME(run_head_linear),
	.route = CPU_NAME(run_route),
	.experts = CPU_NAME(run_experts),
	.combine = CPU_NAME(run_combine),
	.pack = pack_panels,
};

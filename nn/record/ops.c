/* ops.c - the functions for models. The placement rule of each op is in an ops_*.c. */
#include "nn/record/recorder.h"

void tess_ops_install(struct tess_nn *nn)
{
	nn->integer = tess_op_integer;
	nn->number = tess_op_number;
	nn->string = tess_op_string;
	nn->activation = tess_op_activation;
	nn->dim = tess_op_dim;
	nn->grouped = tess_op_grouped;
	nn->fused = tess_op_fused;
	nn->enter = tess_module_enter;
	nn->leave = tess_module_leave;
	nn->has = tess_op_has;
	nn->choice = tess_op_choice;
	tess_ops_install_rows(nn);
	tess_ops_install_linear(nn);
	tess_ops_install_attention(nn);
	tess_ops_install_heads(nn);
	tess_ops_install_dropout(nn);
	tess_ops_install_experts(nn);
}

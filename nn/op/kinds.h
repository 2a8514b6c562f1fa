/* kinds.h - the kinds of ops: their names, and what checks their operands. */
#ifndef TESS_NN_OP_KINDS_H
#define TESS_NN_OP_KINDS_H

#include <stdbool.h>
#include <tessera/device.h>

/*
 * Checks an op, which has an operand and an out at least. Returns NULL, or the rule of
 * tessera/device.h that it violates.
 */
typedef const char *op_check_fn(const struct tess_op *op);
/* Checks an op whose outs may be Partials. exact: these have the nodes of their trees, else one. */
typedef const char *op_check_sum_fn(const struct tess_op *op, bool exact);

struct op_kind {
	const char *name;
	op_check_fn *check; /* or check_sum */
	op_check_sum_fn *check_sum;
};

/* Returns a kind of TESS_OP_..., or NULL if there is none. */
const struct op_kind *op_find_kind(int32_t kind);

/* linear.c */
op_check_fn op_check_head_linear;
op_check_sum_fn op_check_linear, op_check_linear_dx, op_check_linear_dw, op_check_head_linear_dw;
/* rows.c */
op_check_fn op_check_bias, op_check_rope, op_check_glu, op_check_glu_d, op_check_add,
	op_check_scale, op_check_copy, op_check_select_rows, op_check_dropout;
op_check_sum_fn op_check_bias_dw, op_check_embed, op_check_embed_dw, op_check_head_sum,
	op_check_sequence_sum;
/* norm.c */
op_check_fn op_check_norm, op_check_norm_d;
op_check_sum_fn op_check_norm_dw;
/* attention.c */
op_check_fn op_check_attention, op_check_attention_d;
/* experts.c, experts_d.c */
op_check_fn op_check_route, op_check_route_d, op_check_balance_d, op_check_combine_d;
op_check_sum_fn op_check_experts, op_check_combine, op_check_balance, op_check_experts_d,
	op_check_experts_dw;
/* logits.c */
op_check_fn op_check_loss_max, op_check_loss, op_check_loss_d, op_check_sample;
op_check_sum_fn op_check_loss_sum, op_check_loss_pick;
/* optimizer.c */
op_check_fn op_check_adamw, op_check_sgd, op_check_squares;

#endif

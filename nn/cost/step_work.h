/*
 * step_work.h - the work of a step as machine files count it: its key, its class, its rows.
 *
 * A step is an op with the ops that are fused with it. Its class is the first of product, attention
 * and memory that one of its ops has.
 */
#ifndef TESS_NN_COST_STEP_WORK_H
#define TESS_NN_COST_STEP_WORK_H

#include "nn/cost/machine.h"
#include "nn/cost/op_cost.h"

struct tess_step_work { /* zeroed: no op */
	int32_t nops, class; /* class: TESS_TERM_PRODUCT, _ATTENTION or _MEMORY */
	bool bf16; /* products of bf16 */
	double rows; /* of the first op */
	struct tess_op_cost cost;
};
/* Adds the next op of a step. */
void tess_step_work_add(const struct tess_op *op, const struct tess_op_known *known,
                        struct tess_step_work *w);

/*
 * The parts of a step as points of a machine file: `parts` times the work of `rows` rows. Sequences
 * and experts are parts, because the rows of one share its keys, or its weights.
 */
struct tess_step_parts {
	double parts, rows;
	double work; /* of a part: FLOPs; of the class memory, bytes */
};
struct tess_step_parts tess_step_work_get_parts(const struct tess_step_work *w);

enum { TESS_STEP_NAME = 128 };
/* Joins the names of the ops of a step, as in machine files: "norm+linear", "linear:bf16". */
void tess_step_work_name(const struct tess_op *op, bool bf16, char name[static TESS_STEP_NAME]);
/* Returns the class of a kind of op. */
int32_t tess_op_classify(int32_t kind);

#endif

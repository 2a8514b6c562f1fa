/* kinds.h - the kinds of ops, by the table in kinds.def: their names, and what checks them. */
#ifndef TESS_NN_OP_KINDS_H
#define TESS_NN_OP_KINDS_H

#include <stdbool.h>
#include <tessera/device.h>

/*
 * Checks an op with at least one operand and one out. Returns NULL, or the violated rule of
 * tessera/device.h.
 */
typedef const char *op_check_whole_fn(const struct tess_op *op);
/* Checks an op whose outs may be Partials. exact: these have the nodes of their trees, else one. */
typedef const char *op_check_partial_fn(const struct tess_op *op, bool exact);

struct op_kind {
	const char *name;
	int32_t weight; /* the first operand that is a weight; 0: none */
	op_check_whole_fn *check_whole; /* or check_partial */
	op_check_partial_fn *check_partial;
};

/* Returns a kind of TESS_OP_..., or NULL if there is none. */
const struct op_kind *op_find_kind(int32_t kind);

/* Returns the name of a kind, as "linear"; NULL: there is none. */
static inline const char *op_get_kind_name(int32_t kind)
{
	const struct op_kind *k = op_find_kind(kind);

	return k ? k->name : NULL;
}

#define OP(kind, name, outs, weight, cost, backward, lower) op_check_##outs##_fn op_check_##name;
#include "nn/op/kinds.def"

#endif

#include "nn/op/operands.h"

#include "nn/op/panels.h"

static bool is_weight(int32_t dtype)
{
	return dtype == TESS_F32 || dtype == TESS_BF16 || dtype == TESS_F16;
}

static bool is_compressed(int32_t dtype)
{
	return dtype == TESS_Q8 || dtype == TESS_BF12 || dtype == TESS_MXFP4;
}

bool operand_is_rows(const struct tess_view *v, int32_t ndim)
{
	if (v->dtype != TESS_F32 || v->layout != TESS_ROWS || v->ndim != ndim ||
	    v->stride[ndim - 1] != 1)
		return false;
	for (int32_t i = 0; i < ndim; i++)
		if (v->shape[i] < 0 ||
		    (i < ndim - 1 && v->stride[i] < v->shape[i + 1] && v->shape[i] > 1))
			return false;
	return true;
}

bool operand_is_table(const struct tess_view *v, int64_t rows, int64_t columns)
{
	return operand_is_rows(v, 2) && v->shape[0] == rows && v->shape[1] == columns;
}

bool operand_has_tokens(const struct tess_op *op, int32_t i)
{
	return operand_is_rows(&op->in[i], 2) && op->in[i].shape[0] == op->in[0].shape[0];
}

bool operand_is_list(const struct tess_view *v, int64_t n)
{
	return v->dtype == TESS_I32 && v->layout == TESS_ROWS && v->ndim == 1 && v->shape[0] == n &&
	       v->stride[0] == 1;
}

bool operand_is_flat(const struct tess_view *v, int32_t dtype, int64_t n)
{
	return v->dtype == dtype && v->layout == TESS_ROWS && v->ndim == 1 && v->shape[0] == n &&
	       (v->stride[0] == 1 || n < 2);
}

bool operand_is_vector(const struct tess_view *v, int64_t n)
{
	return is_weight(v->dtype) && v->layout == TESS_ROWS && v->ndim == 1 && v->shape[0] == n;
}

bool operand_is_matrix(const struct tess_view *v)
{
	if (!is_weight(v->dtype) || v->ndim != 2 || v->shape[0] < 0 || v->shape[1] < 0)
		return false;
	if (v->layout == TESS_PANELS)
		return v->stride[1] == PANEL_OUTS && v->stride[0] % PANEL_OUTS == 0 &&
		       v->stride[0] >= v->shape[1] * PANEL_OUTS;
	return v->layout == TESS_ROWS;
}

bool operand_is_linear_weight(const struct tess_view *v)
{
	return operand_is_matrix(v) ||
	       (is_compressed(v->dtype) && v->ndim == 2 && v->layout == TESS_PANELS &&
	        v->shape[0] >= 0 && v->shape[1] >= 0);
}

struct tess_view operand_get_matrix(const struct tess_view *stack)
{
	return (struct tess_view){
		.dtype = stack->dtype,
		.ndim = stack->ndim - 1,
		.layout = stack->layout,
		.shape = { stack->shape[1], stack->shape[2] },
		.stride = { stack->stride[1], stack->stride[2] },
	};
}

bool operand_has_same_shape(const struct tess_view *a, const struct tess_view *b)
{
	if (a->ndim != b->ndim)
		return false;
	for (int32_t i = 0; i < a->ndim; i++)
		if (a->shape[i] != b->shape[i])
			return false;
	return true;
}

const char *op_check_tree(const struct tess_op *op, const struct tess_tree *t, int32_t operand,
                          int64_t length, bool partial)
{
	if (t->n < 0 || t->n > OP_UNITS_MAX || t->lo < 0 || t->lo > t->hi || t->hi > t->n)
		return "a tree must be a range of at most 2^30 units";
	if (!partial && (t->lo > 0 || t->hi < t->n))
		return "a sum that is finished here must be over all units";
	if (t->terms < 1 || t->first < 0 || t->first > op->nterm - t->terms)
		return "a tree has no terms";
	for (int32_t j = t->first; j < t->first + t->terms; j++) {
		const int64_t *bound = op->term[j].bound;

		if (op->term[j].operand != operand)
			return operand ? "a tree is over the wrong operand"
			               : "its only summed operand is 0";
		if (!bound || bound[0] < 0 || bound[t->hi - t->lo] > length)
			return "a unit is outside the contracted axis";
		for (int64_t u = 0; u < t->hi - t->lo; u++)
			if (bound[u] > bound[u + 1])
				return "bounds of units must not decrease";
	}
	return NULL;
}

static const char *check_trees_from(const struct tess_op *op, int32_t first, int64_t length,
                                    bool partial)
{
	const char *why = NULL;

	for (int32_t i = first; i < op->ntree && !why; i++)
		why = op_check_tree(op, &op->tree[i], 0, length, partial);
	return why;
}

const char *op_check_trees(const struct tess_op *op, int64_t length, bool partial)
{
	return op->ntree < 1 ? "it has no tree for its sum"
	                     : check_trees_from(op, 0, length, partial);
}

/* Returns the nodes of the trees from `first` on, whose out is a Partial. */
static int64_t count_nodes(const struct tess_op *op, int32_t first, bool exact)
{
	int64_t nodes = 0;

	for (int32_t i = first; i < op->ntree && exact; i++)
		nodes += tess_node_count(op->tree[i].n, op->tree[i].lo, op->tree[i].hi);
	return exact ? nodes : 1;
}

/* Returns whether `y` is f32 rows [rows, columns], or several of them. */
static bool has_rows(const struct tess_view *y, int64_t rows, int64_t columns)
{
	bool partial = y->ndim == 3;

	return operand_is_rows(y, partial ? 3 : 2) && y->shape[partial] == rows &&
	       y->shape[partial + 1] == columns;
}

bool op_is_sum(const struct tess_op *op, const struct tess_view *y, int64_t rows, int64_t columns,
               bool exact)
{
	return has_rows(y, rows, columns) &&
	       (y->ndim == 2 || y->shape[0] == count_nodes(op, 0, exact));
}

bool op_is_sum_of_tree(const struct tess_op *op, int32_t i, int64_t rows, int64_t columns,
                       bool exact)
{
	struct tess_op one = *op;

	one.tree += i;
	one.ntree = 1;
	return op_is_sum(&one, &op->out[0], rows, columns, exact);
}

const char *op_check_token_sum(const struct tess_op *op, const struct tess_view *y, int32_t first,
                               int64_t rows, int64_t columns, bool exact, const char *shape)
{
	double sequences = op->num[TESS_TOKENS_SEQUENCES], start = op->num[TESS_TOKENS_FIRST];
	bool partial = y->ndim == 3, nodes = partial && sequences == 0;
	int32_t trees = op->ntree - first;
	const char *why;
	int64_t count;

	if (!is_integer(sequences, 0, OP_UNITS_MAX) || !is_integer(start, 0, OP_UNITS_MAX) ||
	    (!nodes && start + trees > sequences) || (!partial && (start > 0 || trees < sequences)))
		return "its trees must be `sequences` from `first` on, all of them where the sum "
		       "is finished";
	why = check_trees_from(op, first, op->in[0].shape[0], nodes);
	if (why || !partial)
		return why ? why : has_rows(y, rows, columns) ? NULL : shape;
	count = nodes || !exact ? count_nodes(op, first, exact)
	                        : tess_node_count((int64_t)sequences, (int64_t)start,
	                                          (int64_t)start + trees);
	return has_rows(y, rows, columns) && y->shape[0] == count ? NULL : shape;
}

/* Checks the panels of a compressed weight. */
static const char *check_weight_panels(const struct tess_op *op, const struct tess_tree *t,
                                       int32_t ntree, const struct tess_view *w)
{
	const int64_t *bound = op->term[t->first].bound;
	int64_t bytes = 0;

	if (ntree != 1 || t->terms != 1 || bound[0] || bound[t->hi - t->lo] != w->shape[1])
		return "a weight in q8, mxfp4 or bf12 must be summed over all of its elements, by "
		       "one term";
	if (w->dtype == TESS_BF12)
		return w->stride[0] == panel_count_bf12_bytes(w->shape[1])
		               ? NULL
		               : "panels in bf12 must have the bytes of their elements";
	for (int64_t u = 0; u < t->hi - t->lo; u++)
		bytes += panel_count_unit_bytes(w->dtype, bound[u + 1] - bound[u]);
	return w->stride[0] == bytes
	               ? NULL
	               : "panels in q8 or mxfp4 must have the groups of the units of the sum";
}

bool op_is_math(double number)
{
	return number == 0 || number == TESS_F32 || number == TESS_BF16;
}

int32_t op_get_math(const struct tess_op *op)
{
	int32_t at;

	switch (op->kind) {
	case TESS_OP_LINEAR:
	case TESS_OP_LINEAR_DX:
		at = TESS_LINEAR_MATH;
		break;
	case TESS_OP_LINEAR_DW:
		at = TESS_LINEAR_DW_MATH;
		break;
	case TESS_OP_EXPERTS:
	case TESS_OP_EXPERTS_D:
		at = TESS_EXPERTS_MATH;
		break;
	case TESS_OP_EXPERTS_DW:
		at = TESS_EXPERTS_DW_MATH;
		break;
	default:
		return 0;
	}
	return op->nnum > at ? (int32_t)op->num[at] : 0;
}

const char *op_check_weight(const struct tess_op *op, const struct tess_tree *t, int32_t ntree,
                            const struct tess_view *w, double math)
{
	const char *why = is_compressed(w->dtype) ? check_weight_panels(op, t, ntree, w) : NULL;

	if (why || math == 0 || math == TESS_F32)
		return why;
	return math == TESS_BF16 && (w->dtype == TESS_BF16 || w->dtype == TESS_BF12 ||
	                             (w->layout == TESS_ROWS && !is_compressed(w->dtype)))
	               ? NULL
	               : "products are of f32, or of bf16 with weights in rows, or in panels of "
	                 "bf16";
}

bool op_is_dropout(const struct tess_op *op, double rate, double site, int32_t at)
{
	if (rate == 0)
		return op->nin == at;
	return rate > 0 && rate < 1 && is_integer(site, 0, UINT32_MAX) && op->nin == at + 1 &&
	       operand_is_list(&op->in[at], 4);
}

bool op_is_activation(double number)
{
	return is_integer(number, TESS_SILU, TESS_TANH);
}

bool op_has_expert_form(const struct tess_op *op, int32_t bias)
{
	const struct tess_view *b = op->nin > bias ? &op->in[bias] : NULL, *w = &op->in[2];

	if (b && (!is_weight(b->dtype) || b->ndim != 2 || b->layout != TESS_ROWS ||
	          b->shape[0] != w->shape[0] || b->shape[1] != w->shape[1] || b->stride[1] != 1))
		return false;
	return op->num[TESS_EXPERTS_LIMIT] >= 0;
}

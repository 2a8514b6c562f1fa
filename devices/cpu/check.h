/* check.h - what check*.c ask of operands and sums. */
#ifndef TESS_DEVICES_CPU_CHECK_H
#define TESS_DEVICES_CPU_CHECK_H

#include "cpu.h"

/* Compiled again for a device without panels, whose Partials have one node. */
#ifndef CHECK_DEVICE
#define CHECK_DEVICE "cpu"
#define CHECK_EXACT true
#endif

enum { UNITS_MAX = 1 << 30 };

static inline const char *get_where(const struct tess_op *op)
{
	return op->where ? op->where : "an op";
}

static inline tess_status refuse_op(const struct tess_op *op, const char *kind, const char *rule)
{
	return cpu_host->fail(TESS_ENOTSUP, "%s: " CHECK_DEVICE ": %s: %s", get_where(op), kind,
	                      rule);
}

static inline bool is_weight(int32_t dtype)
{
	return dtype == TESS_F32 || dtype == TESS_BF16 || dtype == TESS_F16;
}

/* Rows of activations, or nodes of such rows. */
static inline bool is_row_view(const struct tess_view *v, int32_t ndim)
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

static inline bool is_index_list(const struct tess_view *v, int64_t n)
{
	return v->dtype == TESS_I32 && v->layout == TESS_ROWS && v->ndim == 1 && v->shape[0] == n &&
	       v->stride[0] == 1;
}

static inline bool is_vector(const struct tess_view *v, int64_t n)
{
	return is_weight(v->dtype) && v->layout == TESS_ROWS && v->ndim == 1 && v->shape[0] == n;
}

static inline bool is_matrix(const struct tess_view *v)
{
	if (!is_weight(v->dtype) || v->ndim != 2 || v->shape[0] < 0 || v->shape[1] < 0)
		return false;
	if (v->layout == TESS_PANELS)
		return CHECK_EXACT && v->stride[1] == LANES && v->stride[0] % LANES == 0 &&
		       v->stride[0] >= v->shape[1] * LANES;
	return v->layout == TESS_ROWS;
}

/* The same, or TESS_Q8 or TESS_BF12. */
static inline bool is_linear_weight(const struct tess_view *v)
{
	return is_matrix(v) ||
	       (CHECK_EXACT && (v->dtype == TESS_Q8 || v->dtype == TESS_BF12) && v->ndim == 2 &&
	        v->layout == TESS_PANELS && v->shape[0] >= 0 && v->shape[1] >= 0);
}

static inline bool has_same_shape(const struct tess_view *a, const struct tess_view *b)
{
	if (a->ndim != b->ndim)
		return false;
	for (int32_t i = 0; i < a->ndim; i++)
		if (a->shape[i] != b->shape[i])
			return false;
	return true;
}

static inline bool is_integer(double x, double lo, double hi)
{
	return x >= lo && x <= hi && x == (double)(int64_t)x;
}

/* NULL if the tree is a sum over [0, length) of an operand, of all units unless partial. */
static inline const char *check_tree(const struct tess_op *op, const struct tess_tree *t,
                                     int32_t operand, int64_t length, bool partial)
{
	if (t->n < 0 || t->n > UNITS_MAX || t->lo < 0 || t->lo > t->hi || t->hi > t->n)
		return "a tree is not a run of at most 2^30 units";
	if (!partial && (t->lo > 0 || t->hi < t->n))
		return "a sum that is finished here must be over all units";
	if (t->terms < 1 || t->first < 0 || t->first > op->nterm - t->terms)
		return "a tree has no terms";
	for (int32_t j = t->first; j < t->first + t->terms; j++) {
		const int64_t *bound = op->term[j].bound;

		if (op->term[j].operand != operand)
			return operand ? "a tree is over another operand than its own"
			               : "its only summed operand is 0";
		if (!bound || bound[0] < 0 || bound[t->hi - t->lo] > length)
			return "a unit is outside the contracted axis";
		for (int64_t u = 0; u < t->hi - t->lo; u++)
			if (bound[u] > bound[u + 1])
				return "bounds of units must not decrease";
	}
	return NULL;
}

/*
 * NULL if op's trees are sums over [0, length) of operand 0, of all units unless partial; else the
 * rule they break.
 */
static inline const char *check_trees(const struct tess_op *op, int64_t length, bool partial)
{
	const char *why = op->ntree < 1 ? "it has no tree for its sum" : NULL;

	for (int32_t i = 0; i < op->ntree && !why; i++)
		why = check_tree(op, &op->tree[i], 0, length, partial);
	return why;
}

static inline int64_t count_nodes(const struct tess_op *op)
{
	int64_t nodes = 0;

	for (int32_t i = 0; i < op->ntree; i++)
		nodes += tess_node_count(op->tree[i].n, op->tree[i].lo, op->tree[i].hi);
	return CHECK_EXACT ? nodes : 1;
}

/* Whether y is [rows, columns], or the op's nodes of that. */
static inline bool is_sum(const struct tess_op *op, const struct tess_view *y, int64_t rows,
                          int64_t columns)
{
	bool partial = y->ndim == 3;

	return is_row_view(y, partial ? 3 : 2) && y->shape[y->ndim - 2] == rows &&
	       y->shape[y->ndim - 1] == columns && (!partial || y->shape[0] == count_nodes(op));
}

/* Whether v has `value` elements for each head of q. */
static inline bool is_values_of_queries(const struct tess_op *op, const struct tess_view *v)
{
	return is_row_view(v, 2) && v->shape[0] == op->in[0].shape[0] &&
	       v->shape[1] == op->in[0].shape[1] / (int64_t)op->num[TESS_ATTENTION_HEAD] *
	                              (int64_t)op->num[TESS_ATTENTION_VALUE];
}

/* The loss and the optimisers; then what cpu_check checks. */
tess_status cpu_check_training(const struct tess_op *op);

/* Whether a rate and a site are right, and the words of the step operand `at`, the last. */
static inline bool is_dropout(const struct tess_op *op, double rate, double site, int32_t at)
{
	if (rate == 0)
		return op->nin == at;
	return rate > 0 && rate < 1 && is_integer(site, 0, UINT32_MAX) &&
	       op->nin == at + 1 && is_index_list(&op->in[at], 4);
}

/* q, k, v, positions, slots and numbers of ATTENTION and ATTENTION_D. */
tess_status cpu_check_query_heads(const struct tess_op *op);

/* The rule that the token sum of op's trees from `first` on breaks, over operand 0; or NULL. */
const char *cpu_check_token_sum(const struct tess_op *op, int32_t first);
/* Whether the out of such a sum is [rows, columns], or the nodes of that. */
bool cpu_is_token_sum(const struct tess_op *op, int32_t first, int64_t rows, int64_t columns);
/* Ops of training of mixtures of experts, and others. */
tess_status cpu_check_experts(const struct tess_op *op);

#endif

/* Checks shapes, strides, types and sums of an op by docs/ops.md. */
#include "check.h"

/*
 * NULL unless a TESS_Q8 weight has other groups than the `ntree` trees of its sum, from `t` on, or
 * a TESS_BF12 weight has other panels than its elements need.
 */
static const char *check_groups(const struct tess_op *op, const struct tess_tree *t, int32_t ntree,
                                const struct tess_view *w)
{
	const int64_t *bound;
	int64_t groups = 0;

	if (w->dtype != TESS_Q8 && w->dtype != TESS_BF12)
		return NULL;
	bound = op->term[t->first].bound;
	if (ntree != 1 || t->terms != 1 || bound[0] || bound[t->hi - t->lo] != w->shape[1])
		return "a weight in q8 or bf12 must be summed over all of its elements, by one "
		       "term";
	if (w->dtype == TESS_BF12)
		return w->stride[0] == bf12_count_panel_bytes(w->shape[1])
		               ? NULL
		               : "panels in bf12 must have the bytes of their elements";
	for (int64_t u = 0; u < t->hi - t->lo; u++)
		groups += tess_up(bound[u + 1] - bound[u], GROUP);
	return w->stride[0] == LANES * (w->shape[1] + 2 * groups)
	               ? NULL
	               : "panels in q8 must have the groups of the units of the sum";
}

/* NULL unless products with w cannot be of dtype `math`; 0: TESS_F32. */
static const char *check_math(double math, const struct tess_view *w)
{
	if (math == 0 || math == TESS_F32)
		return NULL;
	if (!CHECK_EXACT)
		return "products of bf16 are for the cpu device; TESSERA_CUDA_MATH says how "
		       "products are made here";
	return math == TESS_BF16 && (w->dtype == TESS_BF16 || w->dtype == TESS_BF12)
	               ? NULL
	               : "products are of f32, or of bf16 with weights in bf16";
}

static tess_status check_linear(const struct tess_op *op)
{
	const char *why;
	bool partial;

	if (op->nout < 1 || op->nin != op->nout + 1)
		return refuse_op(op, "linear", "it takes x and one weight for each out");
	if (op->nnum && op->nnum != TESS_LINEAR_NUMS)
		return refuse_op(op, "linear", "its number is the dtype of its products, or none");
	if (!is_row_view(&op->in[0], 2))
		return refuse_op(op, "linear", "x must be f32 rows [T, K]");
	partial = op->out[0].ndim == 3;
	why = check_trees(op, op->in[0].shape[1], partial);
	if (why)
		return refuse_op(op, "linear", why);
	for (int32_t i = 0; i < op->nout; i++) {
		const struct tess_view *w = &op->in[1 + i];

		if (!is_linear_weight(w) || w->shape[1] != op->in[0].shape[1])
			return refuse_op(op, "linear",
			                 "a weight must be [N, K] in f32, bf16 or f16, in "
			                 "rows, or in panels of strides that fit");
		why = check_groups(op, op->tree, op->ntree, w);
		if (!why && op->nnum)
			why = check_math(op->num[TESS_LINEAR_MATH], w);
		if (why)
			return refuse_op(op, "linear", why);
		if ((op->out[i].ndim == 3) != partial ||
		    !is_sum(op, &op->out[i], op->in[0].shape[0], w->shape[0]))
			return refuse_op(op, "linear",
			                 "an out must be f32 rows [T, N], or for all "
			                 "weights alike [nodes, T, N]");
	}
	return TESS_OK;
}

static tess_status check_embed(const struct tess_op *op)
{
	const char *why;
	bool partial;

	if (op->nin != 2 || op->nout != 1 || op->nnum != 1)
		return refuse_op(op, "embed",
		                 "it takes ids and a table, gives one out, and has one number");
	if (op->in[0].ndim != 1 || !is_index_list(&op->in[0], op->in[0].shape[0]))
		return refuse_op(op, "embed", "ids must be a dense vector of i32");
	if (!is_matrix(&op->in[1]) || !is_integer(op->num[TESS_EMBED_FIRST], 0, 0x1p53))
		return refuse_op(
			op, "embed",
			"the table must be [V, H] in f32, bf16 or f16, the first id an integer");
	partial = op->out[0].ndim == 3;
	why = partial ? check_trees(op, op->in[1].shape[0], true) : NULL;
	if (why)
		return refuse_op(op, "embed", why);
	if (!is_sum(op, &op->out[0], op->in[0].shape[0], op->in[1].shape[1]))
		return refuse_op(op, "embed", "the out must be f32 rows [T, H] or [nodes, T, H]");
	return TESS_OK;
}

static tess_status check_norm(const struct tess_op *op)
{
	int64_t columns, each;
	const char *why;

	if (op->nnum != TESS_NORM_NUMS ||
	    (op->num[TESS_NORM_KIND] != TESS_RMS && op->num[TESS_NORM_KIND] != TESS_LAYER) ||
	    !is_integer(op->num[TESS_NORM_OFFSET], 0, 1))
		return refuse_op(
			op, "norm",
			"its numbers are kind (1 RMS, 2 LAYER), eps, each, offset (0 or 1)");
	if (op->nout != 1 || op->nin < 2 || op->nin > 3 ||
	    (op->nin == 3 && op->num[TESS_NORM_KIND] != TESS_LAYER))
		return refuse_op(op, "norm", "it takes x and w, LAYER also b, and gives one out");
	if (!is_row_view(&op->in[0], 2) || !is_row_view(&op->out[0], 2) ||
	    !has_same_shape(&op->in[0], &op->out[0]))
		return refuse_op(op, "norm", "x and y must be f32 rows [T, H]");
	columns = op->in[0].shape[1];
	if (!is_integer(op->num[TESS_NORM_RUN], 0, (double)columns))
		return refuse_op(op, "norm", "runs of `each` elements must fill a row");
	each = op->num[TESS_NORM_RUN] > 0 ? (int64_t)op->num[TESS_NORM_RUN] : columns;
	if (each < 1 || columns % each)
		return refuse_op(op, "norm", "runs of `each` elements must fill a row");
	for (int32_t i = 1; i < op->nin; i++)
		if (!is_vector(&op->in[i], each))
			return refuse_op(op, "norm",
			                 "w and b must be f32, bf16 or f16, with one element "
			                 "for each that is summed");
	why = check_trees(op, each, false);
	if (why)
		return refuse_op(op, "norm", why);
	if (op->ntree != 1 || op->tree[0].terms != 1)
		return refuse_op(op, "norm", "its sum is one tree with one term");
	return TESS_OK;
}

/* BIAS, GLU, ADD: f32 rows of one shape. */
static tess_status check_rows(const struct tess_op *op, const char *kind, int32_t nin)
{
	if (op->nin != nin || op->nout != 1)
		return refuse_op(op, kind, "wrong number of operands");
	if (!is_row_view(&op->in[0], 2) || !is_row_view(&op->out[0], 2) ||
	    !has_same_shape(&op->in[0], &op->out[0]))
		return refuse_op(op, kind, "operands and out must be f32 rows [T, N] of one shape");
	return TESS_OK;
}

static tess_status check_bias(const struct tess_op *op)
{
	tess_status st = check_rows(op, "bias", 2);

	if (!st && !is_vector(&op->in[1], op->in[0].shape[1]))
		return refuse_op(op, "bias", "b must be [N] in f32, bf16 or f16");
	return st;
}

static tess_status check_pair(const struct tess_op *op, const char *kind)
{
	tess_status st = check_rows(op, kind, 2);

	if (!st && (!is_row_view(&op->in[1], 2) || !has_same_shape(&op->in[0], &op->in[1])))
		return refuse_op(op, kind, "operands and out must be f32 rows [T, N] of one shape");
	return st;
}

static tess_status check_glu(const struct tess_op *op)
{
	if (op->nnum != TESS_GLU_NUMS ||
	    !is_integer(op->num[TESS_GLU_ACTIVATION], TESS_SILU, TESS_TANH))
		return refuse_op(
			op, "glu",
			"its number is the activation: 1 silu, 2 gelu, 3 gelu_tanh, 4 relu, 5 "
			"tanh");
	return op->nin == 1 ? check_rows(op, "glu", 1) : check_pair(op, "glu");
}

static tess_status check_scale(const struct tess_op *op)
{
	if (op->nnum != TESS_SCALE_NUMS)
		return refuse_op(op, "scale", "its number is the factor");
	return check_rows(op, "scale", 1);
}

static tess_status check_rope(const struct tess_op *op)
{
	tess_status st = check_rows(op, "rope", 3);
	double each;

	if (st)
		return st;
	if (op->nnum != TESS_ROPE_NUMS || !is_integer(op->num[TESS_ROPE_HEAD], 2, 0x1p30) ||
	    op->in[0].shape[1] % (int64_t)op->num[TESS_ROPE_HEAD])
		return refuse_op(op, "rope", "heads of `each` elements must fill a row");
	each = op->num[TESS_ROPE_HEAD];
	if (!is_integer(op->num[TESS_ROPE_WIDTH], 2, each) ||
	    (int64_t)op->num[TESS_ROPE_WIDTH] % 2 ||
	    !is_integer(op->num[TESS_ROPE_FIRST], 0, each - op->num[TESS_ROPE_WIDTH]) ||
	    !is_integer(op->num[TESS_ROPE_INTERLEAVED], 0, 1) ||
	    !is_integer(op->num[TESS_ROPE_INVERSE], 0, 1))
		return refuse_op(op, "rope",
		                 "`width` elements from `first` on, an even number, must lie in a "
		                 "head; interleaved and inverse are 0 or 1");
	if (!is_index_list(&op->in[1], op->in[0].shape[0]))
		return refuse_op(op, "rope", "positions must be i32, one for each row");
	if (!is_row_view(&op->in[2], 2) || op->in[2].shape[1] != (int64_t)op->num[TESS_ROPE_WIDTH])
		return refuse_op(op, "rope",
		                 "the table must be f32 rows [P, width]: cosines, then sines");
	return TESS_OK;
}

static bool is_page_table(const struct tess_view *v)
{
	return v->dtype == TESS_I64 && v->layout == TESS_ROWS && v->ndim == 2 && v->shape[0] >= 0 &&
	       v->shape[1] >= 0 && v->stride[0] >= v->shape[1] && v->stride[1] == 1;
}

/* Whether a page may hold keys or values of so many elements there: aligned. */
static bool is_page_offset(double offset, int32_t dtype)
{
	return is_integer(offset, 0, 0x1p53) && (int64_t)offset % (int64_t)tess_width(dtype) == 0;
}

/* Whether v has g values in a row, or there is none and a value is the beginning of its key. */
static bool check_values(const struct tess_op *op, int64_t g)
{
	const struct tess_view *v = &op->in[2];
	double value = op->num[TESS_ATTENTION_VALUE];

	if (!v->ndim)
		return is_integer(value, 1, op->num[TESS_ATTENTION_HEAD]);
	return is_row_view(v, 2) && v->shape[0] == op->in[0].shape[0] &&
	       is_integer(value, 1, 0x1p20) && v->shape[1] == g * (int64_t)value;
}

/* The table of pages, and what lies where in one, or none. */
static tess_status check_pages(const struct tess_op *op)
{
	if (!op->in[5].ndim)
		return TESS_OK;
	if (!is_page_table(&op->in[5]))
		return refuse_op(op, "attention", "the pages must be i64, [slots, blocks]");
	if (op->num[TESS_ATTENTION_DTYPE] != TESS_F32 && op->num[TESS_ATTENTION_DTYPE] != TESS_BF16)
		return refuse_op(op, "attention", "the cache must be f32 or bf16");
	if (!is_page_offset(op->num[TESS_ATTENTION_KEYS], (int32_t)op->num[TESS_ATTENTION_DTYPE]) ||
	    !is_page_offset(op->num[TESS_ATTENTION_VALUES], (int32_t)op->num[TESS_ATTENTION_DTYPE]))
		return refuse_op(op, "attention",
		                 "keys and values must begin at a whole element of a page");
	return TESS_OK;
}

tess_status cpu_check_query_heads(const struct tess_op *op)
{
	int64_t d, heads, g, lo, group;

	for (int i = 0; i < 2; i++)
		if (!is_row_view(&op->in[i], 2) || op->in[i].shape[0] != op->in[0].shape[0])
			return refuse_op(op, "attention",
			                 "q and k must be f32 rows of the same tokens");
	if (!is_integer(op->num[TESS_ATTENTION_WINDOW], 0, 0x1p31) ||
	    !is_integer(op->num[TESS_ATTENTION_HEAD], 1, 0x1p20) ||
	    !is_integer(op->num[TESS_ATTENTION_FIRST], 0, 0x1p31) ||
	    !is_integer(op->num[TESS_ATTENTION_GROUP], 1, 0x1p31))
		return refuse_op(
			op, "attention",
			"window, d, lo and group must be integers, d and group at least 1");
	d = (int64_t)op->num[TESS_ATTENTION_HEAD], lo = (int64_t)op->num[TESS_ATTENTION_FIRST],
	group = (int64_t)op->num[TESS_ATTENTION_GROUP];
	heads = op->in[0].shape[1] / d;
	g = op->in[1].shape[1] / d;
	if (!heads || op->in[0].shape[1] % d || op->in[1].shape[1] % d)
		return refuse_op(op, "attention", "heads of d elements must fill q and k");
	if (!check_values(op, g))
		return refuse_op(op, "attention",
		                 "v must be f32 rows of the same tokens, g heads of `value` "
		                 "elements; without v, `value` is at most d");
	if ((lo + heads - 1) / group - lo / group + 1 != g)
		return refuse_op(op, "attention",
		                 "the key-value heads must be those that the query heads read");
	if (!is_index_list(&op->in[3], op->in[0].shape[0]) ||
	    !is_index_list(&op->in[4], op->in[0].shape[0]))
		return refuse_op(op, "attention",
		                 "positions and slots must be i32, one for each row");
	if (!(op->num[TESS_ATTENTION_SOFTCAP] >= 0))
		return refuse_op(op, "attention", "the softcap must not be negative");
	if (!is_dropout(op, op->num[TESS_ATTENTION_RATE], op->num[TESS_ATTENTION_SITE], 6))
		return refuse_op(op, "attention",
		                 "dropout has a rate from 0 to less than 1, a site and the i32 [4] "
		                 "of the step");
	return TESS_OK;
}

static tess_status check_attention(const struct tess_op *op)
{
	tess_status st;

	if (op->nin < 6 || op->nout != 1 || op->nnum != TESS_ATTENTION_NUMS)
		return refuse_op(op, "attention",
		                 "it takes q, k, v, positions, slots and pages, and has twelve "
		                 "numbers");
	st = cpu_check_query_heads(op);
	st = st ? st : check_pages(op);
	if (!st && !is_values_of_queries(op, &op->out[0]))
		return refuse_op(
			op, "attention",
			"the out must be f32 rows of the same tokens, `value` elements for "
			"each head of q");
	return st;
}

static tess_status check_copy(const struct tess_op *op)
{
	const struct tess_view *x, *y;

	if (op->nin != 1 || op->nout != 1)
		return refuse_op(op, "copy", "it takes one operand and gives one out");
	x = &op->in[0], y = &op->out[0];
	if (x->ndim > 3 || x->layout != TESS_ROWS || y->layout != TESS_ROWS)
		return refuse_op(op, "copy", "it takes at most 3 axes, and no panels");
	if (!tess_width(x->dtype) || x->dtype != y->dtype || !has_same_shape(x, y))
		return refuse_op(op, "copy", "both sides must have one shape and one type");
	return TESS_OK;
}

static tess_status check_select_rows(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];

	if (op->nin != 2 || op->nout != 1)
		return refuse_op(op, "select_rows", "it takes x and rows, and gives one out");
	if (!is_row_view(x, 2) || !is_row_view(y, 2) || x->shape[1] != y->shape[1])
		return refuse_op(op, "select_rows", "x and y must be f32 rows of one length");
	if (!is_index_list(&op->in[1], y->shape[0]))
		return refuse_op(op, "select_rows", "rows must be i32, one for each row of y");
	return TESS_OK;
}

static tess_status check_head_linear(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->out[0];
	struct tess_view head;
	int64_t heads;

	if (op->nin != 2 || op->nout != 1)
		return refuse_op(op, "head_linear", "it takes x and a weight, and gives one out");
	head = get_matrix(w, 0);
	heads = w->shape[0];
	if (!is_matrix(&head) || heads < 1 || !head.shape[0] || !head.shape[1])
		return refuse_op(op, "head_linear",
		                 "the weight must be [heads, N, K] in f32, bf16 or f16, each head "
		                 "in rows, or in panels of strides that fit");
	if (!is_row_view(x, 2) || !is_row_view(y, 2) || x->shape[0] != y->shape[0])
		return refuse_op(op, "head_linear", "x and y must be f32 rows of the same tokens");
	if (x->shape[1] % heads || y->shape[1] % heads || x->shape[1] / heads < head.shape[1] ||
	    x->shape[1] / heads - head.shape[1] != y->shape[1] / heads - head.shape[0])
		return refuse_op(op, "head_linear",
		                 "a head of x must have K elements and a rest, and one of y N "
		                 "elements and the same rest");
	return TESS_OK;
}

static tess_status check_route(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];
	int64_t n = x->shape[1], groups;

	if (op->nin < 1 || op->nin > 2 || op->nout != 1 || op->nnum != TESS_ROUTE_NUMS)
		return refuse_op(op, "route",
		                 "it takes logits, and a correction or not, and has six numbers");
	if (!is_row_view(x, 2) || !is_row_view(&op->out[0], 2) || !has_same_shape(x, &op->out[0]) ||
	    (op->nin > 1 && !is_vector(&op->in[1], n)))
		return refuse_op(op, "route",
		                 "logits and weights must be f32 rows [T, E], a correction [E]");
	if (!is_integer(op->num[TESS_ROUTE_FLAGS], 0, 3) ||
	    !is_integer(op->num[TESS_ROUTE_GROUPS], 0, (double)n) ||
	    !is_integer(op->num[TESS_ROUTE_TOP], 1, (double)n))
		return refuse_op(op, "route", "flags, groups and top must be integers, at most E");
	groups = (int64_t)op->num[TESS_ROUTE_GROUPS];
	if (groups > 1 &&
	    (n % groups || n / groups < 2 ||
	     !is_integer(op->num[TESS_ROUTE_GROUPS_KEPT], 1, (double)groups) ||
	     op->num[TESS_ROUTE_GROUPS_KEPT] * (double)(n / groups) < op->num[TESS_ROUTE_TOP]))
		return refuse_op(op, "route",
		                 "groups must be equal, of two or more experts, and those that are "
		                 "kept must have `top` of them");
	return TESS_OK;
}

/* Whether an out of EXPERTS or COMBINE has these columns, and in a Partial the nodes of a tree. */
static bool is_combined(const struct tess_op *op, const struct tess_tree *t, int64_t columns)
{
	const struct tess_view *y = &op->out[0];
	bool partial = y->ndim == 3;

	return is_row_view(y, partial ? 3 : 2) && y->shape[partial] == op->in[0].shape[0] &&
	       y->shape[y->ndim - 1] == columns &&
	       (!partial || y->shape[0] == (CHECK_EXACT ? tess_node_count(t->n, t->lo, t->hi) : 1));
}

/* NULL if tree `i` has a unit for each column of the weights, operand 1. */
static const char *check_expert_tree(const struct tess_op *op, int32_t i, bool partial)
{
	const struct tess_tree *t = &op->tree[i];
	const char *why = check_tree(op, t, 1, op->in[1].shape[1], partial);

	return why ? why : t->hi - t->lo == op->in[1].shape[1] ? NULL : "an expert must be a unit";
}

static tess_status check_experts(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *a = &op->in[2], *b = &op->in[3];
	struct tess_view gate_up, down;
	bool partial, slots;
	const char *why;

	if (op->nin != 4 || op->nout != 1 || op->nnum != TESS_EXPERTS_NUMS || op->ntree != 3)
		return refuse_op(op, "experts",
		                 "it takes x, weights, gate_up and down, gives one out, and has "
		                 "four numbers and three trees");
	gate_up = get_matrix(a, 0);
	down = get_matrix(b, 0);
	if (!is_row_view(x, 2) || !is_row_view(&op->in[1], 2) ||
	    x->shape[0] != op->in[1].shape[0] || !is_linear_weight(&gate_up) ||
	    !is_linear_weight(&down) || a->shape[0] != op->in[1].shape[1] ||
	    b->shape[0] != a->shape[0] || gate_up.shape[1] != x->shape[1] ||
	    gate_up.shape[0] != 2 * down.shape[1])
		return refuse_op(op, "experts",
		                 "x must be f32 rows [T, K], weights [T, e], gate_up [e, 2F, K] "
		                 "and down [e, H, F] in f32, bf16 or f16, in rows or panels");
	if (!is_integer(op->num[TESS_EXPERTS_ACTIVATION], TESS_SILU, TESS_TANH) ||
	    !is_integer(op->num[TESS_EXPERTS_SLOTS], 0, 0x1p20) ||
	    !is_integer(op->num[TESS_EXPERTS_TOP], 0, 0x1p20))
		return refuse_op(op, "experts",
		                 "its numbers are the activation, as a glu has it, the slots, and "
		                 "the experts that a row asks for");
	partial = op->out[0].ndim == 3;
	slots = op->num[TESS_EXPERTS_SLOTS] > 0;
	why = check_tree(op, &op->tree[0], 0, x->shape[1], false);
	why = why ? why : check_tree(op, &op->tree[1], 3, down.shape[1], partial && slots);
	why = why ? why : check_expert_tree(op, 2, partial || slots);
	why = why ? why : check_groups(op, &op->tree[0], 1, &gate_up);
	why = why ? why : check_groups(op, &op->tree[1], 1, &down);
	why = why ? why : check_math(op->num[TESS_EXPERTS_MATH], a);
	why = why ? why : check_math(op->num[TESS_EXPERTS_MATH], b);
	if (why)
		return refuse_op(op, "experts", why);
	if (!is_combined(op, &op->tree[slots ? 1 : 2],
	                 down.shape[0] * (slots ? (int64_t)op->num[TESS_EXPERTS_SLOTS] : 1)))
		return refuse_op(op, "experts",
		                 "the out must be f32 rows [T, H] or [nodes, T, H], or with s "
		                 "slots [T, s*H] or [nodes, T, s*H]");
	return TESS_OK;
}

static tess_status check_combine(const struct tess_op *op)
{
	const struct tess_view *w = &op->in[1], *y = &op->out[0];
	const char *why;

	if (op->nin != 2 || op->nout != 1 || op->ntree != 1)
		return refuse_op(op, "combine",
		                 "it takes the experts of rows and their weights, and has a tree");
	if (!is_row_view(&op->in[0], 2) || !is_row_view(w, 2) || op->in[0].shape[0] != w->shape[0])
		return refuse_op(op, "combine",
		                 "both operands must be f32 rows of the same tokens");
	why = check_expert_tree(op, 0, y->ndim == 3);
	if (why)
		return refuse_op(op, "combine", why);
	if (!is_combined(op, &op->tree[0], y->shape[y->ndim - 1]) ||
	    (y->shape[y->ndim - 1] && op->in[0].shape[1] % y->shape[y->ndim - 1]))
		return refuse_op(op, "combine",
		                 "the out must be f32 rows [T, H] or [nodes, T, H], and the slots "
		                 "of a row have H elements each");
	return TESS_OK;
}

tess_status cpu_check(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_LINEAR:
		return check_linear(op);
	case TESS_OP_EMBED:
		return check_embed(op);
	case TESS_OP_NORM:
		return check_norm(op);
	case TESS_OP_BIAS:
		return check_bias(op);
	case TESS_OP_ROPE:
		return check_rope(op);
	case TESS_OP_ATTENTION:
		return check_attention(op);
	case TESS_OP_GLU:
		return check_glu(op);
	case TESS_OP_ADD:
		return check_pair(op, "add");
	case TESS_OP_SCALE:
		return check_scale(op);
	case TESS_OP_COPY:
		return check_copy(op);
	case TESS_OP_SELECT_ROWS:
		return check_select_rows(op);
	case TESS_OP_ROUTE:
		return check_route(op);
	case TESS_OP_EXPERTS:
		return check_experts(op);
	case TESS_OP_COMBINE:
		return check_combine(op);
	case TESS_OP_HEAD_LINEAR:
		return check_head_linear(op);
	}
	return cpu_host->fail(TESS_ENOTSUP,
	                      "%s: " CHECK_DEVICE ": ops of kind %d are not supported; use "
	                      "another device, or a newer version",
	                      get_where(op), (int)op->kind);
}

tess_status cpu_check_rows(const struct tess_view *rows)
{
	if (rows->layout == TESS_ROWS && is_matrix(rows))
		return TESS_OK;
	return cpu_host->fail(TESS_ENOTSUP,
	                      "cpu: only rows [N, K] in f32, bf16 or f16 become panels");
}

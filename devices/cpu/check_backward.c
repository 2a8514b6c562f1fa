/* Checks the ops of the backward by docs/ops.md. */
#include "check.h"

/* ---- sums over tokens */

const char *cpu_check_token_sum(const struct tess_op *op, int32_t first)
{
	double sequences = op->num[TESS_TOKENS_SEQUENCES], start = op->num[TESS_TOKENS_FIRST];
	bool partial = op->out[0].ndim == 3, nodes = partial && sequences == 0;
	int32_t trees = op->ntree - first;
	const char *why = NULL;

	if (!is_integer(sequences, 0, UNITS_MAX) || !is_integer(start, 0, UNITS_MAX) ||
	    (!nodes && start + trees > sequences) || (!partial && (start > 0 || trees < sequences)))
		return "its trees must be `sequences` from `first` on, all of them where the sum "
		       "is finished";
	for (int32_t i = first; i < op->ntree && !why; i++)
		why = check_tree(op, &op->tree[i], 0, op->in[0].shape[0], nodes);
	return why;
}

static int64_t count_token_nodes(const struct tess_op *op, int32_t first)
{
	int64_t sequences = (int64_t)op->num[TESS_TOKENS_SEQUENCES], nodes = 0,
		start = (int64_t)op->num[TESS_TOKENS_FIRST];

	if (!CHECK_EXACT)
		return 1;
	if (sequences)
		return tess_node_count(sequences, start, start + op->ntree - first);
	for (int32_t i = first; i < op->ntree; i++)
		nodes += tess_node_count(op->tree[i].n, op->tree[i].lo, op->tree[i].hi);
	return nodes;
}

bool cpu_is_token_sum(const struct tess_op *op, int32_t first, int64_t rows, int64_t columns)
{
	const struct tess_view *y = &op->out[0];
	bool partial = y->ndim == 3;

	return is_row_view(y, partial ? 3 : 2) && y->shape[partial] == rows &&
	       y->shape[partial + 1] == columns &&
	       (!partial || y->shape[0] == count_token_nodes(op, first));
}

static bool is_rows_of_tokens(const struct tess_op *op, int32_t i)
{
	return is_row_view(&op->in[i], 2) && op->in[i].shape[0] == op->in[0].shape[0];
}

static tess_status check_linear_dx(const struct tess_op *op)
{
	int32_t n = op->nin / 2;
	bool partial = op->out[0].ndim == 3;
	const char *why = NULL;

	if (n < 1 || op->nin % 2 || op->nout != 1 || op->ntree < 1)
		return refuse_op(op, "linear_dx",
		                 "it takes gradients and as many weights, gives one out, and has a "
		                 "tree");
	for (int32_t i = 0; i < n; i++)
		if (!is_rows_of_tokens(op, i) || !is_matrix(&op->in[n + i]) ||
		    op->in[n + i].layout != TESS_ROWS ||
		    op->in[n + i].shape[0] != op->in[i].shape[1] ||
		    op->in[n + i].shape[1] != op->in[n].shape[1])
			return refuse_op(op, "linear_dx",
			                 "a gradient must be f32 rows [T, N], and its weight rows "
			                 "[N, K] in f32, bf16 or f16, all of one T and K");
	for (int32_t i = 0; i < op->ntree && !why; i++) {
		struct tess_tree one = op->tree[i];

		why = one.terms < 1 || one.first < 0 || one.first > op->nterm - one.terms
		              ? "a tree has no terms"
		              : NULL;
		for (one.terms = 1; !why && one.first < op->tree[i].first + op->tree[i].terms;
		     one.first++) {
			int32_t of = op->term[one.first].operand;

			why = of < 0 || of >= n
			              ? "a sum must be over the gradients"
			              : check_tree(op, &one, of, op->in[of].shape[1], partial);
		}
	}
	if (why)
		return refuse_op(op, "linear_dx", why);
	if (!is_sum(op, &op->out[0], op->in[0].shape[0], op->in[n].shape[1]))
		return refuse_op(op, "linear_dx",
		                 "the out must be f32 rows [T, K] or [nodes, T, K]");
	return TESS_OK;
}

static tess_status check_linear_dw(const struct tess_op *op)
{
	struct tess_op as_rows = *op;
	struct tess_view y = op->out[0];
	int32_t a = y.ndim - 2;
	const char *why;

	if (op->nin != 2 || op->nout != 1 || a < 0 ||
	    (op->nnum != TESS_TOKENS_NUMS && op->nnum != TESS_LINEAR_DW_NUMS))
		return refuse_op(
			op, "linear_dw",
			"it takes x and g, and has two numbers, or the dtype of the weight "
			"as a third");
	if (!is_rows_of_tokens(op, 0) || !is_rows_of_tokens(op, 1))
		return refuse_op(op, "linear_dw", "x and g must be f32 rows of the same tokens");
	why = cpu_check_token_sum(op, 0);
	if (why)
		return refuse_op(op, "linear_dw", why);
	if (y.stride[a + 1] != 1) { /* its transpose */
		y.shape[a] = op->out[0].shape[a + 1], y.shape[a + 1] = op->out[0].shape[a];
		y.stride[a] = op->out[0].stride[a + 1], y.stride[a + 1] = op->out[0].stride[a];
	}
	as_rows.out = &y;
	if (!cpu_is_token_sum(&as_rows, 0, y.shape[a], y.shape[a + 1]) ||
	    op->out[0].shape[a] != op->in[1].shape[1] ||
	    op->out[0].shape[a + 1] != op->in[0].shape[1])
		return refuse_op(op, "linear_dw",
		                 "the out must be f32 [N, K] or [nodes, N, K], in rows or in "
		                 "columns");
	return TESS_OK;
}

static tess_status check_head_linear_dw(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *g = &op->in[1], *d = &op->out[0];
	int32_t axis = d->ndim - 3;
	struct tess_op one = *op;
	struct tess_view v[3];
	int64_t heads;

	if (op->nin != 2 || op->nout != 1 || axis < 0 || axis > 1 || x->ndim != 2 || g->ndim != 2)
		return refuse_op(op, "head_linear_dw",
		                 "it takes rows x and g, and gives [heads, N, K] or [nodes, heads, "
		                 "N, K]");
	heads = d->shape[axis];
	if (heads < 1 || x->shape[1] % heads || g->shape[1] % heads ||
	    x->shape[1] / heads < d->shape[axis + 2] ||
	    x->shape[1] / heads - d->shape[axis + 2] != g->shape[1] / heads - d->shape[axis + 1])
		return refuse_op(op, "head_linear_dw",
		                 "a head of x must have K elements and a rest, and one of g N "
		                 "elements and the same rest");
	get_head_sum(op, 0, v);
	one.in = v;
	one.out = &v[2];
	return check_linear_dw(&one);
}

static tess_status check_bias_dw(const struct tess_op *op)
{
	const char *why;

	if (op->nin != 1 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS ||
	    !is_rows_of_tokens(op, 0))
		return refuse_op(op, "bias_dw", "it takes f32 rows [T, N], and has two numbers");
	why = cpu_check_token_sum(op, 0);
	if (!why && !cpu_is_token_sum(op, 0, 1, op->in[0].shape[1]))
		why = "the out must be f32 rows [1, N] or [nodes, 1, N]";
	return why ? refuse_op(op, "bias_dw", why) : TESS_OK;
}

static tess_status check_embed_dw(const struct tess_op *op)
{
	const struct tess_view *y = &op->out[0];
	const char *why;

	if (op->nin != 2 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS + TESS_EMBED_NUMS ||
	    !is_index_list(&op->in[0], op->in[0].shape[0]) || !is_rows_of_tokens(op, 1) ||
	    !is_integer(op->num[TESS_TOKENS_NUMS + TESS_EMBED_FIRST], 0, 0x1p53))
		return refuse_op(op, "embed_dw",
		                 "it takes i32 ids [T] and f32 rows [T, H], and has three numbers, "
		                 "the last one the first id");
	why = cpu_check_token_sum(op, 0);
	if (!why &&
	    (y->ndim < 2 || !cpu_is_token_sum(op, 0, y->shape[y->ndim - 2], op->in[1].shape[1])))
		why = "the out must be f32 rows [V, H] or [nodes, V, H]";
	return why ? refuse_op(op, "embed_dw", why) : TESS_OK;
}

/* ---- norms */

/* The rule that x, in[0], and the numbers and first tree of a norm break; or NULL. */
static const char *check_norm_sum(const struct tess_op *op, const double *num)
{
	int64_t columns = op->in[0].shape[1], each;

	if (!is_integer(num[TESS_NORM_KIND], TESS_RMS, TESS_LAYER) ||
	    !is_integer(num[TESS_NORM_OFFSET], 0, 1) ||
	    !is_integer(num[TESS_NORM_RUN], 0, (double)columns))
		return "kind must be 1 or 2, offset 0 or 1, and `each` an integer";
	each = num[TESS_NORM_RUN] > 0 ? (int64_t)num[TESS_NORM_RUN] : columns;
	if (!each || columns % each)
		return "runs of `each` elements must fill a row";
	if (op->ntree < 1 || op->tree[0].terms != 1)
		return "it has one tree of one term over a run";
	return check_tree(op, &op->tree[0], 0, each, false);
}

static tess_status check_norm_d(const struct tess_op *op)
{
	const char *why;

	if (op->nin != 3 || op->nout != 1 || op->nnum != TESS_NORM_NUMS || op->ntree != 1)
		return refuse_op(op, "norm_d", "it takes x, w and g, and has a tree");
	if (!is_rows_of_tokens(op, 0) || !has_same_shape(&op->in[0], &op->in[2]) ||
	    !is_row_view(&op->in[2], 2) || !is_row_view(&op->out[0], 2) ||
	    !has_same_shape(&op->in[0], &op->out[0]))
		return refuse_op(op, "norm_d", "x, g and out must be f32 rows [T, H]");
	why = check_norm_sum(op, op->num);
	if (!why &&
	    !is_vector(&op->in[1], op->num[TESS_NORM_RUN] > 0 ? (int64_t)op->num[TESS_NORM_RUN]
	                                                      : op->in[0].shape[1]))
		why = "w must have an element for each of a run, in f32, bf16 or f16";
	return why ? refuse_op(op, "norm_d", why) : TESS_OK;
}

static tess_status check_norm_dw(const struct tess_op *op)
{
	const char *why;

	if (op->nin != 2 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS + TESS_NORM_NUMS)
		return refuse_op(op, "norm_dw", "it takes x and g, and has six numbers");
	if (!is_rows_of_tokens(op, 0) || !is_rows_of_tokens(op, 1) ||
	    !has_same_shape(&op->in[0], &op->in[1]))
		return refuse_op(op, "norm_dw", "x and g must be f32 rows [T, H]");
	why = check_norm_sum(op, op->num + TESS_TOKENS_NUMS);
	why = why ? why : cpu_check_token_sum(op, 1);
	if (!why && !cpu_is_token_sum(op, 1, 1, op->in[0].shape[1]))
		why = "the out must be f32 rows [1, H] or [nodes, 1, H]";
	return why ? refuse_op(op, "norm_dw", why) : TESS_OK;
}

/* ---- sums of heads and of sequences, gates */

static tess_status check_head_sum(const struct tess_op *op)
{
	double width, group;
	const char *why;
	int64_t runs;

	if (op->nin != 1 || op->nout != 1 || op->nnum != TESS_HEAD_SUM_NUMS ||
	    !is_rows_of_tokens(op, 0) || op->ntree != 1)
		return refuse_op(op, "head_sum",
		                 "it takes f32 rows, and has two numbers and a tree");
	width = op->num[TESS_HEAD_SUM_WIDTH], group = op->num[TESS_HEAD_SUM_GROUP];
	if (!is_integer(width, 1, 0x1p20) || !is_integer(group, 1, 0x1p20) ||
	    op->in[0].shape[1] % (int64_t)(width * group))
		return refuse_op(op, "head_sum",
		                 "runs of `group` heads of `width` columns must fill a row");
	runs = op->in[0].shape[1] / (int64_t)(width * group);
	why = check_trees(op, (int64_t)group, op->out[0].ndim == 3);
	if (!why && (!is_sum(op, &op->out[0], op->in[0].shape[0], runs * (int64_t)width) ||
	             (op->out[0].ndim == 3 && runs > 1)))
		why = "the out must be f32 rows [T, runs * width], or [nodes, T, width] of one run";
	return why ? refuse_op(op, "head_sum", why) : TESS_OK;
}

static tess_status check_sequence_sum(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	int64_t n, first;
	bool partial = y->ndim == 3;

	if (op->nin != 1 || op->nout != 1 || op->nnum != TESS_TOKENS_NUMS || !is_row_view(x, 2) ||
	    !is_integer(op->num[TESS_TOKENS_SEQUENCES], 0, UNITS_MAX) ||
	    !is_integer(op->num[TESS_TOKENS_FIRST], 0, UNITS_MAX))
		return refuse_op(op, "sequence_sum",
		                 "it takes f32 rows, one for each sequence, and has two numbers");
	n = (int64_t)op->num[TESS_TOKENS_SEQUENCES], first = (int64_t)op->num[TESS_TOKENS_FIRST];
	if (first + x->shape[0] > n || (!partial && x->shape[0] < n))
		return refuse_op(op, "sequence_sum",
		                 "the rows must be those of `sequences` from `first` on, all of "
		                 "them where the sum is finished");
	if (!is_row_view(y, partial ? 3 : 2) || y->shape[partial] != 1 ||
	    y->shape[partial + 1] != x->shape[1] ||
	    (partial &&
	     y->shape[0] != (CHECK_EXACT ? tess_node_count(n, first, first + x->shape[0]) : 1)))
		return refuse_op(op, "sequence_sum",
		                 "the out must be f32 rows [1, N] or [nodes, 1, N]");
	return TESS_OK;
}

static tess_status check_glu_d(const struct tess_op *op)
{
	bool gated;

	if (op->nin != 3 || op->nout != 2 || op->nnum != TESS_GLU_NUMS ||
	    !is_integer(op->num[TESS_GLU_ACTIVATION], TESS_SILU, TESS_TANH))
		return refuse_op(op, "glu_d",
		                 "it takes a, b or none, and g, gives da, and db or none, and has "
		                 "the activation, as a glu has it");
	gated = op->in[1].ndim || op->out[1].ndim;
	for (int i = 0; i < 5; i++) {
		const struct tess_view *v = i < 3 ? &op->in[i] : &op->out[i - 3];

		if ((i == 1 || i == 4) && !gated)
			continue;
		if (!is_row_view(v, 2) || !has_same_shape(v, &op->in[0]))
			return refuse_op(op, "glu_d",
			                 "all operands and outs must be f32 rows [T, N] of one "
			                 "shape");
	}
	return TESS_OK;
}

static tess_status check_attention_d(const struct tess_op *op)
{
	const struct tess_view *q = &op->in[0];
	tess_status st;

	if (op->nin < 6 || op->nout != 3 || op->nnum != TESS_ATTENTION_NUMS)
		return refuse_op(op, "attention_d",
		                 "it takes q, k, v, positions, slots and g, gives dq, dk and dv, "
		                 "and has the numbers of attention");
	st = cpu_check_query_heads(op);
	if (st)
		return st;
	if (!is_values_of_queries(op, &op->in[5]) ||
	    (op->in[2].ndim ? !is_values_of_queries(op, &op->out[2]) : op->out[2].ndim))
		return refuse_op(op, "attention_d",
		                 "g, and dv where there is v, must be f32 rows of the same tokens, "
		                 "`value` elements for each head of q");
	for (int i = 0; i < 2; i++)
		if (!is_row_view(&op->out[i], 2) || !has_same_shape(&op->out[i], q))
			return refuse_op(op, "attention_d",
			                 "dq and dk must be f32 rows of the shape of q");
	return TESS_OK;
}

static tess_status check_dropout(const struct tess_op *op)
{
	if (op->nin < 3 || op->nout != 1 || op->nnum != TESS_DROPOUT_NUMS ||
	    op->num[TESS_DROPOUT_RATE] == 0 ||
	    !is_dropout(op, op->num[TESS_DROPOUT_RATE], op->num[TESS_DROPOUT_SITE], 3) ||
	    !is_integer(op->num[TESS_DROPOUT_FIRST], 0, UINT32_MAX))
		return refuse_op(op, "dropout",
		                 "it takes x, positions, slots and the i32 [4] of the step, gives "
		                 "one out, and has a rate of more than 0 and less than 1, a site "
		                 "and the first column");
	if (!is_row_view(&op->in[0], 2) || !is_row_view(&op->out[0], 2) ||
	    !has_same_shape(&op->in[0], &op->out[0]) ||
	    !is_index_list(&op->in[1], op->in[0].shape[0]) ||
	    !is_index_list(&op->in[2], op->in[0].shape[0]))
		return refuse_op(
			op, "dropout",
			"x and out must be f32 rows of one shape, positions and slots i32, "
			"one for each row");
	return TESS_OK;
}

tess_status cpu_supports(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_LINEAR_DX:
		return check_linear_dx(op);
	case TESS_OP_LINEAR_DW:
		return check_linear_dw(op);
	case TESS_OP_HEAD_LINEAR_DW:
		return check_head_linear_dw(op);
	case TESS_OP_BIAS_DW:
		return check_bias_dw(op);
	case TESS_OP_EMBED_DW:
		return check_embed_dw(op);
	case TESS_OP_NORM_D:
		return check_norm_d(op);
	case TESS_OP_NORM_DW:
		return check_norm_dw(op);
	case TESS_OP_HEAD_SUM:
		return check_head_sum(op);
	case TESS_OP_SEQUENCE_SUM:
		return check_sequence_sum(op);
	case TESS_OP_GLU_D:
		return check_glu_d(op);
	case TESS_OP_ATTENTION_D:
		return check_attention_d(op);
	case TESS_OP_DROPOUT:
		return check_dropout(op);
	}
	return cpu_check_training(op);
}

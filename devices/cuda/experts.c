/* Launches ROUTE, EXPERTS, COMBINE and HEAD_LINEAR. */
#include "gpu.h"

#include <stddef.h>

enum { GRID_MAX = 65535, COLUMNS_PER_BLOCK = MULTIPLY_THREADS / WARP };
enum { SCRATCH_BYTES = 256 << 20 }; /* of results of experts: more rows are computed in parts */

/* The run of elements that a tree adds; false: they are several. */
static bool find_tree_run(const struct tess_op *op, int32_t tree, int64_t *at, int64_t *len)
{
	const struct tess_tree *t = &op->tree[tree];

	*at = op->term[t->first].bound[0];
	for (int32_t i = t->first, n = 0; i < t->first + t->terms; i++, n++) {
		const int64_t *bound = op->term[i].bound;

		if (n && bound[0] != *at + *len)
			return false;
		*len = bound[t->hi - t->lo] - *at;
	}
	return true;
}

const char *op_find_experts_limit(const struct tess_op *op)
{
	int64_t at, len;

	if (op->kind == TESS_OP_ROUTE)
		return op->in[0].shape[1] > EXPERTS_MAX ? "route: more than 1024 experts" : NULL;
	if (op->in[1].shape[1] > EXPERTS_MAX)
		return "experts: more than 1024 on a rank";
	if (op->in[2].dtype != op->in[3].dtype)
		return "experts: gate_up and down have different types";
	if (!find_tree_run(op, 0, &at, &len) || !find_tree_run(op, 1, &at, &len))
		return "experts: a sum over elements that do not follow each other";
	return NULL;
}

tess_status op_run_route(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *b = op->nin > 1 ? &op->in[1] : NULL;
	int32_t flags = (int32_t)op->num[TESS_ROUTE_FLAGS];
	struct route_args a = { .x = x->data,
		                .b = b ? b->data : NULL,
		                .y = op->out[0].data,
		                .x_pitch = x->stride[0],
		                .y_pitch = op->out[0].stride[0],
		                .b_stride = b ? b->stride[0] : 0,
		                .b_dtype = b ? b->dtype : 0,
		                .experts = (int32_t)x->shape[1],
		                .top = (int32_t)op->num[TESS_ROUTE_TOP],
		                .groups = (int32_t)op->num[TESS_ROUTE_GROUPS],
		                .kept = (int32_t)op->num[TESS_ROUTE_GROUPS_KEPT],
		                .sigmoid = flags & 1,
		                .normalize = flags & 2,
		                .eps = (float)op->num[TESS_ROUTE_EPS],
		                .scale = (float)op->num[TESS_ROUTE_SCALE] };

	return op_launch(
		g, op,
		(struct launch){ .kernel = KERNEL_route_experts,
	                         .blocks = { x->shape[0], 1, 1 },
	                         .threads = WARP,
	                         .shared = (3 * a.experts + 2 * a.groups) * (int32_t)sizeof(float),
	                         .args = &a });
}

static tess_status launch_combine(struct gpu *g, const struct tess_op *op,
                                  const struct experts_args *a)
{
	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_combine_experts,
	                                  .blocks = { tess_up(a->columns, MAP_THREADS),
	                                              a->rows < GRID_MAX ? a->rows : GRID_MAX, 1 },
	                                  .threads = MAP_THREADS,
	                                  .args = a });
}

tess_status op_run_combine(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->out[0];
	struct experts_args a = { .x = x->data,
		                  .weights = w->data,
		                  .y = y->data,
		                  .x_pitch = x->stride[0],
		                  .weights_pitch = w->stride[0],
		                  .y_pitch = y->stride[y->ndim - 2],
		                  .rows = x->shape[0],
		                  .columns = y->shape[y->ndim - 1],
		                  .experts = (int32_t)w->shape[1] };

	return launch_combine(g, op, &a);
}

static struct experts_args make_experts_args(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->out[0];
	struct experts_args a = { .x = x->data,
		                  .weights = w->data,
		                  .gate_up = op->in[2].data,
		                  .down = op->in[3].data,
		                  .y = y->data,
		                  .x_pitch = x->stride[0],
		                  .weights_pitch = w->stride[0],
		                  .y_pitch = y->stride[y->ndim - 2],
		                  .rows = x->shape[0],
		                  .columns = op->in[3].shape[1],
		                  .ffn = op->in[3].shape[2],
		                  .experts = (int32_t)w->shape[1],
		                  .slots = (int32_t)op->num[TESS_EXPERTS_SLOTS],
		                  .activation = (int32_t)op->num[TESS_EXPERTS_ACTIVATION],
		                  .dtype = op->in[2].dtype };

	for (int i = 0; i < 3; i++) {
		a.gate_up_stride[i] = op->in[2].stride[i];
		a.down_stride[i] = op->in[3].stride[i];
	}
	find_tree_run(op, 0, &a.k_first, &a.k);
	find_tree_run(op, 1, &a.f_first, &a.f);
	return a;
}

/* Rows whose lists and results fit in the scratch memory, if every row asks for all experts. */
static tess_status reserve_lists(struct gpu *g, struct experts_args *a, int64_t *rows)
{
	int64_t listed = a->experts * (a->ffn + a->columns + 2) * 4, begin = 4 * (a->experts + 1);
	char *memory;
	void *scratch;
	tess_status st;

	*rows = SCRATCH_BYTES / (listed + 1) + 1;
	*rows = *rows < a->rows ? *rows : a->rows;
	begin = tess_up(begin, 256) * 256;
	st = memory_get_scratch(g, (uint64_t)(begin + *rows * listed), &scratch);
	if (st)
		return st;
	memory = scratch;
	a->begin = scratch;
	a->hidden = (float *)(void *)(memory + begin);
	a->z = a->hidden + *rows * a->experts * a->ffn;
	a->row = (int32_t *)(a->z + *rows * a->experts * a->columns);
	a->place = a->row + *rows * a->experts;
	return TESS_OK;
}

tess_status op_run_experts(struct gpu *g, const struct tess_op *op)
{
	struct experts_args all = make_experts_args(op), a;
	struct launch list = { .kernel = KERNEL_list_expert_rows,
		               .blocks = { 1, 1, 1 },
		               .threads = (int32_t)tess_up(all.experts, WARP) * WARP,
		               .args = &a };
	struct launch up = { .kernel = KERNEL_multiply_gate_up,
		             .blocks = { tess_up(all.ffn, COLUMNS_PER_BLOCK), all.experts, 1 },
		             .threads = MULTIPLY_THREADS,
		             .args = &a };
	struct launch down = { .kernel = KERNEL_multiply_down,
		               .blocks = { tess_up(all.columns, COLUMNS_PER_BLOCK), all.experts,
		                           1 },
		               .threads = MULTIPLY_THREADS,
		               .args = &a };
	int64_t rows = 0;
	tess_status st = all.rows ? reserve_lists(g, &all, &rows) : TESS_OK;

	for (int64_t t = 0; t < all.rows && !st; t += rows) {
		a = all;
		a.rows = all.rows - t < rows ? all.rows - t : rows;
		a.x += t * a.x_pitch;
		a.weights += t * a.weights_pitch;
		a.y += t * a.y_pitch;
		st = op_launch(g, op, list);
		if (!st)
			st = op_launch(g, op, up);
		if (!st)
			st = op_launch(g, op, down);
		if (!st)
			st = launch_combine(g, op, &a);
	}
	return st;
}

tess_status op_run_head_linear(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->out[0];
	int64_t heads = w->shape[0], groups = tess_up(x->shape[0], MULTIPLY_ROWS);
	struct heads_args a = { .x = x->data,
		                .w = w->data,
		                .y = y->data,
		                .x_pitch = x->stride[0],
		                .y_pitch = y->stride[0],
		                .stride = { w->stride[0], w->stride[1], w->stride[2] },
		                .rows = x->shape[0],
		                .n = w->shape[1],
		                .k = w->shape[2],
		                .rest = x->shape[1] / heads - w->shape[2],
		                .dtype = w->dtype };

	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_multiply_heads,
	                                  .blocks = { tess_up(a.n, COLUMNS_PER_BLOCK), heads,
	                                              groups < GRID_MAX ? groups : GRID_MAX },
	                                  .threads = MULTIPLY_THREADS,
	                                  .args = &a });
}

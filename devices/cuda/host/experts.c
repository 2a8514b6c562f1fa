/* experts.c - launches ROUTE, EXPERTS, COMBINE and HEAD_LINEAR. */
#include "gpu.h"

enum { COLUMNS_PER_BLOCK = MULTIPLY_THREADS / WARP };
enum { SCRATCH_BYTES = 256 << 20 }; /* bytes of expert results: more rows are computed in parts */
enum { COUNTED_ROWS = 64 }; /* more are counted before they are listed */

bool op_find_run(const struct tess_op *op, int32_t from, int32_t to, int64_t *at, int64_t *len)
{
	*at = *len = 0;
	for (const struct tess_tree *t = op->tree + from; t < op->tree + to; t++) {
		for (int32_t i = t->first; i < t->first + t->terms; i++) {
			int64_t first = op->term[i].bound[0],
				n = op->term[i].bound[t->hi - t->lo] - first;

			if (n && *len && first != *at + *len)
				return false;
			*at = *len ? *at : first;
			*len += n;
		}
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
	if (!op_find_run(op, 0, 1, &at, &len) || !op_find_run(op, 1, 2, &at, &len))
		return "experts: a sum over elements that are not adjacent";
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
		                .group_max = flags & 4,
		                .eps = (float)op->num[TESS_ROUTE_EPS],
		                .scale = (float)op->num[TESS_ROUTE_SCALE] };

	return op_launch(
		g, op,
		(struct launch){ .kernel = KERNEL_route_experts,
	                         .blocks = { x->shape[0], 1, 1 },
	                         .threads = a.experts < ROUTE_THREADS
	                                            ? (int32_t)tess_up(a.experts, WARP) * WARP
	                                            : ROUTE_THREADS,
	                         .shared = (4 * a.experts + 2 * a.groups) * (int32_t)sizeof(float),
	                         .args = &a });
}

tess_status experts_launch_combine(struct gpu *g, const struct tess_op *op,
                                   const struct experts_args *from)
{
	struct experts_args a = *from;
	const float *x = a.place ? a.z : a.x;

	a.wide = is_row_aligned(x, a.columns, sizeof(float)) &&
	         is_row_aligned(x, a.place ? 0 : a.x_pitch, sizeof(float)) &&
	         is_row_aligned(a.y, a.y_pitch, sizeof(float));
	return op_launch_rows(g, op, KERNEL_combine_experts, a.rows, tess_up(a.columns, 4), &a);
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
		                  .experts = (int32_t)w->shape[1],
		                  .fault = g->fault };

	a.most = a.columns ? (int32_t)(x->shape[1] / a.columns) : a.experts;
	return experts_launch_combine(g, op, &a);
}

/* Returns how gate and up become one value; ffn: the number of each. */
static struct gates make_gates(const struct tess_op *op, int64_t ffn)
{
	int32_t at = op->kind == TESS_OP_EXPERTS_D ? 5 : 4;
	const struct tess_view *bias = op->nin > at ? &op->in[at] : NULL;
	bool alternate = op->num[TESS_EXPERTS_LIMIT] > 0;
	struct gates g = { .step = alternate ? 2 : 1,
		           .up = alternate ? 1 : ffn,
		           .activation = (int32_t)op->num[TESS_EXPERTS_ACTIVATION],
		           .limit = (float)op->num[TESS_EXPERTS_LIMIT],
		           .alpha = (float)op->num[TESS_EXPERTS_ALPHA] };

	if (bias) {
		g.bias = bias->data;
		g.bias_dtype = bias->dtype;
		g.bias_stride[0] = bias->stride[0];
		g.bias_stride[1] = bias->stride[1];
	}
	return g;
}

struct experts_args experts_make_args(struct gpu *g, const struct tess_op *op)
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
		                  .gates = make_gates(op, op->in[3].shape[2]),
		                  .dtype = op->in[2].dtype,
		                  .fault = g->fault };

	for (int i = 0; i < 3; i++) {
		a.gate_up_stride[i] = op->in[2].stride[i];
		a.down_stride[i] = op->in[3].stride[i];
	}
	a.most = a.slots ? a.slots : (int32_t)op->num[TESS_EXPERTS_TOP];
	a.most = a.most && a.most < a.experts ? a.most : a.experts;
	op_find_run(op, 0, 1, &a.k_first, &a.k);
	op_find_run(op, 1, 2, &a.f_first, &a.f);
	return a;
}

void *experts_take_scratch(struct carving *l, int64_t bytes)
{
	void *at = l->base ? l->base + l->used : NULL;

	l->used += tess_up(bytes, 256) * 256;
	return at;
}

int64_t experts_count_part(const struct experts_args *a, int64_t floats)
{
	int64_t rows = SCRATCH_BYTES / (a->most * floats * (int64_t)sizeof(float) + 1) + 1;

	return a->rows ? tess_up(a->rows, tess_up(a->rows, rows)) : 0; /* parts of equal size */
}

void experts_lay_out_lists(struct list_args *l, struct carving *at, bool places, bool slots)
{
	int64_t width = sizeof(int32_t);

	l->count = l->rows > COUNTED_ROWS ? experts_take_scratch(at, l->experts * width) : NULL;
	l->begin = experts_take_scratch(at, (l->experts + 1) * width);
	l->row = experts_take_scratch(at, l->capacity * width);
	l->expert = experts_take_scratch(at, l->capacity * width);
	l->slot = slots ? experts_take_scratch(at, l->capacity * width) : NULL;
	l->place = places ? experts_take_scratch(at, l->rows * l->experts * width) : NULL;
}

tess_status experts_launch_lists(struct gpu *g, const struct tess_op *op, const struct list_args *l)
{
	struct launch list = { .kernel = KERNEL_list_expert_rows,
		               .blocks = { l->experts, 1, 1 },
		               .threads = LIST_THREADS,
		               .args = l };
	struct launch count = list;
	tess_status st = TESS_OK;

	count.kernel = KERNEL_count_expert_rows;
	if (l->count)
		st = op_launch(g, op, count);
	return st ? st : op_launch(g, op, list);
}

/* Lays out the lists of parts of `rows` rows, and their results: hidden and z. */
static struct list_args carve_experts(struct experts_args *a, enum experts_path path, int64_t rows,
                                      struct carving *at)
{
	struct list_args l = { .pitch = a->weights_pitch,
		               .rows = rows,
		               .experts = a->experts,
		               .capacity = (int32_t)(rows * a->most),
		               .fault = a->fault };
	int64_t hidden = a->ffn * (path == EXPERTS_F32 ? 2 : 1), width = sizeof(float);

	experts_lay_out_lists(&l, at, true, false);
	a->hidden = experts_take_scratch(at, l.capacity * hidden * width);
	a->z = experts_take_scratch(at, l.capacity * a->columns * width);
	a->rounded = path == EXPERTS_BF16 ? experts_take_scratch(at, rows * a->k * 2) : NULL;
	a->begin = l.begin;
	a->row = l.row;
	a->owner = l.expert;
	a->expert = l.capacity < a->experts ? l.expert : NULL;
	a->place = l.place;
	return l;
}

static tess_status multiply_columns(struct gpu *g, const struct tess_op *op,
                                    const struct experts_args *a)
{
	int64_t blocks = a->expert ? a->rows * a->most : a->experts;
	struct launch up = { .kernel = KERNEL_multiply_gate_up,
		             .blocks = { tess_up(a->ffn, COLUMNS_PER_BLOCK), blocks, 1 },
		             .threads = MULTIPLY_THREADS,
		             .args = a };
	struct launch down = { .kernel = KERNEL_multiply_down,
		               .blocks = { tess_up(a->columns, COLUMNS_PER_BLOCK), blocks, 1 },
		               .threads = MULTIPLY_THREADS,
		               .args = a };
	tess_status st = op_launch(g, op, up);

	return st ? st : op_launch(g, op, down);
}

/* Computes each row separately, without lists. */
static tess_status multiply_each_row(struct gpu *g, const struct tess_op *op,
                                     struct experts_args *a)
{
	int64_t pairs = a->rows * a->most;
	struct launch up = { .kernel = KERNEL_multiply_row_gates,
		             .blocks = { pairs, tess_up(a->ffn, COLUMNS_PER_BLOCK), 1 },
		             .threads = MULTIPLY_THREADS,
		             .args = a };
	struct launch down = { .kernel = KERNEL_add_row_experts,
		               .blocks = { tess_up(a->columns, 4), a->rows, 1 },
		               .threads = MULTIPLY_THREADS,
		               .args = a };
	void *hidden;
	tess_status st =
		memory_get_scratch(g, (uint64_t)(pairs * a->ffn) * sizeof *a->hidden, &hidden);

	a->hidden = hidden;
	if (!st)
		st = op_launch(g, op, up);
	return st ? st : op_launch(g, op, down);
}

tess_status op_run_experts(struct gpu *g, const struct tess_op *op)
{
	static tess_status (*const multiply[])(struct gpu * g, const struct tess_op *op,
	                                       const struct experts_args *a) = {
		[EXPERTS_FEW] = multiply_columns,
		[EXPERTS_F32] = experts_multiply_f32,
		[EXPERTS_BF16] = experts_multiply_bf16,
	};
	struct experts_args all = experts_make_args(g, op), a;
	enum experts_path path = experts_choose_path(g, &all);
	int64_t rows = experts_count_part(&all, 2 * all.ffn + all.columns);
	struct carving at = { 0 };
	struct list_args list;
	void *scratch = NULL;
	tess_status st;

	if (!rows)
		return TESS_OK;
	if (path == EXPERTS_ROWS)
		return multiply_each_row(g, op, &all);
	carve_experts(&all, path, rows, &at);
	st = memory_get_scratch(g, (uint64_t)at.used, &scratch);
	at = (struct carving){ scratch, 0 };
	list = carve_experts(&all, path, rows, &at);
	for (int64_t t = 0; t < all.rows && !st; t += rows) {
		a = all;
		a.rows = list.rows = all.rows - t < rows ? all.rows - t : rows;
		a.x += t * a.x_pitch;
		list.weights = a.weights += t * a.weights_pitch;
		a.y += t * a.y_pitch;
		st = experts_launch_lists(g, op, &list);
		if (!st)
			st = multiply[path](g, op, &a);
		if (!st)
			st = experts_launch_combine(g, op, &a);
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
	bool many = a.rows > MULTIPLY_ROWS;
	struct launch l = { .kernel = KERNEL_multiply_heads,
		            .blocks = { many ? 1 : tess_up(a.n, COLUMNS_PER_BLOCK), heads,
		                        groups < GRID_MAX ? groups : GRID_MAX },
		            .threads = MULTIPLY_THREADS,
		            .args = &a };
	tess_status st = TESS_OK;

	a.columns = many ? 0 : a.n;
	if (a.rest || !many)
		st = op_launch(g, op, l);
	return st || !many ? st : experts_multiply_heads(g, op, (int32_t)heads, &a);
}

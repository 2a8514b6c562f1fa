/*
 * experts_d.c - launches the backward of ROUTE, EXPERTS, COMBINE and HEAD_LINEAR, and the balancing
 * loss.
 */
#include "gpu.h"

enum { TILE = 64, BALANCE_BLOCKS = 1024 };

/*
 * Finds the elements of gate in a tree over [gate | up]; those of up must be equal. With a limit
 * gate and up alternate.
 */
static bool find_gate_run(const struct tess_op *op, int32_t tree, int64_t ffn, int64_t *at,
                          int64_t *len)
{
	const struct tess_tree *t = &op->tree[tree];
	const struct tess_term *term = &op->term[t->first];
	int64_t units = t->hi - t->lo;

	*at = 0;
	*len = ffn;
	if (op->num[TESS_EXPERTS_LIMIT] > 0) {
		if (!op_find_run(op, tree, tree + 1, at, len) || *at % 2 || *len % 2)
			return false;
		*at /= 2;
		*len /= 2;
		return true;
	}
	if (t->terms != 2)
		return op_find_run(op, tree, tree + 1, at, len) && *at == 0 && *len == 2 * ffn &&
		       (*len = ffn);
	*at = term[0].bound[0];
	*len = term[0].bound[units] - *at;
	return term[1].bound[0] == *at + ffn && term[1].bound[units] == *at + ffn + *len;
}

const char *op_find_experts_d_limit(const struct tess_op *op)
{
	int64_t at, len;

	if (op->kind != TESS_OP_HEAD_LINEAR_DW &&
	    op->in[op->kind == TESS_OP_EXPERTS_D || op->kind == TESS_OP_EXPERTS_DW].shape[1] >
	            EXPERTS_MAX)
		return "more than 1024 experts";
	if (op->kind == TESS_OP_ROUTE_D || op->kind == TESS_OP_BALANCE_D)
		return NULL;
	if (op->kind != TESS_OP_EXPERTS_D)
		return op_find_run(op, 0, op->ntree, &at, &len)
		               ? NULL
		               : "a sum over tokens that are not adjacent";
	if (op->in[2].dtype != op->in[3].dtype)
		return "experts_d: gate_up and down have different types";
	if (!op_find_run(op, 0, 1, &at, &len) || !op_find_run(op, 1, 2, &at, &len) ||
	    !find_gate_run(op, 2, op->in[3].shape[2], &at, &len))
		return "experts_d: a sum over elements that are not adjacent";
	return NULL;
}

/* ---- routes ---------------------------------------------------------------------------------- */

/* Launches a kernel whose warps have rows, with n floats for each expert. */
static tess_status launch_route_rows(struct gpu *g, const struct tess_op *op, int32_t kernel,
                                     int64_t blocks, int32_t n, const struct derive_args *a)
{
	return op_launch(g, op,
	                 (struct launch){ .kernel = kernel,
	                                  .blocks = { blocks, 1, 1 },
	                                  .threads = WARP,
	                                  .shared = n * a->experts * (int32_t)sizeof(float),
	                                  .args = a });
}

tess_status op_run_route_d(struct gpu *g, const struct tess_op *op)
{
	int32_t flags = (int32_t)op->num[TESS_ROUTE_FLAGS];
	struct derive_args a = { .x = op->in[0].data,
		                 .weights = op->in[1].data,
		                 .g = op->in[2].data,
		                 .y = op->out[0].data,
		                 .x_pitch = op->in[0].stride[0],
		                 .weights_pitch = op->in[1].stride[0],
		                 .g_pitch = op->in[2].stride[0],
		                 .y_pitch = op->out[0].stride[0],
		                 .experts = (int32_t)op->in[0].shape[1],
		                 .sigmoid = flags & 1,
		                 .normalize = flags & 2,
		                 .eps = (float)op->num[TESS_ROUTE_EPS],
		                 .scale = (float)op->num[TESS_ROUTE_SCALE] };

	return launch_route_rows(g, op, KERNEL_derive_route, op->in[0].shape[0], 2, &a);
}

/* Runs one mixture after another: sums of 64 rows each, then the sum of these. */
tess_status op_run_balance(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *y = &op->out[0];
	int64_t n = op->in[0].shape[1], first, rows, blocks;
	void *scratch = NULL;
	tess_status st;

	op_find_run(op, 0, op->ntree, &first, &rows);
	blocks = tess_up(rows, BALANCE_ROWS);
	st = memory_get_scratch(g, (uint64_t)(blocks * 2 * n + 1) * sizeof(float), &scratch);
	for (int32_t l = 0; l < op->nin && !st; l += 2) {
		const struct tess_view *x = &op->in[l], *w = &op->in[l + 1];
		struct derive_args sum = { .x = get_gpu_row(x, first),
			                   .weights = get_gpu_row(w, first),
			                   .y = scratch,
			                   .x_pitch = x->stride[0],
			                   .weights_pitch = w->stride[0],
			                   .rows = rows,
			                   .experts = (int32_t)n };
		struct derive_args add = {
			.x = scratch, .y = get_gpu_row(y, l), .rows = blocks, .experts = (int32_t)n
		};

		st = launch_route_rows(g, op, KERNEL_sum_balance, blocks, 3, &sum);
		if (!st)
			st = op_launch(
				g, op,
				(struct launch){ .kernel = KERNEL_add_balance,
			                         .blocks = { tess_up(2 * n, MAP_THREADS), 1, 1 },
			                         .threads = MAP_THREADS,
			                         .args = &add });
	}
	return st;
}

tess_status op_run_balance_d(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *totals = &op->in[1];
	int64_t n = x->shape[1], rows = x->shape[0];
	struct derive_args a = { .x = x->data,
		                 .g = totals->data,
		                 .y = op->out[0].data,
		                 .x_pitch = x->stride[0],
		                 .g_pitch = totals->stride[0],
		                 .y_pitch = op->out[0].stride[0],
		                 .rows = rows,
		                 .columns = totals->shape[0],
		                 .experts = (int32_t)n,
		                 .eps = (float)op->num[TESS_BALANCE_TOP],
		                 .scale = (float)op->num[TESS_BALANCE_FACTOR] * (float)n };

	return launch_route_rows(g, op, KERNEL_derive_balance,
	                         rows < BALANCE_BLOCKS ? rows : BALANCE_BLOCKS, 2, &a);
}

tess_status op_run_combine_d(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->in[2];
	struct derive_args a = { .x = x->data,
		                 .weights = w->data,
		                 .g = y->data,
		                 .y = op->out[0].data,
		                 .fault = g->fault,
		                 .x_pitch = x->stride[0],
		                 .weights_pitch = w->stride[0],
		                 .g_pitch = y->stride[0],
		                 .y_pitch = op->out[0].stride[0],
		                 .rows = w->shape[0],
		                 .columns = y->shape[1],
		                 .experts = (int32_t)w->shape[1],
		                 .most = (int32_t)(x->shape[1] / y->shape[1]) };

	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_derive_weights,
	                                  .blocks = { tess_up(a.experts, MULTIPLY_THREADS / WARP),
	                                              a.rows < GRID_MAX ? a.rows : GRID_MAX, 1 },
	                                  .threads = MULTIPLY_THREADS,
	                                  .args = &a });
}

/* ---- experts --------------------------------------------------------------------------------- */

struct derived { /* a part of the rows of EXPERTS_D */
	struct experts_args a; /* hidden: [listed rows][2F], [a | b]; z: [listed rows][F], e */
	struct list_args list;
	float *u; /* [listed rows][K] */
};

static void carve_derived(struct derived *d, int64_t rows, int64_t k, struct carving *at)
{
	int64_t width = sizeof(float);

	d->list = (struct list_args){ .pitch = d->a.weights_pitch,
		                      .rows = rows,
		                      .experts = d->a.experts,
		                      .capacity = (int32_t)(rows * d->a.most),
		                      .fault = d->a.fault };
	experts_lay_out_lists(&d->list, at, true, false);
	d->a.hidden = experts_take_scratch(at, d->list.capacity * 2 * d->a.ffn * width);
	d->a.z = experts_take_scratch(at, d->list.capacity * d->a.ffn * width);
	d->u = experts_take_scratch(at, d->list.capacity * k * width);
	d->a.begin = d->list.begin;
	d->a.row = d->list.row;
	d->a.place = d->list.place;
}

/*
 * Computes y = x w' of the listed rows, for weights of these strides; row NULL: x has the listed
 * rows.
 */
static tess_status multiply_listed(struct gpu *g, const struct tess_op *op, const struct derived *d,
                                   struct group_args a)
{
	a.begin = d->a.begin;
	a.dtype = d->a.dtype;
	a.rows = d->a.rows;
	a.y_pitch = a.n;
	return experts_launch_groups(g, op, d->a.experts, &a);
}

/* Computes [a | b] = x gate_up' and e = g down of the rows from t on. */
static tess_status multiply_forward(struct gpu *g, const struct tess_op *op,
                                    const struct derived *d, int64_t t)
{
	const struct experts_args *a = &d->a;
	const struct tess_view *up = &op->in[2], *down = &op->in[3], *y = &op->in[4];
	int64_t width = (int64_t)tess_width(a->dtype), first, n;
	tess_status st;

	op_find_run(op, 1, 2, &first, &n);
	st = multiply_listed(
		g, op, d,
		(struct group_args){ .x = get_gpu_row(&op->in[0], t) + a->k_first,
	                             .w = (const char *)up->data +
	                                  a->k_first * up->stride[2] * width,
	                             .y = a->hidden,
	                             .row = a->row,
	                             .x_pitch = a->x_pitch,
	                             .w_stride = { up->stride[0], up->stride[1], up->stride[2] },
	                             .n = 2 * a->ffn,
	                             .k = a->k });
	if (st)
		return st;
	return multiply_listed(
		g, op, d,
		(struct group_args){
			.x = get_gpu_row(y, t) + first,
			.w = (const char *)down->data + first * down->stride[1] * width,
			.y = a->z,
			.row = a->row,
			.x_pitch = y->stride[0],
			.w_stride = { down->stride[0], down->stride[2], down->stride[1] },
			.n = a->ffn,
			.k = n });
}

/* Turns [a | b] and e into [da | db | h], and u = [da | db] gate_up: the slots of the outputs. */
static tess_status derive_part(struct gpu *g, const struct tess_op *op, const struct derived *d,
                               int64_t t)
{
	const struct tess_view *up = &op->in[2], *mid = &op->out[1];
	struct experts_args a = d->a, slots = d->a;
	tess_status st;

	a.y = get_gpu_row(mid, t);
	a.y_pitch = mid->stride[0];
	slots.weights = a.weights = get_gpu_row(&op->in[1], t);
	slots.y = get_gpu_row(&op->out[0], t);
	slots.columns = op->in[0].shape[1];
	slots.z = d->u;
	st = op_launch_rows(g, op, KERNEL_derive_experts, a.rows, a.ffn, &a);
	if (!st)
		st = multiply_listed(
			g, op, d,
			(struct group_args){
				.x = a.hidden,
				.w = up->data,
				.y = d->u,
				.x_pitch = 2 * a.ffn,
				.w_stride = { up->stride[0], up->stride[2], up->stride[1] },
				.n = slots.columns,
				.k = 2 * a.ffn });
	return st ? st : experts_launch_combine(g, op, &slots);
}

tess_status op_run_experts_d(struct gpu *g, const struct tess_op *op)
{
	struct derived d = { .a = experts_make_args(g, op) };
	int64_t all = d.a.rows, k = op->in[0].shape[1], rows;
	struct carving at = { 0 };
	void *scratch = NULL;
	tess_status st;

	find_gate_run(op, 2, d.a.ffn, &d.a.f_first, &d.a.f);
	rows = experts_count_part(&d.a, 3 * d.a.ffn + k);
	if (!rows)
		return TESS_OK;
	carve_derived(&d, rows, k, &at);
	st = memory_get_scratch(g, (uint64_t)at.used, &scratch);
	at = (struct carving){ scratch, 0 };
	carve_derived(&d, rows, k, &at);
	for (int64_t t = 0; t < all && !st; t += rows) {
		d.a.rows = d.list.rows = all - t < rows ? all - t : rows;
		d.list.weights = get_gpu_row(&op->in[1], t);
		st = experts_launch_lists(g, op, &d.list);
		if (!st)
			st = multiply_forward(g, op, &d, t);
		if (!st)
			st = derive_part(g, op, &d, t);
	}
	return st;
}

/* ---- sums over tokens ------------------------------------------------------------------------ */

/* Sums over rows to y, whose last three axes are [groups, n, k]. */
static tess_status launch_row_sum(struct gpu *g, const struct tess_op *op,
                                  const struct tess_view *y, struct row_sum_args *a)
{
	int32_t axis = y->ndim - 3;

	a->y = y->data;
	for (int i = 0; i < 3; i++)
		a->y_stride[i] = y->stride[axis + i];
	a->g.n = y->shape[axis + 1];
	a->x.n = y->shape[axis + 2];
	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_sum_row_products,
	                                  .blocks = { tess_up(a->x.n, TILE), tess_up(a->g.n, TILE),
	                                              y->shape[axis] },
	                                  .threads = MULTIPLY_THREADS,
	                                  .shared = GROUP_BYTES,
	                                  .args = a });
}

tess_status op_run_head_linear_dw(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->in[1], *d = &op->out[0];
	int64_t heads = d->shape[d->ndim - 3], first;
	struct row_sum_args a = { .g = { .pitch = y->stride[0], .step = y->shape[1] / heads },
		                  .x = { .pitch = x->stride[0], .step = x->shape[1] / heads } };

	op_find_run(op, 0, op->ntree, &first, &a.rows);
	a.g.data = get_gpu_row(y, first);
	a.x.data = get_gpu_row(x, first);
	return launch_row_sum(g, op, d, &a);
}

tess_status op_run_experts_dw(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->in[2], *mid = &op->in[3];
	int64_t f = op->out[1].shape[op->out[1].ndim - 1], slots = mid->shape[1] / (3 * f), first;
	struct list_args list = { .pitch = w->stride[0],
		                  .experts = (int32_t)w->shape[1],
		                  .fault = g->fault };
	struct row_sum_args gate_up, down;
	struct carving at = { 0 };
	void *scratch = NULL;
	tess_status st;

	op_find_run(op, 0, op->ntree, &first, &list.rows);
	list.capacity = (int32_t)(list.rows * slots);
	list.weights = get_gpu_row(w, first);
	experts_lay_out_lists(&list, &at, false, true);
	st = memory_get_scratch(g, (uint64_t)at.used, &scratch);
	at = (struct carving){ scratch, 0 };
	experts_lay_out_lists(&list, &at, false, true);
	gate_up = (struct row_sum_args){ .weights = list.weights,
		                         .weights_pitch = list.pitch,
		                         .begin = list.begin,
		                         .row = list.row,
		                         .slot = list.slot };
	gate_up.g = (struct row_side){ .data = get_gpu_row(mid, first),
		                       .pitch = mid->stride[0],
		                       .slot = 3 * f,
		                       .weighted = 1 };
	down = gate_up;
	gate_up.x = (struct row_side){ .data = get_gpu_row(x, first), .pitch = x->stride[0] };
	down.x = gate_up.g;
	down.x.data += 2 * f;
	down.x.weighted = 0;
	down.g = (struct row_side){ .data = get_gpu_row(y, first),
		                    .pitch = y->stride[0],
		                    .weighted = 1 };
	if (!st)
		st = experts_launch_lists(g, op, &list);
	if (!st)
		st = launch_row_sum(g, op, &op->out[0], &gate_up);
	if (!st)
		st = launch_row_sum(g, op, &op->out[1], &down);
	gate_up.x = (struct row_side){ 0 };
	return st || op->nout < 3 ? st : launch_row_sum(g, op, &op->out[2], &gate_up);
}

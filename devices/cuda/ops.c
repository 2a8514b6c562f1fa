/* Launches the kernels of an op: those over rows of activations are here. */
#include "gpu.h"

#include <stdio.h>
#include <string.h>

enum { GRID_MAX = 65535 }; /* blocks in y and z */

tess_status op_launch(struct gpu *g, const struct tess_op *op, struct launch l)
{
	void *arguments[] = { (void *)(uintptr_t)l.args };

	for (int i = 0; i < 3; i++)
		if (!l.blocks[i])
			return TESS_OK;
	return CUDA_CALL(op->where, cuLaunchKernel, g->kernel[l.kernel], (unsigned)l.blocks[0],
	                 (unsigned)l.blocks[1], (unsigned)l.blocks[2], (unsigned)l.threads, 1, 1,
	                 (unsigned)l.shared, op->stream, arguments, NULL);
}

/* A kernel with a thread for each of so many columns, whose blocks walk down the rows. */
static tess_status launch_over_rows(struct gpu *g, const struct tess_op *op, int32_t kernel,
                                    int64_t rows, int64_t columns, const void *args)
{
	return op_launch(g, op,
	                 (struct launch){ .kernel = kernel,
	                                  .blocks = { tess_up(columns, MAP_THREADS),
	                                              rows < GRID_MAX ? rows : GRID_MAX, 1 },
	                                  .threads = MAP_THREADS,
	                                  .args = args });
}

static tess_status launch_map(struct gpu *g, const struct tess_op *op, int32_t kind)
{
	const struct tess_view *x = &op->in[0], *b = op->nin > 1 ? &op->in[1] : NULL;
	struct map_args a = { .a = x->data,
		              .b = b ? b->data : NULL,
		              .y = op->out[0].data,
		              .a_pitch = x->stride[0],
		              .b_pitch = b ? b->stride[0] : 0,
		              .y_pitch = op->out[0].stride[0],
		              .rows = x->shape[0],
		              .columns = x->shape[1],
		              .kind = kind,
		              .b_dtype = b ? b->dtype : 0 };

	if (kind == MAP_GLU)
		a.activation = (int32_t)op->num[TESS_GLU_ACTIVATION];
	if (kind == MAP_SCALE)
		a.factor = (float)op->num[TESS_SCALE_FACTOR];
	a.wide = is_row_aligned(a.a, a.a_pitch, sizeof(float)) &&
	         is_row_aligned(a.y, a.y_pitch, sizeof(float)) &&
	         (!b || kind == MAP_BIAS || is_row_aligned(a.b, a.b_pitch, sizeof(float)));
	return launch_over_rows(g, op, KERNEL_map_elements, a.rows, tess_up(a.columns, 4), &a);
}

static tess_status launch_rope(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *table = &op->in[2];
	struct rope_args a = { .x = x->data,
		               .table = table->data,
		               .y = op->out[0].data,
		               .position = op->in[1].data,
		               .fault = g->fault,
		               .x_pitch = x->stride[0],
		               .y_pitch = op->out[0].stride[0],
		               .table_pitch = table->stride[0],
		               .positions = table->shape[0],
		               .rows = x->shape[0],
		               .columns = x->shape[1],
		               .each = (int64_t)op->num[TESS_ROPE_HEAD],
		               .first = (int64_t)op->num[TESS_ROPE_FIRST],
		               .width = (int64_t)op->num[TESS_ROPE_WIDTH],
		               .interleaved = op->num[TESS_ROPE_INTERLEAVED] != 0 };

	return launch_over_rows(g, op, KERNEL_rotate_pairs, a.rows,
	                        a.columns / a.each * (a.each - a.width / 2), &a);
}

static tess_status launch_norm(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1];
	const struct tess_view *b = op->nin > 2 ? &op->in[2] : NULL;
	int64_t columns = x->shape[1], threads;
	struct norm_args a = { .x = x->data,
		               .w = w->data,
		               .b = b ? b->data : NULL,
		               .y = op->out[0].data,
		               .x_pitch = x->stride[0],
		               .y_pitch = op->out[0].stride[0],
		               .w_stride = w->stride[0],
		               .b_stride = b ? b->stride[0] : 0,
		               .rows = x->shape[0],
		               .each = (int64_t)op->num[TESS_NORM_RUN],
		               .eps = (float)op->num[TESS_NORM_EPS],
		               .offset = (float)op->num[TESS_NORM_OFFSET],
		               .layer = op->num[TESS_NORM_KIND] == TESS_LAYER,
		               .w_dtype = w->dtype,
		               .b_dtype = b ? b->dtype : 0 };

	a.each = a.each ? a.each : columns;
	a.runs = columns / a.each;
	threads = tess_up(tess_up(a.each, 4), WARP) * WARP; /* about 4 elements each */
	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_normalize_runs,
	                                  .blocks = { a.rows * a.runs, 1, 1 },
	                                  .threads = threads < NORM_THREADS_MAX ? (int32_t)threads
	                                                                        : NORM_THREADS_MAX,
	                                  .args = &a });
}

/* In a Partial only the ids of this rank's own units give a row; they are one run. */
static tess_status launch_embed(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *table = &op->in[1], *y = &op->out[0];
	struct embed_args a = { .id = op->in[0].data,
		                .table = table->data,
		                .y = y->data,
		                .stride = { table->stride[0], table->stride[1] },
		                .y_pitch = y->stride[y->ndim - 2],
		                .rows = op->in[0].shape[0],
		                .columns = table->shape[1],
		                .first = (int64_t)op->num[TESS_EMBED_FIRST],
		                .entries = table->shape[0],
		                .hi = table->shape[0],
		                .dtype = table->dtype };

	if (y->ndim == 3) {
		const struct tess_tree *t = &op->tree[0];

		a.lo = op->term[t->first].bound[0];
		a.hi = op->term[t->first].bound[t->hi - t->lo];
	}
	return launch_over_rows(g, op, KERNEL_look_up_rows, a.rows, a.columns, &a);
}

static tess_status launch_select_rows(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	struct gather_args a = { .x = x->data,
		                 .y = y->data,
		                 .row = op->in[1].data,
		                 .fault = g->fault,
		                 .x_pitch = x->stride[0],
		                 .y_pitch = y->stride[0],
		                 .x_rows = x->shape[0],
		                 .rows = y->shape[0],
		                 .columns = y->shape[1] };

	return launch_over_rows(g, op, KERNEL_gather_rows, a.rows, a.columns, &a);
}

/* Up to 3 axes; the last, of which a block has neighbours, is the one with the smallest steps. */
static tess_status launch_copy(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	struct copy_args a = { .from = x->data,
		               .to = y->data,
		               .n = { 1, 1, 1 },
		               .width = (int32_t)tess_width(x->dtype) };

	for (int i = 0, axis = 3 - x->ndim; i < x->ndim; i++, axis++) {
		a.n[axis] = x->shape[i];
		a.from_step[axis] = x->stride[i] * a.width;
		a.to_step[axis] = y->stride[i] * a.width;
	}
	return launch_over_rows(g, op, KERNEL_copy_elements, a.n[0] * a.n[1], a.n[2], &a);
}

static tess_status launch_argmax(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	struct argmax_args a = { .x = x->data,
		                 .y = y->data,
		                 .x_pitch = x->stride[0],
		                 .y_pitch = y->stride[0],
		                 .rows = x->shape[0],
		                 .columns = x->shape[1] };

	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_find_largest,
	                                  .blocks = { a.rows, 1, 1 },
	                                  .threads = ARGMAX_THREADS,
	                                  .args = &a });
}

/* The device's own op, which check.c of the CPU does not know. */
static tess_status check_argmax(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];

	if (op->nin == 1 && op->nout == 1 && x->ndim == 2 && x->dtype == TESS_F32 &&
	    x->stride[1] == 1 && y->ndim == 2 && y->dtype == TESS_I32 && y->stride[1] == 1 &&
	    y->shape[0] == x->shape[0] && y->shape[1] == 4 && x->shape[1] > 0 &&
	    x->shape[1] <= INT32_MAX - ARGMAX_THREADS)
		return TESS_OK;
	return cuda_host->fail(TESS_EINVAL,
	                       "%s: cuda: argmax: x must be f32 rows [T, V], and the out i32 "
	                       "[T, 4]",
	                       op->where);
}

static tess_status run_kind(struct gpu *g, const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_LINEAR:
		return op_run_linear(g, op);
	case TESS_OP_EMBED:
		return launch_embed(g, op);
	case TESS_OP_NORM:
		return launch_norm(g, op);
	case TESS_OP_BIAS:
		return launch_map(g, op, MAP_BIAS);
	case TESS_OP_ROPE:
		return launch_rope(g, op);
	case TESS_OP_ATTENTION:
		return op_run_attention(g, op);
	case TESS_OP_GLU:
		return launch_map(g, op, MAP_GLU);
	case TESS_OP_ADD:
		return launch_map(g, op, MAP_ADD);
	case TESS_OP_SCALE:
		return launch_map(g, op, MAP_SCALE);
	case TESS_OP_COPY:
		return launch_copy(g, op);
	case TESS_OP_SELECT_ROWS:
		return launch_select_rows(g, op);
	case TESS_OP_HEAD_LINEAR:
		return op_run_head_linear(g, op);
	case TESS_OP_ROUTE:
		return op_run_route(g, op);
	case TESS_OP_EXPERTS:
		return op_run_experts(g, op);
	case TESS_OP_COMBINE:
		return op_run_combine(g, op);
	case TESS_OP_ARGMAX:
		return launch_argmax(g, op);
	default:
		return op_check(op);
	}
}

tess_status op_run(void *self, const struct tess_op *op)
{
	struct gpu *g = self;
	tess_status st = CUDA_CALL(op->where, cuCtxSetCurrent, g->context);

	snprintf(g->where, sizeof g->where, "%s", op->where ? op->where : "an op");
	if (!st)
		st = run_kind(g, op);
	if (!st && g->sync_ops && !g->capturing)
		st = CUDA_CALL(g->where, cuStreamSynchronize, op->stream);
	return st;
}

/* What this device cannot do of what the CPU's can. */
static const char *find_limit(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_ROUTE:
	case TESS_OP_EXPERTS:
		return op_find_experts_limit(op);
	case TESS_OP_ATTENTION:
		if (op->num[TESS_ATTENTION_HEAD] > HEAD_MAX ||
		    op->num[TESS_ATTENTION_VALUE] > VALUE_MAX)
			return "attention: keys have at most 1024 elements, and values 512";
		return NULL;
	default:
		return NULL;
	}
}

tess_status op_check(const struct tess_op *op)
{
	tess_status st = op->kind == TESS_OP_ARGMAX ? check_argmax(op) : cpu_check(op);
	const char *limit = st ? NULL : find_limit(op);

	return limit ? cuda_host->fail(TESS_ENOTSUP, "%s: cuda: %s", op->where, limit) : st;
}

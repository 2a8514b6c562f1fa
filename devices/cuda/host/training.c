/*
 * training.c - launches the ops of training over rows: the backward, sums over tokens, dropout, the
 * loss, the optimizer and the norm of gradients. A Partial is the sum of this rank's units.
 */
#include "gpu.h"

#include <math.h>
#include <tessera/util/random.h>

enum { COLUMN_ROWS = 64 }; /* rows of a block of add_columns */
/* Minimum elements of a thread; maximum blocks, unless threads would have too many elements. */
enum { SQUARE_EACH = 64, SQUARE_BLOCKS = 1024 };

static int64_t get_pitch(const struct tess_view *v)
{
	return v->stride[v->ndim - 2];
}

const char *op_find_training_limit(const struct tess_op *op)
{
	bool tokens = op->kind != TESS_OP_HEAD_SUM && op->kind != TESS_OP_LOSS_SUM &&
	              op->kind != TESS_OP_LOSS_PICK;
	int64_t at, len;

	if (!op_find_run(op, op->kind == TESS_OP_NORM_DW, op->ntree, &at, &len))
		return "a sum over elements that are not adjacent";
	return tokens && len != op->in[0].shape[0] ? "a sum over some of the tokens" : NULL;
}

/* ---- the backward */

tess_status op_run_glu_d(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *b = &op->in[1], *d = &op->in[2];
	bool gated = b->ndim > 0;
	struct glu_d_args a = { .a = x->data,
		                .b = gated ? b->data : NULL,
		                .g = d->data,
		                .da = op->out[0].data,
		                .db = gated ? op->out[1].data : NULL,
		                .da_half = op->out[0].dtype == TESS_BF16,
		                .db_half = op->out[1].dtype == TESS_BF16,
		                .a_pitch = x->stride[0],
		                .b_pitch = gated ? b->stride[0] : 0,
		                .g_pitch = d->stride[0],
		                .da_pitch = op->out[0].stride[0],
		                .db_pitch = gated ? op->out[1].stride[0] : 0,
		                .rows = x->shape[0],
		                .columns = x->shape[1],
		                .activation = (int32_t)op->num[TESS_GLU_ACTIVATION] };

	a.wide = is_row_aligned(a.a, a.a_pitch, sizeof(float)) &&
	         is_row_aligned(a.g, a.g_pitch, sizeof(float)) &&
	         is_row_aligned(a.da, a.da_pitch, sizeof(float)) &&
	         is_row_aligned(a.b, a.b_pitch, sizeof(float)) &&
	         is_row_aligned(a.db, a.db_pitch, sizeof(float));
	return op_launch_rows(g, op, KERNEL_derive_gates, a.rows, tess_up(a.columns, 4), &a);
}

tess_status op_run_norm_d(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *d = &op->in[2];
	struct norm_d_args a = { .norm = op_make_norm_args(op, op->num),
		                 .g = d->data,
		                 .g_pitch = d->stride[0] };

	op_set_norm_weight(&op->in[1], &a.norm);
	a.norm.held = a.norm.held && is_row_aligned(a.g, a.g_pitch, sizeof(float)) &&
	              is_row_aligned(a.norm.y, a.norm.y_pitch, sizeof(float));
	return op_launch_norm(g, op, a.norm.held ? KERNEL_derive_runs : KERNEL_derive_long_runs,
	                      &a.norm, &a);
}

tess_status op_run_row_dot(struct gpu *g, const struct tess_op *op)
{
	struct row_dot_args a = { .a = op->in[0].data,
		                  .b = op->in[1].data,
		                  .y = op->out[0].data,
		                  .a_pitch = op->in[0].stride[0],
		                  .b_pitch = op->in[1].stride[0],
		                  .y_pitch = op->out[0].stride[0],
		                  .columns = op->in[0].shape[1] };
	struct launch l = { .kernel = KERNEL_multiply_runs,
		            .threads = NORM_THREADS_MAX,
		            .blocks = { op->in[0].shape[0], 1, 1 },
		            .args = &a };

	return op_launch(g, op, l);
}

tess_status op_run_head_sum(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	struct head_sum_args a = { .x = x->data,
		                   .y = y->data,
		                   .x_pitch = x->stride[0],
		                   .y_pitch = get_pitch(y),
		                   .rows = x->shape[0],
		                   .columns = y->shape[y->ndim - 1],
		                   .width = (int64_t)op->num[TESS_HEAD_SUM_WIDTH],
		                   .group = (int64_t)op->num[TESS_HEAD_SUM_GROUP] };

	op_find_run(op, 0, 1, &a.lo, &a.hi);
	a.hi += a.lo;
	return op_launch_rows(g, op, KERNEL_add_heads, a.rows, a.columns, &a);
}

tess_status op_run_dropout(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];
	double rate = op->num[TESS_DROPOUT_RATE];
	struct drop_rows_args a = { .x = x->data,
		                    .y = op->out[0].data,
		                    .position = op->in[1].data,
		                    .slot = op->in[2].data,
		                    .x_pitch = x->stride[0],
		                    .y_pitch = op->out[0].stride[0],
		                    .rows = x->shape[0],
		                    .columns = x->shape[1],
		                    .first = (int64_t)op->num[TESS_DROPOUT_FIRST],
		                    .site = (int64_t)op->num[TESS_DROPOUT_SITE],
		                    .drop = { op->in[3].data, tess_drop_below(rate),
		                              tess_drop_scale(rate) } };

	return op_launch_rows(g, op, KERNEL_drop_elements, a.rows,
	                      tess_up(a.first % 4 + a.columns, 4), &a);
}

/* ---- sums over tokens */

/* Counts the floats of the sums of runs of rows, and of runs of these, before the last sum. */
static int64_t count_partial_sums(int64_t rows, int64_t columns)
{
	int64_t n = 0;

	for (rows = tess_up(rows, COLUMN_ROWS); rows > 1; rows = tess_up(rows, COLUMN_ROWS))
		n += rows * columns;
	return n;
}

/* Adds runs of rows, then of their sums, until one is left in y. scratch: for intermediate sums. */
static tess_status add_row_runs(struct gpu *g, const struct tess_op *op, struct columns_args a,
                                float *scratch)
{
	const struct tess_view *y = &op->out[0];
	tess_status st = TESS_OK;

	for (bool last = false; !last && !st;) {
		int64_t blocks = tess_up(a.rows, COLUMN_ROWS);

		last = blocks <= 1;
		blocks = last ? 1 : blocks;
		a.y = last ? y->data : scratch;
		a.y_pitch = a.columns;
		a.each = COLUMN_ROWS;
		if (blocks > GRID_MAX) {
			a.each = tess_up(a.rows, GRID_MAX);
			blocks = tess_up(a.rows, a.each);
		}
		st = op_launch(
			g, op,
			(struct launch){ .kernel = KERNEL_add_columns,
		                         .blocks = { tess_up(a.columns, MAP_THREADS), blocks, 1 },
		                         .threads = MAP_THREADS,
		                         .args = &a });
		a.g = scratch;
		a.g_pitch = a.columns;
		a.x = NULL;
		a.rows = blocks;
		scratch += blocks * a.columns;
	}
	return st;
}

tess_status op_run_bias_dw(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];
	struct columns_args a = {
		.g = x->data, .g_pitch = x->stride[0], .rows = x->shape[0], .columns = x->shape[1]
	};
	int64_t floats = count_partial_sums(a.rows, a.columns);
	void *scratch = NULL;
	tess_status st = floats ? memory_get_scratch(g, 4 * (uint64_t)floats, &scratch) : TESS_OK;

	return st ? st : add_row_runs(g, op, a, scratch);
}

tess_status op_run_norm_dw(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *d = &op->in[1];
	struct norm_args n = op_make_norm_args(op, op->num + TESS_TOKENS_NUMS);
	struct columns_args a = { .g = d->data,
		                  .x = x->data,
		                  .g_pitch = d->stride[0],
		                  .x_pitch = x->stride[0],
		                  .rows = x->shape[0],
		                  .columns = x->shape[1],
		                  .run = n.each,
		                  .runs = n.runs };
	int64_t moments = 2 * n.rows * n.runs, floats = count_partial_sums(a.rows, a.columns);
	void *scratch = NULL;
	tess_status st = memory_get_scratch(g, 4 * (uint64_t)(moments + floats + 1), &scratch);

	a.moments = n.y = scratch;
	if (!st)
		st = op_launch_norm(g, op, KERNEL_measure_runs, &n, &n);
	return st ? st : add_row_runs(g, op, a, n.y + moments);
}

tess_status op_run_embed_dw(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *d = &op->in[1], *y = &op->out[0];
	struct embed_dw_args a = { .id = op->in[0].data,
		                   .g = d->data,
		                   .y = y->data,
		                   .g_pitch = d->stride[0],
		                   .y_pitch = get_pitch(y),
		                   .rows = d->shape[0],
		                   .columns = d->shape[1],
		                   .first = (int64_t)op->num[TESS_TOKENS_NUMS + TESS_EMBED_FIRST],
		                   .entries = y->shape[y->ndim - 2] };

	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_add_token_rows,
	                                  .blocks = { tess_up(a.entries, EMBED_ROWS), 1, 1 },
	                                  .threads = MAP_THREADS,
	                                  .args = &a });
}

/* Computes a product that cuBLASLt does not support: without rows, or of vectors. */
static tess_status multiply_without_blas(struct gpu *g, const struct tess_op *op,
                                         const struct product *p)
{
	struct turned_args a = { .x = p->x,
		                 .w = p->w,
		                 .y = p->y,
		                 .x_pitch = p->x_stride[1],
		                 .w_pitch = p->w_stride[1],
		                 .y_pitch = p->y_pitch,
		                 .rows = p->rows,
		                 .columns = p->columns,
		                 .k = p->k };

	return op_launch_rows(g, op, KERNEL_multiply_turned, a.rows, a.columns, &a);
}

/*
 * Rounds an operand to bf16 in scratch memory, or widens it to f32, unless it has that dtype:
 * replaces it by rows of 16 aligned bytes there.
 */
static tess_status cast_operand(struct gpu *g, const struct tess_op *op, int32_t dtype,
                                struct tess_view *v, char **scratch)
{
	struct cast_args a = { .x = v->data,
		               .y = *scratch,
		               .x_stride = { v->stride[0], 1 },
		               .y_pitch = tess_up(v->shape[1], 8) * 8,
		               .rows = v->shape[0],
		               .columns = v->shape[1],
		               .dtype = v->dtype };

	if (v->dtype == dtype)
		return TESS_OK;
	*scratch += a.rows * a.y_pitch * (int64_t)tess_width(dtype);
	v->data = a.y;
	v->stride[0] = a.y_pitch;
	v->dtype = dtype;
	return dtype == TESS_F32 ? op_launch_rows(g, op, KERNEL_widen_rows, a.rows, a.columns, &a)
	                         : op_round_rows(g, op, a.x, a.x_stride[0], a.rows, a.columns, a.y,
	                                         a.y_pitch);
}

/* Computes a product of both operands, rounded or widened to a dtype. */
static tess_status multiply_as(struct gpu *g, const struct tess_op *op, int32_t dtype,
                               const struct tess_view *rows, const struct tess_view *columns,
                               struct product *p)
{
	struct tess_view x = *rows, w = *columns;
	int64_t pitches = tess_up(p->rows, 8) * 8 + tess_up(p->columns, 8) * 8;
	void *memory = NULL;
	char *scratch;
	tess_status st = TESS_OK;

	if (x.dtype != dtype || w.dtype != dtype)
		st = memory_get_scratch(g, (uint64_t)(p->k * pitches) * tess_width(dtype), &memory);
	scratch = memory;
	if (!st)
		st = cast_operand(g, op, dtype, &x, &scratch);
	if (!st)
		st = cast_operand(g, op, dtype, &w, &scratch);
	p->x = x.data;
	p->w = w.data;
	p->x_stride[1] = x.stride[0];
	p->w_stride[1] = w.stride[0];
	p->dtype = dtype;
	if (st || p->rows < 2 || p->columns < 2 || !p->k)
		return st ? st : TESS_ENOTSUP;
	return blas_multiply(g, op, p);
}

/* Computes g' x, or x' g if the output is transposed; in bf16 for a 16-bit weight. */
tess_status op_run_linear_dw(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *y = &op->out[0];
	int32_t a = y->ndim - 2, dtype = TESS_F32;
	bool turned = y->stride[a + 1] != 1;
	const struct tess_view *rows = &op->in[!turned], *columns = &op->in[turned];
	struct product p = { .y = y->data,
		             .rows = rows->shape[1],
		             .columns = columns->shape[1],
		             .k = rows->shape[0],
		             .y_pitch = y->stride[a + turned],
		             .x_stride = { 1 },
		             .w_stride = { 1 },
		             .count = 1 };
	tess_status st = TESS_ENOTSUP;

	if (op->nnum > TESS_LINEAR_DW_DTYPE && g->math == MATH_AUTO)
		dtype = (int32_t)op->num[TESS_LINEAR_DW_DTYPE];
	p.tf32 = g->math == MATH_TF32 || dtype == TESS_F16;
	if (!p.rows || !p.columns)
		return TESS_OK;
	if (dtype == TESS_BF16)
		st = multiply_as(g, op, TESS_BF16, rows, columns, &p);
	if (st == TESS_ENOTSUP)
		st = multiply_as(g, op, TESS_F32, rows, columns, &p);
	return st == TESS_ENOTSUP ? multiply_without_blas(g, op, &p) : st;
}

/* ---- the loss */

/* Returns the kernel's arguments, from the operands that the op has. */
static struct loss_args make_loss_args(const struct tess_op *op)
{
	const struct tess_view *max = NULL, *sum = NULL, *pick = NULL, *label = NULL;
	bool logits = op->kind != TESS_OP_LOSS;
	struct loss_args a = { .y = op->out[0].data,
		               .y_pitch = get_pitch(&op->out[0]),
		               .rows = op->in[0].shape[0],
		               .first = op->nnum ? (int64_t)op->num[TESS_LOSS_FIRST] : 0 };

	if (logits) {
		a.z = op->in[0].data;
		a.z_pitch = op->in[0].stride[0];
		a.columns = a.hi = op->in[0].shape[1];
	}
	if (op->ntree) {
		op_find_run(op, 0, op->ntree, &a.lo, &a.hi);
		a.hi += a.lo;
	}
	if (op->kind == TESS_OP_LOSS_SUM || op->kind == TESS_OP_LOSS_D)
		max = &op->in[1];
	if (op->kind == TESS_OP_LOSS_PICK)
		label = &op->in[1];
	if (op->kind == TESS_OP_LOSS_D) {
		sum = &op->in[2];
		a.count = op->in[4].data;
	}
	if (!logits) {
		max = &op->in[0];
		sum = &op->in[1];
		pick = &op->in[2];
	}
	if (!logits || op->kind == TESS_OP_LOSS_D)
		label = &op->in[3];
	a.max = max ? max->data : NULL;
	a.max_pitch = max ? max->stride[0] : 0;
	a.sum = sum ? sum->data : NULL;
	a.sum_pitch = sum ? sum->stride[0] : 0;
	a.pick = pick ? pick->data : NULL;
	a.pick_pitch = pick ? pick->stride[0] : 0;
	a.label = label ? label->data : NULL;
	return a;
}

tess_status op_run_loss(struct gpu *g, const struct tess_op *op)
{
	struct loss_args a = make_loss_args(op);
	struct launch l = { .kernel = op->kind == TESS_OP_LOSS_MAX ? KERNEL_find_maxima
		                                                   : KERNEL_add_exponentials,
		            .blocks = { a.rows, 1, 1 },
		            .threads = LOSS_THREADS,
		            .args = &a };

	a.wide = is_row_aligned(a.z, a.z_pitch, sizeof(float)) &&
	         is_row_aligned(a.y, a.y_pitch, sizeof(float));
	a.half = op->out[0].dtype == TESS_BF16;
	if (op->kind == TESS_OP_LOSS_D)
		return op_launch_rows(g, op, KERNEL_derive_logits, a.rows, tess_up(a.columns, 8),
		                      &a);
	if (op->kind == TESS_OP_LOSS || op->kind == TESS_OP_LOSS_PICK)
		return op_launch_rows(g, op, KERNEL_pick_labels, 1, a.rows, &a);
	return op_launch(g, op, l);
}

/* ---- after the gradients */

static void set_adamw(const double *num, struct update_args *a)
{
	a->factor = (float)num[TESS_ADAMW_FACTOR];
	a->keep = (float)(1 - num[TESS_ADAMW_LR] * num[TESS_ADAMW_DECAY]);
	a->new_m = (float)(1 - num[TESS_ADAMW_BETA1]);
	a->old_v = (float)num[TESS_ADAMW_BETA2];
	a->new_v = (float)(1 - num[TESS_ADAMW_BETA2]);
	a->rate = (float)(num[TESS_ADAMW_LR] / num[TESS_ADAMW_BIAS1]);
	a->bias = (float)sqrt(num[TESS_ADAMW_BIAS2]);
	a->eps = (float)num[TESS_ADAMW_EPS];
}

tess_status op_run_update(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *out = op->out, *rounded = &out[op->nout - 1];
	bool adamw = op->kind == TESS_OP_ADAMW;
	struct update_args a = { .g = op->in[0].data,
		                 .w = out[0].data,
		                 .m = out[1].ndim ? out[1].data : NULL,
		                 .v = adamw ? out[2].data : NULL,
		                 .rounded = rounded->ndim ? rounded->data : NULL,
		                 .n = op->in[0].shape[0],
		                 .dtype = rounded->dtype };

	if (adamw) {
		set_adamw(op->num, &a);
	} else {
		a.factor = (float)op->num[TESS_SGD_FACTOR];
		a.rate = (float)op->num[TESS_SGD_LR];
		a.momentum = (float)op->num[TESS_SGD_MOMENTUM];
		a.decay = (float)op->num[TESS_SGD_DECAY];
	}
	a.wide = is_row_aligned(a.g, 0, 4) && is_row_aligned(a.w, 0, 4) &&
	         is_row_aligned(a.m, 0, 4) && is_row_aligned(a.v, 0, 4) &&
	         (uintptr_t)a.rounded % 8 == 0;
	return op_launch_rows(g, op, KERNEL_update_weights, 1, tess_up(a.n, 4), &a);
}

tess_status op_run_squares(struct gpu *g, const struct tess_op *op)
{
	struct squares_args a = { .x = op->in[0].data,
		                  .sum = op->out[0].data,
		                  .n = op->in[0].shape[0] };
	struct launch add = { .kernel = KERNEL_add_squares, .threads = SQUARE_THREADS, .args = &a },
		      finish = { .kernel = KERNEL_finish_squares,
		                 .blocks = { 1, 1, 1 },
		                 .threads = FINISH_THREADS,
		                 .args = &a };
	void *part;
	tess_status st;

	a.wide = is_row_aligned(a.x, 0, sizeof(float));
	a.parts = tess_up(a.n, SQUARE_THREADS * SQUARE_EACH);
	a.parts = a.parts < SQUARE_BLOCKS ? a.parts : SQUARE_BLOCKS;
	if (a.parts < tess_up(a.n, SQUARE_THREADS * SQUARE_MOST))
		a.parts = tess_up(a.n, SQUARE_THREADS * SQUARE_MOST);
	st = memory_get_scratch(g, 8 * SQUARE_FIELDS * (uint64_t)a.parts + 8, &part);
	if (st)
		return st;
	a.part = part;
	add.blocks[0] = a.parts;
	add.blocks[1] = add.blocks[2] = 1;
	st = op_launch(g, op, add);
	return st ? st : op_launch(g, op, finish);
}

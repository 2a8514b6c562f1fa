/*
 * groups.c - EXPERTS and HEAD_LINEAR of many rows: products of groups of rows, on tensor cores or
 * in f32.
 */
#include "gpu.h"

/* Maximum average rows of an expert for sums by warps; blocks that share its rows. */
enum { BY_COLUMNS = 8, ROW_BLOCKS = 8 };

/* Computes y = x w' of the rows of each group, in f32. */
tess_status experts_launch_groups(struct gpu *g, const struct tess_op *op, int32_t groups,
                                  const struct group_args *a)
{
	int64_t tiles = tess_up(a->rows, KEYS);

	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_multiply_groups,
	                                  .blocks = { tess_up(a->n, KEYS), groups,
	                                              tiles < ROW_BLOCKS ? tiles : ROW_BLOCKS },
	                                  .threads = MULTIPLY_THREADS,
	                                  .shared = GROUP_BYTES,
	                                  .args = a });
}

/* Returns whether the rows of a weight start and end at multiples of 16 bytes. */
static bool is_weight_aligned(const void *w, const int64_t *stride, int64_t k)
{
	return (uintptr_t)w % 16 == 0 && stride[2] == 1 && stride[0] % 8 == 0 &&
	       stride[1] % 8 == 0 && k % 8 == 0;
}

static const char *skip_terms(const void *w, int32_t dtype, int64_t at, const int64_t *stride)
{
	return (const char *)w + at * stride[2] * (int64_t)tess_width(dtype);
}

/* Returns whether a product can use tensor cores. */
static bool can_use_bf16(const struct gpu *g, int32_t dtype, const void *w, const int64_t *stride,
                         int64_t k)
{
	return g->math == MATH_AUTO && dtype == TESS_BF16 && is_weight_aligned(w, stride, k) &&
	       TENSOR_BYTES <= g->shared_max;
}

static bool can_experts_use_bf16(const struct gpu *g, const struct experts_args *a)
{
	const char *up = skip_terms(a->gate_up, a->dtype, a->k_first, a->gate_up_stride);

	return a->f == a->ffn && can_use_bf16(g, a->dtype, up, a->gate_up_stride, a->k) &&
	       can_use_bf16(g, a->dtype, a->down, a->down_stride, a->f);
}

/* Returns whether lanes can read four elements of rows and of columns at a time. */
static bool is_wide(const void *w, int32_t dtype, const int64_t *stride, int64_t at, int64_t n,
                    const float *x, int64_t x_pitch)
{
	int64_t width = (int64_t)tess_width(dtype);
	const char *first = skip_terms(w, dtype, at, stride);

	return stride[2] == 1 && n % 4 == 0 && is_row_aligned(first, stride[0], width) &&
	       is_row_aligned(first, stride[1], width) &&
	       is_row_aligned(x + at, x_pitch, sizeof(float));
}

enum experts_path experts_choose_path(const struct gpu *g, const struct experts_args *a)
{
	int64_t asked = a->rows * a->most;

	if (asked <= a->experts &&
	    is_wide(a->gate_up, a->dtype, a->gate_up_stride, a->k_first, a->k, a->x, a->x_pitch) &&
	    is_wide(a->down, a->dtype, a->down_stride, a->f_first, a->f, NULL, a->ffn))
		return EXPERTS_ROWS;
	if (asked > a->experts && a->rows > MULTIPLY_ROWS && can_experts_use_bf16(g, a))
		return EXPERTS_BF16;
	return asked <= (int64_t)BY_COLUMNS * a->experts ? EXPERTS_FEW : EXPERTS_F32;
}

/* Launches tiles of 16 to 64 rows if these have `room` rows of each group, else of 128. */
static tess_status launch_tensor(struct gpu *g, const struct tess_op *op, int32_t groups,
                                 int64_t room, struct tensor_group_args a)
{
	int32_t most = room > 32 ? 64 : room > 16 ? 32 : 16;
	int64_t tiles = tess_up(a.rows, TENSOR_TILE), columns = a.gated ? 2 * a.n : a.n;
	struct launch l = { .kernel = most == 64   ? KERNEL_multiply_groups_64
		                      : most == 32 ? KERNEL_multiply_groups_32
		                                   : KERNEL_multiply_groups_16,
		            .blocks = { tess_up(columns, LISTED_COLUMNS), groups, 1 },
		            .threads = MULTIPLY_THREADS,
		            .shared = LISTED_STAGES * (LISTED_COLUMNS + most) * STAGE_TERMS * 2,
		            .args = &a };

	if (room > 64) {
		a.row_blocks = tiles < ROW_BLOCKS ? (int32_t)tiles : ROW_BLOCKS;
		l.kernel = KERNEL_multiply_groups_bf16;
		l.blocks[0] = tess_up(columns, TENSOR_TILE) * a.row_blocks;
		l.shared = TENSOR_BYTES;
	}
	return op_launch(g, op, l);
}

tess_status experts_multiply_bf16(struct gpu *g, const struct tess_op *op,
                                  const struct experts_args *a)
{
	struct tensor_group_args up = {
		.x = a->rounded,
		.w = (const void *)skip_terms(a->gate_up, a->dtype, a->k_first, a->gate_up_stride),
		.y = a->hidden,
		.begin = a->begin,
		.row = a->row,
		.x_pitch = a->k,
		.y_pitch = a->ffn,
		.w_stride = { a->gate_up_stride[0], a->gate_up_stride[1] },
		.rows = a->rows,
		.n = a->ffn,
		.k = a->k,
		.gates = a->gates,
		.gated = 1
	};
	struct tensor_group_args down = { .x = (const void *)a->hidden,
		                          .w = a->down,
		                          .y = a->z,
		                          .begin = a->begin,
		                          .x_pitch = a->ffn,
		                          .y_pitch = a->columns,
		                          .w_stride = { a->down_stride[0], a->down_stride[1] },
		                          .rows = a->rows,
		                          .n = a->columns,
		                          .k = a->f };
	int64_t room = tess_up(2 * a->rows * a->most, a->experts); /* twice the average */
	tess_status st;

	st = op_round_rows(g, op, a->x + a->k_first, a->x_pitch, a->rows, a->k, a->rounded, a->k);
	if (!st)
		st = launch_tensor(g, op, a->experts, room, up);
	return st ? st : launch_tensor(g, op, a->experts, room, down);
}

/* Computes [gates | ups] of the listed rows; `up` is for all rows of gate_up, as stored. */
static tess_status multiply_gates(struct gpu *g, const struct tess_op *op,
                                  const struct experts_args *a, struct group_args up)
{
	const char *w = up.w;
	tess_status st;

	if (a->gates.step == 1)
		return experts_launch_groups(g, op, a->experts, &up);
	up.n = a->ffn;
	up.w_stride[1] *= a->gates.step;
	st = experts_launch_groups(g, op, a->experts, &up);
	up.w = w + a->gates.up * a->gate_up_stride[1] * (int64_t)tess_width(a->dtype);
	up.y += a->ffn;
	return st ? st : experts_launch_groups(g, op, a->experts, &up);
}

tess_status experts_multiply_f32(struct gpu *g, const struct tess_op *op,
                                 const struct experts_args *a)
{
	struct group_args up = { .x = a->x + a->k_first,
		                 .w = skip_terms(a->gate_up, a->dtype, a->k_first,
		                                 a->gate_up_stride),
		                 .y = a->hidden,
		                 .begin = a->begin,
		                 .row = a->row,
		                 .x_pitch = a->x_pitch,
		                 .y_pitch = 2 * a->ffn,
		                 .rows = a->rows,
		                 .n = 2 * a->ffn,
		                 .k = a->k,
		                 .dtype = a->dtype };
	struct group_args down = { .x = a->hidden + a->f_first,
		                   .w = skip_terms(a->down, a->dtype, a->f_first, a->down_stride),
		                   .y = a->z,
		                   .begin = a->begin,
		                   .x_pitch = 2 * a->ffn,
		                   .y_pitch = a->columns,
		                   .rows = a->rows,
		                   .n = a->columns,
		                   .k = a->f,
		                   .dtype = a->dtype };
	int64_t most = a->rows * a->most;
	tess_status st;

	for (int i = 0; i < 3; i++) {
		up.w_stride[i] = a->gate_up_stride[i];
		down.w_stride[i] = a->down_stride[i];
	}
	st = multiply_gates(g, op, a, up);
	if (!st)
		st = op_launch_rows(g, op, KERNEL_activate_listed, most, a->ffn, a);
	return st ? st : experts_launch_groups(g, op, a->experts, &down);
}

tess_status experts_multiply_heads(struct gpu *g, const struct tess_op *op, int32_t heads,
                                   const struct heads_args *a)
{
	int64_t each = a->k + a->rest;
	struct tensor_group_args t = { .w = a->w,
		                       .y = a->y,
		                       .x_pitch = heads * each,
		                       .y_pitch = a->y_pitch,
		                       .x_step = each,
		                       .y_step = a->n + a->rest,
		                       .w_stride = { a->stride[0], a->stride[1] },
		                       .rows = a->rows,
		                       .n = a->n,
		                       .k = a->k };
	struct group_args f32 = { .x = a->x,
		                  .w = a->w,
		                  .y = a->y,
		                  .x_pitch = a->x_pitch,
		                  .y_pitch = a->y_pitch,
		                  .x_step = each,
		                  .y_step = a->n + a->rest,
		                  .w_stride = { a->stride[0], a->stride[1], a->stride[2] },
		                  .rows = a->rows,
		                  .n = a->n,
		                  .k = a->k,
		                  .dtype = a->dtype };
	void *rounded;
	tess_status st;

	if (each % 8 || !can_use_bf16(g, a->dtype, a->w, a->stride, a->k))
		return experts_launch_groups(g, op, heads, &f32);
	st = memory_get_scratch(g, (uint64_t)(a->rows * heads * each * 2), &rounded);
	if (st)
		return st;
	t.x = rounded;
	st = op_round_rows(g, op, a->x, a->x_pitch, a->rows, heads * each, rounded, heads * each);
	return st ? st : launch_tensor(g, op, heads, a->rows, t);
}

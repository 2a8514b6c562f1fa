/*
 * product.c - LINEAR: up to 8 rows by kernels that read each weight once, in f32; 9 to 64 rows of
 * bf16 by product_tensor.c; else by cuBLASLt, with the precision of TESSERA_CUDA_MATH:
 *
 *   weights   auto                       f32    tf32
 *   f32       f32                        f32    TF32
 *   bf16      x rounded to bf16          f32    TF32
 *   f16       TF32, which holds f16      f32    TF32
 *
 * A router's products are always f32, so that few rows and many choose equal experts. 16-bit
 * weights that are not multiplied directly are widened to f32 in scratch memory, a slab at a time,
 * or multiplied by the kernels of few rows, 8 rows at a time.
 */
#include "gpu.h"

enum { FEW_ROWS = MULTIPLY_ROWS };
/* Maximum rows for which reading 16-bit weights once for each 8 rows beats widening. */
enum { READ_AGAIN_ROWS = 32 };
enum { SLAB_BYTES = 64 << 20 };

/* Returns the math of a product. f32 products, such as a router's, are f32 on every device. */
int32_t product_get_math(int32_t math, const struct tess_op *op)
{
	bool f32 = op->kind == TESS_OP_LINEAR && op->nnum && op->num[TESS_LINEAR_MATH] == TESS_F32;

	return f32 ? MATH_F32 : math;
}

static bool is_whole_product(const struct tess_op *op, const struct product_run *r)
{
	return !r->at && r->len == op->in[0].shape[1] && !r->accumulate;
}

static const struct tess_view *get_factor(const struct tess_op *op, const struct product_run *r)
{
	return r->norm ? &r->norm->in[0] : &op->in[0];
}

const void *product_get_weight(const struct tess_view *w, const struct product_run *r)
{
	return (const char *)w->data + r->at * w->stride[1] * (int64_t)tess_width(w->dtype);
}

/* Returns whether each lane can read 16 bytes of x and of a row of W at a time. */
static bool can_read_wide(const struct tess_op *op, const struct product_run *r)
{
	const struct tess_view *x = get_factor(op, r);
	int64_t width = (int64_t)tess_width(op->in[1].dtype);

	if (!r->len || !is_row_aligned((const float *)x->data + r->at, x->stride[0], 4) ||
	    r->len * width % 16)
		return false;
	for (int32_t i = 0; i < op->nout; i++)
		if (op->in[1 + i].stride[1] != 1 || op->in[1 + i].dtype != op->in[1].dtype ||
		    !is_row_aligned(product_get_weight(&op->in[1 + i], r), op->in[1 + i].stride[0],
		                    width))
			return false;
	return true;
}

static int32_t choose_kernel(int32_t dtype, int64_t rows, bool pair, bool norm)
{
	static const int32_t first[] = { [TESS_F32] = KERNEL_multiply_f32_1,
		                         [TESS_BF16] = KERNEL_multiply_bf16_1,
		                         [TESS_F16] = KERNEL_multiply_f16_1 };

	return first[dtype] + (rows > 4 ? 4 : rows > 2 ? 3 : rows > 1 ? 2 : (norm ? 5 : 0) + pair);
}

/*
 * Counts the columns of a block that reads 16 bytes at a time; the threads of a block share a
 * single row (multiply.cuh).
 */
static int64_t count_block_columns(int64_t rows)
{
	int64_t warps = MULTIPLY_THREADS / WARP;

	return rows > 4 ? warps * MULTIPLY_COLUMNS : rows > 1 ? warps * 2 : MULTIPLY_COLUMNS;
}

struct multiplied product_describe_weight(const struct tess_op *op, const struct product_run *r,
                                          int32_t i, int64_t row)
{
	const struct tess_view *w = &op->in[1 + i];
	const struct tess_view *y = r->add ? &r->add->out[0] : &op->out[i];
	const struct tess_view *more = r->add ? r->more : r->accumulate ? y : NULL;

	return (struct multiplied){ .w = product_get_weight(w, r),
		                    .more = more ? get_gpu_row(more, row) : NULL,
		                    .more_pitch = more ? more->stride[more->ndim - 2] : 0,
		                    .y = get_gpu_row(y, row),
		                    .stride = { w->stride[0], w->stride[1] },
		                    .y_pitch = y->stride[y->ndim - 2],
		                    .columns = w->shape[0] };
}

/*
 * Multiplies weights [from, from + n) by rows [row, row + rows), at most FEW_ROWS; a GLU of all
 * weights, or NULL.
 */
static tess_status multiply_few(struct gpu *g, const struct tess_op *op,
                                const struct product_run *r, int32_t from, int32_t n, int64_t row,
                                int64_t rows, bool wide, const struct tess_op *glu)
{
	const struct tess_view *x = get_factor(op, r);
	int64_t each = !wide ? WARP : count_block_columns(rows);
	struct multiply_args a = { .x = get_gpu_row(x, row) + r->at,
		                   .x_pitch = x->stride[0],
		                   .k = r->len,
		                   .rows = (int32_t)rows,
		                   .nweights = n,
		                   .dtype = op->in[1 + from].dtype };
	struct launch l = { .kernel = wide ? choose_kernel(a.dtype, rows, glu, r->norm)
		                           : KERNEL_multiply_any,
		            .blocks = { 0, 1, 1 },
		            .threads = MULTIPLY_THREADS,
		            .args = &a };

	for (int32_t i = 0; i < n; i++) {
		a.of[i] = product_describe_weight(op, r, from + i, row);
		a.of[i].first_block = (int32_t)l.blocks[0];
		l.blocks[0] += tess_up(a.of[i].columns, each);
	}
	if (glu) { /* a block has columns of both */
		l.blocks[0] = tess_up(a.of[0].columns, each / 2);
		a.glu = glu->out[0].data;
		a.glu_pitch = glu->out[0].stride[0];
		a.activation = (int32_t)glu->num[TESS_GLU_ACTIVATION];
	}
	if (r->norm) {
		a.norm = r->norm->in[1].data;
		a.eps = (float)r->norm->num[TESS_NORM_EPS];
		a.offset = (float)r->norm->num[TESS_NORM_OFFSET];
	}
	return op_launch(g, op, l);
}

/* Multiplies by weights [from, from + n), of one dtype if there are several. */
static tess_status multiply_by_rows(struct gpu *g, const struct tess_op *op,
                                    const struct product_run *r, int32_t from, int32_t n)
{
	int64_t rows = op->in[0].shape[0];
	bool wide = can_read_wide(op, r);
	const struct tess_op *glu = n > 1 ? handover_get_next(op, TESS_OP_GLU) : NULL;
	tess_status st = TESS_OK;

	for (int64_t t = 0; t < rows && !st; t += FEW_ROWS)
		st = multiply_few(g, op, r, from, n, t, rows - t < FEW_ROWS ? rows - t : FEW_ROWS,
		                  wide, glu);
	if (glu || r->add)
		r->to->op = op->next->next;
	return st;
}

enum { STEP_ALIGN = 16 }; /* bytes; alignment of the step between weights or outputs of one call */

/* Adds output i + 1 to the product of output i, if weights and outputs are equal but for a step. */
static bool add_next_out(const struct tess_op *op, int32_t i, struct product *p)
{
	const struct tess_view *w = &op->in[1 + i], *y = &op->out[i];
	int64_t apart, w_apart, width = (int64_t)tess_width(w->dtype);

	if (i + 1 >= op->nout || w[0].dtype != w[1].dtype || w[0].shape[0] != w[1].shape[0] ||
	    w[0].stride[0] != w[1].stride[0] || w[0].stride[1] != w[1].stride[1] ||
	    y[0].stride[y->ndim - 2] != y[1].stride[y->ndim - 2])
		return false;
	apart = (const char *)y[1].data - (const char *)y[0].data;
	w_apart = (const char *)w[1].data - (const char *)w[0].data;
	if (apart < 0 && w_apart < 0) { /* the one at the lower address is first */
		p->y = y[1].data;
		p->more = p->more ? p->y : NULL;
		p->w = (const char *)p->w + w_apart;
		apart = -apart;
		w_apart = -w_apart;
	}
	if (apart < STEP_ALIGN || w_apart < STEP_ALIGN || apart % STEP_ALIGN ||
	    w_apart % STEP_ALIGN)
		return false;
	p->count = 2;
	p->y_step = apart / (p->half ? 2 : (int64_t)sizeof(float));
	p->w_step = w_apart / width;
	return true;
}

/* Multiplies two outputs in one call, if cuBLASLt supports it, which fills the GPU better. */
static tess_status multiply_outs(struct gpu *g, const struct tess_op *op, const struct product *p,
                                 int32_t *i)
{
	struct product both = *p;
	tess_status st = add_next_out(op, *i, &both) ? blas_multiply(g, op, &both) : TESS_ENOTSUP;

	if (!st)
		++*i;
	return st == TESS_ENOTSUP ? blas_multiply(g, op, p) : st;
}

static struct product describe_linear(const struct tess_op *op, int32_t i,
                                      const struct product_run *r)
{
	const struct multiplied m = product_describe_weight(op, r, i, 0);
	const struct tess_view *x = &op->in[0];

	return (struct product){ .x = (const float *)x->data + r->at,
		                 .w = m.w,
		                 .more = m.more,
		                 .more_pitch = m.more_pitch,
		                 .y = m.y,
		                 .rows = x->shape[0],
		                 .columns = m.columns,
		                 .k = r->len,
		                 .x_stride = { x->stride[0], 1 },
		                 .y_pitch = m.y_pitch,
		                 .w_stride = { m.stride[0], m.stride[1] },
		                 .dtype = op->in[1 + i].dtype,
		                 .half = r->half,
		                 .count = 1 };
}

tess_status product_round_x(struct gpu *g, const struct tess_op *op, const struct product_run *r,
                            const void **out, int64_t *pitch)
{
	const struct tess_view *x = &op->in[0];
	void *y;
	tess_status st;

	*pitch = x->dtype == TESS_BF16 ? x->stride[0] : tess_up(r->len, 8) * 8;
	*out = (const uint16_t *)x->data + r->at;
	if (x->dtype == TESS_BF16)
		return TESS_OK;
	*out = r->rounded;
	if (r->rounded && is_whole_product(op, r))
		return TESS_OK;
	st = memory_get_scratch(g, (uint64_t)(x->shape[0] * *pitch * 2), &y);
	*out = y;
	return st ? st
	          : op_round_rows(g, op, (const float *)x->data + r->at, x->stride[0], x->shape[0],
	                          r->len, y, *pitch);
}

/* Multiplies by bf16 weights; rounds x once for all weights of the op. */
static tess_status multiply_bf16(struct gpu *g, const struct tess_op *op,
                                 const struct product_run *r, int32_t *i, const void **rounded)
{
	struct product p = describe_linear(op, *i, r);
	tess_status st = TESS_OK;

	p.x_stride[0] = op->in[0].dtype == TESS_BF16 ? op->in[0].stride[0] : tess_up(p.k, 8) * 8;
	if (!*rounded)
		st = product_round_x(g, op, r, rounded, &p.x_stride[0]);
	p.x = *rounded;
	return st ? st : multiply_outs(g, op, &p, i);
}

/* Multiplies by 16-bit weights, widened to f32: as many columns of y at a time as fit a slab. */
static tess_status multiply_widened(struct gpu *g, const struct tess_op *op,
                                    const struct product_run *r, int32_t i, bool tf32)
{
	struct product p = describe_linear(op, i, r), part = p;
	int64_t slab = SLAB_BYTES / 4 / (p.k + 1) + 1;
	struct cast_args a = { .x_stride = { p.w_stride[0], p.w_stride[1] },
		               .y_pitch = p.k,
		               .columns = p.k,
		               .dtype = p.dtype };
	tess_status st;

	slab = slab < p.columns ? slab : p.columns;
	st = memory_get_scratch(g, (uint64_t)(slab * p.k * 4), &a.y);
	for (int64_t at = 0; at < p.columns && !st; at += slab) {
		a.x = (const char *)p.w + at * p.w_stride[0] * 2;
		a.rows = p.columns - at < slab ? p.columns - at : slab;
		st = op_launch_rows(g, op, KERNEL_widen_rows, a.rows, a.columns, &a);
		part.w = a.y;
		part.w_stride[0] = p.k;
		part.w_stride[1] = 1;
		part.y = (float *)p.y + at;
		part.more = p.more ? p.more + at : NULL;
		part.columns = a.rows;
		part.dtype = TESS_F32;
		part.tf32 = tf32;
		if (!st)
			st = blas_multiply(g, op, &part);
	}
	return st;
}

static tess_status multiply_f32(struct gpu *g, const struct tess_op *op,
                                const struct product_run *r, int32_t *i)
{
	struct product p = describe_linear(op, *i, r);

	p.tf32 = product_get_math(g->math, op) == MATH_TF32;
	return multiply_outs(g, op, &p, i);
}

/* Widens rows that exist only as bf16 to their place as f32. */
static tess_status widen_dropped(struct gpu *g, const struct tess_op *op, struct product_run *r)
{
	const struct tess_view *x = &op->in[0];
	struct cast_args a = { .x = r->rounded,
		               .y = x->data,
		               .x_stride = { x->shape[1], 1 },
		               .y_pitch = x->stride[0],
		               .rows = x->shape[0],
		               .columns = x->shape[1],
		               .dtype = TESS_BF16 };

	if (!r->dropped)
		return TESS_OK;
	r->dropped = false;
	return op_launch_rows(g, op, KERNEL_widen_rows, a.rows, a.columns, &a);
}

/* Multiplies x of bf16 by weight i as f32, which cuBLASLt does not support as bf16. */
static tess_status multiply_widened_x(struct gpu *g, const struct tess_op *op,
                                      const struct product_run *r, int32_t i)
{
	struct tess_view in[2] = { op->in[0], op->in[1 + i] };
	struct tess_op one = *op;
	struct cast_args a = { .x = in[0].data,
		               .x_stride = { in[0].stride[0], 1 },
		               .y_pitch = in[0].shape[1],
		               .rows = in[0].shape[0],
		               .columns = in[0].shape[1],
		               .dtype = TESS_BF16 };
	tess_status st = memory_get_scratch(g, (uint64_t)(a.rows * a.columns * 4), &a.y);

	in[0].data = a.y;
	in[0].stride[0] = a.columns;
	in[0].dtype = TESS_F32;
	one.in = in;
	one.out = &op->out[i];
	if (!st)
		st = op_launch_rows(g, op, KERNEL_widen_rows, a.rows, a.columns, &a);
	return st ? st : multiply_by_rows(g, &one, r, 0, 1);
}

static bool has_unit_stride(const struct tess_view *w)
{
	return w->stride[0] == 1 || w->stride[1] == 1;
}

/* Multiplies many rows by cuBLASLt; without its support a few rows at a time, if not fused. */
static tess_status multiply_with_blas(struct gpu *g, const struct tess_op *op,
                                      struct product_run *r)
{
	const void *rounded = NULL;
	int32_t math = product_get_math(g->math, op);
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < op->nout && !st; i++) {
		const struct tess_view *w = &op->in[1 + i];

		if (!w->shape[0])
			continue;
		if (!r->len || !has_unit_stride(w))
			st = TESS_ENOTSUP;
		else if (w->dtype == TESS_F32)
			st = multiply_f32(g, op, r, &i);
		else if (w->dtype == TESS_BF16 && math == MATH_AUTO)
			st = multiply_bf16(g, op, r, &i, &rounded);
		else if (op->in[0].shape[0] <= READ_AGAIN_ROWS && can_read_wide(op, r))
			st = TESS_ENOTSUP;
		else {
			rounded = NULL; /* the scratch memory is reused */
			r->rounded = NULL;
			st = multiply_widened(g, op, r, i, math != MATH_F32);
		}
		if (st != TESS_ENOTSUP || r->half || r->add)
			continue;
		if (op->in[0].dtype == TESS_BF16) {
			st = multiply_widened_x(g, op, r, i);
			continue;
		}
		st = widen_dropped(g, op, r);
		if (!st)
			st = multiply_by_rows(g, op, r, i, 1);
	}
	return st;
}

void product_set_add(const struct tess_op *op, struct product_run *r)
{
	r->add = handover_get_next(op, TESS_OP_ADD);
	r->more = r->add ? handover_get_added(op) : NULL;
}

static tess_status multiply_many(struct gpu *g, const struct tess_op *op,
                                 const struct product_run *r)
{
	const struct tess_op *glu = handover_get_halved_glu(g, op);
	struct product_run with = *r;
	tess_status st;

	with.half = glu != NULL;
	product_set_add(op, &with);
	st = multiply_with_blas(g, op, &with);
	if (st == TESS_ENOTSUP) {
		with.half = false;
		with.add = NULL;
		return multiply_with_blas(g, op, &with);
	}
	if (glu)
		r->to->half = true;
	if (with.add)
		r->to->op = with.add->next;
	return st;
}

bool product_is_one_run(const struct tess_op *op)
{
	int64_t at, len;

	return op_find_run(op, 0, op->ntree, &at, &len) && !at && len == op->in[0].shape[1];
}

bool product_reads_bf16(int32_t math, const struct tess_op *op)
{
	if (product_get_math(math, op) != MATH_AUTO || !product_is_one_run(op))
		return false;
	for (int32_t i = 0; i < op->nout; i++)
		if (op->in[1 + i].dtype != TESS_BF16 || !has_unit_stride(&op->in[1 + i]))
			return false;
	return true;
}

bool product_rounds(const struct tess_op *op, int32_t i)
{
	int32_t n = op->nin / 2;

	switch (op->kind) {
	case TESS_OP_LINEAR:
		return !i && product_reads_bf16(MATH_AUTO, op);
	case TESS_OP_LINEAR_DX:
		return i < n && op->in[n + i].dtype == TESS_BF16 && has_unit_stride(&op->in[n + i]);
	case TESS_OP_LINEAR_DW:
		return op->in[0].shape[1] > 1 && op->in[1].shape[1] > 1 &&
		       op->nnum > TESS_LINEAR_DW_DTYPE &&
		       op->num[TESS_LINEAR_DW_DTYPE] == TESS_BF16;
	default:
		return false;
	}
}

static bool has_one_dtype(const struct tess_op *op)
{
	for (int32_t i = 1; i < op->nout; i++)
		if (op->in[1 + i].dtype != op->in[1].dtype)
			return false;
	return true;
}

static tess_status multiply_run(struct gpu *g, const struct tess_op *op,
                                const struct product_run *r)
{
	int32_t n = has_one_dtype(op) ? MULTIPLY_WEIGHTS : 1;
	struct product_run with = *r;
	tess_status st = TESS_OK;

	if (product_can_use_tensor(g, op, r))
		return product_multiply_tensor(g, op, r);
	if (op->in[0].shape[0] > FEW_ROWS)
		return multiply_many(g, op, r);
	product_set_add(op, &with);
	for (int32_t i = 0; i < op->nout && !st; i += n)
		st = multiply_by_rows(g, op, &with, i, op->nout - i < n ? op->nout - i : n);
	return st;
}

bool product_reads_wide(const struct tess_op *op, const struct tess_op *norm)
{
	struct product_run r = { .len = op->in[0].shape[1], .norm = norm };

	return product_is_one_run(op) && op->nout <= MULTIPLY_WEIGHTS && has_one_dtype(op) &&
	       can_read_wide(op, &r);
}

bool product_can_norm(const struct tess_op *op, const struct tess_op *norm)
{
	const struct tess_view *w = &norm->in[1];

	return product_reads_wide(op, norm) && w->dtype == op->in[1].dtype && w->stride[0] == 1 &&
	       (uintptr_t)w->data % 16 == 0;
}

/*
 * Adds the units of all trees over an operand; adjacent ranges of K are one product. Without units
 * y is 0, or unchanged. first: the arguments that all products share.
 */
static tess_status multiply_units(struct gpu *g, const struct tess_op *op, int32_t operand,
                                  const struct product_run *first)
{
	struct product_run r = *first;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < op->ntree && !st; i++) {
		const struct tess_tree *t = &op->tree[i];

		for (int32_t j = t->first; j < t->first + t->terms && !st; j++) {
			int64_t lo = op->term[j].bound[0], hi = op->term[j].bound[t->hi - t->lo];

			if (op->term[j].operand != operand)
				continue;
			if (lo == r.at + r.len || !r.len) {
				r.at = r.len ? r.at : lo;
				r.len += hi - lo;
				continue;
			}
			if (hi == lo)
				continue;
			st = multiply_run(g, op, &r);
			r = *first;
			r.at = lo;
			r.len = hi - lo;
			r.accumulate = true;
		}
	}
	return st || (first->accumulate && !r.len) ? st : multiply_run(g, op, &r);
}

tess_status op_run_linear(struct gpu *g, const struct handover *from, struct handover *to)
{
	const struct product_run first = {
		.norm = from->norm, .rounded = from->rounded, .dropped = from->dropped, .to = to
	};

	return from->op->in[0].shape[0] ? multiply_units(g, from->op, 0, &first) : TESS_OK;
}

/*
 * Computes each gradient times its transposed weight: a LINEAR to whose output the next ones are
 * added.
 */
tess_status op_run_linear_dx(struct gpu *g, const struct tess_op *op)
{
	int32_t n = op->nin / 2;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < n && op->in[0].shape[0] && !st; i++) {
		const struct tess_view *w = &op->in[n + i];
		struct tess_view in[2] = { op->in[i], *w };
		struct tess_op one = *op;

		in[1].shape[0] = w->shape[1], in[1].shape[1] = w->shape[0];
		in[1].stride[0] = w->stride[1], in[1].stride[1] = w->stride[0];
		one.in = in;
		st = multiply_units(g, &one, i, &(struct product_run){ .accumulate = i > 0 });
	}
	return st;
}

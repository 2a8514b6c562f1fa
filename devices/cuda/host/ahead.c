/*
 * ahead.c - what an op computes for the ones after it: tess_op.next. A launch less, and rows that
 * are not read again.
 */
#include "gpu.h"

#include <string.h>

/* Rows of f32: whether they share no memory, or each element has the same address. */
static bool is_apart_or_same(const struct tess_view *a, const struct tess_view *b)
{
	const float *x = a->data, *y = b->data;
	int64_t n = (a->shape[0] - 1) * a->stride[0] + a->shape[1];
	int64_t m = (b->shape[0] - 1) * b->stride[0] + b->shape[1];

	return (x == y && a->stride[0] == b->stride[0]) || x + n <= y || y + m <= x;
}

static bool is_apart(const struct tess_view *a, const struct tess_view *b)
{
	return a->data != b->data && is_apart_or_same(a, b);
}

static bool is_same_view(const struct tess_view *a, const struct tess_view *b)
{
	return a->data == b->data && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] &&
	       a->stride[0] == b->stride[0];
}

/* A Partial of one node is read as rows. */
static struct tess_view get_finished_rows(const struct tess_view *v)
{
	struct tess_view rows = *v;

	if (v->ndim == 3 && v->shape[0] == 1) {
		rows.ndim = 2;
		memcpy(rows.shape, v->shape + 1, 2 * sizeof *v->shape);
		memcpy(rows.stride, v->stride + 1, 2 * sizeof *v->stride);
	}
	return rows;
}

const struct tess_op *ahead_find_norm(const struct tess_op *add)
{
	const struct tess_op *norm = add->next;
	const struct tess_view *y = &add->out[0];
	int64_t run;

	if (add->kind != TESS_OP_ADD || !norm || norm->kind != TESS_OP_NORM || y->ndim != 2 ||
	    !y->shape[0] || !is_same_view(&norm->in[0], y))
		return NULL;
	run = (int64_t)norm->num[TESS_NORM_RUN];
	if ((run && run != y->shape[1]) || !is_apart_or_same(&norm->out[0], y))
		return NULL;
	/* the block of a row has read its operands before it writes the out; not those of others */
	return y->shape[0] == 1 || (is_apart_or_same(&norm->out[0], &add->in[0]) &&
	                            is_apart_or_same(&norm->out[0], &add->in[1]))
	               ? norm
	               : NULL;
}

/* The next op, if it is the GLU of the two outs of a product. */
static const struct tess_op *find_glu(const struct tess_op *linear)
{
	const struct tess_op *glu = linear->next;
	const struct tess_view *y = linear->out;

	return linear->kind == TESS_OP_LINEAR && linear->nout == 2 && glu &&
	                       glu->kind == TESS_OP_GLU && glu->nin == 2 && y[0].ndim == 2 &&
	                       is_same_view(&glu->in[0], &y[0]) && is_same_view(&glu->in[1], &y[1])
	               ? glu
	               : NULL;
}

const struct tess_op *ahead_find_glu(const struct tess_op *linear)
{
	const struct tess_op *glu = find_glu(linear);
	const struct tess_view *y = linear->out;

	if (!glu || !is_apart_or_same(&glu->out[0], &y[0]) ||
	    !is_apart_or_same(&glu->out[0], &y[1]) || !is_apart(&glu->out[0], &linear->in[0]))
		return NULL;
	return glu;
}

/* All of x is read until the end, so that nothing else may be written there. */
const struct tess_op *ahead_find_normed(const struct tess_op *norm)
{
	const struct tess_op *linear = norm->next, *glu;
	const struct tess_view *x = &norm->in[0];
	int64_t run = (int64_t)norm->num[TESS_NORM_RUN];

	if (!linear || linear->kind != TESS_OP_LINEAR || !norm->only_next || norm->nin != 2 ||
	    norm->num[TESS_NORM_KIND] == TESS_LAYER || (run && run != x->shape[1]) ||
	    x->shape[0] != 1 || !is_same_view(&linear->in[0], &norm->out[0]) ||
	    !product_can_norm(linear, norm))
		return NULL;
	for (int32_t i = 0; i < linear->nout; i++) {
		struct tess_view y = get_finished_rows(&linear->out[i]);

		if (y.ndim != 2 || !is_apart(&y, x))
			return NULL;
	}
	glu = ahead_find_glu(linear);
	return !glu || is_apart(&glu->out[0], x) ? linear : NULL;
}

/*
 * Adding to a value is no more than writing it, and the out is never written; by cuBLASLt in one
 * call, which adds nothing if it fails. The sum may take the memory of x, if that is read as bf16
 * elsewhere.
 */
const struct tess_op *ahead_find_add(const struct gpu *g, const struct tess_op *linear,
                                     const struct tess_view **more)
{
	const struct tess_op *add = linear->next;
	const struct tess_view *x = linear->in;
	struct tess_view y;
	int32_t own;
	bool few;

	if (linear->kind != TESS_OP_LINEAR || linear->nout != 1 || !linear->only_next || !add ||
	    add->kind != TESS_OP_ADD)
		return NULL;
	y = get_finished_rows(linear->out);
	own = is_same_view(&add->in[1], &y);
	*more = &add->in[!own];
	if (!is_same_view(&add->in[own], &y) || is_same_view(*more, &y) ||
	    !is_apart_or_same(*more, &y) || !is_apart_or_same(&add->out[0], *more))
		return NULL;
	few = x->shape[0] <= MULTIPLY_ROWS;
	if (!few && product_reads_bf16(g, linear))
		return add;
	return (few || linear->in[1].dtype == TESS_F32) && is_apart(&add->out[0], x) ? add : NULL;
}

const struct tess_op *ahead_find_rope(const struct tess_op *rope)
{
	const struct tess_op *next = rope->next;

	if (!next || next->kind != TESS_OP_ROPE || !rope->in[0].shape[0] ||
	    !is_same_view(&rope->in[2], &next->in[2]) || rope->in[1].data != next->in[1].data ||
	    rope->in[0].shape[0] != next->in[0].shape[0])
		return NULL;
	for (int i = 0; i < TESS_ROPE_NUMS; i++)
		if (rope->num[i] != next->num[i])
			return NULL;
	for (int i = 0; i < 2; i++) {
		const struct tess_op *a = i ? next : rope, *b = i ? rope : next;

		if (!is_apart(&a->out[0], &b->in[0]))
			return NULL;
	}
	return next;
}

const struct tess_op *ahead_find_attention(const struct tess_op *rope, const struct tess_op *second)
{
	const struct tess_op *op = second->next;
	const struct tess_view *q = &rope->out[0], *k = &second->out[0];
	bool turned;

	if (!op || op->kind != TESS_OP_ATTENTION || !op->in[5].ndim ||
	    op->in[3].data != rope->in[1].data || !q->shape[0] ||
	    op->num[TESS_ATTENTION_HEAD] != rope->num[TESS_ROPE_HEAD])
		return NULL;
	turned = is_same_view(&op->in[1], q);
	return is_same_view(&op->in[0], turned ? k : q) && is_same_view(&op->in[1], turned ? q : k)
	               ? op
	               : NULL;
}

/* Keys that are only in their pages need no order of the blocks that read them. */
bool ahead_can_turn(const struct tess_op *rope, const struct tess_op *second,
                    const struct tess_op *attention)
{
	const struct tess_view *out = &attention->out[0];

	return second->only_next && is_same_view(&attention->in[1], &second->out[0]) &&
	       is_apart(out, &rope->in[0]) && is_apart(out, &second->in[0]);
}

/* A LINEAR of more rows multiplies bf16, if its weights are that. */
static bool can_round(const struct gpu *g, const struct tess_op *op)
{
	const struct tess_op *linear = op->next;
	const struct tess_view *y = &op->out[0];

	return linear && linear->kind == TESS_OP_LINEAR && y->ndim == 2 &&
	       y->shape[0] > MULTIPLY_ROWS && y->shape[1] % 8 == 0 &&
	       is_same_view(&linear->in[0], y) && linear->in[1].dtype == TESS_BF16 &&
	       product_get_math(g, linear) == MATH_AUTO;
}

/* Whether nothing reads what can be rounded as f32. */
static bool can_drop(const struct gpu *g, const struct tess_op *op)
{
	return op->only_next && product_reads_bf16(g, op->next);
}

const struct tess_op *ahead_find_halved_glu(const struct gpu *g, const struct tess_op *linear)
{
	const struct tess_op *glu = find_glu(linear);
	const struct tess_view *y = linear->out;

	return glu && linear->only_next && product_reads_bf16(g, linear) && can_round(g, glu) &&
	                       can_drop(g, glu) && is_apart(&y[0], &y[1]) &&
	                       is_row_aligned(y[0].data, y[0].stride[0], 2) &&
	                       is_row_aligned(y[1].data, y[1].stride[0], 2)
	               ? glu
	               : NULL;
}

tess_status ahead_round_rows(struct gpu *g, const struct tess_op *op, uint64_t used, float **out,
                             uint16_t **rounded)
{
	const struct tess_view *y = &op->out[0];
	void *memory;
	tess_status st;

	*rounded = NULL;
	if (!can_round(g, op))
		return TESS_OK;
	st = memory_get_scratch(g, used + (uint64_t)(y->shape[0] * y->shape[1] * 2), &memory);
	if (st)
		return st;
	g->rounded_for = op->next;
	g->rounded = (uint16_t *)(void *)((char *)memory + used);
	g->dropped = can_drop(g, op);
	*out = g->dropped ? NULL : *out;
	*rounded = g->rounded;
	return TESS_OK;
}

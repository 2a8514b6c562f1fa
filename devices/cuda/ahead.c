/*
 * ahead.c - what an op computes for the ones after it: tess_op.next. A launch less, and rows that
 * are not read again.
 */
#include "gpu.h"

/* Rows of f32: whether they share no memory, or each element has the same address. */
static bool is_apart_or_same(const struct tess_view *a, const struct tess_view *b)
{
	const float *x = a->data, *y = b->data;
	int64_t n = (a->shape[0] - 1) * a->stride[0] + a->shape[1];
	int64_t m = (b->shape[0] - 1) * b->stride[0] + b->shape[1];

	return (x == y && a->stride[0] == b->stride[0]) || x + n <= y || y + m <= x;
}

static bool is_same_view(const struct tess_view *a, const struct tess_view *b)
{
	return a->data == b->data && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] &&
	       a->stride[0] == b->stride[0];
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

/* Of the two outs of a product. */
const struct tess_op *ahead_find_glu(const struct tess_op *linear)
{
	const struct tess_op *glu = linear->next;
	const struct tess_view *y = linear->out;

	if (linear->kind != TESS_OP_LINEAR || linear->nout != 2 || !glu ||
	    glu->kind != TESS_OP_GLU || glu->nin != 2 || y[0].ndim != 2 ||
	    !is_same_view(&glu->in[0], &y[0]) || !is_same_view(&glu->in[1], &y[1]) ||
	    !is_apart_or_same(&glu->out[0], &y[0]) || !is_apart_or_same(&glu->out[0], &y[1]) ||
	    !is_apart_or_same(&glu->out[0], &linear->in[0]) ||
	    glu->out[0].data == linear->in[0].data)
		return NULL;
	return glu;
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

		if (!is_apart_or_same(&a->out[0], &b->in[0]) || a->out[0].data == b->in[0].data)
			return NULL;
	}
	return next;
}

/* A LINEAR of more rows multiplies bf16, if its weights are that. */
uint16_t *ahead_round_rows(struct gpu *g, const struct tess_op *op, uint64_t used)
{
	const struct tess_op *linear = op->next;
	const struct tess_view *y = &op->out[0];
	void *memory;

	if (!linear || linear->kind != TESS_OP_LINEAR || y->ndim != 2 ||
	    y->shape[0] <= MULTIPLY_ROWS || y->shape[1] % 8 || !is_same_view(&linear->in[0], y) ||
	    linear->in[1].dtype != TESS_BF16 || product_get_math(g, linear) != MATH_AUTO ||
	    memory_get_scratch(g, used + (uint64_t)(y->shape[0] * y->shape[1] * 2), &memory))
		return NULL;
	g->rounded_for = linear;
	g->rounded = (uint16_t *)(void *)((char *)memory + used);
	return g->rounded;
}

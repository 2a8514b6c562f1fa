/*
 * fuse.c - decides which ops are one step, to save launches, and f32 rows that the next product
 * would read as bf16.
 */
#include "gpu.h"
#include "views.h"

static bool is_whole_row_norm(const struct tess_op *norm)
{
	int64_t run = (int64_t)norm->num[TESS_NORM_RUN];

	return !run || run == norm->in[0].shape[1];
}

/* ---- a NORM after an ADD, or before a product ------------------------------------------------ */

static bool can_norm_sum(const struct tess_op *add, const struct tess_op *norm)
{
	const struct tess_view *y = &add->out[0], *to = &norm->out[0];

	if (norm->kind != TESS_OP_NORM || y->ndim != 2 || !y->shape[0] ||
	    !is_same_view(&norm->in[0], y) || !is_whole_row_norm(norm) || !is_apart_or_same(to, y))
		return false;
	/*
	 * a block reads its row's operands before it writes the output, but not those of other rows
	 */
	return y->shape[0] == 1 ||
	       (is_apart_or_same(to, &add->in[0]) && is_apart_or_same(to, &add->in[1]));
}

/*
 * Returns whether the product of one row can norm it: every warp reads all of the row, until the
 * end, so no output may overwrite it.
 */
static bool can_norm_in_product(const struct tess_op *norm, const struct tess_op *linear)
{
	const struct tess_view *x = &norm->in[0];

	if (linear->kind != TESS_OP_LINEAR || !norm->only_next || norm->nin != 2 ||
	    !norm->in[1].ndim || norm->num[TESS_NORM_KIND] == TESS_LAYER ||
	    !is_whole_row_norm(norm) || x->shape[0] != 1 ||
	    !is_same_view(&linear->in[0], &norm->out[0]) || !product_can_norm(linear, norm))
		return false;
	for (int32_t i = 0; i < linear->nout; i++) {
		struct tess_view y = get_finished_rows(&linear->out[i]);

		if (y.ndim != 2 || !is_apart(&y, x))
			return false;
	}
	return true;
}

/* ---- ops after a product --------------------------------------------------------------------- */

/*
 * Returns whether the product can compute the GLU. With many rows, it passes bf16 to the GLU. norm:
 * the fused NORM of x; or NULL.
 */
static bool can_add_glu(int32_t math, const struct tess_op *linear, const struct tess_op *glu,
                        const struct tess_op *norm)
{
	const struct tess_view *y = linear->out, *to = &glu->out[0];

	if (glu->kind != TESS_OP_GLU || linear->nout != 2 || glu->nin != 2 || y[0].ndim != 2 ||
	    !is_same_view(&glu->in[0], &y[0]) || !is_same_view(&glu->in[1], &y[1]))
		return false;
	if (y[0].shape[0] > MULTIPLY_ROWS)
		return linear->only_next && product_reads_bf16(math, linear) &&
		       is_apart(&y[0], &y[1]) && is_row_aligned(y[0].data, y[0].stride[0], 2) &&
		       is_row_aligned(y[1].data, y[1].stride[0], 2);
	return is_apart_or_same(to, &y[0]) && is_apart_or_same(to, &y[1]) &&
	       is_apart(to, norm ? &norm->in[0] : &linear->in[0]) &&
	       product_reads_wide(linear, norm);
}

/*
 * Returns whether the product can compute the ADD: an addition to a value costs no more than
 * writing it, and the output is never written. cuBLASLt adds in one call, which changes nothing if
 * it fails. The sum may replace an x of f32, which is read as bf16 from elsewhere.
 */
static bool can_add_sum(int32_t math, const struct tess_op *linear, const struct tess_op *add)
{
	const struct tess_view *x = linear->in, *more;
	struct tess_view y;
	bool few = x->shape[0] <= MULTIPLY_ROWS;

	if (add->kind != TESS_OP_ADD || linear->nout != 1 || !linear->only_next ||
	    !product_is_one_run(linear))
		return false;
	y = get_finished_rows(linear->out);
	more = handover_get_added(linear);
	if (!is_same_view(&add->in[more == add->in], &y) || is_same_view(more, &y) ||
	    !is_apart_or_same(more, &y) || !is_apart_or_same(&add->out[0], more))
		return false;
	if (!few && product_reads_bf16(math, linear))
		return x->dtype != TESS_BF16 || is_apart(&add->out[0], x);
	return (few || linear->in[1].dtype == TESS_F32) && is_apart(&add->out[0], x);
}

/* ---- ROPEs of queries and keys, and their ATTENTION ------------------------------------------ */

static bool can_turn_both(const struct tess_op *rope, const struct tess_op *next)
{
	if (next->kind != TESS_OP_ROPE || !rope->in[0].shape[0] ||
	    !is_same_view(&rope->in[2], &next->in[2]) || rope->in[1].data != next->in[1].data ||
	    rope->in[0].shape[0] != next->in[0].shape[0])
		return false;
	for (int i = 0; i < TESS_ROPE_NUMS; i++)
		if (rope->num[i] != next->num[i])
			return false;
	return is_apart(&rope->out[0], &next->in[0]) && is_apart(&next->out[0], &rope->in[0]);
}

/* Returns whether the op is ATTENTION over pages, of the outputs of both ROPEs. */
static bool can_attend(const struct tess_op *rope, const struct tess_op *second,
                       const struct tess_op *op)
{
	const struct tess_view *q = &rope->out[0], *k = &second->out[0];
	bool turned;

	if (op->kind != TESS_OP_ATTENTION || !op->in[5].ndim ||
	    op->in[3].data != rope->in[1].data ||
	    op->num[TESS_ATTENTION_HEAD] != rope->num[TESS_ROPE_HEAD])
		return false;
	turned = is_same_view(&op->in[1], q);
	return is_same_view(&op->in[0], turned ? k : q) && is_same_view(&op->in[1], turned ? q : k);
}

/* ---- rows of bf16 ---------------------------------------------------------------------------- */

/* Returns whether the next op is a LINEAR of many rows that multiplies bf16. */
static bool can_round(int32_t math, const struct tess_op *op, const struct tess_op *linear)
{
	const struct tess_view *y = &op->out[0];

	return linear->kind == TESS_OP_LINEAR && y->ndim == 2 && y->dtype == TESS_F32 &&
	       y->shape[0] > MULTIPLY_ROWS && y->shape[1] % 8 == 0 &&
	       is_same_view(&linear->in[0], y) && linear->in[1].dtype == TESS_BF16 &&
	       product_get_math(math, linear) == MATH_AUTO;
}

/* Returns whether an op of many rows can write out `i` as bf16. */
static bool can_write_bf16(const struct tess_op *op, int32_t i)
{
	switch (op->kind) {
	case TESS_OP_NORM:
		return is_whole_row_norm(op) && op->out[i].stride[0] == op->out[i].shape[1];
	case TESS_OP_GLU:
	case TESS_OP_GLU_D:
	case TESS_OP_LOSS_D:
		return op->out[i].stride[0] == op->out[i].shape[1];
	default:
		return false;
	}
}

int32_t op_rounds(const struct tess_op *op, int32_t i)
{
	const struct tess_view *v = i < op->nin ? &op->in[i] : &op->out[i - op->nin];

	if (v->ndim != 2 || v->shape[0] <= PRODUCT_ROWS || v->shape[1] % 8 || v->stride[0] % 8 ||
	    cuda_get_math() != MATH_AUTO)
		return 0;
	return i < op->nin ? product_rounds(op, i) : can_write_bf16(op, i - op->nin);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool can_follow_linear(int32_t math, const struct tess_op *earlier,
                              const struct tess_op *linear, const struct tess_op *op)
{
	const struct tess_op *norm = earlier && handover_is_normed(earlier) ? earlier : NULL;

	return can_add_glu(math, linear, op, norm) || (!norm && can_add_sum(math, linear, op));
}

int32_t op_fuses(const struct tess_op *op)
{
	const struct tess_op *earlier = NULL, *before = op, *last = op->next;
	int32_t math = cuda_get_math();

	for (; last->next; last = last->next) {
		earlier = before;
		before = last;
	}
	switch (before->kind) {
	case TESS_OP_ADD:
		return !earlier && can_norm_sum(before, last);
	case TESS_OP_NORM:
		return can_norm_in_product(before, last) ||
		       (is_whole_row_norm(before) && can_round(math, before, last));
	case TESS_OP_LINEAR:
		return can_follow_linear(math, earlier, before, last);
	case TESS_OP_ROPE:
		return earlier ? can_attend(earlier, before, last) : can_turn_both(before, last);
	case TESS_OP_ATTENTION:
		return before->in[5].ndim && can_round(math, before, last);
	case TESS_OP_GLU:
		return can_round(math, before, last);
	default:
		return 0;
	}
}

/* handover.c - results that an op passes to the next one of its fused step. */
#include "gpu.h"
#include "views.h"

const struct tess_view *handover_get_added(const struct tess_op *linear)
{
	const struct tess_op *add = linear->next;
	struct tess_view y = get_finished_rows(linear->out);

	return &add->in[is_same_view(&add->in[1], &y) ? 0 : 1];
}

/* Requires that only ATTENTION reads the keys, and that its output overwrites no ROPE's input. */
bool handover_can_turn(const struct tess_op *rope, const struct tess_op *attention)
{
	const struct tess_op *second = rope->next;
	const struct tess_view *out = &attention->out[0];

	return second->only_next && is_same_view(&attention->in[1], &second->out[0]) &&
	       is_apart(out, &rope->in[0]) && is_apart(out, &second->in[0]);
}

static bool is_rounded(const struct tess_op *op)
{
	return op->next && op->next->kind == TESS_OP_LINEAR && op->out[0].shape[0] > MULTIPLY_ROWS;
}

/* Returns whether nothing reads the f32 values of the rounded rows. */
static bool can_drop(const struct gpu *g, const struct tess_op *op)
{
	return op->only_next && product_reads_bf16(g->math, op->next);
}

const struct tess_op *handover_get_halved_glu(const struct gpu *g, const struct tess_op *linear)
{
	const struct tess_op *glu = handover_get_next(linear, TESS_OP_GLU);

	return glu && is_rounded(glu) && can_drop(g, glu) ? glu : NULL;
}

tess_status handover_round_rows(struct gpu *g, const struct tess_op *op, uint64_t used, float **out,
                                struct handover *to)
{
	const struct tess_view *y = &op->out[0];
	void *memory;
	tess_status st;

	if (y->dtype == TESS_BF16) {
		to->rounded = y->data;
		*out = NULL;
		return TESS_OK;
	}
	if (!is_rounded(op))
		return TESS_OK;
	st = memory_get_scratch(g, used + (uint64_t)(y->shape[0] * y->shape[1] * 2), &memory);
	if (st)
		return st;
	to->rounded = (uint16_t *)(void *)((char *)memory + used);
	to->dropped = can_drop(g, op);
	*out = to->dropped ? NULL : *out;
	return TESS_OK;
}

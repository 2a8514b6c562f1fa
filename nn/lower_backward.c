/* lower_backward.c - the steps of the backward: gradients, and the sums that make them. */
#include "core/base/status.h"
#include "nn/build.h"

#include <tessera/reduce.h>

/* ---- the memory of gradients ----------------------------------------------------------------- */

/* A value's part of this rank, dense in the memory of gradients of w. */
static struct value make_gradient_value(const struct build *b, const struct tess_weight *w,
                                        const struct value *part)
{
	struct value v = *part;

	v.partial = false;
	v.buffer = b->gradient_buffer[w->index];
	v.offset = 0;
	v.row_stride = v.cols;
	v.node_stride = v.rows * v.cols;
	return v;
}

/*
 * A gradient that is finished where it is made, and is not added to another, is made in its memory.
 */
static void place_gradient(struct build *b, const struct tess_gradient *g)
{
	struct tess_rank_program *l = b->l;
	struct tess_view *view = &l->gradient[g->weight->index];
	struct value *v = build_get_value(b, g->value), at;
	int64_t n = v->rows * v->cols;
	int32_t buffer;

	b->nbuffers--; /* that of the value, which gets one where it is made, or this */
	buffer = build_add_buffer(b, 4 * (uint64_t)n);
	if (b->status)
		return;
	b->gradient_buffer[g->weight->index] = buffer;
	b->buffer[buffer].space = TESS_SPACE_GRADIENTS;
	b->buffer[buffer].life.offset = l->gradient_bytes;
	l->gradient_bytes += b->buffer[buffer].life.bytes;
	at = make_gradient_value(b, g->weight, v);
	*view = (struct tess_view){ .dtype = TESS_F32, .ndim = 1, .shape = { n }, .stride = { 1 } };
	build_add_pointer(b, &view->data, &at);
	if (!v->partial && !b->p->training->accumulate)
		*v = at;
	else
		v->allocated = false;
}

void build_place_gradients(struct build *b)
{
	const struct tess_program *p = b->p;

	b->l->gradient = TESS_NEW(&b->l->arena, struct tess_view, p->nweights);
	b->gradient_buffer = TESS_NEW(&b->l->arena, int32_t, p->nweights);
	if (!b->l->gradient || !b->gradient_buffer)
		b->status = TESS_ENOMEM;
	for (int32_t i = 0; i < p->ngradients && !b->status; i++)
		place_gradient(b, &p->gradient[i]);
}

static void add_to_gradient(struct build *b, const struct value *d, const struct value *sum)
{
	struct tess_step *s = build_add_op(b, TESS_OP_ADD, 2, 1);

	build_set_input(b, s, 0, sum);
	build_set_input(b, s, 1, d);
	build_set_output(b, s, 0, sum);
}

void build_add_gradient(struct build *b, const struct tess_record *rec)
{
	struct value *v = build_get_value(b, rec->in[0]), d = *v;
	struct value to = make_gradient_value(b, rec->weight[0], v);
	bool added = rec->num[TESS_REC_GRADIENT_ADDED] != 0;

	if (v->partial) {
		d = added ? build_add_temporary(b, 0, v->rows, v->cols, v->dtype) : to;
		build_add_sum(b, b->p->data_along, rec->in[0], v, &d);
	}
	if (added)
		add_to_gradient(b, &d, &to);
	else if (d.buffer != to.buffer)
		build_add_copy(b, &d, &to);
}

/* hooks.c - gradients of the calls and collectives that hooks record. */
#include "nn/backward/backward.h"

#include "core/base/status.h"

#include <tessera/coll.h>

/*
 * Makes the gradient of x, of a call from x to y. Replicated x: if y is not, each rank has an
 * addend. Unfinished x: the gradient of the sum, on every rank.
 */
static struct tess_tensor *make_call_gradient(struct tess_backward *b,
                                              const struct tess_record *rec)
{
	const struct tess_tensor *x = rec->in[0], *y = rec->out[0];
	int32_t n = b->r->p->mesh.dim[rec->along].size;
	bool addends = x->place[rec->along].kind == TESS_REPLICATE &&
	               y->place[rec->along].kind != TESS_REPLICATE;
	bool finished = x->place[rec->along].kind == TESS_PARTIAL;
	struct tess_place *place = tess_tensor_replace_place(b->r, x, rec->along,
	                                                     addends    ? tess_place_partial()
	                                                     : finished ? tess_place_replicate()
	                                                                : x->place[rec->along]);
	struct tess_tensor *d = tess_backward_make_like(b, x, place, rec->module);

	if (d && addends)
		d->sum = tess_dim_new_addends(b->r, n);
	return d;
}

static bool check_call_gradient(struct tess_backward *b, const struct tess_record *rec)
{
	if (!rec->call->grad)
		return tess_recorder_fail(
			       b->r, TESS_ENOTSUP,
			       "%s: style %s calls a function that has no gradient (grad is "
			       "NULL), so a plan with it cannot train; use another style there",
			       rec->module, rec->style->name) != NULL;
	if (tess_dtype_is_float(rec->in[0]->dtype))
		return true;
	return tess_recorder_fail(
		       b->r, TESS_ENOTSUP,
		       "%s: style %s calls a function of a value of %s, which has no gradient "
		       "(host->straight_through passes one by), so a plan with it cannot train; "
		       "use another style there",
		       rec->module, rec->style->name, tess_dtype_name(rec->in[0]->dtype)) != NULL;
}

/* Records the plugin's function grad, with operands x, y and the gradient of y. */
void tess_backward_record_call(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[3] = { rec->in[0], rec->out[0] }, *d;
	struct tess_record *grad;

	if (!check_call_gradient(b, rec))
		return;
	in[2] = tess_backward_take(b, rec->out[0]);
	d = in[2] ? make_call_gradient(b, rec) : NULL;
	grad = d ? tess_record_append(b->r, TESS_REC_CALL, rec->module, 3, in, 1, &d, 0, NULL)
	         : NULL;
	if (!grad)
		return;
	grad->along = rec->along;
	grad->call = rec->call;
	grad->style = rec->style;
	grad->state = rec->state;
	tess_backward_give(b, rec->in[0], d);
}

/* Gives x the gradient of a collective from x to y: the collective that moves it back. */
void tess_backward_record_collective(struct tess_backward *b, const struct tess_record *rec)
{
	static const struct {
		int32_t kind, back;
	} ways[] = {
		{ TESS_ALL_GATHER, TESS_REDUCE_SCATTER },
		{ TESS_REDUCE_SCATTER, TESS_ALL_GATHER },
		{ TESS_BROADCAST, TESS_REDUCE },
	};
	int32_t kind = (int32_t)rec->num[TESS_REC_COLLECTIVE_KIND];
	int32_t rank = (int32_t)rec->num[TESS_REC_COLLECTIVE_RANK];
	int32_t num[] = { kind, kind == TESS_SEND ? -rank : rank };
	struct tess_tensor *dy = tess_backward_take(b, rec->out[0]);
	struct tess_record *back;

	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		if (ways[i].kind == kind)
			num[TESS_REC_COLLECTIVE_KIND] = ways[i].back;
	back = dy ? tess_record_append_collective(b->r, rec->module, rec->along, num, dy,
	                                          rec->in[0]->dim[0]->size)
	          : NULL;
	if (!back)
		return;
	back->style = rec->style;
	tess_backward_give(b, rec->in[0], back->out[0]);
}

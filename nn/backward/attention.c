/* attention.c - the backward of rope, attention and ops on heads. */
#include "nn/backward/backward.h"

#include "core/base/status.h"

/* Appends a record whose only output has the shape and place of x. */
static struct tess_record *append_like(struct tess_backward *b, int32_t kind,
                                       const struct tess_record *rec, int32_t nin,
                                       struct tess_tensor *const *in, const struct tess_tensor *x)
{
	struct tess_tensor *d = tess_backward_make_like(b, x, x->place, rec->module);

	return d ? tess_record_append(b->r, kind, rec->module, nin, in, 1, &d, 0, NULL) : NULL;
}

/* Rotates the gradient back. */
void tess_backward_record_rope(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[2] = { tess_backward_take(b, rec->out[0]), rec->in[1] };
	struct tess_record *d = in[0] ? append_like(b, TESS_OP_ROPE, rec, 2, in, rec->in[0]) : NULL;

	if (!d)
		return;
	tess_record_copy_numbers(d, rec);
	d->num[TESS_ROPE_INVERSE] = 1;
	tess_backward_give(b, rec->in[0], d->out[0]);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Moves the gradients of query heads to the ranks that hold their key-value head. */
static struct tess_tensor *exchange_heads(struct tess_backward *b, struct tess_tensor *d,
                                          const struct tess_dim *kv, int32_t along)
{
	int64_t each = d->dim[1]->unit_size * (d->dim[1]->nunits / kv->nunits);
	const struct tess_dim *dim =
		tess_dim_new_heads(b->r, kv->name, d->dim[1], kv->nunits, each);
	struct tess_tensor *y =
		dim ? tess_tensor_new(b->r, 2, (const struct tess_dim *[]){ d->dim[0], dim },
	                              d->place, d->module)
		    : NULL;
	struct tess_record *rec =
		y ? tess_record_append(b->r, TESS_REC_EXCHANGE, d->module, 1, &d, 1, &y, 0, NULL)
		  : NULL;

	if (!rec)
		return NULL;
	rec->along = along;
	return y;
}

/*
 * Adds the sum of d, [tokens, query heads], over the heads that share a head of x, to the gradient
 * of x. A single shared head is a Partial if ranks have some of its heads; else the ranks of a head
 * add all of them.
 */
static void give_shared_heads(struct tess_backward *b, struct tess_tensor *x, struct tess_tensor *d)
{
	const struct tess_dim *heads = d ? d->dim[1] : NULL, *kv = x->dim[1];
	int32_t along = d ? tess_recorder_find_place(b->r, d, TESS_SHARD, 1) : -1;
	struct tess_place *place = d ? tess_recorder_alloc_places(b->r) : NULL;
	bool all = along >= 0 && kv->nunits == 1;
	struct tess_record *sum;
	struct tess_tensor *y;

	if (!place || heads->nunits == kv->nunits) {
		tess_backward_give(b, x, d);
		return;
	}
	for (int32_t i = 0; i < b->r->p->mesh.ndims; i++)
		place[i] = all && i == along ? tess_place_partial() : d->place[i];
	if (along >= 0 && !all)
		d = exchange_heads(b, d, kv, along);
	y = d ? tess_tensor_new(b->r, 2, x->dim, place, d->module) : NULL;
	sum = y ? tess_record_append(b->r, TESS_OP_HEAD_SUM, d->module, 1, &d, 1, &y, 0, NULL)
	        : NULL;
	if (!sum)
		return;
	sum->nnum = TESS_HEAD_SUM_NUMS;
	sum->num[TESS_HEAD_SUM_WIDTH] = (double)kv->unit_size;
	sum->num[TESS_HEAD_SUM_GROUP] = all ? 0 : (double)(heads->nunits / kv->nunits);
	y->sum = all ? heads : NULL;
	tess_backward_give(b, x,
	                   all ? tess_tensor_move(b->r, y, along, tess_place_replicate(), y->module)
	                       : y);
}

/* Makes the value of the gradients of sinks in each row: [tokens, query heads]. */
static struct tess_tensor *make_sink_rows(struct tess_backward *b, const struct tess_record *rec)
{
	const struct tess_tensor *q = rec->in[0];

	return tess_tensor_new(b->r, 2,
	                       (const struct tess_dim *[]){ q->dim[0], rec->weight[0]->dim[0] },
	                       q->place, rec->module);
}

/* Records ATTENTION_D, which computes dk and dv by query head. */
void tess_backward_record_attention(struct tess_backward *b, const struct tess_record *rec)
{
	int32_t nkv = tess_attention_has_values(rec) ? 2 : 1, n = nkv + 3, nout = 1 + nkv;
	struct tess_tensor *in[7] = { NULL }, *out[4] = { NULL };
	struct tess_record *d;

	for (int32_t i = 0; i < n; i++)
		in[i] = rec->in[i];
	in[n] = tess_backward_take(b, rec->out[0]);
	if (!in[n])
		return;
	if (rec->nin > n)
		in[n + 1] = rec->in[n]; /* seeds of dropout */
	for (int32_t i = 0; i < 1 + nkv; i++) {
		const struct tess_tensor *like = i < 2 ? rec->in[0] : rec->out[0];

		out[i] = tess_backward_make_like(b, like, like->place, rec->module);
	}
	if (rec->nweight)
		out[nout++] = make_sink_rows(b, rec);
	if (b->r->status)
		return;
	d = tess_record_append(b->r, TESS_OP_ATTENTION_D, rec->module, rec->nin + 1, in, nout, out,
	                       rec->nweight, rec->weight);
	if (!d)
		return;
	tess_record_copy_numbers(d, rec);
	tess_backward_give(b, rec->in[0], out[0]);
	for (int32_t i = 1; i < 1 + nkv; i++)
		give_shared_heads(b, rec->in[i], out[i]);
	if (rec->nweight)
		tess_backward_give_weight(
			b, rec->weight[0],
			tess_backward_record_bias_sum(b, rec, out[nout - 1], rec->weight[0]->dim));
}

/* ---- parts ----------------------------------------------------------------------------------- */

void tess_backward_record_split_heads(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor **in = tess_backward_take_parts(b, rec);
	struct tess_record *d =
		in ? append_like(b, TESS_REC_JOIN_HEADS, rec, rec->nout, in, rec->in[0]) : NULL;

	if (d)
		tess_backward_give(b, rec->in[0], d->out[0]);
}

void tess_backward_record_join(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *g = tess_backward_take(b, rec->out[0]);
	struct tess_tensor **out = TESS_NEW(&b->r->p->arena, struct tess_tensor *, rec->nin);

	if (!g || !out) {
		if (g)
			tess_recorder_keep_error(b->r, TESS_ENOMEM);
		return;
	}
	for (int32_t i = 0; i < rec->nin; i++)
		out[i] = tess_backward_make_like(b, rec->in[i], rec->in[i]->place, rec->module);
	if (b->r->status ||
	    !tess_record_append(b->r, TESS_REC_SPLIT, rec->module, 1, &g, rec->nin, out, 0, NULL))
		return;
	for (int32_t i = 0; i < rec->nin; i++)
		tess_backward_give(b, rec->in[i], out[i]);
}

/* ---- head_linear ----------------------------------------------------------------------------- */

/* Returns the places of the gradient of w, some of whose heads are local. */
static struct tess_place *place_head_weight(struct tess_backward *b, const struct tess_weight *w,
                                            const struct tess_tensor *g)
{
	struct tess_place *to = tess_recorder_alloc_places(b->r);

	for (int32_t i = 0; i < b->r->p->mesh.ndims && to; i++)
		to[i] = tess_place_is(g->place[i], TESS_SHARD, 1) ? tess_place_shard(0)
		                                                  : w->place[i];
	return to;
}

/* Checks that the parts cover a head, and that `part` has no gradient from other places. */
static bool check_head_part(struct tess_backward *b, const struct tess_weight *w, int32_t part,
                            const struct tess_place *place)
{
	const struct tess_head_gradient *all = &b->heads[w->index];
	int64_t rows = 0;

	for (int32_t i = 0; i < w->heads->n; i++)
		rows += w->heads->part[i].count;
	if (all->made >> part & 1 || rows != w->dim[0]->unit_size)
		return tess_recorder_fail(b->r, TESS_ENOTSUP,
		                          "%s: to be trained, each row of a head must be read by "
		                          "one record",
		                          w->name) != NULL;
	for (int32_t i = 0; i < b->r->p->mesh.ndims && all->made; i++)
		if (!tess_place_equal(place[i], all->place[i]))
			return tess_recorder_fail(
				       b->r, TESS_ENOTSUP,
				       "%s: it is used for values that are cut in two ways%s, so "
				       "it cannot be trained; give its users one layout",
				       w->name, tess_recorder_along(b->r, i)) != NULL;
	return true;
}

/* Adds a record's part to the gradient of a weight; the last part completes it. */
static void give_head_part(struct tess_backward *b, const struct tess_record *rec,
                           struct tess_tensor *g)
{
	const struct tess_weight *w = rec->weight[0];
	struct tess_head_gradient *all = &b->heads[w->index];
	struct tess_tensor *in[2] = { rec->in[0], g };
	int32_t part = (int32_t)rec->num[TESS_REC_HEAD_PART];
	struct tess_record *d;

	if (!check_head_part(b, w, part, g->place))
		return;
	if (all->made)
		d = tess_record_append(b->r, TESS_OP_HEAD_LINEAR_DW, rec->module, 2, in, 1, &all->d,
		                       0, NULL);
	else
		d = tess_backward_append_token_sum(b, TESS_OP_HEAD_LINEAR_DW, rec->module, 2, in,
		                                   w->ndim, w->dim, place_head_weight(b, w, g));
	if (!d)
		return;
	*all = (struct tess_head_gradient){ d->out[0], g->place, all->made | UINT32_C(1) << part };
	d->weight = rec->weight;
	d->nweight = 1;
	d->num[TESS_REC_HEAD_PART] = part;
	d->num[TESS_REC_HEAD_COMPLETE] = all->made == (UINT32_C(1) << w->heads->n) - 1;
	if (d->num[TESS_REC_HEAD_COMPLETE] != 0)
		tess_backward_give_weight(b, w, all->d);
}

/* Records dx as head_linear of the weight with inputs and outputs exchanged. */
void tess_backward_record_head_linear(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *g = tess_backward_take(b, rec->out[0]), *dx;
	struct tess_record *d;

	if (!g)
		return;
	give_head_part(b, rec, g);
	dx = tess_backward_make_like(b, rec->in[0], rec->in[0]->place, rec->module);
	d = dx ? tess_record_append(b->r, TESS_OP_HEAD_LINEAR, rec->module, 1, &g, 1, &dx, 1,
	                            rec->weight)
	       : NULL;
	if (!d)
		return;
	d->num[TESS_REC_HEAD_PART] = rec->num[TESS_REC_HEAD_PART];
	d->num[TESS_REC_HEAD_BACK] = 1;
	tess_backward_give(b, rec->in[0], dx);
}

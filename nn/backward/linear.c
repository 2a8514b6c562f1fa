/* linear.c - the backward of records with weights: embed, linear, bias, norm. */
#include "core/base/status.h"
#include "nn/backward/backward.h"

/* Returns the places of w, for its gradient. */
static struct tess_place *copy_weight_place(struct tess_backward *b, const struct tess_weight *w)
{
	struct tess_place *to = tess_recorder_alloc_places(b->r);

	for (int32_t i = 0; i < b->r->p->mesh.ndims && to; i++)
		to[i] = w->place[i];
	return to;
}

/* Appends the sum over the tokens of in[nin - 1] that is the gradient of w. */
static struct tess_record *append_weight_sum(struct tess_backward *b, int32_t kind,
                                             const struct tess_record *rec, int32_t nin,
                                             struct tess_tensor *const *in,
                                             const struct tess_weight *w)
{
	struct tess_place *place = copy_weight_place(b, w);

	return tess_backward_append_token_sum(b, kind, rec->module, nin, in, w->ndim, w->dim,
	                                      place);
}

void tess_backward_record_embed(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[2] = { rec->in[0], tess_backward_take(b, rec->out[0]) };
	struct tess_record *d = append_weight_sum(b, TESS_OP_EMBED_DW, rec, 2, in, rec->weight[0]);

	if (!d)
		return;
	d->nnum = TESS_EMBED_NUMS;
	d->num[TESS_EMBED_FIRST] = rec->num[TESS_EMBED_FIRST];
	tess_backward_give_weight(b, rec->weight[0], d->out[0]);
}

/* ---- linear ---------------------------------------------------------------------------------- */

/*
 * Infers the place of dx along one mesh dimension: Partial over the outputs if any weight is cut
 * along them, else Shard(1) if any is cut along the inputs, else that of x.
 */
static bool infer_dx_place(struct tess_backward *b, const struct tess_record *rec, int32_t along,
                           struct tess_place *to)
{
	const char *out = NULL, *in = NULL;

	for (int32_t i = 0; i < rec->nweight; i++) {
		int32_t role = tess_weight_role(rec->weight[i], along);

		out = role == TESS_ROLE_OUT ? rec->weight[i]->name : out;
		in = role == TESS_ROLE_IN ? rec->weight[i]->name : in;
	}
	if (out && in)
		return tess_recorder_fail(
			       b->r, TESS_ENOTSUP,
			       "%s: %s is cut along its outputs and %s along its inputs%s, and "
			       "both read one value, so a plan with both cannot train; cut both "
			       "alike",
			       rec->module, out, in, tess_recorder_along(b->r, along)) != NULL;
	*to = out ? tess_place_partial() : in ? tess_place_shard(1) : rec->in[0]->place[along];
	return true;
}

/* Infers the places of dx; only one mesh dimension may cut an axis, or leave a sum. */
static struct tess_place *infer_dx_places(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_place *place = tess_recorder_alloc_places(b->r);
	const struct tess_mesh_dim *dim = b->r->p->mesh.dim;

	for (int32_t i = 0; i < b->r->p->mesh.ndims && place; i++) {
		int32_t first;

		if (!infer_dx_place(b, rec, i, &place[i]))
			return NULL;
		first = tess_places_find(place, i, place[i].kind, place[i].dim);
		if (place[i].kind != TESS_REPLICATE && first >= 0)
			return tess_recorder_fail(
				b->r, TESS_ENOTSUP,
				"%s: weights that read one value are cut along their %s by both %s "
				"and %s, so a plan with both cannot train; cut them along one mesh "
				"dimension",
				rec->module, place[i].kind == TESS_PARTIAL ? "outputs" : "inputs",
				dim[first].name, dim[i].name);
	}
	return place;
}

/* Joins the outputs of all weights to one dim, over which dx is added. */
static const struct tess_dim *join_outputs(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_dim *d = TESS_NEW(&b->r->p->arena, struct tess_dim, 1);
	const struct tess_dim **part;
	int64_t n = 0, at;

	for (int32_t i = 0; i < rec->nweight; i++)
		n += tess_dim_count_pieces(rec->weight[i]->dim[rec->weight[i]->out_dim]);
	part = TESS_NEW(&b->r->p->arena, const struct tess_dim *, n);
	if (!d || !part)
		return tess_recorder_keep_error(b->r, TESS_ENOMEM);
	*d = (struct tess_dim){ .name = "outputs", .parts = part };
	for (int32_t i = 0; i < rec->nweight; i++) {
		const struct tess_dim *out = rec->weight[i]->dim[rec->weight[i]->out_dim];

		d->size += out->size;
		for (int64_t k = 0; k < tess_dim_count_pieces(out); k++)
			part[d->nparts++] = tess_dim_get_piece(out, k, &at);
	}
	return d;
}

/* Records dx as one contraction over the outputs of all weights; never adds unfinished sums. */
static struct tess_tensor *record_dx(struct tess_backward *b, const struct tess_record *rec,
                                     struct tess_tensor *const *g)
{
	struct tess_place *place = infer_dx_places(b, rec);
	struct tess_tensor *dx = tess_backward_make_like(b, rec->in[0], place, rec->module);
	struct tess_record *d =
		dx ? tess_record_append(b->r, TESS_OP_LINEAR_DX, rec->module, rec->nweight, g, 1,
	                                &dx, rec->nweight, rec->weight)
		   : NULL;

	if (!d)
		return NULL;
	if (rec->nnum && rec->num[TESS_LINEAR_MATH] == TESS_BF16)
		tess_record_copy_numbers(d, rec);
	dx->sum = join_outputs(b, rec);
	return dx->sum ? dx : NULL;
}

static void record_dw(struct tess_backward *b, const struct tess_record *rec, int32_t i,
                      struct tess_tensor *g)
{
	struct tess_record *dw =
		append_weight_sum(b, TESS_OP_LINEAR_DW, rec, 2,
	                          (struct tess_tensor *[]){ rec->in[0], g }, rec->weight[i]);

	if (!dw)
		return;
	dw->num[TESS_LINEAR_DW_DTYPE] = rec->weight[i]->dtype;
	dw->num[TESS_LINEAR_DW_MATH] = rec->nnum ? rec->num[TESS_LINEAR_MATH] : 0;
	dw->num[TESS_REC_LINEAR_DW_IN_OUT] = rec->weight[i]->in_out;
	tess_backward_give_weight(b, rec->weight[i], dw->out[0]);
}

/* Records dx first, so that gathered weights are freed before their gradients begin. */
void tess_backward_record_linear(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor **g = TESS_NEW(&b->r->p->arena, struct tess_tensor *, rec->nweight);

	if (!g) {
		tess_recorder_keep_error(b->r, TESS_ENOMEM);
		return;
	}
	for (int32_t i = 0; i < rec->nweight; i++) {
		g[i] = tess_backward_take(b, rec->out[i]);
		if (!g[i]) {
			tess_recorder_fail(b->r, TESS_ENOTSUP,
			                   "%s: nothing uses the output of %s, so its gradient is "
			                   "not known",
			                   rec->module, rec->weight[i]->name);
			return;
		}
	}
	tess_backward_give(b, rec->in[0], record_dx(b, rec, g));
	for (int32_t i = 0; i < rec->nweight && !b->r->status; i++)
		record_dw(b, rec, i, g[i]);
}

/* ---- vectors --------------------------------------------------------------------------------- */

struct tess_tensor *tess_backward_record_bias_sum(struct tess_backward *b,
                                                  const struct tess_record *rec,
                                                  struct tess_tensor *g,
                                                  const struct tess_dim *const *dim)
{
	struct tess_place *place = g ? tess_recorder_alloc_places(b->r) : NULL;
	struct tess_record *d;

	for (int32_t i = 0; i < b->r->p->mesh.ndims && place; i++)
		place[i] = tess_place_is(g->place[i], TESS_SHARD, 1) ? tess_place_shard(0)
		                                                     : tess_place_replicate();
	d = tess_backward_append_token_sum(b, TESS_OP_BIAS_DW, rec->module, 1, &g, 1, dim, place);
	return d ? d->out[0] : NULL;
}

void tess_backward_record_bias(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *g = tess_backward_take(b, rec->out[0]);

	tess_backward_give_weight(b, rec->weight[0],
	                          tess_backward_record_bias_sum(b, rec, g, rec->weight[0]->dim));
	tess_backward_give(b, rec->in[0], g);
}

/* Finishes each head's sum over tokens, then adds the heads, which share a weight. */
static struct tess_tensor *record_head_sum(struct tess_backward *b, const struct tess_record *rec,
                                           struct tess_tensor *heads)
{
	struct tess_program *p = b->r->p;
	int32_t cut = tess_recorder_find_place(b->r, rec->in[0], TESS_SHARD, 1);
	struct tess_place *place = tess_recorder_alloc_places(b->r);
	struct tess_record *sum;
	struct tess_tensor *y;

	if (heads && p->data_along >= 0)
		heads = tess_tensor_move(b->r, heads, p->data_along, tess_place_replicate(),
		                         rec->module);
	for (int32_t i = 0; i < p->mesh.ndims && place; i++)
		place[i] = i == cut ? tess_place_partial() : tess_place_replicate();
	y = heads && place ? tess_tensor_new(b->r, 1, rec->weight[0]->dim, place, rec->module)
	                   : NULL;
	sum = y ? tess_record_append(b->r, TESS_OP_HEAD_SUM, rec->module, 1, &heads, 1, &y, 0, NULL)
	        : NULL;
	if (!sum)
		return NULL;
	sum->nnum = TESS_HEAD_SUM_NUMS;
	sum->num[TESS_HEAD_SUM_WIDTH] = (double)heads->dim[0]->unit_size;
	y->sum = cut >= 0 ? heads->dim[0] : NULL;
	return y;
}

static void record_norm_weight(struct tess_backward *b, const struct tess_record *rec,
                               struct tess_tensor *g)
{
	struct tess_tensor *in[2] = { rec->in[0], g }, *d;
	bool heads = rec->num[TESS_NORM_RUN] > 0;
	struct tess_place *place = tess_recorder_alloc_places(b->r);
	struct tess_record *dw;

	for (int32_t i = 0; i < b->r->p->mesh.ndims && place; i++) {
		if (heads && tess_place_is(g->place[i], TESS_SHARD, 0)) {
			tess_recorder_fail(b->r, TESS_ENOTSUP,
			                   "%s: a norm over heads of tokens that are cut%s cannot "
			                   "train; give it a style that leaves tokens whole",
			                   rec->module, tess_recorder_along(b->r, i));
			return;
		}
		place[i] = tess_place_is(g->place[i], TESS_SHARD, 1) ? tess_place_shard(0)
		                                                     : tess_place_replicate();
	}
	dw = tess_backward_append_token_sum(b, TESS_OP_NORM_DW, rec->module, 2, in, 1,
	                                    &rec->in[0]->dim[1], place);
	if (!dw)
		return;
	dw->nnum = TESS_TOKENS_NUMS + TESS_NORM_NUMS;
	for (int32_t i = 0; i < TESS_NORM_NUMS; i++)
		dw->num[TESS_TOKENS_NUMS + i] = rec->num[i];
	d = heads ? record_head_sum(b, rec, dw->out[0]) : dw->out[0];
	tess_backward_give_weight(b, rec->weight[0], d);
}

static void record_norm_bias(struct tess_backward *b, const struct tess_record *rec,
                             struct tess_tensor *g)
{
	struct tess_tensor *d = tess_backward_record_bias_sum(b, rec, g, &rec->in[0]->dim[1]);

	if (rec->num[TESS_NORM_RUN] > 0)
		d = record_head_sum(b, rec, d);
	tess_backward_give_weight(b, rec->weight[1], d);
}

void tess_backward_record_norm(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[2] = { rec->in[0], tess_backward_take(b, rec->out[0]) }, *dx;
	struct tess_record *d;

	if (!in[1])
		return;
	if (rec->nweight > 1)
		record_norm_bias(b, rec, in[1]);
	if (rec->nweight)
		record_norm_weight(b, rec, in[1]);
	dx = tess_backward_make_like(b, rec->in[0], rec->in[0]->place, rec->module);
	d = dx ? tess_record_append(b->r, TESS_OP_NORM_D, rec->module, 2, in, 1, &dx,
	                            rec->nweight ? 1 : 0, rec->weight)
	       : NULL;
	if (!d)
		return;
	tess_record_copy_numbers(d, rec);
	tess_backward_give(b, rec->in[0], dx);
}

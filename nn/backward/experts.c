/*
 * experts.c - the backward of mixtures of experts.
 *
 * In training the experts of a row stay in separate slots until COMBINE weights them: the gradient
 * of a weight needs its expert's finished result. The gradient of x from each expert is also
 * finished if ranks cut inside the experts; COMBINE then weights and adds it.
 */
#include "nn/backward/backward.h"

/* ---- route ----------------------------------------------------------------------------------- */

void tess_backward_record_route(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[3] = { rec->in[0], rec->out[0], tess_backward_take(b, rec->out[0]) };
	struct tess_tensor *d = tess_backward_make_like(b, in[0], in[0]->place, rec->module);
	struct tess_record *route =
		d ? tess_record_append(b->r, TESS_OP_ROUTE_D, rec->module, 3, in, 1, &d, 0, NULL)
		  : NULL;

	if (!route)
		return;
	tess_record_copy_numbers(route, rec);
	if (b->r->p->balance)
		tess_backward_give(b, rec->in[0], tess_backward_record_balance_d(b, rec));
	tess_backward_give(b, rec->in[0], d);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Returns the record that computed z, or the source of a moved z. */
static const struct tess_record *find_experts(const struct tess_backward *b,
                                              const struct tess_tensor *z)
{
	const struct tess_program *p = b->r->p;

	for (int32_t i = p->nrecords - 1; i >= 0; i--) {
		const struct tess_record *rec = p->record[i];

		if (!rec->nout || rec->out[0] != z)
			continue;
		if (rec->kind == TESS_OP_EXPERTS)
			return rec;
		z = rec->kind == TESS_REC_MOVE ? rec->in[0] : z;
	}
	return NULL;
}

/* ---- exchanges of rows ----------------------------------------------------------------------- */

/* Returns the exchange that gave the rows x or, with `back`, returns them; NULL: there is none. */
static const struct tess_record *find_row_exchange(const struct tess_backward *b,
                                                   const struct tess_tensor *x, bool back)
{
	const struct tess_program *p = b->r->p;

	for (int32_t i = p->nrecords - 1; i >= 0; i--) {
		const struct tess_record *rec = p->record[i];

		if (rec->kind == TESS_REC_EXPERT_ROWS && (back ? rec->in[0] : rec->out[0]) == x)
			return rec;
	}
	return NULL;
}

/* Exchanges the rows of d like `rec`, to or from their experts. */
static struct tess_tensor *exchange_gradient_rows(struct tess_backward *b,
                                                  const struct tess_record *rec,
                                                  struct tess_tensor *d, struct tess_place to)
{
	struct tess_tensor *in[3] = { d, rec->in[1], rec->in[2] };
	struct tess_place *place = tess_tensor_replace_place(b->r, d, rec->along, to);
	struct tess_tensor *y = tess_backward_make_like(b, d, place, rec->module);
	struct tess_record *again = y ? tess_record_append(b->r, TESS_REC_EXPERT_ROWS, rec->module,
	                                                   3, in, 1, &y, 0, NULL)
	                              : NULL;

	if (!again)
		return NULL;
	again->along = rec->along;
	tess_record_copy_numbers(again, rec);
	return y;
}

/*
 * The gradient of results goes to the experts like rows. The exchange of rows to experts has
 * nothing to do: the gradient of x returns from COMBINE straight to the source.
 */
void tess_backward_record_expert_rows(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *g;

	if (rec->num[TESS_REC_EXPERT_ROWS_REPLICATED] != 0) {
		tess_backward_record_move(b, rec); /* every rank has the gradient of all rows */
		return;
	}
	g = tess_backward_take(b, rec->out[0]);
	if (g)
		tess_backward_give(b, rec->in[0],
		                   exchange_gradient_rows(b, rec, g, tess_place_replicate()));
}

/* Gives the gradient dx of the rows that experts read, which `rec` combines, to their source. */
static void give_rows(struct tess_backward *b, const struct tess_record *rec,
                      const struct tess_record *experts, struct tess_tensor *dx)
{
	const struct tess_record *back = find_row_exchange(b, rec->out[0], true);
	const struct tess_record *sent = find_row_exchange(b, experts->in[0], false);

	if (back)
		dx = exchange_gradient_rows(b, back, dx, tess_place_shard(0));
	tess_backward_give(b, sent ? sent->in[0] : experts->in[0], dx);
}

/* ---- experts, continued ---------------------------------------------------------------------- */

static struct tess_tensor *make_expert_gradient(struct tess_backward *b,
                                                const struct tess_weight *w,
                                                const struct tess_tensor *x)
{
	struct tess_place *place = tess_recorder_alloc_places(b->r);

	for (int32_t i = 0; i < b->r->p->mesh.ndims && place; i++)
		place[i] = w->place[i];
	return tess_backward_make_token_sum(b, x, w->name, w->ndim, w->dim, place);
}

/* Records the gradient of x by expert, in slots, and the gradients of the experts. */
static struct tess_tensor *record_experts_d(struct tess_backward *b, const struct tess_record *rec,
                                            struct tess_tensor *g)
{
	const struct tess_weight *up = rec->weight[0];
	struct tess_tensor *in[3] = { rec->in[0], rec->in[1], g }, *out[4];
	struct tess_record *d;

	out[0] = tess_tensor_new(b->r, 2, rec->out[0]->dim, rec->out[0]->place, rec->module);
	for (int32_t i = 0; i < rec->nweight; i++)
		out[1 + i] = make_expert_gradient(b, rec->weight[i], rec->in[0]);
	d = b->r->status ? NULL
	                 : tess_record_append(b->r, TESS_OP_EXPERTS_D, rec->module, 3, in,
	                                      1 + rec->nweight, out, rec->nweight, rec->weight);
	if (!d)
		return NULL;
	tess_record_copy_numbers(d, rec);
	out[0]->sum = rec->out[0]->sum ? up->dim[up->out_dim] : NULL;
	for (int32_t i = 0; i < rec->nweight; i++)
		tess_backward_give_weight(b, rec->weight[i], out[1 + i]);
	return out[0];
}

static void record_weight_gradients(struct tess_backward *b, const struct tess_record *rec,
                                    struct tess_tensor *g)
{
	struct tess_tensor *in[3] = { rec->in[0], rec->in[1], g };
	struct tess_tensor *d = tess_backward_make_like(b, in[1], in[1]->place, rec->module);

	if (d && tess_record_append(b->r, TESS_OP_COMBINE_D, rec->module, 3, in, 1, &d, 0, NULL))
		tess_backward_give(b, in[1], d);
}

void tess_backward_record_combine(struct tess_backward *b, const struct tess_record *rec)
{
	const struct tess_record *experts = find_experts(b, rec->in[0]);
	struct tess_tensor *g = tess_backward_take(b, rec->out[0]), *in[2] = { NULL, rec->in[1] },
			   *dx;

	if (!g)
		return;
	record_weight_gradients(b, rec, g);
	g = tess_tensor_redistribute(b->r, g, experts->in[0]->place, rec->module);
	in[0] = g ? record_experts_d(b, experts, g) : NULL;
	in[0] = in[0] ? tess_tensor_redistribute(b->r, in[0], rec->in[0]->place, rec->module)
	              : NULL;
	dx = in[0] ? tess_backward_make_like(b, experts->in[0], rec->out[0]->place, rec->module)
	           : NULL;
	if (!dx || !tess_record_append(b->r, TESS_OP_COMBINE, rec->module, 2, in, 1, &dx, 0, NULL))
		return;
	dx->sum = rec->out[0]->sum;
	give_rows(b, rec, experts, dx);
}

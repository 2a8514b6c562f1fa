/* gradients.c - gradients of values and weights: given by consumers, finished, added in order. */
#include "nn/backward/backward.h"

#include "core/base/status.h"

#include <tessera/coll.h>

struct tess_contribution { /* a consumer's contribution to the gradient of a value */
	struct tess_contribution *next;
	struct tess_tensor *d;
	int32_t consumer; /* index of the consumer among the records of the forward */
};

/* ---- values ---------------------------------------------------------------------------------- */

static struct tess_place *make_gradient_place(struct tess_backward *b, const struct tess_tensor *x)
{
	struct tess_place *to = tess_recorder_alloc_places(b->r);

	for (int32_t i = 0; i < b->r->p->mesh.ndims && to; i++)
		to[i] = x->place[i].kind == TESS_SHARD ? x->place[i] : tess_place_replicate();
	return to;
}

struct tess_tensor *tess_backward_make_like(struct tess_backward *b, const struct tess_tensor *x,
                                            const struct tess_place *place, const char *module)
{
	struct tess_tensor *d = b->r->status || !place
	                                ? NULL
	                                : tess_tensor_new(b->r, x->ndim, x->dim, place, module);

	if (d)
		d->local = x->local;
	return d;
}

/* Returns the contributions to a value; a recomputed value shares those of the original. */
static struct tess_contribution **find_given(struct tess_backward *b, const struct tess_tensor *x)
{
	return &b->given[x->repeats ? x->repeats->id : x->id];
}

static void give_of_consumer(struct tess_backward *b, struct tess_tensor *x, struct tess_tensor *d,
                             int32_t consumer)
{
	struct tess_contribution **at, *c;

	if (b->r->status || !d || !tess_dtype_is_float(x->dtype))
		return;
	c = TESS_NEW(&b->r->p->arena, struct tess_contribution, 1);
	if (!c) {
		tess_recorder_keep_error(b->r, TESS_ENOMEM);
		return;
	}
	at = find_given(b, x);
	while (*at && (*at)->consumer < consumer)
		at = &(*at)->next;
	*c = (struct tess_contribution){ *at, d, consumer };
	*at = c;
}

void tess_backward_give(struct tess_backward *b, struct tess_tensor *x, struct tess_tensor *d)
{
	give_of_consumer(b, x, d, b->consumer);
}

static struct tess_tensor *add_gradients(struct tess_backward *b, struct tess_tensor *one,
                                         struct tess_tensor *other)
{
	struct tess_tensor *in[2] = { one, other };
	struct tess_tensor *y = tess_backward_make_like(b, one, one->place, one->module);

	return y && tess_record_append(b->r, TESS_OP_ADD, one->module, 2, in, 1, &y, 0, NULL)
	               ? y
	               : NULL;
}

/* Returns whether contributions are finished and placed alike: they are added before they move. */
static bool are_placed_alike(const struct tess_backward *b, const struct tess_contribution *c)
{
	int32_t ndims = b->r->p->mesh.ndims;
	const struct tess_place *place = c->d->place;
	bool alike = tess_places_find(place, ndims, TESS_PARTIAL, 0) < 0;

	while (alike && (c = c->next))
		alike = tess_places_equal(c->d->place, place, ndims);
	return alike;
}

void tess_backward_set_record(struct tess_backward *b, int32_t consumer)
{
	struct tess_program *p = b->r->p;

	b->r->of = p->record[consumer < b->nforward ? consumer : b->nforward - 1];
}

struct tess_tensor *tess_backward_take(struct tess_backward *b, struct tess_tensor *y)
{
	struct tess_contribution *c = *find_given(b, y);
	struct tess_place *to = c ? make_gradient_place(b, y) : NULL;
	bool alike = to && are_placed_alike(b, c);
	struct tess_tensor *sum = NULL;

	*find_given(b, y) = NULL;
	for (; c && to; c = c->next) {
		struct tess_tensor *d;

		tess_backward_set_record(b, c->consumer);
		d = alike ? c->d : tess_tensor_redistribute(b->r, c->d, to, y->module);
		if (!d)
			return NULL;
		sum = sum ? add_gradients(b, sum, d) : d;
	}
	if (alike)
		sum = tess_tensor_redistribute(b->r, sum, to, y->module);
	tess_backward_set_record(b, b->consumer);
	return b->r->status ? NULL : sum;
}

bool tess_backward_reaches(struct tess_backward *b, const struct tess_record *rec)
{
	for (int32_t i = 0; i < rec->nout; i++)
		if (*find_given(b, rec->out[i]))
			return true;
	return false;
}

/*
 * Gives what the consumers of the out gave to the source of the move: where copies are read does
 * not order the sum.
 */
void tess_backward_record_move(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_contribution **given = find_given(b, rec->out[0]);

	for (const struct tess_contribution *c = *given; c; c = c->next)
		give_of_consumer(b, rec->in[0], c->d, c->consumer);
	*given = NULL;
}

struct tess_tensor **tess_backward_take_parts(struct tess_backward *b,
                                              const struct tess_record *rec)
{
	struct tess_tensor **in = TESS_NEW(&b->r->p->arena, struct tess_tensor *, rec->nout);

	if (!in)
		return tess_recorder_keep_error(b->r, TESS_ENOMEM);
	for (int32_t i = 0; i < rec->nout; i++) {
		in[i] = tess_backward_take(b, rec->out[i]);
		if (!in[i])
			return tess_recorder_fail(
				b->r, TESS_ENOTSUP,
				"%s: part %d of a split is not used, so its gradient is not known; "
				"the model must use all parts to be trained",
				rec->module, (int)i);
	}
	return in;
}

/* ---- weights --------------------------------------------------------------------------------- */

struct tess_tensor *tess_backward_make_token_sum(struct tess_backward *b,
                                                 const struct tess_tensor *of, const char *module,
                                                 int32_t ndim, const struct tess_dim *const *dim,
                                                 struct tess_place *place)
{
	struct tess_program *p = b->r->p;
	struct tess_tensor *y;
	int32_t cut;

	if (b->r->status || !place)
		return NULL;
	cut = tess_recorder_find_place(b->r, of, TESS_SHARD, 0);
	if (cut >= 0 || p->data_along >= 0)
		place[cut >= 0 ? cut : p->data_along] = tess_place_partial();
	y = tess_tensor_new(b->r, ndim, dim, place, module);
	if (y)
		y->sum = cut >= 0 ? p->tokens : p->data_along >= 0 ? p->sequences : NULL;
	return y;
}

struct tess_record *tess_backward_append_token_sum(struct tess_backward *b, int32_t kind,
                                                   const char *module, int32_t nin,
                                                   struct tess_tensor *const *in, int32_t ndim,
                                                   const struct tess_dim *const *dim,
                                                   struct tess_place *place)
{
	struct tess_tensor *y = b->r->status ? NULL
	                                     : tess_backward_make_token_sum(b, in[nin - 1], module,
	                                                                    ndim, dim, place);

	return y ? tess_record_append(b->r, kind, module, nin, in, 1, &y, 0, NULL) : NULL;
}

/* Records the sum over sequences that ranks share: each one is finished, then a term along dp. */
static struct tess_tensor *add_sequence_sum(struct tess_backward *b, struct tess_tensor *d,
                                            int32_t along)
{
	struct tess_program *p = b->r->p;
	struct tess_place *to = tess_tensor_replace_place(b->r, d, along, tess_place_replicate());
	struct tess_record *rec;
	struct tess_tensor *y;

	if (!to)
		return NULL;
	to[p->data_along] = tess_place_partial();
	y = tess_backward_make_like(b, d, to, d->module);
	rec = y ? tess_record_append(b->r, TESS_REC_SEQUENCE_SUM, d->module, 1, &d, 1, &y, 0, NULL)
	        : NULL;
	if (!rec)
		return NULL;
	y->sum = p->sequences;
	rec->along = along;
	return y;
}

struct tess_tensor *tess_backward_finish_tokens(struct tess_backward *b, struct tess_tensor *d,
                                                const char *module)
{
	struct tess_program *p = b->r->p;
	int32_t partial = tess_recorder_find_partial(b->r, d->place);

	if (partial < 0 || partial == p->data_along)
		return d;
	return d->sum == p->tokens && p->data_along >= 0
	               ? add_sequence_sum(b, d, partial)
	               : tess_tensor_move(b->r, d, partial, tess_place_replicate(), module);
}

/* Moves the gradient d to the place of its weight, except that it may be Partial along dp. */
static struct tess_tensor *place_weight_gradient(struct tess_backward *b,
                                                 const struct tess_weight *w, struct tess_tensor *d)
{
	struct tess_program *p = b->r->p;
	int32_t i = 0;

	d = tess_backward_finish_tokens(b, d, w->name);
	if (!d)
		return NULL;
	while (i < p->mesh.ndims &&
	       (i == p->data_along || tess_place_equal(d->place[i], w->place[i])))
		i++;
	return i == p->mesh.ndims ? d : tess_tensor_redistribute(b->r, d, w->place, w->name);
}

/*
 * Returns the weight in whose memory the gradient of w is added: that of a tied head is apart, in
 * the memory of the first head of its table, where micro-batches or stages would mix the two.
 */
static const struct tess_weight *find_gradient_weight(const struct tess_program *p,
                                                      const struct tess_weight *w)
{
	int32_t i = 0;

	if (!w->table || (p->pipeline_along < 0 && !p->training->several))
		return tess_weight_get_home(w);
	while (p->weight[i]->table != w->table)
		i++;
	return p->weight[i];
}

void tess_backward_give_weight(struct tess_backward *b, const struct tess_weight *w,
                               struct tess_tensor *d)
{
	struct tess_program *p = b->r->p;
	const struct tess_weight *home = tess_weight_get_home(w), *to = find_gradient_weight(p, w);
	struct tess_gradient *list;
	struct tess_record *rec;
	bool added;

	d = b->r->status || !d ? NULL : place_weight_gradient(b, home, d);
	rec = d ? tess_record_append(b->r, TESS_REC_GRADIENT, home->name, 1, &d, 0, NULL, 1, &to)
	        : NULL;
	if (!rec)
		return;
	added = b->recorded[to->index];
	b->recorded[to->index] = true;
	rec->nnum = TESS_REC_GRADIENT_ADDED + 1;
	rec->num[TESS_REC_GRADIENT_ADDED] = added || p->training->accumulate;
	if (added || to != home)
		return;
	list = tess_arena_grow(&p->arena, p->gradient, (size_t)p->ngradients, sizeof *list);
	if (!list) {
		tess_recorder_keep_error(b->r, TESS_ENOMEM);
		return;
	}
	p->gradient = list;
	list[p->ngradients++] = (struct tess_gradient){ home, d };
}

void tess_backward_record_none(struct tess_backward *b, const struct tess_record *rec)
{
	tess_recorder_fail(b->r, TESS_ENOTSUP,
	                   "%s: %s has no backward, so a model that has it cannot be trained",
	                   rec->module, tess_record_kind_name(rec->kind));
}

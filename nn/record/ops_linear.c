/* ops_linear.c - records products with weights: embed, linear, tied, and the bias. */
#include "core/base/status.h"
#include "nn/record/recorder.h"

#include <string.h>

/* Limits the length of sequences to that of a table of positions. */
static void limit_positions(struct tess_recorder *r, int64_t n)
{
	if (!r->p->max_positions || n < r->p->max_positions)
		r->p->max_positions = n > 0 ? n : 1;
}

static struct tess_tensor *record_embed(struct tess_nn *nn, const char *name,
                                        struct tess_tensor *ids, struct tess_dim *vocab,
                                        struct tess_dim *hidden)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	const struct tess_module *m;
	const struct tess_weight *w;
	struct tess_place *place;
	struct tess_record *rec;
	struct tess_tensor *y;
	double first;

	if (r->status)
		return NULL;
	if (!ids || ids->ndim != 1 || !vocab || !hidden)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: embed needs ids or positions, and two dimensions",
		                          tess_recorder_format_path(r, name));
	first = (double)ids->first;
	if (ids->id == r->p->positions->id)
		limit_positions(r, vocab->size - ids->first);
	m = tess_module_open(r, tess_recorder_format_path(r, name), "embedding");
	ids = m ? tess_module_prepare_input(r, m, ids) : NULL;
	w = ids ? tess_weight_add(r, m,
	                          &(struct tess_weight_request){
					  "weight", 2, 1, 0, { vocab, hidden }, false })
	        : NULL;
	if (!w)
		return NULL;
	place = tess_recorder_alloc_places(r);
	for (int32_t i = 0; i < r->p->mesh.ndims && place; i++) {
		place[i] = w->place[i].kind == TESS_REPLICATE ? ids->place[i]
		           : w->place[i].dim == 0             ? tess_place_partial()
		                                              : tess_place_shard(1);
		if (ids->place[i].kind != TESS_REPLICATE && w->place[i].kind != TESS_REPLICATE)
			return tess_recorder_fail(
				r, TESS_EINVAL,
				"%s: a cut table cannot look up ids that are cut by %s%s; leave "
				"the ids whole, or replicate the table",
				m->site.module, ids->module, tess_recorder_along(r, i));
	}
	y = place ? tess_tensor_new(r, 2, (const struct tess_dim *[]){ ids->dim[0], hidden }, place,
	                            m->site.module)
	          : NULL;
	rec = y ? tess_record_append(r, TESS_OP_EMBED, m->site.module, 1, &ids, 1, &y, 1, &w)
	        : NULL;
	if (!rec)
		return NULL;
	rec->nnum = TESS_EMBED_NUMS;
	rec->num[TESS_EMBED_FIRST] = -first;
	y->sum = tess_recorder_find_place(r, y, TESS_PARTIAL, 0) >= 0 ? vocab : NULL;
	return tess_module_prepare_output(r, m, y);
}

/* Records a bias, which requires a finished sum: in a Partial it would count once per rank. */
static struct tess_tensor *record_bias(struct tess_recorder *r, const struct tess_module *m,
                                       struct tess_tensor *y, const struct tess_weight *b)
{
	struct tess_tensor *out;

	if (r->status || !y || !b)
		return NULL;
	for (int32_t i = 0; i < r->p->mesh.ndims; i++) {
		if (y->place[i].kind == TESS_PARTIAL)
			return tess_recorder_fail(
				r, TESS_EINVAL,
				"%s: a bias cannot enter an unfinished sum; style %s must let its "
				"layout finish it%s (rowwise does)",
				m->site.module, m[i].spec, tess_recorder_along(r, i));
		if (b->place[i].kind != TESS_REPLICATE &&
		    !tess_place_is(y->place[i], TESS_SHARD, 1))
			return tess_recorder_fail(
				r, TESS_EINVAL,
				"%s: style %s: the bias is cut%s, but the value is not; cut both, "
				"or replicate the bias",
				b->name, b->style[i], tess_recorder_along(r, i));
	}
	out = tess_tensor_new(r, 2, y->dim, y->place, m->site.module);
	if (!out || !tess_record_append(r, TESS_OP_BIAS, m->site.module, 1, &y, 1, &out, 1, &b))
		return NULL;
	return out;
}

/* Combines the places that the layouts of n modules request of their input along `along`. */
static bool combine_input_places(struct tess_recorder *r, const struct tess_tensor *x, int32_t n,
                                 const struct tess_module *const *m, int32_t along,
                                 struct tess_place *to)
{
	for (int32_t i = 0; i < n; i++) {
		struct tess_place requested = m[i][along].io.in[0];

		if (requested.kind == TESS_ASIS)
			continue;
		if (tess_place_check(requested, 2, m[i]->site.module))
			return tess_recorder_keep_error(r, TESS_EINVAL) != NULL;
		requested = tess_place_normalize(requested, 2);
		if (tess_place_is(requested, TESS_SHARD, 1) &&
		    !tess_place_is(x->place[along], TESS_SHARD, 1))
			requested = tess_place_replicate();
		*to = to->kind == TESS_ASIS || tess_place_equal(*to, requested)
		              ? requested
		              : tess_place_replicate();
	}
	return true;
}

/*
 * Moves x for the weights of one op: to the place that their layouts request if they agree, else to
 * Replicate. Shard(-1) next to other weights becomes a view of the replicated x.
 */
static struct tess_tensor *place_linear_input(struct tess_recorder *r, struct tess_tensor *x,
                                              int32_t n, const struct tess_module *const *m)
{
	struct tess_place *to;

	if (n == 1)
		return tess_module_prepare_input(r, m[0], x);
	to = tess_recorder_alloc_places(r);
	for (int32_t i = 0; i < r->p->mesh.ndims && to; i++)
		if (!combine_input_places(r, x, n, m, i, &to[i]))
			return NULL;
	return to ? tess_tensor_redistribute(r, x, to, m[0]->site.module) : NULL;
}

/*
 * Infers a place. x, W -> y: R, R -> R; R, S(out) -> S(1); R, S(in) -> Partial, with a view of x;
 * S(1), S(in) -> Partial; S(0), R -> S(0).
 */
static bool infer_linear_place(struct tess_recorder *r, const struct tess_module *m,
                               const struct tess_tensor *x, const struct tess_weight *w,
                               struct tess_place *out)
{
	int32_t role = tess_weight_role(w, m->along);
	struct tess_place from = x->place[m->along];
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];
	const char *style = w->style[m->along]; /* the module's, or of a rule of its own */

	if (from.kind == TESS_REPLICATE)
		*out = role == TESS_ROLE_WHOLE ? tess_place_replicate()
		       : role == TESS_ROLE_OUT ? tess_place_shard(1)
		                               : tess_place_partial();
	else if (tess_place_is(from, TESS_SHARD, 1) && role == TESS_ROLE_IN)
		*out = tess_place_partial();
	else if (tess_place_is(from, TESS_SHARD, 0) && role == TESS_ROLE_WHOLE)
		*out = tess_place_shard(0);
	else
		return tess_recorder_fail(
			       r, TESS_EINVAL,
			       "%s: style %s: a weight that is %s%s cannot take %s from %s; %s",
			       strcmp(style, m->spec) ? w->name : m->site.module, style,
			       tess_place_format(w->place[m->along], a),
			       tess_recorder_along(r, m->along), tess_place_format(from, b),
			       x->module,
			       from.kind == TESS_PARTIAL ? tess_recorder_describe_gather(r, x)
			       : tess_place_is(from, TESS_SHARD, 1)
				       ? "its style should be rowwise"
				       : "its style should ask for whole rows, as colwise does") !=
		       NULL;
	return true;
}

static struct tess_tensor *finish_linear_output(struct tess_recorder *r,
                                                const struct tess_module *m,
                                                const struct tess_linear *l, struct tess_tensor *y,
                                                const struct tess_dim *out)
{
	const struct tess_weight *b = NULL;
	int32_t partial = tess_recorder_find_place(r, y, TESS_PARTIAL, 0);

	if (l->flags & TESS_BIAS) {
		b = tess_weight_add(
			r, m, &(struct tess_weight_request){ "bias", 1, 0, -1, { out }, false });
		if (!b)
			return NULL;
	}
	if (b && partial >= 0 && !m->hooks) { /* only finish the sum */
		y = tess_tensor_move(r, y, partial, m[partial].io.out[0], m->site.module);
		partial = -1;
	}
	if (b && partial < 0) {
		y = record_bias(r, m, y, b);
		b = NULL;
	}
	y = tess_module_prepare_output(r, m, y);
	return b ? record_bias(r, m, y, b) : y;
}

/* Records one op over n weights, which may include a tied table. */
static void record_linear_op(struct tess_recorder *r, struct tess_tensor *x, int32_t n,
                             const struct tess_module *const *m, const struct tess_weight *const *w,
                             const struct tess_linear *l, struct tess_tensor **y)
{
	struct tess_tensor **raw = TESS_NEW(&r->p->arena, struct tess_tensor *, n);
	struct tess_place *place = tess_recorder_alloc_places(r);

	if (!raw)
		tess_recorder_keep_error(r, TESS_ENOMEM);
	x = raw && place ? place_linear_input(r, x, n, m) : NULL;
	for (int32_t i = 0; i < n && x; i++) {
		const struct tess_dim *out = w[i]->dim[w[i]->out_dim];

		for (int32_t k = 0; k < r->p->mesh.ndims; k++)
			if (!infer_linear_place(r, &m[i][k], x, w[i], &place[k]))
				return;
		raw[i] = tess_tensor_new(r, 2, (const struct tess_dim *[]){ x->dim[0], out }, place,
		                         m[i]->site.module);
		if (!raw[i])
			return;
		raw[i]->sum = tess_recorder_find_place(r, raw[i], TESS_PARTIAL, 0) >= 0
		                      ? w[i]->dim[w[i]->in_dim]
		                      : NULL;
	}
	if (!x || !tess_record_append(r, TESS_OP_LINEAR, m[0]->site.module, 1, &x, n, raw, n, w))
		return;
	for (int32_t i = 0; i < n; i++)
		y[i] = finish_linear_output(r, m[i], &l[i], raw[i], w[i]->dim[w[i]->out_dim]);
}

static const struct tess_weight *add_linear_weight(struct tess_recorder *r,
                                                   const struct tess_module *m,
                                                   const struct tess_linear *l,
                                                   const struct tess_dim *in)
{
	struct tess_weight_request rows = { "weight", 2, 0, 1, { l->out, in }, false };
	struct tess_weight_request columns = { "weight", 2, 1, 0, { in, l->out }, true };

	return tess_weight_add(r, m, l->flags & TESS_IN_OUT ? &columns : &rows);
}

static void record_linear(struct tess_nn *nn, struct tess_tensor *x, const struct tess_linear *w,
                          struct tess_tensor **y)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	const struct tess_module **m;
	const struct tess_weight **weight;
	struct tess_linear *some;
	struct tess_tensor **outputs;
	int32_t n = 0, k = 0, *at;

	while (w && w[n].name)
		y[n++] = NULL;
	m = TESS_NEW(&r->p->arena, const struct tess_module *, n);
	weight = TESS_NEW(&r->p->arena, const struct tess_weight *, n);
	some = TESS_NEW(&r->p->arena, struct tess_linear, n);
	outputs = TESS_NEW(&r->p->arena, struct tess_tensor *, n);
	at = TESS_NEW(&r->p->arena, int32_t, n);
	if (!m || !weight || !some || !outputs || !at)
		tess_recorder_keep_error(r, TESS_ENOMEM);
	if (!tess_recorder_check_rows(r, "linear", x))
		return;
	if (!n)
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: a linear op without weights; they end with name NULL",
		                   tess_recorder_format_path(r, NULL));
	for (int32_t i = 0; i < n && !r->status; i++) {
		if (!w[i].out) {
			tess_recorder_fail(r, TESS_EINVAL,
			                   "%s: a linear op without an out dimension",
			                   tess_recorder_format_path(r, w[i].name));
			return;
		}
		m[i] = tess_module_open(r, tess_recorder_format_path(r, w[i].name), "linear");
	}
	for (int32_t i = 0; i < n && !r->status; i++) {
		const struct tess_weight *own_weight = add_linear_weight(r, m[i], &w[i], x->dim[1]);

		if (!own_weight)
			return;
		if (m[i]->hooks) { /* hooks may change the input: a separate op */
			record_linear_op(r, x, 1, &m[i], &own_weight, &w[i], &y[i]);
			continue;
		}
		m[k] = m[i];
		weight[k] = own_weight;
		some[k] = w[i];
		at[k++] = i;
	}
	if (k && !r->status)
		record_linear_op(r, x, k, m, weight, some, outputs);
	for (int32_t i = 0; i < k; i++)
		y[at[i]] = r->status ? NULL : outputs[i];
}

static struct tess_tensor *record_tied(struct tess_nn *nn, const char *name, struct tess_tensor *x,
                                       const char *table)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	const char *want = tess_arena_format(&r->p->arena, "%s.weight", table);
	const struct tess_module *m;
	const struct tess_weight *w = NULL;
	struct tess_tensor *y = NULL;

	if (!want)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	if (!tess_recorder_check_rows(r, "tied", x))
		return NULL;
	for (int32_t i = 0; i < r->p->nweights && !w; i++)
		if (!strcmp(r->p->weight[i]->name, want))
			w = r->p->weight[i];
	if (!w)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: tied to %s, which the model does not have",
		                          tess_recorder_format_path(r, name), want);
	if (w->ndim != 2)
		return tess_recorder_fail(r, TESS_EINVAL, "%s: tied to %s, which is no table",
		                          tess_recorder_format_path(r, name), want);
	m = tess_module_open(r, tess_recorder_format_path(r, name), "linear");
	w = m ? tess_weight_add_tied(r, m, w) : NULL;
	if (w)
		record_linear_op(r, x, 1, &m, &w, &(struct tess_linear){ name, NULL, 0, 0 }, &y);
	return y;
}

void tess_ops_install_linear(struct tess_nn *nn)
{
	nn->embed = record_embed;
	nn->linear = record_linear;
	nn->tied = record_tied;
}

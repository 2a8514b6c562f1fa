/* ops.c - the recording functions, with the placement rule of each op (table in docs/ops.md). */
#include "core/base/status.h"
#include "nn/recorder.h"

#include <string.h>

static struct tess_recorder *get_recorder(struct tess_nn *nn)
{
	return (struct tess_recorder *)nn;
}

/* Places for the result of an op, whose rule sets each. */
static struct tess_place *alloc_places(struct tess_recorder *r)
{
	struct tess_place *place = TESS_NEW(&r->p->arena, struct tess_place, r->p->mesh.ndims);

	return place ? place : tess_recorder_keep_error(r, TESS_ENOMEM);
}

/* The first mesh dimension along which x is placed so; -1: none. */
static int32_t find_place(const struct tess_recorder *r, const struct tess_tensor *x, int32_t kind,
                          int32_t dim)
{
	return tess_places_find(x->place, r->p->mesh.ndims, kind, dim);
}

/* Fails where the sum that makes x is not finished; `what` would read it. */
static bool check_finished(struct tess_recorder *r, const char *what, const struct tess_tensor *x)
{
	int32_t partial = find_place(r, x, TESS_PARTIAL, 0);

	if (partial >= 0)
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: %s of an unfinished sum of %s%s; let its style or a gather "
		                   "finish it",
		                   tess_recorder_format_path(r, NULL), what, x->module,
		                   tess_recorder_along(r, partial));
	return partial < 0;
}

/* ---- embed, linear, tied --------------------------------------------------------------------- */

static struct tess_tensor *record_embed(struct tess_nn *nn, const char *name,
                                        struct tess_tensor *ids, struct tess_dim *vocab,
                                        struct tess_dim *hidden)
{
	struct tess_recorder *r = get_recorder(nn);
	const struct tess_module *m;
	const struct tess_weight *w;
	struct tess_place *place;
	struct tess_tensor *y;

	if (r->status || !ids || !vocab || !hidden)
		return NULL;
	m = tess_module_open(r, tess_recorder_format_path(r, name), "embedding");
	ids = m ? tess_module_prepare_input(r, m, ids) : NULL;
	w = ids ? tess_weight_add(r, m,
	                          &(struct tess_weight_request){
					  "weight", 2, 1, 0, { vocab, hidden }, false })
	        : NULL;
	if (!w)
		return NULL;
	place = alloc_places(r);
	for (int32_t i = 0; i < r->p->mesh.ndims && place; i++) {
		place[i] = w->place[i].kind == TESS_REPLICATE ? ids->place[i]
		           : w->place[i].dim == 0             ? tess_place_partial()
		                                              : tess_place_shard(1);
		if (ids->place[i].kind != TESS_REPLICATE && w->place[i].kind != TESS_REPLICATE)
			return tess_recorder_fail(
				r, TESS_EINVAL,
				"%s: a cut table cannot look up ids that are cut by %s%s",
				m->site.module, ids->module, tess_recorder_along(r, i));
	}
	y = place ? tess_tensor_new(r, 2, (const struct tess_dim *[]){ ids->dim[0], hidden }, place,
	                            m->site.module)
	          : NULL;
	if (!y || !tess_record_append(r, TESS_OP_EMBED, m->site.module, 1, &ids, 1, &y, 1, &w))
		return NULL;
	y->sum = find_place(r, y, TESS_PARTIAL, 0) >= 0 ? vocab : NULL;
	return tess_module_prepare_output(r, m, y);
}

/* A bias is added to the finished sum: added to a Partial, it would count once per rank. */
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
				"%s: the bias is cut%s, but the value is not; style %s must "
				"replicate it",
				m->site.module, tess_recorder_along(r, i), m[i].spec);
	}
	out = tess_tensor_new(r, 2, y->dim, y->place, m->site.module);
	if (!out || !tess_record_append(r, TESS_OP_BIAS, m->site.module, 1, &y, 1, &out, 1, &b))
		return NULL;
	return out;
}

/* The place along mesh dimension `along` that the layouts of n modules request of their input. */
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
 * Moves x for the weights of one op: to the place that their layouts ask for if they agree, else to
 * Replicate. Shard(-1) beside other weights becomes a view of the replicated x.
 */
static struct tess_tensor *place_linear_input(struct tess_recorder *r, struct tess_tensor *x,
                                              int32_t n, const struct tess_module *const *m)
{
	struct tess_place *to;

	if (n == 1)
		return tess_module_prepare_input(r, m[0], x);
	to = alloc_places(r);
	for (int32_t i = 0; i < r->p->mesh.ndims && to; i++)
		if (!combine_input_places(r, x, n, m, i, &to[i]))
			return NULL;
	return to ? tess_tensor_redistribute(r, x, to, m[0]->site.module) : NULL;
}

/*
 * x, W -> y: R, R -> R; R, S(out) -> S(1); R, S(in) -> Partial, with a view of x; S(1), S(in) ->
 * Partial; S(0), R -> S(0).
 */
static bool infer_linear_place(struct tess_recorder *r, const struct tess_module *m,
                               const struct tess_tensor *x, const struct tess_weight *w,
                               struct tess_place *out)
{
	int32_t role = tess_weight_role(w, m->along);
	struct tess_place from = x->place[m->along];
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];

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
			       m->site.module, m->spec, tess_place_format(w->place[m->along], a),
			       tess_recorder_along(r, m->along), tess_place_format(from, b),
			       x->module,
			       tess_place_is(from, TESS_SHARD, 1) && role == TESS_ROLE_WHOLE
				       ? "its style should be rowwise"
				       : "a layout must ask for another placement") != NULL;
	return true;
}

static struct tess_tensor *finish_linear_output(struct tess_recorder *r,
                                                const struct tess_module *m,
                                                const struct tess_linear *l, struct tess_tensor *y,
                                                const struct tess_dim *out)
{
	const struct tess_weight *b = NULL;
	int32_t partial = find_place(r, y, TESS_PARTIAL, 0);

	if (l->flags & TESS_BIAS) {
		b = tess_weight_add(
			r, m, &(struct tess_weight_request){ "bias", 1, 0, -1, { out }, false });
		if (!b)
			return NULL;
	}
	if (b && partial >= 0 && !m->hooks) { /* finish the sum, and only that */
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

/* One op over n weights, which may include a tied table. */
static void record_linear_op(struct tess_recorder *r, struct tess_tensor *x, int32_t n,
                             const struct tess_module *const *m, const struct tess_weight *const *w,
                             const struct tess_linear *l, struct tess_tensor **y)
{
	struct tess_tensor **raw = TESS_NEW(&r->p->arena, struct tess_tensor *, n);
	struct tess_place *place = alloc_places(r);

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
		raw[i]->sum = find_place(r, raw[i], TESS_PARTIAL, 0) >= 0 ? w[i]->dim[w[i]->in_dim]
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
	struct tess_recorder *r = get_recorder(nn);
	const struct tess_module **m;
	const struct tess_weight **weight;
	struct tess_linear *some;
	struct tess_tensor **outputs;
	int32_t n = 0, k = 0, *at;

	while (w[n].name)
		y[n++] = NULL;
	m = TESS_NEW(&r->p->arena, const struct tess_module *, n);
	weight = TESS_NEW(&r->p->arena, const struct tess_weight *, n);
	some = TESS_NEW(&r->p->arena, struct tess_linear, n);
	outputs = TESS_NEW(&r->p->arena, struct tess_tensor *, n);
	at = TESS_NEW(&r->p->arena, int32_t, n);
	if (!m || !weight || !some || !outputs || !at)
		tess_recorder_keep_error(r, TESS_ENOMEM);
	for (int32_t i = 0; i < n; i++) {
		if (r->status || !x || !w[i].out)
			return;
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
	struct tess_recorder *r = get_recorder(nn);
	const char *want = tess_arena_format(&r->p->arena, "%s.weight", table);
	const struct tess_module *m;
	const struct tess_weight *w = NULL;
	struct tess_tensor *y = NULL;

	if (r->status || !x || !want)
		return NULL;
	for (int32_t i = 0; i < r->p->nweights && !w; i++)
		if (!strcmp(r->p->weight[i]->name, want))
			w = r->p->weight[i];
	if (!w)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: tied to %s, which the model does not have",
		                          tess_recorder_format_path(r, name), want);
	m = tess_module_open(r, tess_recorder_format_path(r, name), "linear");
	w = m ? tess_weight_add_tied(r, m, w) : NULL;
	if (w)
		record_linear_op(r, x, 1, &m, &w, &(struct tess_linear){ name, NULL, 0, 0 }, &y);
	return y;
}

/* ---- rows, norm, rope, attention ------------------------------------------------------------- */

/* How the user can get whole rows of x. */
static const char *describe_gather_fix(const struct tess_recorder *r, const struct tess_tensor *x)
{
	return find_place(r, x, TESS_PARTIAL, 0) >= 0
	               ? "let its style (rowwise) or a gather around it finish the sum"
	               : "use colwise_rep there (embedding_colwise for an embedding)";
}

static struct tess_tensor *record_select_rows(struct tess_nn *nn, struct tess_tensor *x)
{
	struct tess_recorder *r = get_recorder(nn);
	struct tess_tensor *in[2] = { x, r->p->rows }, *y;
	int32_t odd;

	if (r->status || !x || r->p->nselected == r->p->ntokens)
		return r->status ? NULL : x;
	odd = find_place(r, x, TESS_PARTIAL, 0);
	odd = odd < 0 ? find_place(r, x, TESS_SHARD, 1) : odd;
	if (odd >= 0)
		return tess_recorder_fail(
			r, TESS_EINVAL, "the selected rows: %s gives no whole rows%s; %s",
			x->module, tess_recorder_along(r, odd), describe_gather_fix(r, x));
	in[0] = tess_tensor_redistribute(r, x, r->whole, "select_rows");
	if (!in[0])
		return NULL;
	y = tess_tensor_new(r, 2, (const struct tess_dim *[]){ in[1]->dim[0], x->dim[1] },
	                    in[0]->place, x->module);
	return y && tess_record_append(r, TESS_OP_SELECT_ROWS, "select_rows", 2, in, 1, &y, 0, NULL)
	               ? y
	               : NULL;
}

static const struct tess_dim *make_one_unit_dim(struct tess_recorder *r, const char *name,
                                                int64_t n)
{
	struct tess_dim *d = tess_dim_new(r, name, n, 0);

	if (d)
		d->nunits = 1;
	return d;
}

static struct tess_tensor *record_norm(struct tess_nn *nn, const char *name, struct tess_tensor *x,
                                       int32_t kind, double eps)
{
	struct tess_recorder *r = get_recorder(nn);
	bool heads = kind & TESS_HEADS, layer = (kind & ~TESS_HEADS) == TESS_LAYER;
	const struct tess_weight *w[2] = { 0 };
	const struct tess_module *m;
	const struct tess_dim *over;
	struct tess_record *rec;
	struct tess_tensor *y;
	char text[TESS_PLACE_SIZE];
	int32_t odd;

	if (r->status || !x)
		return NULL;
	over = heads ? make_one_unit_dim(r, "head", x->dim[1]->unit_size) : x->dim[1];
	m = over ? tess_module_open(r, tess_recorder_format_path(r, name), "norm") : NULL;
	x = m ? tess_module_prepare_input(r, m, x) : NULL;
	w[0] = x ? tess_weight_add(
			   r, m,
			   &(struct tess_weight_request){ "weight", 1, -1, -1, { over }, false })
	         : NULL;
	if (w[0] && layer)
		w[1] = tess_weight_add(
			r, m, &(struct tess_weight_request){ "bias", 1, -1, -1, { over }, false });
	if (r->status || !x)
		return NULL;
	odd = find_place(r, x, TESS_PARTIAL, 0);
	if (odd < 0 && !heads)
		odd = find_place(r, x, TESS_SHARD, 1);
	if (odd >= 0)
		return tess_recorder_fail(
			r, TESS_EINVAL, "%s: needs whole rows, but %s gives %s%s; %s",
			m->site.module, x->module, tess_place_format(x->place[odd], text),
			tess_recorder_along(r, odd), describe_gather_fix(r, x));
	y = tess_tensor_new(r, 2, x->dim, x->place, m->site.module);
	rec = y ? tess_record_append(r, TESS_OP_NORM, m->site.module, 1, &x, 1, &y, 1 + layer, w)
	        : NULL;
	if (!rec)
		return NULL;
	rec->nnum = TESS_NORM_NUMS;
	rec->num[TESS_NORM_KIND] = layer ? TESS_LAYER : TESS_RMS;
	rec->num[TESS_NORM_EPS] = eps;
	rec->num[TESS_NORM_RUN] = heads ? (double)x->dim[1]->unit_size : 0;
	return tess_module_prepare_output(r, m, y);
}

static bool is_same_rope(const struct tess_rope *a, const struct tess_rope *b)
{
	return a->type == b->type && a->theta == b->theta && a->factor == b->factor &&
	       a->low == b->low && a->high == b->high && a->original == b->original &&
	       a->scale == b->scale && a->fractions == b->fractions;
}

/* The index of the table for heads of `each` elements, by the checkpoint's settings; -1: failed. */
static int32_t find_rope_table(struct tess_recorder *r, int64_t each)
{
	const struct tess_source *source = r->options->source;
	struct tess_rope_use use = { .each = each }, *list;
	struct tess_program *p = r->p;
	tess_status st = tess_rope_read(source->name, source->config, &use.rope);

	for (int32_t i = 0; i < p->nropes && !st; i++)
		if (p->rope[i].each == each && is_same_rope(&p->rope[i].rope, &use.rope))
			return i;
	list = st ? NULL : tess_arena_grow(&p->arena, p->rope, (size_t)p->nropes, sizeof *list);
	if (!list)
		return tess_recorder_keep_error(r, st ? st : TESS_ENOMEM), -1;
	p->rope = list;
	list[p->nropes] = use;
	return p->nropes++;
}

/* The positions of the rows of x. */
static struct tess_tensor *place_positions(struct tess_recorder *r, const struct tess_tensor *x)
{
	struct tess_place *to = alloc_places(r);

	for (int32_t i = 0; i < r->p->mesh.ndims && to; i++)
		if (tess_place_is(x->place[i], TESS_SHARD, 0))
			to[i] = x->place[i];
	return to ? tess_tensor_redistribute(r, r->p->positions, to, x->module) : NULL;
}

static struct tess_tensor *record_rope(struct tess_nn *nn, struct tess_tensor *x)
{
	struct tess_recorder *r = get_recorder(nn);
	struct tess_tensor *in[2], *y;
	struct tess_record *rec;
	int32_t table;

	if (r->status || !x)
		return NULL;
	if (!check_finished(r, "rope", x))
		return NULL;
	if (x->dim[1]->unit_size <= 0 || x->dim[1]->unit_size % 2)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: rope needs heads of an even size, not %s of %lld",
		                          tess_recorder_format_path(r, NULL), x->dim[1]->name,
		                          (long long)x->dim[1]->unit_size);
	in[0] = x;
	in[1] = place_positions(r, x);
	y = tess_tensor_new(r, 2, x->dim, x->place, x->module);
	table = y && in[1] ? find_rope_table(r, x->dim[1]->unit_size) : -1;
	rec = table < 0 ? NULL
	                : tess_record_append(r, TESS_OP_ROPE, x->module, 2, in, 1, &y, 0, NULL);
	if (!rec)
		return NULL;
	rec->nnum = TESS_REC_ROPE_TABLE + 1;
	rec->num[TESS_ROPE_HEAD] = (double)x->dim[1]->unit_size;
	rec->num[TESS_REC_ROPE_TABLE] = table;
	return y;
}

/* The page class of layers with this window; -1 after an error. */
static int32_t get_page_class(struct tess_recorder *r, int64_t window)
{
	struct tess_program *p = r->p;
	int32_t i = 0;
	int64_t *list;

	while (i < p->nclasses && p->class_window[i] != window)
		i++;
	if (i < p->nclasses)
		return i;
	list = tess_arena_grow(&p->arena, p->class_window, (size_t)i, sizeof *list);
	if (!list)
		return tess_recorder_keep_error(r, TESS_ENOMEM), -1;
	list[p->nclasses++] = window;
	p->class_window = list;
	return i;
}

static struct tess_tensor *record_attention(struct tess_nn *nn, struct tess_tensor *q,
                                            struct tess_tensor *k, struct tess_tensor *v,
                                            double scale, int64_t window)
{
	struct tess_recorder *r = get_recorder(nn);
	struct tess_tensor *in[5] = { q, k, v, r->p->positions, r->p->slots }, *y;
	const char *module = tess_recorder_format_path(r, NULL);
	struct tess_place *to;
	struct tess_record *rec;
	int32_t page_class;

	if (r->status || !q || !k || !v)
		return NULL;
	if (k->dim[1] != v->dim[1] || k->dim[1]->base != q->dim[1]->base || !q->dim[1]->unit_size)
		return tess_recorder_fail(r, TESS_EINVAL, "%s: %s and %s do not fit %s", module,
		                          k->dim[1]->name, v->dim[1]->name, q->dim[1]->name);
	to = alloc_places(r);
	for (int32_t d = 0; d < r->p->mesh.ndims && to; d++) {
		to[d] = tess_place_replicate();
		for (int32_t i = 0; i < 3; i++)
			if (tess_place_is(in[i]->place[d], TESS_SHARD, 1))
				to[d] = tess_place_shard(1);
	}
	for (int32_t i = 0; i < 3 && to; i++)
		in[i] = tess_tensor_slice_operand(r, in[i], to, module);
	page_class = get_page_class(r, window);
	y = r->status ? NULL : tess_tensor_new(r, 2, q->dim, to, module);
	rec = y ? tess_record_append(r, TESS_OP_ATTENTION, module, 5, in, 1, &y, 0, NULL) : NULL;
	if (!rec)
		return NULL;
	rec->nnum = TESS_ATTENTION_NUMS;
	rec->num[TESS_ATTENTION_SCALE] = scale;
	rec->num[TESS_ATTENTION_WINDOW] = (double)window;
	rec->num[TESS_REC_ATTENTION_CLASS] = page_class;
	rec->num[TESS_ATTENTION_DTYPE] = r->options->kv_dtype ? r->options->kv_dtype : TESS_F32;
	return y;
}

/* ---- elementwise ----------------------------------------------------------------------------- */

/* Along each mesh dimension the operand that is not replicated decides; others are sliced. */
static struct tess_record *record_elementwise(struct tess_recorder *r, int32_t kind,
                                              const char *what, int32_t n, struct tess_tensor **in,
                                              struct tess_tensor **y)
{
	const char *module = tess_recorder_format_path(r, NULL), *from;
	struct tess_place *to = alloc_places(r);

	from = in[0]->module;
	for (int32_t i = 0; i < n && to; i++) {
		if (in[i]->ndim != in[0]->ndim || in[i]->dim[0] != in[0]->dim[0] ||
		    in[i]->dim[1] != in[0]->dim[1])
			return tess_recorder_fail(r, TESS_EINVAL,
			                          "%s: %s of %s and %s: their dimensions differ",
			                          module, what, in[0]->module, in[i]->module);
		if (!check_finished(r, what, in[i]))
			return NULL;
		for (int32_t d = 0; d < r->p->mesh.ndims; d++) {
			if (i && to[d].kind != TESS_REPLICATE)
				continue;
			if (in[i]->place[d].kind != TESS_REPLICATE)
				from = in[i]->module;
			to[d] = in[i]->place[d];
		}
	}
	for (int32_t i = 0; i < n && to; i++)
		in[i] = tess_tensor_slice_operand(r, in[i], to, module);
	*y = r->status ? NULL : tess_tensor_new(r, in[0]->ndim, in[0]->dim, in[0]->place, from);
	return *y ? tess_record_append(r, kind, module, n, in, 1, y, 0, NULL) : NULL;
}

static struct tess_tensor *record_glu(struct tess_nn *nn, struct tess_tensor *a,
                                      struct tess_tensor *b, int32_t act)
{
	struct tess_recorder *r = get_recorder(nn);
	struct tess_tensor *in[2] = { a, b }, *y;
	struct tess_record *rec;

	if (r->status || !a)
		return NULL;
	rec = record_elementwise(r, TESS_OP_GLU, "a glu", b ? 2 : 1, in, &y);
	if (!rec)
		return NULL;
	rec->nnum = TESS_GLU_NUMS;
	rec->num[TESS_GLU_ACTIVATION] = act;
	return y;
}

static struct tess_tensor *record_add(struct tess_nn *nn, struct tess_tensor *a,
                                      struct tess_tensor *b)
{
	struct tess_recorder *r = get_recorder(nn);
	struct tess_tensor *in[2] = { a, b }, *y;

	if (r->status || !a || !b)
		return NULL;
	return record_elementwise(r, TESS_OP_ADD, "an addition", 2, in, &y) ? y : NULL;
}

static void record_split(struct tess_nn *nn, struct tess_tensor *x, struct tess_tensor **part)
{
	struct tess_recorder *r = get_recorder(nn);
	const struct tess_dim *d = x ? x->dim[1] : NULL;

	if (r->status || !x)
		return;
	if (!d->nparts) {
		tess_recorder_fail(r, TESS_EINVAL, "%s: %s was not declared as fused", x->module,
		                   d->name);
		return;
	}
	if (!check_finished(r, "split", x))
		return;
	for (int64_t i = 0; i < d->nparts; i++)
		part[i] =
			tess_tensor_new(r, 2, (const struct tess_dim *[]){ x->dim[0], d->parts[i] },
		                        x->place, x->module);
	tess_record_append(r, TESS_REC_SPLIT, x->module, 1, &x, (int32_t)d->nparts, part, 0, NULL);
}

void tess_ops_install(struct tess_nn *nn)
{
	nn->integer = tess_op_integer;
	nn->number = tess_op_number;
	nn->string = tess_op_string;
	nn->activation = tess_op_activation;
	nn->dim = tess_op_dim;
	nn->grouped = tess_op_grouped;
	nn->fused = tess_op_fused;
	nn->enter = tess_module_enter;
	nn->leave = tess_module_leave;
	nn->embed = record_embed;
	nn->linear = record_linear;
	nn->tied = record_tied;
	nn->select_rows = record_select_rows;
	nn->norm = record_norm;
	nn->rope = record_rope;
	nn->attention = record_attention;
	nn->glu = record_glu;
	nn->add = record_add;
	nn->split = record_split;
	nn->has = tess_op_has;
	nn->choice = tess_op_choice;
}

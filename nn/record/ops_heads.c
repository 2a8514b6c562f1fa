/* ops_heads.c - records ops inside heads: splits, joins, and products with weights per head. */
#include "core/base/status.h"
#include "nn/record/recorder.h"

#include <string.h>

/* Returns whether two dims have the same heads, of any size. */
static bool has_same_heads(const struct tess_dim *a, const struct tess_dim *b)
{
	return a->unit_size && b->unit_size && a->base == b->base && a->nunits == b->nunits;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void record_split_heads(struct tess_nn *nn, struct tess_tensor *x,
                               struct tess_dim *const *dims, struct tess_tensor **y)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	const struct tess_dim *d;
	int64_t sum = 0;
	int32_t n = 0;

	if (!tess_recorder_check_finished(r, "split_heads", x))
		return;
	d = x->dim[1];
	for (; dims[n]; n++)
		sum += has_same_heads(dims[n], d) ? dims[n]->unit_size : d->size;
	if (sum != d->unit_size) {
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: %s of %lld elements cannot be split so; each part has as "
		                   "many heads, and together they fill them",
		                   x->module, d->name, (long long)d->unit_size);
		return;
	}
	for (int32_t i = 0; i < n; i++)
		y[i] = tess_tensor_new(r, 2, (const struct tess_dim *[]){ x->dim[0], dims[i] },
		                       x->place, x->module);
	tess_record_append(r, TESS_REC_SPLIT_HEADS, x->module, 1, &x, n, y, 0, NULL);
}

static struct tess_tensor *record_join(struct tess_nn *nn, struct tess_tensor *const *x, int32_t n,
                                       struct tess_dim *dim)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	const char *module = tess_recorder_format_path(r, NULL);
	struct tess_place *to = tess_recorder_alloc_places(r);
	struct tess_tensor **in = TESS_NEW(&r->p->arena, struct tess_tensor *, n > 0 ? n : 0), *y;
	int64_t sum = 0;

	if (r->status || !in || !to)
		return r->status ? NULL : tess_recorder_keep_error(r, TESS_ENOMEM);
	if (n < 1 || !dim)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: a join of %d values; it needs one or more, and "
		                          "their dimension",
		                          module, (int)n);
	for (int32_t i = 0; i < n; i++) {
		if (!tess_recorder_check_finished(r, "a join", x[i]))
			return NULL;
		sum += x[i]->dim[1]->size;
		for (int32_t d = 0; d < r->p->mesh.ndims; d++)
			if (!i || to[d].kind == TESS_REPLICATE)
				to[d] = x[i]->place[d];
	}
	if (sum != dim->size)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: a join of %lld elements into %s, which has %lld",
		                          module, (long long)sum, dim->name, (long long)dim->size);
	for (int32_t i = 0; i < n; i++) {
		int32_t cut = tess_recorder_find_place(r, x[i], TESS_SHARD, 1);

		if (cut >= 0)
			return tess_recorder_fail(
				r, TESS_EINVAL, "%s: a join needs whole rows, but %s is cut%s; %s",
				module, x[i]->module, tess_recorder_along(r, cut),
				tess_recorder_describe_gather(r, x[i]));
		in[i] = tess_tensor_slice_operand(r, x[i], to, module);
	}
	y = r->status ? NULL
	              : tess_tensor_new(r, 2, (const struct tess_dim *[]){ x[0]->dim[0], dim }, to,
	                                module);
	return y && tess_record_append(r, TESS_REC_JOIN, module, n, in, 1, &y, 0, NULL) ? y : NULL;
}

/* ---- head_linear ----------------------------------------------------------------------------- */

static bool check_head_sizes(struct tess_recorder *r, const char *module, const struct tess_dim *x,
                             const struct tess_head_linear *how)
{
	const struct tess_dim *rows = how->rows, *out = how->out;
	int64_t k, n;

	if (!has_same_heads(x, rows) || !has_same_heads(x, out))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: %s, %s and %s are not the same heads", module,
		                          x->name, rows->name, out->name) != NULL;
	if (how->first < 0 || how->count <= 0 || how->count > rows->unit_size - how->first)
		return tess_recorder_fail(
			       r, TESS_EINVAL, "%s: rows %lld to %lld of %lld of each head", module,
			       (long long)how->first, (long long)(how->first + how->count),
			       (long long)rows->unit_size) != NULL;
	k = how->flags & TESS_IN_OUT ? how->count : how->in->size;
	n = how->flags & TESS_IN_OUT ? how->in->size : how->count;
	if (x->unit_size < k || out->unit_size - n != x->unit_size - k)
		return tess_recorder_fail(
			       r, TESS_EINVAL,
			       "%s: heads of %lld elements become heads of %lld, but the "
			       "first %lld of each become %lld",
			       module, (long long)x->unit_size, (long long)out->unit_size,
			       (long long)k, (long long)n) != NULL;
	return true;
}

/* Returns the module's weight, which another record may have added. */
static const struct tess_weight *find_head_weight(struct tess_recorder *r,
                                                  const struct tess_module *m,
                                                  const struct tess_head_linear *how)
{
	const char *name = tess_arena_format(&r->p->arena, "%s.weight", m->site.module);
	const struct tess_weight *w = NULL;

	if (!name)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	for (int32_t i = r->p->nweights - 1; i >= 0 && !w; i--)
		if (!strcmp(r->p->weight[i]->name, name))
			w = r->p->weight[i];
	if (w && (!w->heads || w->dim[0] != how->rows || w->dim[1] != how->in))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: another record has it with other dimensions", name);
	if (w)
		return w;
	w = tess_weight_add(
		r, m,
		&(struct tess_weight_request){ "weight", 2, 0, 1, { how->rows, how->in }, false });
	if (w)
		r->p->weight[w->index]->heads = TESS_NEW(&r->p->arena, struct tess_head_parts, 1);
	return w && w->heads ? w : tess_recorder_keep_error(r, TESS_ENOMEM);
}

/*
 * Returns the index of the part of the weight's heads that a record reads; -1: failure. Parts do
 * not overlap, so no row is loaded twice.
 */
static int32_t find_head_part(struct tess_recorder *r, const struct tess_weight *w,
                              const struct tess_head_linear *how)
{
	struct tess_head_parts *list = w->heads;
	const struct tess_head_part part = { how->first, how->count,
		                             (how->flags & TESS_IN_OUT) != 0 };

	for (int32_t i = 0; i < list->n; i++) {
		const struct tess_head_part *p = &list->part[i];

		if (p->first == part.first && p->count == part.count && p->in_out == part.in_out)
			return i;
		if (p->first < part.first + part.count && part.first < p->first + p->count)
			return tess_recorder_fail(r, TESS_EINVAL,
			                          "%s: rows of a head from %lld on are read in two "
			                          "ways",
			                          w->name, (long long)part.first),
			       -1;
	}
	if (list->n == TESS_HEAD_PARTS)
		return tess_recorder_fail(r, TESS_ENOTSUP, "%s: more than %d parts of a head",
		                          w->name, TESS_HEAD_PARTS),
		       -1;
	list->part[list->n] = part;
	return list->n++;
}

/*
 * Infers a place: heads follow the rows of W. x, W -> y: R, S(rows) -> S(1) with a view of x; S(1),
 * S(rows) -> S(1); with a replicated W as x, S(1) with a view of W.
 */
static struct tess_place *place_head_linear(struct tess_recorder *r, const struct tess_module *m,
                                            const struct tess_tensor *x,
                                            const struct tess_weight *w)
{
	struct tess_place *to = tess_recorder_alloc_places(r);

	for (int32_t i = 0; i < r->p->mesh.ndims && to; i++) {
		int32_t role = tess_weight_role(w, i);

		if (role == TESS_ROLE_IN)
			return tess_recorder_fail(
				r, TESS_EINVAL,
				"%s: style %s cuts the weight inside its heads%s; use colwise, "
				"which cuts it by heads, or replicate",
				m->site.module, m[i].spec, tess_recorder_along(r, i));
		to[i] = role == TESS_ROLE_OUT ? tess_place_shard(1) : x->place[i];
	}
	return to;
}

/* Moves x to the place requested by its style; heads that are cut satisfy Replicate. */
static struct tess_tensor *place_heads_input(struct tess_recorder *r, const struct tess_module *m,
                                             struct tess_tensor *x)
{
	struct tess_place *to = tess_recorder_alloc_places(r);

	for (int32_t i = 0; i < r->p->mesh.ndims && to; i++)
		if (m[i].io.in[0].kind != TESS_REPLICATE ||
		    !tess_place_is(x->place[i], TESS_SHARD, 1))
			to[i] = m[i].io.in[0];
	return to ? tess_tensor_redistribute(r, x, to, m->site.module) : NULL;
}

static struct tess_tensor *record_head_linear(struct tess_nn *nn, struct tess_tensor *x,
                                              const struct tess_head_linear *h)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_head_linear how = { 0 };
	const struct tess_weight *w;
	const struct tess_module *m;
	struct tess_place *to;
	struct tess_record *rec;
	struct tess_tensor *y;
	int32_t part;

	if (h)
		memcpy(&how, h, h->size < sizeof how ? h->size : sizeof how);
	if (!tess_recorder_check_finished(r, "head_linear", x))
		return NULL;
	if (!how.rows || !how.in || !how.out)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: head_linear needs the dimensions of its weight's "
		                          "rows, of what it reads and of what it gives",
		                          tess_recorder_format_path(r, how.name));
	m = tess_module_open(r, tess_recorder_format_path(r, how.name), "linear");
	if (!m || !check_head_sizes(r, m->site.module, x->dim[1], &how))
		return NULL;
	if (m->hooks)
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: style %s communicates by hand, which is not "
		                          "supported for a weight of heads; use colwise or "
		                          "replicate",
		                          m->site.module, m->spec);
	w = find_head_weight(r, m, &how);
	part = w ? find_head_part(r, w, &how) : -1;
	x = part < 0 ? NULL : place_heads_input(r, m, x);
	to = x ? place_head_linear(r, m, x, w) : NULL;
	x = to ? tess_tensor_slice_operand(r, x, to, m->site.module) : NULL;
	y = x ? tess_tensor_new(r, 2, (const struct tess_dim *[]){ x->dim[0], how.out }, to,
	                        m->site.module)
	      : NULL;
	rec = y ? tess_record_append(r, TESS_OP_HEAD_LINEAR, m->site.module, 1, &x, 1, &y, 1, &w)
	        : NULL;
	if (!rec)
		return NULL;
	rec->num[TESS_REC_HEAD_PART] = part;
	return tess_module_prepare_output(r, m, y);
}

void tess_ops_install_heads(struct tess_nn *nn)
{
	nn->heads = tess_op_heads;
	nn->split_heads = record_split_heads;
	nn->join = record_join;
	nn->head_linear = record_head_linear;
}

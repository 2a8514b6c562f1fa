/*
 * parameter.c - the parameters of a program: found in the checkpoint, placed by the module's style.
 */
#include "core/base/status.h"
#include "core/registry/returned.h"
#include "nn/recorder.h"

#include <stdio.h>
#include <string.h>

/* The shape in the checkpoint, if it is known, must be what the model's dims say. */
static bool check_shape(struct tess_recorder *r, const char *name,
                        const struct tess_weight_request *request, const struct tess_view *v)
{
	char want[64] = "", have[96] = "";
	bool same = v->ndim == request->ndim;

	if (v->ndim < 0)
		return true;
	for (int32_t i = 0; i < request->ndim; i++) {
		same = same && v->shape[i] == request->dim[i]->size;
		snprintf(want + strlen(want), sizeof want - strlen(want), "%s%lld", i ? ", " : "",
		         (long long)request->dim[i]->size);
	}
	for (int32_t i = 0; i < v->ndim && i < 4; i++)
		snprintf(have + strlen(have), sizeof have - strlen(have), "%s%lld", i ? ", " : "",
		         (long long)v->shape[i]);
	if (!same)
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: %s: shape [%s], but config.json makes it [%s]",
		                   r->options->source->name, name, have, want);
	return same;
}

/* What a style sees of a parameter: shape, units of each axis, sizes of fused parts. */
static bool describe_param(struct tess_recorder *r, const struct tess_weight_request *request,
                           struct tess_param *out)
{
	int64_t *shape = TESS_NEW(&r->p->arena, int64_t, request->ndim),
		*units = TESS_NEW(&r->p->arena, int64_t, request->ndim);
	const int64_t **parts = TESS_NEW(&r->p->arena, const int64_t *, request->ndim);

	for (int32_t i = 0; i < request->ndim && shape && units && parts; i++) {
		const struct tess_dim *d = request->dim[i], *piece;
		int64_t *sizes;

		shape[i] = d->size;
		tess_dim_get_max_ranks(d, &piece);
		units[i] = tess_dim_count_units(piece);
		if (!d->nparts)
			continue;
		sizes = TESS_NEW(&r->p->arena, int64_t, d->nparts + 1);
		for (int64_t k = 0; k < d->nparts && sizes; k++)
			sizes[k] = d->parts[k]->size;
		parts[i] = sizes;
	}
	out->shape = shape;
	out->units = units;
	out->parts = parts;
	return shape && units && parts;
}

/* Checks and normalizes one place of a tess_param_place; `preset` where the style left it out. */
static bool normalize_param_place(struct tess_recorder *r, const char *name, int32_t ndim,
                                  struct tess_place preset, struct tess_place *p)
{
	if (p->kind == TESS_ASIS)
		*p = preset;
	if (tess_place_check(*p, ndim, name))
		return tess_recorder_keep_error(r, TESS_EINVAL) != NULL;
	if (p->kind == TESS_PARTIAL)
		return tess_recorder_fail(r, TESS_EINVAL, "%s: a parameter cannot be Partial",
		                          name) != NULL;
	*p = tess_place_normalize(*p, ndim);
	return true;
}

static bool place_weight(struct tess_recorder *r, const struct tess_module *m,
                         const struct tess_weight_request *request, struct tess_weight *w)
{
	struct tess_param about = { .size = sizeof about,
		                    .dtype = w->dtype,
		                    .ndim = request->ndim,
		                    .out_dim = request->out_dim,
		                    .in_dim = request->in_dim,
		                    .expert_dim = -1,
		                    .name = request->leaf };
	struct tess_param_place param_place = { 0 };
	tess_status st;

	if (!describe_param(r, request, &about))
		return tess_recorder_keep_error(r, TESS_ENOMEM) != NULL;
	st = TESS_PLUGIN_CALL(m->style, m->site.module, partition_param, &m->site, &about,
	                      &param_place);
	if (st)
		return tess_recorder_keep_error(r, st) != NULL;
	if (!normalize_param_place(r, w->name, w->ndim, tess_place_replicate(), &param_place.use) ||
	    !normalize_param_place(r, w->name, w->ndim, param_place.use, &param_place.rest) ||
	    !normalize_param_place(r, w->name, w->ndim, param_place.use, &param_place.state))
		return false;
	if (!tess_place_equal(param_place.use, param_place.rest) ||
	    !tess_place_equal(param_place.use, param_place.state))
		return tess_recorder_fail(
			       r, TESS_ENOTSUP,
			       "%s: style %s stores it in another place than it uses it, which is "
			       "for training only",
			       w->name, m->spec) != NULL;
	w->place = param_place;
	return param_place.use.kind != TESS_SHARD ||
	       tess_recorder_check_cut(r, w->dim[param_place.use.dim], m->site.module);
}

static bool append_weight(struct tess_recorder *r, struct tess_weight *w)
{
	struct tess_program *p = r->p;
	struct tess_weight **list =
		tess_arena_grow(&p->arena, p->weight, (size_t)p->nweights, sizeof *list);

	if (!list)
		return tess_recorder_keep_error(r, TESS_ENOMEM) != NULL;
	p->weight = list;
	w->index = p->nweights;
	p->weight[p->nweights++] = w;
	return true;
}

static struct tess_weight *alloc_weight(struct tess_recorder *r, const struct tess_module *m,
                                        const struct tess_weight_request *request, const char *name)
{
	struct tess_weight *w = TESS_NEW(&r->p->arena, struct tess_weight, 1);

	if (!w || !name)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	w->name = name;
	w->style = m->spec;
	w->ndim = request->ndim;
	w->out_dim = request->out_dim;
	w->in_dim = request->in_dim;
	w->in_out = request->in_out;
	memcpy(w->dim, request->dim, sizeof w->dim);
	return w;
}

const struct tess_weight *tess_weight_add(struct tess_recorder *r, const struct tess_module *m,
                                          const struct tess_weight_request *request)
{
	const struct tess_source *src = r->options->source;
	struct tess_view stored = { 0 };
	struct tess_module own = *m;
	struct tess_weight *w;
	tess_status st;
	int32_t rule;

	if (r->status)
		return NULL;
	w = alloc_weight(r, m, request,
	                 tess_arena_format(&r->p->arena, "%s.%s", m->site.module, request->leaf));
	if (!w)
		return NULL;
	/* a rule for the parameter itself wins over its module's */
	if (tess_plan_find(r->options->plan, w->name, r->used_rules, &rule))
		return tess_recorder_keep_error(r, TESS_EINVAL);
	if (rule >= 0) {
		const struct tess_module *at = tess_module_open(r, w->name, m->site.kind);

		if (!at)
			return NULL;
		own = *at;
		own.site.module = m->site.module;
		w->style = own.spec;
	}
	st = src->find(src->self, w->name, &stored);
	if (st)
		return tess_recorder_keep_error(r, tess_fail_in(st, "%s", m->site.module));
	w->dtype = stored.dtype;
	if (!check_shape(r, w->name, request, &stored) || !place_weight(r, &own, request, w) ||
	    !append_weight(r, w))
		return NULL;
	return w;
}

const struct tess_weight *tess_weight_add_tied(struct tess_recorder *r, const struct tess_module *m,
                                               const struct tess_weight *table)
{
	/* the head reads the table [vocabulary, hidden] as a weight [out, in] */
	struct tess_weight_request request = { "weight", 2, 0, 1, { table->dim[0], table->dim[1] },
		                               false };
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];
	struct tess_weight *w;

	if (r->status)
		return NULL;
	w = alloc_weight(r, m, &request, table->name);
	if (!w)
		return NULL;
	w->dtype = table->dtype;
	w->table = table;
	if (!place_weight(r, m, &request, w) || !append_weight(r, w))
		return NULL;
	if (w->place.use.kind == TESS_REPLICATE) /* follows the table */
		w->place = table->place;
	if (table->place.use.kind != TESS_REPLICATE &&
	    !tess_place_equal(table->place.use, w->place.use))
		return tess_recorder_fail(
			r, TESS_EINVAL,
			"%s: style %s needs the table %s, but %s (style %s) holds it %s; the table "
			"is "
			"placed by its own module, so cut both alike",
			m->site.module, m->spec, tess_place_format(w->place.use, a), table->name,
			table->style, tess_place_format(table->place.use, b));
	return w;
}

int32_t tess_weight_role(const struct tess_weight *w)
{
	if (w->place.use.kind != TESS_SHARD)
		return TESS_ROLE_WHOLE;
	return w->place.use.dim == w->out_dim ? TESS_ROLE_OUT : TESS_ROLE_IN;
}

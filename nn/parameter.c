/* parameter.c - the parameters of a program: asked of the checkpoint, placed by the module's style. */
#include "record.h"

#include "core/base/status.h"
#include "core/registry/returned.h"

#include <stdio.h>
#include <string.h>

/* The shape in the checkpoint must be what the model's dims say. */
static bool shape_fits(struct tess_recorder *r, const char *name, const struct tess_weight_ask *ask,
                       const struct tess_view *v)
{
	char want[64] = "", have[96] = "";
	bool same = v->ndim == ask->ndim;

	for (int32_t i = 0; i < ask->ndim; i++) {
		same = same && v->shape[i] == ask->dim[i]->size;
		snprintf(want + strlen(want), sizeof want - strlen(want), "%s%lld", i ? ", " : "",
		         (long long)ask->dim[i]->size);
	}
	for (int32_t i = 0; i < v->ndim && i < 4; i++)
		snprintf(have + strlen(have), sizeof have - strlen(have), "%s%lld", i ? ", " : "",
		         (long long)v->shape[i]);
	if (!same)
		tess_refuse(r, TESS_EINVAL, "%s: %s: shape [%s], but config.json makes it [%s]",
		            r->how->source->name, name, have, want);
	return same;
}

/* Units of each axis, and the sizes of fused parts: what a style may look at. */
static bool describe(struct tess_recorder *r, const struct tess_weight_ask *ask,
                     struct tess_param *out)
{
	int64_t *shape = TESS_NEW(&r->p->arena, int64_t, ask->ndim),
		*units = TESS_NEW(&r->p->arena, int64_t, ask->ndim);
	const int64_t **parts = TESS_NEW(&r->p->arena, const int64_t *, ask->ndim);

	for (int32_t i = 0; i < ask->ndim && shape && units && parts; i++) {
		const struct tess_dim *d = ask->dim[i], *piece;
		int64_t *sizes;

		shape[i] = d->size;
		tess_dim_most_ranks(d, &piece);
		units[i] = tess_dim_units(piece);
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

/* One of the three places of a home, as the core compares it; `preset` where the style says nothing. */
static bool settle(struct tess_recorder *r, const char *name, int32_t ndim,
                   struct tess_place preset, struct tess_place *p)
{
	if (p->kind == TESS_ASIS)
		*p = preset;
	if (tess_place_check(*p, ndim, name))
		return tess_stick(r, TESS_EINVAL) != NULL;
	if (p->kind == TESS_PARTIAL)
		return tess_refuse(r, TESS_EINVAL, "%s: a parameter cannot be Partial", name) !=
		       NULL;
	*p = tess_place_normal(*p, ndim);
	return true;
}

static bool place(struct tess_recorder *r, const struct tess_module *m,
                  const struct tess_weight_ask *ask, struct tess_weight *w)
{
	struct tess_param about = { .size = sizeof about,
		                    .dtype = w->dtype,
		                    .ndim = ask->ndim,
		                    .out_dim = ask->out_dim,
		                    .in_dim = ask->in_dim,
		                    .expert_dim = -1,
		                    .name = ask->leaf };
	struct tess_param_place home = { 0 };
	tess_status st;

	if (!describe(r, ask, &about))
		return tess_stick(r, TESS_ENOMEM) != NULL;
	st = TESS_PLUGIN_CALL(m->style, m->site.module, partition_param, &m->site, &about, &home);
	if (st)
		return tess_stick(r, st) != NULL;
	if (!settle(r, w->name, w->ndim, tess_replicate(), &home.use) ||
	    !settle(r, w->name, w->ndim, home.use, &home.rest) ||
	    !settle(r, w->name, w->ndim, home.use, &home.state))
		return false;
	if (!tess_place_same(home.use, home.rest) || !tess_place_same(home.use, home.state))
		return tess_refuse(
			       r, TESS_ENOTSUP,
			       "%s: style %s keeps it elsewhere than it is used, which is for training",
			       w->name, m->spec) != NULL;
	w->home = home;
	return home.use.kind != TESS_SHARD || tess_can_cut(r, w->dim[home.use.dim], m->site.module);
}

static bool keep(struct tess_recorder *r, struct tess_weight *w)
{
	struct tess_program *p = r->p;

	if ((p->nweights & (p->nweights - 1)) == 0) {
		struct tess_weight **list = TESS_NEW(&p->arena, struct tess_weight *,
		                                     p->nweights ? 2 * p->nweights : 1);

		if (!list)
			return tess_stick(r, TESS_ENOMEM) != NULL;
		if (p->nweights)
			memcpy(list, p->weight, sizeof *list * (size_t)p->nweights);
		p->weight = list;
	}
	w->index = p->nweights;
	p->weight[p->nweights++] = w;
	return true;
}

static struct tess_weight *make(struct tess_recorder *r, const struct tess_module *m,
                                const struct tess_weight_ask *ask, const char *name)
{
	struct tess_weight *w = TESS_NEW(&r->p->arena, struct tess_weight, 1);

	if (!w || !name)
		return tess_stick(r, TESS_ENOMEM);
	w->name = name;
	w->style = m->spec;
	w->ndim = ask->ndim;
	w->out_dim = ask->out_dim;
	w->in_dim = ask->in_dim;
	w->in_out = ask->in_out;
	memcpy(w->dim, ask->dim, sizeof w->dim);
	return w;
}

const struct tess_weight *tess_weight_add(struct tess_recorder *r, const struct tess_module *m,
                                          const struct tess_weight_ask *ask)
{
	const struct tess_source *src = r->how->source;
	struct tess_view stored = { 0 };
	struct tess_module own = *m;
	struct tess_weight *w;
	tess_status st;
	int32_t rule;

	if (r->status)
		return NULL;
	w = make(r, m, ask, tess_arena_format(&r->p->arena, "%s.%s", m->site.module, ask->leaf));
	if (!w)
		return NULL;
	/* a rule for the parameter itself wins over its module's */
	if (tess_plan_find(r->how->plan, w->name, r->used, &rule))
		return tess_stick(r, TESS_EINVAL);
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
		return tess_stick(r, tess_fail_in(st, "%s", m->site.module));
	w->dtype = stored.dtype;
	if (!shape_fits(r, w->name, ask, &stored) || !place(r, &own, ask, w) || !keep(r, w))
		return NULL;
	return w;
}

const struct tess_weight *tess_weight_view(struct tess_recorder *r, const struct tess_module *m,
                                           const struct tess_weight *table)
{
	/* the head reads the table [vocabulary, hidden] as a weight [out, in] */
	struct tess_weight_ask ask = { "weight", 2, 0, 1, { table->dim[0], table->dim[1] }, false };
	char a[TESS_PLACE_TEXT], b[TESS_PLACE_TEXT];
	struct tess_weight *w;

	if (r->status)
		return NULL;
	w = make(r, m, &ask, table->name);
	if (!w)
		return NULL;
	w->dtype = table->dtype;
	w->table = table;
	if (!place(r, m, &ask, w) || !keep(r, w))
		return NULL;
	if (w->home.use.kind == TESS_REPLICATE) /* asks for nothing: as the table lies */
		w->home = table->home;
	if (table->home.use.kind != TESS_REPLICATE &&
	    !tess_place_same(table->home.use, w->home.use))
		return tess_refuse(
			r, TESS_EINVAL,
			"%s: style %s wants the table %s, but %s (style %s) holds it %s; the table is "
			"placed by its own module, so give both one cut",
			m->site.module, m->spec, tess_place_text(w->home.use, a), table->name,
			table->style, tess_place_text(table->home.use, b));
	return w;
}

int32_t tess_weight_role(const struct tess_weight *w)
{
	if (w->home.use.kind != TESS_SHARD)
		return TESS_ROLE_WHOLE;
	return w->home.use.dim == w->out_dim ? TESS_ROLE_OUT : TESS_ROLE_IN;
}

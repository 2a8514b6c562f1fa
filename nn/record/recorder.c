/*
 * recorder.c - shared by all files that record: errors, names, values, records, places, and checks
 * of operands.
 */
#include "nn/record/recorder.h"

#include "core/base/status.h"

#include <stdio.h>
#include <string.h>

struct tess_recorder *tess_recorder_get(struct tess_nn *nn)
{
	return (struct tess_recorder *)nn;
}

void *tess_recorder_keep_error(struct tess_recorder *r, tess_status why)
{
	if (!r->status) {
		r->status = why;
		r->sentence = tess_arena_copy(&r->p->arena, tess_error(), SIZE_MAX);
	}
	return NULL;
}

void *tess_recorder_fail(struct tess_recorder *r, tess_status why, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return tess_recorder_keep_error(r, tess_fail(why, "%s", text));
}

const char *tess_recorder_format_path(struct tess_recorder *r, const char *name)
{
	const char *open = r->path ? r->path->module : "";

	if (!name)
		return *open ? open : "the model";
	return tess_arena_format(&r->p->arena, "%s%s%s", open, *open ? "." : "", name);
}

const char *tess_recorder_along(struct tess_recorder *r, int32_t along)
{
	const char *text = r->p->mesh.ndims > 1 ? tess_arena_format(&r->p->arena, " along %s",
	                                                            r->p->mesh.dim[along].name)
	                                        : "";

	return text ? text : "";
}

/* ---- values and records ---------------------------------------------------------------------- */

struct tess_tensor *tess_tensor_new(struct tess_recorder *r, int32_t ndim,
                                    const struct tess_dim *const *dim,
                                    const struct tess_place *place, const char *module)
{
	struct tess_tensor *v = TESS_NEW(&r->p->arena, struct tess_tensor, 1);
	struct tess_place *copy = TESS_NEW(&r->p->arena, struct tess_place, r->p->mesh.ndims);

	if (!v || !copy)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	memcpy(copy, place, sizeof *copy * (size_t)r->p->mesh.ndims);
	v->id = r->p->ntensors++;
	v->dtype = TESS_F32;
	v->ndim = ndim;
	for (int32_t i = 0; i < ndim; i++)
		v->dim[i] = dim[i];
	v->place = copy;
	v->module = module;
	return v;
}

static void *copy_list(struct tess_recorder *r, const void *list, int32_t n)
{
	void **copy = TESS_NEW(&r->p->arena, void *, n + 1);

	if (copy && n)
		memcpy(copy, list, sizeof *copy * (size_t)n);
	return copy;
}

struct tess_record *tess_record_append(struct tess_recorder *r, int32_t kind, const char *module,
                                       int32_t nin, struct tess_tensor *const *in, int32_t nout,
                                       struct tess_tensor *const *out, int32_t nweight,
                                       const struct tess_weight *const *weight)
{
	struct tess_program *p = r->p;
	struct tess_record *rec, **list;

	if (r->status)
		return NULL;
	list = tess_arena_grow(&p->arena, p->record, (size_t)p->nrecords, sizeof *list);
	if (!list)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	p->record = list;
	rec = TESS_NEW(&p->arena, struct tess_record, 1);
	if (!rec)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	rec->kind = kind;
	rec->module = module;
	rec->nin = nin;
	rec->nout = nout;
	rec->nweight = nweight;
	rec->of = r->of;
	rec->in = copy_list(r, in, nin);
	rec->out = copy_list(r, out, nout);
	rec->weight = copy_list(r, weight, nweight);
	if (!rec->in || !rec->out || !rec->weight)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	p->record[p->nrecords++] = rec;
	return rec;
}

/* ---- places ---------------------------------------------------------------------------------- */

struct tess_place *tess_recorder_alloc_places(struct tess_recorder *r)
{
	struct tess_place *place = TESS_NEW(&r->p->arena, struct tess_place, r->p->mesh.ndims);

	return place ? place : tess_recorder_keep_error(r, TESS_ENOMEM);
}

int32_t tess_recorder_find_place(const struct tess_recorder *r, const struct tess_tensor *x,
                                 int32_t kind, int32_t dim)
{
	return tess_places_find(x->place, r->p->mesh.ndims, kind, dim);
}

int32_t tess_recorder_find_partial(const struct tess_recorder *r, const struct tess_place *place)
{
	return tess_places_find(place, r->p->mesh.ndims, TESS_PARTIAL, 0);
}

struct tess_place *tess_tensor_replace_place(struct tess_recorder *r, const struct tess_tensor *x,
                                             int32_t along, struct tess_place to)
{
	struct tess_place *copy = TESS_NEW(&r->p->arena, struct tess_place, r->p->mesh.ndims);

	if (!copy)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	memcpy(copy, x->place, sizeof *copy * (size_t)r->p->mesh.ndims);
	copy[along] = to;
	return copy;
}

/* ---- operands -------------------------------------------------------------------------------- */

const char *tess_recorder_describe_gather(const struct tess_recorder *r,
                                          const struct tess_tensor *x)
{
	static const struct {
		const char *kind, *sum, *gather;
	} ways[] = {
		{ "linear", "use rowwise there, or a gather around it, to finish the sum",
		  "use colwise_rep there" },
		{ "embedding", "use embedding_rowwise there to finish the sum",
		  "use embedding_colwise there" },
		{ "experts", "use moe_tp_experts there to finish the sum",
		  "use moe_tp_experts there" },
		{ NULL, "use gather there to finish the sum", "use gather there" },
	};
	bool partial = tess_recorder_find_place(r, x, TESS_PARTIAL, 0) >= 0;
	const struct tess_module *m = r->modules;
	size_t i = 0;

	while (m && strcmp(m->site.module, x->module) != 0)
		m = m->before;
	while (ways[i].kind && (!m || strcmp(ways[i].kind, m->site.kind) != 0))
		i++;
	return partial ? ways[i].sum : ways[i].gather;
}

bool tess_recorder_check_rows(struct tess_recorder *r, const char *what,
                              const struct tess_tensor *x)
{
	if (!r->status && (!x || x->ndim != 2))
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: %s needs rows of elements, as embed() gives them, not %s",
		                   tess_recorder_format_path(r, NULL), what,
		                   x ? x->module : "NULL");
	return !r->status;
}

bool tess_recorder_check_finished(struct tess_recorder *r, const char *what,
                                  const struct tess_tensor *x)
{
	int32_t partial = tess_recorder_check_rows(r, what, x)
	                          ? tess_recorder_find_place(r, x, TESS_PARTIAL, 0)
	                          : -1;

	if (partial >= 0)
		tess_recorder_fail(r, TESS_EINVAL, "%s: %s of an unfinished sum of %s%s; %s",
		                   tess_recorder_format_path(r, NULL), what, x->module,
		                   tess_recorder_along(r, partial),
		                   tess_recorder_describe_gather(r, x));
	return !r->status;
}

bool tess_recorder_check_cut(struct tess_recorder *r, const struct tess_dim *dim, int32_t along,
                             const char *module)
{
	const struct tess_dim *piece;
	int32_t max_ranks = tess_dim_get_max_ranks(dim, &piece);
	int32_t nranks = r->p->mesh.dim[along].size;

	if (nranks <= max_ranks)
		return true;
	tess_recorder_fail(r, TESS_EINVAL,
	                   "%s: %s: %lld units cannot be cut for %d ranks%s; use 1 to %d", module,
	                   piece->base->name, (long long)tess_dim_count_units(piece), (int)nranks,
	                   tess_recorder_along(r, along), (int)max_ranks);
	return false;
}

bool tess_recorder_fail_cut_twice(struct tess_recorder *r, const struct tess_dim *dim,
                                  const char *of, int32_t a, int32_t b, const char *module)
{
	return tess_recorder_fail(r, TESS_EINVAL,
	                          "%s: %s of %s cannot be cut along both %s and %s; only one mesh "
	                          "dimension may cut a dimension of a value or parameter",
	                          module, dim->name, of, r->p->mesh.dim[a].name,
	                          r->p->mesh.dim[b].name) != NULL;
}

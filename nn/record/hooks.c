/*
 * hooks.c - the calls by which a style's hooks record: moves, functions of their own on the parts
 * of ranks, and descriptions of values.
 */
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "nn/record/recorder.h"

#include <string.h>
#include <tessera/coll.h>

static const struct tess_module *get_module(const struct tess_site *s)
{
	return (const struct tess_module *)s;
}

static tess_status host_redistribute(const struct tess_site *s, const struct tess_place *to,
                                     struct tess_tensor **x)
{
	const struct tess_module *m = get_module(s);
	struct tess_recorder *r = m->r;
	struct tess_tensor *y;

	if (tess_module_check_data(m, *to))
		return TESS_EINVAL;
	if (*x && (*x)->local)
		return tess_fail(TESS_EINVAL,
		                 "%s: style %s moves a local value, which has no placement; use "
		                 "host->collective",
		                 s->module, m->spec);
	y = tess_tensor_move(r, *x, m->along, *to, s->module);
	if (y)
		*x = y;
	return r->status;
}

static tess_status host_describe(const struct tess_site *s, const struct tess_tensor *x,
                                 struct tess_operand *out)
{
	if (!x)
		return tess_fail(TESS_EINVAL, "%s: a description of no value (NULL)", s->module);
	*out = tess_tensor_describe(get_module(s)->r->p, x, get_module(s)->along, -1);
	return TESS_OK;
}

/* ---- local values ---------------------------------------------------------------------------- */

const struct tess_dim *tess_dim_new_addends(struct tess_recorder *r, int32_t n)
{
	struct tess_dim *d = tess_dim_new(r, "addends", n, 0);

	if (!d)
		return NULL;
	d->nunits = n;
	d->unit_size = 1;
	return d;
}

/* Makes a local value along a mesh dimension. */
static struct tess_tensor *make_local(struct tess_recorder *r, const char *module, int32_t along,
                                      int64_t rows, int64_t columns, int32_t dtype)
{
	struct tess_dim *dim[2] = { tess_dim_new(r, "rows", rows, 0),
		                    tess_dim_new(r, "columns", columns, 0) };
	struct tess_place *place = tess_recorder_alloc_places(r);
	struct tess_tensor *y;

	if (!dim[0] || !dim[1] || !place)
		return NULL;
	dim[0]->nunits = rows;
	dim[0]->unit_size = 1;
	dim[0]->may_be_empty = true;
	dim[1]->nunits = 1;
	memcpy(place, r->whole, sizeof *place * (size_t)r->p->mesh.ndims);
	place[along] = tess_place_shard(0);
	y = tess_tensor_new(r, 2, (const struct tess_dim *const[]){ dim[0], dim[1] }, place,
	                    module);
	if (!y)
		return NULL;
	y->dtype = dtype;
	y->local = true;
	return y;
}

/* Fails unless x is replicated along all mesh dimensions but the module's. */
static tess_status check_alone(const struct tess_module *m, const struct tess_tensor *x)
{
	const struct tess_mesh_shape *mesh = &m->r->p->mesh;
	char text[TESS_PLACE_SIZE];

	for (int32_t i = 0; i < mesh->ndims; i++)
		if (i != m->along && mesh->dim[i].size > 1 && x->place[i].kind != TESS_REPLICATE)
			return tess_fail(
				TESS_EINVAL,
				"%s: style %s makes a local value along %s of %s, which is %s "
				"along %s; replicate it along %s first",
				m->site.module, m->spec, mesh->dim[m->along].name, x->module,
				tess_place_format(x->place[i], text), mesh->dim[i].name,
				mesh->dim[i].name);
	return TESS_OK;
}

static tess_status check_local(const struct tess_module *m, const struct tess_call *f,
                               const struct tess_tensor *x)
{
	const int64_t most = INT32_MAX;

	if (f->rows <= 0 || f->columns <= 0 || f->rows > most || f->columns > most / f->rows)
		return tess_fail(TESS_EINVAL,
		                 "%s: style %s makes a local value of %lld x %lld; use 1 to 2^31 "
		                 "elements",
		                 m->site.module, m->spec, (long long)f->rows,
		                 (long long)f->columns);
	if (!tess_width(f->dtype))
		return tess_fail(TESS_EINVAL,
		                 "%s: style %s makes a local value of unknown dtype %d",
		                 m->site.module, m->spec, (int)f->dtype);
	if (f->like || f->out.kind)
		return tess_fail(
			TESS_EINVAL, "%s: style %s makes a local value with %s; leave it out",
			m->site.module, m->spec,
			f->like ? "the shape of another value (like)" : "a placement (out)");
	if (tess_module_check_data(m, tess_place_shard(0)))
		return TESS_EINVAL;
	return check_alone(m, x);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Fails if the cut of y along the module's dimension is not possible. */
static tess_status check_cut(const struct tess_module *m, const struct tess_tensor *y,
                             const struct tess_place *place)
{
	struct tess_recorder *r = m->r;
	struct tess_place to = place[m->along];
	int32_t n = r->p->mesh.ndims, other;

	if (to.kind != TESS_SHARD || tess_place_equal(to, y->place[m->along]))
		return TESS_OK;
	other = tess_places_find(y->place, n, TESS_SHARD, to.dim);
	if (other >= 0 && other != m->along)
		tess_recorder_fail_cut_twice(r, y->dim[to.dim], y->module, other, m->along,
		                             m->site.module);
	else
		tess_recorder_check_cut(r, y->dim[to.dim], m->along, m->site.module);
	return r->status;
}

/* Fails if a call from x to y has a sum that it cannot have. */
static tess_status check_sum_dims(const struct tess_module *m, const struct tess_tensor *x,
                                  const struct tess_tensor *y)
{
	struct tess_recorder *r = m->r;
	int32_t from = tess_recorder_find_partial(r, x->place),
		to = tess_recorder_find_partial(r, y->place);

	if ((from >= 0 && from != m->along) || (to >= 0 && to != m->along))
		return tess_fail(
			TESS_EINVAL,
			"%s: style %s calls a function along %s on an unfinished sum along "
			"%s; finish the sum first",
			m->site.module, m->spec, r->p->mesh.dim[m->along].name,
			r->p->mesh.dim[from >= 0 ? from : to].name);
	if (from >= 0 && to < 0 && !y->local)
		return tess_fail(
			TESS_EINVAL,
			"%s: style %s calls a function that would finish a sum, of which "
			"each rank has nodes only; let it give a Partial, or a local value "
			"for host->collective",
			m->site.module, m->spec);
	if (to >= 0 && y->dtype != TESS_F32)
		return tess_fail(TESS_EINVAL, "%s: style %s: a Partial of %s; sums are of f32",
		                 m->site.module, m->spec, tess_dtype_name(y->dtype));
	return TESS_OK;
}

/* Makes the result of a call that is not a local value. */
static tess_status make_placed(const struct tess_module *m, const struct tess_call *f,
                               const struct tess_tensor *x, struct tess_tensor **out)
{
	const struct tess_tensor *like = f->like ? f->like : x;
	struct tess_recorder *r = m->r;
	struct tess_place *place = tess_tensor_replace_place(
		r, like, m->along,
		f->out.kind ? tess_place_normalize(f->out, like->ndim) : like->place[m->along]);
	struct tess_tensor *y;
	tess_status st;

	if (!place)
		return r->status;
	if (like->local && f->out.kind)
		return tess_fail(TESS_EINVAL,
		                 "%s: style %s gives a local value a placement; let the call make "
		                 "one of the shape of *x or *y (like)",
		                 m->site.module, m->spec);
	st = check_cut(m, like, place);
	if (!st && x->local && !like->local)
		st = check_alone(m, like);
	y = st ? NULL : tess_tensor_new(r, like->ndim, like->dim, place, m->site.module);
	if (!y)
		return st ? st : r->status;
	y->dtype = like->dtype;
	y->local = like->local;
	st = check_sum_dims(m, x, y);
	if (!st && tess_recorder_find_partial(r, y->place) >= 0)
		y->sum = x->place[m->along].kind == TESS_PARTIAL
		                 ? x->sum
		                 : tess_dim_new_addends(r, r->p->mesh.dim[m->along].size);
	*out = y;
	return st ? st : r->status;
}

/* Checks the call's function, and that it will run on host memory. */
static tess_status check_function(const struct tess_module *m, const struct tess_call *call)
{
	if (!call->compute)
		return tess_fail(TESS_EINVAL, "%s: a call without compute()", m->site.module);
	if (call->scratch > INT64_MAX / 2)
		return tess_fail(TESS_EINVAL, "%s: a call with %llu bytes of scratch memory",
		                 m->site.module, (unsigned long long)call->scratch);
	if (tess_program_is_on_host(m->r->p))
		return TESS_OK;
	return tess_fail(TESS_ENOTSUP,
	                 "%s: style %s calls a function of its own on values in host "
	                 "memory, and device %s has memory of its own; use another style, "
	                 "or a device without such memory",
	                 m->site.module, m->style->name, m->r->p->device->name);
}

static tess_status host_call(const struct tess_site *s, const struct tess_call *f,
                             struct tess_tensor **x)
{
	const struct tess_module *m = get_module(s);
	struct tess_recorder *r = m->r;
	struct tess_call *call = TESS_NEW(&r->p->arena, struct tess_call, 1);
	struct tess_tensor *y = NULL;
	struct tess_record *rec;
	tess_status st;

	if (r->status || !call)
		return r->status ? r->status : TESS_ENOMEM;
	if (!*x)
		return tess_fail(TESS_EINVAL, "%s: a call of no value (NULL)", s->module);
	memcpy(call, f, f->size < sizeof *call ? f->size : sizeof *call);
	if (tess_place_check(call->out, (call->like ? call->like : *x)->ndim, s->module))
		return TESS_EINVAL;
	st = check_function(m, call);
	if (!st && (call->rows || call->columns || call->dtype)) {
		st = check_local(m, call, *x);
		y = st ? NULL
		       : make_local(r, s->module, m->along, call->rows, call->columns, call->dtype);
		st = st || !y ? st ? st : r->status : check_sum_dims(m, *x, y);
	} else if (!st) {
		st = make_placed(m, call, *x, &y);
	}
	if (st)
		return st;
	rec = tess_record_append(r, TESS_REC_CALL, s->module, 1, x, 1, &y, 0, NULL);
	if (!rec)
		return r->status;
	rec->along = m->along;
	rec->call = call;
	rec->style = m->style;
	rec->state = s->state;
	*x = y;
	return TESS_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* The kinds, with what the rows are divided by, as powers of the number of ranks. */
static const struct collective_kind {
	int32_t kind, divisor;
} collective_kinds[] = {
	{ TESS_ALL_GATHER, 0 }, { TESS_REDUCE_SCATTER, 1 }, { TESS_ALL_TO_ALL, 2 },
	{ TESS_BROADCAST, 1 },  { TESS_SEND, 1 },
};

static const struct collective_kind *find_collective_kind(int32_t kind)
{
	for (size_t i = 0; i < sizeof collective_kinds / sizeof *collective_kinds; i++)
		if (collective_kinds[i].kind == kind)
			return &collective_kinds[i];
	return NULL;
}

static tess_status fail_collective(const struct tess_module *m, const struct tess_collective *c,
                                   const char *why)
{
	return tess_fail(TESS_EINVAL, "%s: style %s: %s %s", m->site.module, m->spec,
	                 tess_kind_name(c->kind), why);
}

static tess_status check_operand(const struct tess_module *m, const struct tess_collective *c,
                                 const struct tess_tensor *x)
{
	const char *name = m->r->p->mesh.dim[m->along].name;

	if (!x)
		return fail_collective(m, c, "of no value (NULL)");
	if (!x->local)
		return fail_collective(
			m, c,
			"of a value with placements; collectives take a local value, "
			"which a call makes (tess_call.rows)");
	if (x->place[m->along].kind != TESS_SHARD)
		return tess_fail(TESS_EINVAL,
		                 "%s: style %s: %s along %s of a value that is local along another "
		                 "mesh dimension",
		                 m->site.module, m->spec, tess_kind_name(c->kind), name);
	return TESS_OK;
}

static tess_status check_collective(const struct tess_module *m, const struct tess_collective *c,
                                    const struct tess_tensor *x)
{
	const struct collective_kind *k = find_collective_kind(c->kind);
	int32_t n = m->r->p->mesh.dim[m->along].size;
	int64_t unit = 1;
	tess_status st;

	if (!k)
		return fail_collective(m, c,
		                       "is not for hooks; use all_gather, reduce_scatter, "
		                       "all_to_all, broadcast or send");
	st = check_operand(m, c, x);
	if (st)
		return st;
	for (int32_t i = 0; i < k->divisor; i++)
		unit *= n;
	if (x->dim[0]->size % unit)
		return tess_fail(
			TESS_EINVAL,
			"%s: style %s: %s of %lld rows over %d ranks; use a multiple of %lld",
			m->site.module, m->spec, tess_kind_name(c->kind),
			(long long)x->dim[0]->size, (int)n, (long long)unit);
	if (c->kind == TESS_BROADCAST ? c->root < 0 || c->root >= n : c->root != 0)
		return tess_fail(TESS_EINVAL, "%s: style %s: %s with root %d; use %s%d",
		                 m->site.module, m->spec, tess_kind_name(c->kind), (int)c->root,
		                 c->kind == TESS_BROADCAST ? "0 to " : "",
		                 c->kind == TESS_BROADCAST ? (int)n - 1 : 0);
	if (c->shift && c->kind != TESS_SEND)
		return fail_collective(m, c, "with a shift, which only send takes");
	if (c->kind == TESS_ALL_GATHER && x->dim[0]->size > INT32_MAX / x->dim[1]->size / n)
		return fail_collective(m, c, "of more than 2^31 elements on all ranks");
	return TESS_OK;
}

struct tess_record *tess_record_append_collective(struct tess_recorder *r, const char *module,
                                                  int32_t along, const int32_t num[2],
                                                  struct tess_tensor *x, int64_t rows)
{
	struct tess_tensor *y = make_local(r, module, along, rows, x->dim[1]->size, x->dtype);
	struct tess_record *rec =
		y ? tess_record_append(r, TESS_REC_COLLECTIVE, module, 1, &x, 1, &y, 0, NULL)
		  : NULL;

	if (!rec)
		return NULL;
	rec->along = along;
	rec->nnum = TESS_REC_COLLECTIVE_NUMS;
	rec->num[TESS_REC_COLLECTIVE_KIND] = num[TESS_REC_COLLECTIVE_KIND];
	rec->num[TESS_REC_COLLECTIVE_RANK] = num[TESS_REC_COLLECTIVE_RANK];
	return rec;
}

static tess_status host_collective(const struct tess_site *s, const struct tess_collective *c,
                                   struct tess_tensor **x)
{
	const struct tess_module *m = get_module(s);
	struct tess_collective own = { 0 };
	int32_t n = s->nranks;
	struct tess_record *rec;
	int64_t rows;
	tess_status st;

	memcpy(&own, c, c->size < sizeof own ? c->size : sizeof own);
	st = m->r->status ? m->r->status : check_collective(m, &own, *x);
	if (st)
		return st;
	rows = (*x)->dim[0]->size;
	rows = own.kind == TESS_ALL_GATHER       ? rows * n
	       : own.kind == TESS_REDUCE_SCATTER ? rows / n
	                                         : rows;
	rec = tess_record_append_collective(
		m->r, s->module, m->along,
		(int32_t[]){ own.kind, own.kind == TESS_SEND ? own.shift % n : own.root }, *x,
		rows);
	if (!rec)
		return m->r->status;
	rec->style = m->style;
	*x = rec->out[0];
	return TESS_OK;
}

/* ---- straight through ------------------------------------------------------------------------ */

static tess_status check_straight(const struct tess_module *m, const struct tess_tensor *x,
                                  const struct tess_tensor *y)
{
	if (x && y && !x->local && !y->local && tess_tensor_has_same_dims(x, y) &&
	    x->dtype == TESS_F32 && y->dtype == TESS_F32)
		return TESS_OK;
	return tess_fail(
		TESS_EINVAL,
		"%s: style %s: straight_through() of %s; x and y must be values of f32 and "
		"of one shape, not local",
		m->site.module, m->spec,
		x && y ? "values that differ in shape or element type" : "no value (NULL)");
}

static tess_status host_straight_through(const struct tess_site *s, struct tess_tensor *x,
                                         struct tess_tensor **y)
{
	const struct tess_module *m = get_module(s);
	struct tess_recorder *r = m->r;
	tess_status st = r->status ? r->status : check_straight(m, x, *y);
	struct tess_tensor *in[2] = { x, *y }, *out;

	if (st)
		return st;
	out = tess_tensor_new(r, x->ndim, x->dim, in[1]->place, s->module);
	if (!out || !tess_record_append(r, TESS_REC_STRAIGHT, s->module, 2, in, 1, &out, 0, NULL))
		return r->status;
	out->sum = in[1]->sum;
	*y = out;
	return TESS_OK;
}

const struct tess_host tess_recording_host = {
	.size = sizeof tess_recording_host,
	.abi = TESS_ABI,
	.fail = tess_fail,
	.log = tess_log,
	.option = tess_option_get,
	.redistribute = host_redistribute,
	.call = host_call,
	.backend = tess_plugin_find_backend,
	.describe = host_describe,
	.collective = host_collective,
	.straight_through = host_straight_through,
	.inner = tess_module_open_inner,
	.layout = tess_module_layout_inner,
	.partition_param = tess_module_partition_inner,
};

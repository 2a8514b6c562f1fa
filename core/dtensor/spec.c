/* spec.c - checks the description of a distributed tensor, and makes its dims. */
#include "core/base/sized.h"
#include "core/dtensor/dtensor.h"
#include "core/rendezvous/call_desc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

/* Limit of elements, so that products of sizes, units and widths do not overflow. */
enum { MAX_LOG_ELEMENTS = 44, MAX_LOG_UNEVEN = 30 };

/* ---- text ------------------------------------------------------------------------------------ */

const char *tess_dtensor_format(const struct tess_dtensor *t, char text[TESS_DTENSOR_TEXT])
{
	size_t len = (size_t)snprintf(text, TESS_DTENSOR_TEXT, "%.64s [", t->spec.name);

	for (int32_t a = 0; a < t->spec.ndim; a++)
		len += (size_t)snprintf(text + len, TESS_DTENSOR_TEXT - len, "%s%lld",
		                        a ? ", " : "", (long long)t->spec.shape[a]);
	snprintf(text + len, TESS_DTENSOR_TEXT - len, "]");
	return text;
}

/* Formats "Shard(0) along dp, Replicate along tp". */
static const char *format_placements(const struct tess_dtensor *t, const struct tess_place *places,
                                     char text[TESS_DTENSOR_TEXT])
{
	char place[TESS_PLACE_SIZE];
	size_t len = 0;

	*text = '\0';
	for (int32_t i = 0; i < t->ranks->ndims && len < TESS_DTENSOR_TEXT; i++)
		len += (size_t)snprintf(text + len, TESS_DTENSOR_TEXT - len, "%s%s along %s",
		                        i ? ", " : "", tess_place_format(places[i], place),
		                        t->ranks->dim[i].name);
	return text;
}

/* ---- placements ------------------------------------------------------------------------------ */

static tess_status check_place(const struct tess_dtensor *t, int32_t i, struct tess_place p,
                               const char *where)
{
	struct tess_place plain = p;
	tess_status st;

	if (p.kind == TESS_PARTIAL)
		plain.op = 0; /* a style's Partial is a sum */
	st = tess_place_check(plain, t->spec.ndim, where);
	if (!st && p.kind == TESS_PARTIAL && (p.op < 0 || p.op > TESS_MAX))
		st = tess_fail(TESS_EINVAL,
		               "%s: a Partial of op %d (%s); use sum, prod, min or max", where,
		               (int)p.op, tess_reduce_op_name(p.op));
	return st ? tess_fail_in(st, "along %s", t->ranks->dim[i].name) : TESS_OK;
}

/* Checks pairs of mesh dimensions; `where` is the tensor and how it is to be placed. */
static tess_status check_pairs(const struct tess_dtensor *t, const struct tess_place *p,
                               const char *where)
{
	for (int32_t i = 0; i < t->ranks->ndims; i++)
		for (int32_t k = 0; k < i; k++) {
			const char *a = t->ranks->dim[k].name, *b = t->ranks->dim[i].name;

			if (p[i].kind == TESS_PARTIAL && p[k].kind == TESS_PARTIAL &&
			    p[i].op != p[k].op)
				return tess_fail(TESS_EINVAL,
				                 "%s: Partials along %s and %s have different ops, "
				                 "so their order would change the value; finish "
				                 "one first",
				                 where, a, b);
		}
	return TESS_OK;
}

static tess_status check_places(const struct tess_dtensor *t, const struct tess_place *places,
                                const char *where, struct tess_place *out)
{
	for (int32_t i = 0; i < t->ranks->ndims; i++) {
		tess_status st = check_place(t, i, places[i], where);

		if (st)
			return st;
		out[i] = tess_place_normalize(places[i], t->spec.ndim);
	}
	return check_pairs(t, out, where);
}

tess_status tess_dtensor_check_target(const struct tess_dtensor *t, const struct tess_place *places,
                                      struct tess_place *out)
{
	char name[TESS_DTENSOR_TEXT], from[TESS_DTENSOR_TEXT], to[TESS_DTENSOR_TEXT];
	char where[3 * TESS_DTENSOR_TEXT];
	struct tess_place all[TESS_MESH_DIMS];

	for (int32_t i = 0; i < t->ranks->ndims; i++)
		all[i] = places[i].kind == TESS_ASIS ? t->spec.places[i] : places[i];
	snprintf(where, sizeof where, "%s from %s to %s", tess_dtensor_format(t, name),
	         format_placements(t, t->spec.places, from), format_placements(t, all, to));
	return check_places(t, all, where, out);
}

static tess_status copy_places(struct tess_dtensor *t, const struct tess_place *places)
{
	struct tess_place *copy = TESS_NEW(&t->arena, struct tess_place, t->ranks->ndims);
	char name[TESS_DTENSOR_TEXT], at[TESS_DTENSOR_TEXT], where[2 * TESS_DTENSOR_TEXT + 8];

	if (!copy)
		return TESS_ENOMEM;
	t->spec.places = copy;
	snprintf(where, sizeof where, "%s, %s", tess_dtensor_format(t, name),
	         format_placements(t, places, at));
	for (int32_t i = 0; i < t->ranks->ndims; i++)
		if (places[i].kind == TESS_ASIS)
			return tess_fail(TESS_EINVAL, "%s: no placement along %s", where,
			                 t->ranks->dim[i].name);
	return check_places(t, places, where, copy);
}

/* ---- dims ------------------------------------------------------------------------------------ */

static tess_status make_part_dim(struct tess_dtensor *t, int32_t axis, int64_t size, int64_t units,
                                 struct tess_dim **out)
{
	struct tess_dim *d = TESS_NEW(&t->arena, struct tess_dim, 1);
	char name[TESS_DTENSOR_TEXT];

	if (units && size % units && size >> MAX_LOG_UNEVEN)
		return tess_fail(TESS_EINVAL,
		                 "%s: %lld units do not divide %lld elements of axis %d, which "
		                 "parts of 2^%d elements or more require",
		                 tess_dtensor_format(t, name), (long long)units, (long long)size,
		                 (int)axis, MAX_LOG_UNEVEN);
	if (!d)
		return TESS_ENOMEM;
	*d = (struct tess_dim){ .name = "part",
		                .size = size,
		                .nunits = units ? units : size,
		                .unit_size = !units         ? 1
		                             : size % units ? 0
		                                            : size / units,
		                .base = d,
		                .group = 1,
		                .may_be_empty = true };
	*out = d;
	return TESS_OK;
}

/* Makes the dim of an axis from its n parts in spec->parts, n > 0. */
static tess_status make_fused_dim(struct tess_dtensor *t, const struct tess_dtensor_spec *spec,
                                  int32_t axis, int32_t n)
{
	const struct tess_dim **list = TESS_NEW(&t->arena, const struct tess_dim *, n);
	struct tess_dim *d = TESS_NEW(&t->arena, struct tess_dim, 1);
	tess_status st = list && d ? TESS_OK : TESS_ENOMEM;

	if (st)
		return st;
	*d = (struct tess_dim){ .name = "axis", .parts = list };
	for (int32_t i = 0; i < spec->nparts && !st; i++) {
		struct tess_dim *piece = NULL;

		if (spec->parts[i].axis != axis)
			continue;
		st = make_part_dim(t, axis, spec->parts[i].size, spec->parts[i].units, &piece);
		list[d->nparts++] = piece;
		d->size += piece ? piece->size : 0;
	}
	t->dim[axis] = n == 1 ? list[0] : d;
	return st;
}

static tess_status make_dims(struct tess_dtensor *t, const struct tess_dtensor_spec *spec)
{
	tess_status st = TESS_OK;

	for (int32_t a = 0; a < spec->ndim && !st; a++) {
		struct tess_dim *piece = NULL;
		int32_t n = 0;

		for (int32_t i = 0; i < spec->nparts; i++)
			n += spec->parts[i].axis == a;
		if (n) {
			st = make_fused_dim(t, spec, a, n);
			continue;
		}
		st = make_part_dim(t, a, spec->shape[a], 0, &piece);
		t->dim[a] = piece;
	}
	return st;
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static tess_status check_parts_of_spec(const char *name, const struct tess_dtensor_spec *s)
{
	int64_t left[TESS_DTENSOR_AXES];
	bool fused[TESS_DTENSOR_AXES] = { false };

	if (s->nparts < 0 || (s->nparts && !s->parts))
		return tess_fail(TESS_EINVAL, "%s: %d parts%s", name, (int)s->nparts,
		                 s->parts ? "" : " without a list");
	for (int32_t a = 0; a < s->ndim; a++)
		left[a] = s->shape[a];
	for (int32_t i = 0; i < s->nparts; i++) {
		const struct tess_dtensor_part *p = &s->parts[i];

		if (p->axis < 0 || p->axis >= s->ndim || p->reserved)
			return tess_fail(TESS_EINVAL,
			                 "%s: part %d is of axis %d, reserved %d; use axes 0 to %d",
			                 name, (int)i, (int)p->axis, (int)p->reserved,
			                 (int)s->ndim - 1);
		if (p->size < 0 || p->size > left[p->axis] || p->units < 0 || p->units > p->size)
			return tess_fail(TESS_EINVAL,
			                 "%s: part %d of %lld elements and %lld units, with %lld "
			                 "elements of axis %d left; use 1 unit to as many as "
			                 "elements, or 0",
			                 name, (int)i, (long long)p->size, (long long)p->units,
			                 (long long)left[p->axis], (int)p->axis);
		left[p->axis] -= p->size;
		fused[p->axis] = true;
	}
	for (int32_t a = 0; a < s->ndim; a++)
		if (fused[a] && left[a])
			return tess_fail(TESS_EINVAL,
			                 "%s: %lld of the %lld elements of axis %d are in no part",
			                 name, (long long)left[a], (long long)s->shape[a], (int)a);
	return TESS_OK;
}

static tess_status check_axes_of_spec(struct tess_dtensor *t, const struct tess_dtensor_spec *s)
{
	const char *name = t->spec.name;
	int64_t elements = 1;

	if (!tess_width(s->dtype))
		return tess_fail(TESS_EINVAL, "%s: unknown dtype %d; use TESS_F32 to TESS_U8", name,
		                 (int)s->dtype);
	if (s->ndim < 0 || s->ndim > TESS_DTENSOR_AXES || (s->ndim && !s->shape))
		return tess_fail(TESS_EINVAL, "%s: %d axes%s; use 0 to %d, with their sizes", name,
		                 (int)s->ndim, s->shape ? "" : " without a shape",
		                 TESS_DTENSOR_AXES);
	for (int32_t a = 0; a < s->ndim; a++) {
		if (s->shape[a] < 0 || s->shape[a] >> MAX_LOG_ELEMENTS ||
		    (s->shape[a] && elements > (INT64_C(1) << MAX_LOG_ELEMENTS) / s->shape[a]))
			return tess_fail(
				TESS_EINVAL,
				"%s: axis %d has size %lld; all axes together may have 0 to "
				"2^%d elements",
				name, (int)a, (long long)s->shape[a], MAX_LOG_ELEMENTS);
		elements *= s->shape[a] ? s->shape[a] : 1;
	}
	return check_parts_of_spec(name, s);
}

static void *copy_bytes(struct tess_dtensor *t, const void *from, size_t bytes)
{
	void *copy = tess_arena_alloc(&t->arena, bytes + 1);

	if (copy && bytes)
		memcpy(copy, from, bytes);
	return copy;
}

static uint64_t hash_words(uint64_t h, const void *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 4) {
		uint32_t word;

		memcpy(&word, (const char *)from + i, sizeof word);
		h = tess_hash_mix(h, word);
	}
	return h;
}

/* Copies all but the placements of a checked spec. */
static tess_status copy_spec(struct tess_dtensor *t, const struct tess_dtensor_spec *s)
{
	size_t shape = (size_t)s->ndim * sizeof *s->shape;
	size_t parts = (size_t)s->nparts * sizeof *s->parts;

	t->spec.size = sizeof t->spec;
	t->spec.dtype = s->dtype;
	t->spec.ndim = s->ndim;
	t->spec.nparts = s->nparts;
	t->spec.shape = copy_bytes(t, s->shape, shape);
	t->spec.parts = copy_bytes(t, s->parts, parts);
	if (!t->spec.shape || !t->spec.parts)
		return TESS_ENOMEM;
	t->hash = hash_words(hash_words((uint64_t)s->dtype, s->shape, shape), s->parts, parts);
	t->bytes = tess_width(s->dtype) * (uint64_t)tess_dtensor_count_elements(t, t->spec.shape);
	return make_dims(t, s);
}

static tess_status open_dtensor(struct tess_mesh *m, const char *name, struct tess_dtensor **out)
{
	struct tess_dtensor *t = calloc(1, sizeof *t);

	if (!t)
		return tess_fail(TESS_ENOMEM, "no memory for a distributed tensor");
	t->ranks = tess_mesh_get_shape(m);
	t->rank = tess_world_rank(tess_mesh_world(m));
	t->mesh = m;
	tess_mesh_hold(m, 1);
	t->spec.name = tess_arena_copy(&t->arena, name, strlen(name));
	if (t->spec.name) {
		*out = t;
		return TESS_OK;
	}
	tess_dtensor_free(t);
	return TESS_ENOMEM;
}

tess_status tess_dtensor_describe(struct tess_mesh *m, const struct tess_dtensor_spec *spec,
                                  struct tess_dtensor **out)
{
	struct tess_dtensor_spec s = { 0 };
	struct tess_dtensor *t = NULL;
	tess_status st = tess_sized_copy("tess_dtensor_spec", spec, &s, sizeof s);

	if (!st && !s.places)
		st = tess_fail(TESS_EINVAL,
		               "%s: no placements; a tensor has one per mesh dimension",
		               s.name ? s.name : "tensor");
	if (!st)
		st = open_dtensor(m, s.name ? s.name : "tensor", &t);
	if (!st)
		st = check_axes_of_spec(t, &s);
	if (!st)
		st = copy_spec(t, &s);
	if (!st)
		st = copy_places(t, s.places);
	if (st) {
		tess_dtensor_free(t);
		return st;
	}
	tess_dtensor_compute_shape(t, t->spec.places, t->rank, t->local.shape);
	*out = t;
	return TESS_OK;
}

tess_status tess_dtensor_describe_moved(const struct tess_dtensor *t,
                                        const struct tess_place *places, struct tess_dtensor **out)
{
	struct tess_dtensor_spec s = t->spec;

	s.places = places;
	return tess_dtensor_describe(t->mesh, &s, out);
}

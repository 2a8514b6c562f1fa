/* mesh.c - the groups along the dimensions of a mesh. */
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/world/group.h"
#include "core/world/mesh_shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mesh_slice { /* the group along one or several dimensions */
	struct mesh_slice *next;
	struct tess_group *group;
	char text[TESS_MESH_TEXT]; /* "tp", "dp,tp" */
};

struct tess_mesh {
	struct tess_world *world;
	struct tess_mesh_shape shape;
	struct mesh_slice *slices; /* the newest first */
	int32_t nholds; /* number of open sessions, trainers and distributed tensors */
};

/* ---- slices ---------------------------------------------------------------------------------- */

struct dim_list { /* some dimensions, in the order of a slice */
	int32_t n, size;
	const struct tess_mesh_dim *dim[TESS_MESH_DIMS];
};

static tess_status read_dims(const struct tess_mesh *m, const char *text, struct dim_list *out)
{
	struct dim_list a = { .size = 1 };
	char all[TESS_MESH_TEXT];

	for (const char *at = text;; at++) {
		size_t len = strcspn(at, ",");
		int32_t found = tess_mesh_shape_find(&m->shape, at, len);
		const struct tess_mesh_dim *d = &m->shape.dim[found < 0 ? 0 : found];

		if (found < 0)
			return tess_fail(TESS_EINVAL,
			                 "\"%.100s\": the mesh %s has no dimension \"%.*s\"", text,
			                 tess_mesh_shape_format(&m->shape, all),
			                 (int)(len < TESS_MESH_NAME ? len : TESS_MESH_NAME), at);
		for (int32_t i = 0; i < a.n; i++)
			if (a.dim[i] == d)
				return tess_fail(TESS_EINVAL,
				                 "\"%.100s\" has the dimension %s twice", text,
				                 d->name);
		a.dim[a.n++] = d;
		a.size *= d->size;
		at += len;
		if (!*at)
			break;
	}
	*out = a;
	return TESS_OK;
}

/* Computes the index of a world rank in these dimensions; the last one varies fastest. */
static int32_t compute_coordinate(const struct dim_list *a, int32_t rank)
{
	int32_t at = 0;

	for (int32_t i = 0; i < a->n; i++)
		at = at * a->dim[i]->size + rank / a->dim[i]->stride % a->dim[i]->size;
	return at;
}

/* Computes the colour of a rank's group: its index in the other dimensions. */
static int32_t compute_colour(const struct tess_mesh *m, const struct dim_list *a, int32_t rank)
{
	struct dim_list rest = { .size = 1 };

	for (int32_t i = 0; i < m->shape.ndims; i++) {
		bool other = true;

		for (int32_t k = 0; k < a->n; k++)
			other = other && a->dim[k] != &m->shape.dim[i];
		if (other)
			rest.dim[rest.n++] = &m->shape.dim[i];
	}
	return compute_coordinate(&rest, rank);
}

/* Returns whether the dimensions have all ranks in the order of the world, whose group serves. */
static bool is_world(const struct tess_mesh *m, const struct dim_list *a)
{
	if (a->size != tess_world_size(m->world))
		return false;
	for (int32_t r = 0; r < a->size; r++)
		if (compute_coordinate(a, r) != r)
			return false;
	return true;
}

static tess_status open_slice_group(const struct tess_mesh *m, const struct dim_list *a,
                                    struct tess_group **out)
{
	struct tess_group *all = tess_world_group(m->world);
	int32_t rank = tess_world_rank(m->world);
	char name[TESS_MESH_NAME] = "";
	size_t len = 0;
	tess_status st;

	if (is_world(m, a)) {
		*out = all;
		return TESS_OK;
	}
	for (int32_t i = 0; i < a->n && len < sizeof name - 1; i++)
		len += (size_t)snprintf(name + len, sizeof name - len, "%s%s", i ? "_" : "",
		                        a->dim[i]->name);
	st = tess_group_split(all, compute_colour(m, a, rank), compute_coordinate(a, rank), name,
	                      out);
	if (!st)
		(*out)->owner = "mesh";
	return st;
}

tess_status tess_mesh_slice(struct tess_mesh *m, const char *dims)
{
	struct mesh_slice *s;
	struct dim_list a;
	tess_status st = TESS_REQUIRE(m, dims);

	if (!st)
		st = read_dims(m, dims, &a);
	if (st || tess_mesh_group(m, dims))
		return st;
	s = calloc(1, sizeof *s);
	if (!s)
		return tess_fail(TESS_ENOMEM, "no memory for a slice of a mesh");
	st = open_slice_group(m, &a, &s->group);
	if (st) {
		free(s);
		return st;
	}
	snprintf(s->text, sizeof s->text, "%s", dims);
	s->next = m->slices;
	m->slices = s;
	return TESS_OK;
}

/* ---- the mesh -------------------------------------------------------------------------------- */

/* Fails unless all ranks open the mesh that rank 0 opens. */
static tess_status compare_meshes(const struct tess_mesh *m)
{
	char own[TESS_MESH_TEXT] = "", first[sizeof own], text[3 * sizeof own];
	tess_status st;

	tess_mesh_shape_format(&m->shape, own);
	memcpy(first, own, sizeof first);
	st = tess_broadcast(tess_world_group(m->world), first, sizeof first, TESS_U8, 0,
	                    "tess_mesh_open");
	if (st || !strcmp(first, own))
		return st;
	snprintf(text, sizeof text,
	         "the mesh is \"%s\" here, but \"%s\" on rank 0; all ranks open the same", own,
	         first);
	return tess_world_post_failure(m->world, TESS_EMISMATCH, text);
}

tess_status tess_mesh_open(struct tess_world *w, const char *text, struct tess_mesh **out)
{
	struct tess_mesh *m;
	tess_status st = TESS_REQUIRE(w, text, out);

	if (st)
		return st;
	m = calloc(1, sizeof *m);
	if (!m)
		return tess_fail(TESS_ENOMEM, "no memory for a mesh");
	m->world = w;
	st = tess_mesh_shape_parse(text, tess_world_size(w), &m->shape);
	if (!st)
		st = compare_meshes(m);
	for (int32_t i = 0; i < m->shape.ndims && !st; i++)
		st = tess_mesh_slice(m, m->shape.dim[i].name);
	if (st)
		tess_mesh_close(m);
	else
		*out = m;
	return st;
}

struct tess_group *tess_mesh_group(const struct tess_mesh *m, const char *dims)
{
	const struct mesh_slice *s = TESS_REQUIRE(m, dims) ? NULL : m->slices;

	while (s && strcmp(s->text, dims) != 0)
		s = s->next;
	return s ? s->group : NULL;
}

int32_t tess_mesh_size(const struct tess_mesh *m, const char *dims)
{
	struct dim_list a;

	return TESS_REQUIRE(m, dims) || read_dims(m, dims, &a) ? 0 : a.size;
}

int32_t tess_mesh_rank(const struct tess_mesh *m, const char *dims)
{
	struct dim_list a;

	return TESS_REQUIRE(m, dims) || read_dims(m, dims, &a)
	               ? -1
	               : compute_coordinate(&a, tess_world_rank(m->world));
}

const struct tess_mesh_shape *tess_mesh_get_shape(const struct tess_mesh *m)
{
	return &m->shape;
}

struct tess_world *tess_mesh_world(const struct tess_mesh *m)
{
	return m->world;
}

void tess_mesh_hold(struct tess_mesh *m, int32_t n)
{
	m->nholds += n;
}

void tess_mesh_close(struct tess_mesh *m)
{
	if (!m)
		return;
	if (m->nholds) {
		tess_world_fail(m->world, TESS_EINVAL,
		                "tess_mesh_close: a session, a trainer or a tensor is open on the "
		                "mesh; close it first, and not in a callback");
		return;
	}
	for (struct mesh_slice *s = m->slices, *next; s; s = next) {
		next = s->next;
		if (s->group != tess_world_group(m->world))
			tess_group_destroy(s->group);
		free(s);
	}
	free(m);
}

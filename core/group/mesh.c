/* mesh.c - ranks laid out in named dimensions, and the groups along them. */
#include "core/base/status.h"
#include "core/group/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 8, NAME = 16, TEXT = DIMS * (NAME + 12) };
static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

struct mesh_dim {
	char name[NAME];
	int32_t size; /* 0: left out, not computed yet */
	int32_t stride; /* world ranks from one coordinate to the next */
};

struct mesh_slice { /* along one dimension or several */
	struct mesh_slice *next;
	struct tess_group *group;
	char text[TEXT]; /* "tp", "dp,tp" */
};

struct tess_mesh {
	struct tess_world *world;
	int32_t ndims;
	struct mesh_dim dim[DIMS];
	struct mesh_slice *slices; /* the newest first */
	char text[TEXT]; /* with all sizes: "dp=2,tp=4" */
};

/* ---- dimensions ------------------------------------------------------------------------------ */

static tess_status fail_bad_form(const char *text)
{
	return tess_fail(
		TESS_EINVAL,
		"the mesh \"%.100s\" is not of the form dp=2,tp=4: 1 to %d dimensions, each a "
		"name of 1 to %d letters of a-z 0-9 _ and a size, which one may leave out",
		text, DIMS, NAME - 1);
}

static const struct mesh_dim *find_dim(const struct tess_mesh *m, const char *name, size_t len)
{
	for (int32_t i = 0; i < m->ndims; i++)
		if (strlen(m->dim[i].name) == len && !memcmp(m->dim[i].name, name, len))
			return &m->dim[i];
	return NULL;
}

/* Reads "dp=2", and moves *at past it. */
static tess_status read_dim(struct tess_mesh *m, const char *text, const char **at)
{
	size_t len = strspn(*at, letters);
	struct mesh_dim *d = &m->dim[m->ndims];
	const char *end = *at + len;
	long size = 0;

	if (!len || len >= NAME || m->ndims == DIMS)
		return fail_bad_form(text);
	if (*end == '=') {
		char *after;

		size = strtol(end + 1, &after, 10);
		if (strspn(end + 1, "0123456789") != (size_t)(after - end - 1) || size < 1 ||
		    size > TESS_RANKS_MAX)
			return fail_bad_form(text);
		end = after;
	}
	if (find_dim(m, *at, len))
		return tess_fail(TESS_EINVAL, "the mesh \"%.100s\" has two dimensions %.*s", text,
		                 (int)len, *at);
	memcpy(d->name, *at, len);
	d->size = (int32_t)size;
	m->ndims++;
	*at = end;
	return TESS_OK;
}

/* Computes a size that was left out, and checks that the sizes multiply to the ranks. */
static tess_status complete_sizes(struct tess_mesh *m, const char *text)
{
	int32_t ranks = tess_world_size(m->world);
	struct mesh_dim *open = NULL;
	int64_t known = 1;

	for (int32_t i = 0; i < m->ndims; i++) {
		struct mesh_dim *d = &m->dim[i];

		if (!d->size && open)
			return tess_fail(
				TESS_EINVAL,
				"the mesh \"%.100s\" leaves out the sizes of %s and %s; one of "
				"them must be given",
				text, open->name, d->name);
		if (!d->size)
			open = d;
		else if ((known *= d->size) > TESS_RANKS_MAX)
			known = TESS_RANKS_MAX + 1;
	}
	if (open && ranks % known == 0)
		open->size = (int32_t)(ranks / known);
	else if (open)
		return tess_fail(TESS_EINVAL,
		                 "the mesh \"%.100s\" does not fit a job of %d ranks: that is not "
		                 "a multiple of %d, so there is no size for %s",
		                 text, ranks, (int)known, open->name);
	else if (known != ranks)
		return tess_fail(
			TESS_EINVAL,
			"the mesh \"%.100s\" does not fit a job of %d ranks: its sizes must "
			"multiply to that; one may be left out",
			text, ranks);
	return TESS_OK;
}

static tess_status read_mesh(struct tess_mesh *m, const char *text)
{
	const char *at = text;
	int32_t stride = 1;
	size_t len = 0;
	tess_status st;

	while (!(st = read_dim(m, text, &at)) && *at == ',')
		at++;
	if (!st && *at)
		st = fail_bad_form(text);
	if (!st)
		st = complete_sizes(m, text);
	if (st)
		return st;
	for (int32_t i = m->ndims - 1; i >= 0; i--) {
		m->dim[i].stride = stride;
		stride *= m->dim[i].size;
	}
	for (int32_t i = 0; i < m->ndims; i++)
		len += (size_t)snprintf(m->text + len, sizeof m->text - len, "%s%s=%d",
		                        i ? "," : "", m->dim[i].name, m->dim[i].size);
	return TESS_OK;
}

/* ---- slices ---------------------------------------------------------------------------------- */

struct dim_list { /* some dimensions, as ordered in a slice */
	int32_t n, size;
	const struct mesh_dim *dim[DIMS];
};

static tess_status read_dims(const struct tess_mesh *m, const char *text, struct dim_list *out)
{
	struct dim_list a = { .size = 1 };

	for (const char *at = text;; at++) {
		size_t len = strcspn(at, ",");
		const struct mesh_dim *d = find_dim(m, at, len);

		if (!d)
			return tess_fail(TESS_EINVAL,
			                 "\"%.100s\": the mesh %s has no dimension \"%.*s\"", text,
			                 m->text, (int)(len < NAME ? len : NAME), at);
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

/* The place of a world rank in these dimensions; the last one varies fastest. */
static int32_t compute_coordinate(const struct dim_list *a, int32_t rank)
{
	int32_t at = 0;

	for (int32_t i = 0; i < a->n; i++)
		at = at * a->dim[i]->size + rank / a->dim[i]->stride % a->dim[i]->size;
	return at;
}

/* The colour of its group: its place in the other dimensions. */
static int32_t compute_colour(const struct tess_mesh *m, const struct dim_list *a, int32_t rank)
{
	struct dim_list rest = { .size = 1 };

	for (int32_t i = 0; i < m->ndims; i++) {
		bool other = true;

		for (int32_t k = 0; k < a->n; k++)
			other = other && a->dim[k] != &m->dim[i];
		if (other)
			rest.dim[rest.n++] = &m->dim[i];
	}
	return compute_coordinate(&rest, rank);
}

/* Whether they hold all ranks in the order of the world, whose group then serves. */
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
	char name[NAME] = "";
	size_t len = 0;

	if (is_world(m, a)) {
		*out = all;
		return TESS_OK;
	}
	for (int32_t i = 0; i < a->n && len < sizeof name - 1; i++)
		len += (size_t)snprintf(name + len, sizeof name - len, "%s%s", i ? "_" : "",
		                        a->dim[i]->name);
	return tess_group_split(all, compute_colour(m, a, rank), compute_coordinate(a, rank), name,
	                        out);
}

tess_status tess_mesh_slice(struct tess_mesh *m, const char *dims)
{
	struct mesh_slice *s;
	struct dim_list a;
	tess_status st = read_dims(m, dims, &a);

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
	char first[TEXT], text[3 * TEXT];
	tess_status st;

	memcpy(first, m->text, sizeof first);
	st = tess_broadcast(tess_world_group(m->world), first, sizeof first, TESS_U8, 0,
	                    "tess_mesh_open");
	if (st || !strcmp(first, m->text))
		return st;
	snprintf(text, sizeof text,
	         "the mesh is \"%s\" here, but \"%s\" on rank 0; all ranks open the same", m->text,
	         first);
	return tess_world_post_failure(m->world, TESS_EMISMATCH, text);
}

tess_status tess_mesh_open(struct tess_world *w, const char *text, struct tess_mesh **out)
{
	struct tess_mesh *m = calloc(1, sizeof *m);
	tess_status st;

	if (!m)
		return tess_fail(TESS_ENOMEM, "no memory for a mesh");
	m->world = w;
	st = read_mesh(m, text);
	if (!st)
		st = compare_meshes(m);
	for (int32_t i = 0; i < m->ndims && !st; i++)
		st = tess_mesh_slice(m, m->dim[i].name);
	if (st)
		tess_mesh_close(m);
	else
		*out = m;
	return st;
}

struct tess_group *tess_mesh_group(const struct tess_mesh *m, const char *dims)
{
	for (const struct mesh_slice *s = m->slices; s; s = s->next)
		if (!strcmp(s->text, dims))
			return s->group;
	return NULL;
}

int32_t tess_mesh_size(const struct tess_mesh *m, const char *dims)
{
	struct dim_list a;

	return read_dims(m, dims, &a) ? 0 : a.size;
}

int32_t tess_mesh_rank(const struct tess_mesh *m, const char *dims)
{
	struct dim_list a;

	return read_dims(m, dims, &a) ? -1 : compute_coordinate(&a, tess_world_rank(m->world));
}

void tess_mesh_close(struct tess_mesh *m)
{
	if (!m)
		return;
	for (struct mesh_slice *s = m->slices, *next; s; s = next) {
		next = s->next;
		if (s->group != tess_world_group(m->world))
			tess_group_close(s->group);
		free(s);
	}
	free(m);
}

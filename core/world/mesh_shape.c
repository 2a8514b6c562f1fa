#include "core/world/mesh_shape.h"

#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/rendezvous/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

static tess_status fail_bad_form(const char *text)
{
	return tess_fail(
		TESS_EINVAL,
		"the mesh \"%.100s\" is not of the form dp=2,tp=4: 1 to %d dimensions, each a "
		"name of 1 to %d letters of a-z 0-9 _ and a size of 1 to %d, which one may leave "
		"out",
		text, TESS_MESH_DIMS, TESS_MESH_NAME - 1, TESS_RANKS_MAX);
}

int32_t tess_mesh_shape_find(const struct tess_mesh_shape *s, const char *name, size_t len)
{
	for (int32_t i = 0; i < s->ndims; i++)
		if (strlen(s->dim[i].name) == len && !memcmp(s->dim[i].name, name, len))
			return i;
	return -1;
}

/* Reads "dp=2" and moves *at past it. */
static tess_status read_dim(struct tess_mesh_shape *s, const char *text, const char **at)
{
	size_t len = strspn(*at, letters);
	struct tess_mesh_dim *d = &s->dim[s->ndims];
	const char *end = *at + len;
	long size = 0;

	if (!len || len >= TESS_MESH_NAME || s->ndims == TESS_MESH_DIMS)
		return fail_bad_form(text);
	if (*end == '=') {
		char *after;

		size = strtol(end + 1, &after, 10);
		if (strspn(end + 1, "0123456789") != (size_t)(after - end - 1) || size < 1 ||
		    size > TESS_RANKS_MAX)
			return fail_bad_form(text);
		end = after;
	}
	if (tess_mesh_shape_find(s, *at, len) >= 0)
		return tess_fail(
			TESS_EINVAL,
			"the mesh \"%.100s\" has two dimensions %.*s; give each a name of its own",
			text, (int)len, *at);
	memcpy(d->name, *at, len);
	d->size = (int32_t)size;
	s->ndims++;
	*at = end;
	return TESS_OK;
}

/* Computes an omitted size, and checks that the sizes multiply to the ranks. */
static tess_status complete_sizes(struct tess_mesh_shape *s, int32_t ranks, const char *text)
{
	struct tess_mesh_dim *open = NULL;
	int64_t known = 1;

	for (int32_t i = 0; i < s->ndims; i++) {
		struct tess_mesh_dim *d = &s->dim[i];

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
	if (!ranks && known <= TESS_RANKS_MAX)
		ranks = (int32_t)known;
	if (open && ranks && ranks % known == 0)
		open->size = (int32_t)(ranks / known);
	else if (!ranks)
		return tess_fail(TESS_EINVAL, "the mesh \"%.100s\" has more than %d ranks", text,
		                 TESS_RANKS_MAX);
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

static void set_strides(struct tess_mesh_shape *s)
{
	s->nranks = 1;
	for (int32_t i = s->ndims - 1; i >= 0; i--) {
		s->dim[i].stride = s->nranks;
		s->nranks *= s->dim[i].size;
	}
}

tess_status tess_mesh_shape_parse(const char *text, int32_t nranks, struct tess_mesh_shape *out)
{
	struct tess_mesh_shape s = { 0 };
	const char *at = text;
	tess_status st;

	while (!(st = read_dim(&s, text, &at)) && *at == ',')
		at++;
	if (!st && *at)
		st = fail_bad_form(text);
	if (!st)
		st = complete_sizes(&s, nranks, text);
	if (st)
		return st;
	set_strides(&s);
	*out = s;
	return TESS_OK;
}

struct tess_mesh_shape tess_mesh_shape_make(const char *name, int32_t n)
{
	struct tess_mesh_shape s = { .ndims = 1,
		                     .nranks = n,
		                     .dim = { { .size = n, .stride = 1 } } };

	snprintf(s.dim[0].name, sizeof s.dim[0].name, "%s", name);
	return s;
}

static struct tess_mesh_shape remove_dim(const struct tess_mesh_shape *s, const char *name)
{
	struct tess_mesh_shape left = { 0 };

	for (int32_t i = 0; i < s->ndims; i++)
		if (strcmp(s->dim[i].name, name) != 0)
			left.dim[left.ndims++] = s->dim[i];
	set_strides(&left);
	return left;
}

struct tess_mesh_shape tess_mesh_shape_complete(const struct tess_mesh_shape *s)
{
	static const char *const without_plan[] = { "ddp", "dp", "pp" };
	struct tess_mesh_shape whole = *s;
	int32_t n = 0;

	for (size_t i = 0; i < sizeof without_plan / sizeof *without_plan; i++)
		n += tess_mesh_shape_find(s, without_plan[i], strlen(without_plan[i])) >= 0;
	if (n < s->ndims)
		return whole;
	whole.dim[whole.ndims++] = tess_mesh_shape_make("tp", 1).dim[0];
	set_strides(&whole);
	return whole;
}

struct tess_mesh_shape tess_mesh_shape_get_replica(const struct tess_mesh_shape *s)
{
	struct tess_mesh_shape left = remove_dim(s, "dp");

	return tess_mesh_shape_complete(&left);
}

struct tess_mesh_shape tess_mesh_shape_merge(const struct tess_mesh_shape *s, int32_t i)
{
	struct tess_mesh_shape merged = remove_dim(s, s->dim[i].name);

	merged.dim[i].size *= s->dim[i].size;
	set_strides(&merged);
	return merged;
}

const char *tess_mesh_shape_format(const struct tess_mesh_shape *s, char text[TESS_MESH_TEXT])
{
	size_t len = 0;

	for (int32_t i = 0; i < s->ndims; i++)
		len += (size_t)snprintf(text + len, TESS_MESH_TEXT - len, "%s%s=%d", i ? "," : "",
		                        s->dim[i].name, (int)s->dim[i].size);
	return text;
}

int32_t tess_mesh_shape_coordinate(const struct tess_mesh_shape *s, int32_t dim, int32_t rank)
{
	return rank / s->dim[dim].stride % s->dim[dim].size;
}

int32_t tess_mesh_shape_project(const struct tess_mesh_shape *s, int32_t rank,
                                const struct tess_mesh_shape *part)
{
	int32_t at = 0;

	for (int32_t i = 0; i < part->ndims; i++) {
		int32_t dim = tess_mesh_shape_find(s, part->dim[i].name, strlen(part->dim[i].name));

		if (dim >= 0)
			at += tess_mesh_shape_coordinate(s, dim, rank) * part->dim[i].stride;
	}
	return at;
}

tess_status tess_mesh_count_ranks(const char *text, int32_t *out)
{
	struct tess_mesh_shape shape = { .nranks = 1 };
	tess_status st = TESS_REQUIRE(out);

	if (!st && text)
		st = tess_mesh_shape_parse(text, 0, &shape);
	if (!st)
		*out = shape.nranks;
	return st;
}

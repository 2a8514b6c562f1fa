/* values.c - lists of named tensors on the host. */
#include "api/values/values.h"

#include "core/base/hash.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

tess_status tess_values_new(struct tess_values **out)
{
	struct tess_values *v;
	tess_status st = TESS_REQUIRE(out);

	if (st)
		return st;
	v = calloc(1, sizeof *v);
	if (!v)
		return tess_fail(TESS_ENOMEM, "out of memory");
	*out = v;
	return TESS_OK;
}

void tess_value_entry_free(struct tess_value_entry *e)
{
	free(e->name);
	free(e->holders);
	free(e->styles);
	free(e->data);
}

void tess_values_free(struct tess_values *v)
{
	if (!v)
		return;
	for (int64_t i = 0; i < v->n; i++)
		tess_value_entry_free(&v->entry[i]);
	free(v->entry);
	free(v->by_name);
	free(v->numerics);
	free(v);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Returns the slot of a name, or the free slot for it. */
static int64_t find_name_slot(const struct tess_values *v, const char *name)
{
	uint64_t h = tess_hash_bytes(TESS_HASH_EMPTY, name, strlen(name));
	int64_t i;

	for (i = (int64_t)(h & (uint64_t)(v->nslots - 1));
	     v->by_name[i] >= 0 && strcmp(v->entry[v->by_name[i]].name, name);
	     i = (i + 1) & (v->nslots - 1))
		;
	return i;
}

/* Makes room for one more entry, and for its name. */
static tess_status grow_values(struct tess_values *v)
{
	int64_t capacity = v->capacity ? 2 * v->capacity : 64;
	struct tess_value_entry *more;
	int32_t *slots;

	if (v->n < v->capacity)
		return TESS_OK;
	more = realloc(v->entry, (size_t)capacity * sizeof *more);
	if (more)
		v->entry = more;
	slots = malloc(2 * (size_t)capacity * sizeof *slots);
	if (!more || !slots) {
		free(slots);
		return tess_fail(TESS_ENOMEM, "values: out of memory for %lld tensors",
		                 (long long)capacity);
	}
	free(v->by_name);
	v->by_name = slots;
	v->nslots = 2 * capacity;
	v->capacity = capacity;
	for (int64_t i = 0; i < v->nslots; i++)
		slots[i] = -1;
	for (int64_t i = 0; i < v->n; i++)
		slots[find_name_slot(v, v->entry[i].name)] = (int32_t)i;
	return TESS_OK;
}

int64_t tess_values_find(const struct tess_values *v, const char *name)
{
	return TESS_REQUIRE(v, name) || !v->n ? -1 : v->by_name[find_name_slot(v, name)];
}

/* ---- entries --------------------------------------------------------------------------------- */

tess_status tess_values_append(struct tess_values *v, struct tess_value_entry *e)
{
	tess_status st = v->n < INT32_MAX ? grow_values(v) : TESS_ENOMEM;
	int64_t slot = st ? 0 : find_name_slot(v, e->name);

	if (!st && v->by_name[slot] >= 0)
		st = tess_fail(TESS_EINVAL, "values: two tensors have the name %s", e->name);
	if (st) {
		tess_value_entry_free(e);
		return st;
	}
	v->by_name[slot] = (int32_t)v->n;
	v->entry[v->n++] = *e;
	return TESS_OK;
}

tess_status tess_values_set_numerics(struct tess_values *v, const char *text)
{
	char *copy = strdup(text);

	if (!copy)
		return tess_fail(TESS_ENOMEM, "values: out of memory");
	free(v->numerics);
	v->numerics = copy;
	return TESS_OK;
}

/* Checks shape and type, and counts the elements. */
static tess_status check_value(const struct tess_value *value, int64_t *size)
{
	uint64_t width = value->dtype > 0 ? tess_width(value->dtype) : 0;
	uint64_t bytes = width;

	if (!value->name || !*value->name)
		return tess_fail(TESS_EINVAL, "tess_values_add: a tensor without a name");
	if (!width)
		return tess_fail(TESS_EINVAL, "tess_values_add: %s: unknown element type %d",
		                 value->name, (int)value->dtype);
	if (value->ndim < 0 || value->ndim > TESS_DIMS)
		return tess_fail(TESS_EINVAL, "tess_values_add: %s: %d axes; use 0 to %d",
		                 value->name, (int)value->ndim, (int)TESS_DIMS);
	for (int32_t i = 0; i < value->ndim; i++)
		if (value->shape[i] < 0 ||
		    __builtin_mul_overflow(bytes, (uint64_t)value->shape[i], &bytes))
			return tess_fail(TESS_EINVAL, "tess_values_add: %s: axis %d has size %lld",
			                 value->name, (int)i, (long long)value->shape[i]);
	*size = (int64_t)(bytes / width);
	return *size && !value->data
	               ? tess_fail(TESS_EINVAL, "tess_values_add: %s: its data is NULL",
	                           value->name)
	               : TESS_OK;
}

static tess_status copy_value(struct tess_values *v, const struct tess_value *value, int64_t size)
{
	size_t bytes = (size_t)size * tess_width(value->dtype);
	struct tess_value_entry e = { .name = strdup(value->name),
		                      .holders = value->holders ? strdup(value->holders) : NULL,
		                      .styles = value->styles ? strdup(value->styles) : NULL,
		                      .data = malloc(bytes + 1),
		                      .dtype = value->dtype,
		                      .ndim = value->ndim,
		                      .size = size };

	if (!e.name || !e.data || (value->holders && !e.holders) || (value->styles && !e.styles)) {
		tess_value_entry_free(&e);
		return tess_fail(TESS_ENOMEM, "%s: no memory for its value", value->name);
	}
	memcpy(e.shape, value->shape, sizeof e.shape);
	if (bytes)
		memcpy(e.data, value->data, bytes);
	return tess_values_append(v, &e);
}

tess_status tess_values_add(struct tess_values *v, const struct tess_value *value)
{
	struct tess_value mine = { 0 };
	int64_t size = 0;
	tess_status st = TESS_REQUIRE(v, value);

	if (!st)
		st = tess_sized_copy("tess_value", value, &mine, sizeof mine);
	if (!st)
		st = check_value(&mine, &size);
	return st ? st : copy_value(v, &mine, size);
}

int64_t tess_values_count(const struct tess_values *v)
{
	return TESS_REQUIRE(v) ? 0 : v->n;
}

tess_status tess_values_get(const struct tess_values *v, int64_t i, struct tess_value *out)
{
	const struct tess_value_entry *e;
	struct tess_value value;
	uint32_t size = 0;
	tess_status st = TESS_REQUIRE(v, out);

	if (!st)
		st = tess_sized_copy("tess_value", out, &size, sizeof size);
	if (!st && (i < 0 || i >= v->n))
		st = tess_fail(TESS_EINVAL, "tess_values_get: there is no tensor %lld of %lld",
		               (long long)i, (long long)v->n);
	if (st)
		return st;
	e = &v->entry[i];
	value = (struct tess_value){ .dtype = e->dtype,
		                     .name = e->name,
		                     .data = e->data,
		                     .ndim = e->ndim,
		                     .holders = e->holders,
		                     .styles = e->styles };
	memcpy(value.shape, e->shape, sizeof value.shape);
	value.size = size < sizeof value ? size : sizeof value;
	memcpy(out, &value, value.size);
	return TESS_OK;
}

const char *tess_values_get_numerics(const struct tess_values *v)
{
	return TESS_REQUIRE(v) || !v->numerics ? "" : v->numerics;
}

int32_t tess_value_find_rank(const struct tess_value *value, int64_t row, int64_t column)
{
	struct tess_value mine = { 0 };
	long long rank[2] = { 0, 0 };
	const char *at;
	int axis, read, n = 0;
	long long start, holder;

	if (TESS_REQUIRE(value) || tess_sized_copy("tess_value", value, &mine, sizeof mine) ||
	    !mine.holders)
		return -1;
	/* parts of an axis are in order, and offsets along different axes add up */
	for (at = mine.holders; sscanf(at, " %d:%lld:%lld%n", &axis, &start, &holder, &read) == 3;
	     at += read, n++)
		if ((axis == 0 || axis == 1) && start <= (axis ? column : row))
			rank[axis] = holder;
	return n ? (int32_t)(rank[0] + rank[1]) : -1;
}

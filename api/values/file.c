/* file.c - reads and writes values as safetensors. */
#include "api/values/values.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char numerics_key[] = "tessera.numerics",
		  holders_key[] = "tessera.holders:", styles_key[] = "tessera.styles:";

/* ---- reading --------------------------------------------------------------------------------- */

static int compare_offsets(const void *a, const void *b)
{
	const struct tess_slice *x = *(const struct tess_slice *const *)a,
				*y = *(const struct tess_slice *const *)b;

	/* an empty tensor begins where the next one does */
	return x->begin != y->begin ? x->begin < y->begin ? -1 : 1
	                            : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Returns a malloc'ed copy of what the metadata has of a tensor; NULL: nothing, or no memory. */
static char *load_description(const struct tess_safetensors *f, const char *key, const char *name,
                              bool *missing)
{
	char full[1200];
	const char *text;
	char *copy;

	snprintf(full, sizeof full, "%s%s", key, name);
	text = tess_safetensors_get_metadata(f, full);
	copy = text ? strdup(text) : NULL;
	*missing |= text && !copy;
	return copy;
}

static tess_status load_one_value(const struct tess_safetensors *f, const struct tess_slice *s,
                                  struct tess_values *v)
{
	bool missing = false;
	struct tess_value_entry e = { .dtype = s->dtype, .ndim = s->ndim, .size = 1 };
	tess_status st = TESS_OK;

	if (!s->dtype || s->ndim > TESS_DIMS)
		return tess_fail(TESS_ENOTSUP,
		                 "%s: tensor %s is %s of %d axes; values have a type that models "
		                 "use, and at most %d axes",
		                 tess_safetensors_path(f), s->name, s->type, (int)s->ndim,
		                 (int)TESS_DIMS);
	for (int32_t i = 0; i < s->ndim; i++) {
		e.shape[i] = s->shape[i];
		e.size *= s->shape[i];
	}
	e.name = strdup(s->name);
	e.holders = load_description(f, holders_key, s->name, &missing);
	e.styles = load_description(f, styles_key, s->name, &missing);
	e.data = malloc(s->bytes + 1);
	if (!e.name || !e.data || missing)
		st = tess_fail(TESS_ENOMEM, "%s: no memory for tensor %s", tess_safetensors_path(f),
		               s->name);
	if (!st)
		st = tess_safetensors_read(f, s, 0, s->bytes, e.data);
	if (!st)
		return tess_values_append(v, &e);
	tess_value_entry_free(&e);
	return st;
}

/* Loads the tensors in the order of their data. */
static tess_status load_all_values(const struct tess_safetensors *f, struct tess_values *v)
{
	size_t n = tess_safetensors_count(f);
	const struct tess_slice **order = calloc(n + 1, sizeof *order);
	const char *numerics = tess_safetensors_get_metadata(f, numerics_key);
	tess_status st = order ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	for (size_t i = 0; i < n && !st; i++)
		order[i] = tess_safetensors_at(f, i);
	if (!st)
		qsort(order, n, sizeof *order, compare_offsets);
	for (size_t i = 0; i < n && !st; i++)
		st = load_one_value(f, order[i], v);
	free(order);
	return st || !numerics ? st : tess_values_set_numerics(v, numerics);
}

tess_status tess_values_load(const char *path, struct tess_values **out)
{
	struct tess_safetensors *f;
	struct tess_values *v = NULL;
	tess_status st = TESS_REQUIRE(path, out);

	if (!st)
		st = tess_safetensors_open(path, false, &f);
	if (st)
		return st;
	st = tess_values_new(&v);
	if (!st)
		st = load_all_values(f, v);
	tess_safetensors_close(f);
	if (st)
		tess_values_free(v);
	else
		*out = v;
	return st;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void free_metadata(char **metadata, int64_t n)
{
	for (int64_t i = 0; metadata && i < n; i += 2)
		free(metadata[i]);
	free(metadata);
}

/* Appends a key, malloc'ed, and its text; NULL: nothing. */
static tess_status add_description(char **list, int64_t *n, const char *key, const char *name,
                                   char *text)
{
	if (!text)
		return TESS_OK;
	if (asprintf(&list[*n], "%s%s", key, name) < 0) {
		list[*n] = NULL;
		return tess_fail(TESS_ENOMEM, "out of memory");
	}
	list[*n + 1] = text;
	*n += 2;
	return TESS_OK;
}

/* Makes the list of keys and texts; keys are malloc'ed. */
static tess_status make_metadata(const struct tess_values *v, char ***out, int64_t *n)
{
	char **list = calloc(4 * (size_t)v->n + 3, sizeof *list);
	tess_status st = TESS_OK;

	*n = 0;
	*out = list;
	if (!list)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (v->numerics) {
		list[0] = strdup(numerics_key);
		list[1] = v->numerics;
		*n += list[0] ? 2 : 0;
		if (!list[0])
			return tess_fail(TESS_ENOMEM, "out of memory");
	}
	for (int64_t i = 0; i < v->n && !st; i++) {
		const struct tess_value_entry *e = &v->entry[i];

		st = add_description(list, n, holders_key, e->name, e->holders);
		if (!st)
			st = add_description(list, n, styles_key, e->name, e->styles);
	}
	return st;
}

tess_status tess_values_save(const struct tess_values *v, const char *path)
{
	struct tess_slice *slices;
	char **metadata = NULL;
	int64_t n = 0;
	tess_status st = TESS_REQUIRE(v, path);

	if (st)
		return st;
	slices = calloc((size_t)v->n + 1, sizeof *slices);
	st = slices ? make_metadata(v, &metadata, &n) : tess_fail(TESS_ENOMEM, "out of memory");
	for (int64_t i = 0; i < v->n && !st; i++)
		slices[i] = (struct tess_slice){ .name = v->entry[i].name,
			                         .dtype = v->entry[i].dtype,
			                         .ndim = v->entry[i].ndim,
			                         .shape = v->entry[i].shape,
			                         .data = v->entry[i].data };
	if (!st)
		st = tess_safetensors_write_with(path, (int32_t)v->n, slices,
		                                 (const char *const *)metadata);
	free_metadata(metadata, n);
	free(slices);
	return st;
}

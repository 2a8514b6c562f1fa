#include "hf/index.h"

#include "core/base/json.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { INDEX_BYTES_MAX = 100000000, PART_NAME_LEN_MAX = 255, INDEXED_NAME_LEN_MAX = 1024 };

static int compare_strings(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_indexed_names(const void *a, const void *b)
{
	return strcmp(((const struct tess_indexed *)a)->name,
	              ((const struct tess_indexed *)b)->name);
}

/* Checks that an entry names a file in the directory of the index. */
static tess_status check_index_entry(const char *path, const char *name, const json_t *value)
{
	const char *part = json_string_value(value);

	if (!*name || strlen(name) > INDEXED_NAME_LEN_MAX)
		return tess_fail(TESS_EINVAL,
		                 "%s: weight_map: %.64s: a name of %zu bytes; 1 to %d are allowed",
		                 path, name, strlen(name), INDEXED_NAME_LEN_MAX);
	if (!part)
		return tess_fail(TESS_EINVAL,
		                 "%s: weight_map: %.200s: the name of a file is needed", path,
		                 name);
	if (!*part || strlen(part) > PART_NAME_LEN_MAX || strchr(part, '/') || !strcmp(part, ".") ||
	    !strcmp(part, ".."))
		return tess_fail(
			TESS_EINVAL,
			"%s: weight_map: %.200s: \"%.200s\" is not the plain name of a file in "
			"that directory",
			path, name, part);
	return TESS_OK;
}

/* Lists the distinct names of files, sorted. */
static tess_status make_parts(json_t *map, struct tess_index *ix)
{
	const char *name;
	json_t *value;
	size_t n = 0;

	ix->part = TESS_NEW(&ix->arena, const char *, json_object_size(map));
	if (!ix->part)
		return TESS_ENOMEM;
	json_object_foreach(map, name, value)
		ix->part[n++] = json_string_value(value);
	qsort(ix->part, n, sizeof *ix->part, compare_strings);
	for (size_t i = 0; i < n; i++)
		if (!i || strcmp(ix->part[i], ix->part[ix->nparts - 1]) != 0)
			ix->part[ix->nparts++] = ix->part[i];
	for (size_t i = 0; i < ix->nparts; i++) {
		ix->part[i] = tess_arena_copy(&ix->arena, ix->part[i], PART_NAME_LEN_MAX);
		if (!ix->part[i])
			return TESS_ENOMEM;
	}
	return TESS_OK;
}

static tess_status make_tensors(json_t *map, struct tess_index *ix)
{
	const char *name;
	json_t *value;

	ix->tensor = TESS_NEW(&ix->arena, struct tess_indexed, json_object_size(map));
	if (!ix->tensor)
		return TESS_ENOMEM;
	json_object_foreach(map, name, value) {
		const char *file = json_string_value(value);
		const char **part =
			bsearch(&file, ix->part, ix->nparts, sizeof *ix->part, compare_strings);
		struct tess_indexed *t = &ix->tensor[ix->n++];

		t->part = (size_t)(part - ix->part);
		t->name = tess_arena_copy(&ix->arena, name, INDEXED_NAME_LEN_MAX);
		if (!t->name)
			return TESS_ENOMEM;
	}
	qsort(ix->tensor, ix->n, sizeof *ix->tensor, compare_indexed_names);
	return TESS_OK;
}

static tess_status make_index(const char *path, const json_t *root, struct tess_index *out)
{
	json_t *map = json_object_get(root, "weight_map"), *value;
	struct tess_index ix = { 0 };
	const char *name;
	tess_status st;

	if (!json_is_object(map) || !json_object_size(map))
		return tess_fail(TESS_EINVAL, "%s: weight_map: an object {tensor: file} is needed",
		                 path);
	json_object_foreach(map, name, value) {
		st = check_index_entry(path, name, value);
		if (st)
			return st;
	}
	st = make_parts(map, &ix);
	if (!st)
		st = make_tensors(map, &ix);
	if (st)
		tess_index_free(&ix);
	else
		*out = ix;
	return st;
}

tess_status tess_index_parse(const char *path, const char *text, size_t len, struct tess_index *out)
{
	json_t *root = NULL;
	tess_status st = tess_json_parse(path, text, len, &root);

	if (!st)
		st = make_index(path, root, out);
	json_decref(root);
	return st;
}

tess_status tess_index_load(const char *path, struct tess_index *out)
{
	json_t *root = NULL;
	tess_status st = tess_json_load(path, INDEX_BYTES_MAX, &root);

	if (!st)
		st = make_index(path, root, out);
	json_decref(root);
	return st;
}

void tess_index_free(struct tess_index *ix)
{
	tess_arena_free(&ix->arena);
	*ix = (struct tess_index){ 0 };
}

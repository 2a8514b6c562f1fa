/* classes.c - numbers as people read them, and ranks that hold equally much as one class. */
#include "api/explain/format.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- numbers --------------------------------------------------------------------------------- */

/* Formats three significant digits with the unit of their power of 1000. */
static const char *format_thousands(double v, const char *const *units, int nunits, char out[16])
{
	int unit = 0;

	for (; v >= 999.5 && unit < nunits - 1; unit++)
		v /= 1000;
	snprintf(out, 16, v >= 999.5 ? "%.0f%s" : "%.3g%s", v, units[unit]);
	return out;
}

const char *explain_format_bytes(uint64_t bytes, char out[16])
{
	static const char *const units[] = { " B", " kB", " MB", " GB", " TB", " PB" };

	return format_thousands((double)bytes, units, sizeof units / sizeof *units, out);
}

const char *explain_format_count(int64_t n, char out[16])
{
	static const char *const units[] = { "", " thousand", " million", " billion", " trillion" };

	return format_thousands((double)n, units, sizeof units / sizeof *units, out);
}

/* ---- coordinates ----------------------------------------------------------------------------- */

int32_t explain_get_coordinate(const struct tess_explanation *e, int32_t d, int32_t rank)
{
	for (int32_t i = e->ndims - 1; i > d; i--)
		rank /= e->dim_sizes[i];
	return rank % e->dim_sizes[d];
}

bool explain_has_stage(const struct tess_explanation *e, const struct tess_place *places,
                       int32_t rank)
{
	for (int32_t d = 0; d < e->ndims; d++)
		if (places[d].kind == TESS_STAGE &&
		    explain_get_coordinate(e, d, rank) != e->stages[places[d].dim].rank)
			return false;
	return true;
}

/* Appends "0-3,8" of the numbers below n that are in the set; returns their number. */
static int32_t append_ranges(char *out, size_t size, const bool *set, int32_t n)
{
	size_t len = strlen(out);
	int32_t count = 0, nranges = 0;

	for (int32_t i = 0, end; i < n; i = end) {
		end = i + 1;
		if (!set[i])
			continue;
		while (end < n && set[end])
			end++;
		count += end - i;
		if (len >= size)
			continue;
		if (size - len < 24) {
			snprintf(out + len, size - len, ",...");
			len = size;
			continue;
		}
		len += (size_t)snprintf(out + len, size - len, end - i > 1 ? "%s%d-%d" : "%s%d",
		                        nranges++ ? "," : "", (int)i, (int)end - 1);
	}
	return count;
}

/*
 * Names ranks by their coordinates, as "tp=1-7 pp=0". set: room for the ranks of a dimension.
 * Returns false if that names others, too.
 */
static bool name_coordinates(const struct tess_explanation *e, const bool *ranks, int32_t count,
                             bool *set, char out[EXPLAIN_NAME])
{
	int64_t product = 1;

	*out = 0;
	for (int32_t d = 0; d < e->ndims; d++) {
		int32_t n = e->dim_sizes[d], present = 0;
		size_t len = strlen(out);

		memset(set, 0, (size_t)n * sizeof *set);
		for (int32_t r = 0; r < e->nranks; r++)
			if (ranks[r])
				set[explain_get_coordinate(e, d, r)] = true;
		for (int32_t i = 0; i < n; i++)
			present += set[i];
		product *= present;
		if (present == n || len + strlen(e->dim_names[d]) + 32 > EXPLAIN_NAME)
			continue;
		len += (size_t)snprintf(out + len, EXPLAIN_NAME - len, "%s%s=", len ? " " : "",
		                        e->dim_names[d]);
		append_ranges(out, EXPLAIN_NAME, set, n);
	}
	return product == count;
}

static void name_class(const struct tess_explanation *e, const bool *ranks, bool *set,
                       struct explain_class *c)
{
	*c->name = 0;
	c->count = append_ranges(c->name, 40, ranks, e->nranks);
	if (!strchr(c->name, ',') || e->ndims < 2)
		return;
	if (!name_coordinates(e, ranks, c->count, set, c->name)) {
		*c->name = 0;
		append_ranges(c->name, 40, ranks, e->nranks);
	}
}

/* ---- classes --------------------------------------------------------------------------------- */

static bool is_alike(const struct tess_explanation *e, int32_t a, int32_t b)
{
	return e->ranks[a] == e->ranks[b] || !memcmp(e->ranks[a], e->ranks[b], sizeof *e->ranks[a]);
}

tess_status explain_list_classes(const struct tess_explanation *e, struct explain_class **out,
                                 int32_t *n)
{
	size_t nranks = (size_t)e->nranks;
	struct explain_class *list = calloc(nranks, sizeof *list);
	bool *ranks = calloc(nranks, sizeof *ranks), *seen = calloc(nranks, sizeof *seen);
	bool *set = calloc(nranks, sizeof *set);

	*n = 0;
	for (int32_t first = 0; first < e->nranks && list && ranks && seen && set; first++) {
		if (seen[first])
			continue;
		for (int32_t r = 0; r < e->nranks; r++) {
			ranks[r] = is_alike(e, first, r);
			seen[r] = seen[r] || ranks[r];
		}
		list[*n].first = first;
		name_class(e, ranks, set, &list[(*n)++]);
	}
	free(ranks);
	free(seen);
	free(set);
	if (*n) {
		*out = list;
		return TESS_OK;
	}
	free(list);
	return tess_fail(TESS_ENOMEM, "out of memory");
}

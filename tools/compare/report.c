/* report.c - prints a comparison as text or JSON. */
#include "compare.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *compare_get_state(const struct tess_value_comparison *v)
{
	static const char *const names[] = { [TESS_VALUE_EQUAL] = "equal",
		                             [TESS_VALUE_DIFFERENT] = "different",
		                             [TESS_VALUE_RESHAPED] = "other shape",
		                             [TESS_VALUE_ONLY_FIRST] = "only in A",
		                             [TESS_VALUE_ONLY_SECOND] = "only in B" };

	return names[v->state];
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Prints what is compared: "A  -n 2", or the file. */
static tess_status print_sides(const struct compare_options *o)
{
	for (int i = 0; i < 2; i++) {
		char *text = compare_format_side(o, i);

		if (!text)
			return tess_fail(TESS_ENOMEM, "out of memory");
		printf("%c  %s\n", 'A' + i, text);
		free(text);
	}
	return TESS_OK;
}

static void print_first(const struct tess_comparison *c)
{
	const struct tess_value_comparison *v;
	char rank[32] = "";

	if (c->first < 0) {
		printf("equal: %s%lld value%s\n", c->ncompared == 1 ? "" : "all ",
		       (long long)c->ncompared, c->ncompared == 1 ? "" : "s");
		return;
	}
	v = c->values[c->first];
	if (v->state == TESS_VALUE_RESHAPED) {
		printf("first difference: %s has another shape\n", v->name);
	} else {
		if (v->rank >= 0)
			snprintf(rank, sizeof rank, " (on rank %d of A)", (int)v->rank);
		printf("first difference: %s, row %lld, column %lld%s: %.9g and %.9g", v->name,
		       (long long)v->row, (long long)v->column, rank, v->a, v->b);
		if (v->ulps < UINT64_MAX)
			printf(", %llu ulp%s", (unsigned long long)v->ulps,
			       v->ulps == 1 ? "" : "s");
		printf("; %lld elements differ, by at most %.3g\n", (long long)v->ndifferent,
		       v->largest);
	}
	if (v->styles)
		printf("in A it has style %s\n", v->styles);
	printf("%lld of %lld values differ\n", (long long)c->ndifferent, (long long)c->ncompared);
}

/* Counts the values that only one side has: they are not compared. */
static void print_unmatched(const struct tess_comparison *c)
{
	static const int states[] = { TESS_VALUE_ONLY_FIRST, TESS_VALUE_ONLY_SECOND };

	for (int side = 0; side < 2; side++) {
		long long n = 0;

		for (int64_t i = 0; i < c->nvalues; i++)
			n += c->values[i]->state == states[side];
		if (n)
			printf("only in %c, not compared: %lld value%s\n", 'A' + side, n,
			       n == 1 ? "" : "s");
	}
}

static void print_value_row(const struct tess_value_comparison *v, int width)
{
	printf("%-*s  %-11s", width, v->name, compare_get_state(v));
	if (v->state == TESS_VALUE_DIFFERENT)
		printf("  %10lld elements  by at most %.3g", (long long)v->ndifferent, v->largest);
	else if (v->state == TESS_VALUE_EQUAL && v->largest > 0)
		printf("  %19s  by at most %.3g, within %.3g", "", v->largest, v->allowed);
	putchar('\n');
}

/* Prints what --check has found in the runs, if values differ. */
static void print_checks(const struct compare_options *o, const struct tess_comparison *c,
                         const bool failed[2])
{
	if (!o->model || !c->ndifferent)
		return;
	for (int i = 0; i < 2; i++)
		if (failed[i])
			printf("--check of %c: fails, as reported on stderr; mend this first\n",
			       'A' + i);
	if (!failed[0] && !failed[1])
		printf("--check of A and B: all ranks agree\n");
}

tess_status compare_print_table(const struct compare_options *o, const struct tess_comparison *c,
                                const bool failed[2])
{
	int width = 0;
	tess_status st = print_sides(o);

	if (st)
		return st;
	if (c->tolerance > 0)
		printf("tolerance: %g of the largest element of a value\n", c->tolerance);
	else
		printf("tolerance: none, bits are compared\n");
	print_first(c);
	print_unmatched(c);
	print_checks(o, c, failed);
	for (int64_t i = 0; i < c->nvalues; i++)
		if ((int)strlen(c->values[i]->name) > width)
			width = (int)strlen(c->values[i]->name);
	putchar('\n');
	for (int64_t i = 0; i < c->nvalues; i++)
		print_value_row(c->values[i], width);
	return TESS_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Returns a number; a string for a non-finite one, which JSON lacks. */
static json_t *make_number(double x)
{
	return isfinite(x) ? json_real(x)
	                   : json_string(isnan(x) ? "NaN"
	                                 : x > 0  ? "Infinity"
	                                          : "-Infinity");
}

static json_t *make_value_json(const struct tess_value_comparison *v)
{
	json_t *o = json_pack("{s:s, s:s}", "name", v->name, "state", compare_get_state(v));

	if (v->state == TESS_VALUE_EQUAL || v->state == TESS_VALUE_DIFFERENT) {
		json_object_set_new(o, "different_elements", json_integer(v->ndifferent));
		json_object_set_new(o, "largest_difference", make_number(v->largest));
		json_object_set_new(o, "allowed_difference", make_number(v->allowed));
	}
	if (v->state != TESS_VALUE_DIFFERENT)
		return o;
	json_object_set_new(o, "row", json_integer(v->row));
	json_object_set_new(o, "column", json_integer(v->column));
	json_object_set_new(o, "styles", v->styles ? json_string(v->styles) : json_null());
	json_object_set_new(o, "rank", v->rank < 0 ? json_null() : json_integer(v->rank));
	json_object_set_new(o, "a", make_number(v->a));
	json_object_set_new(o, "b", make_number(v->b));
	json_object_set_new(o, "ulps",
	                    v->ulps < UINT64_MAX ? json_integer((json_int_t)v->ulps) : json_null());
	return o;
}

static json_t *make_side(const struct compare_options *o, int i)
{
	char *text = compare_format_side(o, i);
	json_t *side = json_string(text);

	free(text);
	return side;
}

tess_status compare_print_json(const struct compare_options *o, const struct tess_comparison *c,
                               const bool failed[2])
{
	json_t *values = json_array(), *root;
	char *text;

	for (int64_t i = 0; i < c->nvalues; i++)
		json_array_append_new(values, make_value_json(c->values[i]));
	root = json_pack("{s:b, s:o, s:o, s:f, s:I, s:I, s:s?, s:b, s:b, s:o}", "equal",
	                 c->ndifferent == 0, "a", make_side(o, 0), "b", make_side(o, 1),
	                 "tolerance", c->tolerance, "compared", (json_int_t)c->ncompared,
	                 "different", (json_int_t)c->ndifferent, "first",
	                 c->first < 0 ? NULL : c->values[c->first]->name, "check_a_fails",
	                 failed[0], "check_b_fails", failed[1], "values", values);
	text = json_dumps(root, JSON_INDENT(2));
	json_decref(root);
	if (!text)
		return tess_fail(TESS_ENOMEM, "out of memory for JSON");
	puts(text);
	free(text);
	return TESS_OK;
}

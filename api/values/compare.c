/* compare.c - finds where two lists of values differ. */
#include "api/values/values.h"
#include "core/base/arena.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

static const double auto_tolerance = 1e-5;

struct owned_comparison { /* the result with its memory */
	struct tess_comparison about; /* first: the caller's */
	struct tess_arena arena;
};

/* ---- elements -------------------------------------------------------------------------------- */

/* Returns element i of an entry. */
static double read_as_double(const struct tess_value_entry *e, int64_t i)
{
	const char *at = (const char *)e->data + (size_t)i * tess_width(e->dtype);
	double x;
	float f;
	uint16_t half;
	int64_t wide;
	int32_t whole;

	switch (e->dtype) {
	case TESS_F32:
		return memcpy(&f, at, sizeof f), f;
	case TESS_F64:
		return memcpy(&x, at, sizeof x), x;
	case TESS_BF16:
		return memcpy(&half, at, sizeof half), tess_bf16_load(half);
	case TESS_F16:
		return memcpy(&half, at, sizeof half), tess_f16_load(half);
	case TESS_I64:
		return memcpy(&wide, at, sizeof wide), (double)wide;
	case TESS_I32:
		return memcpy(&whole, at, sizeof whole), whole;
	case TESS_I8:
		return *(const signed char *)at;
	default: /* TESS_U8; a list has no other type */
		return *(const unsigned char *)at;
	}
}

/* Returns the place of an f32 in the order of all f32. */
static int64_t rank_float(float x)
{
	int32_t bits;

	memcpy(&bits, &x, sizeof bits);
	return bits < 0 ? -(int64_t)(bits & INT32_MAX) : bits;
}

static uint64_t count_ulps(double a, double b)
{
	int64_t n;

	if (isnan(a) || isnan(b))
		return UINT64_MAX;
	n = rank_float((float)a) - rank_float((float)b);
	return (uint64_t)(n < 0 ? -n : n);
}

/* Returns whether two elements differ in any bit, or by more than `allowed`. All NaNs are equal. */
static bool is_different(double a, double b, bool by_bits, double allowed)
{
	if (isnan(a) || isnan(b))
		return isnan(a) != isnan(b);
	if (by_bits)
		return a != b || signbit(a) != signbit(b);
	return a != b && !(fabs(a - b) <= allowed);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static double find_largest_finite(const struct tess_value_entry *e)
{
	double largest = 0;

	for (int64_t i = 0; i < e->size; i++) {
		double x = fabs(read_as_double(e, i));

		largest = isfinite(x) && x > largest ? x : largest;
	}
	return largest;
}

static void note_first(const struct tess_value_entry *a, int64_t i, double x, double y,
                       struct tess_value_comparison *out)
{
	int64_t columns = a->ndim ? a->shape[a->ndim - 1] : 1;
	const struct tess_value value = { .size = sizeof value, .holders = a->holders };

	out->row = i / columns;
	out->column = i % columns;
	out->a = x;
	out->b = y;
	out->ulps = count_ulps(x, y);
	out->rank = tess_value_find_rank(&value, out->row, out->column);
}

static void compare_elements(const struct tess_value_entry *a, const struct tess_value_entry *b,
                             double tolerance, struct tess_value_comparison *out)
{
	out->allowed = tolerance > 0 ? tolerance * find_largest_finite(a) : 0;
	for (int64_t i = 0; i < a->size; i++) {
		double x = read_as_double(a, i), y = read_as_double(b, i), d = fabs(x - y);

		if (x != y && !(isnan(x) && isnan(y)))
			out->largest = isfinite(d) ? d > out->largest ? d : out->largest : INFINITY;
		if (!is_different(x, y, tolerance == 0, out->allowed))
			continue;
		if (!out->ndifferent++)
			note_first(a, i, x, y, out);
	}
	out->state = out->ndifferent ? TESS_VALUE_DIFFERENT : TESS_VALUE_EQUAL;
}

static bool have_one_shape(const struct tess_value_entry *a, const struct tess_value_entry *b)
{
	return a->ndim == b->ndim &&
	       !memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim);
}

/* Appends the result for a tensor of one list or both; a or b may be NULL. */
static tess_status add_result(struct owned_comparison *c, const struct tess_value_entry *a,
                              const struct tess_value_entry *b)
{
	struct tess_comparison *about = &c->about;
	struct tess_value_comparison *r = TESS_NEW(&c->arena, struct tess_value_comparison, 1);
	/* the list is const for the caller */
	const struct tess_value_comparison **list = tess_arena_grow(
		&c->arena, (void *)(uintptr_t)about->values, (size_t)about->nvalues, sizeof *list);
	const char *name = a ? a->name : b->name;

	if (!r || !list)
		return TESS_ENOMEM;
	*r = (struct tess_value_comparison){ .name = tess_arena_copy(&c->arena, name, strlen(name)),
		                             .rank = -1,
		                             .row = -1,
		                             .column = -1 };
	if (a && a->styles)
		r->styles = tess_arena_copy(&c->arena, a->styles, strlen(a->styles));
	if (!r->name || (a && a->styles && !r->styles))
		return TESS_ENOMEM;
	r->state = !a ? TESS_VALUE_ONLY_SECOND : !b ? TESS_VALUE_ONLY_FIRST : TESS_VALUE_RESHAPED;
	if (a && b && have_one_shape(a, b))
		compare_elements(a, b, about->tolerance, r);
	about->values = list;
	list[about->nvalues] = r;
	about->ncompared += a && b;
	if (r->state == TESS_VALUE_DIFFERENT || r->state == TESS_VALUE_RESHAPED) {
		about->first = about->first < 0 ? about->nvalues : about->first;
		about->ndifferent++;
	}
	about->nvalues++;
	return TESS_OK;
}

static tess_status compare_lists(struct owned_comparison *c, const struct tess_values *a,
                                 const struct tess_values *b)
{
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < a->n && !st; i++) {
		int64_t k = tess_values_find(b, a->entry[i].name);

		st = add_result(c, &a->entry[i], k < 0 ? NULL : &b->entry[k]);
	}
	for (int64_t k = 0; k < b->n && !st; k++)
		if (tess_values_find(a, b->entry[k].name) < 0)
			st = add_result(c, NULL, &b->entry[k]);
	if (!st && !c->about.ncompared)
		st = tess_fail(TESS_EINVAL,
		               "nothing to compare: the first list has %lld tensors, the second "
		               "%lld, and they have no name in common",
		               (long long)a->n, (long long)b->n);
	return st;
}

/* Returns the tolerance to use: bits for runs of the same exact arithmetic. */
static double choose_tolerance(const struct tess_values *a, const struct tess_values *b,
                               double tolerance)
{
	const char *x = tess_values_get_numerics(a), *y = tess_values_get_numerics(b);

	if (tolerance >= 0)
		return tolerance;
	return !strncmp(x, "exact ", 6) && !strcmp(x, y) ? 0 : auto_tolerance;
}

tess_status tess_values_compare(const struct tess_values *a, const struct tess_values *b,
                                double tolerance, struct tess_comparison **out)
{
	struct owned_comparison *c;
	tess_status st = TESS_REQUIRE(a, b, out);

	if (!st && tolerance != TESS_TOLERANCE_AUTO && !(tolerance >= 0 && isfinite(tolerance)))
		st = tess_fail(TESS_EINVAL, "tess_values_compare: tolerance %g; use 0 or more",
		               tolerance);
	if (st)
		return st;
	c = calloc(1, sizeof *c);
	if (!c)
		return tess_fail(TESS_ENOMEM, "out of memory");
	c->about.first = -1;
	c->about.tolerance = choose_tolerance(a, b, tolerance);
	st = compare_lists(c, a, b);
	if (st)
		tess_comparison_free(&c->about);
	else
		*out = &c->about;
	return st;
}

void tess_comparison_free(struct tess_comparison *c)
{
	struct owned_comparison *owned = (struct owned_comparison *)c;

	if (!owned)
		return;
	tess_arena_free(&owned->arena);
	free(owned);
}

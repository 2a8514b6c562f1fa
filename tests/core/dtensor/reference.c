#include "reference.h"

#include "tests/support/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

/* ---- cases ----------------------------------------------------------------------------------- */

static void draw_mesh(uint64_t *s, struct dtensor_case *c)
{
	int32_t left = c->nranks;
	size_t len = 0;

	c->ndims = 1 + (int32_t)draw_below(s, CASE_DIMS);
	for (int32_t i = 0; i < c->ndims; i++)
		c->size[i] = 1;
	for (int32_t prime = 2; left > 1; prime++)
		for (; left % prime == 0; left /= prime)
			c->size[draw_below(s, (uint64_t)c->ndims)] *= prime;
	for (int32_t i = 0; i < c->ndims; i++)
		len += (size_t)snprintf(c->mesh + len, sizeof c->mesh - len, "%s%c=%d",
		                        i ? "," : "", 'a' + i, (int)c->size[i]);
}

static void draw_parts(uint64_t *s, struct dtensor_case *c, int32_t axis)
{
	int32_t n = (int32_t)draw_below(s, 6) - 2; /* half of the axes have none */
	int64_t left = c->shape[axis];

	for (int32_t i = 0; i < n; i++) {
		struct tess_dtensor_part *p = &c->parts[c->spec.nparts++];

		p->axis = axis;
		p->size = i == n - 1 ? left : (int64_t)draw_below(s, (uint64_t)left + 1);
		p->units = p->size ? (int64_t)draw_below(s, (uint64_t)p->size + 1) : 0;
		left -= p->size;
	}
}

static void draw_places(uint64_t *s, const struct dtensor_case *c, struct tess_place *out)
{
	int32_t op = TESS_SUM + (int32_t)draw_below(s, 4);
	bool cut[CASE_AXES] = { false }, nests = draw_below(s, 4) > 0;

	for (int32_t i = 0; i < c->ndims; i++) {
		int32_t axis = (int32_t)draw_below(s, CASE_AXES), kind = (int32_t)draw_below(s, 5);

		if (kind > 1 && axis < c->spec.ndim && (nests || !cut[axis])) {
			out[i] = (struct tess_place){ .kind = TESS_SHARD, .dim = axis };
			if (draw_below(s, 2))
				out[i].dim -= c->spec.ndim;
			cut[axis] = true;
		} else if (kind == 1) {
			out[i] = (struct tess_place){ .kind = TESS_PARTIAL, .op = op };
		} else {
			out[i] = (struct tess_place){ .kind = TESS_REPLICATE };
		}
	}
}

void dtensor_case_make(uint64_t seed, int32_t nranks, struct dtensor_case *c)
{
	static const int64_t sizes[] = { 0, 1, 2, 3, 4, 5, 7, 8, 11, 13 };
	uint64_t s = seed;

	memset(c, 0, sizeof *c);
	c->seed = seed;
	c->nranks = nranks;
	draw_mesh(&s, c);
	c->spec = (struct tess_dtensor_spec){ .size = sizeof c->spec,
		                              .dtype = TESS_F32 + (int32_t)draw_below(&s, 8),
		                              .ndim = (int32_t)draw_below(&s, CASE_AXES + 1),
		                              .shape = c->shape,
		                              .places = c->from,
		                              .parts = c->parts,
		                              .name = "x" };
	for (int32_t a = 0; a < c->spec.ndim; a++) {
		c->shape[a] = sizes[draw_below(&s, 10)];
		if (!c->shape[a] && draw_below(&s, 4)) /* few tensors are empty */
			c->shape[a] = 6;
		draw_parts(&s, c, a);
	}
	draw_places(&s, c, c->from);
	draw_places(&s, c, c->to);
	c->made = (int32_t)draw_below(&s, 3);
	c->root = c->made == MADE_FROM_ROOT ? (int32_t)draw_below(&s, (uint64_t)nranks) : -1;
}

const char *dtensor_case_format(const struct dtensor_case *c, char text[1024])
{
	char place[TESS_PLACE_SIZE];
	size_t len = (size_t)snprintf(text, 1024, "case %llu, mesh %s, %s, made %d, root %d, [",
	                              (unsigned long long)c->seed, c->mesh,
	                              tess_dtype_name(c->spec.dtype), (int)c->made, (int)c->root);

	for (int32_t a = 0; a < c->spec.ndim; a++)
		len += (size_t)snprintf(text + len, 1024 - len, " %lld", (long long)c->shape[a]);
	len += (size_t)snprintf(text + len, 1024 - len, " ]");
	for (int32_t i = 0; i < c->spec.nparts; i++)
		len += (size_t)snprintf(text + len, 1024 - len, " part %d:%lld/%lld",
		                        (int)c->parts[i].axis, (long long)c->parts[i].size,
		                        (long long)c->parts[i].units);
	for (int32_t i = 0; i < c->ndims; i++) {
		len += (size_t)snprintf(text + len, 1024 - len, ", %c: %s -> ", 'a' + i,
		                        tess_place_format(c->from[i], place));
		len += (size_t)snprintf(text + len, 1024 - len, "%s",
		                        tess_place_format(c->to[i], place));
	}
	return text;
}

/* ---- numbers --------------------------------------------------------------------------------- */

struct number { /* of the kind in which a dtype is reduced */
	float f; /* f32 and 16-bit floats */
	double d; /* f64 */
	int64_t i; /* integers */
};

static struct number load_number(int32_t dtype, uint64_t bits)
{
	struct number x = { 0 };

	switch (dtype) {
	case TESS_F32:
		x.f = tess_float((uint32_t)bits);
		break;
	case TESS_F64:
		memcpy(&x.d, &bits, sizeof x.d);
		break;
	case TESS_BF16:
		x.f = tess_float((uint32_t)bits << 16);
		break;
	case TESS_F16:
		x.f = tess_f16_load((uint16_t)bits);
		break;
	case TESS_I64:
		x.i = (int64_t)bits;
		break;
	case TESS_I32:
		x.i = (int32_t)bits;
		break;
	case TESS_I8:
		x.i = (int8_t)bits;
		break;
	default:
		x.i = (uint8_t)bits;
	}
	return x;
}

/* Rounds to the dtype, and makes every NaN one NaN and no sum -0. */
static uint64_t store_result(int32_t dtype, int32_t op, struct number x)
{
	uint64_t bits = (uint64_t)x.i;

	if (op == TESS_SUM) {
		x.f += 0.0f;
		x.d += 0.0;
	}
	x.f = isnan(x.f) ? NAN : x.f;
	x.d = isnan(x.d) ? (double)NAN : x.d;
	if (dtype == TESS_F64)
		memcpy(&bits, &x.d, sizeof bits);
	else if (dtype == TESS_F32)
		bits = tess_bits(x.f);
	else if (dtype == TESS_BF16)
		bits = tess_bf16_round(x.f);
	else if (dtype == TESS_F16)
		bits = tess_f16_round(x.f);
	return bits;
}

static struct number combine_numbers(int32_t dtype, int32_t op, struct number a, struct number b)
{
	struct number y = a;

	switch (op) {
	case TESS_SUM:
		y.f = a.f + b.f;
		y.d = a.d + b.d;
		y.i = (int64_t)((uint64_t)a.i + (uint64_t)b.i);
		break;
	case TESS_PROD:
		y.f = a.f * b.f;
		y.d = a.d * b.d;
		y.i = (int64_t)((uint64_t)a.i * (uint64_t)b.i);
		break;
	case TESS_MIN:
		y.f = a.f < b.f || isnan(a.f) ? a.f : b.f;
		y.d = a.d < b.d || isnan(a.d) ? a.d : b.d;
		y.i = a.i < b.i ? a.i : b.i;
		break;
	default:
		y.f = a.f > b.f || isnan(a.f) ? a.f : b.f;
		y.d = a.d > b.d || isnan(a.d) ? a.d : b.d;
		y.i = a.i > b.i ? a.i : b.i;
	}
	if (dtype >= TESS_I64) /* wraps */
		y = load_number(dtype, (uint64_t)y.i);
	return y;
}

static uint64_t get_identity(int32_t dtype, int32_t op)
{
	static const int64_t lowest[] = {
		[TESS_I64] = INT64_MIN, [TESS_I32] = INT32_MIN, [TESS_I8] = INT8_MIN, [TESS_U8] = 0
	};
	static const int64_t highest[] = { [TESS_I64] = INT64_MAX,
		                           [TESS_I32] = INT32_MAX,
		                           [TESS_I8] = INT8_MAX,
		                           [TESS_U8] = UINT8_MAX };
	struct number x = { 0 };

	if (op == TESS_PROD)
		x = (struct number){ 1, 1, 1 };
	else if (op == TESS_MIN)
		x = (struct number){ INFINITY, (double)INFINITY,
			             dtype >= TESS_I64 ? highest[dtype] : 0 };
	else if (op == TESS_MAX)
		x = (struct number){ -INFINITY, -(double)INFINITY,
			             dtype >= TESS_I64 ? lowest[dtype] : 0 };
	return store_result(dtype, op, x);
}

/* Draws an element: floats of different magnitudes, some zeros, infinities and NaNs. */
static uint64_t draw_element(int32_t dtype, uint64_t seed)
{
	uint64_t bits = draw_below(&seed, UINT64_MAX), special = draw_below(&seed, 40);

	if (dtype == TESS_F32 && special > 2) /* exponents 2^-8 to 2^7 */
		bits = (bits & 0x87ffffff) | 0x3c000000;
	else if (dtype == TESS_F64 && special > 2)
		bits = (bits & 0x80ffffffffffffff) | 0x3f80000000000000;
	else if (special == 1)
		bits &= UINT64_C(1) << (8 * tess_width(dtype) - 1); /* +0 or -0 */
	return bits;
}

/* ---- which elements a rank holds ------------------------------------------------------------- */

static int64_t divide_rounding_up(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static int32_t get_mesh_coordinate(const struct dtensor_case *c, int32_t rank, int32_t along)
{
	for (int32_t i = c->ndims - 1; i > along; i--)
		rank /= c->size[i];
	return rank % c->size[along];
}

static bool is_shard(const struct dtensor_case *c, struct tess_place p, int32_t axis)
{
	return p.kind == TESS_SHARD && (p.dim < 0 ? p.dim + c->spec.ndim : p.dim) == axis;
}

/* Finds in which unit of its part element `at` of an axis is. *nunits: those of the part. */
static int64_t find_unit(const struct dtensor_case *c, int32_t axis, int64_t at, int64_t *nunits)
{
	int64_t size = c->shape[axis], units = 0, unit = 0;

	for (int32_t i = 0; i < c->spec.nparts; i++) {
		if (c->parts[i].axis != axis)
			continue;
		size = c->parts[i].size;
		units = c->parts[i].units;
		if (at < size)
			break;
		at -= size;
	}
	units = units ? units : size;
	while (divide_rounding_up((unit + 1) * size, units) <= at)
		unit++;
	*nunits = units;
	return unit;
}

/* Finds which rank holds an element of an axis, along each mesh dimension that cuts it. */
static void find_holders(const struct dtensor_case *c, const struct tess_place *places,
                         int32_t axis, int64_t at, int32_t *holder)
{
	int64_t n, unit = find_unit(c, axis, at, &n), first;

	for (int32_t i = 0; i < c->ndims; i++) {
		if (!is_shard(c, places[i], axis))
			continue;
		holder[i] = 0;
		while (divide_rounding_up((holder[i] + 1) * n, c->size[i]) <= unit)
			holder[i]++;
		first = divide_rounding_up(holder[i] * n, c->size[i]); /* of this part, cut next */
		n = divide_rounding_up((holder[i] + 1) * n, c->size[i]) - first;
		unit -= first;
	}
}

static bool are_same(const struct dtensor_case *c, struct tess_place a, struct tess_place b)
{
	if (a.kind == TESS_SHARD)
		return is_shard(c, b, a.dim < 0 ? a.dim + c->spec.ndim : a.dim);
	return a.kind == b.kind && a.op == b.op;
}

bool dtensor_case_holds(const struct dtensor_case *c, const struct tess_place *places, int32_t rank,
                        int32_t axis, int64_t at)
{
	int32_t holder[CASE_DIMS];

	find_holders(c, places, axis, at, holder);
	for (int32_t i = 0; i < c->ndims; i++)
		if (is_shard(c, places[i], axis) && holder[i] != get_mesh_coordinate(c, rank, i))
			return false;
	return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

struct element { /* an element of a rank */
	const struct dtensor_case *c;
	const struct tess_place *to;
	int64_t index; /* in row-major order */
	int64_t at[CASE_AXES];
};

/* Returns the addend of the made tensor on a rank with these coordinates. */
static uint64_t compute_addend(const struct element *e, const int32_t *coordinate)
{
	const struct dtensor_case *c = e->c;
	uint64_t seed = c->seed ^ (uint64_t)(e->index + 1) * 0x2545f4914f6cdd1d;

	for (int32_t i = 0; i < c->ndims; i++) {
		if (c->from[i].kind != TESS_PARTIAL)
			continue;
		if (c->made != MADE_FROM_LOCAL && coordinate[i])
			return get_identity(c->spec.dtype, c->from[i].op);
		seed = (seed + (uint64_t)coordinate[i]) * 0x9e3779b97f4a7c15;
	}
	return draw_element(c->spec.dtype, seed);
}

static uint64_t compute_value(const struct element *e, const int32_t *coordinate, int32_t done);

/* Combines ranks [lo, hi) along a mesh dimension, part i of 2^depth; false: there are none. */
static bool combine_ranks(const struct element *e, const int32_t *coordinate, int32_t along,
                          int32_t depth, int64_t i, struct number *out)
{
	const struct dtensor_case *c = e->c;
	int64_t lo = divide_rounding_up(i * c->size[along], INT64_C(1) << depth);
	int64_t hi = divide_rounding_up((i + 1) * c->size[along], INT64_C(1) << depth);
	int32_t there[CASE_DIMS];
	struct number right;

	if (lo == hi)
		return false;
	if (hi - lo == 1) {
		memcpy(there, coordinate, sizeof there);
		there[along] = (int32_t)lo;
		*out = load_number(c->spec.dtype, compute_value(e, there, along));
		return true;
	}
	if (!combine_ranks(e, coordinate, along, depth + 1, 2 * i, out))
		return combine_ranks(e, coordinate, along, depth + 1, 2 * i + 1, out);
	if (combine_ranks(e, coordinate, along, depth + 1, 2 * i + 1, &right))
		*out = combine_numbers(c->spec.dtype, c->from[along].op, *out, right);
	return true;
}

/* Returns the value after the Partials along the first `done` mesh dimensions are finished. */
static uint64_t compute_value(const struct element *e, const int32_t *coordinate, int32_t done)
{
	struct number x = { 0 };

	if (!done)
		return compute_addend(e, coordinate);
	done--;
	if (e->c->from[done].kind != TESS_PARTIAL || are_same(e->c, e->c->from[done], e->to[done]))
		return compute_value(e, coordinate, done);
	combine_ranks(e, coordinate, done, 0, 0, &x);
	return store_result(e->c->spec.dtype, e->c->from[done].op, x);
}

/* Returns whether a rank keeps an element that becomes Partial along mesh dimension i. */
static bool keeps_element(const struct element *e, int32_t i, int32_t coordinate)
{
	int32_t holder[CASE_DIMS] = { 0 };

	for (int32_t a = 0; a < e->c->spec.ndim; a++)
		if (is_shard(e->c, e->c->from[i], a))
			find_holders(e->c, e->c->from, a, e->at[a], holder);
	return holder[i] == coordinate;
}

static uint64_t compute_held_element(const struct element *e, int32_t rank)
{
	const struct dtensor_case *c = e->c;
	int32_t coordinate[CASE_DIMS];

	for (int32_t i = 0; i < c->ndims; i++)
		coordinate[i] = get_mesh_coordinate(c, rank, i);
	for (int32_t i = 0; i < c->ndims; i++)
		if (e->to[i].kind == TESS_PARTIAL && !are_same(c, c->from[i], e->to[i]) &&
		    !keeps_element(e, i, coordinate[i]))
			return get_identity(c->spec.dtype, e->to[i].op);
	return compute_value(e, coordinate, c->ndims);
}

static int64_t count_elements_of_case(const struct dtensor_case *c)
{
	int64_t n = 1;

	for (int32_t a = 0; a < c->spec.ndim; a++)
		n *= c->shape[a];
	return n;
}

void *dtensor_case_compute_local(const struct dtensor_case *c, const struct tess_place *to,
                                 int32_t rank, size_t *bytes)
{
	int64_t n = count_elements_of_case(c);
	size_t width = tess_width(c->spec.dtype), len = 0;
	char *out = malloc((size_t)n * width + 1);

	for (int64_t k = 0; k < n && out; k++) {
		struct element e = { c, to, k, { 0 } };
		bool held = true;
		int64_t rest = k;
		uint64_t bits;

		for (int32_t a = c->spec.ndim - 1; a >= 0; a--) {
			e.at[a] = rest % c->shape[a];
			rest /= c->shape[a];
			held = held && dtensor_case_holds(c, to, rank, a, e.at[a]);
		}
		if (!held)
			continue;
		bits = compute_held_element(&e, rank);
		memcpy(out + len, &bits, width);
		len += width;
	}
	*bytes = len;
	return out;
}

void *dtensor_case_compute_full(const struct dtensor_case *c)
{
	int64_t n = count_elements_of_case(c);
	size_t width = tess_width(c->spec.dtype);
	const int32_t first[CASE_DIMS] = { 0 };
	char *out = malloc((size_t)n * width + 1);

	for (int64_t k = 0; k < n && out; k++) {
		struct element e = { c, c->from, k, { 0 } };
		uint64_t bits = compute_addend(&e, first);

		memcpy(out + (size_t)k * width, &bits, width);
	}
	return out;
}

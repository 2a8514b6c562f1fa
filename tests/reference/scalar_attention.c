/* scalar_attention.c - ATTENTION, with pages and without, and ATTENTION_D by definition. */
#include "scalar.h"

#include <math.h>
#include <stdlib.h>
#include <tessera/util/random.h>

enum { UNITS = 64, KEYS = 64, QUERIES = 32 };

static int64_t get_integer(const struct tess_op *op, int number)
{
	return (int64_t)op->num[number];
}

static float *get_element(const struct tess_view *v, int64_t t, int64_t i)
{
	return (float *)v->data + t * v->stride[0] + i;
}

static int64_t get_position(const struct tess_op *op, int64_t t)
{
	return ((const int32_t *)op->in[3].data)[t];
}

static int64_t get_slot(const struct tess_op *op, int64_t t)
{
	return ((const int32_t *)op->in[4].data)[t];
}

/* Returns whether ATTENTION has pages, its operand 5. */
static bool has_pages(const struct tess_op *op)
{
	return op->kind == TESS_OP_ATTENTION && op->in[5].ndim;
}

/*
 * Returns element `i` of the keys or values at `offset` of the page of position p of the row's
 * slot.
 */
static float *find_cached(const struct tess_op *op, int64_t t, int64_t p, int offset, int64_t i)
{
	int64_t page =
		((const int64_t *)op->in[5].data)[get_slot(op, t) * op->in[5].stride[0] + p / KEYS];

	return (float *)(uintptr_t)(page + get_integer(op, offset)) + i;
}

/* Returns element i of key kv of position p of the sequence of row t. */
static float *find_key(const struct tess_op *op, int64_t t, int64_t p, int64_t kv, int64_t i)
{
	int64_t d = get_integer(op, TESS_ATTENTION_HEAD);

	if (!has_pages(op))
		return get_element(&op->in[1], t - get_position(op, t) + p, kv * d + i);
	return find_cached(op, t, p, TESS_ATTENTION_KEYS,
	                   op->in[2].ndim ? (kv * d + i) * KEYS + p % KEYS
	                                  : (kv * KEYS + p % KEYS) * d + i);
}

static float *find_value(const struct tess_op *op, int64_t t, int64_t p, int64_t kv, int64_t i)
{
	int64_t value = get_integer(op, TESS_ATTENTION_VALUE);

	if (!op->in[2].ndim)
		return find_key(op, t, p, kv, i);
	if (!has_pages(op))
		return get_element(&op->in[2], t - get_position(op, t) + p, kv * value + i);
	return find_cached(op, t, p, TESS_ATTENTION_VALUES, (kv * KEYS + p % KEYS) * value + i);
}

static void store_keys_and_values(const struct tess_op *op, int64_t t)
{
	int64_t d = get_integer(op, TESS_ATTENTION_HEAD),
		value = get_integer(op, TESS_ATTENTION_VALUE), p = get_position(op, t);

	for (int64_t i = 0; i < op->in[1].shape[1]; i++)
		*find_key(op, t, p, i / d, i % d) = scalar_read(&op->in[1], t, i);
	for (int64_t i = 0; op->in[2].ndim && i < op->in[2].shape[1]; i++)
		*find_value(op, t, p, i / value, i % value) = scalar_read(&op->in[2], t, i);
}

/* Returns the node over units [a, b), of which [lo, hi) are present. */
static float sum_present_units(const float *leaf, int64_t lo, int64_t hi, int64_t a, int64_t b)
{
	int64_t middle = a + (b - a) / 2;

	if (b - a == 1)
		return leaf[a];
	if (hi <= middle)
		return sum_present_units(leaf, lo, hi, a, middle);
	if (lo >= middle)
		return sum_present_units(leaf, lo, hi, middle, b);
	return sum_present_units(leaf, lo, hi, a, middle) +
	       sum_present_units(leaf, lo, hi, middle, b);
}

/* Sums x, or x * y, of positions first to last, in units of `each` positions of 2^31. */
static float sum_positions(const float *x, const float *y, int64_t first, int64_t last,
                           int64_t each)
{
	float leaf[UNITS] = { 0 };

	for (int64_t p = first; p <= last; p++)
		leaf[p / each] = y ? fmaf(x[p], y[p], leaf[p / each]) : leaf[p / each] + x[p];
	return sum_present_units(leaf, first / each, last / each + 1, 0,
	                         ((int64_t)1 << 31) / each) +
	       0.0f;
}

static float score_key(const struct tess_op *op, int64_t t, int64_t h, int64_t kv, int64_t p)
{
	int64_t d = get_integer(op, TESS_ATTENTION_HEAD);
	float z = 0, cap = (float)op->num[TESS_ATTENTION_SOFTCAP];

	for (int64_t i = 0; i < d; i++)
		z = fmaf(scalar_read(&op->in[0], t, h * d + i), *find_key(op, t, p, kv, i), z);
	z *= (float)op->num[TESS_ATTENTION_SCALE];
	return cap > 0 ? cap * mathf_tanh(z / cap) : z;
}

static int64_t find_kv_head(const struct tess_op *op, int64_t h)
{
	int64_t lo = get_integer(op, TESS_ATTENTION_FIRST),
		group = get_integer(op, TESS_ATTENTION_GROUP);

	return (lo + h) / group - lo / group;
}

static int64_t find_first_seen(const struct tess_op *op, int64_t own)
{
	int64_t window = get_integer(op, TESS_ATTENTION_WINDOW);

	if (op->num[TESS_ATTENTION_CHUNKED] != 0)
		return own / window * window;
	return window && own >= window ? own - window + 1 : 0;
}

/* Returns the factor of element `i` of row t of a site; `step` is the last operand. */
static float find_drop_factor(const struct tess_op *op, int64_t position, int64_t slot, double rate,
                              int64_t site, int64_t i)
{
	/* operand 6 of attention, the last one of DROPOUT */
	const uint32_t *step = op->in[op->nin > 7 ? 6 : op->nin - 1].data;
	uint32_t c[4] = { (uint32_t)(i / 4), (uint32_t)position, step[2] + (uint32_t)slot,
		          (uint32_t)site };

	tess_philox(step[0], step[1], c);
	return c[i % 4] < tess_drop_below(rate) ? 0 : tess_drop_scale(rate);
}

void scalar_run_dropout(const struct tess_op *op)
{
	const int32_t *position = op->in[1].data, *slot = op->in[2].data;
	float x, factor;

	for (int64_t t = 0; t < op->in[0].shape[0]; t++)
		for (int64_t i = 0; i < op->in[0].shape[1]; i++) {
			x = scalar_read(&op->in[0], t, i);
			factor = find_drop_factor(op, position[t], slot[t],
			                          op->num[TESS_DROPOUT_RATE],
			                          get_integer(op, TESS_DROPOUT_SITE),
			                          get_integer(op, TESS_DROPOUT_FIRST) + i);
			*get_element(&op->out[0], t, i) = factor > 0 ? x * factor : 0;
		}
}

/* Drops some of the weights, or of their gradients, of row t. */
static void drop_weights(const struct tess_op *op, int64_t t, int64_t h, float *w)
{
	int64_t site =
		get_integer(op, TESS_ATTENTION_SITE) + get_integer(op, TESS_ATTENTION_FIRST) + h;
	float factor;

	int64_t last = get_position(op, t);

	for (int64_t p = find_first_seen(op, last); p <= last && op->num[TESS_ATTENTION_RATE] > 0;
	     p++) {
		factor = find_drop_factor(op, last, get_slot(op, t), op->num[TESS_ATTENTION_RATE],
		                          site, p);
		w[p] = factor > 0 ? w[p] * factor : 0;
	}
}

/* Returns the sink of a head; -INFINITY: none. */
static float read_sink(const struct tess_op *op, int64_t h)
{
	return op->nin > 7 ? scalar_load(&op->in[7], h * op->in[7].stride[0]) : -INFINITY;
}

/*
 * Computes scores z and weights w of the positions that row t sees; returns the weight of the sink.
 */
static float weigh_keys(const struct tess_op *op, int64_t t, int64_t h, float *z, float *w)
{
	int64_t last = get_position(op, t), first = find_first_seen(op, last);
	float top = read_sink(op, h), sum, sink = 0;

	for (int64_t p = first; p <= last; p++) {
		z[p] = score_key(op, t, h, find_kv_head(op, h), p);
		top = z[p] > top ? z[p] : top;
	}
	for (int64_t p = first; p <= last; p++)
		w[p] = mathf_exp(z[p] - top);
	sum = sum_positions(w, NULL, first, last, KEYS);
	if (op->nin > 7) {
		sink = mathf_exp(read_sink(op, h) - top);
		sum = sum + sink;
	}
	for (int64_t p = first; p <= last; p++)
		w[p] = w[p] / sum;
	return sink / sum;
}

static void attend_one_head(const struct tess_op *op, int64_t t, int64_t h)
{
	int64_t value = get_integer(op, TESS_ATTENTION_VALUE), last = get_position(op, t);
	float *z = malloc(12 * (size_t)(last + 1)), *w = z + last + 1, *v = w + last + 1;

	weigh_keys(op, t, h, z, w);
	drop_weights(op, t, h, w);
	for (int64_t i = 0; i < value; i++) {
		for (int64_t p = 0; p <= last; p++)
			v[p] = *find_value(op, t, p, find_kv_head(op, h), i);
		*get_element(&op->out[0], t, h * value + i) =
			sum_positions(w, v, find_first_seen(op, last), last, KEYS);
	}
	free(z);
}

/* ---- backward -------------------------------------------------------------------------------- */

/*
 * Computes the weights w of row t, the gradients s of q . k, and with them dq. z, u: scratch for a
 * row each.
 */
static void take_row_gradient(const struct tess_op *op, int64_t t, int64_t h, float *w, float *s,
                              float *z, float *u)
{
	int64_t d = get_integer(op, TESS_ATTENTION_HEAD),
		value = get_integer(op, TESS_ATTENTION_VALUE), kv = find_kv_head(op, h);
	int64_t last = get_position(op, t), first = find_first_seen(op, last);
	float cap = (float)op->num[TESS_ATTENTION_SOFTCAP], r, sink;

	sink = weigh_keys(op, t, h, z, w);
	for (int64_t p = first; p <= last; p++) {
		u[p] = 0;
		for (int64_t i = 0; i < value; i++)
			u[p] = fmaf(scalar_read(&op->in[5], t, h * value + i),
			            *find_value(op, t, p, kv, i), u[p]);
	}
	drop_weights(op, t, h, u);
	r = sum_positions(w, u, first, last, KEYS);
	if (op->nout > 3)
		*get_element(&op->out[3], t, h) = -(sink * r);
	for (int64_t p = first; p <= last; p++) {
		s[p] = w[p] * (u[p] - r);
		if (cap > 0)
			s[p] = s[p] * (1.0f - (z[p] / cap) * (z[p] / cap));
		s[p] = s[p] * (float)op->num[TESS_ATTENTION_SCALE];
	}
	drop_weights(op, t, h, w);
	for (int64_t i = 0; i < d; i++) {
		for (int64_t p = first; p <= last; p++)
			u[p] = *find_key(op, t, p, kv, i);
		*get_element(&op->out[0], t, h * d + i) = sum_positions(s, u, first, last, KEYS);
	}
}

/*
 * Sums over the queries that see position p of the sequence at row `from`: element (query, p) of a
 * [rows][rows] times column i of x.
 */
static float sum_queries(const struct tess_op *op, int64_t from, int64_t rows, int64_t p,
                         const float *a, const struct tess_view *x, int64_t i, float *pair)
{
	int64_t last = p;

	while (last + 1 < rows && find_first_seen(op, last + 1) <= p)
		last++;
	for (int64_t q = p; q <= last; q++) {
		pair[q] = a[q * rows + p];
		pair[rows + q] = scalar_read(x, from + q, i);
	}
	return sum_positions(pair, pair + rows, p, last, QUERIES);
}

/* Differentiates one sequence of `rows` rows from row `from` on. */
static void take_head_gradient(const struct tess_op *op, int64_t from, int64_t rows, int64_t h)
{
	int64_t d = get_integer(op, TESS_ATTENTION_HEAD),
		value = get_integer(op, TESS_ATTENTION_VALUE);
	float *w = malloc(8 * (size_t)(rows * rows + rows)), *s = w + rows * rows;
	float *pair = s + rows * rows, *dk, dv;

	for (int64_t q = 0; q < rows; q++)
		take_row_gradient(op, from + q, h, w + q * rows, s + q * rows, pair, pair + rows);
	for (int64_t p = 0; p < rows; p++) {
		for (int64_t i = 0; i < d; i++)
			*get_element(&op->out[1], from + p, h * d + i) =
				sum_queries(op, from, rows, p, s, &op->in[0], h * d + i, pair);
		for (int64_t i = 0; i < value; i++) {
			dv = sum_queries(op, from, rows, p, w, &op->in[5], h * value + i, pair);
			dk = get_element(&op->out[1], from + p, h * d + i);
			if (op->in[2].ndim)
				*get_element(&op->out[2], from + p, h * value + i) = dv;
			else
				*dk = *dk + dv;
		}
	}
	free(w);
}

void scalar_run_attention(const struct tess_op *op)
{
	int64_t heads = op->in[0].shape[1] / get_integer(op, TESS_ATTENTION_HEAD),
		tokens = op->in[0].shape[0];

	for (int64_t t = 0; t < tokens && has_pages(op); t++)
		store_keys_and_values(op, t);
	for (int64_t t = 0, rows; t < tokens; t += rows) {
		rows = 1;
		while (t + rows < tokens && get_slot(op, t + rows) == get_slot(op, t))
			rows++;
		for (int64_t i = 0; i < rows * heads && op->kind == TESS_OP_ATTENTION; i++)
			attend_one_head(op, t + i / heads, i % heads);
		for (int64_t h = 0; h < heads && op->kind == TESS_OP_ATTENTION_D; h++)
			take_head_gradient(op, t, rows, h);
	}
}

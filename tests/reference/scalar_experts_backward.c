/* scalar_experts_backward.c - ROUTE_D, COMBINE_D, EXPERTS_D, EXPERTS_DW, BALANCE and BALANCE_D. */
#include "scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/model.h>

static float *find_row(const struct tess_view *v, int64_t t)
{
	return (float *)v->data + t * v->stride[0];
}

/* ---- route, balance -------------------------------------------------------------------------- */

static float compute_sigmoid(float x)
{
	return 1 / (1 + mathf_exp(-x));
}

static void compute_softmax(const float *x, int64_t n, float *s)
{
	float m = -INFINITY, sum = 0;

	for (int64_t i = 0; i < n; i++)
		m = fmaxf(m, x[i]);
	for (int64_t i = 0; i < n; i++)
		sum += s[i] = mathf_exp(x[i] - m);
	for (int64_t i = 0; i < n; i++)
		s[i] = s[i] / sum;
}

/* Computes d of the logits of a softmax s, from q of s. */
static void differentiate_softmax(const float *s, const float *q, int64_t n, float *d)
{
	float r = 0;

	for (int64_t i = 0; i < n; i++)
		r = fmaf(q[i], s[i], r);
	for (int64_t i = 0; i < n; i++)
		d[i] = s[i] * (q[i] - r);
}

static void run_route_d_op(const struct tess_op *op)
{
	int64_t n = op->in[0].shape[1];
	int flags = (int)op->num[TESS_ROUTE_FLAGS];
	float scale = (float)op->num[TESS_ROUTE_SCALE];
	float *s = calloc((size_t)n, 8), *q = s + n;

	for (int64_t t = 0; t < op->in[0].shape[0]; t++) {
		const float *x = find_row(&op->in[0], t), *w = find_row(&op->in[1], t),
			    *g = find_row(&op->in[2], t);
		float sum = 0, c = 0, *d = find_row(&op->out[0], t);

		compute_softmax(x, n, s);
		for (int64_t i = 0; i < n && flags & TESS_SIGMOID; i++)
			s[i] = compute_sigmoid(x[i]);
		for (int64_t i = 0; i < n; i++)
			sum += w[i] != 0 ? s[i] : 0;
		sum += (float)op->num[TESS_ROUTE_EPS];
		for (int64_t i = 0; i < n; i++)
			c = w[i] != 0 ? fmaf(g[i] * scale, s[i] / sum, c) : c;
		for (int64_t i = 0; i < n; i++)
			q[i] = w[i] == 0                ? 0
			       : flags & TESS_NORMALIZE ? (g[i] * scale - c) / sum
			                                : g[i] * scale;
		if (!(flags & TESS_SIGMOID))
			differentiate_softmax(s, q, n, d);
		for (int64_t i = 0; i < n && flags & TESS_SIGMOID; i++)
			d[i] = w[i] == 0 ? 0 : q[i] * (s[i] * (1 - s[i]));
	}
	free(s);
}

static void run_balance_op(const struct tess_op *op)
{
	const struct tess_view *y = &op->out[0];
	int64_t rows = op->in[0].shape[0], n = op->in[0].shape[1];
	bool partial = y->ndim == 3;
	float *s = calloc((size_t)(rows * n + rows + 1), 4), *column = s + rows * n;

	for (int64_t i = 0; i < op->nin * n; i++) {
		const struct tess_view *of = &op->in[i / n]; /* logits, weights, logits, ... */

		for (int64_t t = 0; t < rows && i % (2 * n) == 0; t++)
			compute_softmax(find_row(of, t), n, s + t * n);
		/* row 2l is for the weights, 2l + 1 for the logits */
		for (int64_t t = 0; t < rows; t++)
			column[t] = i / n % 2 ? find_row(of, t)[i % n] != 0 : s[t * n + i % n];
		scalar_sum_tokens(op, column, NULL, NULL, partial,
		                  (float *)y->data + (i / n ^ 1) * y->stride[partial] + i % n,
		                  y->stride[0]);
	}
	free(s);
}

static void run_balance_d_op(const struct tess_op *op)
{
	int64_t n = op->in[0].shape[1];
	float tokens = 0, *c = calloc((size_t)n, 12), *s = c + n, *q = s + n;
	float factor = (float)op->num[TESS_BALANCE_FACTOR] * (float)n;

	for (int64_t l = 0; l < op->in[1].shape[0]; l += 2)
		for (int64_t i = 0; i < n; i++)
			c[i] += find_row(&op->in[1], l)[i];
	for (int64_t i = 0; i < n; i++)
		tokens += c[i];
	tokens = tokens / (float)op->num[TESS_BALANCE_TOP];
	for (int64_t i = 0; i < n; i++)
		q[i] = factor * (c[i] / tokens) / tokens;
	for (int64_t t = 0; t < op->in[0].shape[0]; t++) {
		compute_softmax(find_row(&op->in[0], t), n, s);
		differentiate_softmax(s, q, n, find_row(&op->out[0], t));
	}
	free(c);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Returns op with only tree `i`. */
static struct tess_op take_one_tree(const struct tess_op *op, int32_t i)
{
	struct tess_op one = *op;

	one.tree += i;
	one.ntree = 1;
	return one;
}

static struct tess_view view_row(float *row, int64_t n)
{
	return (struct tess_view){
		.data = row, .dtype = TESS_F32, .ndim = 2, .shape = { 1, n }, .stride = { n, 1 }
	};
}

/* Returns the slot of expert e in row t of the weights. */
static int64_t find_slot(const struct tess_view *weights, int64_t t, int64_t e)
{
	int64_t slot = 0;

	for (int64_t i = 0; i < e; i++)
		slot += find_row(weights, t)[i] != 0;
	return slot;
}

static void run_combine_d_op(const struct tess_op *op)
{
	const struct tess_view *weights = &op->in[1];
	int64_t h = op->in[2].shape[1];

	for (int64_t t = 0; t < weights->shape[0]; t++) {
		for (int64_t e = 0; e < weights->shape[1]; e++) {
			struct tess_view z =
				view_row(find_row(&op->in[0], t) + find_slot(weights, t, e) * h, h);

			find_row(&op->out[0], t)[e] = 0;
			if (find_row(weights, t)[e] != 0)
				scalar_contract(op, &op->in[2], t, &z, 0, false,
				                find_row(&op->out[0], t) + e, 0);
		}
	}
}

static struct tess_view exchange_axes(struct tess_view w)
{
	int64_t shape = w.shape[0], stride = w.stride[0];

	w.shape[0] = w.shape[1];
	w.shape[1] = shape;
	w.stride[0] = w.stride[1];
	w.stride[1] = stride;
	return w;
}

/* Computes da, db and h of [a, b], by the activation with a limit. */
static void derive_limited(const struct tess_op *op, const float *ab, float g, float *d, float *h)
{
	float limit = (float)op->num[TESS_EXPERTS_LIMIT], c = ab[0] > limit ? limit : ab[0];
	float u = ab[1] > limit ? limit : ab[1] < -limit ? -limit : ab[1];
	float z = (float)op->num[TESS_EXPERTS_ALPHA] * c, s = compute_sigmoid(z);

	d[0] = d[1] = 0;
	if (!(ab[0] > limit))
		d[0] = g * (u + 1) * (s * (1 + z * (1 - s)));
	if (!(fabsf(ab[1]) > limit))
		d[1] = g * (c * s);
	*h = scalar_activate_limited(op, ab[0], ab[1]);
}

/* Computes [da | db | h] of expert e and row t into mid. */
static void derive_one_expert(const struct tess_op *op, int64_t t, int64_t e, float *mid)
{
	struct tess_view up = scalar_get_expert(&op->in[2], e),
			 down = exchange_axes(scalar_get_expert(&op->in[3], e));
	struct tess_op over_k = take_one_tree(op, 0), over_h = take_one_tree(op, 1);
	int64_t f = down.shape[0];
	int32_t act = (int32_t)op->num[TESS_EXPERTS_ACTIVATION];

	bool limited = op->num[TESS_EXPERTS_LIMIT] > 0;

	for (int64_t j = 0; j < f; j++) {
		int64_t at[2] = { limited ? 2 * j : j, limited ? 2 * j + 1 : f + j };
		float ab[2], a, b, g, d, value;

		for (int i = 0; i < 2; i++) {
			scalar_contract(&over_k, &op->in[0], t, &up, at[i], false, &ab[i], 0);
			ab[i] += op->nin > 5 ? scalar_read(&op->in[5], e, at[i]) : 0;
		}
		scalar_contract(&over_h, &op->in[4], t, &down, j, false, &g, 0);
		if (limited) {
			derive_limited(op, ab, g, mid + 2 * j, mid + 2 * f + j);
			continue;
		}
		a = ab[0];
		b = ab[1];
		value = scalar_activate(act, a);
		d = scalar_derive_activation(act, a, g * b);
		mid[j] = d;
		mid[f + j] = g * value;
		mid[2 * f + j] = value * b;
	}
}

static void run_experts_d_op(const struct tess_op *op)
{
	const struct tess_view *weights = &op->in[1], *y = &op->out[0];
	int64_t k = op->in[0].shape[1], f = op->in[3].shape[2],
		slots = (int64_t)op->num[TESS_EXPERTS_SLOTS];
	bool partial = y->ndim == 3;
	struct tess_op over_f = take_one_tree(op, 2);

	for (int64_t n = 0; n < (partial ? y->shape[0] : 1); n++)
		for (int64_t t = 0; t < weights->shape[0]; t++)
			memset((float *)y->data + n * y->stride[0] * partial +
			               t * y->stride[partial],
			       0, 4 * (size_t)(slots * k));
	for (int64_t t = 0; t < weights->shape[0]; t++) {
		for (int64_t e = 0; e < weights->shape[1]; e++) {
			struct tess_view up = exchange_axes(scalar_get_expert(&op->in[2], e)), d;
			int64_t slot = find_slot(weights, t, e);
			float *mid = find_row(&op->out[1], t) + slot * 3 * f;

			if (find_row(weights, t)[e] == 0)
				continue;
			derive_one_expert(op, t, e, mid);
			d = view_row(mid, 2 * f);
			for (int64_t j = 0; j < k; j++)
				scalar_contract(&over_f, &d, 0, &up, j, partial,
				                (float *)y->data + t * y->stride[partial] +
				                        slot * k + j,
				                y->stride[0]);
		}
	}
}

struct columns { /* the tokens of an expert: w * d, and its other factor */
	float *weighted, *other;
	bool *present;
};

/*
 * Sums (w * a) * b over the tokens routed to expert e; a and b are elements of their rows; b NULL:
 * 1.
 */
static void sum_expert_tokens(const struct tess_op *op, int64_t e, const struct tess_view *a,
                              int64_t i, bool a_slots, const struct tess_view *b, int64_t k,
                              bool b_slots, struct columns c, bool partial, float *out,
                              int64_t step)
{
	const struct tess_view *weights = &op->in[1];
	int64_t slot, each = op->out[1].shape[op->out[1].ndim - 1] * 3;

	for (int64_t t = 0; t < weights->shape[0]; t++) {
		float w = find_row(weights, t)[e];

		c.weighted[t] = c.other[t] = 0; /* an absent term */
		c.present[t] = w != 0;
		if (w == 0)
			continue;
		slot = find_slot(weights, t, e);
		c.weighted[t] = w * find_row(a, t)[i + (a_slots ? slot * each : 0)];
		c.other[t] = b ? find_row(b, t)[k + (b_slots ? slot * each : 0)] : 1;
	}
	scalar_sum_tokens(op, c.weighted, b ? c.other : NULL, c.present, partial, out, step);
}

static void run_experts_dw_op(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *g = &op->in[2], *mid = &op->in[3];
	int64_t rows = x->shape[0];
	struct columns c = { calloc((size_t)rows + 1, 4), calloc((size_t)rows + 1, 4),
		             calloc((size_t)rows + 1, 1) };

	for (int32_t i = 0; i < op->nout; i++) {
		const struct tess_view *y = &op->out[i];
		bool partial = y->ndim == 4;
		const int64_t *n = y->shape + partial, *stride = y->stride + partial;

		for (int64_t at = 0; at < n[0] * n[1] * n[2]; at++) {
			int64_t e = at / n[2] / n[1], j = at / n[2] % n[1], k = at % n[2];
			float *out =
				(float *)y->data + e * stride[0] + j * stride[1] + k * stride[2];

			if (i != 1)
				sum_expert_tokens(op, e, mid, j, true, i ? NULL : x, k, false, c,
				                  partial, out, y->stride[0]);
			else
				sum_expert_tokens(op, e, g, j, false, mid, 2 * n[2] + k, true, c,
				                  partial, out, y->stride[0]);
		}
	}
	free(c.weighted);
	free(c.other);
	free(c.present);
}

bool scalar_run_experts_backward(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_ROUTE_D:
		run_route_d_op(op);
		return true;
	case TESS_OP_COMBINE_D:
		run_combine_d_op(op);
		return true;
	case TESS_OP_EXPERTS_D:
		run_experts_d_op(op);
		return true;
	case TESS_OP_EXPERTS_DW:
		run_experts_dw_op(op);
		return true;
	case TESS_OP_BALANCE:
		run_balance_op(op);
		return true;
	case TESS_OP_BALANCE_D:
		run_balance_d_op(op);
		return true;
	}
	return false;
}

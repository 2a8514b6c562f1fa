/* scalar_experts.c - ROUTE, EXPERTS and COMBINE by definition. */
#include "scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/model.h>

enum { NODES_MAX = 64 };

/* Compares by value, NaN first, then by index. */
static bool is_before(const float *v, int64_t k, int64_t i)
{
	if (isnan(v[k]) || isnan(v[i]))
		return isnan(v[k]) && (!isnan(v[i]) || k < i);
	return v[k] > v[i] || (v[k] == v[i] && k < i);
}

/* Counts the elements in `in` that precede element i. */
static int64_t count_before(const float *v, const bool *in, int64_t n, int64_t i)
{
	int64_t before = 0;

	for (int64_t k = 0; k < n; k++)
		before += in[k] && is_before(v, k, i);
	return before;
}

static void run_route_op(const struct tess_op *op)
{
	int64_t n = op->in[0].shape[1], groups = (int64_t)op->num[TESS_ROUTE_GROUPS], each;
	int flags = (int)op->num[TESS_ROUTE_FLAGS];
	int64_t counted = flags & TESS_GROUP_MAX ? 1 : 2; /* of the best of a group */
	float *s = calloc((size_t)n, 12), *choice = s + n, *best = choice + n;
	bool *in = calloc((size_t)n, 2), *all = in + n;

	groups = groups > 1 ? groups : 1;
	each = n / groups;
	memset(all, 1, (size_t)n);
	for (int64_t t = 0; t < op->in[0].shape[0]; t++) {
		float *y = (float *)op->out[0].data + t * op->out[0].stride[0], m = -INFINITY,
		      sum = 0;

		for (int64_t i = 0; i < n; i++)
			m = fmaxf(m, scalar_read(&op->in[0], t, i));
		for (int64_t i = 0; i < n; i++)
			sum += s[i] = mathf_exp(scalar_read(&op->in[0], t, i) - m);
		for (int64_t i = 0; i < n; i++) {
			float x = scalar_read(&op->in[0], t, i);

			s[i] = flags & TESS_SIGMOID ? 1 / (1 + mathf_exp(-x)) : s[i] / sum;
			choice[i] = s[i] + (op->nin > 1 ? scalar_read(&op->in[1], i, 0) : 0);
		}
		for (int64_t g = 0; g < groups; g++) {
			best[g] = 0;
			for (int64_t i = 0; i < each; i++)
				if (count_before(choice + g * each, all, each, i) < counted)
					best[g] += choice[g * each + i];
		}
		for (int64_t i = 0; i < n; i++)
			in[i] = groups == 1 || count_before(best, all, groups, i / each) <
			                               (int64_t)op->num[TESS_ROUTE_GROUPS_KEPT];
		for (int64_t i = 0; i < n; i++)
			y[i] = in[i] &&
			       count_before(choice, in, n, i) < (int64_t)op->num[TESS_ROUTE_TOP];
		sum = 0;
		for (int64_t i = 0; i < n; i++)
			sum += y[i] > 0 ? s[i] : 0;
		for (int64_t i = 0; i < n; i++)
			y[i] = !(y[i] > 0)
			               ? 0
			               : (flags & TESS_NORMALIZE
			                          ? s[i] / (sum + (float)op->num[TESS_ROUTE_EPS])
			                          : s[i]) *
			                         (float)op->num[TESS_ROUTE_SCALE];
	}
	free(s);
	free(in);
}

struct tess_view scalar_get_expert(const struct tess_view *w, int64_t e)
{
	struct tess_view one = { .data = w->data, .dtype = w->dtype, .ndim = 2 };

	one.data = (char *)w->data + e * w->stride[0] * (w->dtype == TESS_F32 ? 4 : 2);
	memcpy(one.shape, w->shape + 1, sizeof *one.shape * 2);
	memcpy(one.stride, w->stride + 1, sizeof *one.stride * 2);
	return one;
}

/* Returns op with only one of its trees. */
static struct tess_op take_tree(const struct tess_op *op, int32_t i)
{
	struct tess_op one = *op;

	one.tree += i;
	one.ntree = 1;
	return one;
}

float scalar_activate_limited(const struct tess_op *op, float a, float b)
{
	float limit = (float)op->num[TESS_EXPERTS_LIMIT], c = a > limit ? limit : a;
	float u = b > limit ? limit : b < -limit ? -limit : b; /* NaN stays */

	return c / (1 + mathf_exp(-((float)op->num[TESS_EXPERTS_ALPHA] * c))) * (u + 1);
}

/* Runs expert e on row t: h columns, finished, or their nodes, NODES_MAX apart. */
static void run_one_expert(const struct tess_op *op, int64_t t, int64_t e, bool nodes, float *z)
{
	struct tess_view up = scalar_get_expert(&op->in[2], e),
			 down = scalar_get_expert(&op->in[3], e), mid;
	struct tess_op over_k = take_tree(op, 0), over_f = take_tree(op, 1);
	int64_t f = down.shape[1];
	float *h = malloc(sizeof *h * (size_t)(2 * f + 1));

	for (int64_t j = 0; j < 2 * f; j++)
		scalar_contract(&over_k, &op->in[0], t, &up, j, false, &h[j], 0);
	for (int64_t j = 0; j < 2 * f && op->nin > 4; j++)
		h[j] += scalar_read(&op->in[4], e, j);
	for (int64_t j = 0; j < f; j++)
		h[j] = op->num[TESS_EXPERTS_LIMIT] > 0
		               ? scalar_activate_limited(op, h[2 * j], h[2 * j + 1])
		               : scalar_activate((int32_t)op->num[TESS_EXPERTS_ACTIVATION], h[j]) *
		                         h[f + j];
	mid = (struct tess_view){
		.data = h, .dtype = TESS_F32, .ndim = 2, .shape = { 1, f }, .stride = { f, 1 }
	};
	for (int64_t j = 0; j < down.shape[0]; j++)
		scalar_contract(&over_f, &mid, 0, &down, j, nodes, z + j * NODES_MAX, 1);
	free(h);
}

/* Returns the sum of w * z of column j over the experts of row t; z: [experts], NODES_MAX apart. */
static void weigh_column(const struct tess_op *op, const struct tess_view *weights, int64_t t,
                         const float *z, int64_t j)
{
	const struct tess_view *y = &op->out[0];
	bool partial = y->ndim == 3;
	struct tess_op sum = take_tree(op, op->ntree - 1);
	struct tess_view terms = { .dtype = TESS_F32,
		                   .ndim = 2,
		                   .shape = { 1, weights->shape[1] } };
	float *w = calloc((size_t)weights->shape[1] + 1, sizeof *w);

	/* a leaf is one rounded product: the sum of the products times 1 */
	for (int64_t e = 0; e < weights->shape[1]; e++)
		if (scalar_read(weights, t, e) != 0)
			w[e] = scalar_read(weights, t, e) * z[e * NODES_MAX];
	terms.data = w;
	terms.stride[0] = weights->shape[1];
	terms.stride[1] = 1;
	scalar_contract(&sum, &terms, 0, NULL, 0, partial,
	                (float *)y->data + t * y->stride[partial] + j, y->stride[0]);
	free(w);
}

static void run_combine_op(const struct tess_op *op)
{
	const struct tess_view *weights = &op->in[1];
	int64_t h = op->out[0].shape[op->out[0].ndim - 1], slot;
	float *z = calloc((size_t)(weights->shape[1] * NODES_MAX) + 1, sizeof *z);

	for (int64_t t = 0; t < weights->shape[0]; t++) {
		for (int64_t j = 0; j < h; j++) {
			slot = 0;
			for (int64_t e = 0; e < weights->shape[1]; e++)
				if (scalar_read(weights, t, e) != 0)
					z[e * NODES_MAX] =
						scalar_read(&op->in[0], t, slot++ * h + j);
			weigh_column(op, weights, t, z, j);
		}
	}
	free(z);
}

static void run_experts_op(const struct tess_op *op)
{
	const struct tess_view *weights = &op->in[1], *y = &op->out[0];
	int64_t h = op->in[3].shape[1], n = weights->shape[1], slots = (int64_t)op->num[1];
	bool partial = y->ndim == 3;
	float *z = calloc((size_t)(n * h * NODES_MAX) + 1, sizeof *z);
	float *column = calloc((size_t)(n * NODES_MAX) + 1, sizeof *column);

	for (int64_t t = 0; t < weights->shape[0]; t++) {
		float *row = (float *)y->data + t * y->stride[partial];
		int64_t slot = 0;

		for (int64_t i = 0; slots && i < (partial ? y->shape[0] : 1); i++)
			memset(row + i * y->stride[0], 0, sizeof *row * (size_t)(slots * h));
		for (int64_t e = 0; e < n; e++) {
			float *mine = z + e * h * NODES_MAX;

			if (scalar_read(weights, t, e) == 0)
				continue;
			run_one_expert(op, t, e, slots && partial, mine);
			for (int64_t j = 0; slots && j < h; j++)
				for (int64_t i = 0; i < (partial ? y->shape[0] : 1); i++)
					row[i * y->stride[0] + slot * h + j] =
						mine[j * NODES_MAX + i];
			slot++;
		}
		for (int64_t j = 0; j < h && !slots; j++) {
			for (int64_t e = 0; e < n; e++)
				column[e * NODES_MAX] = z[(e * h + j) * NODES_MAX];
			weigh_column(op, weights, t, column, j);
		}
	}
	free(z);
	free(column);
}

void scalar_run_experts(const struct tess_op *op)
{
	if (op->kind == TESS_OP_ROUTE)
		run_route_op(op);
	else if (op->kind == TESS_OP_EXPERTS)
		run_experts_op(op);
	else
		run_combine_op(op);
}

/* scalar_backward.c - ops of training by definition (tessera/device.h): sums, losses, optimizers */
#include "scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/model.h>

/* ---- sums ------------------------------------------------------------------------------------ */

/* Adds element `at` of the contracted axis of an operand to a leaf. */
typedef float add_term(const void *arg, int32_t operand, int64_t at, float sum);

/* Sets the factors of element `at`; returns false if it is absent. */
typedef bool get_factors(const void *arg, int32_t operand, int64_t at, float *x, float *w);

struct sum { /* trees [tree, tree + ntree) of op */
	const struct tess_op *op;
	int32_t tree, ntree;
	int64_t sequences, first; /* for a sum over tokens; else 0 */
	bool partial;
	add_term *add;
	get_factors *factors; /* of products of bf16, instead of `add`; or NULL */
	const void *arg;
};

static struct sum make_plain_sum(const struct tess_op *op, int32_t tree, add_term *add,
                                 const void *arg)
{
	return (struct sum){ .op = op,
		             .tree = tree,
		             .ntree = op->ntree - tree,
		             .partial = op->out[0].ndim == 3,
		             .add = add,
		             .arg = arg };
}

static struct sum make_token_sum(const struct tess_op *op, int32_t tree, add_term *add,
                                 const void *arg)
{
	struct sum s = make_plain_sum(op, tree, add, arg);

	s.sequences = (int64_t)op->num[TESS_TOKENS_SEQUENCES];
	s.first = (int64_t)op->num[TESS_TOKENS_FIRST];
	return s;
}

/* Adds products of bf16 of [from, to) of an operand to a leaf, pair by pair. */
static float add_pairs(const struct sum *s, int32_t operand, int64_t from, int64_t to, float leaf)
{
	float x[2] = { 0 }, w[2] = { 0 };
	int n = 0;

	for (int64_t at = from; at < to; at++) {
		n += s->factors(s->arg, operand, at, &x[n], &w[n]);
		if (n < 2)
			continue;
		leaf = scalar_add_bf16_pair(x, w, leaf);
		n = 0;
	}
	x[1] = w[1] = 0;
	return n ? scalar_add_bf16_pair(x, w, leaf) : leaf;
}

static float add_leaf(const struct sum *s, const struct tess_tree *tree, int64_t u)
{
	const struct tess_term *term = s->op->term + tree->first;
	float leaf = 0;

	for (int32_t i = 0; i < tree->terms && s->factors; i++)
		leaf = add_pairs(s, term[i].operand, term[i].bound[u], term[i].bound[u + 1], leaf);
	for (int32_t i = 0; i < tree->terms && !s->factors; i++)
		for (int64_t at = term[i].bound[u]; at < term[i].bound[u + 1]; at++)
			leaf = s->add(s->arg, term[i].operand, at, leaf);
	return leaf;
}

/* Reserves memory for the current sum: an allocation for each element takes longer than its sum. */
static float *reserve_floats(int64_t n)
{
	static float *list;
	static int64_t size;

	if (n > size) {
		free(list);
		list = malloc((size_t)n * sizeof *list);
		size = n;
	}
	return list;
}

/* Computes the finished sum, or its nodes, `step` elements apart. */
static void compute_sum(const struct sum *s, float *out, int64_t step)
{
	const struct tess_tree *tree = s->op->tree + s->tree;
	int64_t at = 0, count, units, most = s->ntree;
	float *done, *part, *leaf;

	for (int32_t t = 0; t < s->ntree; t++)
		most = tree[t].hi - tree[t].lo > most ? tree[t].hi - tree[t].lo : most;
	done = reserve_floats(3 * (most + 1));
	part = done + most + 1;
	leaf = part + most + 1;
	for (int32_t t = 0; t < s->ntree; t++) {
		units = tree[t].hi - tree[t].lo;
		for (int64_t u = 0; u < units; u++)
			leaf[u] = add_leaf(s, &tree[t], u);
		part[0] = 0;
		count = scalar_sum_nodes(tree[t].n, tree[t].lo, tree[t].hi, leaf, part);
		for (int64_t i = 0; i < count && s->partial && !s->sequences; i++)
			out[at++ * step] = part[i];
		done[t] = part[0] + 0.0f;
	}
	part[0] = 0;
	if (!s->partial) {
		scalar_sum_nodes(s->ntree, 0, s->ntree, done, part);
		*out = part[0] + 0.0f;
	} else if (s->sequences) {
		count = scalar_sum_nodes(s->sequences, s->first, s->first + s->ntree, done, part);
		for (int64_t i = 0; i < count; i++)
			out[i * step] = part[i];
	}
}

/* Returns element (i, k) of a finished output, or of the first node; nodes are stride[0] apart. */
static float *get_out_element(const struct tess_view *y, int64_t i, int64_t k)
{
	const int64_t *stride = y->stride + y->ndim - 2;

	return (float *)y->data + i * stride[0] + k * stride[1];
}

struct element { /* an element of an output */
	const struct tess_op *op;
	int64_t row, column;
	const float *h; /* for NORM_DW: x, normalised */
};

/* Sets each element of the output to its sum. */
static void sum_elements(const struct tess_op *op, bool tokens, int32_t tree, add_term *add,
                         get_factors *factors, const float *h)
{
	const struct tess_view *y = &op->out[0];
	struct element e = { .op = op, .h = h };
	struct sum s =
		tokens ? make_token_sum(op, tree, add, &e) : make_plain_sum(op, tree, add, &e);

	s.factors = scalar_has_bf16_products(op) ? factors : NULL;
	for (e.row = 0; e.row < y->shape[y->ndim - 2]; e.row++)
		for (e.column = 0; e.column < y->shape[y->ndim - 1]; e.column++)
			compute_sum(&s, get_out_element(y, e.row, e.column), y->stride[0]);
}

static bool get_linear_dx_factors(const void *arg, int32_t operand, int64_t at, float *x, float *w)
{
	const struct element *e = arg;
	const struct tess_view *g = &e->op->in[operand];

	*x = scalar_read(g, e->row, at);
	*w = scalar_read(g + e->op->nin / 2, at, e->column);
	return true;
}

WITH_FMA static float add_linear_dx(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct element *e = arg;
	const struct tess_view *g = &e->op->in[operand], *w = g + e->op->nin / 2;

	return fmaf(scalar_read(g, e->row, at), scalar_read(w, at, e->column), sum);
}

static bool get_linear_dw_factors(const void *arg, int32_t operand, int64_t at, float *x, float *w)
{
	const struct element *e = arg;

	(void)operand;
	*x = scalar_read(&e->op->in[1], at, e->row);
	*w = scalar_read(&e->op->in[0], at, e->column);
	return true;
}

WITH_FMA static float add_linear_dw(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct element *e = arg;

	(void)operand;
	return fmaf(scalar_read(&e->op->in[1], at, e->row),
	            scalar_read(&e->op->in[0], at, e->column), sum);
}

/* Runs linear_dw of each head. */
static void run_head_linear_dw_op(const struct tess_op *op)
{
	const struct tess_view *y = &op->out[0];
	struct tess_view in[2] = { op->in[0], op->in[1] }, out = *y;
	int32_t a = y->ndim - 3; /* the axis of heads */
	struct tess_op one = *op;

	one.in = in;
	one.out = &out;
	out.ndim--;
	for (int32_t i = a; i < out.ndim; i++) {
		out.shape[i] = y->shape[i + 1];
		out.stride[i] = y->stride[i + 1];
	}
	for (int64_t h = 0; h < y->shape[a]; h++) {
		for (int i = 0; i < 2; i++)
			in[i].data =
				(float *)op->in[i].data + h * (op->in[i].shape[1] / y->shape[a]);
		out.data = (float *)y->data + h * y->stride[a];
		sum_elements(&one, true, 0, add_linear_dw, NULL, NULL);
	}
}

static float add_bias_dw(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct element *e = arg;

	(void)operand;
	return sum + scalar_read(&e->op->in[0], at, e->column);
}

static float add_embed_dw(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct element *e = arg;
	int64_t id = ((const int32_t *)e->op->in[0].data)[at] -
	             (int64_t)e->op->num[TESS_TOKENS_NUMS + TESS_EMBED_FIRST];

	(void)operand;
	return id == e->row ? sum + scalar_read(&e->op->in[1], at, e->column) : sum;
}

static float add_head(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct element *e = arg;
	int64_t width = (int64_t)e->op->num[TESS_HEAD_SUM_WIDTH];
	int64_t head = e->column / width * (int64_t)e->op->num[TESS_HEAD_SUM_GROUP] + at;

	(void)operand;
	return sum + scalar_read(&e->op->in[0], e->row, head * width + e->column % width);
}

static void run_sequence_sum_op(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	int64_t n = x->shape[0], first = (int64_t)op->num[TESS_TOKENS_FIRST], count;
	float *leaf = calloc((size_t)n + 1, 2 * sizeof *leaf), *part = leaf + n + 1;

	for (int64_t k = 0; k < x->shape[1]; k++) {
		for (int64_t i = 0; i < n; i++)
			leaf[i] = 0.0f + scalar_read(x, i, k);
		part[0] = 0;
		count = scalar_sum_nodes((int64_t)op->num[TESS_TOKENS_SEQUENCES], first, first + n,
		                         leaf, part);
		if (y->ndim == 2)
			*get_out_element(y, 0, k) = part[0] + 0.0f;
		for (int64_t i = 0; i < count && y->ndim == 3; i++)
			get_out_element(y, 0, k)[i * y->stride[0]] = part[i];
	}
	free(leaf);
}

/* ---- norm ------------------------------------------------------------------------------------ */

struct pair { /* v NULL: the elements of u; else the products. */
	const float *u, *v;
	const bool *present; /* rows that products of bf16 take */
};

static bool get_pair_factors(const void *arg, int32_t operand, int64_t at, float *x, float *w)
{
	const struct pair *p = arg;

	(void)operand;
	*x = p->u[at];
	*w = p->v[at];
	return p->present[at];
}

static float add_pair(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct pair *p = arg;

	(void)operand;
	return p->v ? fmaf(p->u[at], p->v[at], sum) : sum + p->u[at];
}

void scalar_sum_tokens(const struct tess_op *op, const float *u, const float *v,
                       const bool *present, bool partial, float *out, int64_t step)
{
	struct pair p = { u, v, present };
	struct sum s = make_token_sum(op, 0, add_pair, &p);

	s.factors = v && scalar_has_bf16_products(op) ? get_pair_factors : NULL;

	s.partial = partial;
	compute_sum(&s, out, step);
}

/* Returns the finished sum over a range of the first tree, divided by its elements. */
static float average_run(const struct tess_op *op, const float *u, const float *v, int64_t each)
{
	struct pair p = { u, v, NULL };
	struct sum s = { .op = op, .ntree = 1, .add = add_pair, .arg = &p };
	float sum;

	compute_sum(&s, &sum, 0);
	return sum / (float)each;
}

/* Sets h to the normalised elements [at, at + each) of row t; returns their scale. */
static float normalize_elements(const struct tess_op *op, const double *num, int64_t t, int64_t at,
                                int64_t each, float *h)
{
	float mean, scale;

	for (int64_t k = 0; k < each; k++)
		h[k] = scalar_read(&op->in[0], t, at + k);
	mean = num[TESS_NORM_KIND] == TESS_LAYER ? average_run(op, h, NULL, each) : 0;
	for (int64_t k = 0; k < each; k++)
		h[k] = h[k] - mean;
	scale = 1.0f / sqrtf(average_run(op, h, h, each) + (float)num[TESS_NORM_EPS]);
	for (int64_t k = 0; k < each; k++)
		h[k] = h[k] * scale;
	return scale;
}

static int64_t get_run(const struct tess_op *op, const double *num)
{
	return num[TESS_NORM_RUN] > 0 ? (int64_t)num[TESS_NORM_RUN] : op->in[0].shape[1];
}

static void run_norm_d_op(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];
	int64_t each = get_run(op, op->num);
	float *h = calloc((size_t)each + 1, 2 * sizeof *h), *u = h + each, scale, a, c, w;
	bool layer = op->num[TESS_NORM_KIND] == TESS_LAYER;

	for (int64_t i = 0; i < x->shape[0] * x->shape[1] && each; i += each) {
		int64_t t = i / x->shape[1], at = i % x->shape[1];

		scale = normalize_elements(op, op->num, t, at, each, h);
		for (int64_t k = 0; k < each; k++) {
			w = op->in[1].ndim ? scalar_read(&op->in[1], k, 0) : 1;
			w = op->num[TESS_NORM_OFFSET] != 0 ? 1.0f + w : w;
			u[k] = scalar_read(&op->in[2], t, at + k) * w;
		}
		a = layer ? average_run(op, u, NULL, each) : 0;
		c = average_run(op, u, h, each);
		for (int64_t k = 0; k < each; k++)
			*get_out_element(&op->out[0], t, at + k) = scale * ((u[k] - a) - h[k] * c);
	}
	free(h);
}

static float add_norm_dw(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct element *e = arg;

	(void)operand;
	return fmaf(scalar_read(&e->op->in[1], at, e->column),
	            e->h[at * e->op->in[0].shape[1] + e->column], sum);
}

static void run_norm_dw_op(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];
	const double *num = op->num + TESS_TOKENS_NUMS;
	int64_t each = get_run(op, num), n = x->shape[0] * x->shape[1];
	float *h = calloc((size_t)n + 1, sizeof *h);

	for (int64_t i = 0; i < n; i += each)
		normalize_elements(op, num, i / x->shape[1], i % x->shape[1], each, h + i);
	sum_elements(op, true, 1, add_norm_dw, NULL, h);
	free(h);
}

/* ---- activations ----------------------------------------------------------------------------- */

float scalar_derive_activation(int32_t act, float a, float u)
{
	float s, t, inner;

	switch (act) {
	case TESS_RELU:
		return a <= 0 ? 0 : u;
	case TESS_SILU:
		s = 1.0f / (1.0f + mathf_exp(-a));
		return u * (s * (1.0f + a * (1.0f - s)));
	case TESS_GELU:
		return u * (0.5f * (1.0f + mathf_erf(a * 0.70710678f)) +
		            a * (0.39894228f * mathf_exp((a * a) * -0.5f)));
	case TESS_GELU_TANH:
		inner = 0.79788456f * (a + 0.044715f * ((a * a) * a));
		t = mathf_tanh(inner);
		return u *
		       ((1.0f + t) * 0.5f + ((a * 0.5f) * (1.0f - t * t)) *
		                                    (0.79788456f * (1.0f + 0.134145f * (a * a))));
	default:
		t = mathf_tanh(a);
		return u * (1.0f - t * t);
	}
}

static void run_glu_d_op(const struct tess_op *op)
{
	int32_t act = (int32_t)op->num[TESS_GLU_ACTIVATION];
	bool gated = op->in[1].ndim > 0;
	float a, g, u, db = 0;

	for (int64_t t = 0; t < op->in[0].shape[0]; t++) {
		for (int64_t k = 0; k < op->in[0].shape[1]; k++) {
			a = scalar_read(&op->in[0], t, k);
			g = scalar_read(&op->in[2], t, k);
			u = gated ? g * scalar_read(&op->in[1], t, k) : g;
			db = gated ? g * scalar_activate(act, a) : 0;
			*get_out_element(&op->out[0], t, k) = scalar_derive_activation(act, a, u);
			if (gated)
				*get_out_element(&op->out[1], t, k) = db;
		}
	}
}

/* ---- loss ------------------------------------------------------------------------------------ */

static int32_t get_label(const struct tess_view *labels, int64_t t)
{
	return ((const int32_t *)labels->data)[t];
}

static void run_loss_max_op(const struct tess_op *op)
{
	for (int64_t t = 0; t < op->in[0].shape[0]; t++) {
		float top = -INFINITY;

		for (int64_t k = 0; k < op->in[0].shape[1]; k++)
			if (scalar_read(&op->in[0], t, k) > top)
				top = scalar_read(&op->in[0], t, k);
		*get_out_element(&op->out[0], t, 0) = top + 0.0f;
	}
}

static float add_exp(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct element *e = arg;

	(void)operand;
	return sum + mathf_exp(scalar_read(&e->op->in[0], e->row, at) -
	                       scalar_read(&e->op->in[1], e->row, 0));
}

/* Adds the label's element, the only term: a sum where the row is cut. */
static float add_label(const void *arg, int32_t operand, int64_t at, float sum)
{
	const struct element *e = arg;
	int64_t label = get_label(&e->op->in[1], e->row) - (int64_t)e->op->num[TESS_LOSS_FIRST];

	(void)operand;
	return at == label ? scalar_read(&e->op->in[0], e->row, at) + 0.0f : sum;
}

static void run_loss_pick_op(const struct tess_op *op)
{
	struct element e = { .op = op };

	if (op->out[0].ndim == 3) {
		sum_elements(op, false, 0, add_label, NULL, NULL);
		return;
	}
	for (e.row = 0; e.row < op->in[0].shape[0]; e.row++) {
		float pick = 0;

		for (int64_t k = 0; k < op->in[0].shape[1]; k++)
			pick = add_label(&e, 0, k, pick);
		*get_out_element(&op->out[0], e.row, 0) = pick;
	}
}

static void run_loss_op(const struct tess_op *op)
{
	for (int64_t t = 0; t < op->in[0].shape[0]; t++) {
		float v =
			(mathf_log(scalar_read(&op->in[1], t, 0)) + scalar_read(&op->in[0], t, 0)) -
			scalar_read(&op->in[2], t, 0);

		*get_out_element(&op->out[0], t, 0) = get_label(&op->in[3], t) == -100 ? 0 : v;
	}
}

static void run_loss_d_op(const struct tess_op *op)
{
	const struct tess_view *z = &op->in[0];

	for (int64_t t = 0; t < z->shape[0]; t++) {
		int64_t label = get_label(&op->in[3], t), first = (int64_t)op->num[TESS_LOSS_FIRST];

		for (int64_t k = 0; k < z->shape[1]; k++) {
			float p = mathf_exp(scalar_read(z, t, k) - scalar_read(&op->in[1], t, 0)) /
			          scalar_read(&op->in[2], t, 0);

			p = (p - (k == label - first ? 1.0f : 0.0f)) /
			    *(const float *)op->in[4].data;
			*get_out_element(&op->out[0], t, k) = label == -100 ? 0 : p;
		}
	}
}

/* ---- optimisers ------------------------------------------------------------------------------ */

static uint16_t convert_to_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof bits);
	if (isnan(f))
		return 0x7fc0;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t convert_to_f16(float f)
{
	uint16_t sign = signbit(f) ? 0x8000 : 0;
	float a = fabsf(f);
	int e;

	if (isnan(f))
		return 0x7e00;
	if (a >= 65520)
		return sign | 0x7c00;
	frexpf(a, &e);
	e = a < 0x1p-14f ? -13 : e; /* a is n * 2^(e - 11) */
	return (uint16_t)(sign | ((int)nearbyintf(ldexpf(a, 11 - e)) + (e + 13) * 1024));
}

static void store_rounded(const struct tess_view *v, int64_t i, float w)
{
	uint16_t h = v->dtype == TESS_BF16 ? convert_to_bf16(w) : convert_to_f16(w);

	memcpy((char *)v->data + 2 * i, &h, sizeof h);
}

static void run_adamw_op(const struct tess_op *op)
{
	const double *n = op->num;
	float *w = op->out[0].data, *m = op->out[1].data, *v = op->out[2].data, u;

	for (int64_t i = 0; i < op->in[0].shape[0]; i++) {
		u = ((const float *)op->in[0].data)[i] * (float)n[TESS_ADAMW_FACTOR];
		w[i] = w[i] * (float)(1 - n[TESS_ADAMW_LR] * n[TESS_ADAMW_DECAY]);
		m[i] = m[i] + (float)(1 - n[TESS_ADAMW_BETA1]) * (u - m[i]);
		v[i] = (float)n[TESS_ADAMW_BETA2] * v[i] +
		       ((float)(1 - n[TESS_ADAMW_BETA2]) * u) * u;
		w[i] = w[i] - ((float)(n[TESS_ADAMW_LR] / n[TESS_ADAMW_BIAS1]) * m[i]) /
		                      (sqrtf(v[i]) / (float)sqrt(n[TESS_ADAMW_BIAS2]) +
		                       (float)n[TESS_ADAMW_EPS]);
		if (op->out[3].ndim)
			store_rounded(&op->out[3], i, w[i]);
	}
}

static void run_sgd_op(const struct tess_op *op)
{
	float *w = op->out[0].data, *m = op->out[1].ndim ? op->out[1].data : NULL, u;

	for (int64_t i = 0; i < op->in[0].shape[0]; i++) {
		u = ((const float *)op->in[0].data)[i] * (float)op->num[TESS_SGD_FACTOR] +
		    (float)op->num[TESS_SGD_DECAY] * w[i];
		if (m)
			u = m[i] = (float)op->num[TESS_SGD_MOMENTUM] * m[i] + u;
		w[i] = w[i] - (float)op->num[TESS_SGD_LR] * u;
		if (op->out[2].ndim)
			store_rounded(&op->out[2], i, w[i]);
	}
}

bool scalar_run_backward(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_LINEAR_DX:
		sum_elements(op, false, 0, add_linear_dx, get_linear_dx_factors, NULL);
		return true;
	case TESS_OP_LINEAR_DW:
		sum_elements(op, true, 0, add_linear_dw, get_linear_dw_factors, NULL);
		return true;
	case TESS_OP_HEAD_LINEAR_DW:
		run_head_linear_dw_op(op);
		return true;
	case TESS_OP_BIAS_DW:
		sum_elements(op, true, 0, add_bias_dw, NULL, NULL);
		return true;
	case TESS_OP_EMBED_DW:
		sum_elements(op, true, 0, add_embed_dw, NULL, NULL);
		return true;
	case TESS_OP_HEAD_SUM:
		sum_elements(op, false, 0, add_head, NULL, NULL);
		return true;
	case TESS_OP_LOSS_SUM:
		sum_elements(op, false, 0, add_exp, NULL, NULL);
		return true;
	case TESS_OP_SEQUENCE_SUM:
		run_sequence_sum_op(op);
		return true;
	case TESS_OP_NORM_D:
		run_norm_d_op(op);
		return true;
	case TESS_OP_NORM_DW:
		run_norm_dw_op(op);
		return true;
	case TESS_OP_GLU_D:
		run_glu_d_op(op);
		return true;
	case TESS_OP_LOSS_MAX:
		run_loss_max_op(op);
		return true;
	case TESS_OP_LOSS_PICK:
		run_loss_pick_op(op);
		return true;
	case TESS_OP_LOSS:
		run_loss_op(op);
		return true;
	case TESS_OP_LOSS_D:
		run_loss_d_op(op);
		return true;
	case TESS_OP_ADAMW:
		run_adamw_op(op);
		return true;
	case TESS_OP_SGD:
		run_sgd_op(op);
		return true;
	}
	return scalar_run_experts_backward(op);
}

#include "scalar.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/model.h>
#include <tessera/reduce.h>

enum { UNITS = 64 };

/* ---- elements -------------------------------------------------------------------------------- */

static float convert_f16(uint16_t h)
{
	int exp = h >> 10 & 31, man = h & 1023;
	float v = exp == 31 ? (man ? NAN : INFINITY)
	          : exp     ? ldexpf((float)(man + 1024), exp - 25)
	                    : ldexpf((float)man, -24);

	return h >> 15 ? -v : v;
}

float scalar_load(const struct tess_view *v, int64_t at)
{
	uint16_t h;
	uint32_t u;
	float f;

	if (v->dtype == TESS_F32) {
		memcpy(&f, (const char *)v->data + 4 * at, 4);
		return f;
	}
	memcpy(&h, (const char *)v->data + 2 * at, 2);
	if (v->dtype == TESS_F16)
		return convert_f16(h);
	u = (uint32_t)h << 16;
	memcpy(&f, &u, 4);
	return f;
}

static float *get_address(const struct tess_view *v, int64_t i, int64_t k)
{
	return (float *)v->data + i * v->stride[0] + k * v->stride[1];
}

/* ---- the order of sums ----------------------------------------------------------------------- */

struct units {
	int64_t n, lo, hi; /* n: units of all; [lo, hi): units of the leaves */
	const float *leaf;
};

/* Writes node (d, i), units [a, b), as the largest nodes inside [lo, hi); returns their number. */
static int64_t sum_largest_nodes(const struct units *u, int d, int64_t i, int64_t a, int64_t b,
                                 float *out)
{
	int64_t mid, left, right;

	if (a >= b || b <= u->lo || a >= u->hi)
		return 0;
	if (b - a == 1) {
		out[0] = u->leaf[a - u->lo];
		return 1;
	}
	mid = tess_edge(u->n, (int64_t)2 << d, 2 * i + 1);
	left = sum_largest_nodes(u, d + 1, 2 * i, a, mid, out);
	right = sum_largest_nodes(u, d + 1, 2 * i + 1, mid, b, out + left);
	if (u->lo <= a && b <= u->hi && left && right) {
		out[0] = out[0] + out[1];
		return 1;
	}
	return left + right;
}

int64_t scalar_sum_nodes(int64_t n, int64_t lo, int64_t hi, const float *leaf, float *out)
{
	const struct units units = { n, lo, hi, leaf };

	return sum_largest_nodes(&units, 0, 0, 0, n, out);
}

static float flush_to_zero(float x)
{
	return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

/* Returns c + x * w, a product of bf16, by the error of rounding at the smallest number. */
static float add_bf16_product(float x, float w, float c)
{
	double error;
	float y;

	x = flush_to_zero(tess_bf16_load(tess_bf16_round(x)));
	w = flush_to_zero(tess_bf16_load(tess_bf16_round(w)));
	y = fmaf(x, w, c);
	error = (double)x * (double)w + ((double)c - (double)y);
	if (fabsf(y) == FLT_MIN && error * (y > 0 ? 1 : -1) < -0x1p-151)
		return copysignf(0, y);
	return flush_to_zero(y);
}

float scalar_add_bf16_pair(const float x[2], const float w[2], float c)
{
	return add_bf16_product(x[0], w[0], add_bf16_product(x[1], w[1], c));
}

/* Adds products of bf16 of [from, to) to c: pairs in turn; 0 completes a pair. */
static float add_bf16_pairs(const struct tess_view *x, int64_t row, const struct tess_view *w,
                            int64_t col, int64_t from, int64_t to, float c)
{
	for (int64_t k = from; k < to; k += 2) {
		bool two = k + 1 < to;
		const float a[2] = { scalar_read(x, row, k), two ? scalar_read(x, row, k + 1) : 0 };
		const float b[2] = { scalar_read(w, col, k), two ? scalar_read(w, col, k + 1) : 0 };

		c = scalar_add_bf16_pair(a, b, c);
	}
	return c;
}

bool scalar_has_bf16_products(const struct tess_op *op)
{
	static const int32_t number[TESS_OP_KINDS] = {
		[TESS_OP_LINEAR] = 1 + TESS_LINEAR_MATH,
		[TESS_OP_LINEAR_DX] = 1 + TESS_LINEAR_MATH,
		[TESS_OP_LINEAR_DW] = 1 + TESS_LINEAR_DW_MATH,
		[TESS_OP_EXPERTS] = 1 + TESS_EXPERTS_MATH,
		[TESS_OP_EXPERTS_D] = 1 + TESS_EXPERTS_MATH,
		[TESS_OP_EXPERTS_DW] = 1 + TESS_EXPERTS_DW_MATH,
	};
	int32_t n = number[op->kind];

	return n && op->nnum >= n && op->num[n - 1] == TESS_BF16;
}

/*
 * Computes one output of a contraction of x[k] * w[k]: a finished sum, or its nodes, `step`
 * elements apart.
 */
WITH_FMA void scalar_contract(const struct tess_op *op, const struct tess_view *x, int64_t row,
                              const struct tess_view *w, int64_t col, bool partial, float *out,
                              int64_t step)
{
	bool pairs = w && scalar_has_bf16_products(op);
	float leaf[UNITS], part[UNITS], done[UNITS];
	int64_t at = 0;

	for (int32_t t = 0; t < op->ntree; t++) {
		const struct tess_tree *tree = &op->tree[t];
		int64_t count;

		for (int64_t u = 0; u < tree->hi - tree->lo; u++) {
			leaf[u] = 0;
			for (int32_t j = tree->first; j < tree->first + tree->terms; j++) {
				int64_t k = op->term[j].bound[u], end = op->term[j].bound[u + 1];

				if (pairs)
					leaf[u] = add_bf16_pairs(x, row, w, col, k, end, leaf[u]);
				for (; k < end && !pairs; k++)
					leaf[u] = fmaf(scalar_read(x, row, k),
					               w ? scalar_read(w, col, k) : 1, leaf[u]);
			}
		}
		count = scalar_sum_nodes(tree->n, tree->lo, tree->hi, leaf, part);
		for (int64_t i = 0; i < count && partial; i++)
			out[at++ * step] = part[i];
		done[t] = part[0] + 0.0f;
	}
	if (partial)
		return;
	scalar_sum_nodes(op->ntree, 0, op->ntree, done, part);
	*out = part[0] + 0.0f;
}

static void run_linear_op(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];

	for (int32_t i = 0; i < op->nout; i++) {
		const struct tess_view *w = &op->in[1 + i], *y = &op->out[i];
		bool partial = y->ndim == 3;
		int64_t row = y->stride[partial], rows = y->shape[partial],
			cols = y->shape[partial + 1];

		for (int64_t t = 0; t < rows; t++)
			for (int64_t j = 0; j < cols; j++)
				scalar_contract(op, x, t, w, j, partial,
				                (float *)y->data + t * row + j, y->stride[0]);
	}
}

static void run_head_linear_op(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->out[0];
	int64_t heads = w->shape[0], n = w->shape[1], k = w->shape[2];
	int64_t from = x->shape[1] / heads, to = y->shape[1] / heads;

	for (int64_t i = 0; i < x->shape[0] * y->shape[1]; i++) {
		int64_t t = i / y->shape[1], h = i % y->shape[1] / to, j = i % to;
		float sum = 0;

		for (int64_t e = 0; e < k && j < n; e++)
			sum = fmaf(scalar_read(x, t, h * from + e),
			           scalar_load(w, h * w->stride[0] + j * w->stride[1] +
			                                  e * w->stride[2]),
			           sum);
		*get_address(y, t, h * to + j) =
			j < n ? sum + 0.0f : scalar_read(x, t, h * from + k + j - n);
	}
}

/* Returns the index of the Partial's node that contains unit u. */
static int64_t find_node_of_unit(const struct tess_tree *tree, int64_t u)
{
	struct tess_node node;
	int64_t at = tree->lo, i = 0;

	while (tess_node_next(tree->n, tree->lo, tree->hi, &at, &node) && at <= u)
		i++;
	return i;
}

static void run_embed_op(const struct tess_op *op)
{
	const struct tess_view *table = &op->in[1], *y = &op->out[0];
	bool partial = y->ndim == 3;
	int64_t row = y->stride[partial];

	for (int64_t t = 0; t < op->in[0].shape[0]; t++) {
		int64_t id = ((const int32_t *)op->in[0].data)[t] - (int64_t)op->num[0], node = 0;
		bool here = id >= 0 && id < table->shape[0];

		for (int64_t i = 0; i < (partial ? y->shape[0] : 1); i++)
			memset((float *)y->data + i * y->stride[0] + t * row, 0,
			       4 * (size_t)table->shape[1]);
		if (!here)
			continue;
		if (partial) {
			const int64_t *bound = op->term[0].bound;
			int64_t u = 0, units = op->tree[0].hi - op->tree[0].lo;

			while (u < units && bound[u + 1] <= id)
				u++;
			if (u == units || id < bound[0])
				continue;
			node = find_node_of_unit(&op->tree[0], op->tree[0].lo + u);
		}
		for (int64_t k = 0; k < table->shape[1]; k++)
			((float *)y->data)[(partial ? node * y->stride[0] : 0) + t * row + k] =
				scalar_read(table, id, k) + 0.0f;
	}
}

/*
 * Returns the finished sum over `each` elements of row t from h on, less `mean`: of squares, or of
 * x.
 */
static float sum_row_run(const struct tess_op *op, int64_t t, int64_t h, int64_t each, float mean,
                         bool squares)
{
	float *d = malloc(4 * (size_t)each), sum;
	struct tess_view v = { .data = d, .dtype = TESS_F32, .stride = { 0, 1 } };

	for (int64_t k = 0; k < each; k++)
		d[k] = scalar_read(&op->in[0], t, h + k) - mean;
	scalar_contract(op, &v, 0, squares ? &v : NULL, 0, false, &sum, 0);
	free(d);
	return sum;
}

static void run_norm_op(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->out[0];
	int64_t each = op->num[TESS_NORM_RUN] > 0 ? (int64_t)op->num[TESS_NORM_RUN] : x->shape[1];
	bool layer = op->num[TESS_NORM_KIND] == TESS_LAYER;
	float mean, scale, weight, v;

	for (int64_t t = 0; t < x->shape[0]; t++) {
		for (int64_t h = 0; h < x->shape[1]; h += each) {
			mean = layer ? sum_row_run(op, t, h, each, 0, false) / (float)each : 0;
			scale = 1.0f / sqrtf(sum_row_run(op, t, h, each, mean, true) / (float)each +
			                     (float)op->num[TESS_NORM_EPS]);
			for (int64_t k = 0; k < each; k++) {
				weight = w->ndim ? scalar_load(w, k * w->stride[0]) : 1;
				if (op->num[TESS_NORM_OFFSET] != 0)
					weight = 1.0f + weight;
				v = (scalar_read(x, t, h + k) - mean) * scale * weight;
				if (op->nin > 2)
					v = v + scalar_load(&op->in[2], k * op->in[2].stride[0]);
				*get_address(y, t, h + k) = v;
			}
		}
	}
}

/* ---- elementwise ----------------------------------------------------------------------------- */

static void run_rope_op(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	int64_t each = (int64_t)op->num[TESS_ROPE_HEAD], first = (int64_t)op->num[TESS_ROPE_FIRST],
		half = (int64_t)op->num[TESS_ROPE_WIDTH] / 2;
	bool pairs = op->num[TESS_ROPE_INTERLEAVED] != 0;
	float sign = op->num[TESS_ROPE_INVERSE] != 0 ? -1 : 1;

	for (int64_t t = 0; t < x->shape[0]; t++) {
		const float *row = (float *)op->in[2].data +
		                   ((const int32_t *)op->in[1].data)[t] * op->in[2].stride[0];

		for (int64_t k = 0; k < x->shape[1]; k++) {
			int64_t at = k % each - first, i = pairs ? at / 2 : at,
				other = k + (pairs ? 1 : half);
			float a = scalar_read(x, t, k), b, sin;

			if (at < 0 || at >= 2 * half) {
				*get_address(y, t, k) = a;
			} else if (pairs ? at % 2 == 0 : at < half) { /* a pair: y may be x */
				b = scalar_read(x, t, other);
				sin = sign * row[half + i];
				*get_address(y, t, k) = a * row[i] - b * sin;
				*get_address(y, t, other) = b * row[i] + a * sin;
			}
		}
	}
}

float scalar_activate(int32_t act, float v)
{
	switch (act) {
	case TESS_SILU:
		return v * (1.0f / (1.0f + mathf_exp(-v)));
	case TESS_GELU:
		return v * 0.5f * (1.0f + mathf_erf(v * 0.70710678f));
	case TESS_GELU_TANH:
		return v * 0.5f * (1.0f + mathf_tanh(0.79788456f * (v + 0.044715f * (v * v * v))));
	case TESS_TANH:
		return mathf_tanh(v);
	default:
		return v < 0 ? 0 : v;
	}
}

static void run_elementwise_op(const struct tess_op *op)
{
	const struct tess_view *a = &op->in[0], *b = op->nin > 1 ? &op->in[1] : NULL,
			       *y = &op->out[0];

	for (int64_t t = 0; t < y->shape[0]; t++) {
		for (int64_t k = 0; k < y->shape[1]; k++) {
			float v = scalar_read(a, t, k),
			      o = !b                         ? 0
			          : op->kind == TESS_OP_BIAS ? scalar_load(b, k * b->stride[0])
			                                     : scalar_read(b, t, k % b->shape[1]);

			if (op->kind == TESS_OP_GLU)
				v = scalar_activate((int32_t)op->num[0], v) * (b ? o : 1);
			else if (op->kind == TESS_OP_SCALE)
				v = v * (float)op->num[TESS_SCALE_FACTOR];
			else if (op->kind == TESS_OP_MUL)
				v = v * o;
			else if (op->kind == TESS_OP_CLAMP)
				v = v < (float)op->num[0]   ? (float)op->num[0]
				    : v > (float)op->num[1] ? (float)op->num[1]
				                            : v;
			else if (op->kind == TESS_OP_CLAMP_D)
				v = v < (float)op->num[0] || v > (float)op->num[1] ? 0 : o;
			else if (op->kind == TESS_OP_SIGMOID)
				v = 1.0f / (1.0f + mathf_exp(-v));
			else if (op->kind == TESS_OP_SIGMOID_D)
				v = o * (v * (1.0f - v));
			else
				v = v + o;
			*get_address(y, t, k) = v;
		}
	}
}

static void run_copy_op(const struct tess_op *op)
{
	struct tess_view x = op->in[0], y = op->out[0];
	bool deep = x.ndim == 3;
	int64_t rows = x.shape[deep], cols = x.shape[deep + 1];

	for (int64_t n = 0; n < (deep ? x.shape[0] : 1); n++)
		for (int64_t i = 0; i < rows; i++)
			for (int64_t k = 0; k < cols; k++)
				memcpy((char *)y.data +
				               4 * ((deep ? n * y.stride[0] : 0) +
				                    i * y.stride[deep] + k * y.stride[deep + 1]),
				       (char *)x.data +
				               4 * ((deep ? n * x.stride[0] : 0) +
				                    i * x.stride[deep] + k * x.stride[deep + 1]),
				       4);
}

static void run_row_dot_op(const struct tess_op *op)
{
	for (int64_t t = 0; t < op->in[0].shape[0]; t++)
		scalar_contract(op, &op->in[0], t, &op->in[1], t, false,
		                get_address(&op->out[0], t, 0), 0);
}

static void run_select_rows_op(const struct tess_op *op)
{
	for (int64_t t = 0; t < op->out[0].shape[0]; t++)
		for (int64_t k = 0; k < op->out[0].shape[1]; k++)
			*get_address(&op->out[0], t, k) =
				scalar_read(&op->in[0], ((const int32_t *)op->in[1].data)[t], k);
}

void scalar_run(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_LINEAR:
		run_linear_op(op);
		break;
	case TESS_OP_HEAD_LINEAR:
		run_head_linear_op(op);
		break;
	case TESS_OP_EMBED:
		run_embed_op(op);
		break;
	case TESS_OP_NORM:
		run_norm_op(op);
		break;
	case TESS_OP_ROPE:
		run_rope_op(op);
		break;
	case TESS_OP_ATTENTION:
	case TESS_OP_ATTENTION_D:
		scalar_run_attention(op);
		break;
	case TESS_OP_DROPOUT:
		scalar_run_dropout(op);
		break;
	case TESS_OP_BIAS:
	case TESS_OP_GLU:
	case TESS_OP_ADD:
	case TESS_OP_SCALE:
	case TESS_OP_SIGMOID:
	case TESS_OP_SIGMOID_D:
	case TESS_OP_MUL:
	case TESS_OP_CLAMP:
	case TESS_OP_CLAMP_D:
		run_elementwise_op(op);
		break;
	case TESS_OP_COPY:
		run_copy_op(op);
		break;
	case TESS_OP_ROW_DOT:
		run_row_dot_op(op);
		break;
	case TESS_OP_SELECT_ROWS:
		run_select_rows_op(op);
		break;
	case TESS_OP_ROUTE:
	case TESS_OP_EXPERTS:
	case TESS_OP_COMBINE:
		scalar_run_experts(op);
		break;
	default:
		if (!scalar_run_backward(op))
			abort();
	}
}

/* ---- memory ---------------------------------------------------------------------------------- */

static tess_status scalar_alloc(void *self, uint64_t bytes, void **out)
{
	(void)self;
	*out = calloc(1, bytes);
	return *out ? TESS_OK : TESS_ENOMEM;
}

static void scalar_free(void *self, void *p)
{
	(void)self;
	free(p);
}

static tess_status scalar_copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream)
{
	(void)self, (void)stream;
	memcpy(dst, src, bytes);
	return TESS_OK;
}

static tess_status sync_scalar(void *self, void *stream)
{
	(void)self, (void)stream;
	return TESS_OK;
}

/*
 * Fuses every op with its next one, so lockstep detects reads of outputs meant only for the next.
 */
static int32_t fuse_all(const struct tess_op *op)
{
	(void)op;
	return 1;
}

const struct tess_device scalar_device = {
	.size = sizeof scalar_device,
	.mem = TESS_HOST,
	.name = "scalar",
	.layout = TESS_PANELS,
	.exact = 1,
	.alloc = scalar_alloc,
	.free = scalar_free,
	.copy = scalar_copy,
	.sync = sync_scalar,
	.fuses = fuse_all,
};

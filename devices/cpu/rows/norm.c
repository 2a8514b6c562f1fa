/* norm.c - NORM, NORM_D, ROW_DOT: a sum over a row has few units; their chains run in parallel. */
#include "norm.h"

#include <math.h>

enum { CHAINS = 8 };
enum { SMALL = 1 << 14 }; /* elements of the smallest share: fewer are not worth a thread */

struct norm {
	const struct cpu *cpu;
	const struct tess_op *op;
	int64_t each, runs; /* elements of a run, and runs of a row */
};

/* Adds the chains of n leaves, one step each. */
static void add_chains(const float *x, const float *v, float mean, const struct sum_step *s, int n,
                       float *leaf)
{
	int32_t shared = n == CHAINS ? s[0].len : 0;
	float acc[CHAINS] = { 0 }, d;
	bool squares = v == x;

	for (int i = 1; i < n; i++)
		shared = s[i].len < shared ? s[i].len : shared;
	for (int32_t k = 0; k < shared; k++) {
		for (int i = 0; i < CHAINS; i++) {
			d = x[s[i].at + k] - mean;
			acc[i] = v ? fmaf(d, squares ? d : v[s[i].at + k], acc[i]) : acc[i] + d;
		}
	}
	for (int i = 0; i < n; i++) {
		for (int32_t k = shared; k < s[i].len; k++) {
			d = x[s[i].at + k] - mean;
			acc[i] = v ? fmaf(d, squares ? d : v[s[i].at + k], acc[i]) : acc[i] + d;
		}
		leaf[i] = acc[i];
	}
}

/*
 * Returns the finished sum over one run: of x - mean, of their squares if v is x, or of their
 * products with v; level: memory for the stack.
 */
static float sum_run(const struct sum *sum, const float *x, const float *v, float mean,
                     float *level)
{
	const struct sum_step *s = sum->step, *end = s + sum->count;
	float leaf[CHAINS], at;
	int n;

	for (; s < end; s += n) {
		n = end - s < CHAINS ? (int)(end - s) : CHAINS;
		add_chains(x, v, mean, s, n, leaf);
		for (int i = 0; i < n; i++) {
			at = leaf[i];
			for (int m = 1; m <= s[i].merge; m++)
				at = level[s[i].level - m] + at;
			level[s[i].level - s[i].merge] = at;
		}
	}
	return level[0] + 0.0f;
}

struct norm_moments norm_measure(const struct sum *sum, const double *num, const float *x,
                                 int64_t each, float *level)
{
	float eps = (float)num[TESS_NORM_EPS], count = (float)each;
	struct norm_moments m = { 0 };

	if (num[TESS_NORM_KIND] == TESS_LAYER)
		m.mean = sum_run(sum, x, NULL, 0.0f, level) / count;
	m.scale = 1.0f / sqrtf(sum_run(sum, x, x, m.mean, level) / count + eps);
	return m;
}

/* Returns w + offset, or b, as floats: in place, or widened into `scratch`; 1 if w is absent. */
static const float *widen_weights(const struct tess_view *v, int64_t each, bool offset,
                                  float *scratch)
{
	if (v->ndim && !offset && v->dtype == TESS_F32 && v->stride[0] == 1 &&
	    (uintptr_t)v->data % sizeof(float) == 0)
		return v->data;
	for (int64_t i = 0; i < each && !v->ndim; i++)
		scratch[i] = 1.0f;
	for (int64_t i = 0; i < each && v->ndim; i++) {
		scratch[i] = load_weight_element(v->data, v->dtype, i * v->stride[0]);
		if (offset)
			scratch[i] = 1.0f + scratch[i];
	}
	return scratch;
}

static void normalize_run(const struct norm *n, const float *x, const float *w, const float *b,
                          float *level, float *y)
{
	struct norm_moments m = norm_measure(n->cpu->sum, n->op->num, x, n->each, level);
	float mean = m.mean, s = m.scale;

	if (b) {
		CPU_LANES
		for (int64_t i = 0; i < n->each; i++)
			y[i] = (x[i] - mean) * s * w[i] + b[i];
	} else {
		CPU_LANES
		for (int64_t i = 0; i < n->each; i++)
			y[i] = (x[i] - mean) * s * w[i];
	}
}

static void normalize_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct norm *n = arg;
	const struct tess_op *op = n->op;
	float *scratch = cpu_get_thread_scratch(n->cpu, thread), *level = scratch + 2 * n->each;
	const float *w =
		widen_weights(&op->in[1], n->each, op->num[TESS_NORM_OFFSET] != 0, scratch);
	const float *b =
		op->nin > 2 ? widen_weights(&op->in[2], n->each, false, scratch + n->each) : NULL;

	for (int64_t t = lo; t < hi; t++)
		for (int64_t i = 0; i < n->runs; i++)
			normalize_run(n, get_row(&op->in[0], t) + i * n->each, w, b, level,
			              get_row(&op->out[0], t) + i * n->each);
}

/* Computes dx of a run; u: scratch for `each` elements; h: scratch for normalised ones. */
static void derive_run(const struct norm *n, const float *x, const float *w, const float *g,
                       float *u, float *h, float *level, float *dx)
{
	const struct sum *sum = n->cpu->sum;
	struct norm_moments m = norm_measure(sum, n->op->num, x, n->each, level);
	float count = (float)n->each, a = 0.0f, c;

	CPU_LANES
	for (int64_t i = 0; i < n->each; i++) {
		h[i] = (x[i] - m.mean) * m.scale;
		u[i] = g[i] * w[i];
	}
	if (n->op->num[TESS_NORM_KIND] == TESS_LAYER)
		a = sum_run(sum, u, NULL, 0.0f, level) / count;
	c = sum_run(sum, u, h, 0.0f, level) / count;
	CPU_LANES
	for (int64_t i = 0; i < n->each; i++)
		dx[i] = m.scale * ((u[i] - a) - h[i] * c);
}

static void derive_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct norm *n = arg;
	const struct tess_op *op = n->op;
	float *scratch = cpu_get_thread_scratch(n->cpu, thread), *u = scratch + n->each;
	const float *w =
		widen_weights(&op->in[1], n->each, op->num[TESS_NORM_OFFSET] != 0, scratch);

	for (int64_t t = lo; t < hi; t++)
		for (int64_t i = 0; i < n->runs; i++)
			derive_run(n, get_row(&op->in[0], t) + i * n->each, w,
			           get_row(&op->in[2], t) + i * n->each, u, u + n->each,
			           u + 2 * n->each, get_row(&op->out[0], t) + i * n->each);
}

/* Runs fn over the rows; a thread's scratch has three runs and a stack. */
static tess_status run_over_runs(struct cpu *cpu, const struct tess_op *op, pool_fn *fn)
{
	int64_t rows = op->in[0].shape[0], columns = op->in[0].shape[1];
	int64_t each = op->num[TESS_NORM_RUN] > 0 ? (int64_t)op->num[TESS_NORM_RUN] : columns;
	struct norm n = { .cpu = cpu, .op = op, .each = each, .runs = columns / each };
	tess_status st;

	st = cpu_plan_sum(cpu, op, false, INT32_MAX);
	if (!st)
		st = cpu_grow_thread_scratch(cpu,
		                             sizeof(float) * (size_t)(3 * each + cpu->sum->levels));
	if (st)
		return st;
	pool_run(cpu->pool, fn, &n, rows, tess_up(SMALL, columns + 1));
	return TESS_OK;
}

#define run_norm CPU_NAME(run_norm)
tess_status run_norm(struct cpu *cpu, const struct tess_op *op)
{
	return run_over_runs(cpu, op, normalize_rows);
}

static void contract_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct norm *n = arg;
	float *level = cpu_get_thread_scratch(n->cpu, thread);

	for (int64_t t = lo; t < hi; t++)
		*get_row(&n->op->out[0], t) = sum_run(n->cpu->sum, get_row(&n->op->in[0], t),
		                                      get_row(&n->op->in[1], t), 0.0f, level);
}

#define run_row_dot CPU_NAME(run_row_dot)
tess_status run_row_dot(struct cpu *cpu, const struct tess_op *op)
{
	struct norm n = { .cpu = cpu, .op = op };
	tess_status st = cpu_plan_sum(cpu, op, false, INT32_MAX);

	if (!st)
		st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)cpu->sum->levels);
	if (!st)
		pool_run(cpu->pool, contract_rows, &n, op->in[0].shape[0],
		         tess_up(SMALL, op->in[0].shape[1] + 1));
	return st;
}

#define run_norm_d CPU_NAME(run_norm_d)
tess_status run_norm_d(struct cpu *cpu, const struct tess_op *op)
{
	return run_over_runs(cpu, op, derive_rows);
}

/* route.c - ROUTE: chooses the experts of a row and their weights; its backward; BALANCE. */
#include "cpu.h"
#include "mathf.h"

enum { SIGMOID = 1, NORMALIZE = 2, GROUP_MAX = 4 }; /* flags */
enum { SMALL = 1 << 12 }; /* logits of the smallest share: fewer are not worth a thread */

struct route {
	const struct cpu *cpu;
	const struct tess_op *op;
	int64_t n, top, groups, kept;
};

/* Compares; a NaN is larger than any number. */
static bool is_larger(float a, float b)
{
	return a > b || (a != a && b == b);
}

/* Marks the `count` largest of n values not marked -1; of equal ones the lowest index. */
static void mark_largest(const float *value, int64_t n, int64_t count, int8_t *mark)
{
	for (int64_t k = 0; k < count; k++) {
		int64_t best = -1;

		for (int64_t i = 0; i < n; i++)
			if (!mark[i] && (best < 0 || is_larger(value[i], value[best])))
				best = i;
		if (best >= 0)
			mark[best] = 1;
	}
}

static void score_row(const float *x, int64_t n, bool sigmoid, float *s)
{
	float top = -INFINITY, sum = 0.0f;

	for (int64_t i = 0; i < n; i++)
		top = x[i] > top ? x[i] : top;
	if (sigmoid) {
		for (int64_t i = 0; i < n; i++)
			s[i] = 1.0f / (1.0f + mathf_exp(-x[i]));
		return;
	}
	for (int64_t i = 0; i < n; i++)
		s[i] = mathf_exp(x[i] - top);
	for (int64_t i = 0; i < n; i++)
		sum = sum + s[i];
	for (int64_t i = 0; i < n; i++)
		s[i] = s[i] / sum;
}

/* Marks the experts of excluded groups -1. */
static void exclude_groups(const struct route *r, const float *choice, float *best, int8_t *kept,
                           int8_t *mark)
{
	bool max = (int32_t)r->op->num[TESS_ROUTE_FLAGS] & GROUP_MAX;
	int64_t each = r->n / r->groups;

	memset(kept, 0, (size_t)r->groups);
	for (int64_t g = 0; g < r->groups; g++) {
		const float *c = choice + g * each;
		int64_t first = 0, second = -1;

		for (int64_t i = 1; i < each; i++)
			first = is_larger(c[i], c[first]) ? i : first;
		for (int64_t i = 0; i < each; i++)
			if (i != first && (second < 0 || is_larger(c[i], c[second])))
				second = i;
		best[g] = max ? c[first] : c[first] + c[second];
	}
	mark_largest(best, r->groups, r->kept, kept);
	for (int64_t i = 0; i < r->n; i++)
		mark[i] = kept[i / each] ? 0 : -1;
}

static void route_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct route *r = arg;
	const struct tess_op *op = r->op;
	const struct tess_view *b = op->nin > 1 ? &op->in[1] : NULL;
	int32_t flags = (int32_t)op->num[TESS_ROUTE_FLAGS];
	float scale = (float)op->num[TESS_ROUTE_SCALE], eps = (float)op->num[TESS_ROUTE_EPS];
	float *score = cpu_get_thread_scratch(r->cpu, thread), *choice = score + r->n;
	float *best = choice + r->n;
	int8_t *mark = (int8_t *)(best + r->groups), *kept = mark + r->n;

	for (int64_t t = lo; t < hi; t++) {
		float *y = get_row(&op->out[0], t), sum = 0.0f;

		score_row(get_row(&op->in[0], t), r->n, flags & SIGMOID, score);
		for (int64_t i = 0; i < r->n; i++)
			choice[i] = b ? score[i] + load_weight_element(b->data, b->dtype,
			                                               i * b->stride[0])
			              : score[i];
		memset(mark, 0, (size_t)r->n);
		if (r->groups > 1)
			exclude_groups(r, choice, best, kept, mark);
		mark_largest(choice, r->n, r->top, mark);
		for (int64_t i = 0; i < r->n; i++)
			sum = mark[i] == 1 ? sum + score[i] : sum;
		for (int64_t i = 0; i < r->n; i++)
			y[i] = mark[i] != 1        ? 0.0f
			       : flags & NORMALIZE ? score[i] / (sum + eps) * scale
			                           : score[i] * scale;
	}
}

#define run_route CPU_NAME(run_route)
tess_status run_route(struct cpu *cpu, const struct tess_op *op)
{
	struct route r = { .cpu = cpu,
		           .op = op,
		           .n = op->in[0].shape[1],
		           .top = (int64_t)op->num[TESS_ROUTE_TOP],
		           .groups = (int64_t)op->num[TESS_ROUTE_GROUPS],
		           .kept = (int64_t)op->num[TESS_ROUTE_GROUPS_KEPT] };
	tess_status st = cpu_grow_thread_scratch(cpu, (size_t)(2 * r.n + r.groups) * sizeof(float) +
	                                                      (size_t)(r.n + r.groups));

	if (!st)
		pool_run(cpu->pool, route_rows, &r, op->in[0].shape[0], tess_up(SMALL, r.n));
	return st;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Computes the gradient d of the logits of a softmax s, from the gradient q of s. */
static void derive_softmax(const float *s, const float *q, int64_t n, float *d)
{
	float r = 0.0f;

	for (int64_t i = 0; i < n; i++)
		r = fmaf(q[i], s[i], r);
	for (int64_t i = 0; i < n; i++)
		d[i] = s[i] * (q[i] - r);
}

/* Computes the gradient q of the scores of a row's experts; 0 for the others. */
static void derive_scores(const struct tess_op *op, int64_t t, int64_t n, const float *score,
                          float *q)
{
	bool normalize = (int32_t)op->num[TESS_ROUTE_FLAGS] & NORMALIZE;
	float scale = (float)op->num[TESS_ROUTE_SCALE], sum = 0.0f, c = 0.0f;
	const float *w = get_row(&op->in[1], t), *g = get_row(&op->in[2], t);

	for (int64_t i = 0; i < n; i++)
		sum = w[i] != 0.0f ? sum + score[i] : sum;
	sum = sum + (float)op->num[TESS_ROUTE_EPS];
	for (int64_t i = 0; i < n; i++) {
		q[i] = w[i] != 0.0f ? g[i] * scale : 0.0f;
		c = w[i] != 0.0f ? fmaf(q[i], score[i] / sum, c) : c;
	}
	for (int64_t i = 0; i < n && normalize; i++)
		q[i] = w[i] != 0.0f ? (q[i] - c) / sum : 0.0f;
}

static void derive_route_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct route *r = arg;
	const struct tess_op *op = r->op;
	bool sigmoid = (int32_t)op->num[TESS_ROUTE_FLAGS] & SIGMOID;
	float *s = cpu_get_thread_scratch(r->cpu, thread), *q = s + r->n;

	for (int64_t t = lo; t < hi; t++) {
		const float *w = get_row(&op->in[1], t);
		float *d = get_row(&op->out[0], t);

		score_row(get_row(&op->in[0], t), r->n, sigmoid, s);
		derive_scores(op, t, r->n, s, q);
		if (!sigmoid)
			derive_softmax(s, q, r->n, d);
		for (int64_t i = 0; i < r->n && sigmoid; i++)
			d[i] = w[i] != 0.0f ? q[i] * (s[i] * (1.0f - s[i])) : 0.0f;
	}
}

#define run_route_d CPU_NAME(run_route_d)
tess_status run_route_d(struct cpu *cpu, const struct tess_op *op)
{
	struct route r = { .cpu = cpu, .op = op, .n = op->in[0].shape[1] };
	tess_status st = cpu_grow_thread_scratch(cpu, (size_t)(2 * r.n) * sizeof(float));

	if (!st)
		pool_run(cpu->pool, derive_route_rows, &r, op->in[0].shape[0], tess_up(SMALL, r.n));
	return st;
}

/* ---- the load balancing loss ----------------------------------------------------------------- */

struct balance {
	const struct cpu *cpu;
	const struct tess_op *op;
	int64_t n;
	float *rows; /* BALANCE: [T, 2L * E]; BALANCE_D: q [E] */
};

/* Computes the terms of the sums of BALANCE. */
static void count_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct balance *b = arg;

	(void)thread;
	for (int64_t t = lo; t < hi; t++) {
		float *to = b->rows + t * b->op->nin * b->n;

		for (int32_t l = 0; l < b->op->nin; l += 2, to += 2 * b->n) {
			const float *w = get_row(&b->op->in[l + 1], t);

			for (int64_t i = 0; i < b->n; i++)
				to[i] = w[i] != 0.0f ? 1.0f : 0.0f;
			score_row(get_row(&b->op->in[l], t), b->n, false, to + b->n);
		}
	}
}

#define run_balance CPU_NAME(run_balance)
tess_status run_balance(struct cpu *cpu, const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0], n = op->in[0].shape[1], columns = op->nin * n;
	struct tess_view in = {
		.dtype = TESS_F32, .ndim = 2, .shape = { rows, columns }, .stride = { columns, 1 }
	};
	struct tess_view out = op->out[0];
	struct balance b = { cpu, op, n, NULL };
	struct tess_op sum = *op;
	tess_status st =
		cpu_get_shared_scratch(cpu, sizeof(float) * (size_t)(rows * columns), &in.data);

	if (st)
		return st;
	b.rows = in.data;
	pool_run(cpu->pool, count_rows, &b, rows, tess_up(SMALL, columns));
	/* the rows of the output are contiguous: treated as one */
	out.shape[out.ndim - 2] = 1;
	out.shape[out.ndim - 1] = columns;
	sum.nin = 1;
	sum.in = &in;
	sum.out = &out;
	sum.kind = TESS_OP_BIAS_DW;
	return cpu->kernels->run[TESS_OP_BIAS_DW](cpu, &sum);
}

static void derive_balance_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct balance *b = arg;
	float *s = cpu_get_thread_scratch(b->cpu, thread);

	for (int64_t t = lo; t < hi; t++) {
		score_row(get_row(&b->op->in[0], t), b->n, false, s);
		derive_softmax(s, b->rows, b->n, get_row(&b->op->out[0], t));
	}
}

#define run_balance_d CPU_NAME(run_balance_d)
tess_status run_balance_d(struct cpu *cpu, const struct tess_op *op)
{
	struct balance b = { cpu, op, op->in[0].shape[1], NULL };
	float factor = (float)op->num[TESS_BALANCE_FACTOR] * (float)b.n, tokens = 0.0f;
	tess_status st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)b.n);
	void *q = NULL;

	if (!st)
		st = cpu_get_shared_scratch(cpu, sizeof(float) * (size_t)b.n, &q);
	if (st)
		return st;
	b.rows = q;
	for (int64_t i = 0; i < b.n; i++) {
		b.rows[i] = 0.0f;
		for (int64_t l = 0; l < op->in[1].shape[0]; l += 2)
			b.rows[i] = b.rows[i] + get_row(&op->in[1], l)[i];
	}
	for (int64_t i = 0; i < b.n; i++)
		tokens = tokens + b.rows[i];
	tokens = tokens / (float)op->num[TESS_BALANCE_TOP];
	for (int64_t i = 0; i < b.n; i++)
		b.rows[i] = factor * (b.rows[i] / tokens) / tokens;
	pool_run(cpu->pool, derive_balance_rows, &b, op->in[0].shape[0], tess_up(SMALL, b.n));
	return TESS_OK;
}

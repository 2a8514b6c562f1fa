/* ROUTE: which experts a row asks for, and with what weight. */
#include "cpu.h"
#include "mathf.h"

enum { SIGMOID = 1, NORMALIZE = 2 }; /* flags */
enum { SMALL = 1 << 12 }; /* logits of the smallest share: fewer are not worth a thread */

struct route {
	const struct cpu *cpu;
	const struct tess_op *op;
	int64_t n, top, groups, kept;
};

/* A NaN is larger than any number. */
static bool is_larger(float a, float b)
{
	return a > b || (a != a && b == b);
}

/* Marks the `count` largest of n values, the lowest index of equal ones, that are not marked -1. */
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

/* Marks the experts of the other groups -1. */
static void exclude_groups(const struct route *r, const float *choice, float *best, int8_t *kept,
                           int8_t *mark)
{
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
		best[g] = c[first] + c[second];
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

/*
 * token_sum.c - sums of rows: BIAS_DW, NORM_DW, EMBED_DW, HEAD_SUM, SEQUENCE_SUM. A leaf is a
 * vector of columns, and so is each level of the stack.
 */
#include "norm.h"

#include <math.h>
#include <stdlib.h>

enum { COLUMNS = 64 }; /* columns of a share */
enum { SMALL = 1 << 14 }; /* elements of the smallest share: fewer are not worth a thread */

static inline void add_vector(const float *x, int64_t n, float *to)
{
	CPU_LANES
	for (int64_t i = 0; i < n; i++)
		to[i] = to[i] + x[i];
}

/* Merges the leaf of a step with the levels below; returns the result. */
static float *merge_levels(const struct sum_step *s, float *stack, int64_t n)
{
	float *at = stack + s->level * n;

	for (int m = 0; m < s->merge; m++, at -= n)
		add_vector(at, n, at - n);
	for (int64_t i = 0; s->finish && i < n; i++)
		at[i] = at[i] + 0.0f;
	for (int m = 0; m < s->trees; m++, at -= n)
		add_vector(at, n, at - n);
	return at;
}

struct rows {
	const float *x,
		*h; /* the first row; h: of NORM_DW, the rows that x is multiplied by, or NULL */
	int64_t pitch, h_pitch;
	const struct norm_moments *moments; /* by row of h, `runs` each */
	int64_t runs;
};

/* Adds row t to the chains of n columns. */
static inline void add_row(const struct rows *r, int64_t t, int64_t n, float *acc)
{
	const float *x = r->x + t * r->pitch, *h;
	struct norm_moments m;

	if (!r->h) {
		add_vector(x, n, acc);
		return;
	}
	h = r->h + t * r->h_pitch;
	m = r->moments[t * r->runs];
	CPU_LANES
	for (int64_t i = 0; i < n; i++)
		acc[i] = fmaf(x[i], (h[i] - m.mean) * m.scale, acc[i]);
}

/* Sums n columns, to one row or to nodes `node` floats apart; stack: sum->levels * n floats. */
static void sum_rows(const struct sum *sum, const struct rows *r, int64_t n, float *stack,
                     float *out, int64_t node)
{
	float *acc;

	for (const struct sum_step *s = sum->step; s < sum->step + sum->count; s++) {
		acc = stack + s->level * n;
		if (s->fresh)
			memset(acc, 0, sizeof *acc * (size_t)n);
		for (int64_t t = s->at; t < s->at + s->len; t++)
			add_row(r, t, n, acc);
		acc = merge_levels(s, stack, n);
		if (s->node >= 0)
			memcpy(out + s->node * node, acc, sizeof *out * (size_t)n);
	}
}

struct columns { /* state of BIAS_DW, NORM_DW and SEQUENCE_SUM */
	const struct cpu *cpu;
	const struct tess_op *op;
	const struct tess_view *x;
	int64_t each, shares; /* columns of a run, and shares per run */
	int64_t runs;
	struct norm_moments *moments; /* NORM_DW: [rows][runs] */
	const struct sum *over_row; /* NORM_DW */
};

static void sum_columns(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct columns *c = arg;
	const struct tess_view *y = &c->op->out[0];
	struct rows r = { .pitch = c->x->stride[0], .runs = c->runs };
	int64_t run, column, n;

	for (int64_t i = lo; i < hi; i++) {
		run = i / c->shares;
		column = i % c->shares * COLUMNS;
		n = c->each - column < COLUMNS ? c->each - column : COLUMNS;
		column += run * c->each;
		r.x = (float *)c->x->data + column;
		if (c->moments) {
			r.h = (float *)c->op->in[0].data + column;
			r.h_pitch = c->op->in[0].stride[0];
			r.moments = c->moments + run;
		}
		sum_rows(c->cpu->sum, &r, n, cpu_get_thread_scratch(c->cpu, thread),
		         (float *)y->data + column, y->stride[0]);
	}
}

static tess_status run_over_columns(struct cpu *cpu, struct columns *c)
{
	tess_status st =
		cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)(cpu->sum->levels * COLUMNS));

	c->cpu = cpu;
	c->shares = tess_up(c->each, COLUMNS);
	if (!st)
		pool_run(cpu->pool, sum_columns, c, c->shares * c->runs,
		         tess_up(SMALL, COLUMNS * (c->x->shape[0] + 1)));
	return st;
}

#define run_bias_dw CPU_NAME(run_bias_dw)
tess_status run_bias_dw(struct cpu *cpu, const struct tess_op *op)
{
	struct columns c = { .op = op, .x = &op->in[0], .each = op->in[0].shape[1], .runs = 1 };
	tess_status st = cpu_plan_tokens(cpu, op, 0, INT32_MAX);

	return st ? st : run_over_columns(cpu, &c);
}

/* Measures the moments of rows [lo, hi). */
static void measure_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct columns *c = arg;
	const struct tess_view *x = &c->op->in[0];
	float *level = cpu_get_thread_scratch(c->cpu, thread);

	for (int64_t t = lo; t < hi; t++)
		for (int64_t i = 0; i < c->runs; i++)
			c->moments[t * c->runs + i] =
				norm_measure(c->over_row, c->op->num + TESS_TOKENS_NUMS,
			                     get_row(x, t) + i * c->each, c->each, level);
}

#define run_norm_dw CPU_NAME(run_norm_dw)
tess_status run_norm_dw(struct cpu *cpu, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];
	double run = op->num[TESS_TOKENS_NUMS + TESS_NORM_RUN];
	struct columns c = {
		.cpu = cpu, .op = op, .x = &op->in[1], .each = run > 0 ? (int64_t)run : x->shape[1]
	};
	void *moments;
	tess_status st = cpu_plan_tree(cpu, op, 0, false, INT32_MAX, &c.over_row);

	c.runs = x->shape[1] / c.each;
	if (!st)
		st = cpu_plan_tokens(cpu, op, 1, INT32_MAX);
	if (!st)
		st = cpu_get_shared_scratch(
			cpu, sizeof *c.moments * (size_t)(x->shape[0] * c.runs + 1), &moments);
	if (!st)
		st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)c.over_row->levels);
	if (st)
		return st;
	c.moments = moments;
	pool_run(cpu->pool, measure_rows, &c, x->shape[0], tess_up(SMALL, x->shape[1] + 1));
	return run_over_columns(cpu, &c);
}

#define run_sequence_sum CPU_NAME(run_sequence_sum)
tess_status run_sequence_sum(struct cpu *cpu, const struct tess_op *op)
{
	struct columns c = { .op = op, .x = &op->in[0], .each = op->in[0].shape[1], .runs = 1 };
	int64_t first = (int64_t)op->num[TESS_TOKENS_FIRST], rows = op->in[0].shape[0], *bound;
	struct tess_tree tree = { .n = (int64_t)op->num[TESS_TOKENS_SEQUENCES],
		                  .lo = first,
		                  .hi = first + rows,
		                  .terms = 1 };
	struct tess_term term = { 0 };
	struct tess_op sum = *op;
	void *memory;
	tess_status st = cpu_get_shared_scratch(cpu, sizeof *bound * (size_t)(rows + 1), &memory);

	if (st)
		return st;
	term.bound = bound = memory;
	for (int64_t i = 0; i <= rows; i++)
		bound[i] = i;
	sum.tree = &tree;
	sum.term = &term;
	sum.ntree = sum.nterm = 1;
	st = cpu_plan_sum(cpu, &sum, is_partial(op, 2), INT32_MAX);
	return st ? st : run_over_columns(cpu, &c);
}

struct head_sum {
	const struct cpu *cpu;
	const struct tess_op *op;
};

static void sum_heads(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct head_sum *h = arg;
	const struct tess_view *x = &h->op->in[0], *y = &h->op->out[0];
	int64_t width = (int64_t)h->op->num[TESS_HEAD_SUM_WIDTH];
	int64_t group = (int64_t)h->op->num[TESS_HEAD_SUM_GROUP];
	struct rows r = { .pitch = width };

	for (int64_t t = lo; t < hi; t++) {
		for (int64_t i = 0; i < y->shape[y->ndim - 1] / width; i++) {
			r.x = get_row(x, t) + i * group * width;
			sum_rows(h->cpu->sum, &r, width, cpu_get_thread_scratch(h->cpu, thread),
			         (float *)y->data + t * y->stride[y->ndim - 2] + i * width,
			         y->stride[0]);
		}
	}
}

#define run_head_sum CPU_NAME(run_head_sum)
tess_status run_head_sum(struct cpu *cpu, const struct tess_op *op)
{
	struct head_sum h = { cpu, op };
	tess_status st = cpu_plan_sum(cpu, op, is_partial(op, 2), INT32_MAX);

	if (!st)
		st = cpu_grow_thread_scratch(
			cpu, sizeof(float) * (size_t)(cpu->sum->levels *
		                                      (int64_t)op->num[TESS_HEAD_SUM_WIDTH]));
	if (!st)
		pool_run(cpu->pool, sum_heads, &h, op->in[0].shape[0],
		         tess_up(SMALL, op->in[0].shape[1] + 1));
	return st;
}

/* ---- EMBED_DW -------------------------------------------------------------------------------- */

struct token {
	int64_t id, row; /* row of the table, and row of the tokens */
};

struct embed_dw {
	const struct cpu *cpu;
	const struct tess_op *op;
	const struct token *token; /* by id, then by row */
	int64_t tokens;
};

static int compare_tokens(const void *a, const void *b)
{
	const struct token *x = a, *y = b;

	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->row < y->row ? -1 : x->row > y->row;
}

/*
 * Sums a row of the table: [token, end) in the tree over all tokens. Absent leaves are skipped,
 * since a sum that starts at +0 is never -0: a step merges the present levels.
 */
static void sum_tokens(const struct embed_dw *e, const struct token *token, const struct token *end,
                       float *stack, bool *here, float *out)
{
	const struct tess_view *g = &e->op->in[1];
	struct rows r = { .x = g->data, .pitch = g->stride[0] };
	const struct sum *sum = e->cpu->sum;
	int64_t n = g->shape[1], node = e->op->out[0].stride[0];
	int32_t level;

	for (const struct sum_step *s = sum->step; s < sum->step + sum->count; s++) {
		level = s->level;
		if (s->fresh)
			here[level] = false;
		for (; token < end && token->row < s->at + s->len; token++) {
			if (token->row < s->at)
				continue;
			if (!here[level])
				memset(stack + level * n, 0, sizeof *stack * (size_t)n);
			here[level] = true;
			add_row(&r, token->row, n, stack + level * n);
		}
		for (int m = 0; m < s->merge + s->trees; m++, level--) {
			if (here[level] && here[level - 1])
				add_vector(stack + level * n, n, stack + (level - 1) * n);
			else if (here[level])
				memcpy(stack + (level - 1) * n, stack + level * n,
				       sizeof *stack * (size_t)n);
			here[level - 1] = here[level - 1] || here[level];
		}
		if (s->node >= 0 && here[level])
			memcpy(out + s->node * node, stack + level * n, sizeof *out * (size_t)n);
	}
}

/* Sums rows [lo, hi) of the table. */
static void sum_ids(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct embed_dw *e = arg;
	const struct tess_view *y = &e->op->out[0];
	int64_t n = e->op->in[1].shape[1], a = 0, b = e->tokens, middle;
	int64_t nodes = y->ndim == 3 ? y->shape[0] : 1, pitch = y->stride[y->ndim - 2];
	float *stack = cpu_get_thread_scratch(e->cpu, thread), *out;
	const struct token *token, *end = e->token + e->tokens, *next;

	while (a < b) { /* finds the first token from lo on */
		middle = (a + b) / 2;
		if (e->token[middle].id < lo)
			a = middle + 1;
		else
			b = middle;
	}
	token = e->token + a;
	for (int64_t i = lo; i < hi; i++, token = next) {
		out = (float *)y->data + i * pitch;
		for (int64_t k = 0; k < nodes; k++)
			memset(out + k * y->stride[0], 0, sizeof *out * (size_t)n);
		for (next = token; next < end && next->id == i;)
			next++;
		if (next > token)
			sum_tokens(e, token, next, stack, (bool *)(stack + e->cpu->sum->levels * n),
			           out);
	}
}

#define run_embed_dw CPU_NAME(run_embed_dw)
tess_status run_embed_dw(struct cpu *cpu, const struct tess_op *op)
{
	struct embed_dw e = { .cpu = cpu, .op = op, .tokens = op->in[0].shape[0] };
	int64_t n = op->in[1].shape[1], first = (int64_t)op->num[TESS_TOKENS_NUMS], levels;
	struct token *token;
	void *memory;
	tess_status st = cpu_plan_tokens(cpu, op, 0, INT32_MAX);

	levels = cpu->sum->levels;
	if (!st)
		st = cpu_get_shared_scratch(cpu, sizeof *token * (size_t)(e.tokens + 1), &memory);
	if (!st)
		st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)(levels * (n + 1)));
	if (st)
		return st;
	e.token = token = memory;
	for (int64_t t = 0; t < e.tokens; t++)
		token[t] = (struct token){ ((const int32_t *)op->in[0].data)[t] - first, t };
	qsort(token, (size_t)e.tokens, sizeof *token, compare_tokens);
	pool_run(cpu->pool, sum_ids, &e, op->out[0].shape[op->out[0].ndim - 2],
	         tess_up(SMALL, n + 1));
	return TESS_OK;
}

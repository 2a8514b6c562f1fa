/*
 * head_linear.c - HEAD_LINEAR: each head of x times a weight of its own; the rest of the head is
 * copied. HEAD_LINEAR_DW: the sums over tokens of each head.
 */
#include "product.h"

enum { ROWS = 192 }; /* rows of x that use a panel while it is cached */
enum { SMALL = 1 << 16 }; /* products of the smallest share: fewer are not worth a thread */

struct head_linear {
	const struct cpu *cpu;
	const struct tess_op *op;
	int64_t row, rows; /* the current block of rows of x */
	int64_t groups; /* groups of panels of a head */
	int64_t x_head, y_head; /* elements of a head of x and of y */
	float *packed; /* [heads][K * rows]; NULL: x is not packed */
	int32_t wide; /* panels of a wide tile */
};

/* Packs the rows of the heads [lo, hi). */
static void pack_heads(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct head_linear *m = arg;
	const struct tess_view *x = &m->op->in[0];
	const struct sum *sum = m->cpu->sum;

	(void)thread;
	for (int64_t h = lo; h < hi; h++)
		for (int64_t s = 0; s < sum->count; s++)
			product_pack(&sum->step[s], get_row(x, m->row) + h * m->x_head,
			             x->stride[0], NULL, m->rows,
			             m->packed + h * m->rows * sum->elements);
}

static struct product make_head_product(const struct head_linear *m, int64_t h)
{
	const struct tess_view *x = &m->op->in[0], *y = &m->op->out[0], *w = &m->op->in[1];
	int64_t elements = m->cpu->sum->elements;

	return (struct product){
		.sum = m->cpu->sum,
		.w = get_matrix(w, h),
		.x = m->packed ? m->packed + h * m->rows * elements
		               : get_row(x, m->row) + h * m->x_head,
		.pitch = x->stride[0],
		.rows = m->rows,
		.packed = m->packed != NULL,
		.y = get_row(y, m->row) + h * m->y_head,
		.y_pitch = y->stride[0],
		.wide = m->wide,
	};
}

static void copy_head_rest(const struct head_linear *m, int64_t h)
{
	const struct tess_view *x = &m->op->in[0], *w = &m->op->in[1];
	int64_t n = w->shape[1], k = w->shape[2];

	for (int64_t t = m->row; t < m->row + m->rows; t++)
		memcpy(get_row(&m->op->out[0], t) + h * m->y_head + n,
		       get_row(x, t) + h * m->x_head + k, sizeof(float) * (size_t)(m->x_head - k));
}

/* Multiplies groups of panels [lo, hi), counted over all heads. */
static void multiply_heads(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct head_linear *m = arg;
	struct product p;

	for (int64_t i = lo; i < hi; i++) {
		p = make_head_product(m, i / m->groups);
		product_multiply(&p, i % m->groups, cpu_get_thread_scratch(m->cpu, thread));
		if (i % m->groups == 0)
			copy_head_rest(m, i / m->groups);
	}
}

/* Plans the sum over K as one unit. */
static tess_status plan_head_sum(struct cpu *cpu, const struct tess_op *op)
{
	const int64_t bound[2] = { 0, op->in[1].shape[2] };
	const struct tess_term term = { .bound = bound };
	const struct tess_tree tree = { .n = 1, .lo = 0, .hi = 1, .terms = 1 };
	struct tess_op one = *op;

	one.ntree = one.nterm = 1;
	one.tree = &tree;
	one.term = &term;
	return cpu_plan_sum(cpu, &one, false, LEAF);
}

#define run_head_linear CPU_NAME(run_head_linear)
tess_status run_head_linear(struct cpu *cpu, const struct tess_op *op)
{
	int64_t rows = op->in[0].shape[0], heads = op->in[1].shape[0], block, grain;
	struct head_linear m = { .cpu = cpu, .op = op, .wide = product_choose_wide(rows) };
	void *packed = NULL;
	tess_status st;

	if (!rows)
		return TESS_OK;
	m.groups = product_count_groups(op->in[1].shape[1], m.wide);
	m.x_head = op->in[0].shape[1] / heads;
	m.y_head = op->out[0].shape[1] / heads;
	block = rows < ROWS ? rows : ROWS;
	st = plan_head_sum(cpu, op);
	if (!st)
		st = cpu_grow_thread_scratch(
			cpu, sizeof(float) * (size_t)product_count_scratch(cpu->sum, block));
	if (!st && rows > TILE_ROWS)
		st = cpu_get_shared_scratch(
			cpu, sizeof(float) * (size_t)(heads * block * cpu->sum->elements), &packed);
	if (st)
		return st;
	m.packed = packed;
	for (; m.row < rows; m.row += m.rows) {
		m.rows = rows - m.row < block ? rows - m.row : block;
		if (packed)
			pool_run(cpu->pool, pack_heads, &m, heads,
			         tess_up(SMALL, m.rows * cpu->sum->elements));
		grain = tess_up(SMALL, m.rows * m.wide * LANES * cpu->sum->elements);
		pool_run(cpu->pool, multiply_heads, &m, heads * m.groups, grain);
	}
	return TESS_OK;
}

extern cpu_run CPU_NAME(run_linear_dw);

#define run_head_linear_dw CPU_NAME(run_head_linear_dw)
tess_status run_head_linear_dw(struct cpu *cpu, const struct tess_op *op)
{
	struct tess_op one = *op;
	struct tess_view v[3];
	tess_status st = TESS_OK;

	one.in = v;
	one.out = &v[2];
	for (int64_t h = 0; h < op->out[0].shape[op->out[0].ndim - 3] && !st; h++) {
		get_head_sum(op, h, v);
		st = CPU_NAME(run_linear_dw)(cpu, &one);
	}
	return st;
}

/* LINEAR: blocks of rows of x times each weight. */
#include "product.h"

enum { ROWS = 192, FEW_ROWS = 48 }; /* rows of x that use a panel while it is cached */
enum { PACKED_MAX = 1 << 21 }; /* elements of packed rows in a block */
enum { SMALL = 1 << 16 }; /* products of the smallest share: fewer are not worth a thread */

struct linear {
	const struct cpu *cpu;
	const struct tess_op *op;
	const struct sum *sum;
	int64_t row, rows; /* the current block of rows of x */
	float *packed; /* NULL: x is not packed */
	int32_t wide; /* panels of a wide tile */
};

/* Packs the steps [lo, hi) of the block of rows. */
static void pack_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct linear *l = arg;
	const struct tess_view *x = &l->op->in[0];

	(void)thread;
	for (int64_t s = lo; s < hi; s++)
		product_pack(&l->sum->step[s], get_row(x, l->row), x->stride[0], NULL, l->rows,
		             l->packed);
}

/* The current block times one weight. */
static struct product make_product(const struct linear *l, int32_t weight)
{
	const struct tess_view *x = &l->op->in[0], *y = &l->op->out[weight];
	int64_t pitch = y->stride[y->ndim - 2];

	return (struct product){ .sum = l->sum,
		                 .w = l->op->in[1 + weight],
		                 .x = l->packed ? l->packed : get_row(x, l->row),
		                 .pitch = x->stride[0],
		                 .rows = l->rows,
		                 .packed = l->packed != NULL,
		                 .y = (float *)y->data + l->row * pitch,
		                 .y_pitch = pitch,
		                 .node_pitch = y->ndim == 3 ? y->stride[0] : 0,
		                 .wide = l->wide };
}

static int64_t count_groups(const struct linear *l, int32_t weight)
{
	return product_count_groups(l->op->in[1 + weight].shape[0], l->wide);
}

/* Groups [lo, hi), counted over all weights. */
static void multiply_groups(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct linear *l = arg;
	float *scratch = cpu_get_thread_scratch(l->cpu, thread);
	struct product p;
	int64_t base = 0, n;

	for (int32_t i = 0; i < l->op->nout; base += n, i++) {
		n = count_groups(l, i);
		p = make_product(l, i);
		for (int64_t g = lo > base ? lo - base : 0; g < n && base + g < hi; g++)
			product_multiply(&p, g, scratch);
	}
}

/* A multiple of TILE_ROWS, unless one block is enough. */
static int64_t choose_block_rows(int64_t rows, int64_t elements)
{
	int64_t max_rows = PACKED_MAX / (elements + 1) / TILE_ROWS * TILE_ROWS;

	max_rows = max_rows > ROWS ? ROWS : max_rows < FEW_ROWS ? FEW_ROWS : max_rows;
	return rows < max_rows ? rows : max_rows;
}

#define run_linear CPU_NAME(run_linear)
tess_status run_linear(struct cpu *cpu, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0];
	struct linear l = { .cpu = cpu, .op = op, .sum = &cpu->sum };
	int64_t rows = x->shape[0], groups = 0, block, grain;
	void *packed = NULL;
	tess_status st;

	if (!rows)
		return TESS_OK;
	st = cpu_plan_sum(cpu, op, is_partial(op, 2), LEAF);
	if (st)
		return st;
	block = choose_block_rows(rows, l.sum->elements);
	l.wide = product_choose_wide(rows);
	for (int32_t i = 0; i < op->nout; i++)
		groups += count_groups(&l, i);
	st = cpu_grow_thread_scratch(cpu,
	                             sizeof(float) * (size_t)product_count_scratch(l.sum, block));
	if (!st && rows > TILE_ROWS)
		st = cpu_get_shared_scratch(cpu, sizeof(float) * (size_t)(block * l.sum->elements),
		                            &packed);
	if (st)
		return st;
	for (l.row = 0; l.row < rows; l.row += l.rows) {
		l.rows = rows - l.row < block ? rows - l.row : block;
		l.packed = packed;
		if (packed)
			pool_run(cpu->pool, pack_rows, &l, l.sum->count,
			         tess_up(SMALL, l.rows * LEAF));
		grain = tess_up(SMALL, l.rows * l.wide * LANES * (l.sum->elements + 1));
		pool_run(cpu->pool, multiply_groups, &l, groups, grain);
	}
	return TESS_OK;
}

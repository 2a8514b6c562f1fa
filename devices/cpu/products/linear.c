/* linear.c - LINEAR, LINEAR_DX, LINEAR_DW: blocks of rows times each weight. */
#include "product.h"

enum { ROWS = 192, FEW_ROWS = 48 }; /* rows that use panels while these are cached */
enum { PACKED_MAX = 1 << 23 }; /* elements of packed rows in a pass, if FEW_ROWS have fewer */
enum { RUN = 2048, STACKS_MAX = 1 << 20 }; /* elements of a turn; floats of all stacks */
enum { SMALL = 1 << 15 }; /* products of the smallest share: fewer are not worth a thread */

struct linear {
	const struct cpu *cpu;
	const struct sum *sum;
	const struct tess_view *x; /* [rows, K], by operand of the sum */
	const struct pair_tiles *pairs; /* for products of bf16 */
	bool columns; /* the rows are the columns of x */
	const struct tess_view *w; /* [N, K], by output */
	const struct tess_view *operand; /* operands of the product, or NULL */
	const struct tess_view *y; /* [rows, N] or [nodes, rows, N]; or with N before the rows */
	int32_t nout;
	int64_t row, rows, total; /* rows of the current pass; total: of all passes */
	int64_t block, blocks; /* rows of a block, and blocks of a pass */
	int64_t groups; /* groups of all weights */
	int64_t together; /* groups that take turns, RUN elements at a time, if there are many */
	float *packed; /* packed rows by block; NULL: one block that is not packed */
	int32_t wide; /* panels of a wide tile */
};

static int64_t count_block_rows(const struct linear *l, int64_t i)
{
	return l->rows - i * l->block < l->block ? l->rows - i * l->block : l->block;
}

/* Packs [lo, hi) of the steps of all blocks. */
static void pack_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct linear *l = arg;
	int64_t block, row, rows;
	float *to;

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		const struct sum_step *s = &l->sum->step[i / l->blocks];
		const struct tess_view *x = &l->x[s->operand];

		block = i % l->blocks;
		row = l->row + block * l->block;
		rows = count_block_rows(l, block);
		to = l->packed + block * l->block * l->sum->elements;
		if (l->columns && l->pairs)
			pairs_pack_columns(s, (const float *)x->data + row, x->stride[0], rows,
			                   (uint32_t *)to);
		else if (l->columns)
			product_pack_columns(s, (const float *)x->data + row, x->stride[0], rows,
			                     to);
		else if (l->pairs)
			pairs_pack(s, get_row(x, row), x->stride[0], NULL, rows, (uint32_t *)to);
		else
			product_pack(s, get_row(x, row), x->stride[0], NULL, rows, to);
	}
}

/*
 * Chooses the ranges for few rows. Weights then come from memory, whose prefetchers need long
 * ranges: each thread reads one, as `wide` streams. The distance of streams is no large power of
 * two, whose multiples may share sets of a cache, and not a panel less, whose multiples share banks
 * of memory if parities of bits choose these (31 of 32 panels: a sixth slower).
 */
static int64_t choose_run(const struct linear *l, const struct tess_view *w)
{
	int64_t run = tess_up(w->shape[0], LANES) / (l->wide * l->cpu->nthreads);

	if (l->total > TILE_ROWS || w->layout != TESS_PANELS)
		return 0;
	return run & (run - 1) ? run : run - run / 8;
}

/* Describes the product of a block of the current pass and one weight. */
static struct product make_product(const struct linear *l, int32_t weight, int64_t block)
{
	const struct tess_view *y = &l->y[weight];
	int64_t row = l->row + block * l->block, pitch = y->stride[y->ndim - 2];

	pitch = y->stride[y->ndim - 1] == 1 ? pitch : y->stride[y->ndim - 1];
	return (struct product){ .sum = l->sum,
		                 .w = l->w[weight],
		                 .operand = l->operand,
		                 .x = l->packed ? l->packed + block * l->block * l->sum->elements
		                                : get_row(l->x, row),
		                 .pitch = l->x->stride[0],
		                 .rows = count_block_rows(l, block),
		                 .packed = l->packed != NULL,
		                 .pairs = l->pairs,
		                 .y = (float *)y->data + row * pitch,
		                 .y_pitch = pitch,
		                 .node_pitch = y->ndim == 3 ? y->stride[0] : 0,
		                 .wide = l->wide,
		                 .run = choose_run(l, &l->w[weight]) };
}

static int64_t count_groups(const struct linear *l, int32_t weight)
{
	return product_count_groups(l->w[weight].shape[0], l->wide);
}

/* Multiplies a group of panels, counted over all weights, by a block: the steps of p, or all. */
static void multiply_group(const struct linear *l, int64_t block, int64_t group,
                           const struct sum_step *from, const struct sum_step *to, float *scratch,
                           float *fetched)
{
	struct product p;
	int32_t weight = 0;

	for (; group >= count_groups(l, weight); weight++)
		group -= count_groups(l, weight);
	p = make_product(l, weight, block);
	p.from = from;
	p.to = to;
	p.fetched = fetched;
	product_multiply(&p, group, scratch);
}

static int64_t count_stack(const struct linear *l)
{
	return l->sum->levels * l->block * l->wide * LANES;
}

/*
 * Multiplies pairs [lo, hi) of a block and `together` groups, which take turns, so that the packed
 * rows of a turn are read from the cache. Adjacent pairs share rows or columns, whichever are more,
 * so that these are read once.
 */
static void multiply_groups(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct linear *l = arg;
	const struct sum_step *last = l->sum->step + l->sum->count, *to;
	float *stack = cpu_get_thread_scratch(l->cpu, thread),
	      *fetched = stack + l->together * count_stack(l);
	bool by_block = l->rows > l->groups * l->wide * LANES;
	int64_t block, first, sets = tess_up(l->groups, l->together);

	for (int64_t i = lo; i < hi; i++) {
		block = by_block ? i / sets : i % l->blocks;
		first = (by_block ? i % sets : i / l->blocks) * l->together;
		for (const struct sum_step *s = l->sum->step; s < last; s = to) {
			to = l->together > 1 ? s + 1 : last;
			while (to < last && to->before - s->before < RUN)
				to++;
			for (int64_t j = 0; j < l->together && first + j < l->groups; j++)
				multiply_group(l, block, first + j, s, to,
				               stack + j * count_stack(l), fetched);
		}
	}
}

/* Multiplies groups [lo, hi) by few rows, which are in place. */
static void multiply_few_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct linear *l = arg;
	float *scratch = cpu_get_thread_scratch(l->cpu, thread);

	for (int32_t i = 0; hi > 0; i++) {
		const struct product p = make_product(l, i, 0);
		int64_t groups = count_groups(l, i);

		for (int64_t j = lo > 0 ? lo : 0; j < hi && j < groups; j++)
			product_multiply(&p, j, scratch);
		lo -= groups;
		hi -= groups;
	}
}

/* Cuts the rows into passes of blocks of about the same size. */
static void choose_pass_blocks(struct linear *l, bool packed)
{
	int64_t most = PACKED_MAX / (l->sum->elements + 1);

	if (!packed || l->total < most)
		most = l->total;
	most = most < FEW_ROWS && packed ? FEW_ROWS : most;
	l->block = tess_up(most, tess_up(most, ROWS));
	if (packed)
		l->block = tess_up(l->block, TILE_ROWS) * TILE_ROWS;
	l->blocks = most > l->block ? most / l->block : 1;
	l->blocks += l->blocks * l->block < most && most == l->total;
}

/* Chooses how many groups take turns: several if a block of packed rows exceeds a cache. */
static int64_t choose_together(const struct linear *l, int32_t nthreads)
{
	int64_t most = STACKS_MAX / count_stack(l), shares = l->groups * l->blocks / nthreads / 2;

	if (l->sum->elements < 2 * RUN)
		return 1;
	most = nthreads > 1 && shares < most ? shares : most;
	most = most < l->groups ? most : l->groups;
	return most > 1 ? tess_up(l->groups, tess_up(l->groups, most)) : 1;
}

static tess_status multiply_rows(struct cpu *cpu, struct linear *l, bool pack)
{
	int64_t pass, grain;
	bool many = l->columns || l->operand || l->total > TILE_ROWS;
	void *packed = NULL;
	tess_status st;

	l->sum = cpu->sum;
	choose_pass_blocks(l, pack);
	l->wide = pack ? TILE_WIDE_6 : product_choose_wide(l->total);
	for (int32_t i = 0; i < l->nout; i++)
		l->groups += count_groups(l, i);
	l->together = many ? choose_together(l, cpu->nthreads) : 1;
	st = cpu_grow_thread_scratch(cpu, sizeof(float) *
	                                          (size_t)(product_count_scratch(l->sum, l->block) +
	                                                   (l->together - 1) * count_stack(l)));
	pass = l->block * l->blocks;
	if (!st && pack)
		st = cpu_get_shared_scratch(
			cpu, sizeof(float) * (size_t)(pass * l->sum->elements + 1), &packed);
	if (st)
		return st;
	l->packed = packed;
	for (l->row = 0; l->row < l->total; l->row += l->rows) {
		l->rows = l->total - l->row < pass ? l->total - l->row : pass;
		l->blocks = tess_up(l->rows, l->block);
		if (pack)
			pool_run(cpu->pool, pack_rows, l, l->sum->count * l->blocks,
			         tess_up(SMALL, l->block * LEAF));
		grain = tess_up(SMALL, l->block * l->wide * LANES * (l->sum->elements + 1));
		if (many)
			pool_run(cpu->pool, multiply_groups, l,
			         tess_up(l->groups, l->together) * l->blocks, grain);
		else
			pool_run_apart(cpu->pool, multiply_few_rows, l, l->groups, grain);
	}
	return TESS_OK;
}

#define run_linear CPU_NAME(run_linear)
tess_status run_linear(struct cpu *cpu, const struct tess_op *op)
{
	struct linear l = { .cpu = cpu,
		            .x = &op->in[0],
		            .w = &op->in[1],
		            .y = op->out,
		            .nout = op->nout,
		            .total = op->in[0].shape[0] };
	tess_status st = cpu_plan_sum(cpu, op, is_partial(op, 2), LEAF);

	l.pairs = cpu_find_pairs(cpu, op, TESS_LINEAR_MATH);
	return st || !l.total ? st : multiply_rows(cpu, &l, l.pairs || l.total > TILE_ROWS);
}

/* Returns [K, N] of [N, K]. */
static struct tess_view transpose_view(const struct tess_view *v)
{
	struct tess_view t = *v;

	t.shape[0] = v->shape[1], t.shape[1] = v->shape[0];
	t.stride[0] = v->stride[1], t.stride[1] = v->stride[0];
	return t;
}

#define run_linear_dx CPU_NAME(run_linear_dx)
tess_status run_linear_dx(struct cpu *cpu, const struct tess_op *op)
{
	const struct tess_view *weights = &op->in[op->nin / 2], w = transpose_view(weights);
	struct linear l = { .cpu = cpu,
		            .x = op->in,
		            .w = &w,
		            .operand = weights,
		            .pairs = cpu_find_pairs(cpu, op, TESS_LINEAR_MATH),
		            .y = op->out,
		            .nout = 1,
		            .total = op->in[0].shape[0] };
	tess_status st = cpu_plan_sum(cpu, op, is_partial(op, 2), LEAF);

	return st || !l.total ? st : multiply_rows(cpu, &l, true);
}

/* Runs LINEAR_DW; the contiguous rows of the output are those of dW, or of its transpose. */
#define run_linear_dw CPU_NAME(run_linear_dw)
tess_status run_linear_dw(struct cpu *cpu, const struct tess_op *op)
{
	bool as_stored = op->out[0].stride[op->out[0].ndim - 1] == 1;
	const struct tess_view w = transpose_view(&op->in[as_stored ? 0 : 1]);
	struct linear l = { .cpu = cpu,
		            .x = &op->in[as_stored ? 1 : 0],
		            .columns = true,
		            .pairs = cpu_find_pairs(cpu, op, TESS_LINEAR_DW_MATH),
		            .w = &w,
		            .y = op->out,
		            .nout = 1 };
	tess_status st = cpu_plan_tokens(cpu, op, 0, LEAF);

	l.total = l.x->shape[1];
	return st || !l.total ? st : multiply_rows(cpu, &l, true);
}

/*
 * LINEAR: tiles of rows times panels of columns, leaf by leaf, merging tree nodes as leaves
 * complete.
 */
#include "pack.h"
#include "tile.h"

enum { LEAF = 256 }; /* elements of K in a step: those of a panel fit in the cache */
enum { ROWS = 192, FEW_ROWS = 48 }; /* rows of x that use a panel while it is cached */
enum { PACKED_MAX = 1 << 21 }; /* elements of packed rows in a block */
enum { SMALL = 1 << 16 }; /* products of the smallest share: fewer are not worth a thread */

struct linear {
	const struct cpu *cpu;
	const struct tess_op *op;
	const struct sum *sum;
	int64_t row, rows; /* the current block of rows of x */
	float *packed; /* by step, by tile: [len][rows]; NULL: x is not packed */
	int32_t wide; /* panels of a wide tile */
};

struct panels { /* where the panels of a weight are */
	const char *data;
	int32_t dtype;
	int64_t k, panel; /* bytes between elements and between panels */
};

static struct panels get_panels(const struct tess_view *w)
{
	int64_t bytes = (int64_t)tess_width(w->dtype);

	if (w->layout == TESS_PANELS)
		return (struct panels){ w->data, w->dtype, LANES * bytes, w->stride[0] * bytes };
	return (struct panels){ w->data, w->dtype, w->stride[1] * bytes, LANES * bytes };
}

/* Whether 16 columns are contiguous: in panels, and in rows of [in, out] weights. */
static bool is_in_panels(const struct tess_view *w, int64_t column)
{
	return w->layout == TESS_PANELS || (w->stride[0] == 1 && column + LANES <= w->shape[0]);
}

/* Rows of the next tile: the remaining rows in tiles of about the same size. */
static int64_t choose_tile_rows(int64_t left)
{
	return tess_up(left, tess_up(left, TILE_ROWS));
}

/* Packs the steps [lo, hi) of the block of rows. */
static void pack_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct linear *l = arg;
	const struct tess_view *x = &l->op->in[0];
	const struct sum_step *s;
	const float *from;
	float *to;
	int64_t n;

	(void)thread;
	for (s = l->sum->step + lo; s < l->sum->step + hi; s++) {
		to = l->packed + s->before * l->rows;
		for (int64_t r = 0; r < l->rows; r += n) {
			n = choose_tile_rows(l->rows - r);
			from = get_row(x, l->row + r) + s->at;
			for (int64_t k = 0; k < s->len; k++)
				for (int64_t i = 0; i < n; i++)
					*to++ = from[i * x->stride[0] + k];
		}
	}
}

/* Copies a finished tile, or a node of it, to y. */
static void store_tile(const struct linear *l, const struct tess_view *y, int64_t node, int64_t row,
                       int64_t rows, int64_t column, int64_t columns, const float *tile)
{
	float *out = y->data;
	int64_t left = y->shape[y->ndim - 1] - column, pitch = y->stride[y->ndim - 2];

	if (y->ndim == 3)
		out += node * y->stride[0];
	out += (l->row + row) * pitch + column;
	for (int64_t r = 0; r < rows; r++)
		memcpy(out + r * pitch, tile + r * columns,
		       sizeof(float) * (size_t)(left < columns ? left : columns));
}

/* All rows of the block times `panels` panels from `column` on, 1 or l->wide. */
static void multiply_panels(const struct linear *l, int32_t weight, int64_t column, int32_t panels,
                            float *slots)
{
	const struct tess_view *x = &l->op->in[0], *w = &l->op->in[1 + weight];
	int64_t columns = panels * LANES, pitch = l->rows * columns, n, bk, bp;
	float *fetched = slots + l->sum->levels * l->rows * l->wide * LANES, *slot;
	bool direct = is_in_panels(w, column + columns - LANES);
	struct panels p = get_panels(w);
	const float *a;
	const char *b;

	p.data += column / LANES * p.panel;
	for (const struct sum_step *s = l->sum->step; s < l->sum->step + l->sum->count; s++) {
		b = p.data + s->at * p.k;
		bk = p.k;
		bp = p.panel;
		if (!direct) {
			pack_widened(w, column, s->at, s->len, fetched);
			b = (const char *)fetched;
			bk = LANES * (int64_t)sizeof(float);
			bp = 0;
		}
		for (int64_t r = 0; r < l->rows; r += n) {
			n = choose_tile_rows(l->rows - r);
			a = l->packed ? l->packed + s->before * l->rows + r * s->len
			              : get_row(x, l->row + r) + s->at;
			slot = slots + r * columns;
			tile_find(direct ? w->dtype : TESS_F32, l->packed, (int)n,
			          panels > 1)(a, x->stride[0], b, bk, bp, slot, pitch, s);
			if (s->node >= 0)
				store_tile(l, &l->op->out[weight], s->node, r, n, column, columns,
				           slot + (s->level - s->merge - s->trees) * pitch);
		}
	}
}

static int64_t count_groups(const struct linear *l, int32_t weight)
{
	return tess_up(l->op->in[1 + weight].shape[0], l->wide * LANES);
}

/* Groups [lo, hi) of `wide` panels, counted over all weights. */
static void multiply_groups(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct linear *l = arg;
	float *slots = cpu_get_thread_scratch(l->cpu, thread);
	const struct tess_view *w;
	int64_t base = 0, n, column, end;

	for (int32_t i = 0; i < l->op->nout; base += n, i++) {
		n = count_groups(l, i);
		w = &l->op->in[1 + i];
		for (int64_t g = lo > base ? lo - base : 0; g < n && base + g < hi; g++) {
			column = g * l->wide * LANES;
			end = column + l->wide * LANES;
			if (tess_up(w->shape[0], LANES) * LANES >= end &&
			    is_in_panels(w, end - LANES)) {
				multiply_panels(l, i, column, l->wide, slots);
				continue;
			}
			for (; column < end && column < w->shape[0]; column += LANES)
				multiply_panels(l, i, column, 1, slots);
		}
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
	int64_t rows = x->shape[0], groups = 0, block, floats, grain;
	void *packed = NULL;
	tess_status st;

	if (!rows)
		return TESS_OK;
	st = cpu_plan_sum(cpu, op, is_partial(op, 2), LEAF);
	if (st)
		return st;
	block = choose_block_rows(rows, l.sum->elements);
	l.wide = rows <= TILE_ROWS ? tile_get_wide_panels((int)rows) : TILE_WIDE_6;
	for (int32_t i = 0; i < op->nout; i++)
		groups += count_groups(&l, i);
	floats = l.sum->levels * block * l.wide * LANES + LEAF * LANES;
	st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)floats);
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

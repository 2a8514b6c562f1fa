/*
 * experts.c - EXPERTS, in waves of rows of x (experts_rows.h). Gate, up and activation of a wave
 * are in scratch memory.
 */
#include "elementwise.h"
#include "experts_rows.h"

enum { GATE_UP, DOWN };

struct experts {
	struct expert_rows rows;
	const struct sum *sum[2]; /* sums over K and over F */
	int64_t k, f, h, slots;
	float *x, *gate_up, *mid, *z;
	int64_t z_nodes;
};

/* Computes act(gate) * up of one tile, packed if the group is. */
static void activate_tile(void *arg, const struct group *g, int64_t row, int64_t n)
{
	const struct experts *e = arg;
	const struct tess_op *op = e->rows.op;
	float *from = e->gate_up + (experts_get_offset(&e->rows, g) + row) * 2 * e->f;

	for (int64_t r = 0; r < n; r++) {
		float *row_of = from + r * 2 * e->f;

		experts_add_bias(op, 4, g->expert, row_of);
		if (op->num[TESS_EXPERTS_LIMIT] > 0)
			limited_glu_row(op->num, row_of, e->f, row_of);
		else
			glu_row((int)op->num[TESS_EXPERTS_ACTIVATION], row_of, row_of + e->f, e->f,
			        row_of);
	}
	if (g->packed)
		experts_pack_tile(&e->rows, g, e->sum[DOWN], from, 2 * e->f, row, n, e->mid, e->f);
}

/* Adds the experts of rows [lo, hi). */
static void add_experts(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct experts *a = arg;
	const struct expert_rows *e = &a->rows;
	struct leaf *leaf = cpu_get_thread_scratch(e->cpu, thread);

	for (int64_t t = lo; t < hi; t++) {
		int64_t n = e->begin[t + 1] - e->begin[t];

		for (int64_t i = 0; i < n; i++) {
			int64_t row = e->row[e->begin[t] + i], expert = e->expert[row];

			leaf[i] = (struct leaf){ a->z + row * a->h, e->op->tree[2].lo + expert,
				                 get_row(&e->op->in[1], t)[expert], 0 };
		}
		combine_leaves(e->op, leaf, n, t);
	}
}

static void run_wave(struct experts *e)
{
	const struct tess_op *op = e->rows.op;
	struct expert_product up = { .e = &e->rows,
		                     .sum = e->sum[GATE_UP],
		                     .w = &op->in[2],
		                     .x = e->x,
		                     .packed = e->x,
		                     .pitch = e->k,
		                     .width = e->k,
		                     .y = e->gate_up,
		                     .y_pitch = 2 * e->f };
	struct expert_product down = { .e = &e->rows,
		                       .sum = e->sum[DOWN],
		                       .w = &op->in[3],
		                       .x = e->gate_up,
		                       .packed = e->mid,
		                       .pitch = 2 * e->f,
		                       .width = e->f,
		                       .y = e->z + (e->slots ? 0 : e->rows.wave[0].first * e->h),
		                       .y_pitch = e->h,
		                       .node_pitch = EXPERTS_ROWS * e->h };

	experts_gather(&e->rows, e->sum[GATE_UP], &op->in[0], e->x);
	experts_multiply(&up);
	experts_run_tiles(&e->rows, activate_tile, e, e->f);
	experts_multiply(&down);
	if (e->slots)
		experts_store_slots(&e->rows, e->z, e->h);
}

/* Sets e's pointers into `base`, unless it is NULL; returns the bytes needed. */
static size_t lay_out_experts(struct experts *e, char *base)
{
	int64_t rows = e->rows.total < EXPERTS_ROWS ? e->rows.total : EXPERTS_ROWS;
	size_t at = 0;

	experts_lay_out_rows(&e->rows, base, &at);
	e->x = experts_take_bytes(base, &at, rows * e->k, sizeof *e->x);
	e->gate_up = experts_take_bytes(base, &at, rows * 2 * e->f, sizeof *e->gate_up);
	e->mid = experts_take_bytes(base, &at, rows * e->f, sizeof *e->mid);
	e->z = experts_take_bytes(base, &at,
	                          (e->slots ? e->z_nodes * EXPERTS_ROWS : e->rows.total) * e->h,
	                          sizeof *e->z);
	return at;
}

static tess_status prepare_experts(struct cpu *cpu, struct experts *e)
{
	const struct tess_op *op = e->rows.op;
	bool apart = e->slots && op->out[0].ndim == 3;
	int64_t floats, leaves;
	void *scratch = NULL;
	tess_status st = cpu_plan_tree(cpu, op, 0, false, LEAF, &e->sum[GATE_UP]);

	if (!st)
		st = cpu_plan_tree(cpu, op, 1, apart, LEAF, &e->sum[DOWN]);
	if (!st)
		st = experts_count_rows(&e->rows, e->slots);
	if (st)
		return st;
	e->z_nodes = e->sum[DOWN]->nodes;
	leaves = e->rows.experts * (int64_t)sizeof(struct leaf);
	floats = product_count_scratch(e->sum[0], EXPERTS_ROWS);
	if (floats < product_count_scratch(e->sum[1], EXPERTS_ROWS))
		floats = product_count_scratch(e->sum[1], EXPERTS_ROWS);
	floats *= (int64_t)sizeof(float);
	st = cpu_grow_thread_scratch(cpu, (size_t)(floats > leaves ? floats : leaves));
	if (!st)
		st = cpu_get_shared_scratch(cpu, lay_out_experts(e, NULL), &scratch);
	if (!st)
		lay_out_experts(e, scratch);
	return st;
}

#define run_experts CPU_NAME(run_experts)
tess_status run_experts(struct cpu *cpu, const struct tess_op *op)
{
	struct experts e = { .rows = { .cpu = cpu,
		                       .op = op,
		                       .pairs = cpu_find_pairs(cpu, op, TESS_EXPERTS_MATH) },
		             .k = op->in[0].shape[1],
		             .f = op->in[3].shape[2],
		             .h = op->in[3].shape[1],
		             .slots = (int64_t)op->num[TESS_EXPERTS_SLOTS] };
	tess_status st = prepare_experts(cpu, &e);

	if (st)
		return st;
	experts_list_rows(&e.rows);
	for (int64_t at = 0; at < e.rows.ngroups;) {
		at = experts_choose_wave(&e.rows, at);
		run_wave(&e);
	}
	if (e.slots)
		experts_clear_slots(&e.rows, e.slots, e.h);
	else
		pool_run(cpu->pool, add_experts, &e, e.rows.tokens,
		         tess_up(EXPERTS_SHARE, e.h + 1));
	return TESS_OK;
}

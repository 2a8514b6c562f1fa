/*
 * experts_backward.c - EXPERTS_D, in the waves of rows of EXPERTS: computes gate and up again, and
 * multiplies the rows of g by the matrices with exchanged axes. COMBINE_D.
 */
#include "elementwise.h"
#include "experts_rows.h"

struct derived {
	struct expert_rows rows;
	const struct sum *over_k, *over_h, *over_f;
	int64_t k, f, h;
	float *x, *g; /* the wave's rows of the operands */
	float *gate_up, *e, *mid, *packed, *u;
};

/* Returns the matrices of experts with exchanged axes. */
static struct tess_view exchange_matrix_axes(const struct tess_view *w)
{
	struct tess_view t = *w;

	t.shape[1] = w->shape[2];
	t.shape[2] = w->shape[1];
	t.stride[1] = w->stride[2];
	t.stride[2] = w->stride[1];
	return t;
}

/* Computes [da | db | h] of a tile into the slots of mid, and [da | db] packed if the group is. */
static void derive_tile(void *arg, const struct group *g, int64_t row, int64_t n)
{
	const struct derived *d = arg;
	const struct expert_rows *e = &d->rows;
	int64_t at = experts_get_offset(e, g) + row, f = d->f;
	int act = (int)e->op->num[TESS_EXPERTS_ACTIVATION];

	for (int64_t i = at; i < at + n; i++) {
		int64_t listed = e->wave[0].first + i;
		float *a = d->gate_up + i * 2 * f, *b = a + f, *to = d->mid + i * 2 * f;
		float *slot = get_row(&e->op->out[1], e->token[listed]) + e->slot[listed] * 3 * f;

		experts_add_bias(e->op, 5, g->expert, a);
		if (e->op->num[TESS_EXPERTS_LIMIT] > 0) {
			limited_glu_row(e->op->num, a, f, slot + 2 * f);
			limited_glu_derive_row(e->op->num, a, d->e + i * f, f, to);
		} else {
			glu_row(act, a, b, f, slot + 2 * f);
			glu_derive_row(act, a, b, d->e + i * f, f, to, to + f);
		}
		memcpy(slot, to, sizeof *to * (size_t)(2 * f));
	}
	if (g->packed)
		experts_pack_tile(e, g, d->over_f, d->mid + at * 2 * f, 2 * f, row, n, d->packed,
		                  2 * f);
}

static void derive_wave(struct derived *d)
{
	const struct tess_op *op = d->rows.op;
	struct tess_view down = exchange_matrix_axes(&op->in[3]),
			 up = exchange_matrix_axes(&op->in[2]);
	struct expert_product gate_up = { .e = &d->rows,
		                          .sum = d->over_k,
		                          .w = &op->in[2],
		                          .x = d->x,
		                          .packed = d->x,
		                          .pitch = d->k,
		                          .width = d->k,
		                          .y = d->gate_up,
		                          .y_pitch = 2 * d->f };
	struct expert_product e = { .e = &d->rows,
		                    .sum = d->over_h,
		                    .w = &down,
		                    .x = d->g,
		                    .packed = d->g,
		                    .pitch = d->h,
		                    .width = d->h,
		                    .y = d->e,
		                    .y_pitch = d->f };
	struct expert_product u = { .e = &d->rows,
		                    .sum = d->over_f,
		                    .w = &up,
		                    .x = d->mid,
		                    .packed = d->packed,
		                    .pitch = 2 * d->f,
		                    .width = 2 * d->f,
		                    .y = d->u,
		                    .y_pitch = d->k,
		                    .node_pitch = EXPERTS_ROWS * d->k };

	experts_gather(&d->rows, d->over_k, &op->in[0], d->x);
	experts_gather(&d->rows, d->over_h, &op->in[4], d->g);
	experts_multiply(&gate_up);
	experts_multiply(&e);
	experts_run_tiles(&d->rows, derive_tile, d, d->f);
	experts_multiply(&u);
	experts_store_slots(&d->rows, d->u, d->k);
}

/* Sets d's pointers into `base`, unless it is NULL; returns the bytes needed. */
static size_t lay_out_derived(struct derived *d, char *base)
{
	int64_t rows = d->rows.total < EXPERTS_ROWS ? d->rows.total : EXPERTS_ROWS;
	size_t at = 0;

	experts_lay_out_rows(&d->rows, base, &at);
	d->x = experts_take_bytes(base, &at, rows * d->k, sizeof *d->x);
	d->g = experts_take_bytes(base, &at, rows * d->h, sizeof *d->g);
	d->gate_up = experts_take_bytes(base, &at, rows * 2 * d->f, sizeof *d->gate_up);
	d->e = experts_take_bytes(base, &at, rows * d->f, sizeof *d->e);
	d->mid = experts_take_bytes(base, &at, rows * 2 * d->f, sizeof *d->mid);
	d->packed = experts_take_bytes(base, &at, rows * 2 * d->f, sizeof *d->packed);
	d->u = experts_take_bytes(base, &at, d->over_f->nodes * EXPERTS_ROWS * d->k, sizeof *d->u);
	return at;
}

static tess_status prepare_derived(struct cpu *cpu, struct derived *d)
{
	const struct tess_op *op = d->rows.op;
	int64_t floats = 0;
	void *scratch = NULL;
	tess_status st = cpu_plan_tree(cpu, op, 0, false, LEAF, &d->over_k);

	if (!st)
		st = cpu_plan_tree(cpu, op, 1, false, LEAF, &d->over_h);
	if (!st)
		st = cpu_plan_tree(cpu, op, 2, op->out[0].ndim == 3, LEAF, &d->over_f);
	if (!st)
		st = experts_count_rows(&d->rows, (int64_t)op->num[TESS_EXPERTS_SLOTS]);
	if (st)
		return st;
	for (int i = 0; i < 3; i++) {
		const struct sum *of[] = { d->over_k, d->over_h, d->over_f };
		int64_t n = product_count_scratch(of[i], EXPERTS_ROWS);

		floats = n > floats ? n : floats;
	}
	st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)floats);
	if (!st)
		st = cpu_get_shared_scratch(cpu, lay_out_derived(d, NULL), &scratch);
	if (!st)
		lay_out_derived(d, scratch);
	return st;
}

#define run_experts_d CPU_NAME(run_experts_d)
tess_status run_experts_d(struct cpu *cpu, const struct tess_op *op)
{
	struct derived d = { .rows = { .cpu = cpu,
		                       .op = op,
		                       .pairs = cpu_find_pairs(cpu, op, TESS_EXPERTS_MATH) },
		             .k = op->in[0].shape[1],
		             .f = op->in[3].shape[2],
		             .h = op->in[3].shape[1] };
	tess_status st = prepare_derived(cpu, &d);

	if (st)
		return st;
	experts_list_rows(&d.rows);
	for (int64_t at = 0; at < d.rows.ngroups;) {
		at = experts_choose_wave(&d.rows, at);
		derive_wave(&d);
	}
	experts_clear_slots(&d.rows, (int64_t)op->num[TESS_EXPERTS_SLOTS], d.k);
	return TESS_OK;
}

/* ---- COMBINE_D ------------------------------------------------------------------------------- */

struct weighing {
	const struct cpu *cpu;
	const struct tess_op *op;
	int64_t most; /* maximum number of experts of a row */
};

/* Multiplies g by the slots of a row, which act as the rows of a weight. */
static void derive_weights(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct weighing *a = arg;
	const struct tess_view *w = &a->op->in[1], *g = &a->op->in[2];
	float *dot = cpu_get_thread_scratch(a->cpu, thread), *scratch = dot + a->most;
	int64_t h = g->shape[1], n;

	for (int64_t t = lo; t < hi; t++) {
		struct product p = { .sum = a->cpu->sum,
			             .w = { .data = get_row(&a->op->in[0], t),
			                    .dtype = TESS_F32,
			                    .ndim = 2,
			                    .shape = { cpu_count_experts(w, t), h },
			                    .stride = { h, 1 } },
			             .x = get_row(g, t),
			             .pitch = h,
			             .rows = 1,
			             .y = dot,
			             .wide = product_choose_wide(1) };

		n = product_count_groups(p.w.shape[0], p.wide);
		for (int64_t i = 0; i < n; i++)
			product_multiply(&p, i, scratch);
		n = 0;
		for (int64_t e = 0; e < w->shape[1]; e++)
			get_row(&a->op->out[0], t)[e] = get_row(w, t)[e] != 0.0f ? dot[n++] : 0.0f;
	}
}

#define run_combine_d CPU_NAME(run_combine_d)
tess_status run_combine_d(struct cpu *cpu, const struct tess_op *op)
{
	int64_t h = op->in[2].shape[1];
	struct weighing a = { cpu, op, tess_up(op->in[1].shape[1], LANES) * LANES };
	struct expert_rows rows = { .cpu = cpu, .op = op };
	tess_status st = cpu_plan_sum(cpu, op, false, LEAF);

	if (!st)
		st = experts_count_rows(&rows, op->in[0].shape[1] / h);
	if (!st)
		st = cpu_grow_thread_scratch(
			cpu, sizeof(float) * (size_t)(a.most + product_count_scratch(cpu->sum, 1)));
	if (!st)
		pool_run(cpu->pool, derive_weights, &a, op->in[1].shape[0],
		         tess_up(EXPERTS_SHARE, h * LANES));
	return st;
}

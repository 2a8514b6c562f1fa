/*
 * experts_dw.c - EXPERTS_DW: gathers the rows of one expert at a time, and runs a LINEAR_DW over
 * them for each of its matrices; units have only these tokens.
 */
#include "experts_rows.h"

struct expert_dw {
	struct cpu *cpu;
	struct expert_rows rows;
	int64_t first, n; /* rows of the current expert in the list */
	int64_t k, f, h;
	/* [n][K], weighted [n][H] and [n][2F], [n][F]; [n][1]: ones */
	float *x, *g, *mid, *act, *one;
	int64_t *bound; /* bounds of all terms, in the rows of the expert */
	struct tess_term *term;
};

/* Gathers rows [lo, hi) of the expert. */
static void gather_rows_of_expert(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct expert_dw *d = arg;
	const struct expert_rows *e = &d->rows;
	const struct tess_view *in = e->op->in;

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		int64_t row = d->first + i, t = e->token[row];
		const float *g = get_row(&in[2], t), *mid = get_row(&in[3], t);
		float w = get_row(&in[1], t)[e->expert[row]];
		float *to = d->g + i * d->h, *derived = d->mid + i * 2 * d->f;

		mid += e->slot[row] * 3 * d->f;
		d->one[i] = 1.0f;
		memcpy(d->x + i * d->k, get_row(&in[0], t), sizeof *g * (size_t)d->k);
		memcpy(d->act + i * d->f, mid + 2 * d->f, sizeof *g * (size_t)d->f);
		CPU_LANES
		for (int64_t j = 0; j < d->h; j++)
			to[j] = w * g[j];
		CPU_LANES
		for (int64_t j = 0; j < 2 * d->f; j++)
			derived[j] = w * mid[j];
	}
}

/* Converts the bounds of units to rows of the expert. */
static void count_rows_before(struct expert_dw *d)
{
	const struct tess_op *op = d->rows.op;
	const int32_t *token = d->rows.token + d->first;
	int64_t *bound = d->bound;

	for (int32_t i = 0; i < op->ntree; i++) {
		const struct tess_tree *t = &op->tree[i];

		for (int32_t k = t->first; k < t->first + t->terms; k++) {
			int64_t at = 0;

			d->term[k] = op->term[k];
			d->term[k].bound = bound;
			for (int64_t u = 0; u <= t->hi - t->lo; u++) {
				while (at < d->n && token[at] < op->term[k].bound[u])
					at++;
				*bound++ = at;
			}
		}
	}
}

/* Returns the gradient of expert `i` in out[which]. */
static struct tess_view get_expert_out(const struct tess_op *op, int32_t which, int64_t i)
{
	const struct tess_view *y = &op->out[which];
	int32_t a = y->ndim - 3;
	struct tess_view v = *y;

	v.ndim = y->ndim - 1;
	v.data = (float *)y->data + i * y->stride[a];
	for (int32_t k = a; k < v.ndim; k++) {
		v.shape[k] = y->shape[k + 1];
		v.stride[k] = y->stride[k + 1];
	}
	return v;
}

static void clear_expert(const struct tess_op *op, int64_t i)
{
	for (int32_t which = 0; which < op->nout; which++) {
		struct tess_view v = get_expert_out(op, which, i);
		bool partial = v.ndim == 3, across = v.stride[v.ndim - 1] != 1;
		int64_t rows = v.shape[partial + across], n = v.shape[partial + !across];

		for (int64_t node = 0; node < (partial ? v.shape[0] : 1); node++)
			for (int64_t r = 0; r < rows; r++)
				memset((float *)v.data + node * v.stride[0] * partial +
				               r * v.stride[partial + across],
				       0, sizeof(float) * (size_t)n);
	}
}

/* Computes one of the expert's gradients: the sum over its rows of g * x, products of `math`. */
static tess_status sum_rows_of_expert(struct expert_dw *d, int32_t which, float *x, int64_t columns,
                                      float *g, int64_t rows, double math)
{
	const double *tokens = d->rows.op->num;
	const double num[TESS_LINEAR_DW_NUMS] = {
		[TESS_TOKENS_SEQUENCES] = tokens[TESS_TOKENS_SEQUENCES],
		[TESS_TOKENS_FIRST] = tokens[TESS_TOKENS_FIRST],
		[TESS_LINEAR_DW_DTYPE] = TESS_F32,
		[TESS_LINEAR_DW_MATH] = math,
	};
	struct tess_view in[2] = { { .data = x,
		                     .dtype = TESS_F32,
		                     .ndim = 2,
		                     .shape = { d->n, columns },
		                     .stride = { columns, 1 } },
		                   { .data = g,
		                     .dtype = TESS_F32,
		                     .ndim = 2,
		                     .shape = { d->n, rows },
		                     .stride = { rows, 1 } } };
	struct tess_view out = get_expert_out(d->rows.op, which, d->rows.expert[d->first]);
	struct tess_op op = *d->rows.op;
	struct cpu *cpu = d->cpu;

	op.kind = TESS_OP_LINEAR_DW;
	op.nnum = TESS_LINEAR_DW_NUMS;
	op.num = num;
	op.nin = 2;
	op.in = in;
	op.nout = 1;
	op.out = &out;
	op.term = d->term;
	return cpu->kernels->run[TESS_OP_LINEAR_DW](cpu, &op);
}

static size_t lay_out_expert_dw(struct expert_dw *d, int64_t most, char *base)
{
	const struct tess_op *op = d->rows.op;
	int64_t bounds = 0;
	size_t at = 0;

	for (int32_t i = 0; i < op->ntree; i++)
		bounds += (op->tree[i].hi - op->tree[i].lo + 1) * op->tree[i].terms;
	experts_lay_out_rows(&d->rows, base, &at);
	d->x = experts_take_bytes(base, &at, most * d->k, sizeof *d->x);
	d->g = experts_take_bytes(base, &at, most * d->h, sizeof *d->g);
	d->mid = experts_take_bytes(base, &at, most * 2 * d->f, sizeof *d->mid);
	d->act = experts_take_bytes(base, &at, most * d->f, sizeof *d->act);
	d->one = experts_take_bytes(base, &at, most, sizeof *d->one);
	d->bound = experts_take_bytes(base, &at, bounds, sizeof *d->bound);
	d->term = experts_take_bytes(base, &at, op->nterm, sizeof *d->term);
	return at;
}

/* Counts the rows of the most requested expert. */
static int64_t count_most_rows(const struct tess_view *w)
{
	int64_t most = 0;

	for (int64_t i = 0; i < w->shape[1]; i++) {
		int64_t n = 0;

		for (int64_t t = 0; t < w->shape[0]; t++)
			n += get_row(w, t)[i] != 0.0f;
		most = n > most ? n : most;
	}
	return most;
}

static tess_status sum_one_expert(struct expert_dw *d, int64_t expert)
{
	const struct expert_rows *e = &d->rows;
	const struct tess_op *op = e->op;
	double math = op->nnum > TESS_EXPERTS_DW_MATH ? op->num[TESS_EXPERTS_DW_MATH] : 0;
	tess_status st;

	for (d->n = 0; d->first + d->n < e->total && e->expert[d->first + d->n] == expert;)
		d->n++;
	if (!d->n) {
		clear_expert(e->op, expert);
		return TESS_OK;
	}
	pool_run(e->cpu->pool, gather_rows_of_expert, d, d->n,
	         tess_up(EXPERTS_SHARE, d->k + d->h + 3 * d->f + 1));
	count_rows_before(d);
	st = sum_rows_of_expert(d, 0, d->x, d->k, d->mid, 2 * d->f, math);
	if (!st)
		st = sum_rows_of_expert(d, 1, d->act, d->f, d->g, d->h, math);
	if (!st && op->nout > 2)
		st = sum_rows_of_expert(d, 2, d->one, 1, d->mid, 2 * d->f, 0);
	d->first += d->n;
	return st;
}

#define run_experts_dw CPU_NAME(run_experts_dw)
tess_status run_experts_dw(struct cpu *cpu, const struct tess_op *op)
{
	struct expert_dw d = { .cpu = cpu,
		               .rows = { .cpu = cpu, .op = op },
		               .k = op->in[0].shape[1],
		               .h = op->in[2].shape[1],
		               .f = op->out[1].shape[op->out[1].ndim - 1] };
	int64_t most = count_most_rows(&op->in[1]);
	void *scratch = NULL;
	tess_status st = experts_count_rows(&d.rows, op->in[3].shape[1] / (3 * d.f));

	if (!st)
		st = cpu_get_row_scratch(cpu, lay_out_expert_dw(&d, most, NULL), &scratch);
	if (st)
		return st;
	lay_out_expert_dw(&d, most, scratch);
	experts_list_rows(&d.rows);
	for (int64_t i = 0; i < d.rows.experts && !st; i++)
		st = sum_one_expert(&d, i);
	return st;
}

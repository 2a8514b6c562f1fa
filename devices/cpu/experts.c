/*
 * EXPERTS: rows are grouped by expert, and groups are computed in waves, whose rows of x, of gate
 * and up, and of the result of the activation are in scratch memory. All threads share the panels
 * of all groups of a wave.
 */
#include "combine.h"
#include "elementwise.h"
#include "product.h"

enum { ROWS = 192 }; /* of a wave, and of the largest group */
enum { SMALL = 1 << 16 }; /* products of the smallest share: fewer are not worth a thread */
enum { SMALL_ROWS = 1 << 14 }; /* elements of the smallest share of a copy or an activation */
enum { GATE_UP, DOWN };

struct group { /* rows [first, first + rows) of the list */
	int64_t expert, first, rows;
	bool packed;
};

struct experts {
	const struct cpu *cpu;
	const struct tess_op *op;
	const struct sum *sum[2]; /* over K and over F */
	int64_t tokens, experts, k, f, h, slots;
	int64_t total; /* rows of all experts */
	int32_t *token; /* by row of the list, which is in the order of experts, then of tokens */
	int32_t *expert, *slot; /* of a row: its expert; its index among those of its token */
	int32_t *begin, *row; /* of a token: the first of its `row`, which are rows of the list */
	struct group *group, *wave;
	int64_t ngroups, count, rows; /* groups and rows of the wave */
	float *x, *gate_up, *mid, *z;
	int64_t z_nodes;
	int32_t weight; /* of the current product: GATE_UP, DOWN */
};

/* ---- groups ---------------------------------------------------------------------------------- */

/* Lists the rows of all experts. */
static void list_rows(struct experts *e)
{
	const struct tess_view *w = &e->op->in[1];
	int64_t n = 0;

	e->begin[0] = 0;
	for (int64_t t = 0; t < e->tokens; t++)
		e->begin[t + 1] = e->begin[t] + (int32_t)cpu_count_experts(w, t);
	for (int64_t i = 0; i < e->experts; i++) {
		for (int64_t t = 0; t < e->tokens; t++) {
			if (get_row(w, t)[i] == 0.0f)
				continue;
			e->token[n] = (int32_t)t;
			e->expert[n] = (int32_t)i;
			/* begin[t] moves to the end of its rows, and back below */
			e->row[e->begin[t]++] = (int32_t)n++;
		}
	}
	for (int64_t t = e->tokens; t > 0; t--)
		e->begin[t] = e->begin[t - 1];
	e->begin[0] = 0;
	for (int64_t t = 0; t < e->tokens; t++)
		for (int32_t i = e->begin[t]; i < e->begin[t + 1]; i++)
			e->slot[e->row[i]] = i - e->begin[t];
}

/* The rows of an expert in groups of about the same size. */
static void list_groups(struct experts *e)
{
	int64_t n, left, end;

	e->ngroups = 0;
	for (int64_t first = 0; first < e->total; first = end) {
		for (end = first; end < e->total && e->expert[end] == e->expert[first];)
			end++;
		for (int64_t at = first; at < end; at += n) {
			left = end - at;
			n = tess_up(left, tess_up(left, ROWS));
			e->group[e->ngroups++] =
				(struct group){ e->expert[first], at, n, n > TILE_ROWS };
		}
	}
}

/* ---- the steps of a wave, in shares over its groups ------------------------------------------ */

/* The place of a group's rows among those of the wave. */
static int64_t get_offset(const struct experts *e, const struct group *g)
{
	return g->first - e->wave[0].first;
}

/* Rows of x: in tiles, or one after another. Share: a step of a group. */
static void gather_expert_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct experts *e = arg;
	const struct tess_view *x = &e->op->in[0];

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		const struct group *g = &e->wave[i / e->sum[0]->count];
		const struct sum_step *s = &e->sum[0]->step[i % e->sum[0]->count];
		float *to = e->x + get_offset(e, g) * e->k;

		if (g->packed)
			product_pack(s, x->data, x->stride[0], e->token + g->first, g->rows, to);
		for (int64_t r = 0; r < g->rows && !g->packed; r++)
			memcpy(to + r * e->k + s->at, get_row(x, e->token[g->first + r]) + s->at,
			       sizeof(float) * (size_t)s->len);
	}
}

static struct product make_group_product(const struct experts *e, const struct group *g)
{
	int64_t at = get_offset(e, g);
	struct product p = { .sum = e->sum[e->weight],
		             .w = get_matrix(&e->op->in[2 + e->weight], g->expert),
		             .rows = g->rows,
		             .packed = g->packed,
		             .wide = product_choose_wide(g->rows) };

	if (e->weight == GATE_UP) {
		p.x = e->x + at * e->k;
		p.pitch = e->k;
		p.y = e->gate_up + at * 2 * e->f;
		p.y_pitch = 2 * e->f;
		return p;
	}
	p.x = g->packed ? e->mid + at * e->f : e->gate_up + at * 2 * e->f;
	p.pitch = 2 * e->f;
	p.y = e->z + (e->slots ? at : g->first) * e->h;
	p.y_pitch = e->h;
	p.node_pitch = ROWS * e->h;
	return p;
}

static int64_t count_panel_groups(const struct experts *e, const struct group *g)
{
	return product_count_groups(e->op->in[2 + e->weight].shape[1],
	                            product_choose_wide(g->rows));
}

/* Share: a group of panels of a group. */
static void multiply_experts(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct experts *e = arg;
	float *scratch = cpu_get_thread_scratch(e->cpu, thread);
	int64_t base = 0, n;

	for (const struct group *g = e->wave; g < e->wave + e->count && base < hi; g++, base += n) {
		n = count_panel_groups(e, g);
		if (lo < base + n) {
			struct product p = make_group_product(e, g);

			for (int64_t i = lo > base ? lo - base : 0; i < n && base + i < hi; i++)
				product_multiply(&p, i, scratch);
		}
	}
}

/* act(gate) * up of one tile, packed where the group is. */
static void activate_tile(const struct experts *e, const struct group *g, int64_t row, int64_t n)
{
	float *from = e->gate_up + (get_offset(e, g) + row) * 2 * e->f;
	const struct sum *sum = e->sum[DOWN];

	for (int64_t r = 0; r < n; r++)
		glu_row((int)e->op->num[TESS_EXPERTS_ACTIVATION], from + r * 2 * e->f,
		        from + r * 2 * e->f + e->f, e->f, from + r * 2 * e->f);
	for (const struct sum_step *s = sum->step; s < sum->step + sum->count && g->packed; s++) {
		float *to = e->mid + get_offset(e, g) * e->f + s->before * g->rows + row * s->len;

		for (int64_t k = 0; k < s->len; k++)
			for (int64_t r = 0; r < n; r++)
				*to++ = from[r * 2 * e->f + s->at + k];
	}
}

/* Share: a tile. */
static void activate_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct experts *e = arg;
	int64_t tile = 0, n;

	(void)thread;
	for (const struct group *g = e->wave; g < e->wave + e->count && tile < hi; g++) {
		for (int64_t r = 0; r < g->rows && tile < hi; r += n, tile++) {
			n = product_choose_tile_rows(g->rows - r);
			if (tile >= lo)
				activate_tile(e, g, r, n);
		}
	}
}

/* Each row to its slot. Share: a row of the wave. */
static void store_slots(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct experts *e = arg;
	const struct tess_view *y = &e->op->out[0];

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		int64_t row = e->wave[0].first + i;
		float *to = (float *)y->data + e->token[row] * y->stride[y->ndim - 2] +
		            e->slot[row] * e->h;

		for (int64_t node = 0; node < e->z_nodes; node++)
			memcpy(to + node * (y->ndim == 3 ? y->stride[0] : 0),
			       e->z + (node * ROWS + i) * e->h, sizeof(float) * (size_t)e->h);
	}
}

/* ---- the whole op ---------------------------------------------------------------------------- */

/* Slots that no expert fills. Share: a row. */
static void clear_slots(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct experts *e = arg;
	const struct tess_view *y = &e->op->out[0];

	(void)thread;
	for (int64_t t = lo; t < hi; t++) {
		int64_t used = (e->begin[t + 1] - e->begin[t]) * e->h;

		for (int64_t node = 0; node < (y->ndim == 3 ? y->shape[0] : 1); node++)
			memset((float *)y->data + node * (y->ndim == 3 ? y->stride[0] : 0) +
			               t * y->stride[y->ndim - 2] + used,
			       0, sizeof(float) * (size_t)(e->slots * e->h - used));
	}
}

/* Share: a row. */
static void add_experts(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct experts *e = arg;
	struct leaf *leaf = cpu_get_thread_scratch(e->cpu, thread);

	for (int64_t t = lo; t < hi; t++) {
		int64_t n = e->begin[t + 1] - e->begin[t];

		for (int64_t i = 0; i < n; i++) {
			int64_t row = e->row[e->begin[t] + i], expert = e->expert[row];

			leaf[i] = (struct leaf){ e->z + row * e->h, e->op->tree[2].lo + expert,
				                 get_row(&e->op->in[1], t)[expert], 0 };
		}
		combine_leaves(e->op, leaf, n, t);
	}
}

/* From group `at` on, as many as fit; returns the next. */
static int64_t choose_wave(struct experts *e, int64_t at, int64_t *tiles)
{
	e->wave = &e->group[at];
	e->rows = e->count = *tiles = 0;
	while (at < e->ngroups && (!e->count || e->rows + e->group[at].rows <= ROWS)) {
		e->rows += e->group[at].rows;
		*tiles += tess_up(e->group[at].rows, TILE_ROWS);
		e->count++;
		at++;
	}
	return at;
}

static void multiply_wave(struct experts *e, int32_t weight)
{
	int64_t shares = 0, most = 0;

	e->weight = weight;
	for (int64_t i = 0; i < e->count; i++) {
		shares += count_panel_groups(e, &e->wave[i]);
		most = e->wave[i].rows > most ? e->wave[i].rows : most;
	}
	pool_run(e->cpu->pool, multiply_experts, e, shares,
	         tess_up(SMALL, most * product_choose_wide(most) * LANES *
	                                (e->sum[weight]->elements + 1)));
}

static void run_waves(struct experts *e)
{
	struct pool *pool = e->cpu->pool;
	int64_t tiles;

	for (int64_t at = 0; at < e->ngroups;) {
		at = choose_wave(e, at, &tiles);
		pool_run(pool, gather_expert_rows, e, e->count * e->sum[0]->count,
		         tess_up(SMALL_ROWS, e->rows / e->count * LEAF));
		multiply_wave(e, GATE_UP);
		pool_run(pool, activate_rows, e, tiles,
		         tess_up(SMALL_ROWS, e->rows / tiles * e->f + 1));
		multiply_wave(e, DOWN);
		if (e->slots)
			pool_run(pool, store_slots, e, e->rows, tess_up(SMALL_ROWS, e->h + 1));
	}
}

static void *take_bytes(char *base, size_t *at, int64_t count, size_t each)
{
	void *p = base ? base + *at : NULL;

	*at += ((size_t)count * each + 63) / 64 * 64;
	return p;
}

/* Sets e's pointers into `base`, if that is not NULL; returns the bytes that they need. */
static size_t lay_out(struct experts *e, char *base)
{
	int64_t rows = e->total < ROWS ? e->total : ROWS;
	size_t at = 0;

	e->token = take_bytes(base, &at, e->total, sizeof *e->token);
	e->expert = take_bytes(base, &at, e->total, sizeof *e->expert);
	e->slot = take_bytes(base, &at, e->total, sizeof *e->slot);
	e->row = take_bytes(base, &at, e->total, sizeof *e->row);
	e->begin = take_bytes(base, &at, e->tokens + 1, sizeof *e->begin);
	e->group = take_bytes(base, &at, e->experts + tess_up(e->total, ROWS), sizeof *e->group);
	e->x = take_bytes(base, &at, rows * e->k, sizeof *e->x);
	e->gate_up = take_bytes(base, &at, rows * 2 * e->f, sizeof *e->gate_up);
	e->mid = take_bytes(base, &at, rows * e->f, sizeof *e->mid);
	e->z = take_bytes(base, &at, (e->slots ? e->z_nodes * ROWS : e->total) * e->h,
	                  sizeof *e->z);
	return at;
}

static tess_status prepare_experts(struct cpu *cpu, struct experts *e)
{
	bool apart = e->slots && e->op->out[0].ndim == 3;
	int64_t floats, leaves = e->experts * (int64_t)sizeof(struct leaf);
	void *scratch = NULL;
	tess_status st = cpu_plan_tree(&cpu->sum, e->op, 0, false, LEAF);

	if (!st)
		st = cpu_plan_tree(&cpu->second, e->op, 1, apart, LEAF);
	if (st)
		return st;
	e->sum[GATE_UP] = &cpu->sum;
	e->sum[DOWN] = &cpu->second;
	e->z_nodes = cpu->second.nodes;
	for (int64_t t = 0; t < e->tokens; t++) {
		int64_t n = cpu_count_experts(&e->op->in[1], t);

		if (e->slots && n > e->slots)
			return cpu_fail_slots(e->op, n, e->slots);
		e->total += n;
	}
	floats = product_count_scratch(e->sum[0], ROWS);
	if (floats < product_count_scratch(e->sum[1], ROWS))
		floats = product_count_scratch(e->sum[1], ROWS);
	floats *= (int64_t)sizeof(float);
	st = cpu_grow_thread_scratch(cpu, (size_t)(floats > leaves ? floats : leaves));
	if (!st)
		st = cpu_get_shared_scratch(cpu, lay_out(e, NULL), &scratch);
	if (!st)
		lay_out(e, scratch);
	return st;
}

#define run_experts CPU_NAME(run_experts)
tess_status run_experts(struct cpu *cpu, const struct tess_op *op)
{
	struct experts e = { .cpu = cpu,
		             .op = op,
		             .tokens = op->in[0].shape[0],
		             .experts = op->in[1].shape[1],
		             .k = op->in[0].shape[1],
		             .f = op->in[3].shape[2],
		             .h = op->in[3].shape[1],
		             .slots = (int64_t)op->num[TESS_EXPERTS_SLOTS] };
	tess_status st = prepare_experts(cpu, &e);

	if (st)
		return st;
	list_rows(&e);
	list_groups(&e);
	run_waves(&e);
	if (e.slots)
		pool_run(cpu->pool, clear_slots, &e, e.tokens, tess_up(SMALL_ROWS, e.h + 1));
	else
		pool_run(cpu->pool, add_experts, &e, e.tokens, tess_up(SMALL_ROWS, e.h + 1));
	return TESS_OK;
}

/*
 * experts_rows.c - groups rows by expert and multiplies groups in waves. All threads share the
 * panels of all groups of a wave.
 */
#include "experts_rows.h"

enum { SMALL = 1 << 16 }; /* products of the smallest share: fewer are not worth a thread */

/* ---- groups ---------------------------------------------------------------------------------- */

tess_status experts_count_rows(struct expert_rows *e, int64_t slots)
{
	const struct tess_view *w = &e->op->in[1];

	e->tokens = w->shape[0];
	e->experts = w->shape[1];
	for (int64_t t = 0; t < e->tokens; t++) {
		int64_t n = cpu_count_experts(w, t);

		if (slots && n > slots)
			return cpu_fail_slots(e->op, n, slots);
		e->total += n;
	}
	return TESS_OK;
}

void experts_lay_out_rows(struct expert_rows *e, char *base, size_t *at)
{
	e->token = experts_take_bytes(base, at, e->total, sizeof *e->token);
	e->expert = experts_take_bytes(base, at, e->total, sizeof *e->expert);
	e->slot = experts_take_bytes(base, at, e->total, sizeof *e->slot);
	e->row = experts_take_bytes(base, at, e->total, sizeof *e->row);
	e->begin = experts_take_bytes(base, at, e->tokens + 1, sizeof *e->begin);
	e->group = experts_take_bytes(base, at, e->experts + tess_up(e->total, EXPERTS_ROWS),
	                              sizeof *e->group);
}

/* Divides the rows of each expert evenly into groups. */
static void list_groups(struct expert_rows *e)
{
	int64_t n, left, end;

	e->ngroups = 0;
	for (int64_t first = 0; first < e->total; first = end) {
		for (end = first; end < e->total && e->expert[end] == e->expert[first];)
			end++;
		for (int64_t at = first; at < end; at += n) {
			left = end - at;
			n = tess_up(left, tess_up(left, EXPERTS_ROWS));
			e->group[e->ngroups++] = (struct group){ e->expert[first], at, n,
				                                 n > TILE_ROWS || e->pairs };
		}
	}
}

void experts_list_rows(struct expert_rows *e)
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
			/* begin[t] moves to the end of its rows, and is reset below */
			e->row[e->begin[t]++] = (int32_t)n++;
		}
	}
	for (int64_t t = e->tokens; t > 0; t--)
		e->begin[t] = e->begin[t - 1];
	e->begin[0] = 0;
	for (int64_t t = 0; t < e->tokens; t++)
		for (int32_t i = e->begin[t]; i < e->begin[t + 1]; i++)
			e->slot[e->row[i]] = i - e->begin[t];
	list_groups(e);
}

int64_t experts_choose_wave(struct expert_rows *e, int64_t at)
{
	e->wave = &e->group[at];
	e->rows = e->count = e->tiles = 0;
	while (at < e->ngroups && (!e->count || e->rows + e->group[at].rows <= EXPERTS_ROWS)) {
		e->rows += e->group[at].rows;
		e->tiles += tess_up(e->group[at].rows, TILE_ROWS);
		e->count++;
		at++;
	}
	return at;
}

/* ---- the steps of a wave, in shares over its groups ------------------------------------------ */

struct gather {
	const struct expert_rows *e;
	const struct sum *sum;
	const struct tess_view *from;
	float *to;
};

/* Gathers rows, in tiles or in order; a share is a step of a group. */
static void gather_expert_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct gather *a = arg;
	const struct expert_rows *e = a->e;
	const struct tess_view *x = a->from;
	int64_t width = x->shape[1];

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		const struct group *g = &e->wave[i / a->sum->count];
		const struct sum_step *s = &a->sum->step[i % a->sum->count];
		float *to = a->to + experts_get_offset(e, g) * width;

		if (e->pairs)
			pairs_pack(s, x->data, x->stride[0], e->token + g->first, g->rows,
			           (uint32_t *)to);
		else if (g->packed)
			product_pack(s, x->data, x->stride[0], e->token + g->first, g->rows, to);
		for (int64_t r = 0; r < g->rows && !g->packed; r++)
			memcpy(to + r * width + s->at, get_row(x, e->token[g->first + r]) + s->at,
			       sizeof(float) * (size_t)s->len);
	}
}

void experts_gather(const struct expert_rows *e, const struct sum *sum,
                    const struct tess_view *from, float *to)
{
	struct gather a = { e, sum, from, to };

	pool_run(e->cpu->pool, gather_expert_rows, &a, e->count * sum->count,
	         tess_up(EXPERTS_SHARE, e->rows / e->count * LEAF));
}

void experts_pack_tile(const struct expert_rows *e, const struct group *g, const struct sum *sum,
                       const float *from, int64_t pitch, int64_t row, int64_t n, float *to,
                       int64_t width)
{
	const float *rows[TILE_ROWS];

	to += experts_get_offset(e, g) * width;
	for (const struct sum_step *s = sum->step; s < sum->step + sum->count && e->pairs; s++) {
		for (int64_t r = 0; r < n; r++)
			rows[r] = from + r * pitch + s->at;
		pairs_pack_tile(rows, n, s->len,
		                (uint32_t *)to + s->pairs * g->rows + row * tess_up(s->len, 2));
	}
	for (const struct sum_step *s = sum->step; s < sum->step + sum->count && !e->pairs; s++) {
		float *at = to + s->before * g->rows + row * s->len;

		for (int64_t k = 0; k < s->len; k++)
			for (int64_t r = 0; r < n; r++)
				*at++ = from[r * pitch + s->at + k];
	}
}

struct tiles {
	const struct expert_rows *e;
	expert_tile *fn;
	void *arg;
};

/* Runs tiles [lo, hi). */
static void run_expert_tiles(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct tiles *a = arg;
	const struct expert_rows *e = a->e;
	int64_t tile = 0, n;

	(void)thread;
	for (const struct group *g = e->wave; g < e->wave + e->count && tile < hi; g++) {
		for (int64_t r = 0; r < g->rows && tile < hi; r += n, tile++) {
			n = product_choose_tile_rows(g->rows - r);
			if (tile >= lo)
				a->fn(a->arg, g, r, n);
		}
	}
}

void experts_run_tiles(const struct expert_rows *e, expert_tile *fn, void *arg, int64_t columns)
{
	struct tiles a = { e, fn, arg };

	pool_run(e->cpu->pool, run_expert_tiles, &a, e->tiles,
	         tess_up(EXPERTS_SHARE, e->rows / e->tiles * columns + 1));
}

static int32_t choose_wide(const struct expert_rows *e, int64_t rows)
{
	return e->pairs ? PAIRS_WIDE : product_choose_wide(rows);
}

static int64_t count_panel_groups(const struct expert_product *p, const struct group *g)
{
	return product_count_groups(p->w->shape[1], choose_wide(p->e, g->rows));
}

static struct product make_group_product(const struct expert_product *p, const struct group *g)
{
	int64_t at = experts_get_offset(p->e, g);

	return (struct product){ .sum = p->sum,
		                 .w = get_matrix(p->w, g->expert),
		                 .x = g->packed ? p->packed + at * p->width : p->x + at * p->pitch,
		                 .pitch = p->pitch,
		                 .rows = g->rows,
		                 .packed = g->packed,
		                 .pairs = p->e->pairs,
		                 .y = p->y + at * p->y_pitch,
		                 .y_pitch = p->y_pitch,
		                 .node_pitch = p->node_pitch,
		                 .wide = choose_wide(p->e, g->rows) };
}

/* Multiplies; a share is a group of panels and a group of rows. */
static void multiply_experts(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct expert_product *a = arg;
	const struct expert_rows *e = a->e;
	float *scratch = cpu_get_thread_scratch(e->cpu, thread);
	int64_t base = 0, n;

	for (const struct group *g = e->wave; g < e->wave + e->count && base < hi; g++, base += n) {
		n = count_panel_groups(a, g);
		if (lo < base + n) {
			struct product p = make_group_product(a, g);

			for (int64_t i = lo > base ? lo - base : 0; i < n && base + i < hi; i++)
				product_multiply(&p, i, scratch);
		}
	}
}

void experts_multiply(const struct expert_product *p)
{
	const struct expert_rows *e = p->e;
	struct expert_product arg = *p;
	int64_t shares = 0, most = 0;

	for (int64_t i = 0; i < e->count; i++) {
		shares += count_panel_groups(p, &e->wave[i]);
		most = e->wave[i].rows > most ? e->wave[i].rows : most;
	}
	pool_run(e->cpu->pool, multiply_experts, &arg, shares,
	         tess_up(SMALL, most * choose_wide(e, most) * LANES * (p->sum->elements + 1)));
}

void experts_add_bias(const struct tess_op *op, int32_t bias, int64_t expert, float *gate_up)
{
	const struct tess_view *b = op->nin > bias ? &op->in[bias] : NULL;

	for (int64_t i = 0; b && i < b->shape[1]; i++)
		gate_up[i] = gate_up[i] +
		             load_weight_element(b->data, b->dtype, expert * b->stride[0] + i);
}

/* ---- slots ----------------------------------------------------------------------------------- */

struct slots {
	const struct expert_rows *e;
	const float *z;
	int64_t slots, columns;
};

/* Copies rows [lo, hi) of the wave to their slots. */
static void store_slots(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct slots *a = arg;
	const struct expert_rows *e = a->e;
	const struct tess_view *y = &e->op->out[0];
	int64_t nodes = y->ndim == 3 ? y->shape[0] : 1;

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		int64_t row = e->wave[0].first + i;
		float *to = (float *)y->data + e->token[row] * y->stride[y->ndim - 2] +
		            e->slot[row] * a->columns;

		for (int64_t node = 0; node < nodes; node++)
			memcpy(to + node * (y->ndim == 3 ? y->stride[0] : 0),
			       a->z + (node * EXPERTS_ROWS + i) * a->columns,
			       sizeof(float) * (size_t)a->columns);
	}
}

void experts_store_slots(const struct expert_rows *e, const float *z, int64_t columns)
{
	struct slots a = { e, z, 0, columns };

	pool_run(e->cpu->pool, store_slots, &a, e->rows, tess_up(EXPERTS_SHARE, columns + 1));
}

/* Clears the unused slots of rows [lo, hi). */
static void clear_slots(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct slots *a = arg;
	const struct expert_rows *e = a->e;
	const struct tess_view *y = &e->op->out[0];

	(void)thread;
	for (int64_t t = lo; t < hi; t++) {
		int64_t used = (e->begin[t + 1] - e->begin[t]) * a->columns;

		for (int64_t node = 0; node < (y->ndim == 3 ? y->shape[0] : 1); node++)
			memset((float *)y->data + node * (y->ndim == 3 ? y->stride[0] : 0) +
			               t * y->stride[y->ndim - 2] + used,
			       0, sizeof(float) * (size_t)(a->slots * a->columns - used));
	}
}

void experts_clear_slots(const struct expert_rows *e, int64_t slots, int64_t columns)
{
	struct slots a = { e, NULL, slots, columns };

	pool_run(e->cpu->pool, clear_slots, &a, e->tokens, tess_up(EXPERTS_SHARE, columns + 1));
}

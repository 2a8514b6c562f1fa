/*
 * ATTENTION: two passes over the keys, one tile of queries at a time. The rows of a tile are tokens
 * of one head, or heads of one token that share their keys, whichever fills the tiles of a slot
 * better. No tile has tokens of two slots.
 */
#include "attention.h"

#include <math.h>

#include "mathf.h"

void attention_store_head(const struct attention *a, char *to, int64_t step, const float *x,
                          int64_t n)
{
	if (a->dtype == TESS_F32)
		for (int64_t i = 0; i < n; i++)
			((float *)to)[i * step] = x[i];
	else
		for (int64_t i = 0; i < n; i++)
			((uint16_t *)to)[i * step] = tess_bf16_round(x[i]);
}

/* Stores k and v of the local key-value heads [lo, hi) in the cache. */
static void append_kv_cache(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct attention *a = arg;
	const int32_t *position = a->op->in[3].data;

	(void)thread;
	for (int64_t i = 0; i < a->nlist; i++) {
		const struct slot_rows *of = &a->list[i];

		for (int64_t t = of->row; t < of->row + of->rows; t++) {
			int64_t u = position[t] / KEYS, at = position[t] % KEYS;

			for (int64_t g = lo; g < hi; g++) {
				char *k = get_cached_block(a, of, u, a->keys, g, a->d),
				     *v = get_cached_block(a, of, u, a->values, g, a->value);

				attention_store_head(a, k + at * a->width, KEYS,
				                     get_row(&a->op->in[1], t) + g * a->d, a->d);
				attention_store_head(a, v + at * a->value * a->width, 1,
				                     get_row(&a->op->in[2], t) + g * a->value,
				                     a->value);
			}
		}
	}
}

/* Scores: q . k * scale of all rows and keys. */
static void compute_scores(const struct attention *a, const struct tile *t)
{
	struct sum_step step = { .len = (int32_t)a->d, .fresh = 1 };
	int panels = tile_get_wide_panels((int)t->rows);
	tile_fn *multiply = tile_find(a->dtype, false, (int)t->rows, panels > 1);
	const float *q = get_row(&a->op->in[0], get_tile_token(t, 0)) + get_tile_head(t, 0) * a->d;
	int64_t q_pitch = t->of->by_heads ? a->d : a->op->in[0].stride[0];
	const char *k;

	for (int64_t u = t->lo; u < t->hi; u++) {
		k = get_cached_block(a, t->of, u, a->keys, t->kv, a->d);
		for (int64_t j = 0; j < KEYS; j += panels * LANES) {
			multiply(q, q_pitch, k + j * a->width, KEYS * a->width, LANES * a->width,
			         t->scratch, 0, &step);
			for (int64_t r = 0; r < t->rows; r++)
				for (int64_t i = 0; i < panels * LANES; i++)
					t->score[r * a->pitch + (u - t->lo) * KEYS + j + i] =
						t->scratch[r * panels * LANES + i] * a->scale;
		}
	}
}

static void fill_floats(float *x, int64_t lo, int64_t hi, float value)
{
	for (int64_t i = lo; i < hi; i++)
		x[i] = value;
}

static float find_max(const float *x, int64_t n)
{
	float lane[LANES], m = -INFINITY;

	fill_floats(lane, 0, LANES, -INFINITY);
	for (int64_t i = 0; i < n; i += LANES)
		for (int l = 0; l < LANES; l++)
			lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
	for (int l = 0; l < LANES; l++)
		m = lane[l] > m ? lane[l] : m;
	return m;
}

/*
 * The finished sum of n units from `first` on, as parallel chains of additions. They start at +0
 * and add no negative term, so no sum is -0, and the + 0.0f of a finished sum can be left out.
 */
static float sum_key_units(const float *x, int64_t first, int64_t n)
{
	enum { CHAINS = 8 };
	float level[KEY_LEVELS], leaf[CHAINS], at;
	int64_t depth = 0;
	int chains;

	for (int64_t u = 0; u < n; u += chains) {
		chains = n - u < CHAINS ? (int)(n - u) : CHAINS;
		fill_floats(leaf, 0, CHAINS, 0.0f);
		if (chains == CHAINS)
			for (int i = 0; i < KEYS; i++)
				for (int c = 0; c < CHAINS; c++)
					leaf[c] += x[(u + c) * KEYS + i];
		else
			for (int c = 0; c < chains; c++)
				for (int i = 0; i < KEYS; i++)
					leaf[c] += x[(u + c) * KEYS + i];
		for (int c = 0; c < chains; c++) {
			at = leaf[c];
			for (int m = sum_count_merges(first, first + u + c); m; m--)
				at = level[--depth] + at;
			level[depth++] = at;
		}
	}
	for (at = level[--depth]; depth;)
		at = level[--depth] + at;
	return at;
}

/* A masked key has e = +0, which adds nothing. */
void attention_apply_softmax(const struct attention *a, const struct tile *t)
{
	const int32_t *position = a->op->in[3].data, *slot = a->op->in[4].data;
	int64_t n = (t->hi - t->lo) * KEYS, first, end, token;
	float *z, m, s;

	for (int64_t r = 0; r < t->rows; r++) {
		z = t->score + r * a->pitch;
		first = t->first[r] - t->lo * KEYS;
		end = t->end[r] - t->lo * KEYS;
		if (a->softcap > 0) {
			CPU_LANES
			for (int64_t i = 0; i < n; i++)
				z[i] = a->softcap * mathf_tanh(z[i] / a->softcap);
		}
		fill_floats(z, 0, first, -INFINITY);
		fill_floats(z, end, n, -INFINITY);
		m = find_max(z, n);
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			z[i] = mathf_exp(z[i] - m);
		s = sum_key_units(z, t->lo, t->hi - t->lo);
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			z[i] = z[i] / s;
		token = get_tile_token(t, r);
		if (a->drop.below)
			dropout_apply(&a->drop, position[token], slot[token],
			              a->site + get_tile_head(t, r), t->lo * KEYS, n, z, z);
	}
}

struct weighted_sum { /* weights times values, for one tile */
	const struct attention *a;
	const struct tile *t;
	tile_fn *multiply_rows, *multiply_row; /* all rows together, and one row */
	int panels;
	int64_t from, to; /* elements of the out */
	int64_t level_pitch, group_pitch; /* floats between levels, and between groups of panels */
	char *padded; /* [64][16]: values after the last whole panel */
};

/*
 * One step of the sum of weight * value over positions [from, to) of unit u, for the rows from r
 * on.
 */
static void add_weighted_run(const struct weighted_sum *m, tile_fn *multiply, int64_t r, int64_t u,
                             int64_t from, int64_t to, struct sum_step step)
{
	const struct attention *a = m->a;
	int64_t columns = m->panels * LANES, width = a->width, bk = a->value_step * width;
	const char *v = get_cached_block(a, m->t->of, u, a->values, m->t->kv, a->value_step) +
	                (from - u * KEYS) * bk;
	const float *w = m->t->score + r * a->pitch + from - m->t->lo * KEYS;
	float *slots = m->t->scratch + r * columns;

	step.len = (int32_t)(to - from);
	for (int64_t j = m->from; j < m->to; j += columns, slots += m->group_pitch) {
		if (j + columns <= m->to) {
			multiply(w, a->pitch, v + j * width, bk, LANES * width, slots,
			         m->level_pitch, &step);
			continue;
		}
		for (int64_t k = 0; k < to - from; k++)
			memcpy(m->padded + k * LANES * width, v + k * bk + j * width,
			       (size_t)((m->to - j) * width));
		multiply(w, a->pitch, m->padded, LANES * width, 0, slots, m->level_pitch, &step);
	}
}

/*
 * One unit. The rows go together over the keys that all of them see, and one by one over the few
 * before and after. A row that sees no key gets a leaf of +0, which changes no sum.
 */
static void add_weighted_unit(const struct weighted_sum *m, int64_t u, struct sum_step step)
{
	const struct tile *t = m->t;
	int64_t from[TILE_ROWS], to[TILE_ROWS], lo = u * KEYS, hi = lo + KEYS;
	int64_t shared_lo = lo, shared_hi = hi;
	struct sum_step part = { .level = step.level, .fresh = 1 };
	bool same = true;

	for (int64_t r = 0; r < t->rows; r++) {
		from[r] = t->first[r] < lo ? lo : t->first[r] > hi ? hi : t->first[r];
		to[r] = t->end[r] > hi ? hi : t->end[r] < from[r] ? from[r] : t->end[r];
		shared_lo = from[r] > shared_lo ? from[r] : shared_lo;
		shared_hi = to[r] < shared_hi ? to[r] : shared_hi;
		same = same && from[r] == from[0] && to[r] == to[0];
	}
	if (same) {
		step.fresh = 1;
		add_weighted_run(m, m->multiply_rows, 0, u, from[0], to[0], step);
		return;
	}
	if (shared_lo >= shared_hi)
		shared_lo = shared_hi = hi;
	for (int64_t r = 0; r < t->rows; r++)
		add_weighted_run(m, m->multiply_row, r, u, from[r],
		                 to[r] < shared_lo ? to[r] : shared_lo, part);
	part.fresh = 0;
	add_weighted_run(m, m->multiply_rows, 0, u, shared_lo, shared_hi, part);
	for (int64_t r = 0; r < t->rows; r++)
		if (to[r] > shared_hi)
			add_weighted_run(m, m->multiply_row, r, u, shared_hi, to[r], part);
	add_weighted_run(m, m->multiply_rows, 0, u, hi, hi, step);
}

/* Copies the finished rows at level 0 to the out. */
static void copy_out_rows(const struct weighted_sum *m)
{
	const struct tile *t = m->t;
	int64_t columns = m->panels * LANES, n;
	const float *from;
	float *to;

	for (int64_t r = 0; r < t->rows; r++) {
		to = get_row(&m->a->op->out[0], get_tile_token(t, r)) +
		     get_tile_head(t, r) * m->a->value;
		from = t->scratch + r * columns;
		for (int64_t j = m->from; j < m->to; j += columns, from += m->group_pitch) {
			n = m->to - j < columns ? m->to - j : columns;
			memcpy(to + j, from, sizeof *from * (size_t)n);
		}
	}
}

static struct weighted_sum make_weighted_sum(const struct attention *a, const struct tile *t,
                                             int64_t from, int64_t to)
{
	int wide = tile_get_wide_panels((int)t->rows);
	bool fits = wide == TILE_WIDE_1 && (to - from) % (wide * LANES) == 0;
	struct weighted_sum m = {
		.a = a, .t = t, .panels = fits ? wide : 1, .from = from, .to = to
	};

	m.multiply_rows = tile_find(a->dtype, false, (int)t->rows, fits);
	m.multiply_row = tile_find(a->dtype, false, 1, fits);
	m.level_pitch = t->rows * m.panels * LANES;
	m.group_pitch = m.level_pitch * KEY_LEVELS;
	m.padded = (char *)(t->scratch + m.group_pitch * tess_up(to - from, m.panels * LANES));
	return m;
}

void attention_sum_values(const struct attention *a, const struct tile *t, int64_t n, int64_t from,
                          int64_t to)
{
	struct weighted_sum m[BLOCK_TILES];
	struct sum_step step = { .node = -1 };
	int64_t merges, depth = 0;

	for (int64_t i = 0; i < n; i++)
		m[i] = make_weighted_sum(a, &t[i], from, to);
	for (int64_t u = t->lo; u < t->hi; u++) {
		merges = u + 1 < t->hi ? sum_count_merges(t->lo, u) : depth;
		step.level = (int16_t)depth;
		step.merge = (int16_t)merges;
		step.finish = u + 1 == t->hi;
		for (int64_t i = 0; i < n; i++)
			add_weighted_unit(&m[i], u, step);
		depth += 1 - merges;
	}
	for (int64_t i = 0; i < n; i++)
		copy_out_rows(&m[i]);
}

/* The rows that task i is part of: the last ones that begin at it or before. */
static const struct slot_rows *find_slot_rows(const struct attention *a, int64_t i)
{
	int64_t lo = 0, hi = a->nlist;

	while (hi - lo > 1) {
		int64_t middle = lo + (hi - lo) / 2;

		if (a->list[middle].first_task <= i)
			lo = middle;
		else
			hi = middle;
	}
	return &a->list[lo];
}

void attention_see_keys(const struct attention *a, struct tile *t)
{
	const int32_t *position = a->op->in[3].data;
	int64_t p;

	for (int64_t r = 0; r < t->rows; r++) {
		p = position[get_tile_token(t, r)];
		t->first[r] = get_first_key(a, p);
		t->end[r] = p + 1;
	}
	t->lo = t->first[0] / KEYS; /* positions increase */
	t->hi = tess_up(t->end[t->rows - 1], KEYS);
}

/* Sets up the tile of task `i`; false if it is empty. */
static bool load_tile(const struct attention *a, int64_t i, struct tile *t)
{
	const struct slot_rows *of = find_slot_rows(a, i);
	int64_t outer = (i - of->first_task) / of->tiles, left;

	t->of = of;
	t->at = (i - of->first_task) % of->tiles * of->tile_rows;
	if (of->by_heads) { /* outer: key-value head by token */
		t->kv = outer % a->kv;
		t->token = of->row + outer / a->kv;
		t->head = find_first_head(a, t->kv);
		t->share = find_end_head(a, t->kv) - t->head;
		left = t->share - t->at;
	} else {
		t->head = outer;
		t->kv = (a->lo + t->head) / a->group - a->lo / a->group;
		t->token = of->row;
		t->share = 1;
		left = of->rows - t->at;
	}
	t->rows = left < of->tile_rows ? left : of->tile_rows;
	if (t->rows <= 0)
		return false;
	attention_see_keys(a, t);
	return true;
}

static int64_t count_scores(const struct attention *a)
{
	return TILE_ROWS * a->pitch;
}

static void run_tiles(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct attention *a = arg;
	struct tile t = { .score = cpu_get_thread_scratch(a->cpu, thread) };

	t.scratch = t.score + count_scores(a);
	for (int64_t i = lo; i < hi; i++) {
		if (!load_tile(a, i, &t))
			continue;
		compute_scores(a, &t);
		attention_apply_softmax(a, &t);
		attention_sum_values(a, &t, 1, 0, a->value);
	}
}

/* Chooses the tiles of a slot's rows. */
static void choose_tiles(const struct attention *a, struct slot_rows *of)
{
	int64_t share = a->group < a->heads ? a->group : a->heads;

	of->by_heads = share > of->rows;
	share = of->by_heads ? share : of->rows;
	/* Limits the rows of a tile so that all threads have work. */
	of->tile_rows =
		of->by_heads
			? tess_up(share, tess_up(a->cpu->nthreads, a->kv * a->op->in[0].shape[0]))
			: share;
	of->tile_rows = of->tile_rows < TILE_ROWS ? of->tile_rows : TILE_ROWS;
	of->tiles = tess_up(share, of->tile_rows);
}

static tess_status run_all_tiles(struct attention *a)
{
	int64_t tokens = a->op->in[0].shape[0], tasks = 0, units = 0, floats;
	struct slot_rows *list;
	void *memory;
	tess_status st = cpu_get_shared_scratch(a->cpu, attention_count_list_bytes(a), &memory);

	if (!st)
		st = attention_list_slots(a, memory);
	if (st || !tokens)
		return st;
	list = memory;
	for (int64_t i = 0; i < a->nlist; i++) {
		choose_tiles(a, &list[i]);
		list[i].first_task = tasks;
		tasks += (list[i].by_heads ? a->kv * list[i].rows : a->heads) * list[i].tiles;
		if (attention_count_units(a, &list[i], TILE_ROWS) > units)
			units = attention_count_units(a, &list[i], TILE_ROWS);
	}
	a->pitch = units * KEYS + LANES;
	floats = count_scores(a) + attention_count_scratch(a->value) +
	         TILE_ROWS * TILE_WIDEST * LANES;
	st = cpu_grow_thread_scratch(a->cpu, sizeof(float) * (size_t)floats);
	if (st)
		return st;
	pool_run(a->cpu->pool, append_kv_cache, a, a->kv, tess_up(1 << 14, tokens * a->d));
	pool_run(a->cpu->pool, run_tiles, a, tasks, 1);
	return TESS_OK;
}

#define run_attention CPU_NAME(run_attention)
tess_status run_attention(struct cpu *cpu, const struct tess_op *op)
{
	struct attention a = attention_read(cpu, op);

	return op->in[2].ndim ? run_all_tiles(&a) : attention_run_latent(&a);
}

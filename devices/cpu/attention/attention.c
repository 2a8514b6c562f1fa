/*
 * attention.c - ATTENTION: two passes over the keys, one tile of queries at a time. The rows of a
 * tile are tokens of one head, or heads of one token that share keys, whichever fills the tiles of
 * a slot better. No tile has tokens of two slots.
 */
#include "attention.h"

#include <math.h>

#include "attention_unit.h"
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

/*
 * Returns the block that is read after that of tile i in unit u, at `offset` of a page; after the
 * last tile and unit, that block itself.
 */
static const char *find_next_block(const struct attention *a, const struct tile *t, int64_t n,
                                   int64_t u, int64_t i, int64_t offset, int64_t each)
{
	if (i + 1 < n)
		i++;
	else if (u + 1 < t->hi) {
		i = 0;
		u++;
	}
	return get_cached_block(a, t->of, u, offset, t[i].kv, each);
}

static struct unit_products start_scores(const struct attention *a, const struct tile *t)
{
	return (struct unit_products){
		.a = get_row(&a->op->in[0], get_tile_token(t, 0)) + get_tile_head(t, 0) * a->d,
		.ar = t->of->by_heads ? a->d : a->op->in[0].stride[0],
		.len = a->d,
		.bk = KEYS * a->width,
		.out = t->score,
		.pitch = a->pitch,
		.scale = a->scale,
	};
}

/* Computes the scores q . k * scale of all rows of n tiles, whose keys are in the same units. */
static void compute_scores(const struct attention *a, const struct tile *t, int64_t n)
{
	struct unit_products x[BLOCK_TILES];
	unit_fn *multiply[BLOCK_TILES];
	const char *next = get_cached_block(a, t->of, t->lo, a->keys, t->kv, a->d), *k;
	int64_t step[BLOCK_TILES];

	for (int64_t i = 0; i < n; i++) {
		step[i] = tile_get_wide_panels((int)t[i].rows);
		multiply[i] = attention_find_unit(a->dtype, true, (int)t[i].rows, step[i] > 1);
		x[i] = start_scores(a, &t[i]);
	}
	for (int64_t u = t->lo; u < t->hi; u++) {
		for (int64_t i = 0; i < n; i++) {
			k = next;
			next = find_next_block(a, t, n, u, i, a->keys, a->d);
			x[i].b = k;
			x[i].next = next;
			for (int64_t j = 0; j < KEYS; j += step[i] * LANES) {
				multiply[i](&x[i]);
				x[i].b += step[i] * LANES * a->width;
				x[i].next += step[i] * LANES * a->width;
				x[i].out += step[i] * LANES;
			}
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
 * Returns the finished sum of n units from `first` on, added as parallel chains. They start at +0
 * and add no negative term, so no sum is -0, and the + 0.0f of a finished sum can be omitted.
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

/* Turns scores into weights. A masked key has e = +0, which adds nothing. */
void attention_apply_softmax(const struct attention *a, const struct tile *t)
{
	const int32_t *position = a->op->in[3].data, *slot = a->op->in[4].data;
	int64_t n = (t->hi - t->lo) * KEYS, first, end, token;
	float *z, m, s, sink;

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
		sink = get_sink(a, get_tile_head(t, r));
		m = find_max(z, n);
		m = sink > m ? sink : m;
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			z[i] = mathf_exp(z[i] - m);
		s = sum_key_units(z, t->lo, t->hi - t->lo);
		s = a->sinks ? s + mathf_exp(sink - m) : s;
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
	unit_fn *multiply_unit; /* all rows, and all keys of a unit */
	int panels;
	int64_t from, to; /* elements of the output */
	int64_t level_pitch, group_pitch; /* floats between levels, and between groups of panels */
	char *padded; /* [64][16]: values after the last whole panel */
};

/*
 * Runs one step of the sum of weight * value over positions [from, to) of unit u, for the rows from
 * r on.
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
			         m->level_pitch, &step, &step + 1);
			continue;
		}
		for (int64_t k = 0; k < to - from; k++)
			memcpy(m->padded + k * LANES * width, v + k * bk + j * width,
			       (size_t)((m->to - j) * width));
		multiply(w, a->pitch, m->padded, LANES * width, 0, slots, m->level_pitch, &step,
		         &step + 1);
	}
}

/* Adds unit u for all rows and all keys; false if the columns do not fit. */
static bool add_whole_unit(const struct weighted_sum *m, int64_t u, const char *next,
                           const struct sum_step *step)
{
	const struct attention *a = m->a;
	const struct tile *t = m->t;
	int64_t columns = m->panels * LANES;
	struct unit_products x = {
		.a = t->score + (u - t->lo) * KEYS,
		.ar = a->pitch,
		.len = KEYS,
		.b = get_cached_block(a, t->of, u, a->values, t->kv, a->value_step),
		.bk = a->value_step * a->width,
		.next = next,
		.out = t->scratch,
		.pitch = m->level_pitch,
		.step = step,
	};

	if ((m->to - m->from) % columns)
		return false;
	x.b += m->from * a->width;
	x.next += m->from * a->width;
	for (int64_t j = m->from; j < m->to; j += columns) {
		m->multiply_unit(&x);
		x.b += columns * a->width;
		x.next += columns * a->width;
		x.out += m->group_pitch;
	}
	return true;
}

/*
 * Adds one unit: all rows together over their common keys, and one by one over the few before and
 * after. A row without keys gets a leaf of +0, which changes no sum.
 */
static void add_weighted_unit(const struct weighted_sum *m, int64_t u, const char *next,
                              struct sum_step step)
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
	if (same && to[0] - from[0] == KEYS && add_whole_unit(m, u, next, &step))
		return;
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

/* Copies the finished rows at level 0 to the output. */
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

	m.multiply_rows = tile_find(a->dtype, (int)t->rows, fits);
	m.multiply_row = tile_find(a->dtype, 1, fits);
	m.multiply_unit = attention_find_unit(a->dtype, false, (int)t->rows, fits);
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
			add_weighted_unit(&m[i], u,
			                  find_next_block(a, t, n, u, i, a->values, a->value_step),
			                  step);
		depth += 1 - merges;
	}
	for (int64_t i = 0; i < n; i++)
		copy_out_rows(&m[i]);
}

/* Finds the rows that task i belongs to: the last ones that begin at i or before. */
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

/* Sets up tile `i` of the tasks of a slot from `token` on; false if the tile is empty. */
static bool load_tile(const struct attention *a, const struct slot_rows *of, int64_t token,
                      int64_t i, struct tile *t)
{
	int64_t outer = i / of->tiles, left;

	t->of = of;
	t->token = token;
	t->at = i % of->tiles * of->tile_rows;
	if (of->by_heads) {
		t->kv = outer;
		t->head = find_first_head(a, t->kv);
		t->share = find_end_head(a, t->kv) - t->head;
		left = t->share - t->at;
	} else {
		t->head = outer;
		t->kv = (a->lo + t->head) / a->group - a->lo / a->group;
		t->share = 1;
		left = of->rows - t->at;
	}
	t->rows = left < of->tile_rows ? left : of->tile_rows;
	if (t->rows <= 0)
		return false;
	attention_see_keys(a, t);
	return true;
}

/* Counts the floats of the scores of a tile, and of its sums. */
static int64_t count_scores(const struct attention *a, const struct slot_rows *of)
{
	return of->tile_rows * a->pitch;
}

/* Sets up the tiles of task `i` in `memory`; returns their number. */
static int64_t load_tiles(const struct attention *a, int64_t i, float *memory, struct tile *t)
{
	const struct slot_rows *of = find_slot_rows(a, i);
	int64_t tasks = tess_up(of->all_tiles, of->together), token, n = 0;

	i -= of->first_task;
	token = of->row + i / tasks;
	i = i % tasks * of->together;
	for (int64_t k = i; k < i + of->together && k < of->all_tiles; k++) {
		t[n].score = memory;
		t[n].scratch = memory + count_scores(a, of);
		if (!load_tile(a, of, token, k, &t[n]))
			continue;
		memory = t[n++].scratch + attention_count_scratch(a->value);
	}
	return n;
}

static void run_tiles(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct attention *a = arg;
	float *memory = cpu_get_thread_scratch(a->cpu, thread);
	struct tile t[BLOCK_TILES];
	int64_t n;

	for (int64_t i = lo; i < hi; i++) {
		n = load_tiles(a, i, memory, t);
		if (!n)
			continue;
		compute_scores(a, t, n);
		for (int64_t k = 0; k < n; k++)
			attention_apply_softmax(a, &t[k]);
		attention_sum_values(a, t, n, 0, a->value);
	}
}

/* Chooses the tiles of a slot's rows, so that all threads have work. */
static void choose_tiles(const struct attention *a, struct slot_rows *of)
{
	int64_t share = a->group < a->heads ? a->group : a->heads, tokens = a->op->in[0].shape[0];
	int64_t threads = tess_up(a->cpu->nthreads, a->kv * tokens), most;

	of->by_heads = share > of->rows;
	share = of->by_heads ? share : of->rows;
	of->tile_rows = of->by_heads ? tess_up(share, threads) : share;
	of->tile_rows = tess_up(of->tile_rows, tess_up(of->tile_rows, TILE_ROWS));
	of->tiles = tess_up(share, of->tile_rows);
	of->all_tiles = (of->by_heads ? a->kv : a->heads) * of->tiles;
	/* heads of several keys walk pages together: longer ranges of memory */
	most = SCORES_MAX / (of->tile_rows * (of->hi - of->lo) * KEYS);
	most = most > BLOCK_TILES ? BLOCK_TILES : most < 1 ? 1 : most;
	of->together = tess_up(of->all_tiles, tess_up(a->cpu->nthreads, a->nlist));
	of->together = tess_up(of->together, tess_up(of->together, most));
	if (!of->by_heads && of->tiles > 1)
		of->together = 1; /* their keys differ */
}

static tess_status run_all_tiles(struct attention *a)
{
	int64_t tokens = a->op->in[0].shape[0], tasks = 0, units = 0, floats = 0, each;
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
		tasks += (list[i].by_heads ? list[i].rows : 1) *
		         tess_up(list[i].all_tiles, list[i].together);
		if (attention_count_units(a, &list[i], TILE_ROWS) > units)
			units = attention_count_units(a, &list[i], TILE_ROWS);
	}
	a->pitch = units * KEYS + LANES;
	for (int64_t i = 0; i < a->nlist; i++) {
		each = list[i].together *
		       (count_scores(a, &list[i]) + attention_count_scratch(a->value));
		floats = each > floats ? each : floats;
	}
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

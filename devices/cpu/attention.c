/*
 * ATTENTION: two passes over the keys, one tile of queries at a time. The rows of a tile are tokens
 * of one head, or heads of one token that share their keys, whichever fills the tile better.
 */
#include <math.h>

#include "mathf.h"
#include "tile.h"

enum { LEVELS = 27 }; /* the tree of KEY_UNITS units */

struct attention {
	const struct cpu *cpu;
	const struct tess_op *op;
	int64_t d, heads, window, lo, group;
	float scale;
	bool by_heads;
	int64_t rows; /* of a full tile */
	int64_t tiles; /* of a head, or of the heads of one key-value head */
	int64_t pitch; /* of a row of scores: all keys of the cache, and LANES more */
};

/* One tile of queries, and the keys that each row sees. */
struct tile {
	int64_t rows, head, kv, row_of_x;
	const float *q;
	int64_t q_pitch;
	int64_t first[TILE_ROWS], end[TILE_ROWS]; /* positions */
	int64_t lo, hi; /* units of keys that any row sees */
	float *score, *scratch; /* [rows][pitch]; memory for the sums */
};

/* Stores k and v of the local key-value heads [lo, hi) in the cache. */
static void append_kv_cache(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct attention *a = arg;
	const struct tess_view *keys = &a->op->in[4], *values = &a->op->in[5];
	const int32_t *position = a->op->in[3].data;

	(void)thread;
	for (int64_t g = lo; g < hi; g++) {
		for (int64_t t = 0; t < a->op->in[0].shape[0]; t++) {
			const float *k = get_row(&a->op->in[1], t) + g * a->d;
			const float *v = get_row(&a->op->in[2], t) + g * a->d;
			int64_t p = position[t];
			float *to = (float *)keys->data + g * keys->stride[0];

			to += p / KEYS * keys->stride[1] + p % KEYS;
			for (int64_t i = 0; i < a->d; i++)
				to[i * KEYS] = k[i];
			to = (float *)values->data + g * values->stride[0] + p * values->stride[1];
			memcpy(to, v, sizeof *v * (size_t)a->d);
		}
	}
}

/* Scores: q . k * scale of all rows and keys. */
static void compute_scores(const struct attention *a, const struct tile *t)
{
	const struct tess_view *keys = &a->op->in[4];
	struct sum_step step = { .len = (int32_t)a->d, .fresh = 1 };
	int panels = tile_get_wide_panels((int)t->rows);
	tile_fn *multiply = tile_find(TESS_F32, false, (int)t->rows, panels > 1);
	const float *k;

	for (int64_t u = t->lo; u < t->hi; u++) {
		k = (const float *)keys->data + t->kv * keys->stride[0] + u * keys->stride[1];
		for (int64_t j = 0; j < KEYS; j += panels * LANES) {
			multiply(t->q, t->q_pitch, k + j, KEYS * sizeof *k, LANES * sizeof *k,
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
	float level[LEVELS], leaf[CHAINS], at;
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

/* Scores become weights. A masked key has e = +0, which adds nothing. */
static void apply_softmax(const struct attention *a, const struct tile *t)
{
	int64_t n = (t->hi - t->lo) * KEYS, first, end;
	float *z, m, s;

	for (int64_t r = 0; r < t->rows; r++) {
		z = t->score + r * a->pitch;
		first = t->first[r] - t->lo * KEYS;
		end = t->end[r] - t->lo * KEYS;
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
	}
}

struct weighted_sum { /* weights times values, for one tile */
	const struct attention *a;
	const struct tile *t;
	tile_fn *multiply_rows, *multiply_row; /* all rows together, and one row */
	int panels;
	int64_t level_pitch, group_pitch; /* floats between levels, and between groups of panels */
	float *padded; /* [64][16]: values after the last whole panel */
};

/* One step of the sum of weight * value over positions [from, to), for the rows from r on. */
static void add_weighted_run(const struct weighted_sum *m, tile_fn *multiply, int64_t r,
                             int64_t from, int64_t to, struct sum_step step)
{
	const struct tess_view *values = &m->a->op->in[5];
	const float *v = (const float *)values->data + m->t->kv * values->stride[0] +
	                 from * values->stride[1];
	const float *w = m->t->score + r * m->a->pitch + from - m->t->lo * KEYS;
	int64_t columns = m->panels * LANES, bk = values->stride[1], d = m->a->d;
	float *slots = m->t->scratch + r * columns;

	step.len = (int32_t)(to - from);
	for (int64_t j = 0; j < d; j += columns, slots += m->group_pitch) {
		if (j + columns <= d) {
			multiply(w, m->a->pitch, v + j, bk * 4, LANES * 4, slots, m->level_pitch,
			         &step);
			continue;
		}
		for (int64_t k = 0; k < to - from; k++)
			memcpy(m->padded + k * LANES, v + k * bk + j, sizeof *v * (size_t)(d - j));
		multiply(w, m->a->pitch, m->padded, LANES * 4, 0, slots, m->level_pitch, &step);
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
		add_weighted_run(m, m->multiply_rows, 0, from[0], to[0], step);
		return;
	}
	if (shared_lo >= shared_hi)
		shared_lo = shared_hi = hi;
	for (int64_t r = 0; r < t->rows; r++)
		add_weighted_run(m, m->multiply_row, r, from[r],
		                 to[r] < shared_lo ? to[r] : shared_lo, part);
	part.fresh = 0;
	add_weighted_run(m, m->multiply_rows, 0, shared_lo, shared_hi, part);
	for (int64_t r = 0; r < t->rows; r++)
		if (to[r] > shared_hi)
			add_weighted_run(m, m->multiply_row, r, shared_hi, to[r], part);
	add_weighted_run(m, m->multiply_rows, 0, hi, hi, step);
}

/* Copies the finished rows at level 0 to the out. */
static void copy_out_rows(const struct weighted_sum *m)
{
	const struct tile *t = m->t;
	int64_t columns = m->panels * LANES, d = m->a->d, row, head, n;
	const float *from;

	for (int64_t r = 0; r < t->rows; r++) {
		row = m->a->by_heads ? t->row_of_x : t->row_of_x + r;
		head = m->a->by_heads ? t->head + r : t->head;
		from = t->scratch + r * columns;
		for (int64_t j = 0; j < d; j += columns, from += m->group_pitch) {
			n = d - j < columns ? d - j : columns;
			memcpy(get_row(&m->a->op->out[0], row) + head * d + j, from,
			       sizeof *from * (size_t)n);
		}
	}
}

static void sum_weighted_values(const struct attention *a, const struct tile *t)
{
	int wide = tile_get_wide_panels((int)t->rows);
	bool fits = wide == TILE_WIDE_1 && a->d % (wide * LANES) == 0;
	struct weighted_sum m = { .a = a, .t = t, .panels = fits ? wide : 1 };
	struct sum_step step = { .node = -1 };
	int64_t merges, depth = 0;

	m.multiply_rows = tile_find(TESS_F32, false, (int)t->rows, fits);
	m.multiply_row = tile_find(TESS_F32, false, 1, fits);
	m.level_pitch = t->rows * m.panels * LANES;
	m.group_pitch = m.level_pitch * LEVELS;
	m.padded = t->scratch + m.group_pitch * tess_up(a->d, m.panels * LANES);
	for (int64_t u = t->lo; u < t->hi; u++) {
		merges = u + 1 < t->hi ? sum_count_merges(t->lo, u) : depth;
		step.level = (int16_t)depth;
		step.merge = (int16_t)merges;
		step.finish = u + 1 == t->hi;
		add_weighted_unit(&m, u, step);
		depth += 1 - merges;
	}
	copy_out_rows(&m);
}

/* Sets up tile `i`; false if it is empty. */
static bool load_tile(const struct attention *a, int64_t i, struct tile *t)
{
	const struct tess_view *q = &a->op->in[0];
	const int32_t *position = a->op->in[3].data;
	int64_t outer = i / a->tiles, at = i % a->tiles * a->rows, head, end, p;

	if (a->by_heads) { /* outer: key-value head by token */
		t->kv = outer % a->op->in[4].shape[0];
		t->row_of_x = outer / a->op->in[4].shape[0];
		head = (a->lo / a->group + t->kv) * a->group - a->lo;
		end = head + a->group < a->heads ? head + a->group : a->heads;
		t->head = (head > 0 ? head : 0) + at;
		t->rows = end - t->head < a->rows ? end - t->head : a->rows;
	} else {
		t->head = outer;
		t->kv = (a->lo + t->head) / a->group - a->lo / a->group;
		t->row_of_x = at;
		t->rows = q->shape[0] - at < a->rows ? q->shape[0] - at : a->rows;
	}
	if (t->rows <= 0)
		return false;
	t->q = get_row(q, t->row_of_x) + t->head * a->d;
	t->q_pitch = a->by_heads ? a->d : q->stride[0];
	for (int64_t r = 0; r < t->rows; r++) {
		p = position[a->by_heads ? t->row_of_x : t->row_of_x + r];
		t->first[r] = a->window && p >= a->window ? p - a->window + 1 : 0;
		t->end[r] = p + 1;
	}
	t->lo = t->first[0] / KEYS; /* positions increase */
	t->hi = tess_up(t->end[t->rows - 1], KEYS);
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
		apply_softmax(a, &t);
		sum_weighted_values(a, &t);
	}
}

static tess_status check_positions(const struct tess_op *op)
{
	const int32_t *position = op->in[3].data;
	int64_t capacity = op->in[4].shape[1] * KEYS;

	for (int64_t t = 0; t < op->in[0].shape[0]; t++)
		if (position[t] < 0 || position[t] >= capacity ||
		    (t && position[t] <= position[t - 1]))
			return cpu_host->fail(
				TESS_EINVAL,
				"%s: cpu: attention: position %d of row "
				"%lld; positions must increase and fit in a cache of %lld",
				op->where, (int)position[t], (long long)t, (long long)capacity);
	return TESS_OK;
}

#define run_attention CPU_NAME(run_attention)
tess_status run_attention(struct cpu *cpu, const struct tess_op *op)
{
	int64_t tokens = op->in[0].shape[0], kv = op->in[4].shape[0],
		d = (int64_t)op->num[TESS_ATTENTION_HEAD];
	struct attention a = {
		.cpu = cpu,
		.op = op,
		.d = d,
		.heads = op->in[0].shape[1] / d,
		.scale = (float)op->num[TESS_ATTENTION_SCALE],
		.window = (int64_t)op->num[TESS_ATTENTION_WINDOW],
		.lo = (int64_t)op->num[TESS_ATTENTION_FIRST],
		.group = (int64_t)op->num[TESS_ATTENTION_GROUP],
		.pitch = op->in[4].shape[1] * KEYS + LANES,
	};
	int64_t share = a.group < a.heads ? a.group : a.heads, tasks, floats;
	tess_status st = check_positions(op);

	if (st || !tokens)
		return st;
	a.by_heads = share > tokens;
	share = a.by_heads ? share : tokens;
	/* Limits the rows of a tile so that all threads have work. */
	a.rows = a.by_heads ? tess_up(share, tess_up(cpu->nthreads, kv * tokens)) : share;
	a.rows = a.rows < TILE_ROWS ? a.rows : TILE_ROWS;
	a.tiles = tess_up(share, a.rows);
	tasks = a.by_heads ? kv * tokens * a.tiles : a.heads * a.tiles;
	floats = count_scores(&a) + TILE_ROWS * LEVELS * tess_up(d, LANES) * LANES + KEYS * LANES +
	         TILE_ROWS * TILE_WIDEST * LANES;
	st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)floats);
	if (st)
		return st;
	pool_run(cpu->pool, append_kv_cache, &a, kv, tess_up(1 << 14, tokens * d));
	pool_run(cpu->pool, run_tiles, &a, tasks, 1);
	return TESS_OK;
}

/*
 * ATTENTION: two passes over the keys, one tile of queries at a time. The rows of a tile are tokens
 * of one head, or heads of one token that share their keys, whichever fills the tiles of a slot
 * better. No tile has tokens of two slots.
 */
#include <math.h>

#include "mathf.h"
#include "tile.h"

enum { LEVELS = 27 }; /* the tree of KEY_UNITS units */

struct slot_rows { /* adjacent rows of one slot */
	int64_t row, rows;
	const int64_t *page; /* addresses of the slot's pages */
	int64_t lo, hi; /* units of keys that they see */
	bool by_heads;
	int64_t tile_rows; /* of a full tile */
	int64_t tiles; /* of a head, or of the heads of one key-value head */
	int64_t first_task;
};

struct attention {
	const struct cpu *cpu;
	const struct tess_op *op;
	int64_t d, heads, kv, window, lo, group;
	float scale, softcap;
	int32_t dtype; /* of the cache */
	int64_t width; /* bytes of its elements */
	int64_t keys, values; /* bytes from the start of a page */
	const struct slot_rows *list;
	int64_t nlist;
	int64_t pitch; /* of a row of scores: the keys that a tile sees, and LANES more */
};

/* One tile of queries, and the keys that each row sees. */
struct tile {
	const struct slot_rows *of;
	int64_t rows, head, kv, row_of_x;
	const float *q;
	int64_t q_pitch;
	int64_t first[TILE_ROWS], end[TILE_ROWS]; /* positions */
	int64_t lo, hi; /* units of keys that any row sees */
	float *score, *scratch; /* [rows][pitch]; memory for the sums */
};

/* The keys or the values (at `offset` of a page) of key-value head g in unit u of a slot. */
static char *get_cached_block(const struct attention *a, const struct slot_rows *of, int64_t u,
                              int64_t offset, int64_t g)
{
	return (char *)(uintptr_t)of->page[u] + offset + g * a->d * KEYS * a->width;
}

/* Stores a head's elements `step` elements apart. */
static void store_head(const struct attention *a, char *to, int64_t step, const float *x)
{
	if (a->dtype == TESS_F32)
		for (int64_t i = 0; i < a->d; i++)
			((float *)to)[i * step] = x[i];
	else
		for (int64_t i = 0; i < a->d; i++)
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
				store_head(a,
				           get_cached_block(a, of, u, a->keys, g) + at * a->width,
				           KEYS, get_row(&a->op->in[1], t) + g * a->d);
				store_head(a,
				           get_cached_block(a, of, u, a->values, g) +
				                   at * a->d * a->width,
				           1, get_row(&a->op->in[2], t) + g * a->d);
			}
		}
	}
}

/* Scores: q . k * scale, capped, of all rows and keys. */
static void compute_scores(const struct attention *a, const struct tile *t)
{
	struct sum_step step = { .len = (int32_t)a->d, .fresh = 1 };
	int panels = tile_get_wide_panels((int)t->rows);
	int64_t n = (t->hi - t->lo) * KEYS;
	tile_fn *multiply = tile_find(a->dtype, false, (int)t->rows, panels > 1);
	const char *k;

	for (int64_t u = t->lo; u < t->hi; u++) {
		k = get_cached_block(a, t->of, u, a->keys, t->kv);
		for (int64_t j = 0; j < KEYS; j += panels * LANES) {
			multiply(t->q, t->q_pitch, k + j * a->width, KEYS * a->width,
			         LANES * a->width, t->scratch, 0, &step);
			for (int64_t r = 0; r < t->rows; r++)
				for (int64_t i = 0; i < panels * LANES; i++)
					t->score[r * a->pitch + (u - t->lo) * KEYS + j + i] =
						t->scratch[r * panels * LANES + i] * a->scale;
		}
	}
	for (int64_t r = 0; r < t->rows && a->softcap > 0; r++) {
		float *z = t->score + r * a->pitch;

		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			z[i] = a->softcap * mathf_tanh(z[i] / a->softcap);
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
	int64_t columns = m->panels * LANES, width = a->width, bk = a->d * width, d = a->d;
	const char *v =
		get_cached_block(a, m->t->of, u, a->values, m->t->kv) + (from - u * KEYS) * bk;
	const float *w = m->t->score + r * a->pitch + from - m->t->lo * KEYS;
	float *slots = m->t->scratch + r * columns;

	step.len = (int32_t)(to - from);
	for (int64_t j = 0; j < d; j += columns, slots += m->group_pitch) {
		if (j + columns <= d) {
			multiply(w, a->pitch, v + j * width, bk, LANES * width, slots,
			         m->level_pitch, &step);
			continue;
		}
		for (int64_t k = 0; k < to - from; k++)
			memcpy(m->padded + k * LANES * width, v + k * bk + j * width,
			       (size_t)((d - j) * width));
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
	int64_t columns = m->panels * LANES, d = m->a->d, row, head, n;
	const float *from;

	for (int64_t r = 0; r < t->rows; r++) {
		row = t->of->by_heads ? t->row_of_x : t->row_of_x + r;
		head = t->of->by_heads ? t->head + r : t->head;
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

	m.multiply_rows = tile_find(a->dtype, false, (int)t->rows, fits);
	m.multiply_row = tile_find(a->dtype, false, 1, fits);
	m.level_pitch = t->rows * m.panels * LANES;
	m.group_pitch = m.level_pitch * LEVELS;
	m.padded = (char *)(t->scratch + m.group_pitch * tess_up(a->d, m.panels * LANES));
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

static int64_t get_first_key(const struct attention *a, int64_t position)
{
	return a->window && position >= a->window ? position - a->window + 1 : 0;
}

/* Sets up the tile of task `i`; false if it is empty. */
static bool load_tile(const struct attention *a, int64_t i, struct tile *t)
{
	const struct slot_rows *of = find_slot_rows(a, i);
	const struct tess_view *q = &a->op->in[0];
	const int32_t *position = a->op->in[3].data;
	int64_t outer = (i - of->first_task) / of->tiles, head, end, p;
	int64_t at = (i - of->first_task) % of->tiles * of->tile_rows;

	t->of = of;
	if (of->by_heads) { /* outer: key-value head by token */
		t->kv = outer % a->kv;
		t->row_of_x = of->row + outer / a->kv;
		head = (a->lo / a->group + t->kv) * a->group - a->lo;
		end = head + a->group < a->heads ? head + a->group : a->heads;
		t->head = (head > 0 ? head : 0) + at;
		t->rows = end - t->head < of->tile_rows ? end - t->head : of->tile_rows;
	} else {
		t->head = outer;
		t->kv = (a->lo + t->head) / a->group - a->lo / a->group;
		t->row_of_x = of->row + at;
		t->rows = of->rows - at < of->tile_rows ? of->rows - at : of->tile_rows;
	}
	if (t->rows <= 0)
		return false;
	t->q = get_row(q, t->row_of_x) + t->head * a->d;
	t->q_pitch = of->by_heads ? a->d : q->stride[0];
	for (int64_t r = 0; r < t->rows; r++) {
		p = position[of->by_heads ? t->row_of_x : t->row_of_x + r];
		t->first[r] = get_first_key(a, p);
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

/* Finds the rows of a slot from row t on, and checks that it has pages for the keys they see. */
static tess_status find_slot_run(const struct attention *a, int64_t t, struct slot_rows *of)
{
	const struct tess_op *op = a->op;
	const struct tess_view *pages = &op->in[5];
	const int32_t *position = op->in[3].data, *slot = op->in[4].data;
	int64_t capacity = pages->shape[1] * KEYS, tokens = op->in[0].shape[0], p = position[t];

	*of = (struct slot_rows){ .row = t };
	for (; t < tokens && slot[t] == slot[of->row]; t++, of->rows++)
		if (slot[t] < 0 || slot[t] >= pages->shape[0] || position[t] < 0 ||
		    position[t] >= capacity || position[t] != p + of->rows)
			return cpu_host->fail(
				TESS_EINVAL,
				"%s: cpu: attention: row %lld: position %d of slot %d; of %lld "
				"slots each has %lld positions, which increase by one",
				op->where, (long long)t, (int)position[t], (int)slot[t],
				(long long)pages->shape[0], (long long)capacity);
	of->page = (const int64_t *)pages->data + slot[of->row] * pages->stride[0];
	of->lo = get_first_key(a, p) / KEYS;
	of->hi = (p + of->rows - 1) / KEYS + 1;
	for (int64_t u = of->lo; u < of->hi; u++)
		if (!of->page[u])
			return cpu_host->fail(TESS_EINVAL,
			                      "%s: cpu: attention: row %lld: slot %d has no page "
			                      "for positions from %lld on",
			                      op->where, (long long)of->row, (int)slot[of->row],
			                      (long long)(u * KEYS));
	return TESS_OK;
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

/* The most units of keys that a tile of these rows sees. */
static int64_t count_tile_units(const struct attention *a, const struct slot_rows *of)
{
	int64_t all = of->hi - of->lo, seen = (a->window + TILE_ROWS - 2) / KEYS + 2;

	return a->window && seen < all ? seen : all;
}

#define run_attention CPU_NAME(run_attention)
tess_status run_attention(struct cpu *cpu, const struct tess_op *op)
{
	int64_t tokens = op->in[0].shape[0], d = (int64_t)op->num[TESS_ATTENTION_HEAD];
	int32_t dtype = (int32_t)op->num[TESS_ATTENTION_DTYPE];
	struct attention a = {
		.cpu = cpu,
		.op = op,
		.d = d,
		.heads = op->in[0].shape[1] / d,
		.kv = op->in[1].shape[1] / d,
		.scale = (float)op->num[TESS_ATTENTION_SCALE],
		.softcap = (float)op->num[TESS_ATTENTION_SOFTCAP],
		.window = (int64_t)op->num[TESS_ATTENTION_WINDOW],
		.lo = (int64_t)op->num[TESS_ATTENTION_FIRST],
		.group = (int64_t)op->num[TESS_ATTENTION_GROUP],
		.keys = (int64_t)op->num[TESS_ATTENTION_KEYS],
		.values = (int64_t)op->num[TESS_ATTENTION_VALUES],
		.dtype = dtype,
		.width = (int64_t)tess_width(dtype),
	};
	struct slot_rows *list;
	int64_t tasks = 0, units = 0, floats;
	void *memory;
	tess_status st = cpu_get_shared_scratch(cpu, sizeof *list * (size_t)tokens, &memory);

	a.list = list = memory;
	for (int64_t t = 0; t < tokens && !st; a.nlist++) {
		struct slot_rows *of = &list[a.nlist];

		st = find_slot_run(&a, t, of);
		if (st)
			break;
		choose_tiles(&a, of);
		of->first_task = tasks;
		tasks += (of->by_heads ? a.kv * of->rows : a.heads) * of->tiles;
		if (count_tile_units(&a, of) > units)
			units = count_tile_units(&a, of);
		t += of->rows;
	}
	if (st || !tokens)
		return st;
	a.pitch = units * KEYS + LANES;
	floats = count_scores(&a) + TILE_ROWS * LEVELS * tess_up(d, LANES) * LANES + KEYS * LANES +
	         TILE_ROWS * TILE_WIDEST * LANES;
	st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)floats);
	if (st)
		return st;
	pool_run(cpu->pool, append_kv_cache, &a, a.kv, tess_up(1 << 14, tokens * d));
	pool_run(cpu->pool, run_tiles, &a, tasks, 1);
	return TESS_OK;
}

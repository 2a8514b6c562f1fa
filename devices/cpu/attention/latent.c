/*
 * latent.c - ATTENTION whose values are the first elements of their keys: a page has keys only,
 * [64][d]. Many heads share a key, so scores have queries as lanes. Blocks of queries, the heads of
 * consecutive tokens, walk the keys together: a unit of keys is read from memory once for the
 * scores of a block, and once for its values.
 */
#include "attention.h"
#include "pack.h"

enum { BLOCK_ROWS = 64, BLOCK_PANELS = BLOCK_ROWS / LANES };
enum { BLOCKS = 64 }; /* maximum number of blocks computed together */
enum { BLOCK_SCORES_MAX = 1 << 21 }; /* floats of the scores of several blocks */
enum { COLUMNS = 64 }; /* columns of values of a share of work */

struct block { /* queries of one slot and one key-value head */
	const struct slot_rows *of;
	int64_t kv, head, heads; /* the local heads that read it */
	int64_t at, rows; /* query i: head i % heads of token i / heads */
	int64_t lo, hi; /* units of the keys of any of them */
	float *q, *score; /* [BLOCK_PANELS][d][16]; [rows][pitch] */
};

struct latent {
	const struct attention *a;
	struct block block[BLOCKS];
	int64_t nblocks, units; /* units: maximum of a block */
};

/* Loads the rows from `row` on, up to a full tile. */
static void load_block_tile(const struct latent *l, const struct block *b, int64_t row,
                            struct tile *t)
{
	*t = (struct tile){ .of = b->of,
		            .rows = b->rows - row < TILE_ROWS ? b->rows - row : TILE_ROWS,
		            .kv = b->kv,
		            .token = b->of->row,
		            .head = b->head,
		            .at = b->at + row,
		            .share = b->heads,
		            .score = b->score + row * l->a->pitch };
	attention_see_keys(l->a, t);
	t->lo = b->lo;
	t->hi = b->hi;
}

/* Stores the keys of the rows [lo, hi). */
static void append_latent_cache(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct attention *a = arg;
	const int32_t *position = a->op->in[3].data;

	(void)thread;
	for (int64_t i = 0; i < a->nlist; i++) {
		const struct slot_rows *of = &a->list[i];
		int64_t end = of->row + of->rows < hi ? of->row + of->rows : hi;

		for (int64_t t = of->row > lo ? of->row : lo; t < end; t++)
			for (int64_t g = 0; g < a->kv; g++)
				attention_store_head(a,
				                     get_cached_block(a, of, position[t] / KEYS,
				                                      a->keys, g, a->d) +
				                             position[t] % KEYS * a->d * a->width,
				                     1, get_row(&a->op->in[1], t) + g * a->d, a->d);
	}
}

/* Packs 16 queries at a time, as [d][16]. */
static void pack_queries(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct latent *l = arg;
	const struct attention *a = l->a;
	float *rows = cpu_get_thread_scratch(a->cpu, thread);
	struct tess_view v = { .data = rows,
		               .dtype = TESS_F32,
		               .ndim = 2,
		               .shape = { 0, a->d },
		               .stride = { a->d, 1 } };

	for (int64_t i = lo; i < hi; i++) {
		const struct block *b = &l->block[i / BLOCK_PANELS];
		int64_t panel = i % BLOCK_PANELS, left = b->rows - panel * LANES;

		v.shape[0] = left < LANES ? left : LANES;
		if (left <= 0)
			continue;
		for (int64_t r = 0; r < v.shape[0]; r++) {
			int64_t q = b->at + panel * LANES + r;

			memcpy(rows + r * a->d,
			       get_row(&a->op->in[0], b->of->row + q / b->heads) +
			               (b->head + q % b->heads) * a->d,
			       sizeof *rows * (size_t)a->d);
		}
		pack_widened(&v, 0, 0, a->d, b->q + panel * a->d * LANES);
	}
}

/* Returns the keys of a unit in f32: in the cache, or widened. */
static const float *load_keys(const struct attention *a, const struct block *b, int64_t u,
                              float *widened)
{
	const char *k = get_cached_block(a, b->of, u, a->keys, b->kv, a->d);

	if (a->dtype == TESS_F32)
		return (const float *)k;
	for (int64_t i = 0; i < KEYS * a->d; i += LANES)
		lanes_store(widened + i, lanes_widen(a->dtype, k + i * a->width));
	return widened;
}

/* Computes the scores of `panels` panels of queries and the keys of a unit. */
static void compute_unit_scores(const struct attention *a, const struct block *b, int64_t u,
                                int64_t panel, int64_t panels, const float *keys, float *tile)
{
	const struct sum_step step = { .len = (int32_t)a->d, .fresh = 1 };
	int64_t bytes = LANES * (int64_t)sizeof(float), row = panel * LANES, n;
	int64_t rows = b->rows - row < panels * LANES ? b->rows - row : panels * LANES;
	float *score = b->score + row * a->pitch + (u - b->lo) * KEYS;

	for (int64_t k = 0; k < KEYS; k += n) {
		n = tess_up(KEYS - k, tess_up(KEYS - k, TILE_ROWS)); /* 5 or 6 */
		tile_find(TESS_F32, (int)n, panels > 1)(keys + k * a->d, a->d, b->q + row * a->d,
		                                        bytes, a->d * bytes, tile, 0, &step,
		                                        &step + 1);
		for (int64_t i = 0; i < rows; i++)
			for (int64_t j = 0; j < n; j++)
				score[i * a->pitch + k + j] =
					tile[j * panels * LANES + i] * a->scale;
	}
}

static void compute_latent_scores(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct latent *l = arg;
	const struct attention *a = l->a;
	float *scratch = cpu_get_thread_scratch(a->cpu, thread);
	int64_t panels, n;

	for (int64_t i = lo; i < hi; i++) {
		const struct block *b = &l->block[i / l->units];
		int64_t u = b->lo + i % l->units;
		const float *keys;

		if (u >= b->hi)
			continue;
		keys = load_keys(a, b, u, scratch);
		panels = tess_up(b->rows, LANES);
		for (int64_t p = 0; p < panels; p += n) {
			n = p + TILE_WIDE_6 <= panels ? TILE_WIDE_6 : 1;
			compute_unit_scores(a, b, u, p, n, keys, scratch + KEYS * a->d);
		}
	}
}

static void apply_block_softmax(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct latent *l = arg;
	struct tile t;

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		const struct block *b = &l->block[i / BLOCK_TILES];
		int64_t row = i % BLOCK_TILES * TILE_ROWS;

		if (row >= b->rows)
			continue;
		load_block_tile(l, b, row, &t);
		attention_apply_softmax(l->a, &t);
	}
}

static void sum_latent_values(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct latent *l = arg;
	const struct attention *a = l->a;
	int64_t shares = tess_up(a->value, COLUMNS), n, from, to;
	float *scratch = cpu_get_thread_scratch(a->cpu, thread);
	struct tile t[BLOCK_TILES];

	for (int64_t i = lo; i < hi; i++) {
		const struct block *b = &l->block[i / shares];

		n = tess_up(b->rows, TILE_ROWS);
		from = i % shares * COLUMNS;
		to = from + COLUMNS < a->value ? from + COLUMNS : a->value;
		for (int64_t k = 0; k < n; k++) {
			load_block_tile(l, b, k * TILE_ROWS, &t[k]);
			t[k].scratch = scratch + k * attention_count_scratch(COLUMNS);
		}
		attention_sum_values(a, t, n, from, to);
	}
}

static void run_blocks(struct latent *l)
{
	struct pool *pool = l->a->cpu->pool;

	pool_run(pool, pack_queries, l, l->nblocks * BLOCK_PANELS, 1);
	pool_run(pool, compute_latent_scores, l, l->nblocks * l->units, 1);
	pool_run(pool, apply_block_softmax, l, l->nblocks * BLOCK_TILES, 1);
	pool_run(pool, sum_latent_values, l, l->nblocks * tess_up(l->a->value, COLUMNS), 1);
	l->nblocks = l->units = 0;
}

/* Adds a block; without room for it, runs the earlier blocks first. */
static void append_block(struct latent *l, struct block b, float *memory)
{
	const struct attention *a = l->a;
	const int32_t *position = a->op->in[3].data;
	int64_t each = BLOCK_ROWS * (a->d + a->pitch);

	if (l->nblocks == BLOCKS ||
	    (l->nblocks && (l->nblocks + 1) * BLOCK_ROWS * a->pitch > BLOCK_SCORES_MAX))
		run_blocks(l);
	b.q = memory + l->nblocks * each;
	b.score = b.q + BLOCK_ROWS * a->d;
	b.hi = position[b.of->row + (b.at + b.rows - 1) / b.heads] / KEYS + 1;
	b.lo = get_first_key(a, position[b.of->row + b.at / b.heads]) / KEYS;
	if (b.hi - b.lo > l->units)
		l->units = b.hi - b.lo;
	l->block[l->nblocks++] = b;
}

/* Adds all queries of a slot, in blocks. */
static void append_slot(struct latent *l, const struct slot_rows *of, float *memory)
{
	for (int64_t g = 0; g < l->a->kv; g++) {
		struct block b = { .of = of, .kv = g, .head = find_first_head(l->a, g) };
		int64_t n;

		b.heads = find_end_head(l->a, g) - b.head;
		n = of->rows * b.heads;
		for (; b.at < n; b.at += b.rows) {
			b.rows = n - b.at < BLOCK_ROWS ? n - b.at : BLOCK_ROWS;
			append_block(l, b, memory);
		}
	}
}

/* Chooses how many blocks are computed together; returns the floats of a block. */
static int64_t choose_blocks(struct attention *a, int64_t *blocks)
{
	int64_t units = 0, n = 0, max;

	for (int64_t i = 0; i < a->nlist; i++) {
		int64_t seen = attention_count_units(a, &a->list[i], BLOCK_ROWS);

		units = seen > units ? seen : units;
		n += tess_up(a->list[i].rows * a->heads, BLOCK_ROWS) + a->kv;
	}
	a->pitch = units * KEYS + LANES;
	max = BLOCK_SCORES_MAX / (BLOCK_ROWS * a->pitch);
	max = max < 1 ? 1 : max > BLOCKS ? BLOCKS : max;
	*blocks = n < max ? n : max;
	return BLOCK_ROWS * (a->d + a->pitch);
}

static int64_t count_latent_scratch(const struct attention *a)
{
	int64_t scores = KEYS * a->d + TILE_ROWS * TILE_WIDE_6 * LANES;
	int64_t sums = BLOCK_TILES * attention_count_scratch(COLUMNS);

	return scores > sums ? scores : sums;
}

tess_status attention_run_latent(struct attention *a)
{
	int64_t tokens = a->op->in[0].shape[0], blocks, each;
	size_t bytes = attention_count_list_bytes(a);
	struct latent l = { .a = a };
	void *memory;
	tess_status st = cpu_get_shared_scratch(a->cpu, bytes, &memory);

	if (!st)
		st = attention_list_slots(a, memory);
	if (st || !tokens)
		return st;
	each = choose_blocks(a, &blocks);
	st = cpu_get_shared_scratch(a->cpu, bytes + sizeof(float) * (size_t)(blocks * each),
	                            &memory);
	if (!st)
		st = attention_list_slots(a, memory); /* the memory has moved */
	if (!st)
		st = cpu_grow_thread_scratch(a->cpu,
		                             sizeof(float) * (size_t)count_latent_scratch(a));
	if (st)
		return st;
	pool_run(a->cpu->pool, append_latent_cache, a, tokens, tess_up(1 << 14, a->kv * a->d));
	for (int64_t i = 0; i < a->nlist; i++)
		append_slot(&l, &a->list[i], (float *)((char *)memory + bytes));
	run_blocks(&l);
	return TESS_OK;
}

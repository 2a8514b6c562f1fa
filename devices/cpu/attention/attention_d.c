/*
 * attention_d.c - ATTENTION_D. A task is one head of one sequence. It processes the queries in
 * blocks of 64: weights and gradients of scores with queries as lanes, [key][64]; then dq of the
 * block; then the addends of its two units of queries to dk and dv, whose stacks of sums continue
 * in the next block. A masked pair has weight +0 and gradient +-0, which change no bit of a
 * finished sum.
 */
#include <math.h>

#include "attention.h"
#include "mathf.h"
#include "pack.h"

enum { BLOCK = 64, BLOCK_PANELS = BLOCK / LANES, QUERIES = 32 }; /* QUERIES: of a unit */

/* Rows of one head, padded with zeros to a panel: keys, or the sums for them. */
struct head_rows {
	float *data;
	int64_t width, pitch;
};

struct text_head {
	const struct attention *a;
	const struct slot_rows *of;
	int64_t head, keys; /* keys: rows of the sequence, in full units of 64 */
	struct head_rows k, v, dk, dv; /* dk, dv: stacks, `keys` rows a level, tile by tile */
	struct head_rows q, g; /* rows of the block */
	float *q_panels, *g_panels; /* [BLOCK_PANELS][width][16] */
	int64_t first, rows; /* queries of the block */
	int64_t lo, hi; /* units of their keys */
	/* [keys][64]: weights, gradients of scores, slopes of the softcap, factors of dropout */
	float *w, *s, *slope, *factor;
	float *packed, *tile;
	float sink[BLOCK]; /* weights of the sink */
};

static struct head_rows make_head_rows(int64_t width)
{
	return (struct head_rows){ .width = width, .pitch = tess_up(width, LANES) * LANES };
}

static void fill_zeros(float *x, int64_t n)
{
	memset(x, 0, sizeof *x * (size_t)n);
}

/* Copies rows [row, row + n) of a head of v, and clears those up to `end`. */
static void load_head_rows(const struct tess_view *v, int64_t column, int64_t row, int64_t n,
                           int64_t end, const struct head_rows *to)
{
	for (int64_t t = 0; t < n; t++) {
		memcpy(to->data + t * to->pitch, get_row(v, row + t) + column,
		       sizeof(float) * (size_t)to->width);
		fill_zeros(to->data + t * to->pitch + to->width, to->pitch - to->width);
	}
	fill_zeros(to->data + n * to->pitch, (end - n) * to->pitch);
}

static void pack_query_block(const struct tess_view *v, int64_t column, int64_t row, int64_t n,
                             int64_t width, float *to)
{
	struct tess_view rows = { .data = get_row(v, row) + column,
		                  .dtype = TESS_F32,
		                  .ndim = 2,
		                  .shape = { n, width },
		                  .stride = { v->stride[0], 1 } };

	for (int64_t i = 0; i < BLOCK_PANELS; i++)
		if (i * LANES < n)
			pack_widened(&rows, i * LANES, 0, width, to + i * width * LANES);
		else
			fill_zeros(to + i * width * LANES, width * LANES);
}

/* Computes to[key][64] = (x of the key . panel of the query) * factor. */
static void multiply_keys(const struct text_head *h, const struct head_rows *x, const float *panels,
                          float factor, float *to)
{
	const struct sum_step step = { .len = (int32_t)x->width, .fresh = 1 };
	int64_t bytes = LANES * (int64_t)sizeof(float), keys = (h->hi - h->lo) * KEYS, n;
	int64_t columns = TILE_WIDE_6 * LANES;

	for (int64_t k = 0; k < keys; k += n) {
		n = tess_up(KEYS - k % KEYS, tess_up(KEYS - k % KEYS, TILE_ROWS)); /* 5 or 6 */
		for (int64_t j = 0; j < BLOCK; j += columns) {
			tile_find(TESS_F32, (int)n,
			          TILE_WIDE_6 > 1)(x->data + (h->lo * KEYS + k) * x->pitch,
			                           x->pitch, panels + j * x->width, bytes,
			                           x->width * bytes, h->tile, 0, &step, &step + 1);
			for (int64_t i = 0; i < n; i++)
				for (int64_t l = 0; l < columns; l++)
					to[(k + i) * BLOCK + j + l] =
						h->tile[i * columns + l] * factor;
		}
	}
}

/* Applies the softcap c to scores, and computes the slopes 1 - (z / c)^2. */
static void cap_scores(const struct text_head *h)
{
	int64_t n = (h->hi - h->lo) * KEYS * BLOCK;
	float *z = h->w, *slope = h->slope, cap = h->a->softcap, y;

	CPU_LANES
	for (int64_t i = 0; i < n; i++) {
		z[i] = cap * mathf_tanh(z[i] / cap);
		y = z[i] / cap;
		slope[i] = 1.0f - y * y;
	}
}

/* Masks scores: the queries that see a key are a range of lanes. */
static void mask_scores(const struct text_head *h)
{
	int64_t from, to;

	for (int64_t p = h->lo * KEYS; p < h->hi * KEYS; p++) {
		float *z = h->w + (p - h->lo * KEYS) * BLOCK;

		from = p > h->first ? p - h->first : 0;
		to = h->a->window ? get_end_query(h->a, p) - h->first : BLOCK;
		to = to < BLOCK ? to : BLOCK;
		for (int64_t l = 0; l < BLOCK; l++)
			if (l < from || l >= to)
				z[l] = -INFINITY;
	}
}

/* Computes the finished sums over the keys of x, or of x * y, for each query. */
static void sum_over_keys(const struct text_head *h, const float *x, const float *y,
                          float sum[BLOCK])
{
	float level[KEY_LEVELS][BLOCK], *leaf;
	int64_t depth = 0;

	for (int64_t u = h->lo; u < h->hi; u++, x += KEYS * BLOCK) {
		leaf = level[depth++];
		fill_zeros(leaf, BLOCK);
		for (int64_t k = 0; k < KEYS * BLOCK; k += BLOCK) {
			const float *yk = y ? y + (u - h->lo) * KEYS * BLOCK + k : NULL;

			CPU_LANES
			for (int64_t l = 0; l < BLOCK; l++)
				leaf[l] = yk ? fmaf(x[k + l], yk[l], leaf[l]) : leaf[l] + x[k + l];
		}
		for (int64_t m = u + 1 < h->hi ? sum_count_merges(h->lo, u) : depth - 1; m; m--) {
			leaf = level[--depth];
			for (int64_t l = 0; l < BLOCK; l++)
				level[depth - 1][l] = level[depth - 1][l] + leaf[l];
		}
	}
	for (int64_t l = 0; l < BLOCK; l++)
		sum[l] = level[0][l] + 0.0f;
}

/* Turns scores into weights. */
static void weigh_block_keys(struct text_head *h)
{
	int64_t n = (h->hi - h->lo) * KEYS * BLOCK;
	float top[BLOCK], sum[BLOCK], *z = h->w, sink = get_sink(h->a, h->head);

	for (int64_t l = 0; l < BLOCK; l++)
		top[l] = sink;
	for (int64_t k = 0; k < n; k += BLOCK)
		for (int64_t l = 0; l < BLOCK; l++)
			top[l] = z[k + l] > top[l] ? z[k + l] : top[l];
	for (int64_t k = 0; k < n; k += BLOCK) {
		CPU_LANES
		for (int64_t l = 0; l < BLOCK; l++)
			z[k + l] = mathf_exp(z[k + l] - top[l]);
	}
	sum_over_keys(h, z, NULL, sum);
	for (int64_t l = 0; l < BLOCK && h->a->sinks; l++) {
		h->sink[l] = mathf_exp(sink - top[l]);
		sum[l] = sum[l] + h->sink[l];
		h->sink[l] = h->sink[l] / sum[l];
	}
	for (int64_t k = 0; k < n; k += BLOCK)
		for (int64_t l = 0; l < BLOCK; l++)
			z[k + l] = z[k + l] / sum[l];
}

static void list_factors(const struct text_head *h)
{
	const int32_t *slot = h->a->op->in[4].data;

	for (int64_t p = h->lo * KEYS; p < h->hi * KEYS; p += 4)
		dropout_list_factors(&h->a->drop, h->first, slot[h->of->row], h->a->site + h->head,
		                     p, h->factor + (p - h->lo * KEYS) * BLOCK);
}

/* Scales x of kept pairs, and sets that of others to 0. */
static void drop_pairs(const struct text_head *h, float *x)
{
	int64_t n = (h->hi - h->lo) * KEYS * BLOCK;
	const float *factor = h->factor;

	CPU_LANES
	for (int64_t i = 0; i < n; i++)
		x[i] = factor[i] > 0 ? x[i] * factor[i] : 0.0f;
}

/* Turns gradients of weights, in s, into those of q . k. */
static void differentiate_scores(const struct text_head *h)
{
	int64_t n = (h->hi - h->lo) * KEYS * BLOCK;
	float mean[BLOCK], *s = h->s, scale = h->a->scale;
	const float *w = h->w, *slope = h->slope;

	sum_over_keys(h, w, s, mean);
	for (int64_t l = 0; l < h->rows && h->a->sinks; l++)
		get_row(&h->a->op->out[3], h->of->row + h->first + l)[h->head] =
			-(h->sink[l] * mean[l]);
	for (int64_t k = 0; k < n; k += BLOCK)
		for (int64_t l = 0; l < BLOCK; l++)
			s[k + l] = w[k + l] * (s[k + l] - mean[l]);
	for (int64_t i = 0; i < n && h->a->softcap > 0; i++)
		s[i] = s[i] * slope[i];
	for (int64_t i = 0; i < n; i++)
		s[i] = s[i] * scale;
}

/* Counts the columns of a tile from j on. */
static int64_t count_columns(const struct head_rows *x, int64_t j)
{
	return x->pitch - j >= TILE_WIDE_6 * LANES ? TILE_WIDE_6 * LANES : LANES;
}

/* Computes dq of the n queries of the block from `at` on: the sum over keys of s * k. */
static void sum_query_tile(const struct text_head *h, int64_t at, int64_t n)
{
	const struct head_rows *k = &h->k;
	int64_t keys = (h->hi - h->lo) * KEYS, bytes = (int64_t)sizeof(float), columns;

	for (int64_t p = 0; p < keys; p++)
		for (int64_t i = 0; i < n; i++)
			h->packed[p * n + i] = h->s[p * BLOCK + at + i];
	for (int64_t j = 0; j < k->pitch; j += columns) {
		struct sum_step step = { .len = KEYS, .fresh = 1 };
		packed_tile_fn *multiply;

		columns = count_columns(k, j);
		multiply = tile_find_packed(TESS_F32, (int)n, columns > LANES);
		for (int64_t u = h->lo; u < h->hi; u++) {
			const float *b = k->data + u * KEYS * k->pitch + j;

			step.finish = u + 1 == h->hi;
			step.merge = step.finish ? step.level : (int16_t)sum_count_merges(h->lo, u);
			multiply(h->packed + (u - h->lo) * KEYS * n, b, k->pitch * bytes,
			         LANES * bytes, b, k->pitch * bytes, h->tile, n * columns, &step);
			step.level = (int16_t)(step.level + 1 - step.merge);
		}
		for (int64_t i = 0; i < n; i++)
			memcpy(get_row(&h->a->op->out[0], h->of->row + h->first + at + i) +
			               h->head * k->width + j,
			       h->tile + i * columns,
			       sizeof(float) *
			               (size_t)(k->width - j < columns ? k->width - j : columns));
	}
}

/* Counts the sums on the stack before unit u of the tree, if those before `first` are absent. */
static int16_t count_levels(int64_t first, int64_t u)
{
	int levels = 0;

	for (int64_t i = first; i < u; i++)
		levels += 1 - sum_count_merges(first, i);
	return (int16_t)levels;
}

/* Returns the last unit of queries that see a key of unit `u`. */
static int64_t find_last_unit(const struct text_head *h, int64_t u)
{
	int64_t last = h->a->window ? get_end_query(h->a, u * KEYS + KEYS - 1) - 1 : 0;

	return (h->a->window && last < h->of->rows ? last : h->of->rows - 1) / QUERIES;
}

/* Adds unit u of queries to the sums of weight * x for each key: weights [key][64]. */
static void add_queries(const struct text_head *h, int64_t u, const float *weight,
                        const struct head_rows *x, const struct head_rows *sums)
{
	int64_t at = u * QUERIES - h->first, left = h->rows - at, n, columns, last, k;
	struct sum_step step = { .fresh = 1 };

	step.len = (int32_t)(left < QUERIES ? left : QUERIES);
	for (int64_t row = h->lo * KEYS; row < h->hi * KEYS; row += n) {
		k = row % KEYS;
		n = tess_up(KEYS - k, tess_up(KEYS - k, TILE_ROWS));
		last = find_last_unit(h, row / KEYS);
		if (u > last)
			continue;
		step.level = count_levels(row / KEYS * 2, u);
		step.finish = u == last;
		step.merge =
			step.finish ? step.level : (int16_t)sum_count_merges(row / KEYS * 2, u);
		for (int64_t j = 0; j < x->pitch; j += columns) {
			columns = count_columns(x, j);
			tile_find(TESS_F32, (int)n, columns > LANES)(
				weight + (row - h->lo * KEYS) * BLOCK + at, BLOCK,
				x->data + at * x->pitch + j, x->pitch * (int64_t)sizeof(float),
				LANES * (int64_t)sizeof(float),
				sums->data + row * sums->pitch + n * j, h->keys * sums->pitch,
				&step, &step + 1);
		}
	}
}

/* Copies the finished sums of all keys to a head of y, or adds them. */
static void store_sums(const struct text_head *h, const struct head_rows *sums,
                       const struct tess_view *y, int64_t each, bool add)
{
	int64_t n, columns, k;

	for (int64_t row = 0; row < h->of->rows; row += n) {
		k = row % KEYS;
		n = tess_up(KEYS - k, tess_up(KEYS - k, TILE_ROWS));
		for (int64_t j = 0; j < sums->width; j += columns) {
			const float *from = sums->data + row * sums->pitch + n * j;

			columns = count_columns(sums, j);
			for (int64_t i = 0; i < n && row + i < h->of->rows; i++) {
				float *to = get_row(y, h->of->row + row + i) + h->head * each + j;

				for (int64_t c = 0; c < columns && j + c < sums->width; c++)
					to[c] = add ? to[c] + from[i * columns + c]
					            : from[i * columns + c];
			}
		}
	}
}

static void run_query_block(struct text_head *h)
{
	const struct tess_view *q = &h->a->op->in[0], *g = &h->a->op->in[5];
	int64_t row = h->of->row + h->first, n;

	h->lo = get_first_key(h->a, h->first) / KEYS;
	h->hi = h->first / KEYS + 1;
	load_head_rows(q, h->head * h->q.width, row, h->rows, BLOCK, &h->q);
	load_head_rows(g, h->head * h->g.width, row, h->rows, BLOCK, &h->g);
	pack_query_block(q, h->head * h->q.width, row, h->rows, h->q.width, h->q_panels);
	pack_query_block(g, h->head * h->g.width, row, h->rows, h->g.width, h->g_panels);
	multiply_keys(h, &h->k, h->q_panels, h->a->scale, h->w);
	if (h->a->softcap > 0)
		cap_scores(h);
	mask_scores(h);
	weigh_block_keys(h);
	multiply_keys(h, &h->v, h->g_panels, 1.0f, h->s);
	if (h->a->drop.below) {
		list_factors(h);
		drop_pairs(h, h->s);
	}
	differentiate_scores(h);
	if (h->a->drop.below)
		drop_pairs(h, h->w);
	for (int64_t at = 0; at < h->rows; at += n) {
		n = tess_up(h->rows - at, tess_up(h->rows - at, TILE_ROWS));
		sum_query_tile(h, at, n);
	}
	for (int64_t u = h->first / QUERIES; u * QUERIES < h->first + h->rows; u++) {
		add_queries(h, u, h->s, &h->q, &h->dk);
		add_queries(h, u, h->w, &h->g, &h->dv);
	}
}

/* Counts the levels of a stack of sums over the queries of `rows` rows: a node of each size. */
static int64_t count_stack_levels(int64_t rows)
{
	int64_t levels = 1;

	for (int64_t unit = tess_up(rows, QUERIES) - 1; unit > 0; unit /= 2)
		levels++;
	return levels;
}

struct memory {
	float *data;
	int64_t used;
};

static float *take_floats(struct memory *m, int64_t n)
{
	m->used += n;
	return m->data ? m->data + m->used - n : NULL;
}

/* Lays out a head of the sequence `of` in `memory`, unless NULL; returns the floats needed. */
static int64_t lay_out_head(struct text_head *h, const struct attention *a,
                            const struct slot_rows *of, float *data)
{
	int64_t keys = tess_up(of->rows, KEYS) * KEYS, levels = count_stack_levels(of->rows);
	int64_t seen = attention_count_units(a, of, BLOCK) * KEYS;
	bool latent = !a->op->in[2].ndim;
	struct memory memory = { data, 0 };

	*h = (struct text_head){ .a = a, .of = of, .keys = keys };
	h->k = h->q = h->dk = make_head_rows(a->d);
	h->v = h->g = h->dv = make_head_rows(a->value);
	h->k.data = take_floats(&memory, keys * h->k.pitch);
	h->dk.data = take_floats(&memory, levels * keys * h->dk.pitch);
	h->dv.data = take_floats(&memory, levels * keys * h->dv.pitch);
	h->q.data = take_floats(&memory, BLOCK * h->q.pitch);
	h->g.data = take_floats(&memory, BLOCK * h->g.pitch);
	h->q_panels = take_floats(&memory, BLOCK * a->d);
	h->g_panels = take_floats(&memory, BLOCK * a->value);
	h->w = take_floats(&memory, seen * BLOCK);
	h->s = take_floats(&memory, seen * BLOCK);
	h->slope = take_floats(&memory, a->softcap > 0 ? seen * BLOCK : 0);
	h->factor = take_floats(&memory, a->drop.below ? seen * BLOCK : 0);
	h->packed = take_floats(&memory, seen * TILE_ROWS);
	h->tile = take_floats(&memory, KEY_LEVELS * TILE_ROWS * TILE_WIDEST * LANES);
	if (latent) {
		h->v.data = h->k.data;
		h->v.pitch = h->k.pitch;
	} else {
		h->v.data = take_floats(&memory, keys * h->v.pitch);
	}
	return memory.used;
}

/* Runs heads [lo, hi), counted over all sequences. */
static void run_text_heads(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct attention *a = arg;
	const struct tess_op *op = a->op;
	struct text_head h;
	int64_t kv;

	for (int64_t i = lo; i < hi; i++) {
		lay_out_head(&h, a, &a->list[i / a->heads], cpu_get_thread_scratch(a->cpu, thread));
		h.head = i % a->heads;
		kv = (a->lo + h.head) / a->group - a->lo / a->group;
		load_head_rows(&op->in[1], kv * a->d, h.of->row, h.of->rows, h.keys, &h.k);
		if (op->in[2].ndim)
			load_head_rows(&op->in[2], kv * a->value, h.of->row, h.of->rows, h.keys,
			               &h.v);
		for (; h.first < h.of->rows; h.first += BLOCK) {
			h.rows = h.of->rows - h.first < BLOCK ? h.of->rows - h.first : BLOCK;
			run_query_block(&h);
		}
		store_sums(&h, &h.dk, &op->out[1], a->d, false);
		if (op->in[2].ndim)
			store_sums(&h, &h.dv, &op->out[2], a->value, false);
		else
			store_sums(&h, &h.dv, &op->out[1], a->d, true);
	}
}

#define run_attention_d CPU_NAME(run_attention_d)
tess_status run_attention_d(struct cpu *cpu, const struct tess_op *op)
{
	struct attention a = attention_read(cpu, op);
	int64_t floats = 0, n;
	struct text_head h;
	void *memory;
	tess_status st;

	a.blocks = 0; /* no pages: k and v are read in place */
	st = cpu_get_shared_scratch(cpu, attention_count_list_bytes(&a), &memory);
	if (!st)
		st = attention_list_slots(&a, memory);
	for (int64_t i = 0; i < a.nlist && !st; i++) {
		n = lay_out_head(&h, &a, &a.list[i], NULL);
		floats = n > floats ? n : floats;
	}
	if (!st)
		st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)floats);
	if (!st)
		pool_run(cpu->pool, run_text_heads, &a, a.nlist * a.heads, 1);
	return st;
}

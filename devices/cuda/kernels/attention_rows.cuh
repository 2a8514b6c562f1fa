/*
 * attention_rows.cuh - attention of few rows. A block computes one row and the query heads that
 * share its keys; a warp has a quarter of each page. Many keys are divided into parts, a block
 * each, so that one sequence fills the GPU: the last block of a row adds the parts in order.
 *
 * In steps of few rows (rope_args.key >= 0) the same launch rotates queries and keys and stores
 * keys and values. No block waits for the stores of another one: each block computes the keys of
 * the step from the operands, and reads only older keys from pages.
 */

/*
 * The online softmax of a warp. The warp has the sums of SPAN keys and four heads: a lane has those
 * of two keys and head lane / 8.
 */
struct row_state { /* for the lane's head */
	float max, sum;
};

/*
 * Adds q * k of `per` keys, [d, 64] from `at` on, for elements i0, i0 + step, ..: LOADS of them, or
 * those before d. `whole`: all LOADS are before d and aligned, so that no branch separates the
 * loads.
 */
DEVICE void add_key_elements(const struct attention_args *a, int32_t dtype, const char *keys,
                             const float *q, int at, int i0, const int whole, float z[][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width, step = WARP / (SPAN / per);
	struct quad v[LOADS];
	float k[8];

	EACH(n, LOADS)
		if (whole)
			v[n] = load_quad_relaxed(keys + ((i0 + n * step) * KEYS + at) * width);
	EACH(n, LOADS) {
		int i = i0 + n * step;

		if (!whole && i >= a->d)
			break;
		if (whole)
			widen_quad(v[n], dtype, k);
		else
			load_keys(keys, dtype, i * KEYS + at, k);
		EACH(h, ATTEND_HEADS)
			EACH(j, per)
				z[h][j] = fmaf(q[h * a->d + i], k[j], z[h][j]);
	}
}

/*
 * Computes q * k of the span of keys [d, 64] from `base` on: the sums of the lane's two keys, and
 * their indices.
 */
DEVICE void multiply_keys(const struct attention_args *a, int32_t dtype, const char *keys,
                          const float *q, int base, int *key, float *sum)
{
	const int per = dtype == PORT_F32 ? 4 : 8, cover = SPAN / per, step = WARP / cover;
	int lane = threadIdx.x % WARP, at = lane % cover * per, i0 = 0;
	float z[ATTEND_HEADS][8], flat[ATTEND_HEADS * 8];

	EACH(h, ATTEND_HEADS)
		EACH(j, per)
			z[h][j] = 0.0f;
	if ((uintptr_t)keys % 16 == 0)
		for (; i0 + step * LOADS <= a->d; i0 += step * LOADS)
			add_key_elements(a, dtype, keys, q, base + at, i0 + lane / cover, 1, z);
	for (; i0 < a->d; i0 += step * LOADS)
		add_key_elements(a, dtype, keys, q, base + at, i0 + lane / cover, 0, z);
	EACH(h, ATTEND_HEADS)
		EACH(j, per)
			flat[h * per + j] = z[h][j];
	fold_lanes(flat, ATTEND_HEADS * per, 16);
	fold_lanes(flat, ATTEND_HEADS * per / 2, 8);
	fold_lanes(flat, ATTEND_HEADS * per / 4, 4);
	if (per == 8)
		fold_lanes(flat, 4, 2);
	at += per == 8 ? (lane & 4) + (lane & 2) : (lane & 4) / 2;
	EACH(j, 2) {
		key[j] = at + j;
		sum[j] = flat[j];
	}
}

/*
 * Multiplies q by the first n keys [64, d]; each half of a warp has half of the elements of all
 * keys.
 */
DEVICE void multiply_key_rows(const struct attention_args *a, int32_t dtype, const char *keys,
                              const float *q, int base, int64_t n, int *key, float *sum)
{
	const int per = dtype == PORT_F32 ? 4 : 8;
	int lane = threadIdx.x % WARP, at = base + lane % SPAN, end = lane % SPAN < n ? a->d : 0;
	float k[8], z[ATTEND_HEADS] = { 0, 0, 0, 0 }, other;

	UNROLL_BY(4)
	for (int i = lane / SPAN * per; i < end; i += WARP / SPAN * per) {
		load_cached(keys, dtype, (int64_t)at * a->d + i, a->d - i, k);
		EACH(e, per)
			EACH(h, ATTEND_HEADS)
				if (i + e < a->d)
					z[h] = fmaf(q[h * a->d + i + e], k[e], z[h]);
	}
	fold_lanes(z, 4, 16);
	other = shuffle_xor(lane & 8 ? z[0] : z[1], 8); /* exchange a head for a key */
	key[0] = lane % SPAN;
	key[1] = lane % SPAN ^ 8;
	sum[0] = lane & 8 ? z[1] : z[0];
	sum[1] = other;
}

/*
 * Turns the scores of the lane's two keys into weights. Writes those of keys [first, end) to
 * p[heads][SPAN], followed by the factors of the earlier sums.
 */
DEVICE void weigh_span(const struct attention_args *a, int64_t base, int64_t first, int64_t end,
                       const int *key, float *z, struct row_state *s, float *p)
{
	float max = -INFINITY, sum = 0.0f, factor;
	int lane = threadIdx.x % WARP, h = lane / 8;

	EACH(j, 2) {
		int64_t at = base + key[j];

		z[j] = at >= first && at < end ? scale_score(a, z[j]) : -INFINITY;
		max = z[j] > max ? z[j] : max;
	}
	EACH_MASK(mask, 1, 8) {
		float other = shuffle_xor(max, mask);

		max = other > max ? other : max;
	}
	max = s->max > max ? s->max : max;
	EACH(j, 2) {
		z[j] = weigh_score(z[j], max);
		sum += z[j];
		p[h * SPAN + key[j]] = z[j];
	}
	EACH_MASK(mask, 1, 8)
		sum += shuffle_xor(sum, mask);
	factor = weigh_score(s->max, max);
	s->sum = s->sum * factor + sum;
	s->max = max;
	if (lane % 8 == 0)
		p[ATTEND_HEADS * SPAN + h] = factor;
	sync_warp();
}

/* Writes the weights of a page's span, and the factors of the earlier sums, to p. */
DEVICE void score_span(const struct attention_args *a, int32_t dtype, const char *keys,
                       const float *q, int64_t base, int64_t first, int64_t end,
                       struct row_state *s, float *p)
{
	int key[2];
	float z[2];

	if (a->v)
		multiply_keys(a, dtype, keys, q, base % KEYS, key, z);
	else
		multiply_key_rows(a, dtype, keys, q, base % KEYS, end - base, key, z);
	weigh_span(a, base, first, end, key, z, s, p);
}

/*
 * The values that a lane adds: positions row, row + rows, ..; elements at + [0, per) of each chunk.
 */
struct value_lane {
	int row, rows, at, active;
};

DEVICE struct value_lane place_lane(const struct attention_args *a, const int per)
{
	int lane = threadIdx.x % WARP, cover = (a->dv + per - 1) / per;
	struct value_lane l = { 0, 1, lane * per, 1 };

	if (cover <= WARP) {
		l.rows = WARP / cover;
		l.row = lane / cover;
		l.at = lane % cover * per;
		l.active = l.row < l.rows;
	}
	return l;
}

enum { VALUE_CHUNKS = VALUE_MAX / (4 * WARP) }; /* f32 chunks; bf16 has half as many, each twice */

/* Adds elements `at` of values j0, j0 + rows, ..: LOADS of them (`whole`), or those before `hi`. */
DEVICE void add_value_rows(const struct attention_args *a, int32_t dtype, const char *values,
                           const float *p, int at, int j0, int rows, int hi, const int whole,
                           float sum[][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width;
	int pitch = a->v ? a->dv : a->d;
	struct quad quads[LOADS];
	float v[8];

	EACH(n, LOADS)
		if (whole)
			quads[n] = load_quad(values + ((j0 + n * rows) * pitch + at) * width);
	EACH(n, LOADS) {
		int j = j0 + n * rows;

		if (!whole && j >= hi)
			break;
		if (whole)
			widen_quad(quads[n], dtype, v);
		else
			load_cached(values, dtype, (int64_t)j * pitch + at, a->dv - at, v);
		EACH(h, ATTEND_HEADS)
			EACH(i, per)
				sum[h][i] = fmaf(p[h * SPAN + j], v[i], sum[h][i]);
	}
}

/* Adds the weighted values of keys [first, end) of a span, which is stored at `values`. */
DEVICE void add_values(const struct attention_args *a, int32_t dtype, const char *values,
                       const float *p, int64_t base, int64_t first, int64_t end,
                       const struct value_lane *l, float sum[][ATTEND_HEADS][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width;
	int lo = first > base ? (int)(first - base) : 0,
	    hi = end - base < SPAN ? (int)(end - base) : SPAN;
	int pitch = a->v ? a->dv : a->d, step = l->rows * LOADS;
	int wide = (uintptr_t)values % 16 == 0 && pitch % per == 0 && a->dv % per == 0;

	EACH(c, VALUE_MAX / (per * WARP)) {
		int at = l->at + c * per * WARP, j0 = lo;

		if (!l->active || at >= a->dv)
			break;
		for (; wide && j0 + step <= hi; j0 += step)
			add_value_rows(a, dtype, values, p, at, j0 + l->row, l->rows, hi, 1,
			               sum[c]);
		for (; j0 < hi; j0 += step)
			add_value_rows(a, dtype, values, p, at, j0 + l->row, l->rows, hi, 0,
			               sum[c]);
	}
}

/* Adds x to to[4]: in one access if `wide` (all four exist and are aligned), else the first n. */
DEVICE void add_four(float *to, const float *x, int n, int wide)
{
	float f[4];

	if (wide) {
		widen_four(load_quad(to), PORT_F32, f);
		EACH(i, 4)
			f[i] += x[i];
		store_quad(to, pack_quad(f));
	} else {
		EACH(i, 4)
			if (i < n)
				to[i] += x[i];
	}
}

/* Adds the lanes' sums of a warp to total[heads][dv], one row of lanes after another. */
DEVICE void add_lanes(const struct attention_args *a, const int per, const struct value_lane *l,
                      float sum[][ATTEND_HEADS][8], float *total)
{
	const int chunks = VALUE_MAX / (per * WARP);

	for (int row = 0; row < l->rows; row++) {
		EACH(c, chunks) {
			int at = l->at + c * per * WARP;

			if (!l->active || l->row != row || at >= a->dv)
				continue;
			EACH(h, ATTEND_HEADS)
				EACH(i, per / 4)
					add_four(total + h * a->dv + at + 4 * i, sum[c][h] + 4 * i,
					         a->dv - at - 4 * i, a->dv % 8 == 0);
		}
		sync_warp();
	}
}

/* Returns the number and the first of the query heads of block `at` that read key-value head g. */
DEVICE int find_heads(const struct attention_args *a, int g, int at, int *first)
{
	int begin = (a->first_head / a->group + g) * a->group - a->first_head,
	    end = begin + a->group;

	*first = (begin > 0 ? begin : 0) + at * ATTEND_HEADS;
	end = (end < a->heads ? end : a->heads) - *first;
	return end < ATTEND_HEADS ? end : ATTEND_HEADS;
}

/* The work of a block. */
struct row_block {
	int64_t t, own; /* the row, and its position */
	int64_t first, end; /* its keys in pages; keys of the step follow */
	int g, head, heads; /* key-value head; query heads */
	int lo, hi, part, parts; /* pages of this part; parts of the row */
};

/* Returns whether row i of the step has a key that the block's row attends to. */
DEVICE int is_new_key(const struct attention_args *a, const struct row_block *b, int64_t i)
{
	return a->slot[i] == a->slot[b->t] && a->position[i] >= 0 && a->position[i] <= b->own;
}

/* Counts the keys of the step that the block's row attends to. All lanes call it. */
DEVICE int count_new_keys(const struct attention_args *a, const struct row_block *b)
{
	float n = 0.0f;

	if (a->rows == 1)
		return 1;
	for (int64_t i = threadIdx.x % WARP; i < a->rows; i += WARP)
		n += (float)is_new_key(a, b, i);
	EACH_MASK(mask, 1, WARP)
		n += shuffle_xor(n, mask);
	return (int)n;
}

/* Divides the pages of a row; few pages are one part. Returns 0 if this block has no pages. */
DEVICE int divide_pages(const struct attention_args *a, struct row_block *b)
{
	int first = (int)(b->first / KEYS), pages = (int)(b->own / KEYS) + 1 - first;
	int each = (pages + a->parts - 1) / a->parts;

	if (pages <= WHOLE_PAGES)
		each = pages;
	each = each < PART_PAGES ? PART_PAGES : each;
	b->part = blockIdx.z;
	b->parts = (pages + each - 1) / each;
	b->lo = first + b->part * each;
	b->hi = b->lo + each < first + pages ? b->lo + each : first + pages;
	return b->part < b->parts;
}

/* Finds the work of this block. Returns 0 if there is none. */
DEVICE int find_block_row(const struct rope_args *r, struct row_block *b)
{
	const struct attention_args *a = &r->to;

	b->t = blockIdx.x;
	b->g = blockIdx.y / a->head_blocks;
	b->heads = find_heads(a, b->g, blockIdx.y % a->head_blocks, &b->head);
	if (b->heads < 1)
		return 0;
	if (!has_place(a, b->t)) {
		if (r->key >= 0)
			*a->fault = FAULT_ATTENTION;
		return 0;
	}
	b->own = a->position[b->t];
	if (r->width && b->own >= r->positions) {
		*a->fault = FAULT_ROPE;
		return 0;
	}
	b->first = find_first_key(a, b->own);
	b->end = b->own + 1;
	return divide_pages(a, b);
}

/* Prefetches the keys of the part's first page while queries are rotated. */
DEVICE void prefetch_keys(const struct attention_args *a, const struct row_block *b, int width)
{
	int64_t bytes = (int64_t)a->d * KEYS * width;
	const char *page = find_page(a, b->t, b->lo);

	if (page && (int64_t)b->lo * KEYS < b->end)
		for (int64_t at = threadIdx.x * LINE; at < bytes; at += ATTEND_THREADS * LINE)
			prefetch_line(page + a->keys + b->g * bytes + at);
}

/* Rotates the queries into q[heads][d], a warp each. */
DEVICE void turn_queries(const struct rope_args *r, const struct row_block *b, float *q)
{
	const struct attention_args *a = &r->to;
	int h = threadIdx.x / WARP, of = r->key == 0;

	UNROLL_BY(2)
	for (int i = threadIdx.x % WARP; i < a->d; i += WARP)
		q[h * a->d + i] =
			h < b->heads ? turn_element(r, of, b->t, b->own, b->head + h, i) : 0.0f;
}

/* Writes the rotated queries. They may replace the operand, so all blocks must have read it. */
DEVICE void write_queries(const struct rope_args *r, const struct row_block *b, const float *q)
{
	const struct attention_args *a = &r->to;
	float *y = r->of[r->key == 0].y;

	if (r->key < 0 || !y)
		return;
	y += b->t * r->of[r->key == 0].y_pitch + b->head * a->d;
	for (int i = threadIdx.x; i < b->heads * a->d; i += ATTEND_THREADS)
		y[i] = q[i];
}

/* Returns element i of the key of row t, rounded as in the cache. */
DEVICE float find_new_key(const struct rope_args *r, int32_t dtype, int64_t t, int g, int i)
{
	return round_cached(dtype, turn_element(r, r->key, t, r->to.position[t], g, i));
}

/* Stores the key and the value of the block's row, by one warp. */
DEVICE void store_block_row(const struct rope_args *r, const struct row_block *b)
{
	const struct attention_args *a = &r->to;
	char *page = find_own_page(a, b->t);

	if (!page)
		return;
	UNROLL_BY(2)
	for (int i = threadIdx.x % WARP; i < a->d; i += WARP)
		store_key(a, page, b->t, b->g, i, turn_element(r, r->key, b->t, b->own, b->g, i));
	UNROLL_BY(2)
	for (int i = threadIdx.x % WARP; a->v && i < a->dv; i += WARP)
		store_value(a, page, b->t, b->g, i, a->v[b->t * a->v_pitch + b->g * a->dv + i]);
}

DEVICE void scale_sums(const float *factor, float acc[][ATTEND_HEADS][8])
{
	EACH(c, VALUE_CHUNKS)
		EACH(h, ATTEND_HEADS)
			EACH(i, 8)
				acc[c][h][i] *= factor[h];
}

/* Adds the value of row t of the step, with the weights p[heads][SPAN] of its key, to total. */
DEVICE void add_new_value(const struct rope_args *r, int32_t dtype, int64_t t, int g,
                          const float *p, float *total)
{
	const struct attention_args *a = &r->to;

	UNROLL_BY(2)
	for (int i = threadIdx.x % WARP; i < a->dv; i += WARP) {
		float v = a->v ? round_cached(dtype, a->v[t * a->v_pitch + g * a->dv + i])
		               : find_new_key(r, dtype, t, g, i);

		EACH(h, ATTEND_HEADS) {
			float *to = total + h * a->dv + i;

			*to = fmaf(p[h * SPAN], v, *to * p[ATTEND_HEADS * SPAN + h]);
		}
	}
}

/* Adds the key and the value of row t of the step, by one warp. */
DEVICE void add_new_key(const struct rope_args *r, int32_t dtype, int64_t t, int g, const float *q,
                        struct row_state *s, float *p, float acc[][ATTEND_HEADS][8], float *total)
{
	const struct attention_args *a = &r->to;
	int lane = threadIdx.x % WARP, key[2] = { lane % 8 * 2, lane % 8 * 2 + 1 };
	float z[ATTEND_HEADS] = { 0, 0, 0, 0 };

	UNROLL_BY(2)
	for (int i = lane; i < a->d; i += WARP) {
		float k = find_new_key(r, dtype, t, g, i);

		EACH(h, ATTEND_HEADS)
			z[h] = fmaf(q[h * a->d + i], k, z[h]);
	}
	fold_lanes(z, 4, 16);
	fold_lanes(z, 2, 8);
	EACH_MASK(mask, 1, 8)
		z[0] += shuffle_xor(z[0], mask);
	z[1] = 0.0f;
	weigh_span(a, 0, 0, 1, key, z, s, p);
	scale_sums(p + ATTEND_HEADS * SPAN, acc);
	add_new_value(r, dtype, t, g, p, total);
	sync_warp();
}

/* Adds the keys of the step; the warps take turns. */
DEVICE void add_new_keys(const struct rope_args *r, int32_t dtype, const struct row_block *b,
                         const float *q, struct row_state *s, float *p,
                         float acc[][ATTEND_HEADS][8], float *total)
{
	const struct attention_args *a = &r->to;
	int alone = b->own + 1 - b->end == 1, warp = OWN_KEY_WARP;
	int64_t to = alone ? b->t + 1 : a->rows;

	for (int64_t i = alone ? b->t : 0; i < to; i++) {
		if (!is_new_key(a, b, i) || a->position[i] < b->first)
			continue;
		if (warp == (int)threadIdx.x / WARP)
			add_new_key(r, dtype, i, b->g, q, s, p, acc, total);
		warp = (warp + 1) % ATTEND_WARPS;
	}
}

/* Adds the spans of the part's pages that belong to a warp. */
DEVICE void add_pages(const struct attention_args *a, int32_t dtype, const struct row_block *b,
                      const float *q, const struct value_lane *l, struct row_state *s, float *p,
                      float acc[][ATTEND_HEADS][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2;
	int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;

	for (int64_t base = (int64_t)b->lo * KEYS + warp * SPAN;
	     base < (int64_t)b->hi * KEYS && base < b->end; base += KEYS) {
		const char *page, *keys, *values;

		if (base + SPAN <= b->first)
			continue;
		page = find_page(a, b->t, base / KEYS);
		if (!page)
			break;
		keys = page + a->keys + (int64_t)b->g * a->d * KEYS * width;
		values = a->v ? page + a->values + (int64_t)b->g * a->dv * KEYS * width : keys;
		values += base % KEYS * (a->v ? a->dv : a->d) * width;
		for (int at = lane * LINE; a->v && at < SPAN * a->dv * width; at += WARP * LINE)
			prefetch_line(values + at); /* they arrive while keys are multiplied */
		score_span(a, dtype, keys, q, base, b->first, b->end, s, p);
		scale_sums(p + ATTEND_HEADS * SPAN, acc);
		add_values(a, dtype, values, p, base, b->first, b->end, l, acc);
		sync_warp();
	}
}

/* Returns the address of a part of a head: maximum, sum, weighted values. */
DEVICE float *find_part_of_head(const struct attention_args *a, const struct row_block *b, int h,
                                int part)
{
	return a->part + ((b->t * a->heads + b->head + h) * a->parts + part) * (a->dv + 2);
}

/* Writes the result of one head, or of its part of the keys. */
DEVICE void write_head(const struct attention_args *a, const struct row_block *b, int h,
                       const float *total, const float *max, const float *sum)
{
	float sink = b->parts == 1 ? load_sink(&a->sinks, b->head + h) : -INFINITY;
	float m = sink, s, x, *to = find_part_of_head(a, b, h, b->part);

	for (int w = 0; w < ATTEND_WARPS; w++)
		m = max[w * ATTEND_HEADS] > m ? max[w * ATTEND_HEADS] : m;
	s = weigh_score(sink, m);
	for (int w = 0; w < ATTEND_WARPS; w++)
		s += sum[w * ATTEND_HEADS] * weigh_score(max[w * ATTEND_HEADS], m);
	for (int i = threadIdx.x; i < a->dv; i += ATTEND_THREADS) {
		x = 0.0f;
		for (int w = 0; w < ATTEND_WARPS; w++)
			x += total[w * ATTEND_HEADS * a->dv + i] *
			     weigh_score(max[w * ATTEND_HEADS], m);
		if (b->parts == 1)
			write_out(a, b->t, (b->head + h) * a->dv + i, x / s);
		else
			to[2 + i] = x;
	}
	if (b->parts > 1 && threadIdx.x == 0) {
		to[0] = m;
		to[1] = s;
	}
}

/* Publishes this block's part. Returns whether this is the last block of the row. */
DEVICE int share_keys(const struct attention_args *a, const struct row_block *b, float *shared)
{
	uint32_t *count = a->ended + blockIdx.x * gridDim.y + blockIdx.y,
		 *ended = (uint32_t *)shared;

	sync_block();
	if (!threadIdx.x)
		*ended = count_ended(count);
	sync_block();
	if (*ended != (uint32_t)b->parts - 1)
		return 0;
	if (!threadIdx.x)
		*count = 0; /* for the next kernel */
	return 1;
}

/*
 * Adds the parts of a head in order, by one warp; a lane weighs each. weight: PARTS_MAX floats a
 * warp.
 */
DEVICE void merge_parts(const struct attention_args *a, const struct row_block *b, float *weight)
{
	int h = threadIdx.x / WARP, lane = threadIdx.x % WARP, step = a->dv + 2;
	const float *from = find_part_of_head(a, b, h, 0);
	float own = -INFINITY, max, sum, sink;

	if (h >= b->heads)
		return;
	sink = load_sink(&a->sinks, b->head + h);
	if (lane < b->parts)
		own = from[lane * step];
	max = fmaxf(own, sink);
	EACH_MASK(mask, 1, WARP)
		max = fmaxf(max, shuffle_xor(max, mask));
	own = weigh_score(own, max);
	sum = lane < b->parts ? from[lane * step + 1] * own : 0.0f;
	EACH_MASK(mask, 1, WARP)
		sum += shuffle_xor(sum, mask);
	sum += weigh_score(sink, max);
	weight += h * PARTS_MAX;
	weight[lane] = own;
	sync_warp();
	for (int j = lane; j < a->dv; j += WARP) {
		float x = 0.0f;

		UNROLL_BY(8)
		for (int i = 0; i < b->parts; i++)
			x += from[i * step + 2 + j] * weight[i];
		write_out(a, b->t, (b->head + h) * a->dv + j, x / sum);
	}
}

/* Writes the block's part, and after the last part the row's result. q: rotated queries. */
DEVICE void end_row(const struct rope_args *r, const struct row_block *b, const float *q, float *p,
                    const float *total, const float *max, const float *sum)
{
	const struct attention_args *a = &r->to;

	for (int h = 0; h < b->heads; h++)
		write_head(a, b, h, total + h * a->dv, max + h, sum + h);
	if (b->parts > 1) {
		if (!share_keys(a, b, p))
			return;
		merge_parts(a, b, p + WARP);
	}
	write_queries(r, b, q);
}

DEVICE void attend_row(const struct rope_args *r, int32_t dtype)
{
	const struct attention_args *a = &r->to;
	DYNAMIC_SHARED(shared);
	float *q = shared, *p = q + ATTEND_HEADS * a->d,
	      *max = p + ATTEND_WARPS * ATTEND_HEADS * (SPAN + 1);
	float *sum = max + ATTEND_WARPS * ATTEND_HEADS, *total = sum + ATTEND_WARPS * ATTEND_HEADS;
	int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, tiled, stores;
	float *own_p = p + warp * ATTEND_HEADS * (SPAN + 1),
	      *own_total = total + warp * ATTEND_HEADS * a->dv;
	struct value_lane l = place_lane(a, dtype == PORT_F32 ? 4 : 8);
	struct row_state s = { -INFINITY, 0.0f };
	float acc[VALUE_CHUNKS][ATTEND_HEADS][8];
	struct row_block b;

	if (!find_block_row(r, &b))
		return;
	tiled = is_tiled(a, b.t);
	stores = r->key >= 0 && !b.part;
	if (tiled && !stores)
		return;
	if (r->key >= 0)
		b.end -= count_new_keys(a, &b);
	prefetch_keys(a, &b, dtype == PORT_F32 ? 4 : 2);
	turn_queries(r, &b, q);
	for (int i = lane; i < ATTEND_HEADS * a->dv; i += WARP)
		own_total[i] = 0.0f;
	EACH(h, ATTEND_HEADS)
		EACH(c, VALUE_CHUNKS)
			EACH(i, 8)
				acc[c][h][i] = 0.0f;
	sync_block();
	if (stores && blockIdx.y % a->head_blocks == 0 && warp == STORE_WARP)
		store_block_row(r, &b);
	if (tiled) {
		write_queries(r, &b, q);
		return;
	}
	add_pages(a, dtype, &b, q, &l, &s, own_p, acc);
	if (stores)
		add_new_keys(r, dtype, &b, q, &s, own_p, acc, own_total);
	add_lanes(a, dtype == PORT_F32 ? 4 : 8, &l, acc, own_total);
	if (lane % 8 == 0) {
		max[warp * ATTEND_HEADS + lane / 8] = s.max;
		sum[warp * ATTEND_HEADS + lane / 8] = s.sum;
	}
	sync_block();
	end_row(r, &b, q, p, total, max, sum);
}

KERNEL(ATTEND_THREADS, attend_rows_f32, rope_args)
{
	attend_row(&a, PORT_F32);
}

KERNEL(ATTEND_THREADS, attend_rows_bf16, rope_args)
{
	attend_row(&a, PORT_BF16);
}

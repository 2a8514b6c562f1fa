/*
 * attention_rows.cuh - attention of few rows. A block computes one row and the query heads that
 * share its keys; a warp has a quarter of each page. Many keys are divided into parts, a block
 * each, so that one sequence fills the GPU: the last block of a row adds the parts in order.
 *
 * In steps of few rows (rope_args.key >= 0) the same launch rotates queries and keys and stores
 * keys and values. No block waits for the stores of another one: each block computes the keys of
 * the step from the operands, and reads only older keys from pages.
 *
 * While the previous kernel ends, a block finds its row and prefetches what earlier steps stored.
 */

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
	const int64_t *pages; /* of its slot */
	int slot, fault; /* fault: FAULT_...; 0: none */
	int64_t first, end; /* its keys in pages; keys of the step follow */
	int g, head, heads; /* key-value head; query heads */
	int lo, hi, part, parts; /* pages of this part; parts of the row */
};

/* Returns whether row i of the step has a key that the block's row attends to. */
DEVICE int is_new_key(const struct attention_args *a, const struct row_block *b, int64_t i)
{
	int position = load_copied(a->position + i);

	return load_copied(a->slot + i) == b->slot && position >= 0 && position <= b->own;
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

/* Returns the page of block u of the row's slot; NULL: none. */
DEVICE char *find_row_page(const struct row_block *b, int64_t u)
{
	return (char *)(uintptr_t)load_copied_wide(b->pages + u);
}

/* Finds the work of this block before the previous kernel ends. Returns 0 if there is none. */
DEVICE int find_block_row(const struct rope_args *r, struct row_block *b)
{
	const struct attention_args *a = &r->to;

	b->t = blockIdx.x;
	b->g = blockIdx.y / a->head_blocks;
	b->heads = find_heads(a, b->g, blockIdx.y % a->head_blocks, &b->head);
	b->slot = load_copied(a->slot + b->t);
	b->own = load_copied(a->position + b->t);
	if (b->heads < 1)
		return 0;
	if (b->slot < 0 || b->slot >= a->slots || b->own < 0 || b->own >= a->blocks * KEYS) {
		b->fault = r->key >= 0 ? FAULT_ATTENTION : 0;
		return 0;
	}
	if (r->width && b->own >= r->positions) {
		b->fault = FAULT_ROPE;
		return 0;
	}
	b->pages = a->page + b->slot * a->page_pitch;
	b->first = find_first_key(a, b->own);
	b->end = b->own + 1;
	if (r->key >= 0)
		b->end -= count_new_keys(a, b);
	return divide_pages(a, b);
}

/* Prefetches what earlier steps stored for the part's first pages, and the angles of the row. */
DEVICE void prefetch_row(const struct rope_args *r, const struct row_block *b, int width)
{
	const struct attention_args *a = &r->to;
	int64_t keys = (int64_t)a->d * KEYS * width, values = (int64_t)a->dv * KEYS * width, bytes;

	if ((int64_t)threadIdx.x * LINE < r->width * 4)
		prefetch_line((const char *)(r->table + b->own * r->table_pitch) +
		              threadIdx.x * LINE);
	for (int u = b->lo; u < b->hi && u < b->lo + WHOLE_PAGES && u * KEYS < b->end; u++) {
		const char *page = find_row_page(b, u);

		if (!page)
			return;
		UNROLL_BY(1)
		for (int64_t at = threadIdx.x * LINE; at < keys; at += ATTEND_THREADS * LINE)
			prefetch_line(page + a->keys + b->g * keys + at);
		bytes = (b->end - u * KEYS) * a->dv * width;
		bytes = !a->v ? 0 : bytes < values ? bytes : values;
		UNROLL_BY(1)
		for (int64_t at = threadIdx.x * LINE; at < bytes; at += ATTEND_THREADS * LINE)
			prefetch_line(page + a->values + b->g * values + at);
	}
}

/* Rotates the queries into q[heads][d], a warp each. */
DEVICE void turn_queries(const struct rope_args *r, const struct row_block *b, float *q)
{
	int h = threadIdx.x / WARP, d = r->to.d;

	if (h < b->heads)
		turn_head(r, r->key == 0, b->t, b->own, b->head + h, q + h * d);
	else
		for (int i = threadIdx.x % WARP; i < d; i += WARP)
			q[h * d + i] = 0.0f;
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

/* Returns the number of floats of a key and its value in shared memory. */
DEVICE int count_key_floats(const struct attention_args *a)
{
	return a->d + (a->v ? a->dv : 0);
}

/*
 * Rotates the key of row t into shared memory, rounded as in the cache, and copies its value after
 * it, by one warp.
 */
DEVICE void load_new_key(const struct rope_args *r, int32_t dtype, int64_t t, int64_t position,
                         int g, float *key)
{
	const struct attention_args *a = &r->to;
	int lane = threadIdx.x % WARP;

	for (int i = lane; a->v && i < a->dv; i += WARP)
		key[a->d + i] = round_cached(dtype, a->v[t * a->v_pitch + g * a->dv + i]);
	turn_head(r, r->key, t, position, g, key);
	sync_warp();
	for (int i = lane; i < a->d; i += WARP)
		key[i] = round_cached(dtype, key[i]);
	sync_warp();
}

/* Stores the key and the value of the block's row, by one warp. key: memory for them. */
DEVICE void store_block_row(const struct rope_args *r, int32_t dtype, const struct row_block *b,
                            float *key)
{
	const struct attention_args *a = &r->to;
	char *page = find_row_page(b, b->own / KEYS);

	if (!page) {
		*a->fault = FAULT_ATTENTION;
		return;
	}
	load_new_key(r, dtype, b->t, b->own, b->g, key);
	UNROLL_BY(2)
	for (int i = threadIdx.x % WARP; i < a->d; i += WARP)
		store_key(a, page, b->own, b->g, i, key[i]);
	UNROLL_BY(2)
	for (int i = threadIdx.x % WARP; a->v && i < a->dv; i += WARP)
		store_value(a, page, b->own, b->g, i, key[a->d + i]);
	sync_warp();
}

DEVICE void scale_sums(const float *factor, const int chunks, float acc[][ATTEND_HEADS][8])
{
	EACH(c, chunks)
		EACH(h, ATTEND_HEADS)
			EACH(i, 8)
				acc[c][h][i] *= factor[h];
}

/* Adds a value of the step, with the weights p[heads][SPAN] of its key, to total. */
DEVICE void add_new_value(const struct attention_args *a, const float *value, const float *p,
                          float *total)
{
	UNROLL_BY(2)
	for (int i = threadIdx.x % WARP; i < a->dv; i += WARP) {
		EACH(h, ATTEND_HEADS) {
			float *to = total + h * a->dv + i;

			*to = fmaf(p[h * SPAN], value[i], *to * p[ATTEND_HEADS * SPAN + h]);
		}
	}
}

/* Adds a key of the step and its value, in shared memory, by one warp. */
DEVICE void add_new_key(const struct attention_args *a, const float *new_key, const float *q,
                        struct row_state *s, float *p, const int chunks,
                        float acc[][ATTEND_HEADS][8], float *total)
{
	int lane = threadIdx.x % WARP, key[2] = { lane % 8 * 2, lane % 8 * 2 + 1 };
	float z[ATTEND_HEADS] = { 0, 0, 0, 0 };

	UNROLL_BY(2)
	for (int i = lane; i < a->d; i += WARP)
		EACH(h, ATTEND_HEADS)
			z[h] = fmaf(q[h * a->d + i], new_key[i], z[h]);
	fold_lanes(z, 4, 16);
	fold_lanes(z, 2, 8);
	EACH_MASK(mask, 1, 8)
		z[0] += shuffle_xor(z[0], mask);
	z[1] = 0.0f;
	weigh_span(a, 0, 0, 1, key, z, s, p);
	scale_sums(p + ATTEND_HEADS * SPAN, chunks, acc);
	add_new_value(a, new_key + (a->v ? a->d : 0), p, total);
	sync_warp();
}

/* Adds the keys of the step; the warps take turns. key: memory of the warp for one. */
DEVICE void add_new_keys(const struct rope_args *r, int32_t dtype, const struct row_block *b,
                         const float *q, struct row_state *s, float *p, float *key,
                         const int chunks, float acc[][ATTEND_HEADS][8], float *total)
{
	const struct attention_args *a = &r->to;
	int alone = b->own + 1 - b->end == 1, warp = OWN_KEY_WARP;
	int64_t to = alone ? b->t + 1 : a->rows;

	UNROLL_BY(1)
	for (int64_t i = alone ? b->t : 0; i < to; i++) {
		int64_t position = alone ? b->own : load_copied(a->position + i);

		if (!alone && (!is_new_key(a, b, i) || position < b->first))
			continue;
		if (warp == (int)threadIdx.x / WARP) {
			load_new_key(r, dtype, i, position, b->g, key);
			add_new_key(a, key, q, s, p, chunks, acc, total);
		}
		warp = (warp + 1) % ATTEND_WARPS;
	}
}

/* Adds the spans of the part's pages that belong to a warp. */
DEVICE void add_pages(const struct attention_args *a, int32_t dtype, const struct row_block *b,
                      const float *q, const struct value_lane *l, struct row_state *s, float *p,
                      const int chunks, float acc[][ATTEND_HEADS][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2;
	int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;

	for (int64_t base = (int64_t)b->lo * KEYS + warp * SPAN;
	     base < (int64_t)b->hi * KEYS && base < b->end; base += KEYS) {
		const char *page, *keys, *values;

		if (base + SPAN <= b->first)
			continue;
		page = find_row_page(b, base / KEYS);
		if (!page) {
			*a->fault = FAULT_ATTENTION;
			break;
		}
		keys = page + a->keys + (int64_t)b->g * a->d * KEYS * width;
		values = a->v ? page + a->values + (int64_t)b->g * a->dv * KEYS * width : keys;
		values += base % KEYS * (a->v ? a->dv : a->d) * width;
		UNROLL_BY(1)
		for (int at = lane * LINE; a->v && at < SPAN * a->dv * width; at += WARP * LINE)
			prefetch_line(values + at); /* they arrive while keys are multiplied */
		score_span(a, dtype, keys, q, base, b->first, b->end, s, p);
		scale_sums(p + ATTEND_HEADS * SPAN, chunks, acc);
		add_values(a, dtype, values, p, base, b->first, b->end, l, chunks, acc);
		sync_warp();
	}
}

/* Returns the address of a part of a head: maximum, sum, weighted values. */
DEVICE float *find_part_of_head(const struct attention_args *a, const struct row_block *b, int h,
                                int part)
{
	return a->part + ((b->t * a->heads + b->head + h) * a->parts + part) * (a->dv + 2);
}

/* Writes the results of heads, or of their parts of the keys, by a warp each. */
DEVICE void write_heads(const struct attention_args *a, const struct row_block *b,
                        const float *total, const float *max, const float *sum)
{
	int h = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	float m = -INFINITY, s, factor[ATTEND_WARPS], x, *to;

	if (h >= b->heads)
		return;
	if (b->parts == 1)
		m = load_sink(&a->sinks, b->head + h);
	s = m;
	EACH(w, ATTEND_WARPS)
		m = max[w * ATTEND_HEADS + h] > m ? max[w * ATTEND_HEADS + h] : m;
	s = weigh_score(s, m);
	EACH(w, ATTEND_WARPS) {
		factor[w] = weigh_score(max[w * ATTEND_HEADS + h], m);
		s += sum[w * ATTEND_HEADS + h] * factor[w];
	}
	to = find_part_of_head(a, b, h, b->part);
	for (int i = lane; i < a->dv; i += WARP) {
		x = 0.0f;
		EACH(w, ATTEND_WARPS)
			x += total[(w * ATTEND_HEADS + h) * a->dv + i] * factor[w];
		if (b->parts == 1)
			write_out(a, b->t, (b->head + h) * a->dv + i, x / s);
		else
			to[2 + i] = x;
	}
	if (b->parts > 1 && !lane) {
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

	write_heads(a, b, total, max, sum);
	if (b->parts > 1) {
		if (!share_keys(a, b, p))
			return;
		merge_parts(a, b, p + WARP);
	}
	write_queries(r, b, q);
}

/* chunks: registers for that many parts of a value. */
DEVICE void attend_row(const struct rope_args *r, int32_t dtype, const int chunks)
{
	const struct attention_args *a = &r->to;
	DYNAMIC_SHARED(shared);
	float *q = shared, *p = q + ATTEND_HEADS * a->d,
	      *max = p + ATTEND_WARPS * ATTEND_HEADS * (SPAN + 1);
	float *sum = max + ATTEND_WARPS * ATTEND_HEADS, *total = sum + ATTEND_WARPS * ATTEND_HEADS;
	int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, works, stores;
	float *own_p = p + warp * ATTEND_HEADS * (SPAN + 1),
	      *own_total = total + warp * ATTEND_HEADS * a->dv,
	      *key = total + ATTEND_WARPS * ATTEND_HEADS * a->dv + warp * count_key_floats(a);
	struct value_lane l = place_lane(a, dtype == PORT_F32 ? 4 : 8);
	struct row_state s = { -INFINITY, 0.0f };
	float acc[CHUNKS_F32][ATTEND_HEADS][8];
	struct row_block b = { 0 };

	works = find_block_row(r, &b);
	if (works)
		prefetch_row(r, &b, dtype == PORT_F32 ? 4 : 2);
	UNROLL_BY(1)
	for (int i = lane; i < ATTEND_HEADS * a->dv; i += WARP)
		own_total[i] = 0.0f;
	EACH(h, ATTEND_HEADS)
		EACH(c, chunks)
			EACH(i, 8)
				acc[c][h][i] = 0.0f;
	wait_for_kernels();
	if (b.fault)
		*a->fault = b.fault;
	if (!works || is_tiled(a, b.t))
		return;
	stores = r->key >= 0 && !b.part;
	turn_queries(r, &b, q);
	sync_block();
	if (stores && blockIdx.y % a->head_blocks == 0 && warp == STORE_WARP)
		store_block_row(r, dtype, &b, key);
	add_pages(a, dtype, &b, q, &l, &s, own_p, chunks, acc);
	if (stores)
		add_new_keys(r, dtype, &b, q, &s, own_p, key, chunks, acc, own_total);
	add_lanes(a, dtype == PORT_F32 ? 4 : 8, &l, chunks, acc, own_total);
	if (lane % 8 == 0) {
		max[warp * ATTEND_HEADS + lane / 8] = s.max;
		sum[warp * ATTEND_HEADS + lane / 8] = s.sum;
	}
	sync_block();
	end_row(r, &b, q, p, total, max, sum);
}

KERNEL_EARLY(ATTEND_THREADS, 1, attend_rows_f32, rope_args)
{
	attend_row(&a, PORT_F32, CHUNKS_F32);
}

/* Values of at most VALUE_SHORT elements: 64 sequences of 8 key-value heads run at once. */
KERNEL_EARLY(ATTEND_THREADS, 4, attend_rows_bf16, rope_args)
{
	attend_row(&a, PORT_BF16, CHUNKS_SHORT);
}

KERNEL_EARLY(ATTEND_THREADS, 1, attend_rows_long, rope_args)
{
	attend_row(&a, PORT_BF16, CHUNKS_BF16);
}

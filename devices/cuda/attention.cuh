/*
 * attention.cuh - attention over KV pages, in f32. A page has the keys of 64 positions as [d, 64],
 * and their values as [64, dv]; or keys as [64, d], whose first dv elements are the values. Sums over
 * keys are made online: maximum, sum, weighted values.
 *
 * attend_rows: a block for one row, the query heads that share its keys, and a part of the keys,
 * so that one text fills the GPU; a warp has a quarter of each page, and merge_parts adds the parts
 * in order. attend_tiles: a block for 32
 * adjacent rows of a text and one head.
 */

/* Adjacent rows with the slot of row t, up to TILED_ROWS_MIN. */
DEVICE int count_run(const struct attention_args *a, int64_t t)
{
	int32_t slot = a->slot[t];
	int n = 1;

	for (int64_t i = t - 1; i >= 0 && n < TILED_ROWS_MIN && a->slot[i] == slot; i--)
		n++;
	for (int64_t i = t + 1; i < a->rows && n < TILED_ROWS_MIN && a->slot[i] == slot; i++)
		n++;
	return n;
}

/* Rows of a slot are adjacent: in the middle of a run one look is enough. */
DEVICE int is_tiled(const struct attention_args *a, int64_t t)
{
	const int64_t far = t + TILED_ROWS_MIN - 1;

	return a->tiled &&
	       ((far < a->rows && a->slot[far] == a->slot[t]) || count_run(a, t) == TILED_ROWS_MIN);
}

/* Whether row t has a slot and a position in its pages. */
DEVICE int has_place(const struct attention_args *a, int64_t t)
{
	return a->slot[t] >= 0 && a->slot[t] < a->slots && a->position[t] >= 0 &&
	       a->position[t] < a->blocks * KEYS;
}

/* The page with block u of row t's slot; NULL, and a fault: there is none. */
DEVICE char *find_page(const struct attention_args *a, int64_t t, int64_t u)
{
	char *page = (char *)(uintptr_t)a->page[a->slot[t] * a->page_pitch + u];

	if (!page)
		*a->fault = FAULT_ATTENTION;
	return page;
}

DEVICE void write_out(const struct attention_args *a, int64_t t, int at, float x)
{
	a->out[t * a->out_pitch + at] = x;
	if (a->rounded)
		a->rounded[t * a->heads * a->dv + at] = (uint16_t)pack_bf16(x, 0.0f);
}

DEVICE int64_t find_first_key(const struct attention_args *a, int64_t position)
{
	return a->window && position >= a->window ? position - a->window + 1 : 0;
}

DEVICE void store_cached(char *p, int32_t dtype, int64_t at, float x)
{
	if (dtype == PORT_F32)
		((float *)p)[at] = x;
	else
		((uint16_t *)p)[at] = round_bf16(x);
}

KERNEL(ATTEND_THREADS, store_keys, attention_args)
{
	int64_t t = blockIdx.x, g = blockIdx.y, width = a.dtype == PORT_F32 ? 4 : 2, at;
	char *page;

	if (!has_place(&a, t)) {
		*a.fault = FAULT_ATTENTION;
		return;
	}
	at = a.position[t] % KEYS;
	page = find_page(&a, t, a.position[t] / KEYS);
	if (!page)
		return;
	for (int64_t i = threadIdx.x; i < a.d; i += ATTEND_THREADS)
		store_cached(page + a.keys + g * a.d * KEYS * width, a.dtype,
		             a.v ? i * KEYS + at : at * a.d + i, a.k[t * a.k_pitch + g * a.d + i]);
	for (int64_t i = threadIdx.x; a.v && i < a.dv; i += ATTEND_THREADS)
		store_cached(page + a.values + g * a.dv * KEYS * width, a.dtype, at * a.dv + i,
		             a.v[t * a.v_pitch + g * a.dv + i]);
}

/* 16 bytes of the cache, of which `n` elements from `at` on are there. */
DEVICE void load_cached(const char *p, int32_t dtype, int64_t at, int64_t n, float *out)
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width;

	if (n >= per && ((uintptr_t)p + at * width) % 16 == 0) {
		widen_quad(load_quad(p + at * width), dtype, out);
		return;
	}
	EACH(i, per)
		out[i] = i < n ? widen_element(p, dtype, at + i) : 0.0f;
}

DEVICE float limit_score(const struct attention_args *a, float z)
{
	return a->softcap != 0.0f ? a->softcap * mathf_tanh(z / a->softcap) : z;
}

DEVICE float scale_score(const struct attention_args *a, float z)
{
	return limit_score(a, z * a->scale);
}

/* e^(x - max); 0 for what no key has been seen of. */
DEVICE float weigh_score(float x, float max)
{
	return x == -INFINITY ? 0.0f : mathf_exp(x - max);
}

struct row_state { /* of the heads of a warp */
	float max[ATTEND_HEADS], sum[ATTEND_HEADS];
};

/*
 * q * k of the lane's keys, of keys [d, 64] those from `at` on, with every WARP / cover-th element;
 * several loads are under way at a time where they are aligned.
 */
DEVICE void multiply_keys(const struct attention_args *a, int32_t dtype, const char *keys,
                          const float *q, int at, float z[][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width, cover = SPAN / per;
	const int step = WARP / cover;
	int wide = (uintptr_t)keys % 16 == 0;

	for (int i0 = threadIdx.x % WARP / cover; i0 < a->d; i0 += step * LOADS) {
		struct quad v[LOADS];
		float k[8];

		EACH(n, LOADS)
			if (wide && i0 + n * step < a->d)
				v[n] = load_quad(keys + ((i0 + n * step) * KEYS + at) * width);
		EACH(n, LOADS) {
			int i = i0 + n * step;

			if (i >= a->d)
				break;
			if (wide)
				widen_quad(v[n], dtype, k);
			else
				load_cached(keys, dtype, (int64_t)i * KEYS + at, per, k);
			EACH(h, ATTEND_HEADS)
				EACH(j, per)
					z[h][j] = fmaf(q[h * a->d + i], k[j], z[h][j]);
		}
	}
	EACH(h, ATTEND_HEADS)
		EACH(j, per)
			EACH_MASK(mask, cover, WARP)
				z[h][j] += shuffle_xor(z[h][j], mask);
}

/* The same of keys [64, d]: the one at `at`, with the other half of the warp. */
DEVICE void multiply_key_row(const struct attention_args *a, int32_t dtype, const char *keys,
                             const float *q, int at, float z[][8])
{
	const int per = dtype == PORT_F32 ? 4 : 8;
	float k[8];

	UNROLL_BY(4)
	for (int i = threadIdx.x % WARP / SPAN * per; i < a->d; i += WARP / SPAN * per) {
		load_cached(keys, dtype, (int64_t)at * a->d + i, a->d - i, k);
		EACH(e, per)
			EACH(h, ATTEND_HEADS)
				if (i + e < a->d)
					z[h][0] = fmaf(q[h * a->d + i + e], k[e], z[h][0]);
	}
	EACH(h, ATTEND_HEADS)
		z[h][0] += shuffle_xor(z[h][0], SPAN);
}

/*
 * The scores of `per` keys a lane, of which `cover` lanes have the span, become weights: those of
 * keys [first, end) go to p[heads][SPAN], and the factors of what was added before to `factor`.
 */
DEVICE void weigh_span(const struct attention_args *a, const int per, const int cover, int64_t base,
                       int64_t first, int64_t end, float z[][8], struct row_state *s, float *p,
                       float *factor)
{
	int at = threadIdx.x % WARP % cover * per;

	EACH(h, ATTEND_HEADS) {
		float max = -INFINITY, sum = 0.0f;

		EACH(j, per) {
			int64_t key = base + at + j;

			z[h][j] = key >= first && key < end ? scale_score(a, z[h][j]) : -INFINITY;
			max = z[h][j] > max ? z[h][j] : max;
		}
		EACH_MASK(mask, 1, cover) {
			float other = shuffle_xor(max, mask);

			max = other > max ? other : max;
		}
		max = s->max[h] > max ? s->max[h] : max;
		EACH(j, per) {
			z[h][j] = weigh_score(z[h][j], max);
			sum += z[h][j];
		}
		EACH_MASK(mask, 1, cover)
			sum += shuffle_xor(sum, mask);
		factor[h] = weigh_score(s->max[h], max);
		s->sum[h] = s->sum[h] * factor[h] + sum;
		s->max[h] = max;
		EACH(j, per)
			if ((int)(threadIdx.x % WARP) < cover)
				p[h * SPAN + at + j] = z[h][j];
	}
	sync_warp();
}

/* The span of a page: its weights, and the factors of what was added before. */
DEVICE void score_span(const struct attention_args *a, int32_t dtype, const char *keys,
                       const float *q, int64_t base, int64_t first, int64_t end,
                       struct row_state *s, float *p, float *factor)
{
	const int per = dtype == PORT_F32 ? 4 : 8, cover = SPAN / per;
	int lane = threadIdx.x % WARP, at = base % KEYS;
	float z[ATTEND_HEADS][8];

	EACH(h, ATTEND_HEADS)
		EACH(j, per)
			z[h][j] = 0.0f;
	if (a->v) {
		multiply_keys(a, dtype, keys, q, at + lane % cover * per, z);
		weigh_span(a, per, cover, base, first, end, z, s, p, factor);
	} else {
		multiply_key_row(a, dtype, keys, q, at + lane % SPAN, z);
		weigh_span(a, 1, SPAN, base, first, end, z, s, p, factor);
	}
}

/* Where a lane adds values: positions row, row + rows, ..; elements at + [0, per) of each chunk. */
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

enum { VALUE_CHUNKS = VALUE_MAX / (4 * WARP) }; /* of f32; of bf16 half as many, each twice */

/* Adds the weighted values of keys [first, end) of a span, which begins at `values`. */
DEVICE void add_values(const struct attention_args *a, int32_t dtype, const char *values,
                       const float *p, int64_t base, int64_t first, int64_t end,
                       const struct value_lane *l, float sum[][ATTEND_HEADS][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width;
	int lo = first > base ? (int)(first - base) : 0,
	    hi = end - base < SPAN ? (int)(end - base) : SPAN;
	int pitch = a->v ? a->dv : a->d;
	int wide = (uintptr_t)values % 16 == 0 && pitch % per == 0 && a->dv % per == 0;

	EACH(c, VALUE_MAX / (per * WARP)) {
		int at = l->at + c * per * WARP;

		if (!l->active || at >= a->dv)
			break;
		for (int j0 = lo + l->row; j0 < hi; j0 += l->rows * LOADS) {
			struct quad quads[LOADS];
			float v[8];

			EACH(n, LOADS)
				if (wide && j0 + n * l->rows < hi)
					quads[n] = load_quad(
						values + ((j0 + n * l->rows) * pitch + at) * width);
			EACH(n, LOADS) {
				int j = j0 + n * l->rows;

				if (j >= hi)
					break;
				if (wide)
					widen_quad(quads[n], dtype, v);
				else
					load_cached(values, dtype, (int64_t)j * pitch + at,
					            a->dv - at, v);
				EACH(h, ATTEND_HEADS)
					EACH(i, per)
						sum[c][h][i] =
							fmaf(p[h * SPAN + j], v[i], sum[c][h][i]);
			}
		}
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

			EACH(h, ATTEND_HEADS)
				EACH(i, per)
					if (l->active && l->row == row && at + i < a->dv)
						total[h * a->dv + at + i] += sum[c][h][i];
		}
		sync_warp();
	}
}

/* The query heads of block `at` of those that read key-value head g: the first, and how many. */
DEVICE int find_heads(const struct attention_args *a, int g, int at, int *first)
{
	int begin = (a->first_head / a->group + g) * a->group - a->first_head,
	    end = begin + a->group;

	*first = (begin > 0 ? begin : 0) + at * ATTEND_HEADS;
	end = (end < a->heads ? end : a->heads) - *first;
	return end < ATTEND_HEADS ? end : ATTEND_HEADS;
}

/* Writes one head's result, or what its part of the keys gives. */
DEVICE void write_head(const struct attention_args *a, int64_t t, int head, int part,
                       const float *total, const float *max, const float *sum)
{
	float *to = a->part + ((t * a->heads + head) * a->parts + part) * (a->dv + 2);
	float m = -INFINITY, s = 0.0f, x;

	for (int w = 0; w < ATTEND_WARPS; w++)
		m = max[w * ATTEND_HEADS] > m ? max[w * ATTEND_HEADS] : m;
	for (int w = 0; w < ATTEND_WARPS; w++)
		s += sum[w * ATTEND_HEADS] * weigh_score(max[w * ATTEND_HEADS], m);
	for (int i = threadIdx.x; i < a->dv; i += ATTEND_THREADS) {
		x = 0.0f;
		for (int w = 0; w < ATTEND_WARPS; w++)
			x += total[w * ATTEND_HEADS * a->dv + i] *
			     weigh_score(max[w * ATTEND_HEADS], m);
		if (a->parts == 1)
			write_out(a, t, head * a->dv + i, x / s);
		else
			to[2 + i] = x;
	}
	if (a->parts > 1 && threadIdx.x == 0) {
		to[0] = m;
		to[1] = s;
	}
}

/* The pages with keys of a row at position `own`; each part has so many of them, the last fewer. */
DEVICE int find_pages(const struct attention_args *a, int64_t own, int *first, int *each)
{
	int end = (int)(own / KEYS) + 1;

	*first = (int)(find_first_key(a, own) / KEYS);
	*each = (end - *first + a->parts - 1) / a->parts;
	return end - *first;
}

DEVICE void attend_row(const struct attention_args *a, int32_t dtype)
{
	const int per = dtype == PORT_F32 ? 4 : 8, width = 16 / per;
	DYNAMIC_SHARED(shared);
	float *q = shared, *p = q + ATTEND_HEADS * a->d,
	      *max = p + ATTEND_WARPS * ATTEND_HEADS * SPAN;
	float *sum = max + ATTEND_WARPS * ATTEND_HEADS, *total = sum + ATTEND_WARPS * ATTEND_HEADS;
	int64_t t = blockIdx.x, own, first;
	int pages, lo, hi, each;
	int g = blockIdx.y / a->head_blocks, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	int head, heads = find_heads(a, g, blockIdx.y % a->head_blocks, &head);
	struct value_lane l = place_lane(a, per);
	struct row_state s;
	float acc[VALUE_CHUNKS][ATTEND_HEADS][8], factor[ATTEND_HEADS];

	if (heads < 1 || !has_place(a, t) || is_tiled(a, t))
		return;
	own = a->position[t];
	first = find_first_key(a, own);
	pages = find_pages(a, own, &lo, &each);
	hi = lo + pages;
	lo += (int)blockIdx.z * each;
	hi = lo + each < hi ? lo + each : hi;
	if (lo >= hi) /* merge_parts reads no such part */
		return;
	for (int i = threadIdx.x; i < ATTEND_HEADS * a->d; i += ATTEND_THREADS)
		q[i] = i < heads * a->d ? a->q[t * a->q_pitch + head * a->d + i] : 0.0f;
	p += warp * ATTEND_HEADS * SPAN;
	total += warp * ATTEND_HEADS * a->dv;
	for (int i = lane; i < ATTEND_HEADS * a->dv; i += WARP)
		total[i] = 0.0f;
	EACH(h, ATTEND_HEADS) {
		s.max[h] = -INFINITY;
		s.sum[h] = 0.0f;
		EACH(c, VALUE_CHUNKS)
			EACH(i, 8)
				acc[c][h][i] = 0.0f;
	}
	sync_block();
	for (int64_t base = (int64_t)lo * KEYS + warp * SPAN;
	     base < (int64_t)hi * KEYS && base <= own; base += KEYS) {
		const char *page, *keys, *values;

		if (base + SPAN <= first)
			continue;
		page = find_page(a, t, base / KEYS);
		if (!page)
			break;
		keys = page + a->keys + (int64_t)g * a->d * KEYS * width;
		values = a->v ? page + a->values + (int64_t)g * a->dv * KEYS * width : keys;
		values += base % KEYS * (a->v ? a->dv : a->d) * width;
		score_span(a, dtype, keys, q, base, first, own + 1, &s, p, factor);
		EACH(c, VALUE_CHUNKS)
			EACH(h, ATTEND_HEADS)
				EACH(i, 8)
					acc[c][h][i] *= factor[h];
		add_values(a, dtype, values, p, base, first, own + 1, &l, acc);
		sync_warp();
	}
	add_lanes(a, per, &l, acc, total);
	EACH(h, ATTEND_HEADS) {
		if (lane) /* all have the same */
			break;
		max[warp * ATTEND_HEADS + h] = s.max[h];
		sum[warp * ATTEND_HEADS + h] = s.sum[h];
	}
	sync_block();
	total -= warp * ATTEND_HEADS * a->dv;
	for (int h = 0; h < heads; h++)
		write_head(a, t, head + h, blockIdx.z, total + h * a->dv, max + h, sum + h);
}

KERNEL(ATTEND_THREADS, attend_rows_f32, attention_args)
{
	attend_row(&a, PORT_F32);
}

KERNEL(ATTEND_THREADS, attend_rows_bf16, attention_args)
{
	attend_row(&a, PORT_BF16);
}

/* A block adds the parts of one row's head, in order; a lane of its first warp weighs each. */
KERNEL(ATTEND_THREADS, merge_parts, attention_args)
{
	SHARED float weight[PARTS_MAX], total;
	int64_t t = blockIdx.x, step = a.dv + 2;
	const float *from = a.part + (t * a.heads + blockIdx.y) * a.parts * step;
	int first, each, pages, parts, at = threadIdx.x;

	if (!has_place(&a, t) || is_tiled(&a, t))
		return;
	pages = find_pages(&a, a.position[t], &first, &each);
	parts = (pages + each - 1) / each;
	if (at < WARP) {
		float own = at < parts ? from[at * step] : -INFINITY, max = own, w, sum;

		EACH_MASK(mask, 1, WARP)
			max = fmaxf(max, shuffle_xor(max, mask));
		w = weigh_score(own, max);
		sum = at < parts ? from[at * step + 1] * w : 0.0f;
		EACH_MASK(mask, 1, WARP)
			sum += shuffle_xor(sum, mask);
		weight[at] = w;
		if (!at)
			total = sum;
	}
	sync_block();
	for (int j = threadIdx.x; j < a.dv; j += ATTEND_THREADS) {
		float x = 0.0f;

		UNROLL_BY(8)
		for (int i = 0; i < parts; i++)
			x += from[i * step + 2 + j] * weight[i];
		write_out(&a, t, blockIdx.y * a.dv + j, x / total);
	}
}

/* ---- tiles ----------------------------------------------------------------------------------- */

enum { TILE_EACH = 4 }; /* rows, and keys or elements, of a thread's square */

struct tile { /* rows [from, to) of those from `row` on, which are of one slot */
	int64_t row, position; /* of the tile's row 0, as if it were of that slot */
	int from, to, head, g;
	int64_t first, end; /* keys that any row sees */
	float *q, *kv, *p; /* [D][32]; keys [D][64], or values [64][D]; weights [64][32] */
};

/* Keys or values of block u, with zeros where there are none: in shared memory, all threads. */
DEVICE void load_page(const struct attention_args *a, const struct tile *t, const int D, int64_t u,
                      const char *page, int values)
{
	int64_t width = a->dtype == PORT_F32 ? 4 : 2;
	int n = values ? a->dv : a->d;
	const char *from = page + (values ? a->values : a->keys) + (int64_t)t->g * n * KEYS * width;

	sync_block(); /* what was there has been used */
	for (int at = threadIdx.x; at < D * KEYS; at += ATTEND_THREADS) {
		int key = values ? at / D : at % KEYS, i = values ? at % D : at / KEYS;
		int there = i < n && u * KEYS + key >= t->first && u * KEYS + key < t->end;

		t->kv[at] =
			there ? widen_element(from, a->dtype, values ? (int64_t)key * n + i : at)
			      : 0.0f;
	}
	sync_block();
}

DEVICE void multiply_square(const float *rows, const float *columns, float sum[][TILE_EACH])
{
	EACH(r, TILE_EACH)
		EACH(c, TILE_EACH)
			sum[r][c] = fmaf(rows[r], columns[c], sum[r][c]);
}

/* Scores of the thread's square become weights; row by row, 16 lanes have all keys of a row. */
DEVICE void weigh_square(const struct attention_args *a, const struct tile *t, int64_t u,
                         float z[][TILE_EACH], float *max, float *sum, float *factor)
{
	int r0 = threadIdx.x / 16 * TILE_EACH, c0 = threadIdx.x % 16 * TILE_EACH;

	EACH(r, TILE_EACH) {
		int64_t own = t->position + r0 + r, first = find_first_key(a, own);
		float m = max[r], s = 0.0f;

		EACH(c, TILE_EACH) {
			int64_t key = u * KEYS + c0 + c;
			int seen =
				r0 + r >= t->from && r0 + r < t->to && key >= first && key <= own;

			z[r][c] = seen ? scale_score(a, z[r][c]) : -INFINITY;
			m = z[r][c] > m ? z[r][c] : m;
		}
		EACH_MASK(mask, 1, 16) {
			float other = shuffle_xor(m, mask);

			m = other > m ? other : m;
		}
		EACH(c, TILE_EACH) {
			z[r][c] = weigh_score(z[r][c], m);
			s += z[r][c];
			t->p[(c0 + c) * TILE_ROWS + r0 + r] = z[r][c];
		}
		EACH_MASK(mask, 1, 16)
			s += shuffle_xor(s, mask);
		factor[r] = weigh_score(max[r], m);
		sum[r] = sum[r] * factor[r] + s;
		max[r] = m;
	}
}

/* Rows [from, to) of a tile, D elements a head at most. */
DEVICE void attend_tile(const struct attention_args *a, struct tile *t, const int D)
{
	DYNAMIC_SHARED(shared);
	int r0 = threadIdx.x / 16 * TILE_EACH, c0 = threadIdx.x % 16 * TILE_EACH;
	float acc[TILED_HEAD_MAX / KEYS][TILE_EACH][TILE_EACH], max[TILE_EACH], sum[TILE_EACH];

	t->q = shared;
	t->kv = t->q + D * TILE_ROWS;
	t->p = t->kv + D * KEYS;
	EACH(r, TILE_EACH) {
		max[r] = -INFINITY;
		sum[r] = 0.0f;
		EACH(c, TILE_EACH)
			EACH(j, D / KEYS)
				acc[j][r][c] = 0.0f;
	}
	sync_block();
	for (int at = threadIdx.x; at < D * TILE_ROWS; at += ATTEND_THREADS) {
		int r = at / D, i = at % D;

		t->q[i * TILE_ROWS + r] =
			r >= t->from && r < t->to && i < a->d
				? a->q[(t->row + r) * a->q_pitch + t->head * a->d + i]
				: 0.0f;
	}
	for (int64_t u = t->first / KEYS; u * KEYS < t->end; u++) {
		const char *page = find_page(a, t->row + t->from, u);
		float z[TILE_EACH][TILE_EACH], factor[TILE_EACH];

		if (!page)
			return;
		load_page(a, t, D, u, page, 0);
		EACH(r, TILE_EACH)
			EACH(c, TILE_EACH)
				z[r][c] = 0.0f;
		UNROLL_BY(4)
		for (int i = 0; i < a->d; i++) {
			float q[TILE_EACH], k[TILE_EACH];

			widen_quad(load_quad(t->q + i * TILE_ROWS + r0), PORT_F32, q);
			widen_quad(load_quad(t->kv + i * KEYS + c0), PORT_F32, k);
			multiply_square(q, k, z);
		}
		weigh_square(a, t, u, z, max, sum, factor);
		EACH(j, D / KEYS)
			EACH(r, TILE_EACH)
				EACH(c, TILE_EACH)
					acc[j][r][c] *= factor[r];
		load_page(a, t, D, u, page, 1);
		UNROLL_BY(4)
		for (int key = 0; key < KEYS; key++) {
			float p[TILE_EACH], v[TILE_EACH];

			widen_quad(load_quad(t->p + key * TILE_ROWS + r0), PORT_F32, p);
			EACH(j, D / KEYS) {
				widen_quad(load_quad(t->kv + key * D + j * KEYS + c0), PORT_F32, v);
				multiply_square(p, v, acc[j]);
			}
		}
	}
	EACH(j, D / KEYS)
		EACH(r, TILE_EACH)
			EACH(c, TILE_EACH) {
				int i = j * KEYS + c0 + c;

				if (r0 + r >= t->from && r0 + r < t->to && i < a->dv)
					write_out(a, t->row + r0 + r, t->head * a->dv + i,
					          acc[j][r][c] / sum[r]);
			}
}

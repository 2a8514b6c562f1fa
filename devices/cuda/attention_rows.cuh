/*
 * attention_rows.cuh - attention of few rows: a block for one row, the query heads that share its
 * keys, and a part of the keys, so that one text fills the GPU; a warp has a quarter of each page,
 * and merge_parts adds the parts in order.
 */

/*
 * A warp has the sums of SPAN keys and four heads at last: a lane those of head lane / 8 and two
 * keys.
 */
struct row_state { /* of the lane's head */
	float max, sum;
};

/*
 * Adds q * k of `per` keys, [d, 64] from `at` on, for elements i0, i0 + step, ..: LOADS of them, or
 * those before d; `whole`: all are, and aligned, so that no branch is between them.
 */
DEVICE void add_key_elements(const struct attention_args *a, int32_t dtype, const char *keys,
                             const float *q, int at, int i0, const int whole, float z[][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width, step = WARP / (SPAN / per);
	struct quad v[LOADS];
	float k[8];

	EACH(n, LOADS)
		if (whole)
			v[n] = load_quad(keys + ((i0 + n * step) * KEYS + at) * width);
	EACH(n, LOADS) {
		int i = i0 + n * step;

		if (!whole && i >= a->d)
			break;
		if (whole)
			widen_quad(v[n], dtype, k);
		else
			load_cached(keys, dtype, (int64_t)i * KEYS + at, per, k);
		EACH(h, ATTEND_HEADS)
			EACH(j, per)
				z[h][j] = fmaf(q[h * a->d + i], k[j], z[h][j]);
	}
}

/* q * k of the span of keys [d, 64] that begins at `base`: the lane's two, and which they are. */
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

/* The same of keys [64, d]: half a warp has each, and half of its elements. */
DEVICE void multiply_key_rows(const struct attention_args *a, int32_t dtype, const char *keys,
                              const float *q, int base, int *key, float *sum)
{
	const int per = dtype == PORT_F32 ? 4 : 8;
	int lane = threadIdx.x % WARP, at = base + lane % SPAN;
	float k[8], z[ATTEND_HEADS] = { 0, 0, 0, 0 }, other;

	UNROLL_BY(4)
	for (int i = lane / SPAN * per; i < a->d; i += WARP / SPAN * per) {
		load_cached(keys, dtype, (int64_t)at * a->d + i, a->d - i, k);
		EACH(e, per)
			EACH(h, ATTEND_HEADS)
				if (i + e < a->d)
					z[h] = fmaf(q[h * a->d + i + e], k[e], z[h]);
	}
	fold_lanes(z, 4, 16);
	other = shuffle_xor(lane & 8 ? z[0] : z[1], 8); /* a head for a key */
	key[0] = lane % SPAN;
	key[1] = lane % SPAN ^ 8;
	sum[0] = lane & 8 ? z[1] : z[0];
	sum[1] = other;
}

/*
 * The scores of the lane's two keys become weights: those of keys [first, end) go to p[heads][SPAN],
 * and behind them the factors of what was added before.
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

/* The span of a page: its weights, and the factors of what was added before, to p. */
DEVICE void score_span(const struct attention_args *a, int32_t dtype, const char *keys,
                       const float *q, int64_t base, int64_t first, int64_t end,
                       struct row_state *s, float *p)
{
	int key[2];
	float z[2];

	if (a->v)
		multiply_keys(a, dtype, keys, q, base % KEYS, key, z);
	else
		multiply_key_rows(a, dtype, keys, q, base % KEYS, key, z);
	weigh_span(a, base, first, end, key, z, s, p);
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

/* Of elements `at` of the values j0, j0 + rows, ..: LOADS of them, or those before `hi` (`whole`). */
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

/* Adds the weighted values of keys [first, end) of a span, which begins at `values`. */
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

/* to[4] += x: at once where `wide` says that all are there and aligned, else the first n. */
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
	      *max = p + ATTEND_WARPS * ATTEND_HEADS * (SPAN + 1);
	float *sum = max + ATTEND_WARPS * ATTEND_HEADS, *total = sum + ATTEND_WARPS * ATTEND_HEADS;
	int64_t t = blockIdx.x, own, first;
	int pages, lo, hi, each;
	int g = blockIdx.y / a->head_blocks, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	int head, heads = find_heads(a, g, blockIdx.y % a->head_blocks, &head);
	struct value_lane l = place_lane(a, per);
	struct row_state s = { -INFINITY, 0.0f };
	float acc[VALUE_CHUNKS][ATTEND_HEADS][8];

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
	p += warp * ATTEND_HEADS * (SPAN + 1);
	total += warp * ATTEND_HEADS * a->dv;
	for (int i = lane; i < ATTEND_HEADS * a->dv; i += WARP)
		total[i] = 0.0f;
	EACH(h, ATTEND_HEADS)
		EACH(c, VALUE_CHUNKS)
			EACH(i, 8)
				acc[c][h][i] = 0.0f;
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
		for (int at = lane * LINE; a->v && at < SPAN * a->dv * width; at += WARP * LINE)
			prefetch_line(values + at); /* they come while keys are multiplied */
		score_span(a, dtype, keys, q, base, first, own + 1, &s, p);
		EACH(c, VALUE_CHUNKS)
			EACH(h, ATTEND_HEADS)
				EACH(i, 8)
					acc[c][h][i] *= p[ATTEND_HEADS * SPAN + h];
		add_values(a, dtype, values, p, base, first, own + 1, &l, acc);
		sync_warp();
	}
	add_lanes(a, per, &l, acc, total);
	if (lane % 8 == 0) {
		max[warp * ATTEND_HEADS + lane / 8] = s.max;
		sum[warp * ATTEND_HEADS + lane / 8] = s.sum;
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

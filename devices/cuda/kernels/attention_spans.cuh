/*
 * attention_spans.cuh - attention of a warp to SPAN keys of a page: scores of up to four heads, the
 * online softmax, and weighted sums of values.
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

/* Chunks of values of f32; of bf16, with twice as many elements; of short ones of bf16. */
enum {
	CHUNKS_F32 = VALUE_MAX / (4 * WARP),
	CHUNKS_BF16 = VALUE_MAX / (8 * WARP),
	CHUNKS_SHORT = VALUE_SHORT / (8 * WARP)
};

/*
 * Adds elements `at` of values j0, j0 + rows, ..: LOADS of them, before `hi`. `wide`: 16 bytes at a
 * time, so that no branch separates the loads.
 */
DEVICE void add_value_rows(const struct attention_args *a, int32_t dtype, const char *values,
                           const float *p, int at, int j0, int rows, int hi, const int wide,
                           float sum[][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width;
	int pitch = a->v ? a->dv : a->d;
	struct quad quads[LOADS];
	float v[8];

	EACH(n, LOADS) {
		quads[n] = (struct quad){ { 0 } };
		if (wide && j0 + n * rows < hi)
			quads[n] = load_quad(values + ((j0 + n * rows) * pitch + at) * width);
	}
	EACH(n, LOADS) {
		int j = j0 + n * rows;

		if (!wide && j >= hi)
			break;
		if (wide)
			widen_quad(quads[n], dtype, v);
		else
			load_cached(values, dtype, (int64_t)j * pitch + at, a->dv - at, v);
		EACH(h, ATTEND_HEADS) {
			float weight = j < hi ? p[h * SPAN + j] : 0.0f;

			EACH(i, per)
				sum[h][i] = fmaf(weight, v[i], sum[h][i]);
		}
	}
}

/* Adds the weighted values of keys [first, end) of a span, which is stored at `values`. */
DEVICE void add_values(const struct attention_args *a, int32_t dtype, const char *values,
                       const float *p, int64_t base, int64_t first, int64_t end,
                       const struct value_lane *l, const int chunks, float sum[][ATTEND_HEADS][8])
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width;
	int lo = first > base ? (int)(first - base) : 0,
	    hi = end - base < SPAN ? (int)(end - base) : SPAN;
	int pitch = a->v ? a->dv : a->d, step = l->rows * LOADS;
	int wide = (uintptr_t)values % 16 == 0 && pitch % per == 0 && a->dv % per == 0;

	EACH(c, chunks) {
		int at = l->at + c * per * WARP;

		if (!l->active || at >= a->dv)
			break;
		UNROLL_BY(1)
		for (int j0 = lo + l->row; wide && j0 < hi; j0 += step)
			add_value_rows(a, dtype, values, p, at, j0, l->rows, hi, 1, sum[c]);
		UNROLL_BY(1)
		for (int j0 = lo + l->row; !wide && j0 < hi; j0 += step)
			add_value_rows(a, dtype, values, p, at, j0, l->rows, hi, 0, sum[c]);
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
                      const int chunks, float sum[][ATTEND_HEADS][8], float *total)
{
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

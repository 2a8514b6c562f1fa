/*
 * attention_tensor.cuh - attention of adjacent rows of a sequence on tensor cores: a cache in bf16,
 * queries and weights rounded to bf16, sums in f32.
 *
 * A warp has 32 rows of one head. The four warps of a block share the keys of one key-value head;
 * they have 1, 2 or 4 of its query heads (choose_tile_heads). Keys [d, 64] and values [64, dv] of a
 * page are right sides of products in their stored layout; the next page is copied while one is
 * multiplied. Shared memory has 16 bytes of row r at place `chunk ^ (r & 7)`, so that eight rows
 * loaded together use different banks.
 */

enum { TENSOR_HALVES = TENSOR_WARP_ROWS / 16, TENSOR_SLACK = 8 }; /* slack: in log2 */
enum { KEYS_ROW = KEYS * 2, TENSOR_PRODUCTS = KEYS / 8 }; /* bytes; products of 8 keys */

/*
 * The share of a warp in a tile: rows [row, row + 32). Some rows attend to keys [first, end), all
 * rows to [all_first, all_end).
 */
struct warp_rows {
	int head, row;
	int first, end, all_first, all_end;
	uint32_t q[4][TENSOR_HALVES][4]; /* if D <= 64; larger heads stay in shared memory */
	float max[2 * TENSOR_HALVES], sum[2 * TENSOR_HALVES]; /* for rows 0, 8, 16, 24 + lane / 4 */
	float out[TENSOR_HALVES][TENSOR_HEAD_MAX / 8][4];
};

/* Copies block u of the keys and values to a stage. Keys that no row attends to get values of 0. */
DEVICE void copy_stage(const struct attention_args *a, const struct tile *t, const int D,
                       const char *page, int u, char *stage)
{
	const int chunks = VALUES_ROW(D) / 16, step = ATTEND_THREADS / chunks;
	const char *keys = page + a->keys + (int64_t)t->g * a->d * KEYS_ROW;
	const char *values = page + a->values + (int64_t)t->g * a->dv * KEYS_ROW;
	int first = (int)t->first - u * KEYS, end = (int)t->end - u * KEYS;
	int row = threadIdx.x / 8, chunk = threadIdx.x % 8;

	EACH(i, D / 16)
		if (i * 16 < a->d)
			copy_async(stage + (i * 16 + row) * KEYS_ROW + (chunk ^ (row & 7)) * 16,
			           keys + (i * 16 + row) * KEYS_ROW + chunk * 16, 16);
	row = threadIdx.x / chunks;
	chunk = threadIdx.x % chunks;
	stage += D * KEYS_ROW + row * VALUES_ROW(D) + (chunk ^ (row & 7)) * 16;
	values += row * a->dv * 2 + chunk * 16;
	if (chunk * 8 >= a->dv)
		return;
	EACH(i, KEYS / step) {
		int key = i * step + row;

		copy_async(stage + i * step * VALUES_ROW(D), values + i * step * a->dv * 2,
		           key >= first && key < end ? 16 : 0);
	}
}

/*
 * Returns the offset of this lane's 16 bytes of 16 rows and two chunks: four times 8 rows of 16
 * bytes.
 */
DEVICE int find_lane_chunk(const int row_bytes)
{
	int lane = threadIdx.x % WARP;

	return lane % 16 * row_bytes + (lane / 16 ^ (lane & 7)) * 16;
}

/* Advances a lane's offset by j times two chunks. */
DEVICE int add_chunks(int at, int j)
{
	return (at ^ j % 4 * 32) + j / 4 * 128;
}

/* Rounds the queries of a warp to shared memory, 0 outside the run and beyond d. */
DEVICE void store_queries(const struct attention_args *a, const struct tile *t,
                          const struct warp_rows *w, const int D, char *to)
{
	int lane = threadIdx.x % WARP, lanes = VALUES_ROW(D) / 16, chunk = lane % lanes;

	for (int r = lane / lanes; r < TENSOR_WARP_ROWS; r += WARP / lanes) {
		int row = w->row + r, there = row >= t->from && row < t->to && chunk * 8 < a->d;
		const float *x = a->q + (t->row + row) * a->q_pitch + w->head * a->d + chunk * 8;
		struct quad v = { { 0 } };

		EACH(i, 4)
			v.at[i] = there ? pack_bf16(x[2 * i], x[2 * i + 1]) : 0;
		store_quad(to + r * VALUES_ROW(D) + (chunk ^ (r & 7)) * 16, v);
	}
	sync_warp();
}

/* Loads elements [16 i, 16 i + 16) of the queries of a warp as left sides. */
DEVICE void load_queries(const char *from, const int D, int i, uint32_t q[][4])
{
	EACH(m, TENSOR_HALVES)
		load_straight_matrices(from + m * 16 * VALUES_ROW(D) +
		                               add_chunks(find_lane_chunk(VALUES_ROW(D)), i),
		                       q[m]);
}

/*
 * Masks the scores of n keys from `base` on: those that a row does not attend to become -infinity.
 * Here and below a warp has 16 * `halves` rows.
 */
DEVICE void hide_keys(const struct attention_args *a, const struct tile *t,
                      const struct warp_rows *w, const int halves, int base, const int n,
                      float z[][TENSOR_PRODUCTS][4])
{
	EACH(r, 2 * halves) {
		int own = (int)t->position + w->row + r * 8 + threadIdx.x % WARP / 4;
		int at = base + threadIdx.x % 4 * 2;
		int lo = (int)find_first_key(a, own) - at, hi = own - at;

		EACH(i, n / 4) {
			int key = i / 2 * 8 + i % 2;
			float *score = &z[r / 2][i / 2][r % 2 * 2 + i % 2];

			*score = key >= lo && key <= hi ? *score : -INFINITY;
		}
	}
}

/* Applies the softcap to scores: tanh(x) is 1 - 2 / (1 + e^2x). */
DEVICE void limit_scores(const struct attention_args *a, const int halves, const int n,
                         float z[][TENSOR_PRODUCTS][4])
{
	EACH(m, halves)
		EACH(j, n / 8)
			EACH(i, 4) {
				float e = exp2_fast(z[m][j][i] * a->bend);

				z[m][j][i] =
					fmaf(-2 * a->softcap, invert_fast(1.0f + e), a->softcap);
			}
}

/*
 * Raises the reference maximum of a row's scores and rescales its sums, once a weight would exceed
 * 2^TENSOR_SLACK. Few blocks of keys need rescaling.
 */
DEVICE void raise_maxima(struct warp_rows *w, const int halves, const int D, float unit,
                         const float *max)
{
	float factor[2 * TENSOR_HALVES];
	int raised = 0;

	EACH(r, 2 * halves)
		raised |= (max[r] - w->max[r]) * unit > TENSOR_SLACK;
	if (!raised)
		return;
	EACH(r, 2 * halves) {
		int more = (max[r] - w->max[r]) * unit > TENSOR_SLACK;

		factor[r] = more ? exp2_fast((w->max[r] - max[r]) * unit) : 1.0f;
		w->max[r] = more ? max[r] : w->max[r];
		w->sum[r] *= factor[r];
	}
	EACH(m, halves)
		EACH(j, D / 8)
			EACH(i, 4)
				w->out[m][j][i] *= factor[m * 2 + i / 2];
}

/* Turns the scores of n keys into weights: 2 to `unit` times their distance below the maximum. */
DEVICE void weigh_scores(struct warp_rows *w, const int halves, const int D, const int n,
                         float unit, float z[][TENSOR_PRODUCTS][4])
{
	float max[2 * TENSOR_HALVES];

	EACH(r, 2 * halves) {
		max[r] = z[r / 2][0][r % 2 * 2];
		EACH(i, n / 4)
			max[r] = fmaxf(max[r], z[r / 2][i / 2][r % 2 * 2 + i % 2]);
		EACH_MASK(mask, 1, 4)
			max[r] = fmaxf(max[r], shuffle_xor(max[r], mask));
	}
	raise_maxima(w, halves, D, unit, max);
	EACH(r, 2 * halves) {
		float from = w->max[r] == -INFINITY ? 0.0f : w->max[r] * unit; /* 2^-inf is 0 */

		EACH(i, n / 4) {
			float *at = &z[r / 2][i / 2][r % 2 * 2 + i % 2];

			*at = exp2_fast(fmaf(*at, unit, -from));
			w->sum[r] += *at;
		}
	}
}

DEVICE void multiply_scores(const struct warp_rows *w, const int D, const int n, const char *keys,
                            int key, const char *queries, float z[][TENSOR_PRODUCTS][4])
{
	uint32_t b[4], q[TENSOR_HALVES][4];

	EACH(m, TENSOR_HALVES)
		EACH(j, n / 8)
			EACH(i, 4)
				z[m][j][i] = 0.0f;
	EACH(i, D / 16) {
		if (D > 64)
			load_queries(queries, D, i, q);
		EACH(j, n / 16) {
			load_matrices(keys + add_chunks(find_lane_chunk(KEYS_ROW), key / 16 + j) +
			                      i * 16 * KEYS_ROW,
			              b);
			EACH(m, TENSOR_HALVES) {
				const uint32_t *x = D > 64 ? q[m] : w->q[i][m];

				multiply_matrices(z[m][2 * j], x, b[0], b[1]);
				multiply_matrices(z[m][2 * j + 1], x, b[2], b[3]);
			}
		}
	}
}

DEVICE void weigh_values(struct warp_rows *w, const int D, const int n, const char *values,
                         float z[][TENSOR_PRODUCTS][4])
{
	uint32_t b[4], p[TENSOR_HALVES][4];

	EACH(k, n / 16) {
		EACH(m, TENSOR_HALVES)
			EACH(i, 4)
				p[m][i] = pack_bf16(z[m][2 * k + i / 2][i % 2 * 2],
				                    z[m][2 * k + i / 2][i % 2 * 2 + 1]);
		EACH(j, D / 16) {
			load_matrices(values + add_chunks(find_lane_chunk(VALUES_ROW(D)), j) +
			                      k * 16 * VALUES_ROW(D),
			              b);
			EACH(m, TENSOR_HALVES) {
				multiply_matrices(w->out[m][2 * j], p[m], b[0], b[1]);
				multiply_matrices(w->out[m][2 * j + 1], p[m], b[2], b[3]);
			}
		}
	}
}

/* Adds keys [base, base + n) and their values, by one warp. A stage has the keys from `key` on. */
DEVICE void multiply_stage(const struct attention_args *a, const struct tile *t,
                           struct warp_rows *w, const int D, const int n, int base, int key,
                           const char *stage, const char *queries)
{
	float z[TENSOR_HALVES][TENSOR_PRODUCTS][4];

	multiply_scores(w, D, n, stage, key, queries, z);
	if (a->softcap != 0.0f)
		limit_scores(a, TENSOR_HALVES, n, z);
	if (base < w->all_first || base + n > w->all_end)
		hide_keys(a, t, w, TENSOR_HALVES, base, n, z);
	weigh_scores(w, TENSOR_HALVES, D, n, a->unit, z);
	weigh_values(w, D, n, stage + D * KEYS_ROW + key * VALUES_ROW(D), z);
}

/*
 * Writes a row's elements of each product, whose number is even, to the outputs that are not NULL.
 */
DEVICE void write_row(const struct warp_rows *w, const int D, int dv, int r, float factor,
                      float *out, uint16_t *rounded)
{
	const float *x = w->out[r / 2][0] + r % 2 * 2;
	int wide = out && (uintptr_t)out % 8 == 0;

	EACH(i, D / 8)
		if (wide && i * 8 < dv)
			store_global_pair(out + i * 8, pack_float(x[i * 4] * factor),
			                  pack_float(x[i * 4 + 1] * factor));
	EACH(i, D / 4)
		if (out && !wide && i / 2 * 8 < dv)
			out[i / 2 * 8 + i % 2] = x[i / 2 * 4 + i % 2] * factor;
	EACH(i, D / 8)
		if (rounded && i * 8 < dv)
			*(uint32_t *)(rounded + i * 8) =
				pack_bf16(x[i * 4] * factor, x[i * 4 + 1] * factor);
}

DEVICE void write_products(const struct attention_args *a, const struct tile *t,
                           const struct warp_rows *w, const int halves, const int D, int dv)
{
	EACH(r, 2 * halves) {
		int row = w->row + r * 8 + threadIdx.x % WARP / 4;
		int64_t at = w->head * dv + threadIdx.x % 4 * 2, to = t->row + row;
		float *out = a->out ? a->out + to * a->out_pitch + at : NULL;
		uint16_t *rounded = a->rounded ? a->rounded + to * a->heads * dv + at : NULL;
		float s = w->sum[r];

		EACH_MASK(mask, 1, 4)
			s += shuffle_xor(s, mask);
		if (row >= t->from && row < t->to)
			write_row(w, D, dv, r, invert_fast(s), out, rounded);
	}
}

/* Starts the sums of a warp and its head, and finds the keys of rows [row, row + n) of a tile. */
DEVICE void clear_rows(const struct attention_args *a, const struct tile *t, const int halves,
                       const int D, int row, int n, struct warp_rows *w)
{
	int from = t->from > row ? t->from : row, to = t->to < row + n ? t->to : row + n;
	float sink = load_sink(&a->sinks, w->head) * a->sink_unit;

	w->first = (int)find_first_key(a, t->position + from);
	w->end = from < to ? (int)t->position + to : 0;
	w->all_first = (int)find_first_key(a, t->position + to - 1);
	w->all_end = (int)t->position + from + 1;
	EACH(r, 2 * halves) {
		w->max[r] = sink;
		w->sum[r] = sink != -INFINITY && threadIdx.x % 4 == 0 ? 1.0f : 0.0f;
	}
	EACH(m, halves)
		EACH(j, D / 8)
			EACH(i, 4)
				w->out[m][j][i] = 0.0f;
}

/* Sets up the rows of this warp, and its queries in shared memory. */
DEVICE void start_rows(const struct attention_args *a, const struct tile *t, const int D,
                       char *queries, struct warp_rows *w)
{
	int warp = threadIdx.x / WARP, each = ATTEND_WARPS / a->tile_heads;

	w->head = t->head + warp / each;
	w->row = warp % each * TENSOR_WARP_ROWS;
	clear_rows(a, t, TENSOR_HALVES, D, w->row, TENSOR_WARP_ROWS, w);
	store_queries(a, t, w, D, queries);
	if (D <= 64)
		EACH(i, D / 16)
			load_queries(queries, D, i, w->q[i]);
}

/* Sets keys beyond d to 0, in all stages. */
DEVICE void clear_keys(const struct attention_args *a, const int D, char *stages)
{
	const struct quad none = { { 0 } };

	for (int at = a->d * KEYS_ROW / 16 + threadIdx.x; at < D * KEYS_ROW / 16;
	     at += ATTEND_THREADS)
		EACH(s, 2)
			store_quad(stages + s * STAGE_BYTES(D) + at * 16, none);
}

/* Computes rows [from, to) of a tile, of heads from t->head on. */
DEVICE void attend_tile_tensor(const struct attention_args *a, const struct tile *own, const int D)
{
	DYNAMIC_SHARED(shared);
	char *stages = (char *)shared, *queries = stages + 2 * STAGE_BYTES(D);
	struct tile *t = (struct tile *)(queries + TENSOR_ROWS * VALUES_ROW(D));
	const int n = D <= 64 ? 64 : 32; /* keys of one step, limited by registers */
	int u = (int)own->first / KEYS, end = (int)(own->end + KEYS - 1) / KEYS;
	const char *page = find_page(a, own->row + own->from, u), *next = NULL;
	struct warp_rows w;

	if (!threadIdx.x)
		*t = *own; /* in shared memory it takes no registers */
	sync_block();
	queries += threadIdx.x / WARP * TENSOR_WARP_ROWS * VALUES_ROW(D);
	clear_keys(a, D, stages);
	if (page)
		copy_stage(a, t, D, page, u, stages);
	commit_copies();
	if (u + 1 < end)
		next = find_page(a, t->row + t->from, u + 1);
	start_rows(a, t, D, queries, &w);
	for (int s = 0; page && u < end; u++, s ^= 1) {
		page = next;
		wait_copies(0); /* this block of keys has arrived */
		sync_block(); /* the other stage has been used */
		if (u + 1 < end && page)
			copy_stage(a, t, D, page, u + 1, stages + (s ^ 1) * STAGE_BYTES(D));
		commit_copies();
		if (u + 2 < end)
			next = find_page(a, t->row + t->from, u + 2);
		UNROLL_BY(1)
		for (int key = 0; key < KEYS; key += n)
			if (u * KEYS + key < w.end && u * KEYS + key + n > w.first)
				multiply_stage(a, t, &w, D, n, u * KEYS + key, key,
				               stages + s * STAGE_BYTES(D), queries);
	}
	wait_copies(0);
	write_products(a, t, &w, TENSOR_HALVES, D, a->dv);
	sync_block(); /* the next run of the tile uses the same memory */
}

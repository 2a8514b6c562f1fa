/*
 * attention_tensor.cuh - attention of 64 adjacent rows of a text and one head on tensor cores: a
 * cache in bf16, queries and weights rounded to bf16, sums in f32.
 *
 * A warp has 16 rows. Keys [d, 64] and values [64, dv] of a page are the right sides of products as
 * they lie; the next page is copied while one is multiplied. In shared memory 16 bytes of row r are
 * at place `chunk ^ (r & 7)`, so that no two of eight rows that are loaded at once share banks.
 */

#define LOG2_E 0x1.715476p+0f
enum { TENSOR_KEYS_CHUNKS = KEYS / 8 }; /* of 16 bytes, in a row of keys */

/* Rows [0, rows) of `chunks` times 16 bytes each to a stage; of row `first` on, and before `end`. */
DEVICE void copy_rows(const char *from, int rows, int chunks, int pitch, int64_t first, int64_t end,
                      char *stage)
{
	for (int at = threadIdx.x; at < rows * chunks; at += ATTEND_THREADS) {
		int row = at / chunks, chunk = at % chunks;

		copy_async(stage + (row * pitch + (chunk ^ (row & 7))) * 16, from + at * 16,
		           row >= first && row < end ? 16 : 0);
	}
}

/* Copies block u of the keys and values to a stage; keys that no row sees have values of 0. */
DEVICE void copy_stage(const struct attention_args *a, const struct tile *t, const int D,
                       const char *page, int64_t u, char *stage)
{
	const char *keys = page + a->keys + (int64_t)t->g * a->d * KEYS * 2;
	const char *values = page + a->values + (int64_t)t->g * a->dv * KEYS * 2;
	int64_t first = t->first - u * KEYS, end = t->end - u * KEYS;

	copy_rows(keys, a->d, TENSOR_KEYS_CHUNKS, TENSOR_KEYS_CHUNKS, 0, a->d, stage);
	stage += D * KEYS * 2;
	if (a->dv == D) /* a constant, by which is cheap to divide */
		copy_rows(values, KEYS, D / 8, D / 8, first, end, stage);
	else
		copy_rows(values, KEYS, a->dv / 8, D / 8, first, end, stage);
}

/* The address that this lane gives of 16 x 16 elements: four times 8 rows of 16 bytes. */
DEVICE const char *find_matrix_row(const char *stage, int chunks, int row, int chunk)
{
	int lane = threadIdx.x % WARP;

	row += lane % 16;
	chunk += lane / 16;
	return stage + (row * chunks + (chunk ^ (row & 7))) * 16;
}

/* The queries of rows r0 and r0 + 8 as left sides, 0 outside the run. */
DEVICE void load_queries(const struct attention_args *a, const struct tile *t, const int D, int r0,
                         uint32_t q[][4])
{
	int column = threadIdx.x % 4 * 2;

	EACH(i, D / 16) {
		EACH(j, 4) {
			int r = r0 + j % 2 * 8, at = i * 16 + j / 2 * 8 + column;
			const float *x = a->q + (t->row + r) * a->q_pitch + t->head * a->d + at;
			int there = r >= t->from && r < t->to && at < a->d;

			q[i][j] = there ? pack_bf16(x[0], x[1]) : 0;
		}
	}
}

/* Of 64 keys from `base` on, key 0 being `base`: those that a row sees are [lo, hi]; none: hi < 0. */
DEVICE void find_seen_keys(const struct attention_args *a, const struct tile *t, int64_t base,
                           int r, int *lo, int *hi)
{
	int64_t own = t->position + r, first = find_first_key(a, own) - base;

	own -= base;
	*lo = first < 0 ? 0 : first > KEYS ? KEYS : (int)first;
	*hi = r < t->from || r >= t->to || own < 0 ? -1 : own > KEYS ? KEYS : (int)own;
}

/* Whether every row of the tile sees all keys of block u. */
DEVICE int sees_block(const struct attention_args *a, const struct tile *t, int64_t u)
{
	return t->position + t->from >= u * KEYS + KEYS - 1 &&
	       find_first_key(a, t->position + t->to - 1) <= u * KEYS;
}

/* Scores of keys that a row does not see become -infinity. */
DEVICE void hide_keys(const struct attention_args *a, const struct tile *t, int64_t u, int r0,
                      float z[][4])
{
	EACH(half, 2) {
		int lo, hi;

		find_seen_keys(a, t, u * KEYS + threadIdx.x % 4 * 2, r0 + half * 8, &lo, &hi);
		EACH(i, 2 * TENSOR_KEYS_CHUNKS) {
			int key = i / 2 * 8 + i % 2;
			float *at = &z[i / 2][half * 2 + i % 2];

			*at = key >= lo && key <= hi ? *at : -INFINITY;
		}
	}
}

/*
 * Scores of rows r0 (elements 0 and 1 of each product) and r0 + 8 (2 and 3) become weights: 2 to
 * `unit` times what they are below the largest.
 */
DEVICE void weigh_products(float unit, float z[][4], float *max, float *sum, float *factor)
{
	EACH(half, 2) {
		float m = max[half], s = 0.0f, from;

		EACH(i, 2 * TENSOR_KEYS_CHUNKS)
			m = fmaxf(m, z[i / 2][half * 2 + i % 2]);
		EACH_MASK(mask, 1, 4)
			m = fmaxf(m, shuffle_xor(m, mask));
		from = m == -INFINITY ? 0.0f : m * unit; /* 2^-inf is 0 */
		EACH(i, 2 * TENSOR_KEYS_CHUNKS) {
			float *at = &z[i / 2][half * 2 + i % 2];

			*at = exp2_fast(fmaf(*at, unit, -from));
			s += *at;
		}
		factor[half] = exp2_fast(fmaf(max[half], unit, -from));
		sum[half] = sum[half] * factor[half] + s;
		max[half] = m;
	}
}

DEVICE void multiply_stage(const struct attention_args *a, const struct tile *t, const int D,
                           int64_t u, const char *stage, int r0, uint32_t q[][4], float *max,
                           float *sum, float out[][4])
{
	float z[TENSOR_KEYS_CHUNKS][4], factor[2], unit = a->scale * LOG2_E;
	uint32_t b[4], p[4];

	EACH(j, TENSOR_KEYS_CHUNKS)
		EACH(i, 4)
			z[j][i] = 0.0f;
	EACH(i, D / 16) {
		if (i * 16 >= a->d)
			break;
		EACH(j, KEYS / 16) {
			load_matrices(find_matrix_row(stage, TENSOR_KEYS_CHUNKS, i * 16, j * 2), b);
			multiply_matrices(z[2 * j], q[i], b[0], b[1]);
			multiply_matrices(z[2 * j + 1], q[i], b[2], b[3]);
		}
	}
	if (a->softcap != 0.0f) {
		unit = LOG2_E;
		EACH(j, TENSOR_KEYS_CHUNKS)
			EACH(i, 4)
				z[j][i] = scale_score(a, z[j][i]);
	}
	if (!sees_block(a, t, u))
		hide_keys(a, t, u, r0, z);
	weigh_products(unit, z, max, sum, factor);
	EACH(j, D / 8)
		EACH(i, 4)
			out[j][i] *= factor[i / 2];
	stage += D * KEYS * 2;
	EACH(k, KEYS / 16) {
		EACH(i, 4)
			p[i] = pack_bf16(z[2 * k + i / 2][i % 2 * 2],
			                 z[2 * k + i / 2][i % 2 * 2 + 1]);
		EACH(j, D / 16) { /* without a branch, if registers allow, loads go ahead */
			if (D < TENSOR_HEAD_MAX && j * 16 >= a->dv)
				break;
			load_matrices(find_matrix_row(stage, D / 8, k * 16, j * 2), b);
			multiply_matrices(out[2 * j], p, b[0], b[1]);
			multiply_matrices(out[2 * j + 1], p, b[2], b[3]);
		}
	}
}

/* Two neighbours of a row, whose number of elements is even. */
DEVICE void write_two(const struct attention_args *a, int64_t t, int at, float x, float y)
{
	float *out = a->out ? a->out + t * a->out_pitch + at : NULL;

	if (out && (uintptr_t)out % 8 == 0) {
		store_global_pair(out, pack_float(x), pack_float(y));
	} else if (out) {
		out[0] = x;
		out[1] = y;
	}
	if (a->rounded)
		*(uint32_t *)(a->rounded + t * a->heads * a->dv + at) = pack_bf16(x, y);
}

DEVICE void write_products(const struct attention_args *a, const struct tile *t, const int D,
                           int r0, const float *sum, float out[][4])
{
	EACH(half, 2) {
		int r = r0 + half * 8;
		float s = sum[half];

		EACH_MASK(mask, 1, 4)
			s += shuffle_xor(s, mask);
		s = 1.0f / s;
		EACH(i, D / 8) {
			int at = i * 8 + threadIdx.x % 4 * 2;

			if (r >= t->from && r < t->to && at < a->dv)
				write_two(a, t->row + r, t->head * a->dv + at, out[i][half * 2] * s,
				          out[i][half * 2 + 1] * s);
		}
	}
}

/* Rows [from, to) of a tile of 64. */
DEVICE void attend_tile_tensor(const struct attention_args *a, const struct tile *t, const int D)
{
	DYNAMIC_SHARED(shared);
	char *stage = (char *)shared;
	const int bytes = 2 * D * KEYS * 2;
	int r0 = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
	int64_t u = t->first / KEYS, end = (t->end + KEYS - 1) / KEYS;
	uint32_t q[TENSOR_HEAD_MAX / 16][4];
	float out[TENSOR_HEAD_MAX / 8][4], max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
	const char *page = find_page(a, t->row + t->from, u);

	EACH(j, D / 8)
		EACH(i, 4)
			out[j][i] = 0.0f;
	load_queries(a, t, D, r0, q);
	if (page)
		copy_stage(a, t, D, page, u, stage);
	commit_copies();
	for (int n = 0; page && u < end; u++, n ^= 1) {
		page = u + 1 < end ? find_page(a, t->row + t->from, u + 1) : page;
		if (page && u + 1 < end)
			copy_stage(a, t, D, page, u + 1, stage + (n ^ 1) * bytes);
		commit_copies();
		wait_copies(1); /* all but the newest */
		sync_block();
		multiply_stage(a, t, D, u, stage + n * bytes, r0, q, max, sum, out);
		sync_block();
	}
	wait_copies(0);
	write_products(a, t, D, r0, sum, out);
}

/* optimizer.cuh - what follows the gradients of a step: their norm, and the new weights. */

/* Returns the new weight of one element, by AdamW or SGD; updates m and v. */
DEVICE float update_element(const struct update_args *a, float g, float w, float *m, float *v)
{
	float u = g * a->factor;

	if (a->v) {
		*v = a->old_v * *v + a->new_v * u * u;
		*m = *m + a->new_m * (u - *m);
		return w * a->keep - a->rate * *m / (sqrtf(*v) / a->bias + a->eps);
	}
	u = u + a->decay * w;
	if (a->m)
		*m = u = a->momentum * *m + u;
	return w - a->rate * u;
}

/* Updates weights: a thread has four elements. */
KERNEL(MAP_THREADS, update_weights, update_args)
{
	int64_t i = COLUMN * 4;
	float g[4], w[4], m[4] = { 0, 0, 0, 0 }, v[4] = { 0, 0, 0, 0 };

	if (i >= a.n)
		return;
	load_four(a.g, i, a.n, a.wide, g);
	load_four(a.w, i, a.n, a.wide, w);
	if (a.m)
		load_four(a.m, i, a.n, a.wide, m);
	if (a.v)
		load_four(a.v, i, a.n, a.wide, v);
	EACH(j, 4)
		w[j] = update_element(&a, g[j], w[j], &m[j], &v[j]);
	store_four(a.w, i, a.n, a.wide, w);
	if (a.m)
		store_four(a.m, i, a.n, a.wide, m);
	if (a.v)
		store_four(a.v, i, a.n, a.wide, v);
	if (a.rounded && a.wide && i + 4 <= a.n && a.dtype == PORT_BF16)
		store_global_pair(a.rounded + i, pack_bf16(w[0], w[1]), pack_bf16(w[2], w[3]));
	else if (a.rounded)
		EACH(j, 4)
			if (i + j < a.n)
				a.rounded[i + j] =
					a.dtype == PORT_BF16 ? round_bf16(w[j]) : round_f16(w[j]);
}

/* Carries, so that all digits but the last are in [0, 2^32). */
DEVICE void carry_digits(int64_t *digit)
{
	for (int i = 0; i < SQUARE_DIGITS - 1; i++) {
		digit[i + 1] += digit[i] >> 32;
		digit[i] &= 0xffffffff;
	}
}

/*
 * Computes the exact sum of squares, as an integer in digits: a thread has its own digits, which
 * the first threads of the block add. A value is m * 2^(e - 150) with m below 2^24.
 */
KERNEL(SQUARE_THREADS, add_squares, squares_args)
{
	SHARED int64_t digit[SQUARE_FIELDS][SQUARE_THREADS];
	SHARED int64_t total[SQUARE_FIELDS];
	int tid = threadIdx.x;

	for (int k = 0; k < SQUARE_FIELDS; k++)
		digit[k][tid] = 0;
	for (int64_t i = COLUMN; i < a.n; i += (int64_t)gridDim.x * SQUARE_THREADS) {
		uint32_t bits = pack_float(a.x[i]), e = bits >> 23 & 255;
		uint64_t m = (bits & 0x7fffff) | (uint32_t)(e > 0) << 23, low, high;
		uint32_t at = e ? 2 * e - 2 : 0;

		if (e == 255) {
			digit[SQUARE_DIGITS][tid]++;
			continue;
		}
		low = (m * m & 0xffffffff) << at % 32;
		high = (m * m >> 32) << at % 32;
		digit[at / 32][tid] += (int64_t)(low & 0xffffffff);
		digit[at / 32 + 1][tid] += (int64_t)((low >> 32) + (high & 0xffffffff));
		digit[at / 32 + 2][tid] += (int64_t)(high >> 32);
	}
	sync_block();
	if (tid < SQUARE_FIELDS) {
		total[tid] = 0;
		for (int k = 0; k < SQUARE_THREADS; k++)
			total[tid] += digit[tid][k];
	}
	sync_block();
	if (tid)
		return;
	carry_digits(total);
	for (int k = 0; k < SQUARE_FIELDS; k++)
		a.part[(int64_t)blockIdx.x * SQUARE_FIELDS + k] = total[k];
}

/* Adds the digits of all blocks to the sum, in one block: a warp has every FINISH_WARPSth block. */
KERNEL(FINISH_THREADS, finish_squares, squares_args)
{
	SHARED int64_t digit[FINISH_WARPS][SQUARE_FIELDS];
	int field = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	int64_t sum = 0;

	if (field < SQUARE_FIELDS) {
		UNROLL_BY(4)
		for (int64_t i = warp; i < a.parts; i += FINISH_WARPS)
			sum += a.part[i * SQUARE_FIELDS + field];
		digit[warp][field] = sum;
	}
	sync_block();
	if (warp)
		return;
	if (field < SQUARE_FIELDS) {
		for (int i = 1; i < FINISH_WARPS; i++)
			sum += digit[i][field];
		a.sum[field] += sum;
	}
	sync_warp();
	if (!field)
		carry_digits(a.sum);
}

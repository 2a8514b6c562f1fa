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
 * Adds the square of a float to the thread's bins. A float is m * 2^(e - 149) with m below 2^24, and
 * bin k has the squares with e in [4k, 4k + 4), as multiples of 2^(8k - 298): below 2^54.
 */
DEVICE void add_square(uint64_t (*bin)[SQUARE_THREADS], float x, uint32_t *odd)
{
	uint32_t bits = pack_float(x), e = bits >> 23 & 255;
	uint32_t m = (bits & 0x7fffff) | (uint32_t)(e > 0) << 23;

	*odd += e == 255;
	m = e == 255 ? 0 : m;
	e -= e > 0;
	bin[e / 4][threadIdx.x] += (uint64_t)m * m << e % 4 * 2;
}

/* Adds a bin of all threads, as three digits from digit bin / 4 on. */
DEVICE void add_bin(const uint64_t *bin, int64_t *part)
{
	uint64_t low = 0, high = 0;

	for (int k = 0; k < SQUARE_THREADS; k++) { /* each thread in another bank */
		uint64_t v = bin[(k + threadIdx.x) % SQUARE_THREADS];

		low += v & 0xffffffff;
		high += v >> 32;
	}
	low <<= threadIdx.x % 4 * 8;
	high <<= threadIdx.x % 4 * 8;
	part[0] = (int64_t)(low & 0xffffffff);
	part[1] = (int64_t)((low >> 32) + (high & 0xffffffff));
	part[2] = (int64_t)(high >> 32);
}

/* Loads SQUARE_LOADS fours of elements from i on, in the order of threads; 0 beyond the end. */
DEVICE void load_squared(const struct squares_args *a, int64_t i, float *x)
{
	const int step = 4 * SQUARE_THREADS;

	if (a->wide && i + (SQUARE_LOADS - 1) * step + 4 <= a->n)
		EACH(j, SQUARE_LOADS)
			widen_quad(load_quad(a->x + i + j * step), PORT_F32, x + 4 * j);
	else
		EACH(j, SQUARE_LOADS)
			load_four(a->x, i + j * step, a->n, a->wide, x + 4 * j);
}

/*
 * Computes the exact sum of squares, as an integer in digits. A thread adds at most SQUARE_MOST
 * elements to its own bins, which do not overflow.
 */
KERNEL(SQUARE_THREADS, add_squares, squares_args)
{
	SHARED uint64_t bin[SQUARE_BINS][SQUARE_THREADS];
	SHARED int64_t part[SQUARE_BINS][3], total[SQUARE_FIELDS];
	SHARED uint32_t nodd;
	const int tid = threadIdx.x, step = 4 * SQUARE_LOADS * SQUARE_THREADS;
	uint32_t odd = 0;
	float x[4 * SQUARE_LOADS];

	for (int k = 0; k < SQUARE_BINS; k++)
		bin[k][tid] = 0;
	if (!tid)
		nodd = 0;
	for (int64_t i = (int64_t)blockIdx.x * step + 4 * tid; i < a.n; i += gridDim.x * step) {
		load_squared(&a, i, x);
		EACH(j, 4 * SQUARE_LOADS)
			add_square(bin, x[j], &odd);
	}
	sync_block();
	if (odd)
		add_atomic(&nodd, odd);
	add_bin(bin[tid], part[tid]);
	sync_block();
	if (tid < SQUARE_FIELDS) {
		total[tid] = tid == SQUARE_DIGITS ? nodd : 0;
		for (int k = 0; k < 12; k++) /* the bins whose digits include this one */
			if (tid < SQUARE_DIGITS && k + 4 * tid >= 8 &&
			    k + 4 * tid - 8 < SQUARE_BINS)
				total[tid] += part[k + 4 * tid - 8][2 - k / 4];
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

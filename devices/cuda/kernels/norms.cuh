/*
 * norms.cuh - norms and their backward. A thread loads NORM_QUADS times four adjacent elements of a
 * run at once, 4 * threads apart. They stay in registers, except of long runs and unaligned ones,
 * which are read again. Sums have one order for all of these.
 */

/* Returns the offset of a thread's run in rows of `pitch`. Its row *t exists if below a->rows. */
DEVICE int64_t find_norm_run(const struct norm_args *a, int64_t pitch, int64_t *t)
{
	uint32_t number = blockIdx.x * (blockDim.x / a->threads) + threadIdx.x / a->threads;

	*t = number / (uint32_t)a->runs;
	return *t * pitch + number % (uint32_t)a->runs * a->each;
}

/* Returns the thread's first element of a run, and the step to its next NORM_HELD ones. */
DEVICE int find_norm_element(const struct norm_args *a, int *step)
{
	*step = NORM_HELD * a->threads;
	return 4 * (threadIdx.x % a->threads);
}

/* Returns the index of element j of NORM_HELD. */
DEVICE int locate_held(const struct norm_args *a, int i, int j)
{
	return i + j / 4 * 4 * a->threads + j % 4;
}

/* Rounds and stores four elements from i on of a row of n; in one access if `wide`. */
DEVICE void store_four_rounded(uint16_t *p, int64_t i, int64_t n, int wide, const float *x)
{
	if (wide && i + 4 <= n)
		store_global_pair(p + i, pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
	else
		EACH(j, 4)
			if (i + j < n)
				p[i + j] = (uint16_t)pack_bf16(x[j], 0.0f);
}

/* Stores four elements of a run from i on, which exist if `wide`, or as many as exist. */
DEVICE void store_held(const struct norm_args *a, float *y, int i, const int wide, const float *x)
{
	if (i < (int)a->each)
		store_four(y, i, wide ? i + 4 : (int)a->each, wide, x);
}

/* Loads NORM_HELD elements of a run from i on; 0 beyond its end. */
DEVICE void load_held(const struct norm_args *a, const float *x, int i, const int wide, float *out)
{
	EACH(j, NORM_HELD) {
		int at = locate_held(a, i, j), exists = at < (int)a->each;

		if (!wide)
			out[j] = exists ? x[at] : 0.0f;
		else if (j % 4 == 0)
			widen_quad(exists ? load_quad(x + at) : (struct quad){ { 0 } }, PORT_F32,
			           out + j);
	}
}

/* Loads the bits of weights, in the order of load_held; 16-bit weights in the first two words. */
DEVICE void load_norm_weights(const struct norm_args *a, const void *w, const int dtype,
                              int64_t stride, int i, const int wide, struct quad *out)
{
	EACH(j, NORM_HELD) {
		int at = locate_held(a, i, j), exists = w && at < (int)a->each;
		struct quad *q = &out[j / 4];

		if (j % 4 == 0)
			*q = (struct quad){ { 0 } };
		if (!exists || (wide && j % 4 > 0))
			continue;
		if (wide)
			*q = dtype == PORT_F32 ? load_quad((const float *)w + at)
			                       : load_pair((const uint16_t *)w + at);
		else if (dtype == PORT_F32)
			q->at[j % 4] = load_bits(w, dtype, at * stride);
		else
			q->at[j % 4 / 2] |= load_bits(w, dtype, at * stride) << j % 2 * 16;
	}
}

/* Widens four weights of a norm, and adds the offset. */
DEVICE void widen_norm_weights(const struct norm_args *a, struct quad bits, const int dtype,
                               float *out)
{
	widen_four(bits, dtype, out);
	EACH(k, 4) {
		out[k] = a->w ? out[k] : 1.0f;
		out[k] = a->offset != 0.0f ? a->offset + out[k] : out[k];
	}
}

/* Returns the sum of NORM_HELD products. */
DEVICE float sum_held_products(const float *u, const float *v)
{
	float s[4] = { 0.0f, 0.0f, 0.0f, 0.0f };

	EACH(j, NORM_HELD)
		s[j % 4] = fmaf(u[j], v[j], s[j % 4]);
	return (s[0] + s[1]) + (s[2] + s[3]);
}

DEVICE float sum_held(const float *v)
{
	float s[4] = { 0.0f, 0.0f, 0.0f, 0.0f };

	EACH(j, NORM_HELD)
		s[j % 4] += v[j];
	return (s[0] + s[1]) + (s[2] + s[3]);
}

/* Returns the mean of a run from the sum of a thread's elements. */
DEVICE float find_norm_mean(const struct norm_args *a, float sum, float *scratch)
{
	sum_over_warps(&sum, 1, a->threads / WARP, scratch);
	return sum / (float)a->each;
}

/* Subtracts the mean of the run from the elements that exist; RMS: 0. */
DEVICE void center_held(const struct norm_args *a, int i, float mean, float *v)
{
	if (!a->layer)
		return;
	EACH(j, NORM_HELD)
		v[j] = locate_held(a, i, j) < (int)a->each ? v[j] - mean : 0.0f;
}

/* Centers the elements of a run that fit the registers; returns the mean. */
DEVICE float center_held_run(const struct norm_args *a, int i, float *v, float *scratch)
{
	float mean = a->layer ? find_norm_mean(a, sum_held(v), scratch) : 0.0f;

	center_held(a, i, mean, v);
	return mean;
}

DEVICE float find_norm_scale(const struct norm_args *a, float squares)
{
	return 1.0f / sqrtf(squares / (float)a->each + a->eps);
}

/* Computes the mean of a long run (0 for RMS), and 1 / sqrt(the mean of the squares + eps). */
DEVICE void measure_long_run(const struct norm_args *a, const float *x, float *scratch, float *mean,
                             float *scale)
{
	int step, first = find_norm_element(a, &step);
	float sum = 0.0f, v[NORM_HELD];

	for (int i = first; a->layer && i < a->each; i += step) {
		load_held(a, x, i, 0, v);
		sum += sum_held(v);
	}
	*mean = a->layer ? find_norm_mean(a, sum, scratch) : 0.0f;
	sum = 0.0f;
	for (int i = first; i < a->each; i += step) {
		load_held(a, x, i, 0, v);
		center_held(a, i, *mean, v);
		sum += sum_held_products(v, v);
	}
	sum_over_warps(&sum, 1, a->threads / WARP, scratch + BLOCK_WARPS);
	*scale = find_norm_scale(a, sum);
}

/* Loads elements of x, or of total = x + more, which is also written. */
DEVICE void load_sums(const struct norm_args *a, const float *x, int64_t t, int i, const int wide,
                      float *v)
{
	float u[NORM_HELD];

	load_held(a, x, i, wide, v);
	if (!a->more)
		return;
	load_held(a, a->more + t * a->more_pitch, i, wide, u);
	EACH(j, NORM_HELD)
		v[j] += u[j];
	EACH(j, NORM_QUADS)
		store_held(a, a->total + t * a->total_pitch, locate_held(a, i, 4 * j), wide,
		           v + 4 * j);
}

/* Writes NORM_HELD normalized elements of centered ones. */
DEVICE void write_normalized(const struct norm_args *a, int64_t t, int i, const int wide,
                             const int dtype, const float *v, const struct quad *w, float scale,
                             float *y)
{
	struct quad b[NORM_QUADS];

	if (a->b)
		load_norm_weights(a, a->b, a->b_dtype, a->b_stride, i, wide, b);
	EACH(j, NORM_QUADS) {
		int at = locate_held(a, i, 4 * j);
		float z[4], add[4] = { 0, 0, 0, 0 };

		if (at >= (int)a->each)
			continue;
		widen_norm_weights(a, w[j], dtype, z);
		if (a->b)
			widen_four(b[j], a->b_dtype, add);
		EACH(k, 4) {
			z[k] = v[4 * j + k] * scale * z[k];
			z[k] = a->b ? z[k] + add[k] : z[k];
		}
		if (y)
			store_held(a, y, at, wide, z);
		if (a->rounded)
			store_four_rounded(a->rounded + t * a->each, at,
			                   wide ? at + 4 : (int)a->each, wide, z);
	}
}

/* Normalizes a run that stays in registers. */
DEVICE void normalize_held(const struct norm_args *a, const float *x, int64_t t, const int dtype,
                           float *scratch, float *y)
{
	int step, i = find_norm_element(a, &step);
	struct quad w[NORM_QUADS];
	float v[NORM_HELD], sum;

	load_norm_weights(a, a->w, dtype, a->w_stride, i, 1, w);
	load_sums(a, x, t, i, 1, v);
	center_held_run(a, i, v, scratch);
	sum = sum_held_products(v, v);
	sum_over_warps(&sum, 1, a->threads / WARP, scratch + BLOCK_WARPS);
	write_normalized(a, t, i, 1, dtype, v, w, find_norm_scale(a, sum), y);
}

/* Measures a run that stays in registers. */
DEVICE void measure_held(const struct norm_args *n, const float *x, float *scratch, float *mean,
                         float *scale)
{
	int step, i = find_norm_element(n, &step);
	float v[NORM_HELD], sum;

	load_held(n, x, i, 1, v);
	*mean = center_held_run(n, i, v, scratch);
	sum = sum_held_products(v, v);
	sum_over_warps(&sum, 1, n->threads / WARP, scratch + BLOCK_WARPS);
	*scale = find_norm_scale(n, sum);
}

/* Prefetches the weights of a norm. */
DEVICE void prefetch_norm_weights(const struct norm_args *a)
{
	const int line = a->w_dtype == PORT_F32 ? 32 : 64;

	if (threadIdx.x * line < a->each && a->w && a->w_stride == 1)
		prefetch_line((const char *)a->w + threadIdx.x * 128);
}

KERNEL_EARLY(NORM_THREADS_MAX, 1, normalize_runs, norm_args)
{
	SHARED float scratch[2 * BLOCK_WARPS];
	int64_t t, at = find_norm_run(&a, a.x_pitch, &t);
	float *y = a.y ? a.y + find_norm_run(&a, a.y_pitch, &t) : NULL;

	prefetch_norm_weights(&a);
	wait_for_kernels();
	if (t >= a.rows)
		return;
	if (a.w_dtype == PORT_BF16)
		normalize_held(&a, a.x + at, t, PORT_BF16, scratch, y);
	else if (a.w_dtype == PORT_F32)
		normalize_held(&a, a.x + at, t, PORT_F32, scratch, y);
	else
		normalize_held(&a, a.x + at, t, PORT_F16, scratch, y);
}

/* Normalizes runs that are read several times. */
KERNEL_EARLY(NORM_THREADS_MAX, 1, normalize_long_runs, norm_args)
{
	SHARED float scratch[2 * BLOCK_WARPS];
	int step, first = find_norm_element(&a, &step);
	int64_t t, at = find_norm_run(&a, a.x_pitch, &t);
	float *y = a.y ? a.y + find_norm_run(&a, a.y_pitch, &t) : NULL, v[NORM_HELD], mean, scale;
	const float *x = a.x + at;
	struct quad w[NORM_QUADS];

	prefetch_norm_weights(&a);
	wait_for_kernels();
	if (t >= a.rows)
		return;
	for (int i = first; i < a.each && a.more; i += step)
		load_sums(&a, x, t, i, 0, v);
	x = a.more ? a.total + t * a.total_pitch : x; /* a thread reads only what it wrote */
	measure_long_run(&a, x, scratch, &mean, &scale);
	for (int i = first; i < a.each; i += step) {
		load_norm_weights(&a, a.w, a.w_dtype, a.w_stride, i, 0, w);
		load_held(&a, x, i, 0, v);
		center_held(&a, i, mean, v);
		write_normalized(&a, t, i, 0, a.w_dtype, v, w, scale, y);
	}
}

/* Writes the mean and the scale of each run, two floats, to y. */
KERNEL(NORM_THREADS_MAX, measure_runs, norm_args)
{
	SHARED float scratch[2 * BLOCK_WARPS];
	int64_t t, at = find_norm_run(&a, a.x_pitch, &t);
	float mean, scale;

	if (t >= a.rows)
		return;
	if (a.held)
		measure_held(&a, a.x + at, scratch, &mean, &scale);
	else
		measure_long_run(&a, a.x + at, scratch, &mean, &scale);
	if (threadIdx.x % a.threads)
		return;
	at = find_norm_run(&a, a.runs * a.each, &t) / a.each;
	a.y[2 * at] = mean;
	a.y[2 * at + 1] = scale;
}

/* Loads elements of g and multiplies them by the weights. */
DEVICE void load_weighted(const struct norm_args *n, const float *g, int i, const int wide,
                          const int dtype, float *u)
{
	struct quad w[NORM_QUADS];
	float factor[4];

	load_norm_weights(n, n->w, dtype, n->w_stride, i, wide, w);
	load_held(n, g, i, wide, u);
	EACH(j, NORM_QUADS) {
		widen_norm_weights(n, w[j], dtype, factor);
		EACH(k, 4)
			u[4 * j + k] *= factor[k];
	}
}

/* Writes elements of dx. sum: of u, 0 for RMS; product: of u and v; both over the run. */
DEVICE void write_derived(const struct norm_args *n, int i, const int wide, const float *u,
                          const float *v, float scale, float sum, float product, float *y)
{
	float mean = n->layer ? sum / (float)n->each : 0.0f, of[4];
	float slope = scale * (scale * product / (float)n->each);

	EACH(j, NORM_QUADS) {
		EACH(k, 4)
			of[k] = scale * ((u[4 * j + k] - mean) - v[4 * j + k] * slope);
		store_held(n, y, locate_held(n, i, 4 * j), wide, of);
	}
}

/* Computes dx of a run that stays in registers. */
DEVICE void derive_held(const struct norm_args *n, const float *x, const float *g, const int dtype,
                        float *scratch, float *y)
{
	int step, i = find_norm_element(n, &step);
	float v[NORM_HELD], u[NORM_HELD], sum[3];

	load_held(n, x, i, 1, v);
	load_weighted(n, g, i, 1, dtype, u);
	center_held_run(n, i, v, scratch);
	sum[0] = sum_held_products(v, v);
	sum[1] = sum_held_products(u, v);
	sum[2] = sum_held(u);
	sum_over_warps(sum, 3, n->threads / WARP, scratch + BLOCK_WARPS);
	write_derived(n, i, 1, u, v, find_norm_scale(n, sum[0]), sum[2], sum[1], y);
}

/* Computes dx of runs, which may replace x or g: only one thread reads and writes an element. */
KERNEL(NORM_THREADS_MAX, derive_runs, norm_d_args)
{
	SHARED float scratch[4 * BLOCK_WARPS];
	const struct norm_args *n = &a.norm;
	int64_t t, at = find_norm_run(n, n->x_pitch, &t);
	const float *g = a.g + find_norm_run(n, a.g_pitch, &t);
	float *y = n->y + find_norm_run(n, n->y_pitch, &t);

	if (t >= n->rows)
		return;
	if (n->w_dtype == PORT_BF16)
		derive_held(n, n->x + at, g, PORT_BF16, scratch, y);
	else if (n->w_dtype == PORT_F32)
		derive_held(n, n->x + at, g, PORT_F32, scratch, y);
	else
		derive_held(n, n->x + at, g, PORT_F16, scratch, y);
}

/* Computes dx of runs that are read several times. */
KERNEL(NORM_THREADS_MAX, derive_long_runs, norm_d_args)
{
	SHARED float scratch[4 * BLOCK_WARPS];
	const struct norm_args *n = &a.norm;
	int step, first = find_norm_element(n, &step);
	int64_t t, at = find_norm_run(n, n->x_pitch, &t);
	const float *x = n->x + at, *g = a.g + find_norm_run(n, a.g_pitch, &t);
	float *y = n->y + find_norm_run(n, n->y_pitch, &t);
	float v[NORM_HELD], u[NORM_HELD], sum[2] = { 0.0f, 0.0f }, mean, scale;

	if (t >= n->rows)
		return;
	measure_long_run(n, x, scratch, &mean, &scale);
	for (int i = first; i < n->each; i += step) {
		load_held(n, x, i, 0, v);
		load_weighted(n, g, i, 0, n->w_dtype, u);
		center_held(n, i, mean, v);
		sum[0] += sum_held_products(u, v);
		sum[1] += sum_held(u);
	}
	sum_over_warps(sum, 2, n->threads / WARP, scratch + 2 * BLOCK_WARPS);
	for (int i = first; i < n->each; i += step) {
		load_held(n, x, i, 0, v);
		load_weighted(n, g, i, 0, n->w_dtype, u);
		center_held(n, i, mean, v);
		write_derived(n, i, 0, u, v, scale, sum[1], sum[0], y);
	}
}

/*
 * training.cuh - the backward of elements, sums over tokens, dropout and the loss. tessera/device.h
 * defines the arithmetic and its order, except of sums: a block adds a row, and sums over tokens
 * are added in runs of rows, in order.
 */
#ifdef __CUDACC__
#define inline __device__ __forceinline__
#include <tessera/util/random.h>
#undef inline
#else
#include <tessera/util/random.h>
#endif

/* ---- dropout: of rows, and of weights of attention */

/* Draws the random words of elements [4 * group, 4 * group + 4) of a row of a site. */
DEVICE void draw_words(const struct drop_args *d, int64_t position, int64_t slot, int64_t site,
                       int64_t group, uint32_t word[4])
{
	word[0] = (uint32_t)group;
	word[1] = (uint32_t)position;
	word[2] = (uint32_t)d->step[2] + (uint32_t)slot;
	word[3] = (uint32_t)site;
	tess_philox((uint32_t)d->step[0], (uint32_t)d->step[1], word);
}

/*
 * Returns the factor of an element with this word; 0 if the element is dropped, even if non-finite.
 */
DEVICE float choose_factor(const struct drop_args *d, uint32_t word)
{
	return word < d->below ? 0.0f : d->scale;
}

/* ---- rows of activations */

KERNEL(MAP_THREADS, derive_gates, glu_d_args)
{
	int64_t i = COLUMN * 4;
	float x[4], b[4], g[4];

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		load_four(a.a + t * a.a_pitch, i, a.columns, a.wide, x);
		load_four(a.g + t * a.g_pitch, i, a.columns, a.wide, g);
		if (a.b) {
			load_four(a.b + t * a.b_pitch, i, a.columns, a.wide, b);
			EACH(j, 4) {
				float u = g[j] * b[j];

				g[j] = g[j] * activate(a.activation, x[j]);
				x[j] = derive_activation(a.activation, x[j], u);
			}
			store_row_four(a.db, a.db_pitch, t, i, a.columns, a.wide, a.db_half, g);
		} else {
			EACH(j, 4)
				x[j] = derive_activation(a.activation, x[j], g[j]);
		}
		store_row_four(a.da, a.da_pitch, t, i, a.columns, a.wide, a.da_half, x);
	}
}

/* Sums the products of two rows. */
KERNEL(NORM_THREADS_MAX, multiply_runs, row_dot_args)
{
	SHARED float scratch[NORM_THREADS_MAX / WARP];
	const float *u = a.a + blockIdx.x * a.a_pitch, *v = a.b + blockIdx.x * a.b_pitch;
	float sum = 0.0f;

	for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x)
		sum = fmaf(u[i], v[i], sum);
	sum = add_block(sum, scratch);
	if (!threadIdx.x)
		a.y[blockIdx.x * a.y_pitch] = sum;
}

/* Adds the heads of a run in order. */
KERNEL(MAP_THREADS, add_heads, head_sum_args)
{
	int64_t i = COLUMN;

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		const float *x =
			a.x + t * a.x_pitch + i / a.width * a.group * a.width + i % a.width;
		float sum = 0.0f;

		for (int64_t h = a.lo; h < a.hi; h++)
			sum += x[h * a.width];
		a.y[t * a.y_pitch + i] = sum + 0.0f;
	}
}

/* Drops elements; a thread has the four elements that share random words. */
KERNEL(MAP_THREADS, drop_elements, drop_rows_args)
{
	int64_t group = a.first / 4 + COLUMN, i = group * 4 - a.first;
	uint32_t word[4];

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		draw_words(&a.drop, a.position[t], a.slot[t], a.site, group, word);
		EACH(j, 4) {
			float factor = choose_factor(&a.drop, word[j]);

			if (i + j < 0 || i + j >= a.columns)
				continue;
			a.y[t * a.y_pitch + i + j] =
				factor == 0.0f ? 0.0f : a.x[t * a.x_pitch + i + j] * factor;
		}
	}
}

/* ---- sums over tokens */

/*
 * Adds `each` rows of g a block, or with x of g * normalized x; 0 without rows. A second launch
 * adds the results of the first one's blocks.
 */
KERNEL(MAP_THREADS, add_columns, columns_args)
{
	int64_t i = COLUMN, lo = (int64_t)blockIdx.y * a.each, run = a.x ? i / a.run : 0;
	int64_t hi = lo + a.each < a.rows ? lo + a.each : a.rows;
	float sum = 0.0f;

	if (i >= a.columns)
		return;
	for (int64_t t = lo; t < hi; t++) {
		float g = a.g[t * a.g_pitch + i];

		if (a.x) {
			const float *m = a.moments + 2 * (t * a.runs + run);

			sum = fmaf(g, (a.x[t * a.x_pitch + i] - m[0]) * m[1], sum);
		} else {
			sum += g;
		}
	}
	a.y[(int64_t)blockIdx.y * a.y_pitch + i] = sum + 0.0f;
}

/*
 * Adds gradients to EMBED_ROWS rows of the table a block, which walks the ids in order. A thread
 * has its own columns.
 */
KERNEL(MAP_THREADS, add_token_rows, embed_dw_args)
{
	SHARED int32_t at[MAP_THREADS], found[MAP_THREADS / WARP];
	int64_t lo = (int64_t)blockIdx.x * EMBED_ROWS;
	int64_t rows = a.entries - lo < EMBED_ROWS ? a.entries - lo : EMBED_ROWS;

	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = threadIdx.x; i < a.columns; i += MAP_THREADS)
			a.y[(lo + r) * a.y_pitch + i] = 0.0f;
	for (int64_t t0 = 0; t0 < a.rows; t0 += MAP_THREADS) {
		int64_t t = t0 + threadIdx.x, row = t < a.rows ? a.id[t] - a.first - lo : -1;
		float mine = row >= 0 && row < rows ? 1.0f : 0.0f;

		sync_block(); /* earlier hits have been added */
		at[threadIdx.x] = mine != 0.0f ? (int32_t)row : -1;
		EACH_MASK(mask, 1, WARP)
			mine += shuffle_xor(mine, mask);
		if (threadIdx.x % WARP == 0)
			found[threadIdx.x / WARP] = mine != 0.0f;
		sync_block();
		for (int k = 0; k < MAP_THREADS; k += found[k / WARP] ? 1 : WARP) {
			const float *g = a.g + (t0 + k) * a.g_pitch;
			float *y = a.y + (lo + at[k]) * a.y_pitch;

			if (at[k] < 0)
				continue;
			for (int64_t i = threadIdx.x; i < a.columns; i += MAP_THREADS)
				y[i] += g[i];
		}
	}
}

/* Computes y [rows, columns] = x' w, of x [k, rows] and w [k, columns]: fallback for cuBLASLt. */
KERNEL(MAP_THREADS, multiply_turned, turned_args)
{
	int64_t i = COLUMN;

	if (i >= a.columns)
		return;
	for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
		float sum = 0.0f;

		for (int64_t t = 0; t < a.k; t++)
			sum = fmaf(a.x[t * a.x_pitch + row], a.w[t * a.w_pitch + i], sum);
		a.y[row * a.y_pitch + i] = sum + 0.0f;
	}
}

/* ---- the loss of each row of logits */

KERNEL(LOSS_THREADS, find_maxima, loss_args)
{
	SHARED float scratch[LOSS_THREADS / WARP];
	const float *z = a.z + (int64_t)blockIdx.x * a.z_pitch;
	float top = -INFINITY;

	for (int64_t i = threadIdx.x; i < a.columns; i += LOSS_THREADS)
		top = z[i] > top ? z[i] : top;
	EACH_MASK(mask, 1, WARP) {
		float other = shuffle_xor(top, mask);

		top = other > top ? other : top;
	}
	if (threadIdx.x % WARP == 0)
		scratch[threadIdx.x / WARP] = top;
	sync_block();
	if (threadIdx.x)
		return;
	for (int i = 1; i < LOSS_THREADS / WARP; i++)
		top = scratch[i] > top ? scratch[i] : top;
	a.y[(int64_t)blockIdx.x * a.y_pitch] = top + 0.0f;
}

KERNEL(LOSS_THREADS, add_exponentials, loss_args)
{
	SHARED float scratch[LOSS_THREADS / WARP];
	const float *z = a.z + (int64_t)blockIdx.x * a.z_pitch;
	float max = a.max[(int64_t)blockIdx.x * a.max_pitch], sum = 0.0f;

	for (int64_t i = a.lo + threadIdx.x; i < a.hi; i += LOSS_THREADS)
		sum += mathf_exp(z[i] - max);
	sum = add_block(sum, scratch);
	if (!threadIdx.x)
		a.y[(int64_t)blockIdx.x * a.y_pitch] = sum + 0.0f;
}

/* Reads the logit of each label in columns [lo, hi); with `pick` computes the loss. */
KERNEL(MAP_THREADS, pick_labels, loss_args)
{
	int64_t t = COLUMN, label;

	if (t >= a.rows)
		return;
	label = a.label[t];
	if (a.pick) {
		float loss = mathf_log(a.sum[t * a.sum_pitch]) + a.max[t * a.max_pitch];

		a.y[t * a.y_pitch] = label == NO_LABEL ? 0.0f : loss - a.pick[t * a.pick_pitch];
		return;
	}
	label -= a.first;
	a.y[t * a.y_pitch] =
		label >= a.lo && label < a.hi ? a.z[t * a.z_pitch + label] + 0.0f : 0.0f;
}

/* Returns a / b, of which `inverse` is 1 / b, if quotient and remainders are normal floats. */
DEVICE float divide_near(float a, float b, float inverse)
{
	float q = a * inverse;

	q = fmaf(fmaf(-b, q, a), inverse, q);
	return fmaf(fmaf(-b, q, a), inverse, q);
}

/* Replaces the logits of four columns of a row by their gradients; label: one of them, or none. */
DEVICE void derive_four(float max, float sum, float count, int64_t label, float *z)
{
	float by_sum = 1.0f / sum, by_count = 1.0f / count;
	int near = sum >= 1.0f && sum < 0x1p23f && count >= 1.0f && count < 0x1p20f;

	EACH(j, 4) {
		z[j] = z[j] - max;
		near &= z[j] > -55.0f && z[j] <= 0.0f;
	}
	if (near)
		EACH(j, 4)
			z[j] = divide_near(mathf_exp_near(z[j]), sum, by_sum);
	else
		EACH(j, 4)
			z[j] = mathf_exp(z[j]) / sum;
	EACH(j, 4)
		z[j] = label == j ? z[j] - 1.0f : z[j];
	if (near)
		EACH(j, 4)
			z[j] = divide_near(z[j], count, by_count);
	else
		EACH(j, 4)
			z[j] = z[j] / count;
}

enum { LOGITS = 2 }; /* loads of a thread, in flight together */

/*
 * Computes the gradients of logits. They may replace the logits: only one thread uses an element.
 */
KERNEL(MAP_THREADS, derive_logits, loss_args)
{
	const int step = 4 * MAP_THREADS;
	int64_t i = (int64_t)blockIdx.x * LOGITS * step + threadIdx.x * 4;
	float count = *a.count, z[LOGITS][4];

	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		float max = a.max[t * a.max_pitch], sum = a.sum[t * a.sum_pitch];
		int64_t label = a.label[t];

		EACH(k, LOGITS)
			load_four(a.z + t * a.z_pitch, i + k * step, a.columns, a.wide, z[k]);
		EACH(k, LOGITS) {
			derive_four(max, sum, count, label - a.first - i - k * step, z[k]);
			EACH(j, 4)
				z[k][j] = label == NO_LABEL ? 0.0f : z[k][j];
			store_row_four(a.y, a.y_pitch, t, i + k * step, a.columns, a.wide, a.half,
			               z[k]);
		}
	}
}

/*
 * rows.cuh - kernels over rows of activations. tessera/device.h defines their arithmetic and its
 * order.
 */
#include "mathf.h"

#define COLUMN ((int64_t)blockIdx.x * blockDim.x + threadIdx.x)

DEVICE float activate(int32_t kind, float a)
{
	float half = a * 0.5f;

	switch (kind) {
	case 1:
		return a * (1.0f / (1.0f + mathf_exp(-a)));
	case 2:
		return half * (1.0f + mathf_erf(a * 0.70710678f));
	case 3:
		return half * (1.0f + mathf_tanh(0.79788456f * (a + 0.044715f * (a * a * a))));
	case 4:
		return a < 0.0f ? 0.0f : a;
	default:
		return mathf_tanh(a);
	}
}

/* Computes u * act'(a). */
DEVICE float derive_activation(int32_t kind, float a, float u)
{
	float s, t, z = a * a;

	switch (kind) {
	case 1:
		s = 1.0f / (1.0f + mathf_exp(-a));
		return u * (s * (1.0f + a * (1.0f - s)));
	case 2:
		s = 0.5f * (1.0f + mathf_erf(a * 0.70710678f));
		return u * (s + a * (0.39894228f * mathf_exp(z * -0.5f)));
	case 3:
		t = mathf_tanh(0.79788456f * (a + 0.044715f * (z * a)));
		s = 0.79788456f * (1.0f + 0.134145f * z);
		return u * ((1.0f + t) * 0.5f + ((a * 0.5f) * (1.0f - t * t)) * s);
	case 4:
		return a <= 0.0f ? 0.0f : u;
	default:
		t = mathf_tanh(a);
		return u * (1.0f - t * t);
	}
}

/* Returns 1 / x, 1 <= x < 2^125, with the bits of a division. */
DEVICE float invert_near(float x)
{
	float y = invert_fast(x);

	return fmaf(y, -fmaf(x, y, -1.0f), y);
}

/* Returns whether all |x| < 87, so that mathf_exp_near computes each e^x and e^-x. */
DEVICE int are_near(const float *x, const int n)
{
	int near = 1;

	EACH(j, n)
		near &= fabsf(x[j]) < 87.0f;
	return near;
}

/* Replaces n elements by act(x); without a branch for each if all are near, and act is SiLU. */
DEVICE void activate_elements(int32_t kind, const int n, float *x)
{
	if (kind == 1 && are_near(x, n)) {
		EACH(j, n)
			x[j] = x[j] * invert_near(1.0f + mathf_exp_near(-x[j]));
	} else {
		EACH(j, n)
			x[j] = activate(kind, x[j]);
	}
}

/* Loads four elements from i on of a row of n; in one access if `wide` (they are aligned). */
DEVICE void load_four(const float *p, int64_t i, int64_t n, int wide, float *out)
{
	if (wide && i + 4 <= n)
		widen_quad(load_quad(p + i), PORT_F32, out);
	else
		EACH(j, 4)
			out[j] = i + j < n ? p[i + j] : 0.0f;
}

/* Loads four bf16 elements from `at` on. */
DEVICE void load_four_halves(const void *p, int64_t at, float *out)
{
	widen_four(load_half_stream((const char *)p + 2 * at), PORT_BF16, out);
}

/* Stores four elements from i on of a row of n in global memory; in one access if `wide`. */
DEVICE void store_four(float *p, int64_t i, int64_t n, int wide, const float *x)
{
	if (wide && i + 4 <= n)
		store_global_quad(p + i, pack_quad(x));
	else
		EACH(j, 4)
			if (i + j < n)
				p[i + j] = x[j];
}

/* Stores four elements from i on of row t, in f32 or as bf16, of which the row has 8 n elements. */
DEVICE void store_row_four(void *y, int64_t pitch, int64_t t, int64_t i, int64_t n, int wide,
                           int half, const float *x)
{
	if (!half)
		store_four((float *)y + t * pitch, i, n, wide, x);
	else if (i < n)
		store_global_pair((uint16_t *)y + t * pitch + i, pack_bf16(x[0], x[1]),
		                  pack_bf16(x[2], x[3]));
}

/* Maps the elements of rows; a thread has four elements of a row. */
KERNEL(MAP_THREADS, map_elements, map_args)
{
	int64_t i = COLUMN * 4;
	float x[4], b[4] = { 0, 0, 0, 0 };

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		load_four(a.a + t * a.a_pitch, i, a.columns, a.wide, x);
		if (a.kind != MAP_BIAS && a.kind != MAP_FACTOR && a.b)
			load_four((const float *)a.b + t * a.b_pitch, i, a.columns, a.wide, b);
		if (a.kind == MAP_GLU)
			activate_elements(a.activation, 4, x);
		EACH(j, 4) {
			if (a.kind == MAP_BIAS && i + j < a.columns)
				b[j] = widen_element(a.b, a.b_dtype, (i + j) * a.b_pitch);
			if (a.kind == MAP_FACTOR)
				b[j] = ((const float *)a.b)[t * a.b_pitch];
			if (a.kind == MAP_GLU)
				x[j] = a.b ? x[j] * b[j] : x[j];
			else if (a.kind == MAP_SIGMOID)
				x[j] = 1.0f / (1.0f + mathf_exp(-x[j]));
			else if (a.kind == MAP_SIGMOID_D)
				x[j] = b[j] * (x[j] * (1.0f - x[j]));
			else if (a.kind == MAP_MUL || a.kind == MAP_FACTOR)
				x[j] = x[j] * b[j];
			else if (a.kind == MAP_CLAMP)
				x[j] = x[j] < a.factor ? a.factor : x[j] > a.high ? a.high : x[j];
			else if (a.kind == MAP_CLAMP_D)
				x[j] = x[j] < a.factor || x[j] > a.high ? 0.0f : b[j];
			else
				x[j] = a.kind == MAP_SCALE ? x[j] * a.factor : x[j] + b[j];
		}
		if (a.y)
			store_four(a.y + t * a.y_pitch, i, a.columns, a.wide, x);
		if (a.rounded) /* columns are a multiple of 8 */
			store_global_pair(a.rounded + t * a.columns + i, pack_bf16(x[0], x[1]),
			                  pack_bf16(x[2], x[3]));
	}
}

/* Computes the GLU of rows of bf16, which are a multiple of 8 columns, to bf16. */
KERNEL(MAP_THREADS, map_halves, map_args)
{
	int64_t i = COLUMN * 8;

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		struct quad p =
			load_stream((const uint16_t *)(const void *)a.a + t * a.a_pitch + i);
		struct quad q = load_stream((const uint16_t *)a.b + t * a.b_pitch + i);
		float x[8], b[8];

		widen_quad(p, PORT_BF16, x);
		widen_quad(q, PORT_BF16, b);
		activate_elements(a.activation, 8, x);
		EACH(j, 4)
			p.at[j] = pack_bf16(x[2 * j] * b[2 * j], x[2 * j + 1] * b[2 * j + 1]);
		store_global_quad(a.rounded + t * a.columns + i, p);
	}
}

/*
 * Adds the parts of n sums of pairs of lanes that differ in bit `mask`. Each lane keeps its half of
 * the sums, the upper one if the bit is set, and adds the other lane's part; both get a single sum.
 */
DEVICE void fold_lanes(float *z, const int n, int mask)
{
	int upper = threadIdx.x & mask;

	if (n < 2)
		z[0] += shuffle_xor(z[0], mask);
	EACH(i, n / 2) {
		float keep = upper ? z[i + n / 2] : z[i], give = upper ? z[i] : z[i + n / 2];

		z[i] = keep + shuffle_xor(give, mask);
	}
}

/*
 * Sums n values over the lanes of a warp (n: a power of two, at most 32), by one tree for every n:
 * lane i gets sum i / (32 / n), in z[0].
 */
DEVICE void sum_lanes(float *z, const int n)
{
	fold_lanes(z, n, 16);
	fold_lanes(z, n / 2, 8);
	fold_lanes(z, n / 4, 4);
	fold_lanes(z, n / 8, 2);
	fold_lanes(z, n / 16, 1);
}

/*
 * Replaces each of n values by its sum over the threads of `warps` warps: those of the block, or one
 * warp by itself. `scratch` has BLOCK_WARPS floats for each value, and serves one sum of a kernel.
 */
DEVICE void sum_over_warps(float *x, const int n, int warps, float *scratch)
{
	int from = threadIdx.x % BLOCK_WARPS;

	EACH_MASK(mask, 1, WARP)
		EACH(k, n)
			x[k] += shuffle_xor(x[k], mask);
	sync_warp(); /* after this function, threads may overwrite what their warp has read */
	if (warps == 1)
		return;
	if (threadIdx.x % WARP == 0)
		EACH(k, n)
			scratch[k * BLOCK_WARPS + threadIdx.x / WARP] = x[k];
	sync_block();
	EACH(k, n)
		x[k] = from < warps ? scratch[k * BLOCK_WARPS + from] : 0.0f;
	EACH_MASK(mask, 1, BLOCK_WARPS)
		EACH(k, n)
			x[k] += shuffle_xor(x[k], mask);
}

/* Returns the sum over all threads of a block; `scratch` has one float a warp, for one sum. */
DEVICE float add_block(float x, float *scratch)
{
	sum_over_warps(&x, 1, blockDim.x / WARP, scratch);
	return x;
}

/* Looks up rows; a thread has four elements of a row. */
KERNEL(MAP_THREADS, look_up_rows, embed_args)
{
	int64_t i = COLUMN * 4;

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		int64_t at = a.id[t] - a.first, from = at * a.stride[0] + i * a.stride[1];
		int exists = at >= a.lo && at < a.hi && at < a.entries;
		float x[4] = { 0, 0, 0, 0 };

		if (exists && a.wide)
			widen_four(a.dtype == PORT_F32
			                   ? load_quad((const float *)a.table + from)
			                   : load_pair((const uint16_t *)a.table + from),
			           a.dtype, x);
		EACH(j, 4) {
			if (exists && !a.wide && i + j < a.columns)
				x[j] = widen_element(a.table, a.dtype, from + j * a.stride[1]);
			x[j] += 0.0f;
		}
		store_four(a.y + t * a.y_pitch, i, a.columns, a.wide, x);
	}
}

KERNEL(MAP_THREADS, gather_rows, gather_args)
{
	int64_t i = COLUMN;

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		int64_t from = a.row[t];

		if (from < 0 || from >= a.x_rows) {
			*a.fault = FAULT_SELECT_ROWS;
			return;
		}
		a.y[t * a.y_pitch + i] = a.x[from * a.x_pitch + i];
	}
}

DEVICE void copy_element(char *to, const char *from, int32_t width)
{
	switch (width) {
	case 1:
		*to = *from;
		break;
	case 2:
		*(uint16_t *)to = *(const uint16_t *)from;
		break;
	case 4:
		*(uint32_t *)to = *(const uint32_t *)from;
		break;
	default:
		*(uint64_t *)to = *(const uint64_t *)from;
	}
}

KERNEL(MAP_THREADS, copy_elements, copy_args)
{
	int64_t k = COLUMN;

	if (k >= a.n[2])
		return;
	for (int64_t row = blockIdx.y; row < a.n[0] * a.n[1]; row += gridDim.y) {
		int64_t i = row / a.n[1], j = row % a.n[1];

		copy_element(a.to + i * a.to_step[0] + j * a.to_step[1] + k * a.to_step[2],
		             a.from + i * a.from_step[0] + j * a.from_step[1] + k * a.from_step[2],
		             a.width);
	}
}

/* Rounds f32 rows with adjacent elements to bf16; y_pitch is a multiple of 4. */
KERNEL(MAP_THREADS, round_rows, cast_args)
{
	int64_t i = COLUMN * 4;
	float x[4];

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		load_four((const float *)a.x + t * a.x_stride[0], i, a.columns, a.wide, x);
		store_global_pair((uint16_t *)a.y + t * a.y_pitch + i, pack_bf16(x[0], x[1]),
		                  pack_bf16(x[2], x[3]));
	}
}

KERNEL(MAP_THREADS, widen_rows, cast_args)
{
	int64_t i = COLUMN;

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y)
		((float *)a.y)[t * a.y_pitch + i] =
			widen_element(a.x, a.dtype, t * a.x_stride[0] + i * a.x_stride[1]);
}

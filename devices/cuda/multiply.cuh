/*
 * multiply.cuh - products with few rows: every weight is read once, at the speed of memory, and
 * added in f32. A warp adds columns of y, its lanes four elements of a row of W at a time, since
 * four of x are 16 bytes: so neighbours read what lies side by side of both. Where a GLU comes next
 * a warp has the same columns of both weights, and makes the GLU's out too.
 */

enum { LINE = 128 }; /* bytes of a cache line */

DEVICE struct quad load_four_weights(const char *w, int32_t dtype)
{
	return dtype == PORT_F32 ? load_stream(w) : load_half_stream(w);
}

/* q, elements [k, k + 4) of x, times the weights of its norm; their squares are added. */
DEVICE void apply_norm(const struct multiply_args *a, int32_t dtype, int64_t k, float *q,
                       float *squares)
{
	const char *at = (const char *)a->norm + k * (dtype == PORT_F32 ? 4 : 2);
	struct quad v = { { 0 } };
	float w[4];

	if (dtype == PORT_F32) {
		v = load_quad(at);
	} else {
		uint64_t bits = *(const uint64_t *)(const void *)at;

		v.at[0] = (uint32_t)bits;
		v.at[1] = (uint32_t)(bits >> 32);
	}
	widen_four(v, dtype, w);
	EACH(i, 4) {
		*squares = fmaf(q[i], q[i], *squares);
		q[i] *= a->offset + w[i];
	}
}

/*
 * Four elements of each of U runs of a warp, from k0 on; `whole`: all runs end before K, so that
 * no branch is between a load and the next. `squares`: of x, which is normed; or NULL.
 */
DEVICE void add_elements(const struct multiply_args *a, int32_t dtype, const int T, const int R,
                         const int U, const int whole, const char *const *w, int64_t k0, float *sum,
                         float *squares)
{
	const int bytes = dtype == PORT_F32 ? 4 : 2;
	struct quad v[8][4];

	EACH(u, U) {
		int64_t k = k0 + u * WARP * 4;

		EACH(r, R)
			if (whole || k < a->k)
				v[u][r] = load_four_weights(w[r] + k * bytes, dtype);
	}
	EACH(u, U) {
		int64_t k = k0 + u * WARP * 4;
		float f[4][4];

		if (!whole && k >= a->k)
			break;
		EACH(r, R)
			widen_four(v[u][r], dtype, f[r]);
		EACH(t, T) {
			float q[4];

			widen_four(load_quad(a->x + (t < a->rows ? t : 0) * a->x_pitch + k),
			           PORT_F32, q);
			if (squares)
				apply_norm(a, dtype, k, q, squares);
			EACH(r, R)
				EACH(i, 4)
					sum[t * R + r] = fmaf(q[i], f[r][i], sum[t * R + r]);
		}
	}
}

/* The sum x of row t and a column of weight `of`, and what is added to it, to y. */
DEVICE void store_sum(const struct multiply_args *a, int of, int t, int64_t column, float x)
{
	x += 0.0f;
	if (a->of[of].more)
		x += a->of[of].more[t * a->of[of].more_pitch + column];
	a->of[of].y[t * a->of[of].y_pitch + column] = x;
}

/*
 * Writes the lane's sum x, one of T rows and R columns (sum_lanes); `pair`: every second column is of
 * the second weight, and one lane writes both and the GLU's out, which may lie in place of either.
 */
DEVICE void store_sums(const struct multiply_args *a, int of, int pair, const int T, const int R,
                       int64_t column, float x)
{
	const int each = WARP / (T * R);
	int at = threadIdx.x % WARP / each, t = at / R, r = at % R;
	float up = pair ? shuffle_xor(x, each) : 0.0f;

	column += pair ? r / 2 : r;
	if (threadIdx.x % each || (pair && r % 2) || t >= a->rows || column >= a->of[of].columns)
		return;
	store_sum(a, of, t, column, x);
	if (!pair)
		return;
	store_sum(a, 1, t, column, up);
	a->glu[t * a->glu_pitch + column] = activate(a->activation, x + 0.0f) * (up + 0.0f);
}

/*
 * `T` rows, `R` columns of one weight a warp, or with a GLU half as many of both; `U` loads a
 * column under way. `norm`: of one row, whose RMS norm is multiplied; its scale is a factor of all
 * sums. All but `a` are constants.
 */
DEVICE void multiply_rows(const struct multiply_args *a, int32_t dtype, const int T, const int R,
                          const int U, const int norm)
{
	const int bytes = dtype == PORT_F32 ? 4 : 2;
	const int pair = R > 1 && a->glu != NULL;
	int of = pair ? 0 : a->nweights - 1, lane = threadIdx.x % WARP;
	int64_t column, from = 0; /* of K */
	float sum[MULTIPLY_ROWS * 4], squares = 0.0f;
	const char *w[4];

	while (of > 0 && (int)blockIdx.x < a->of[of].first_block)
		of--;
	column = ((int64_t)(blockIdx.x - a->of[of].first_block) * (MULTIPLY_THREADS / WARP) +
	          threadIdx.x / WARP) *
	         (pair ? R / 2 : R);
	if (column >= a->of[of].columns)
		return;
	EACH(r, R) {
		int64_t at = column + (pair ? r / 2 : r);
		int source = pair ? r % 2 : of;

		at = at < a->of[of].columns ? at : column;
		w[r] = (const char *)a->of[source].w + at * a->of[source].stride[0] * bytes;
		if (lane * LINE < a->k * bytes) /* while the kernel before this one ends */
			prefetch_line(w[r] + lane * LINE);
		EACH(t, T)
			sum[t * R + r] = 0.0f;
	}
	if (norm && !blockIdx.x && threadIdx.x * LINE < a->k * bytes)
		prefetch_line((const char *)a->norm + threadIdx.x * LINE);
	wait_for_kernels();
	for (; from + U * WARP * 4 <= a->k; from += U * WARP * 4)
		add_elements(a, dtype, T, R, U, 1, w, from + lane * 4, sum, norm ? &squares : NULL);
	if (from + lane * 4 < a->k)
		add_elements(a, dtype, T, R, U, 0, w, from + lane * 4, sum, norm ? &squares : NULL);
	sum_lanes(sum, T * R);
	if (norm) {
		sum_lanes(&squares, 1);
		sum[0] *= 1.0f / sqrtf(squares / (float)a->k + a->eps);
	}
	store_sums(a, of, pair, T, R, column, sum[0]);
}

#define MULTIPLY_ROWS_BY(name, blocks, ...) \
	KERNEL_EARLY(MULTIPLY_THREADS, blocks, name, multiply_args) \
	{ \
		multiply_rows(&a, __VA_ARGS__); \
	}
/* `n`: loads for 16 bytes */
#define MULTIPLY(type, dtype, n) \
	MULTIPLY_ROWS_BY(multiply_##type##_1, 1, dtype, 1, 1, 4 * (n), 0) \
	MULTIPLY_ROWS_BY(multiply_##type##_pair, 1, dtype, 1, 2, 2 * (n), 0) \
	MULTIPLY_ROWS_BY(multiply_##type##_2, 1, dtype, 2, 2, 2 * (n), 0) \
	MULTIPLY_ROWS_BY(multiply_##type##_4, 1, dtype, 4, 2, 2 * (n), 0) \
	MULTIPLY_ROWS_BY(multiply_##type##_8, 3, dtype, 8, 4, n, 0) \
	MULTIPLY_ROWS_BY(multiply_##type##_norm, 1, dtype, 1, 1, 4 * (n), 1) \
	MULTIPLY_ROWS_BY(multiply_##type##_norm_pair, 1, dtype, 1, 2, 2 * (n), 1)

MULTIPLY(f32, PORT_F32, 1)
MULTIPLY(bf16, PORT_BF16, 2)
MULTIPLY(f16, PORT_F16, 2)

/*
 * Weights of any strides and addresses, [in, out] ones among them: a lane has a column, a warp a
 * part of k, and the warps' sums are added in order.
 */
KERNEL(MULTIPLY_THREADS, multiply_any, multiply_args)
{
	SHARED float part[MULTIPLY_ROWS][MULTIPLY_THREADS];
	int of = a.nweights - 1, warps = MULTIPLY_THREADS / WARP, warp = threadIdx.x / WARP;
	int64_t each = (a.k + warps - 1) / warps, lo = warp * each, column;
	int64_t hi = lo + each < a.k ? lo + each : a.k;
	float sum[MULTIPLY_ROWS];

	while (of > 0 && (int)blockIdx.x < a.of[of].first_block)
		of--;
	column = (int64_t)(blockIdx.x - a.of[of].first_block) * WARP + threadIdx.x % WARP;
	EACH(t, MULTIPLY_ROWS)
		sum[t] = 0.0f;
	for (int64_t k = lo; k < hi && column < a.of[of].columns; k++) {
		float w = widen_element(a.of[of].w, a.dtype,
		                        column * a.of[of].stride[0] + k * a.of[of].stride[1]);

		EACH(t, MULTIPLY_ROWS)
			if (t < a.rows)
				sum[t] = fmaf(a.x[t * a.x_pitch + k], w, sum[t]);
	}
	EACH(t, MULTIPLY_ROWS)
		part[t][threadIdx.x] = sum[t];
	sync_block();
	if (column >= a.of[of].columns)
		return;
	for (int t = warp; t < a.rows; t += warps) {
		float x = 0.0f;

		for (int i = 0; i < warps; i++)
			x += part[t][i * WARP + threadIdx.x % WARP];
		store_sum(&a, of, t, column, x);
	}
}

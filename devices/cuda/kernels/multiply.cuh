/*
 * multiply.cuh - products with few rows: every weight is read once, at the bandwidth of memory, and
 * added in f32.
 *
 * With one row, the threads of a block share K: each has its elements of x in registers for all
 * columns of the block, and all loads of a short K are in flight together. With more rows, a warp
 * adds columns of y. Its lanes take four elements of a row of W at a time, since four of x are 16
 * bytes: adjacent lanes read adjacent memory of both.
 *
 * If a GLU is next, columns are those of both weights, and the kernel writes the GLU's output, too.
 */

enum { LINE = 128 }; /* bytes of a cache line */

DEVICE struct quad load_four_weights(const char *w, int32_t dtype)
{
	return dtype == PORT_F32 ? load_stream(w) : load_half_stream(w);
}

/*
 * Adds four elements of each of U runs of a warp, from k0 on. `whole`: all runs end before K, so
 * that no branch separates the loads.
 */
DEVICE void add_elements(const struct multiply_args *a, int32_t dtype, const int T, const int R,
                         const int U, const int whole, const char *const *w, int64_t k0, float *sum)
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
			EACH(r, R)
				EACH(i, 4)
					sum[t * R + r] = fmaf(q[i], f[r][i], sum[t * R + r]);
		}
	}
}

/* Writes the sum x of row t and a column of weight `of`, plus its addend, to y. */
DEVICE void store_sum(const struct multiply_args *a, int of, int t, int64_t column, float x)
{
	x += 0.0f;
	if (a->of[of].more)
		x += a->of[of].more[t * a->of[of].more_pitch + column];
	a->of[of].y[t * a->of[of].y_pitch + column] = x;
}

/*
 * Writes the lane's sum x, one of T rows and R columns (sum_lanes). `pair`: every second column is
 * of the second weight; one lane writes both and the GLU's output, which may replace either.
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

/* Returns the weight of a block; its first column is that of block `first_block`. */
DEVICE int find_weight(const struct multiply_args *a, int block)
{
	int of = a->nweights - 1;

	while (of > 0 && block < a->of[of].first_block)
		of--;
	return of;
}

/* Returns row r of R of the weights from `column` on, or with a GLU of both weights in turn. */
DEVICE const char *find_row(const struct multiply_args *a, int32_t dtype, int of, int pair,
                            int64_t column, int r)
{
	const struct multiplied *m = &a->of[pair ? r % 2 : of];
	int64_t at = column + (pair ? r / 2 : r);

	at = at < m->columns ? at : column;
	return (const char *)m->w + at * m->stride[0] * (dtype == PORT_F32 ? 4 : 2);
}

/*
 * Multiplies `T` rows by `R` columns of one weight a warp, or with a GLU by half as many of both;
 * `U` loads of a column are in flight. All arguments but `a` are constants.
 */
DEVICE void multiply_rows(const struct multiply_args *a, int32_t dtype, const int T, const int R,
                          const int U)
{
	const int bytes = dtype == PORT_F32 ? 4 : 2;
	const int pair = a->glu != NULL;
	int of = pair ? 0 : find_weight(a, blockIdx.x), lane = threadIdx.x % WARP;
	int64_t column, from = 0; /* from: start in K */
	float sum[MULTIPLY_ROWS * 4];
	const char *w[4];

	column = ((int64_t)(blockIdx.x - a->of[of].first_block) * (MULTIPLY_THREADS / WARP) +
	          threadIdx.x / WARP) *
	         (pair ? R / 2 : R);
	if (column >= a->of[of].columns)
		return;
	EACH(r, R) {
		w[r] = find_row(a, dtype, of, pair, column, r);
		if (lane * LINE < a->k * bytes) /* while the previous kernel ends */
			prefetch_line(w[r] + lane * LINE);
		EACH(t, T)
			sum[t * R + r] = 0.0f;
	}
	wait_for_kernels();
	for (; from + U * WARP * 4 <= a->k; from += U * WARP * 4)
		add_elements(a, dtype, T, R, U, 1, w, from + lane * 4, sum);
	if (from + lane * 4 < a->k)
		add_elements(a, dtype, T, R, U, 0, w, from + lane * 4, sum);
	sum_lanes(sum, T * R);
	store_sums(a, of, pair, T, R, column, sum[0]);
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Runs of a block that are loaded before one is used: 16 bytes a thread of each of its columns. */
enum { ROW_RUNS = 2, ROW_WARPS = MULTIPLY_THREADS / WARP };
enum { ROW_BYTES = ROW_RUNS * MULTIPLY_THREADS * 16 }; /* bytes of a column that these runs are */

struct row_loads {
	struct quad at[ROW_RUNS][MULTIPLY_COLUMNS];
};

struct row_sums { /* sums of a block */
	float columns[ROW_WARPS][MULTIPLY_COLUMNS], squares[ROW_WARPS];
};

/* Returns the index of run u of a thread, whose first is at k; 0, for an unused load, beyond K. */
DEVICE int64_t find_run(const struct multiply_args *a, const int n, int64_t k, int u)
{
	k += u * MULTIPLY_THREADS * n;
	return k < a->k ? k : 0;
}

DEVICE void load_runs(const struct multiply_args *a, const int n, const char *const *w, int64_t k,
                      struct row_loads *v)
{
	EACH(u, ROW_RUNS)
		EACH(r, MULTIPLY_COLUMNS)
			v->at[u][r] = load_stream(w[r] + find_run(a, n, k, u) * (16 / n));
}

/* Loads n elements of x, times the weights of its norm, and adds their squares. */
DEVICE void load_factors(const struct multiply_args *a, int32_t dtype, const int n, const int norm,
                         int64_t k, float *x, float *squares)
{
	float w[8];

	EACH(i, n / 4)
		widen_quad(load_quad(a->x + k + i * 4), PORT_F32, x + i * 4);
	if (!norm)
		return;
	widen_quad(load_quad((const char *)a->norm + k * (16 / n)), dtype, w);
	EACH(i, n) {
		*squares = fmaf(x[i], x[i], *squares);
		x[i] *= a->offset + w[i];
	}
}

/* Adds runs without a branch, which would delay loads: terms beyond K have no effect. */
DEVICE void add_runs(const struct multiply_args *a, int32_t dtype, const int n, const int norm,
                     const struct row_loads *v, int64_t k, float *sum, float *squares)
{
	float x[ROW_RUNS][8], f[8];

	EACH(u, ROW_RUNS) {
		float all = *squares;

		load_factors(a, dtype, n, norm, find_run(a, n, k, u), x[u], &all);
		*squares = k + u * MULTIPLY_THREADS * n < a->k ? all : *squares;
	}
	EACH(u, ROW_RUNS) {
		int inside = k + u * MULTIPLY_THREADS * n < a->k;

		EACH(r, MULTIPLY_COLUMNS) {
			float all = sum[r];

			widen_quad(v->at[u][r], dtype, f);
			EACH(i, n)
				all = fmaf(x[u][i], f[i], all);
			sum[r] = inside ? all : sum[r];
		}
	}
}

/* Prefetches run n of the warp's column; own: the lane's first line of it. */
DEVICE void prefetch_run(const char *own, int64_t bytes, int n)
{
	if ((int64_t)n * ROW_BYTES + threadIdx.x % WARP * LINE < bytes)
		prefetch_line(own + (int64_t)n * ROW_BYTES);
}

/* Returns the sum over the warps, in order. */
DEVICE float add_warps(const float *part, const int pitch)
{
	float x = part[0];

	EACH(i, ROW_WARPS - 1)
		x += part[(i + 1) * pitch];
	return x;
}

/* Loads the addend of the thread's sum early, to hide its latency. */
DEVICE float load_more(const struct multiply_args *a, int of, const int pair, int64_t column)
{
	column += threadIdx.x;
	return !pair && a->of[of].more && threadIdx.x < MULTIPLY_COLUMNS &&
	                       column < a->of[of].columns
	               ? a->of[of].more[column]
	               : 0.0f;
}

/* Writes the block's sums to y, and with a GLU its output, which may replace y. */
DEVICE void store_row(const struct multiply_args *a, int of, const int pair, const int norm,
                      int64_t column, const struct row_sums *s, float more)
{
	int r = threadIdx.x * (1 + pair);
	float scale = 1.0f, x, up;

	column += threadIdx.x;
	if (r >= MULTIPLY_COLUMNS || column >= a->of[of].columns)
		return;
	if (norm)
		scale /= sqrtf(add_warps(s->squares, 1) / (float)a->k + a->eps);
	x = add_warps(&s->columns[0][r], MULTIPLY_COLUMNS) * scale + 0.0f;
	a->of[of].y[column] = x + more;
	if (!pair)
		return;
	up = add_warps(&s->columns[0][r + 1], MULTIPLY_COLUMNS) * scale + 0.0f;
	a->of[1].y[column] = up;
	a->glu[column] = activate(a->activation, x) * up;
}

/*
 * Multiplies one row by MULTIPLY_COLUMNS columns of one weight, or with a GLU by half as many of
 * both. `norm`: the row has a fused RMS norm, whose scale is a factor of all sums.
 */
DEVICE void multiply_row(const struct multiply_args *a, int32_t dtype, const int pair,
                         const int norm, struct row_sums *s)
{
	const int n = dtype == PORT_F32 ? 4 : 8; /* elements of 16 bytes */
	const int each = ROW_RUNS * MULTIPLY_THREADS * n;
	const int64_t bytes = a->k * (16 / n);
	int of = pair ? 0 : find_weight(a, blockIdx.x), warp = threadIdx.x / WARP,
	    lane = threadIdx.x % WARP;
	int64_t column = (int64_t)(blockIdx.x - a->of[of].first_block) *
	                 (pair ? MULTIPLY_COLUMNS / 2 : MULTIPLY_COLUMNS);
	float sum[MULTIPLY_COLUMNS], squares = 0.0f, more;
	const char *w[MULTIPLY_COLUMNS], *own;
	struct row_loads v;

	EACH(r, MULTIPLY_COLUMNS) {
		w[r] = find_row(a, dtype, of, pair, column, r);
		sum[r] = 0.0f;
	}
	own = find_row(a, dtype, of, pair, column, warp) + lane * LINE;
	prefetch_run(own, bytes, 0);
	prefetch_run(own, bytes, 1);
	if (norm && !blockIdx.x && threadIdx.x * LINE < bytes)
		prefetch_line((const char *)a->norm + threadIdx.x * LINE);
	wait_for_kernels();
	more = load_more(a, of, pair, column);
	for (int64_t k = 0; k < a->k; k += each) {
		load_runs(a, n, w, k + threadIdx.x * n, &v);
		prefetch_run(own, bytes, (int)(k / each) + 2);
		add_runs(a, dtype, n, norm, &v, k + threadIdx.x * n, sum, &squares);
	}
	sum_lanes(sum, MULTIPLY_COLUMNS);
	if (lane % (WARP / MULTIPLY_COLUMNS) == 0)
		s->columns[warp][lane / (WARP / MULTIPLY_COLUMNS)] = sum[0];
	if (norm)
		sum_lanes(&squares, 1);
	if (norm && !lane)
		s->squares[warp] = squares;
	sync_block();
	store_row(a, of, pair, norm, column, s, more);
}

#define MULTIPLY_ROW(name, dtype, pair, norm) \
	KERNEL_EARLY(MULTIPLY_THREADS, 7, name, multiply_args) \
	{ \
		SHARED struct row_sums sums; \
		multiply_row(&a, dtype, pair, norm, &sums); \
	}
#define MULTIPLY_ROWS_BY(name, blocks, ...) \
	KERNEL_EARLY(MULTIPLY_THREADS, blocks, name, multiply_args) \
	{ \
		multiply_rows(&a, __VA_ARGS__); \
	}
/* `n`: loads for 16 bytes */
#define MULTIPLY(type, dtype, n) \
	MULTIPLY_ROW(multiply_##type##_1, dtype, 0, 0) \
	MULTIPLY_ROW(multiply_##type##_pair, dtype, 1, 0) \
	MULTIPLY_ROWS_BY(multiply_##type##_2, 1, dtype, 2, 2, 2 * (n)) \
	MULTIPLY_ROWS_BY(multiply_##type##_4, 1, dtype, 4, 2, 2 * (n)) \
	MULTIPLY_ROWS_BY(multiply_##type##_8, 3, dtype, 8, 4, n) \
	MULTIPLY_ROW(multiply_##type##_norm, dtype, 0, 1) \
	MULTIPLY_ROW(multiply_##type##_norm_pair, dtype, 1, 1)

MULTIPLY(f32, PORT_F32, 1)
MULTIPLY(bf16, PORT_BF16, 2)
MULTIPLY(f16, PORT_F16, 2)

/*
 * Multiplies by weights of any strides and addresses, such as [in, out]: a lane has a column, a
 * warp a part of k, and the warps' sums are added in order.
 */
KERNEL(MULTIPLY_THREADS, multiply_any, multiply_args)
{
	SHARED float part[MULTIPLY_ROWS][MULTIPLY_THREADS];
	int of = find_weight(&a, blockIdx.x), warps = MULTIPLY_THREADS / WARP,
	    warp = threadIdx.x / WARP;
	int64_t each = (a.k + warps - 1) / warps, lo = warp * each, column;
	int64_t hi = lo + each < a.k ? lo + each : a.k;
	float sum[MULTIPLY_ROWS];

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

/*
 * groups.cuh - products of groups of rows in f32: of the rows of each expert, which are listed on
 * the GPU, or of all rows for each head.
 *
 * A block has 64 x 64 elements of an output, a thread 8 x 4 of them. Shared memory has 32 terms of
 * each at a time.
 */

enum { GROUP_EACH = 8 }; /* elements of a load, and rows of a thread */

/* Returns the sum of n over the block. */
DEVICE int add_threads(int *part, int n)
{
	sync_block();
	part[threadIdx.x] = n;
	for (int step = LIST_THREADS / 2; step; step /= 2) {
		sync_block();
		if ((int)threadIdx.x < step)
			part[threadIdx.x] += part[threadIdx.x + step];
	}
	sync_block();
	return part[0];
}

DEVICE int is_asked(const struct list_args *a, int64_t t, int64_t e)
{
	return a->weights[t * a->pitch + e] != 0.0f;
}

/*
 * Counts the rows of an expert, a block each. Used with many rows, so that no list counts all of
 * them.
 */
KERNEL(LIST_THREADS, count_expert_rows, list_args)
{
	SHARED int part[LIST_THREADS];
	int n = 0;

	for (int64_t t = threadIdx.x; t < a.rows; t += LIST_THREADS)
		n += is_asked(&a, t, blockIdx.x);
	n = add_threads(part, n);
	if (threadIdx.x == 0)
		a.count[blockIdx.x] = n;
}

/*
 * Lists the rows of an expert after those of the previous ones, a block each: a thread has adjacent
 * rows. `place` is -1 for rows without the expert.
 */
KERNEL(LIST_THREADS, list_expert_rows, list_args)
{
	SHARED int part[LIST_THREADS];
	int64_t e = blockIdx.x, each = (a.rows + LIST_THREADS - 1) / LIST_THREADS,
		from = threadIdx.x * each, to = from + each < a.rows ? from + each : a.rows;
	int last = a.rows ? (int)((a.rows - 1) / each) : 0, at = 0, n = 0; /* thread with rows */

	if (a.count)
		for (int64_t i = threadIdx.x; i < e; i += LIST_THREADS)
			at += a.count[i];
	else
		for (int64_t i = threadIdx.x; i < a.rows * e; i += LIST_THREADS)
			at += is_asked(&a, i / e, i % e);
	at = add_threads(part, at);
	for (int64_t t = from; t < to; t++)
		n += is_asked(&a, t, e);
	if (threadIdx.x == 0)
		a.begin[e] = at < a.capacity ? at : a.capacity;
	sync_block();
	part[threadIdx.x] = n;
	sync_block();
	for (int i = 0; i < (int)threadIdx.x && i < last; i++)
		at += part[i];
	if (e == a.experts - 1 && (int)threadIdx.x == last) {
		a.begin[a.experts] = at + n < a.capacity ? at + n : a.capacity;
		if (at + n > a.capacity)
			*a.fault = FAULT_EXPERTS;
	}
	for (int64_t t = from; t < to; t++) {
		int listed = is_asked(&a, t, e) && at < a.capacity;

		if (a.place)
			a.place[t * a.experts + e] = listed ? at : -1;
		if (!listed)
			continue;
		a.row[at] = (int32_t)t;
		a.expert[at] = (int32_t)e;
		if (a.slot) {
			a.slot[at] = 0;
			for (int64_t i = 0; i < e; i++)
				a.slot[at] += is_asked(&a, t, i);
		}
		at++;
	}
}

/* Loads elements [k, k + 8) of a row: of a weight in steps of `step`, or of x. Zeros after `n`. */
DEVICE void load_eight(const char *p, int32_t dtype, int64_t step, int64_t k, int64_t n, float *out)
{
	const char *at = p + k * (dtype == PORT_F32 ? 4 : 2);

	if (step == 1 && n - k >= 8 && (uintptr_t)at % 16 == 0) {
		widen_quad(load_quad(at), dtype, out);
		if (dtype == PORT_F32)
			widen_quad(load_quad(at + 16), dtype, out + 4);
		return;
	}
	EACH(i, 8)
		out[i] = k + i < n ? widen_element(p, dtype, (k + i) * step) : 0.0f;
}

/* Stores elements [at, at + 8) of 8 rows of 64, in the layout of shared memory. */
DEVICE void store_eight(float *to, const float *f)
{
	store_quad(to, pack_quad(f));
	store_quad(to + 4, pack_quad(f + 4));
}

/*
 * Loads terms [at, at + 32) of n of 64 elements from `first` on, of `count`, as [32][64]; zeros for
 * missing ones. `stride`: of an element, and of a term.
 */
DEVICE void load_weight_terms(const char *w, int32_t dtype, const int64_t *stride, int64_t first,
                              int64_t count, int64_t at, int64_t n, float *to)
{
	const int64_t width = dtype == PORT_F32 ? 4 : 2;

	for (int i = threadIdx.x; i < KEYS * GROUP_DEPTH / GROUP_EACH; i += MULTIPLY_THREADS) {
		int by_term = stride[1] == 1, lane = by_term ? i % KEYS : i % 8 * 8;
		int term = by_term ? i / KEYS * 8 : i / 8;
		float f[GROUP_EACH] = { 0, 0, 0, 0, 0, 0, 0, 0 };

		if (by_term) {
			if (first + lane < count)
				load_eight(w + (first + lane) * stride[0] * width, dtype, 1,
				           at + term, n, f);
			EACH(j, GROUP_EACH)
				to[(term + j) * KEYS + lane] = f[j];
		} else {
			if (at + term < n)
				load_eight(w + (at + term) * stride[1] * width, dtype, stride[0],
				           first + lane, count, f);
			store_eight(to + term * KEYS + lane, f);
		}
	}
}

/* Adds 32 terms of the thread's rows and columns to sum [8][4]. */
DEVICE void add_terms(const float *rows, const float *columns, float sum[][TILE_EACH])
{
	int r0 = threadIdx.x / 16 * GROUP_EACH, c0 = threadIdx.x % 16 * TILE_EACH;

	UNROLL_BY(4)
	for (int i = 0; i < GROUP_DEPTH; i++) {
		float f[GROUP_EACH], h[TILE_EACH];

		widen_quad(load_quad(rows + i * KEYS + r0), PORT_F32, f);
		widen_quad(load_quad(rows + i * KEYS + r0 + 4), PORT_F32, f + 4);
		widen_quad(load_quad(columns + i * KEYS + c0), PORT_F32, h);
		multiply_square(f, h, sum);
		multiply_square(f + 4, h, sum + 4);
	}
}

DEVICE void clear_terms(float sum[][TILE_EACH])
{
	EACH(r, GROUP_EACH)
		EACH(c, TILE_EACH)
			sum[r][c] = 0.0f;
}

/* Computes y = x w' for the rows of a group: 64 rows and columns at a time. */
KERNEL(MULTIPLY_THREADS, multiply_groups, group_args)
{
	DYNAMIC_SHARED(mine);
	float *others = mine + GROUP_DEPTH * KEYS;
	int64_t e = blockIdx.y, first = (int64_t)blockIdx.x * KEYS;
	int64_t from = a.begin ? a.begin[e] : 0, end = a.begin ? a.begin[e + 1] : a.rows;
	const char *w = (const char *)a.w + e * a.w_stride[0] * (a.dtype == PORT_F32 ? 4 : 2);

	for (from += (int64_t)blockIdx.z * KEYS; from < end; from += (int64_t)gridDim.z * KEYS) {
		float sum[GROUP_EACH][TILE_EACH];

		clear_terms(sum);
		for (int64_t at = 0; at < a.k; at += GROUP_DEPTH) {
			sync_block(); /* the earlier contents have been read */
			for (int i = threadIdx.x; i < KEYS * GROUP_DEPTH / GROUP_EACH;
			     i += MULTIPLY_THREADS) {
				int r = i % KEYS, term = i / KEYS * GROUP_EACH;
				float f[GROUP_EACH] = { 0, 0, 0, 0, 0, 0, 0, 0 };

				if (from + r < end)
					load_eight((const char *)(a.x +
					                          (a.row ? a.row[from + r]
					                                 : from + r) *
					                                  a.x_pitch +
					                          e * a.x_step),
					           PORT_F32, 1, at + term, a.k, f);
				EACH(j, GROUP_EACH)
					mine[(term + j) * KEYS + r] = f[j];
			}
			load_weight_terms(w, a.dtype, a.w_stride + 1, first, a.n, at, a.k, others);
			sync_block();
			add_terms(mine, others, sum);
		}
		EACH(r, GROUP_EACH)
			EACH(c, TILE_EACH) {
				int64_t row = from + threadIdx.x / 16 * GROUP_EACH + r;
				int64_t i = first + threadIdx.x % 16 * TILE_EACH + c;

				if (row < end && i < a.n)
					a.y[row * a.y_pitch + e * a.y_step + i] = sum[r][c] + 0.0f;
			}
	}
}

/*
 * Computes h = act(gate) * up of the listed rows, in place of gate: hidden is [listed rows][2][ffn].
 */
KERNEL(MAP_THREADS, activate_listed, experts_args)
{
	int64_t j = COLUMN;

	for (int64_t at = blockIdx.y; at < a.begin[a.experts] && j < a.ffn; at += gridDim.y) {
		float *h = a.hidden + at * 2 * a.ffn + j;

		h[0] = join_gates(&a.gates, a.owner[at], j, h[0], h[a.ffn]);
	}
}

/*
 * Loads elements [first, first + 64) of n of a side of the listed rows [at, at + 32), as [32][64].
 */
DEVICE void load_row_terms(const struct row_sum_args *a, const struct row_side *x, int64_t first,
                           int64_t at, int64_t end, float *to)
{
	int64_t e = blockIdx.z;

	for (int i = threadIdx.x; i < GROUP_DEPTH * KEYS / GROUP_EACH; i += MULTIPLY_THREADS) {
		int term = i / 8, lane = i % 8 * 8;
		float f[GROUP_EACH] = { 0, 0, 0, 0, 0, 0, 0, 0 };

		if (at + term < end) {
			int64_t t = a->row ? a->row[at + term] : at + term;
			int64_t from = t * x->pitch + e * x->step;

			if (x->slot)
				from += a->slot[at + term] * x->slot;
			if (x->data)
				load_eight((const char *)(x->data + from), PORT_F32, 1,
				           first + lane, x->n, f);
			else
				EACH(j, GROUP_EACH)
					f[j] = 1.0f;
			if (x->weighted)
				EACH(j, GROUP_EACH)
					f[j] *= a->weights[t * a->weights_pitch + e];
		}
		store_eight(to + term * KEYS + lane, f);
	}
}

/* Computes y = the sum over the rows of a group of g' x. */
KERNEL(MULTIPLY_THREADS, sum_row_products, row_sum_args)
{
	DYNAMIC_SHARED(mine);
	float *others = mine + GROUP_DEPTH * KEYS;
	int64_t e = blockIdx.z, n0 = (int64_t)blockIdx.y * KEYS, k0 = (int64_t)blockIdx.x * KEYS;
	int64_t at = a.begin ? a.begin[e] : 0, end = a.begin ? a.begin[e + 1] : a.rows;
	float sum[GROUP_EACH][TILE_EACH];

	clear_terms(sum);
	for (; at < end; at += GROUP_DEPTH) {
		sync_block(); /* the earlier contents have been read */
		load_row_terms(&a, &a.g, n0, at, end, mine);
		load_row_terms(&a, &a.x, k0, at, end, others);
		sync_block();
		add_terms(mine, others, sum);
	}
	EACH(r, GROUP_EACH)
		EACH(c, TILE_EACH) {
			int64_t n = n0 + threadIdx.x / 16 * GROUP_EACH + r;
			int64_t k = k0 + threadIdx.x % 16 * TILE_EACH + c;

			if (n < a.g.n && k < a.x.n)
				a.y[e * a.y_stride[0] + n * a.y_stride[1] + k * a.y_stride[2]] =
					sum[r][c] + 0.0f;
		}
}

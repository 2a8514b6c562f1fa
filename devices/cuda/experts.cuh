/*
 * experts.cuh - mixtures of experts, and heads with weights of their own: products of rows that are
 * found on the GPU, in f32. A warp has a column of a weight, and up to 8 rows of x at a time.
 */

enum { COLUMN_LOADS = 8 }; /* of four elements of a column, under way at once */

/* Whether lanes can read four weights, and 16 bytes of rows of x, at a time. */
DEVICE int is_wide_column(const char *w, int64_t step, int64_t k, const float *const *x)
{
	uintptr_t bits = (uintptr_t)w;

	EACH(t, MULTIPLY_ROWS)
		bits |= (uintptr_t)x[t];
	return step == 1 && k % 4 == 0 && bits % 16 == 0;
}

/*
 * The lane's part of the sums of multiply_column, in the same order, from element `at` on; `whole`:
 * all loads are before k, and there is one row, so that no branch is between a load and the next.
 */
DEVICE void add_wide_elements(const char *w, int32_t dtype, int64_t at, int64_t k,
                              const float *const *x, int n, const int whole, float *sum)
{
	const int width = dtype == PORT_F32 ? 4 : 2;
	struct quad v[COLUMN_LOADS];

	EACH(u, COLUMN_LOADS)
		if (whole || at + u * WARP * 4 < k)
			v[u] = load_four_weights(w + (at + u * WARP * 4) * width, dtype);
	EACH(u, COLUMN_LOADS) {
		float f[4], q[4];

		if (!whole && at + u * WARP * 4 >= k)
			break;
		widen_four(v[u], dtype, f);
		EACH(t, whole ? 1 : MULTIPLY_ROWS) {
			if (t >= n)
				break;
			widen_four(load_quad(x[t] + at + u * WARP * 4), PORT_F32, q);
			EACH(i, 4)
				sum[t] = fmaf(q[i], f[i], sum[t]);
		}
	}
}

DEVICE void add_wide_column(const char *w, int32_t dtype, int64_t k, const float *const *x, int n,
                            float *sum)
{
	const int step = COLUMN_LOADS * WARP * 4;
	int64_t at = threadIdx.x % WARP * 4,
		end = n == 1 && dtype == PORT_BF16 ? k / step * step : 0;

	for (; at < end; at += step)
		add_wide_elements(w, dtype, at, k, x, 1, 1, sum);
	for (; at < k; at += step)
		add_wide_elements(w, dtype, at, k, x, n, 0, sum);
}

enum { ROW_LANES = WARP / MULTIPLY_ROWS }; /* that have the sum of a row */

/* x_t * w over k elements, for n rows: lanes have that of row lane / ROW_LANES. */
DEVICE float multiply_column(const char *w, int32_t dtype, int64_t step, int64_t k,
                             const float *const *x, int n)
{
	int wide = is_wide_column(w, step, k, x);
	float sum[MULTIPLY_ROWS];

	EACH(t, MULTIPLY_ROWS)
		sum[t] = 0.0f;
	if (wide && dtype == PORT_BF16) /* most often, so that it is a constant there */
		add_wide_column(w, PORT_BF16, k, x, n, sum);
	else if (wide)
		add_wide_column(w, dtype, k, x, n, sum);
	for (int64_t at = threadIdx.x % WARP * 4; at < k && !wide; at += WARP * 4)
		for (int64_t i = at; i < at + 4 && i < k; i++) {
			float f = widen_element(w, dtype, i * step);

			EACH(t, MULTIPLY_ROWS)
				if (t < n)
					sum[t] = fmaf(x[t][i], f, sum[t]);
		}
	sum_lanes(sum, MULTIPLY_ROWS);
	return sum[0];
}

/* The row of the lane that writes the sum of one of n rows, or -1. */
DEVICE int find_lane_row(int n)
{
	int lane = threadIdx.x % WARP, row = lane / ROW_LANES;

	return lane % ROW_LANES == 0 && row < n ? row : -1;
}

KERNEL(MULTIPLY_THREADS, multiply_heads, heads_args)
{
	int64_t column = blockIdx.x * (MULTIPLY_THREADS / WARP) + threadIdx.x / WARP;
	int64_t h = blockIdx.y, width = a.dtype == PORT_F32 ? 4 : 2;
	const char *w = (const char *)a.w + (h * a.stride[0] + column * a.stride[1]) * width;

	for (int64_t t = (int64_t)blockIdx.z * MULTIPLY_ROWS; t < a.rows;
	     t += (int64_t)gridDim.z * MULTIPLY_ROWS) {
		int n = a.rows - t < MULTIPLY_ROWS ? (int)(a.rows - t) : MULTIPLY_ROWS;
		int own = find_lane_row(n);
		const float *x[MULTIPLY_ROWS];
		float sum;

		if (blockIdx.x == 0)
			for (int r = 0; r < n; r++)
				for (int64_t i = threadIdx.x; i < a.rest; i += MULTIPLY_THREADS)
					a.y[(t + r) * a.y_pitch + h * (a.n + a.rest) + a.n + i] =
						a.x[(t + r) * a.x_pitch + h * (a.k + a.rest) + a.k +
					            i];
		if (column >= a.columns)
			continue;
		EACH(r, MULTIPLY_ROWS)
			x[r] = a.x + (t + (r < n ? r : 0)) * a.x_pitch + h * (a.k + a.rest);
		sum = multiply_column(w, a.dtype, a.stride[2], a.k, x, n);
		if (own >= 0)
			a.y[(t + own) * a.y_pitch + h * (a.n + a.rest) + column] = sum + 0.0f;
	}
}

/* ---- ROUTE ----------------------------------------------------------------------------------- */

/* A NaN is larger than any number. */
DEVICE int is_larger_score(float a, float b)
{
	return a > b || (a != a && b == b);
}

/*
 * Marks the `count` largest of the n values with mark 0, the lowest index of equal ones. A lane has
 * every 32nd value and mark.
 */
DEVICE void mark_largest_scores(const float *value, int n, int count, int *mark)
{
	for (int k = 0; k < count; k++) {
		int best = -1;
		float most = -INFINITY;

		for (int i = threadIdx.x; i < n; i += WARP) {
			if (!mark[i] && (best < 0 || is_larger_score(value[i], most))) {
				best = i;
				most = value[i];
			}
		}
		EACH_MASK(mask, 1, WARP) {
			float other = shuffle_xor(most, mask);
			int at = (int)shuffle_xor((float)best, mask); /* exact: at most 1024 */

			if (at >= 0 && (best < 0 || is_larger_score(other, most) ||
			                (at < best && !is_larger_score(most, other)))) {
				best = at;
				most = other;
			}
		}
		if (best >= 0 && best % WARP == (int)threadIdx.x)
			mark[best] = 1;
	}
	sync_warp();
}

/* Marks the experts of the groups that are not kept -1. */
DEVICE void exclude_expert_groups(const struct route_args *a, const float *choice, float *best,
                                  int *kept, int *mark)
{
	int each = a->experts / a->groups;

	for (int g = threadIdx.x; g < a->groups; g += WARP) {
		const float *c = choice + g * each;
		int first = 0, second = -1;

		kept[g] = 0;
		for (int i = 1; i < each; i++)
			first = is_larger_score(c[i], c[first]) ? i : first;
		for (int i = 0; i < each; i++)
			if (i != first && (second < 0 || is_larger_score(c[i], c[second])))
				second = i;
		best[g] = c[first] + c[second];
	}
	mark_largest_scores(best, a->groups, a->kept, kept);
	for (int i = threadIdx.x; i < a->experts; i += WARP)
		mark[i] = kept[i / each] ? 0 : -1;
}

/* The scores of n experts, in shared memory: a warp has a row, and adds in their order. */
DEVICE void score_experts(const float *x, int n, int sigmoid, float *score)
{
	float max = -INFINITY, sum = 0.0f;

	for (int i = threadIdx.x; i < n; i += WARP)
		max = x[i] > max ? x[i] : max;
	EACH_MASK(mask, 1, WARP) {
		float other = shuffle_xor(max, mask);

		max = other > max ? other : max;
	}
	for (int i = threadIdx.x; i < n; i += WARP)
		score[i] = sigmoid ? 1.0f / (1.0f + mathf_exp(-x[i])) : mathf_exp(x[i] - max);
	sync_warp();
	if (sigmoid)
		return;
	for (int i = 0; i < n; i++)
		sum += score[i];
	sync_warp();
	for (int i = threadIdx.x; i < n; i += WARP)
		score[i] = score[i] / sum;
	sync_warp();
}

/* A warp has a row. */
KERNEL(WARP, route_experts, route_args)
{
	DYNAMIC_SHARED(score);
	float *choice = score + a.experts, *best = choice + a.experts;
	int *mark = (int *)(best + a.groups), *kept = mark + a.experts;
	int64_t t = blockIdx.x;
	float sum = 0.0f;

	score_experts(a.x + t * a.x_pitch, a.experts, a.sigmoid, score);
	for (int i = threadIdx.x; i < a.experts; i += WARP) {
		choice[i] =
			a.b ? score[i] + widen_element(a.b, a.b_dtype, i * a.b_stride) : score[i];
		mark[i] = 0;
	}
	sync_warp();
	if (a.groups > 1)
		exclude_expert_groups(&a, choice, best, kept, mark);
	mark_largest_scores(choice, a.experts, a.top, mark);
	for (int i = 0; i < a.experts; i++)
		sum = mark[i] == 1 ? sum + score[i] : sum;
	for (int i = threadIdx.x; i < a.experts; i += WARP)
		a.y[t * a.y_pitch + i] = mark[i] != 1  ? 0.0f
		                         : a.normalize ? score[i] / (sum + a.eps) * a.scale
		                                       : score[i] * a.scale;
}

/* ---- EXPERTS, COMBINE ------------------------------------------------------------------------ */

/* The expert of a block: with few rows that of a listed row, if it is the first of its; or -1. */
DEVICE int find_block_expert(const struct experts_args *a)
{
	int y = blockIdx.y, e = y;

	if (a->expert) {
		e = y < a->begin[a->experts] ? a->expert[y] : -1;
		e = e >= 0 && a->begin[e] == y ? e : -1;
	}
	return e;
}

/* h = act(gate) * up, for the listed rows: a warp has column j of both. */
KERNEL(MULTIPLY_THREADS, multiply_gate_up, experts_args)
{
	int64_t j = blockIdx.x * (MULTIPLY_THREADS / WARP) + threadIdx.x / WARP;
	int64_t e = find_block_expert(&a);
	int64_t width = a.dtype == PORT_F32 ? 4 : 2;
	const char *w;

	if (e < 0)
		return;
	w = (const char *)a.gate_up +
	    (e * a.gate_up_stride[0] + j * a.gate_up_stride[1] + a.k_first * a.gate_up_stride[2]) *
	            width;
	for (int at = a.begin[e]; at < a.begin[e + 1] && j < a.ffn; at += MULTIPLY_ROWS) {
		int n = a.begin[e + 1] - at < MULTIPLY_ROWS ? a.begin[e + 1] - at : MULTIPLY_ROWS;
		int own = find_lane_row(n);
		const float *x[MULTIPLY_ROWS];
		float gate, up;

		EACH(r, MULTIPLY_ROWS)
			x[r] = a.x + a.row[at + (r < n ? r : 0)] * a.x_pitch + a.k_first;
		gate = multiply_column(w, a.dtype, a.gate_up_stride[2], a.k, x, n);
		up = multiply_column(w + a.ffn * a.gate_up_stride[1] * width, a.dtype,
		                     a.gate_up_stride[2], a.k, x, n);
		if (own >= 0)
			a.hidden[(at + own) * a.ffn + j] = activate(a.activation, gate) * up;
	}
}

/* z = h * down, for the listed rows. */
KERNEL(MULTIPLY_THREADS, multiply_down, experts_args)
{
	int64_t j = blockIdx.x * (MULTIPLY_THREADS / WARP) + threadIdx.x / WARP;
	int64_t e = find_block_expert(&a);
	int64_t width = a.dtype == PORT_F32 ? 4 : 2;
	const char *w;

	if (e < 0)
		return;
	w = (const char *)a.down +
	    (e * a.down_stride[0] + j * a.down_stride[1] + a.f_first * a.down_stride[2]) * width;
	for (int at = a.begin[e]; at < a.begin[e + 1] && j < a.columns; at += MULTIPLY_ROWS) {
		int n = a.begin[e + 1] - at < MULTIPLY_ROWS ? a.begin[e + 1] - at : MULTIPLY_ROWS;
		int own = find_lane_row(n);
		const float *x[MULTIPLY_ROWS];
		float sum;

		EACH(r, MULTIPLY_ROWS)
			x[r] = a.hidden + (at + (r < n ? r : 0)) * a.ffn + a.f_first;
		sum = multiply_column(w, a.dtype, a.down_stride[2], a.f, x, n);
		if (own >= 0)
			a.z[(at + own) * a.columns + j] = sum + 0.0f;
	}
}

/*
 * The experts of a row are added in their order; with slots they are written one after another. A
 * thread has four columns.
 */
KERNEL(MAP_THREADS, combine_experts, experts_args)
{
	int64_t i = COLUMN * 4;

	if (i >= a.columns)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		float *y = a.y + t * a.y_pitch, sum[4] = { 0, 0, 0, 0 }, none[4] = { 0, 0, 0, 0 };
		int64_t slot = 0;

		for (int e = 0; e < a.experts; e++) {
			float w = a.weights[t * a.weights_pitch + e], z[4];

			if (w == 0.0f)
				continue;
			if (slot == a.most || (a.place && a.place[t * a.experts + e] < 0)) {
				*a.fault = FAULT_EXPERTS;
				break;
			}
			load_four(a.place ? a.z + a.place[t * a.experts + e] * a.columns
			                  : a.x + t * a.x_pitch + slot * a.columns,
			          i, a.columns, a.wide, z);
			if (a.slots)
				store_four(y + slot * a.columns, i, a.columns, a.wide, z);
			else
				EACH(j, 4)
					sum[j] += w * z[j];
			slot++;
		}
		for (; slot < a.slots; slot++)
			store_four(y + slot * a.columns, i, a.columns, a.wide, none);
		if (!a.slots)
			store_four(y, i, a.columns, a.wide, sum);
	}
}

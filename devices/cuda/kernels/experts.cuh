/*
 * experts.cuh - mixtures of experts, and heads with separate weights: products of rows that are
 * found on the GPU, in f32. A warp has a column of a weight, and up to 8 rows of x at a time.
 */

enum { COLUMN_LOADS = 8 }; /* loads in flight, each of four elements of a column */
enum { COMBINED = 8 }; /* expert results of a row, which are loaded together */

/* Returns whether lanes can read four weights, and 16 bytes of rows of x, at a time. */
DEVICE int is_wide_column(const char *w, int64_t step, int64_t k, const float *const *x)
{
	uintptr_t bits = (uintptr_t)w;

	EACH(t, MULTIPLY_ROWS)
		bits |= (uintptr_t)x[t];
	return step == 1 && k % 4 == 0 && bits % 16 == 0;
}

/*
 * Adds the lane's part of the sums of multiply_column, in its order, from element `at` on. `whole`:
 * all loads are before k, and there is one row, so that no branch separates the loads.
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

enum { ROW_LANES = WARP / MULTIPLY_ROWS }; /* lanes with the sum of a row */

/* Computes x_t * w over k elements, for n rows: lanes have the sum of row lane / ROW_LANES. */
DEVICE float multiply_column(const char *w, int32_t dtype, int64_t step, int64_t k,
                             const float *const *x, int n)
{
	int wide = is_wide_column(w, step, k, x);
	float sum[MULTIPLY_ROWS];

	EACH(t, MULTIPLY_ROWS)
		sum[t] = 0.0f;
	if (wide && dtype == PORT_BF16) /* the common case gets a constant */
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

/* Returns the row that the lane writes the sum of, one of n rows; or -1. */
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

/* Returns whether a > b, where a NaN is larger than any number. */
DEVICE int is_larger_score(float a, float b)
{
	return a > b || (a != a && b == b);
}

/*
 * Sets mark to 1 for the `count` largest of the n values that are open, or of all, lowest index
 * first among equal ones; else to 0. A thread counts the predecessors of each of its values.
 */
DEVICE void mark_largest_scores(const float *value, int all, const int *open, int n, int count,
                                int *mark)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x) {
		float own = value[i];
		int before = 0;

		UNROLL_BY(8)
		for (int j = 0; j < n; j++)
			before += (all || open[j]) && (is_larger_score(value[j], own) ||
			                               (j < i && !is_larger_score(own, value[j])));
		mark[i] = (all || open[i]) && before < count;
	}
	sync_block();
}

/* Opens the experts of the selected groups. */
DEVICE void open_expert_groups(const struct route_args *a, const float *choice, float *best,
                               int *kept, int *open)
{
	int each = a->experts / a->groups;

	for (int g = threadIdx.x; g < a->groups; g += blockDim.x) {
		const float *c = choice + g * each;
		int first = 0, second = -1;

		for (int i = 1; i < each; i++)
			first = is_larger_score(c[i], c[first]) ? i : first;
		for (int i = 0; i < each; i++)
			if (i != first && (second < 0 || is_larger_score(c[i], c[second])))
				second = i;
		best[g] = a->group_max ? c[first] : c[first] + c[second];
	}
	sync_block();
	mark_largest_scores(best, 1, open, a->groups, a->kept, kept);
	for (int i = threadIdx.x; i < a->experts; i += blockDim.x)
		open[i] = kept[i / each];
	sync_block();
}

/* Computes the scores of n experts of a row, in shared memory: a block adds them in order. */
DEVICE void score_experts(const float *x, int n, int sigmoid, float *score)
{
	float max = -INFINITY, sum = 0.0f;

	for (int i = threadIdx.x % WARP; i < n; i += WARP)
		max = x[i] > max ? x[i] : max;
	EACH_MASK(mask, 1, WARP) {
		float other = shuffle_xor(max, mask);

		max = other > max ? other : max;
	}
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		score[i] = sigmoid ? 1.0f / (1.0f + mathf_exp(-x[i])) : mathf_exp(x[i] - max);
	sync_block();
	if (sigmoid)
		return;
	UNROLL_BY(16)
	for (int i = 0; i < n; i++)
		sum += score[i];
	sync_block();
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		score[i] = score[i] / sum;
	sync_block();
}

/* Routes a row a block; a thread has an expert. */
KERNEL(ROUTE_THREADS, route_experts, route_args)
{
	DYNAMIC_SHARED(score);
	float *choice = score + a.experts, *best = choice + a.experts;
	int *open = (int *)(best + a.groups), *mark = open + a.experts, *kept = mark + a.experts;
	int64_t t = blockIdx.x;
	float sum = 0.0f;

	score_experts(a.x + t * a.x_pitch, a.experts, a.sigmoid, score);
	for (int i = threadIdx.x; i < a.experts; i += blockDim.x)
		choice[i] =
			a.b ? score[i] + widen_element(a.b, a.b_dtype, i * a.b_stride) : score[i];
	sync_block();
	if (a.groups > 1)
		open_expert_groups(&a, choice, best, kept, open);
	mark_largest_scores(choice, a.groups <= 1, open, a.experts, a.top, mark);
	for (int i = threadIdx.x; i < a.experts; i += blockDim.x)
		choice[i] = mark[i] ? score[i] : 0.0f;
	sync_block();
	UNROLL_BY(16)
	for (int i = 0; i < a.experts; i++)
		sum += choice[i];
	for (int i = threadIdx.x; i < a.experts; i += blockDim.x)
		a.y[t * a.y_pitch + i] = !mark[i]      ? 0.0f
		                         : a.normalize ? score[i] / (sum + a.eps) * a.scale
		                                       : score[i] * a.scale;
}

/* ---- EXPERTS, COMBINE ------------------------------------------------------------------------ */

/*
 * Returns the expert of a block: with few rows the expert of a listed row, if that is its first; or
 * -1.
 */
DEVICE int find_block_expert(const struct experts_args *a)
{
	int y = blockIdx.y, e = y;

	if (a->expert) {
		e = y < a->begin[a->experts] ? a->expert[y] : -1;
		e = e >= 0 && a->begin[e] == y ? e : -1;
	}
	return e;
}

/* Adds the biases of column j of expert e. */
DEVICE void add_gate_biases(const struct gates *g, int64_t e, int64_t j, float *gate, float *up)
{
	int64_t at = e * g->bias_stride[0] + j * g->step * g->bias_stride[1];

	if (!g->bias)
		return;
	*gate += widen_element(g->bias, g->bias_dtype, at);
	*up += widen_element(g->bias, g->bias_dtype, at + g->up * g->bias_stride[1]);
}

DEVICE float clamp_up(float x, float limit)
{
	return x > limit ? limit : x < -limit ? -limit : x;
}

/* Returns act(gate) * up, with biases and limit, of column j of expert e. */
DEVICE float join_gates(const struct gates *g, int64_t e, int64_t j, float gate, float up)
{
	add_gate_biases(g, e, j, &gate, &up);
	if (g->limit == 0.0f)
		return activate(g->activation, gate) * up;
	gate = gate > g->limit ? g->limit : gate;
	return gate / (1.0f + mathf_exp(-(g->alpha * gate))) * (clamp_up(up, g->limit) + 1.0f);
}

/* Computes h = act(gate) * up for the listed rows: a warp has column j of both. */
KERNEL(MULTIPLY_THREADS, multiply_gate_up, experts_args)
{
	int64_t j = blockIdx.x * (MULTIPLY_THREADS / WARP) + threadIdx.x / WARP;
	int64_t e = find_block_expert(&a);
	int64_t width = a.dtype == PORT_F32 ? 4 : 2;
	const char *w;

	if (e < 0)
		return;
	w = (const char *)a.gate_up +
	    (e * a.gate_up_stride[0] + j * a.gates.step * a.gate_up_stride[1] +
	     a.k_first * a.gate_up_stride[2]) *
	            width;
	for (int at = a.begin[e]; at < a.begin[e + 1] && j < a.ffn; at += MULTIPLY_ROWS) {
		int n = a.begin[e + 1] - at < MULTIPLY_ROWS ? a.begin[e + 1] - at : MULTIPLY_ROWS;
		int own = find_lane_row(n);
		const float *x[MULTIPLY_ROWS];
		float gate, up;

		EACH(r, MULTIPLY_ROWS)
			x[r] = a.x + a.row[at + (r < n ? r : 0)] * a.x_pitch + a.k_first;
		gate = multiply_column(w, a.dtype, a.gate_up_stride[2], a.k, x, n);
		up = multiply_column(w + a.gates.up * a.gate_up_stride[1] * width, a.dtype,
		                     a.gate_up_stride[2], a.k, x, n);
		if (own >= 0)
			a.hidden[(at + own) * a.ffn + j] = join_gates(&a.gates, e, j, gate, up);
	}
}

/* Computes z = h * down for the listed rows. */
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
 * Counts the experts of row t, and lists experts [from, from + count) of them in `chosen`, in
 * order. By the first warp.
 */
DEVICE int choose_row_experts(const struct experts_args *a, int64_t t, int from, int count,
                              int32_t *chosen)
{
	const float *w = a->weights + t * a->weights_pitch;
	int n = 0, lane = threadIdx.x;

	for (int e = lane; e < a->experts + lane; e += WARP) {
		int asked = e < a->experts && w[e] != 0.0f, before = n - from, all = asked;

		EACH_MASK(mask, 1, WARP) {
			int other = (int)shuffle_xor((float)all, mask); /* exact: at most 32 */

			before += lane & mask ? other : 0;
			all += other;
		}
		if (asked && before >= 0 && before < count)
			chosen[before] = e;
		n += all;
	}
	return n;
}

/* Shares row t's experts with all threads of the block: *n of them, at most a->most. */
DEVICE void share_row_experts(const struct experts_args *a, int64_t t, int32_t *n, int32_t *chosen)
{
	sync_block(); /* the earlier contents have been read */
	if (threadIdx.x < WARP) {
		int asked = choose_row_experts(a, t, 0, a->most, chosen);

		if (!threadIdx.x) {
			*n = asked < a->most ? asked : a->most;
			if (asked > a->most)
				*a->fault = FAULT_EXPERTS;
		}
	}
	sync_block();
}

/*
 * Loads four columns of the results in slots [from, n) of row t, up to 8, and their weights; or
 * zeros.
 */
DEVICE void load_results(const struct experts_args *a, int64_t t, int from, int n,
                         const int32_t *chosen, int64_t i, float z[][4], float *weight)
{
	int64_t at[COMBINED];

	EACH(s, COMBINED) {
		int e = from + s < n ? chosen[from + s] : -1;

		weight[s] = e < 0 ? 0.0f : a->weights[t * a->weights_pitch + e];
		at[s] = e < 0 || !a->place ? e : a->place[t * a->experts + e];
	}
	EACH(s, COMBINED) {
		const float *x = a->place ? a->z + at[s] * a->columns
		                          : a->x + t * a->x_pitch + (from + s) * a->columns;

		if (at[s] >= 0) /* -1: the list may have been too short */
			load_four(x, i, a->columns, a->wide, z[s]);
		else
			EACH(j, 4)
				z[s][j] = 0.0f;
	}
}

/*
 * Adds the expert results of a row in order, or with slots writes them one after another. A thread
 * has four columns.
 */
KERNEL(MAP_THREADS, combine_experts, experts_args)
{
	SHARED int32_t chosen[EXPERTS_MAX], asked;
	int64_t i = COLUMN * 4;

	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		float *y = a.y + t * a.y_pitch, sum[4] = { 0, 0, 0, 0 }, none[4] = { 0, 0, 0, 0 };
		int slot = 0;

		share_row_experts(&a, t, &asked, chosen);
		if (i >= a.columns)
			continue;
		for (; slot < asked; slot += COMBINED) {
			float z[COMBINED][4], weight[COMBINED];

			load_results(&a, t, slot, asked, chosen, i, z, weight);
			EACH(s, COMBINED) {
				EACH(j, 4)
					sum[j] += weight[s] * z[s][j];
				if (slot + s < a.slots)
					store_four(y + (slot + s) * a.columns, i, a.columns, a.wide,
					           z[s]);
			}
		}
		for (; slot < a.slots; slot++)
			store_four(y + slot * a.columns, i, a.columns, a.wide, none);
		if (!a.slots)
			store_four(y, i, a.columns, a.wide, sum);
	}
}

/* ---- EXPERTS of few rows --------------------------------------------------------------------- */

/* Prefetches C columns of a weight. */
DEVICE void prefetch_columns(const char *const *w, int64_t bytes, const int C)
{
	for (int64_t at = threadIdx.x % WARP * LINE; at < bytes; at += WARP * LINE)
		EACH(c, C)
			prefetch_line(w[c] + at);
}

/* Adds the lane's part of C sums, of U loads of each column; `whole`: all loads are before k. */
DEVICE void add_loads(const char *const *w, int32_t dtype, int64_t at, int64_t k, const float *x,
                      const int C, const int U, const int whole, float *sum)
{
	const int width = dtype == PORT_F32 ? 4 : 2;
	struct quad v[8][4];

	EACH(u, U)
		EACH(c, C)
			if (whole || at + u * WARP * 4 < k)
				v[u][c] = load_four_weights(w[c] + (at + u * WARP * 4) * width,
				                            dtype);
	EACH(u, U) {
		float f[4], q[4];

		if (!whole && at + u * WARP * 4 >= k)
			break;
		widen_four(load_quad(x + at + u * WARP * 4), PORT_F32, q);
		EACH(c, C) {
			widen_four(v[u][c], dtype, f);
			EACH(i, 4)
				sum[c] = fmaf(q[i], f[i], sum[c]);
		}
	}
}

/* Computes the sums of x times C columns, by a warp: lane i has the sum of column i / (32 / C). */
DEVICE float multiply_columns(const char *const *w, int32_t dtype, int64_t k, const float *x,
                              const int C, const int U)
{
	int64_t from = 0, lane = threadIdx.x % WARP * 4;
	float sum[4] = { 0, 0, 0, 0 };

	for (; from + U * WARP * 4 <= k; from += U * WARP * 4)
		add_loads(w, dtype, from + lane, k, x, C, U, 1, sum);
	if (from + lane < k)
		add_loads(w, dtype, from + lane, k, x, C, U, 0, sum);
	sum_lanes(sum, C);
	return sum[0];
}

/*
 * Computes h = act(gate) * up of one row and one of its experts, hidden [rows][most][ffn]: a warp
 * has column j of both. Blocks of rows with the same expert are adjacent, so that the L2 cache has
 * its weights.
 */
KERNEL(MULTIPLY_THREADS, multiply_row_gates, experts_args)
{
	SHARED int32_t expert;
	int64_t t = blockIdx.x / a.most, width = a.dtype == PORT_F32 ? 4 : 2;
	int64_t j = blockIdx.y * (MULTIPLY_THREADS / WARP) + threadIdx.x / WARP;
	int slot = (int)(blockIdx.x % a.most);
	const float *x = a.x + t * a.x_pitch + a.k_first;
	const char *w[2];
	float gate, up;

	if (threadIdx.x < WARP) {
		int n = choose_row_experts(&a, t, slot, 1, &expert);

		if (!threadIdx.x && slot >= n)
			expert = -1;
	}
	sync_block();
	if (expert < 0 || j >= a.ffn)
		return;
	w[0] = (const char *)a.gate_up +
	       (expert * a.gate_up_stride[0] + j * a.gates.step * a.gate_up_stride[1] +
	        a.k_first * a.gate_up_stride[2]) *
	               width;
	w[1] = w[0] + a.gates.up * a.gate_up_stride[1] * width;
	prefetch_columns(w, a.k * width, 2);
	gate = a.dtype == PORT_BF16 ? multiply_columns(w, PORT_BF16, a.k, x, 2, 8)
	                            : multiply_columns(w, a.dtype, a.k, x, 2, 4);
	up = shuffle_xor(gate, WARP / 2);
	if (threadIdx.x % WARP == 0)
		a.hidden[blockIdx.x * a.ffn + j] = join_gates(&a.gates, expert, j, gate, up);
}

/*
 * Computes four columns from `column` on of h * down, of an expert in slot `slot` of row t, by a
 * warp.
 */
DEVICE void multiply_row_down(const struct experts_args *a, int64_t t, int slot, int64_t e,
                              int64_t column, float *out)
{
	int64_t width = a->dtype == PORT_F32 ? 4 : 2;
	const float *x = a->hidden + (t * a->most + slot) * a->ffn + a->f_first;
	const char *w[4];
	float z;

	EACH(c, 4) {
		int64_t at = column + c < a->columns ? column + c : column;

		w[c] = (const char *)a->down + (e * a->down_stride[0] + at * a->down_stride[1] +
		                                a->f_first * a->down_stride[2]) *
		                                       width;
	}
	z = a->dtype == PORT_BF16 ? multiply_columns(w, PORT_BF16, a->f, x, 4, 6)
	                          : multiply_columns(w, a->dtype, a->f, x, 4, 2);
	if (threadIdx.x % (WARP / 4) == 0)
		out[threadIdx.x % WARP / (WARP / 4)] = z + 0.0f;
}

/*
 * Computes four columns of a row, from its experts, of which a warp has every fourth. Adds their
 * results in order, or with slots writes them one after another.
 */
KERNEL(MULTIPLY_THREADS, add_row_experts, experts_args)
{
	SHARED int32_t chosen[EXPERTS_MAX], asked;
	SHARED float z[COMBINED][4], weight[COMBINED];
	const int warps = MULTIPLY_THREADS / WARP;
	int64_t t = blockIdx.y, column = (int64_t)blockIdx.x * 4 + threadIdx.x;
	float *y = a.y + t * a.y_pitch, sum = 0.0f;
	int writes = threadIdx.x < 4 && column < a.columns;

	share_row_experts(&a, t, &asked, chosen);
	for (int from = 0; from < asked; from += COMBINED) {
		int n = asked - from < COMBINED ? asked - from : COMBINED;

		if ((int)threadIdx.x < n)
			weight[threadIdx.x] =
				a.weights[t * a.weights_pitch + chosen[from + threadIdx.x]];
		UNROLL_BY(1)
		for (int s = threadIdx.x / WARP; s < n; s += warps)
			multiply_row_down(&a, t, from + s, chosen[from + s],
			                  (int64_t)blockIdx.x * 4, z[s]);
		sync_block();
		for (int s = 0; s < n && writes; s++) {
			if (a.slots)
				y[(from + s) * a.columns + column] = z[s][threadIdx.x];
			else
				sum += weight[s] * z[s][threadIdx.x];
		}
		sync_block();
	}
	if (writes && !a.slots)
		y[column] = sum;
	for (int s = asked; s < a.slots && writes; s++)
		y[s * a.columns + column] = 0.0f;
}

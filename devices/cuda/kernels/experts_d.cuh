/*
 * experts_d.cuh - the backward of mixtures of experts, except the products (groups.cuh). Routes and
 * the balancing loss add in the order of tessera/device.h; sums over tokens add 64 rows at a time.
 */

/* Computes the gradient d of the logits of a softmax s, from the gradient q of s. */
DEVICE void derive_softmax(const float *s, const float *q, int n, float *d)
{
	float r = 0.0f;

	for (int i = 0; i < n; i++)
		r = fmaf(q[i], s[i], r);
	for (int i = threadIdx.x; i < n; i += WARP)
		d[i] = s[i] * (q[i] - r);
}

/* Computes the gradient of the logits of a row, a warp each. */
KERNEL(WARP, derive_route, derive_args)
{
	DYNAMIC_SHARED(score);
	float *q = score + a.experts, sum = 0.0f, c = 0.0f;
	int64_t t = blockIdx.x;
	const float *w = a.weights + t * a.weights_pitch, *g = a.g + t * a.g_pitch;
	float *d = a.y + t * a.y_pitch;

	score_experts(a.x + t * a.x_pitch, a.experts, a.sigmoid, score);
	for (int i = 0; i < a.experts; i++)
		sum = w[i] != 0.0f ? sum + score[i] : sum;
	sum = sum + a.eps;
	for (int i = 0; i < a.experts; i++)
		c = w[i] != 0.0f ? fmaf(g[i] * a.scale, score[i] / sum, c) : c;
	for (int i = threadIdx.x; i < a.experts; i += WARP) {
		q[i] = w[i] != 0.0f ? g[i] * a.scale : 0.0f;
		if (a.normalize)
			q[i] = w[i] != 0.0f ? (q[i] - c) / sum : 0.0f;
	}
	sync_warp();
	if (!a.sigmoid)
		derive_softmax(score, q, a.experts, d);
	for (int i = threadIdx.x; i < a.experts && a.sigmoid; i += WARP)
		d[i] = w[i] != 0.0f ? q[i] * (score[i] * (1.0f - score[i])) : 0.0f;
}

/*
 * Adds 64 rows by a warp: the token count of each expert, and its probabilities, to y
 * [blocks][2][E].
 */
KERNEL(WARP, sum_balance, derive_args)
{
	DYNAMIC_SHARED(score);
	float *count = score + a.experts, *total = count + a.experts;
	int64_t t = (int64_t)blockIdx.x * BALANCE_ROWS, end = t + BALANCE_ROWS;

	for (int i = threadIdx.x; i < 2 * a.experts; i += WARP)
		count[i] = 0.0f;
	for (; t < end && t < a.rows; t++) {
		score_experts(a.x + t * a.x_pitch, a.experts, 0, score);
		for (int i = threadIdx.x; i < a.experts; i += WARP) {
			count[i] += a.weights[t * a.weights_pitch + i] != 0.0f;
			total[i] += score[i];
		}
		sync_warp();
	}
	sync_warp();
	for (int i = threadIdx.x; i < 2 * a.experts; i += WARP)
		a.y[(int64_t)blockIdx.x * 2 * a.experts + i] = count[i];
}

/* Adds the sums of all blocks to y [2][E]. */
KERNEL(MAP_THREADS, add_balance, derive_args)
{
	int64_t i = COLUMN;
	float sum = 0.0f;

	if (i >= 2 * a.experts)
		return;
	for (int64_t t = 0; t < a.rows; t++)
		sum += a.x[t * 2 * a.experts + i];
	a.y[i] = sum;
}

/*
 * Computes the gradient of the balancing loss; a warp has several rows. g has `columns` rows of
 * totals.
 */
KERNEL(WARP, derive_balance, derive_args)
{
	DYNAMIC_SHARED(score);
	float *q = score + a.experts, tokens = 0.0f;

	for (int i = threadIdx.x; i < a.experts; i += WARP) {
		q[i] = 0.0f;
		for (int64_t l = 0; l < a.columns; l += 2)
			q[i] = q[i] + a.g[l * a.g_pitch + i];
	}
	sync_warp();
	for (int i = 0; i < a.experts; i++)
		tokens = tokens + q[i];
	tokens = tokens / a.eps;
	sync_warp();
	for (int i = threadIdx.x; i < a.experts; i += WARP)
		q[i] = a.scale * (q[i] / tokens) / tokens;
	for (int64_t t = blockIdx.x; t < a.rows; t += gridDim.x) {
		score_experts(a.x + t * a.x_pitch, a.experts, 0, score);
		derive_softmax(score, q, a.experts, a.y + t * a.y_pitch);
		sync_warp();
	}
}

/*
 * Computes the gradients of the weights of a row: a warp has an expert, and multiplies g with its
 * slot.
 */
KERNEL(MULTIPLY_THREADS, derive_weights, derive_args)
{
	int64_t e = blockIdx.x * (MULTIPLY_THREADS / WARP) + threadIdx.x / WARP;

	for (int64_t t = blockIdx.y; t < a.rows && e < a.experts; t += gridDim.y) {
		const float *w = a.weights + t * a.weights_pitch, *x[MULTIPLY_ROWS];
		float sum = 0.0f;
		int64_t slot = 0;

		for (int i = 0; i < e && w[e] != 0.0f; i++)
			slot += w[i] != 0.0f;
		if (w[e] != 0.0f && slot >= a.most) {
			*a.fault = FAULT_EXPERTS;
			continue;
		}
		EACH(i, MULTIPLY_ROWS)
			x[i] = a.x + t * a.x_pitch + slot * a.columns;
		if (w[e] != 0.0f)
			sum = multiply_column((const char *)(a.g + t * a.g_pitch), PORT_F32, 1,
			                      a.columns, x, 1);
		if (threadIdx.x % WARP == 0)
			a.y[t * a.y_pitch + e] = sum + 0.0f;
	}
}

/*
 * Replaces gate and up of column j of expert e by their gradients, from the gradient g of h; returns
 * h.
 */
DEVICE float derive_pair(const struct gates *p, int64_t e, int64_t j, float g, float *gate,
                         float *up)
{
	float h = join_gates(p, e, j, *gate, *up), a, b, c, s, u;

	add_gate_biases(p, e, j, gate, up);
	a = *gate;
	b = *up;
	if (p->limit == 0.0f) {
		*gate = derive_activation(p->activation, a, g * b);
		*up = g * activate(p->activation, a);
		return h;
	}
	c = a > p->limit ? p->limit : a;
	u = clamp_up(b, p->limit);
	s = 1.0f / (1.0f + mathf_exp(-(p->alpha * c)));
	*gate = a > p->limit ? 0.0f : g * (u + 1.0f) * (s * (1.0f + p->alpha * c * (1.0f - s)));
	*up = b > p->limit || b < -p->limit ? 0.0f : g * (c * s);
	return h;
}

/*
 * Turns [a | b] (hidden) and e (z) of the listed rows into [da | db | h], in the slots of y. [da |
 * db] also replaces [a | b], with 0 outside of the added elements.
 */
KERNEL(MAP_THREADS, derive_experts, experts_args)
{
	int64_t j = COLUMN;

	if (j >= a.ffn)
		return;
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		float *to = a.y + t * a.y_pitch;
		int slot = 0;

		for (int e = 0; e < a.experts; e++) {
			int at = a.place[t * a.experts + e], inside = j >= a.f_first;
			float *ab = a.hidden + (int64_t)at * 2 * a.ffn + j * a.gates.step;
			float da, db;

			if (at < 0)
				continue;
			if (slot == a.most) {
				*a.fault = FAULT_EXPERTS;
				break;
			}
			da = ab[0];
			db = ab[a.gates.up];
			to[2 * a.ffn + j] =
				derive_pair(&a.gates, e, j, a.z[(int64_t)at * a.ffn + j], &da, &db);
			to[j * a.gates.step] = da;
			to[j * a.gates.step + a.gates.up] = db;
			inside = inside && j < a.f_first + a.f;
			ab[0] = inside ? da : 0.0f;
			ab[a.gates.up] = inside ? db : 0.0f;
			to += 3 * a.ffn;
			slot++;
		}
	}
}

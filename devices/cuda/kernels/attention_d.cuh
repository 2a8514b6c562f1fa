/*
 * attention_d.cuh - attention over complete sequences without a cache, and its backward; in f32. A
 * query row t attends to key-value rows [first, t], where `first` is the start of its sequence or
 * of its window.
 *
 * A block has a tile of 32 rows of one head and walks tiles of 64 other rows in order: keys if its
 * own are queries, else queries. A thread has a square of 4 x 4 pairs, and of 4 x 4 elements of
 * each 64 columns of the sums.
 */

enum { TEXT_RUN = 64, TEXT_COLUMNS = TEXT_BLOCKS * TEXT_RUN }; /* elements: loaded; in a block */

struct text_rows { /* rows of one head, `n` elements each */
	const float *data;
	int64_t pitch;
	int n, wide;
};

struct text_tile {
	struct text_rows q, k, v, g;
	int64_t own;
	int head, row, column; /* row, column: of the thread's square */
	float *mine, *others; /* [64][32], [64][64]: elements by rows, or rows by elements */
	float *w, *s; /* [64 others][32] */
};

DEVICE struct text_rows find_text_rows(const float *data, int64_t pitch, int64_t head, int n)
{
	struct text_rows x = { data + head * n, pitch, n, 0 };

	x.wide = (uintptr_t)x.data % 16 == 0 && pitch % 4 == 0;
	return x;
}

DEVICE void open_text_tile(const struct text_args *a, struct text_tile *t)
{
	DYNAMIC_SHARED(shared);
	int g;

	t->own = (int64_t)blockIdx.x * TILE_ROWS;
	t->head = blockIdx.y;
	t->row = threadIdx.x / 16 * TILE_EACH;
	t->column = threadIdx.x % 16 * TILE_EACH;
	g = (a->first_head + t->head) / a->group - a->first_head / a->group;
	t->q = find_text_rows(a->q, a->q_pitch, t->head, a->d);
	t->k = find_text_rows(a->k, a->k_pitch, g, a->d);
	t->v = find_text_rows(a->v, a->v_pitch, g, a->latent ? a->d : a->dv);
	t->v.n = a->dv;
	t->g = find_text_rows(a->g, a->g_pitch, t->head, a->dv);
	t->mine = shared;
	t->others = t->mine + TEXT_RUN * TILE_ROWS;
	t->w = t->others + TEXT_RUN * KEYS;
	t->s = t->w + KEYS * TILE_ROWS;
}

/* Returns the first row that row t attends to. */
DEVICE int64_t find_first_row(const struct text_args *a, int64_t t)
{
	int64_t first = t - a->position[t];

	if (a->chunked)
		first = t - a->position[t] % a->window;
	else if (a->window && a->position[t] >= a->window)
		first = t - a->window + 1;
	return first < 0 ? 0 : first;
}

/* Loads elements [at, at + 64) of R rows from `row` on, as [64][R]; zeros for missing ones. */
DEVICE void load_turned(const struct text_args *a, const struct text_rows *x, int64_t row,
                        const int R, int at, float *to)
{
	for (int i = threadIdx.x; i < R * TEXT_RUN / 4; i += ATTEND_THREADS) {
		int r = i % R, e = i / R * 4;
		float f[4] = { 0, 0, 0, 0 };

		if (row + r < a->rows)
			load_four(x->data + (row + r) * x->pitch, at + e, x->n, x->wide, f);
		EACH(j, 4)
			to[(e + j) * R + r] = f[j];
	}
}

/* Loads elements [at, at + 64) of 64 rows from `row` on, as [64][64]; zeros for missing ones. */
DEVICE void load_straight(const struct text_args *a, const struct text_rows *x, int64_t row, int at,
                          float *to)
{
	for (int i = threadIdx.x; i < KEYS * TEXT_RUN / 4; i += ATTEND_THREADS) {
		int r = i / (TEXT_RUN / 4), e = i % (TEXT_RUN / 4) * 4;
		float f[4] = { 0, 0, 0, 0 };

		if (row + r < a->rows)
			load_four(x->data + (row + r) * x->pitch, at + e, x->n, x->wide, f);
		store_quad(to + r * TEXT_RUN + e, pack_quad(f));
	}
}

/*
 * Computes z = x * y of the pairs of the square: x of its own rows, y of the others from `at` on.
 */
DEVICE void multiply_text_rows(const struct text_args *a, const struct text_tile *t,
                               const struct text_rows *x, const struct text_rows *y, int64_t at,
                               float z[][TILE_EACH])
{
	EACH(r, TILE_EACH)
		EACH(c, TILE_EACH)
			z[r][c] = 0.0f;
	for (int run = 0; run < x->n; run += TEXT_RUN) {
		int n = x->n - run < TEXT_RUN ? x->n - run : TEXT_RUN;

		sync_block(); /* the earlier contents have been read */
		load_turned(a, x, t->own, TILE_ROWS, run, t->mine);
		load_turned(a, y, at, KEYS, run, t->others);
		sync_block();
		UNROLL_BY(4)
		for (int i = 0; i < n; i++) {
			float f[TILE_EACH], h[TILE_EACH];

			widen_quad(load_quad(t->mine + i * TILE_ROWS + t->row), PORT_F32, f);
			widen_quad(load_quad(t->others + i * KEYS + t->column), PORT_F32, h);
			multiply_square(f, h, z);
		}
	}
}

DEVICE float cap_score(const struct text_args *a, float z)
{
	z *= a->scale;
	return a->softcap != 0.0f ? a->softcap * mathf_tanh(z / a->softcap) : z;
}

/* Returns whether query row q attends to key row k. */
DEVICE int is_seen(const struct text_args *a, int64_t q, int64_t k)
{
	return q < a->rows && k <= q && k >= find_first_row(a, q);
}

/* Writes the dropout factors of the square's pairs to its own elements of `to`, [64][32]. */
DEVICE void list_factors(const struct text_args *a, const struct text_tile *t, int keys, int64_t at,
                         float *to)
{
	UNROLL_BY(1)
	for (int i = 0; i < TILE_EACH * TILE_EACH; i++) {
		int r = t->row + i / TILE_EACH, c = t->column + i % TILE_EACH;
		int64_t q = keys ? at + c : t->own + r, k = keys ? t->own + r : at + c;
		uint32_t word[4];
		int64_t p;

		if (!is_seen(a, q, k))
			continue;
		p = k - (q - a->position[q]);
		draw_words(&a->drop, a->position[q], a->slot[q], a->site + t->head, p / 4, word);
		word[0] = p & 2 ? word[2] : word[0];
		word[1] = p & 2 ? word[3] : word[1];
		to[c * TILE_ROWS + r] = choose_factor(&a->drop, p & 1 ? word[1] : word[0]);
	}
}

/*
 * Computes the maximum score, the sum of weights and the mean of g * v for a block of 32 queries.
 */
KERNEL(ATTEND_THREADS, weigh_texts, text_args)
{
	struct text_tile t;
	float max[TILE_EACH], sum[TILE_EACH], mean[TILE_EACH], z[TILE_EACH][TILE_EACH],
		u[TILE_EACH][TILE_EACH];
	int64_t row = (int64_t)blockIdx.x * TILE_ROWS + threadIdx.x, p;
	float sink;

	if (threadIdx.x < TILE_ROWS && row < a.rows) {
		int same = row > 0 && a.slot[row - 1] == a.slot[row];

		p = a.position[row];
		if (p != (same ? (int64_t)a.position[row - 1] + 1 : 0))
			*a.fault = FAULT_TEXT;
	}
	open_text_tile(&a, &t);
	sink = load_sink(&a.sinks, t.head);
	EACH(r, TILE_EACH) {
		max[r] = sink;
		sum[r] = weigh_score(sink, sink);
		mean[r] = 0.0f;
	}
	for (int64_t at = find_first_row(&a, t.own); at < t.own + TILE_ROWS && at < a.rows;
	     at += KEYS) {
		multiply_text_rows(&a, &t, &t.q, &t.k, at, z);
		if (a.g) {
			multiply_text_rows(&a, &t, &t.g, &t.v, at, u);
			if (a.drop.below)
				list_factors(&a, &t, 0, at, t.s);
		}
		EACH(r, TILE_EACH) {
			float m = max[r], n = 0.0f, d = 0.0f, factor;

			EACH(c, TILE_EACH) {
				int seen = is_seen(&a, t.own + t.row + r, at + t.column + c);

				z[r][c] = seen ? cap_score(&a, z[r][c]) : -INFINITY;
				m = z[r][c] > m ? z[r][c] : m;
			}
			EACH_MASK(mask, 1, 16) {
				float other = shuffle_xor(m, mask);

				m = other > m ? other : m;
			}
			EACH(c, TILE_EACH) {
				float w = weigh_score(z[r][c], m);

				n += w;
				if (!a.g || z[r][c] == -INFINITY)
					continue;
				if (a.drop.below)
					u[r][c] *= t.s[(t.column + c) * TILE_ROWS + t.row + r];
				d = fmaf(w, u[r][c], d);
			}
			EACH_MASK(mask, 1, 16) {
				n += shuffle_xor(n, mask);
				d += shuffle_xor(d, mask);
			}
			factor = weigh_score(max[r], m);
			sum[r] = sum[r] * factor + n;
			mean[r] = mean[r] * factor + d;
			max[r] = m;
		}
	}
	EACH(r, TILE_EACH) {
		row = t.own + t.row + r;
		if (t.column == 0 && row < a.rows) {
			float *to = a.state + (row * a.heads + t.head) * TEXT_STATE;

			to[0] = max[r];
			to[1] = sum[r];
			to[2] = mean[r] / sum[r];
			if (a.dsinks)
				a.dsinks[row * a.dsinks_pitch + t.head] =
					-(weigh_score(sink, max[r]) / sum[r] * to[2]);
		}
	}
}

/*
 * Writes the weights of the tile's pairs with the rows from `at` on to w, and with g the gradients
 * of their products to s: [64 others][32].
 */
DEVICE void weigh_pairs(const struct text_args *a, const struct text_tile *t, int keys, int64_t at)
{
	float z[TILE_EACH][TILE_EACH], u[TILE_EACH][TILE_EACH];

	multiply_text_rows(a, t, keys ? &t->k : &t->q, keys ? &t->q : &t->k, at, z);
	if (a->g)
		multiply_text_rows(a, t, keys ? &t->v : &t->g, keys ? &t->g : &t->v, at, u);
	if (a->drop.below)
		list_factors(a, t, keys, at, t->w);
	EACH(c, TILE_EACH) {
		EACH(r, TILE_EACH) {
			int64_t mine = t->own + t->row + r, other = at + t->column + c;
			int64_t q = keys ? other : mine;
			int i = (t->column + c) * TILE_ROWS + t->row + r;
			const float *state = a->state + (q * a->heads + t->head) * TEXT_STATE;
			float w = 0.0f, s = 0.0f, f = 1.0f, slope;

			if (is_seen(a, q, keys ? mine : other)) {
				z[r][c] = cap_score(a, z[r][c]);
				w = weigh_score(z[r][c], state[0]) / state[1];
				f = a->drop.below ? t->w[i] : 1.0f;
			}
			if (w != 0.0f && a->g) {
				slope = a->softcap != 0.0f ? z[r][c] / a->softcap : 0.0f;
				s = w * (f * u[r][c] - state[2]) * (1.0f - slope * slope) *
				    a->scale;
				t->s[i] = s;
			} else if (a->g) {
				t->s[i] = 0.0f;
			}
			t->w[i] = w * f;
		}
	}
}

/*
 * Adds p of each pair * columns [first, first + 128) of x of the other rows, from `at` on, to sum.
 */
DEVICE void add_text_rows(const struct text_args *a, const struct text_tile *t, const float *p,
                          const struct text_rows *x, int64_t at, int first,
                          float sum[][TILE_EACH][TILE_EACH])
{
	EACH(j, TEXT_BLOCKS) {
		if (first + j * TEXT_RUN >= x->n)
			break;
		sync_block();
		load_straight(a, x, at, first + j * TEXT_RUN, t->others);
		sync_block();
		UNROLL_BY(4)
		for (int i = 0; i < KEYS; i++) {
			float f[TILE_EACH], h[TILE_EACH];

			widen_quad(load_quad(p + i * TILE_ROWS + t->row), PORT_F32, f);
			widen_quad(load_quad(t->others + i * TEXT_RUN + t->column), PORT_F32, h);
			multiply_square(f, h, sum[j]);
		}
	}
}

DEVICE void clear_sums(float sum[][TILE_EACH][TILE_EACH])
{
	EACH(j, TEXT_BLOCKS)
		EACH(r, TILE_EACH)
			EACH(c, TILE_EACH)
				sum[j][r][c] = 0.0f;
}

/* Writes columns [first, first + 128) of a head's n of the tile's rows. */
DEVICE void write_sums(const struct text_args *a, const struct text_tile *t, float *y,
                       int64_t pitch, int n, int first, float sum[][TILE_EACH][TILE_EACH])
{
	y += (int64_t)t->head * n;
	EACH(j, TEXT_BLOCKS)
		EACH(r, TILE_EACH)
			EACH(c, TILE_EACH) {
				int64_t row = t->own + t->row + r;
				int i = first + j * TEXT_RUN + t->column + c;

				if (row < a->rows && i < n)
					y[row * pitch + i] = sum[j][r][c];
			}
}

/* Computes 128 columns of the output of 32 queries, or with g of the gradient of the queries. */
KERNEL(ATTEND_THREADS, add_texts, text_args)
{
	int first = blockIdx.z * TEXT_COLUMNS;
	float sum[TEXT_BLOCKS][TILE_EACH][TILE_EACH];
	struct text_tile t;
	struct text_rows x;

	open_text_tile(&a, &t);
	x = t.v;
	if (a.g)
		x = t.k;
	clear_sums(sum);
	for (int64_t at = find_first_row(&a, t.own); at < t.own + TILE_ROWS && at < a.rows;
	     at += KEYS) {
		weigh_pairs(&a, &t, 0, at);
		add_text_rows(&a, &t, a.g ? t.s : t.w, &x, at, first, sum);
	}
	write_sums(&a, &t, a.g ? a.dq : a.out, a.g ? a.dq_pitch : a.out_pitch, a.g ? a.d : a.dv,
	           first, sum);
}

/*
 * Computes 128 columns of the gradients of 32 keys and of their values, which may be the first
 * elements of the keys.
 */
KERNEL(ATTEND_THREADS, derive_keys, text_args)
{
	int first = blockIdx.z * TEXT_COLUMNS;
	float dk[TEXT_BLOCKS][TILE_EACH][TILE_EACH], dv[TEXT_BLOCKS][TILE_EACH][TILE_EACH];
	struct text_tile t;

	open_text_tile(&a, &t);
	clear_sums(dk);
	clear_sums(dv);
	for (int64_t at = t.own; at < a.rows && find_first_row(&a, at) < t.own + TILE_ROWS;
	     at += KEYS) {
		weigh_pairs(&a, &t, 1, at);
		add_text_rows(&a, &t, t.s, &t.q, at, first, dk);
		add_text_rows(&a, &t, t.w, &t.g, at, first, dv);
	}
	if (a.latent)
		EACH(j, TEXT_BLOCKS)
			EACH(r, TILE_EACH)
				EACH(c, TILE_EACH)
					dk[j][r][c] += dv[j][r][c];
	write_sums(&a, &t, a.dk, a.dk_pitch, a.d, first, dk);
	if (!a.latent)
		write_sums(&a, &t, a.dv_out, a.dv_pitch, a.dv, first, dv);
}

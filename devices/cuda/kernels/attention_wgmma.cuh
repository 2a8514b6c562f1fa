/*
 * attention_wgmma.cuh - attention of adjacent rows of a sequence, as in attention_tensor.cuh, with
 * the tensor cores of GPUs of 9.0. Heads have 64 or 128 elements.
 *
 * A warpgroup has 64 rows of 1, 2 or 4 heads that share the keys of one key-value head. Keys [D,
 * 64] and values [64, D] of a page are right sides of products in their stored layout, in rows of
 * 128 bytes; of values of 128 elements, two halves. Each warpgroup copies one page of a stage. The
 * next stage is copied while one is multiplied.
 *
 * A warpgroup starts the products of the weights of a page and then those of the scores of the next
 * one, and waits for both. Meanwhile others compute weights.
 */
#ifdef HAS_WGMMA

/* Copies page u, which this warpgroup does. Keys that no row attends to get values of 0. */
DEVICE void copy_page(const struct attention_args *a, const struct tile *t, const int D,
                      const char *page, int u, char *to)
{
	const int chunks = D / 8, step = GROUP_THREADS / chunks;
	const char *keys = page + a->keys + (int64_t)t->g * D * KEYS_ROW;
	const char *values = page + a->values + (int64_t)t->g * D * KEYS_ROW;
	int first = (int)t->first - u * KEYS, end = (int)t->end - u * KEYS;
	int thread = threadIdx.x % GROUP_THREADS, row = thread / 8, chunk = thread % 8;

	EACH(i, D / 16)
		copy_async(to + (i * 16 + row) * KEYS_ROW + (chunk ^ (row & 7)) * 16,
		           keys + (i * 16 + row) * KEYS_ROW + chunk * 16, 16);
	row = thread / chunks;
	chunk = thread % chunks;
	to += (D + chunk / 8 * KEYS) * KEYS_ROW;
	EACH(i, KEYS / step) {
		int key = i * step + row;

		copy_async(to + key * KEYS_ROW + (chunk % 8 ^ (key & 7)) * 16,
		           values + key * D * 2 + chunk * 16, key >= first && key < end ? 16 : 0);
	}
}

/* Returns the head of this warp. The warps of a warpgroup have heads in turn. */
DEVICE int find_head(const struct attention_args *a, const struct tile *t)
{
	return t->head + (threadIdx.x / WARP & (a->tile_heads - 1));
}

/* Loads the queries of a warp as left sides, rounded; 0 outside the run. */
DEVICE void round_queries(const struct attention_args *a, const struct tile *t,
                          const struct warp_rows *w, const int D, uint32_t q[][4])
{
	int row = w->row + threadIdx.x % WARP / 4;
	const float *x = a->q + (t->row + row) * a->q_pitch + w->head * D + threadIdx.x % 4 * 2;

	EACH(k, D / 16)
		EACH(i, 4) {
			const float *at = x + i % 2 * 8 * a->q_pitch + k * 16 + i / 2 * 8;
			int own = row + i % 2 * 8, there = own >= t->from && own < t->to;

			q[k][i] = there ? pack_bf16(at[0], at[1]) : 0;
		}
}

/* Starts the products of queries and the keys of a page. */
DEVICE void start_scores(const int D, uint32_t q[][4], const char *page, float (*z)[4])
{
	begin_products();
	start_group_product(z, q[0], describe_right_side(page));
	for (int i = 1; i < D / 16; i++)
		multiply_group(z, q[i], describe_right_side(page + i * 16 * KEYS_ROW));
	commit_products();
}

/* Starts the products of weights and the values of a page. */
DEVICE void start_values(struct warp_rows *w, const int D, uint32_t p[][4], const char *page)
{
	begin_products();
	EACH(k, KEYS / 16)
		EACH(j, D / 64)
			multiply_group(
				w->out[0] + j * 8, p[k],
				describe_right_side(page + (D + j * KEYS + k * 16) * KEYS_ROW));
	commit_products();
}

/* Adds the pages [k, end) of a stage, of which the first is block u of the keys. */
DEVICE void multiply_pages(const struct attention_args *a, const struct tile *t,
                           struct warp_rows *w, const int D, uint32_t q[][4], int u, int k, int end,
                           const char *stage)
{
	float z[1][TENSOR_PRODUCTS][4];
	uint32_t p[KEYS / 16][4];

	if (k < end)
		start_scores(D, q, stage + k * PAGE_BYTES(D), z[0]);
	UNROLL_BY(1)
	for (; k < end; k++) {
		int base = (u + k) * KEYS;

		wait_products();
		hold_floats(&z[0][0][0], KEYS / 2);
		hold_floats(&w->out[0][0][0], D / 2);
		if (a->softcap != 0.0f)
			limit_scores(a, 1, KEYS, z);
		if (base < w->all_first || base + KEYS > w->all_end)
			hide_keys(a, t, w, 1, base, KEYS, z);
		weigh_scores(w, 1, D, KEYS, a->unit, z);
		EACH(j, KEYS / 16)
			EACH(i, 4)
				p[j][i] = pack_bf16(z[0][2 * j + i / 2][i % 2 * 2],
				                    z[0][2 * j + i / 2][i % 2 * 2 + 1]);
		start_values(w, D, p, stage + k * PAGE_BYTES(D));
		if (k + 1 < end)
			start_scores(D, q, stage + (k + 1) * PAGE_BYTES(D), z[0]);
	}
	wait_products();
	hold_floats(&w->out[0][0][0], D / 2);
}

/* Computes rows [from, to) of a tile, of heads from t->head on. */
DEVICE void attend_tile_wgmma(const struct attention_args *a, struct tile *own, const int D)
{
	SWIZZLED_SHARED(swizzled);
	char *stages = (char *)swizzled;
	struct tile *t = (struct tile *)(stages + 2 * GROUPS(D) * PAGE_BYTES(D));
	int group = threadIdx.x / GROUP_THREADS, shift = a->tile_heads / 2; /* log2 of 1, 2, 4 */
	int u = (int)own->first / KEYS;
	const char *page = NULL;
	struct warp_rows w;
	uint32_t q[TENSOR_HEAD_MAX / 16][4];

	if (!threadIdx.x)
		*t = *own; /* in shared memory it takes no registers */
	sync_block();
	if ((u + group) * KEYS < (int)t->end)
		page = find_page(a, t->row + t->from, u + group);
	if (page)
		copy_page(a, t, D, page, u + group, stages + group * PAGE_BYTES(D));
	commit_copies();
	page = NULL;
	if ((u + GROUPS(D) + group) * KEYS < (int)t->end)
		page = find_page(a, t->row + t->from, u + GROUPS(D) + group);
	w.head = find_head(a, t);
	w.row = (threadIdx.x / WARP >> shift) * 16;
	clear_rows(a, t, 1, D, group * (GROUP_ROWS >> shift), GROUP_ROWS >> shift, &w);
	round_queries(a, t, &w, D, q);
	for (int s = 0; u * KEYS < (int)t->end; u += GROUPS(D), s ^= 1) {
		char *other = stages + ((s ^ 1) * GROUPS(D) + group) * PAGE_BYTES(D);
		int next = u + GROUPS(D) + group, k = (int)t->first / KEYS - u;
		int all = (w.end + KEYS - 1) / KEYS - u;

		wait_copies(0); /* this stage has arrived */
		publish_copies();
		sync_block(); /* the other stage has been used */
		if (page)
			copy_page(a, t, D, page, next, other);
		commit_copies();
		next += GROUPS(D);
		page = next * KEYS < (int)t->end ? find_page(a, t->row + t->from, next) : NULL;
		multiply_pages(a, t, &w, D, q, u, k > 0 ? k : 0, all < GROUPS(D) ? all : GROUPS(D),
		               stages + s * GROUPS(D) * PAGE_BYTES(D));
	}
	wait_copies(0);
	w.head = find_head(a, t); /* again: in the meantime it took no register */
	write_products(a, t, &w, 1, D, D);
	*own = *t; /* in the meantime its registers were free */
	sync_block(); /* the next run of the tile uses the same memory */
}
#endif

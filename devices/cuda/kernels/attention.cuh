/*
 * attention.cuh - attention over KV pages, in f32. A page has the keys of 64 positions as [d, 64],
 * and their values as [64, dv]; or keys as [64, d], whose first dv elements are the values. Sums
 * over keys are computed online: maximum, sum, weighted values.
 */

/* Counts the adjacent rows with the slot of row t, up to TILED_ROWS_MIN. */
DEVICE int count_run(const struct attention_args *a, int64_t t)
{
	int32_t slot = a->slot[t];
	int n = 1;

	for (int64_t i = t - 1; i >= 0 && n < TILED_ROWS_MIN && a->slot[i] == slot; i--)
		n++;
	for (int64_t i = t + 1; i < a->rows && n < TILED_ROWS_MIN && a->slot[i] == slot; i++)
		n++;
	return n;
}

/*
 * Returns whether row t is in a run of many rows. Rows of a slot are adjacent: in the middle of a
 * run one comparison is enough.
 */
DEVICE int is_tiled(const struct attention_args *a, int64_t t)
{
	const int64_t far = t + TILED_ROWS_MIN - 1;

	return a->tiled &&
	       ((far < a->rows && a->slot[far] == a->slot[t]) || count_run(a, t) == TILED_ROWS_MIN);
}

/* Returns whether row t has a slot, and a position in its pages. */
DEVICE int has_place(const struct attention_args *a, int64_t t)
{
	return a->slot[t] >= 0 && a->slot[t] < a->slots && a->position[t] >= 0 &&
	       a->position[t] < a->blocks * KEYS;
}

/* Returns the page with block u of row t's slot; without one, reports a fault and returns NULL. */
DEVICE char *find_page(const struct attention_args *a, int64_t t, int64_t u)
{
	char *page = (char *)(uintptr_t)a->page[a->slot[t] * a->page_pitch + u];

	if (!page)
		*a->fault = FAULT_ATTENTION;
	return page;
}

DEVICE void write_out(const struct attention_args *a, int64_t t, int at, float x)
{
	if (a->out)
		a->out[t * a->out_pitch + at] = x;
	if (a->rounded)
		a->rounded[t * a->heads * a->dv + at] = (uint16_t)pack_bf16(x, 0.0f);
}

DEVICE int64_t find_first_key(const struct attention_args *a, int64_t position)
{
	if (a->chunked) /* 32 bits: a division of 64 bits needs registers that attend_tensor has not */
		return position - (uint32_t)position % (uint32_t)a->window;
	return a->window && position >= a->window ? position - a->window + 1 : 0;
}

DEVICE void store_cached(char *p, int32_t dtype, int64_t at, float x)
{
	if (dtype == PORT_F32)
		store_word_relaxed((float *)p + at, pack_float(x));
	else
		store_half_relaxed((uint16_t *)p + at, round_bf16(x));
}

/* Rounds an element to the cache's dtype. */
DEVICE float round_cached(int32_t dtype, float x)
{
	return dtype == PORT_F32 ? x : widen_bits(round_bf16(x), PORT_BF16);
}

/* Returns the page of row t's own position; without one, reports a fault and returns NULL. */
DEVICE char *find_own_page(const struct attention_args *a, int64_t t)
{
	if (has_place(a, t))
		return find_page(a, t, a->position[t] / KEYS);
	*a->fault = FAULT_ATTENTION;
	return NULL;
}

/* Stores element i of the key of a position and key-value head g. */
DEVICE void store_key(const struct attention_args *a, char *page, int64_t position, int64_t g,
                      int64_t i, float x)
{
	int64_t width = a->dtype == PORT_F32 ? 4 : 2, at = position % KEYS;

	store_cached(page + a->keys + g * a->d * KEYS * width, a->dtype,
	             a->v ? i * KEYS + at : at * a->d + i, x);
}

DEVICE void store_value(const struct attention_args *a, char *page, int64_t position, int64_t g,
                        int64_t i, float x)
{
	int64_t width = a->dtype == PORT_F32 ? 4 : 2, at = position % KEYS;

	store_cached(page + a->values + g * a->dv * KEYS * width, a->dtype, at * a->dv + i, x);
}

KERNEL(ATTEND_THREADS, store_keys, attention_args)
{
	int64_t t = blockIdx.x, g = blockIdx.y;
	char *page = find_own_page(&a, t);

	if (!page)
		return;
	for (int64_t i = threadIdx.x; i < a.d; i += ATTEND_THREADS)
		store_key(&a, page, a.position[t], g, i, a.k[t * a.k_pitch + g * a.d + i]);
	for (int64_t i = threadIdx.x; a.v && i < a.dv; i += ATTEND_THREADS)
		store_value(&a, page, a.position[t], g, i, a.v[t * a.v_pitch + g * a.dv + i]);
}

/* Loads 16 bytes of the cache, of which `n` elements from `at` on exist. */
DEVICE void load_cached(const char *p, int32_t dtype, int64_t at, int64_t n, float *out)
{
	const int width = dtype == PORT_F32 ? 4 : 2, per = 16 / width;

	if (n >= per && ((uintptr_t)p + at * width) % 16 == 0) {
		widen_quad(load_quad(p + at * width), dtype, out);
		return;
	}
	EACH(i, per)
		out[i] = i < n ? widen_element(p, dtype, at + i) : 0.0f;
}

/*
 * Loads 16 bytes of keys [d, 64]. Blocks of other rows may store other positions in them at the
 * same time; the caller masks those.
 */
DEVICE void load_keys(const char *p, int32_t dtype, int at, float *out)
{
	const int width = dtype == PORT_F32 ? 4 : 2;

	if (((uintptr_t)p + at * width) % 16 == 0)
		widen_quad(load_quad_relaxed(p + at * width), dtype, out);
	else
		load_cached(p, dtype, at, 16 / width, out);
}

DEVICE float limit_score(const struct attention_args *a, float z)
{
	return a->softcap != 0.0f ? a->softcap * mathf_tanh(z / a->softcap) : z;
}

DEVICE float scale_score(const struct attention_args *a, float z)
{
	return limit_score(a, z * a->scale);
}

/* Returns e^(x - max); 0 if no key has been added yet. */
DEVICE float weigh_score(float x, float max)
{
	return x == -INFINITY ? 0.0f : mathf_exp(x - max);
}

/* Returns the sink of a local head; -infinity if there is none. */
DEVICE float load_sink(const struct sinks *s, int64_t head)
{
	return s->data ? widen_element(s->data, s->dtype, head * s->stride) : -INFINITY;
}

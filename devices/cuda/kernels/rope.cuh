/*
 * rope.cuh - ROPE of one or two values. If these are queries and keys of the next ATTENTION, keys
 * are written to their pages, and values with them; with few rows attention rotates both.
 */

/*
 * Rotates a head of row t by `position` into shared memory, by one warp: a lane rotates a pair, or
 * copies an element that does not rotate. The loads of a lane do not depend on each other.
 */
DEVICE void turn_head(const struct rope_args *r, int of, int64_t t, int64_t position, int64_t head,
                      float *y)
{
	const float *x = r->of[of].x + t * r->of[of].x_pitch + head * r->to.d, *c;
	int first = (int)r->first, half = (int)r->width / 2;

	UNROLL_BY(1)
	for (int i = threadIdx.x % WARP; i < r->to.d - half; i += WARP) {
		int pairs = i < half, still = i - half < first ? i - half : i + half;
		int lo = !pairs ? still : first + (r->interleaved ? 2 * i : i);
		int hi = !pairs ? still : lo + (r->interleaved ? 1 : half);
		float p = x[lo], q = x[hi], cosine = 1.0f, sine = 0.0f;

		if (pairs) {
			c = r->table + position * r->table_pitch + i;
			cosine = c[0];
			sine = r->inverse ? -c[half] : c[half];
		}
		y[lo] = pairs ? p * cosine - q * sine : p;
		if (pairs)
			y[hi] = q * cosine + p * sine;
	}
}

/* Loads `n` adjacent elements, 1 or 4. */
DEVICE void load_rope(const float *p, const int n, float *out)
{
	if (n == 4)
		widen_quad(load_quad(p), PORT_F32, out);
	else
		out[0] = p[0];
}

/* Copies `n` adjacent values of row t, from element i on, to its page. */
DEVICE void copy_values(const struct rope_args *a, int64_t t, int i, const int n)
{
	const int width = a->to.dtype == PORT_F32 ? 4 : 2, g = i / a->to.dv;
	char *page = find_own_page(&a->to, t), *to;
	float x[4];

	if (!page)
		return;
	load_rope(a->of[2].x + t * a->of[2].x_pitch + i, n, x);
	i -= g * a->to.dv;
	to = page + a->to.values + g * a->to.dv * KEYS * (int64_t)width +
	     (a->to.position[t] % KEYS * (int64_t)a->to.dv + i) * width;
	if (n == 4 && width == 2 && (uintptr_t)to % 8 == 0)
		store_global_pair(to, pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
	else
		EACH(k, n)
			store_cached(to, a->to.dtype, k, x[k]);
}

/* An output of a head: a row, and the key in a page; NULL: not written. */
struct turned {
	float *y;
	char *keys;
	int64_t key, step; /* index of element 0 of the key, and the step to the next one */
	int32_t dtype;
};

/* Writes `n` adjacent elements of a head from i on. */
DEVICE void write_turned(const struct turned *to, int i, const float *x, const int n)
{
	if (to->y && n == 4)
		store_global_quad(to->y + i, pack_quad(x));
	else if (to->y)
		to->y[i] = x[0];
	EACH(k, n)
		if (to->keys)
			store_cached(to->keys, to->dtype, to->key + (i + k) * to->step, x[k]);
}

/* Rotates n pairs of x: elements that are adjacent, or n apart. c: the cosine of the first pair. */
DEVICE void turn_pairs(const struct rope_args *a, const float *c, const int n, const int adjacent,
                       float *x)
{
	float cosine[4], sine[4];

	load_rope(c, n, cosine);
	load_rope(c + a->width / 2, n, sine);
	EACH(k, n) {
		int i = adjacent ? 2 * k : k, j = adjacent ? i + 1 : k + n;
		float p = x[i], q = x[j], s = a->inverse ? -sine[k] : sine[k];

		x[i] = p * cosine[k] - q * s;
		x[j] = q * cosine[k] + p * s;
	}
}

/* Returns where a head of row t, at position `at`, is written. */
DEVICE struct turned find_turned(const struct rope_args *a, int of, int64_t t, int64_t at,
                                 int64_t head)
{
	struct turned to = { .y = a->of[of].y, .dtype = a->to.dtype };

	if (to.y)
		to.y += t * a->of[of].y_pitch + head * a->each;
	if (of == a->key)
		to.keys = find_own_page(&a->to, t);
	if (to.keys)
		to.keys += a->to.keys + head * a->each * KEYS * (to.dtype == PORT_F32 ? 4 : 2);
	to.key = a->to.v ? at % KEYS : at % KEYS * a->each;
	to.step = a->to.v ? KEYS : 1;
	return to;
}

/* Rotates n pairs of row t, or copies n elements that do not rotate: a unit of a row. */
DEVICE void turn_unit(const struct rope_args *a, int of, int64_t t, uint32_t unit, const int n)
{
	const int half = (int)a->width / 2, first = (int)a->first, each = (int)a->each;
	const uint32_t units = (uint32_t)(each - half) / n, head = unit / units;
	const int64_t at = a->position[t];
	const float *x = a->of[of].x + t * a->of[of].x_pitch + (int64_t)head * each;
	int i = (int)(unit - head * units) * n, lo = i - half, hi;
	struct turned to;
	float v[8];

	if (i < half)
		lo = first + (a->interleaved ? 2 * i : i);
	else if (lo >= first)
		lo += 2 * half;
	hi = a->interleaved ? lo + n : lo + half;
	load_rope(x + lo, n, v);
	if (i < half)
		load_rope(x + hi, n, v + n);
	to = find_turned(a, of, t, at, head);
	if (at < 0 || at >= a->positions) {
		*a->fault = FAULT_ROPE;
		return;
	}
	if (i < half && a->interleaved)
		turn_pairs(a, a->table + at * a->table_pitch + i, n, 1, v);
	else if (i < half)
		turn_pairs(a, a->table + at * a->table_pitch + i, n, 0, v);
	write_turned(&to, lo, v, n);
	if (i < half)
		write_turned(&to, hi, v + n, n);
}

/*
 * Rotates pairs of queries and keys, and stores values. A block has a tile of rows and units:
 * adjacent threads have adjacent units or, for keys whose positions are adjacent in a page, rows.
 */
KERNEL(ROPE_THREADS, rotate_pairs, rope_args)
{
	const int of = blockIdx.z, down = a.of[of].down, shift = a.of[of].tile_shift;
	const uint32_t thread = threadIdx.x, columns = 1u << shift, rows = ROPE_THREADS >> shift;
	const uint32_t tiles = (a.of[of].units + columns - 1) >> shift, tile = blockIdx.x / tiles;
	int64_t t = (int64_t)tile * rows + (down ? thread & (rows - 1) : thread >> shift);
	uint32_t unit = (blockIdx.x - tile * tiles) << shift;

	unit += down ? thread >> (ROPE_SHIFT - shift) : thread & (columns - 1);
	if (t >= a.rows || unit >= a.of[of].units)
		return;
	if (of == 2 && a.wide)
		copy_values(&a, t, unit * 4, 4);
	else if (of == 2)
		copy_values(&a, t, unit, 1);
	else if (a.wide)
		turn_unit(&a, of, t, unit, 4);
	else
		turn_unit(&a, of, t, unit, 1);
}

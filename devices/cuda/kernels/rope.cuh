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

/* Copies rows of values, a thread for each element. */
DEVICE void copy_values(const struct rope_args *a, int64_t i)
{
	int64_t g = i / a->to.dv;

	for (int64_t t = blockIdx.y; i < a->of[2].columns && t < a->rows; t += gridDim.y) {
		char *page = find_own_page(&a->to, t);

		if (page)
			store_value(&a->to, page, a->to.position[t], g, i - g * a->to.dv,
			            a->of[2].x[t * a->of[2].x_pitch + i]);
	}
}

/* Writes element i of a head; with a page it is the key's of a position. */
DEVICE void write_turned(const struct rope_args *a, float *y, char *page, int64_t position,
                         int64_t head, int64_t i, float x)
{
	if (y)
		y[i] = x;
	if (page)
		store_key(&a->to, page, position, head, i, x);
}

/* Rotates one pair of a head, or copies an element that does not rotate; by one thread. */
KERNEL(MAP_THREADS, rotate_pairs, rope_args)
{
	int64_t half = a.width / 2, each = a.each - half, head = COLUMN / each;
	int64_t i = COLUMN % each, lo = a.first + i, hi = lo + half;
	int of = blockIdx.z;

	if (of == 2) {
		copy_values(&a, COLUMN);
		return;
	}
	if (head * a.each >= a.of[of].columns)
		return;
	if (i >= half) {
		lo = i - half < a.first ? i - half : i + half;
	} else if (a.interleaved) {
		lo = a.first + 2 * i;
		hi = lo + 1;
	}
	for (int64_t t = blockIdx.y; t < a.rows; t += gridDim.y) {
		const float *x = a.of[of].x + t * a.of[of].x_pitch + head * a.each, *c;
		float *y = a.of[of].y, p = x[lo], q, sine;
		char *page = of == a.key ? find_own_page(&a.to, t) : NULL;
		int64_t at = a.position[t];

		if (at < 0 || at >= a.positions) {
			*a.fault = FAULT_ROPE;
			return;
		}
		y = y ? y + t * a.of[of].y_pitch + head * a.each : NULL;
		if (i >= half) {
			write_turned(&a, y, page, at, head, lo, p);
			continue;
		}
		c = a.table + at * a.table_pitch;
		q = x[hi];
		sine = a.inverse ? -c[i + half] : c[i + half];
		write_turned(&a, y, page, at, head, lo, p * c[i] - q * sine);
		write_turned(&a, y, page, at, head, hi, q * c[i] + p * sine);
	}
}

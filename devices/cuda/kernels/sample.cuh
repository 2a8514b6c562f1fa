/*
 * sample.cuh - the next ids: a block draws the id of one row of logits (SAMPLE in
 * tessera/device.h).
 *
 * Candidates are ordered by falling logits, then by rising ids. So each filter keeps the first
 * candidates of this order, and only has to find its last one. Both that candidate and the drawn
 * one are where a sum over the ordered candidates passes a number. The amounts are integers, whose
 * sum does not depend on the order of additions. They are first added in buckets of logits; then
 * the candidates of one bucket are sorted.
 */
#include <tessera/device.h>

enum { SAMPLE_GROUPS = 32, SAMPLE_EACH = SAMPLE_LIST / SAMPLE_THREADS, SAMPLE_QUADS = 8 };

struct sample_shared {
	uint64_t list[SAMPLE_LIST]; /* candidates: a key, then the id in the lower half */
	uint32_t low[SAMPLE_BUCKETS], high[SAMPLE_BUCKETS]; /* 64-bit sums */
	uint64_t group[SAMPLE_GROUPS]; /* sums of SAMPLE_BUCKETS / SAMPLE_GROUPS of them */
	uint32_t count, first, last; /* listed candidates; their minimum and maximum key */
};

struct sample_row { /* equal in all threads of a block */
	const float *x;
	const uint32_t *seen; /* a bit for each id with the penalty; NULL: none */
	int32_t n;
	float most, least;
	double penalty, temperature, rate; /* rate: 1 / temperature */
	double unit; /* the amount for a weight of 1; 0: each candidate counts 1 */
	uint64_t end; /* the last kept candidate */
	int32_t odd, first_odd, largest; /* non-finite logits; the id of the largest one */
};

struct sample_range { /* range of keys: of a bucket, or all */
	uint32_t first, last;
	double most, scale; /* the maximum logit; buckets per difference from it */
	int32_t each; /* ids in a bucket, if all keys are equal; 0: buckets are of logits */
};

/* Returns a key that rises as x falls; equal for 0 and -0. */
DEVICE uint32_t make_key(float x)
{
	uint32_t bits = pack_float(x + 0.0f);

	return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

DEVICE float open_key(uint32_t key)
{
	return unpack_float(key >> 31 ? key : ~key & 0x7fffffffu);
}

DEVICE uint64_t make_candidate(uint32_t key, int32_t id)
{
	return (uint64_t)key << 32 | (uint32_t)id;
}

/* Returns logit i with the penalty, which is `plain` without it, rounded to the nearest finite float. */
DEVICE float penalize_logit(const struct sample_row *r, int32_t i, float plain)
{
	const double limit = 0x1.fffffep127;
	double x = plain;

	if (!r->seen || !(r->seen[i / 32] >> i % 32 & 1))
		return plain;
	x = x < 0 ? x * r->penalty : x / r->penalty;
	return (float)(x > limit ? limit : x < -limit ? -limit : x);
}

DEVICE float get_logit(const struct sample_row *r, int32_t i)
{
	return penalize_logit(r, i, r->x[i]);
}

/* Returns r->unit * exp((x - r->most) / r->temperature), with a relative error below 2^-40. */
DEVICE uint64_t measure_amount(const struct sample_row *r, float x)
{
	const double ln2 = 0x1.62e42fefa39efp-1;
	const double whole = 0x1.8p52; /* its ulp is 1: adding it rounds to an integer */
	const double c[] = { 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
		             1.0 / 120,     1.0 / 24,     1.0 / 6,     1.0 / 2,    1.0 };
	double distance = ((double)x - r->most) * r->rate, k, power, sum = c[0];
	uint64_t bits;

	if (r->unit == 0)
		return 1;
	if (distance < -44) /* less than a half */
		return 0;
	k = fma(distance, 1 / ln2, whole);
	memcpy(&bits, &k, sizeof bits);
	bits = (bits + 1023) << 52;
	memcpy(&power, &bits, sizeof power);
	distance = fma(whole - k, ln2, distance);
	EACH(i, 9)
		sum = fma(sum, distance, c[i + 1]);
	return (uint64_t)fma(fma(sum, distance, 1.0) * power, r->unit, 0.5);
}

/* ---- what a row has -------------------------------------------------------------------------- */

/* Merges the parts of all threads in shared memory: candidates, minimum keys, counts, ids. */
DEVICE void merge_row_parts(struct sample_shared *s, int32_t t)
{
	for (int32_t n = SAMPLE_THREADS / 2; n; n /= 2) {
		uint64_t *best = s->list, *worst = s->list + SAMPLE_THREADS;

		sync_block();
		if (t >= n)
			continue;
		best[t] = best[t + n] < best[t] ? best[t + n] : best[t];
		worst[t] = worst[t + n] > worst[t] ? worst[t + n] : worst[t];
		s->low[t] += s->low[t + n];
		s->high[t] = s->high[t + n] < s->high[t] ? s->high[t + n] : s->high[t];
	}
	sync_block();
}

struct sample_survey { /* the logits of a thread */
	float most, least;
	int32_t best, odd,
		first_odd; /* the id of the largest; non-finite ones; the first of them */
};

/* Adds logit i, whose unpenalized value is x, after those of lower ids. */
DEVICE void survey_logit(const struct sample_row *r, struct sample_survey *v, int32_t i, float x)
{
	if ((pack_float(x) & 0x7f800000u) == 0x7f800000u) {
		v->first_odd = v->odd++ ? v->first_odd : i;
		return;
	}
	x = penalize_logit(r, i, x);
	v->best = x > v->most ? i : v->best;
	v->most = x > v->most ? x : v->most;
	v->least = x < v->least ? x : v->least;
}

/* Surveys four logits at a time, if they are aligned; SAMPLE_QUADS loads are in flight. */
DEVICE void survey_quads(const struct sample_row *r, struct sample_survey *v)
{
	const int32_t step = 4 * SAMPLE_THREADS;
	int32_t i = 4 * threadIdx.x, end = (uintptr_t)r->x % 16 ? 0 : r->n / 4 * 4;

	for (; i < end; i += SAMPLE_QUADS * step) {
		struct quad quads[SAMPLE_QUADS];

		EACH(u, SAMPLE_QUADS)
			quads[u] = load_quad(r->x + (i + u * step < end ? i + u * step : i));
		EACH(u, SAMPLE_QUADS)
			EACH(e, 4)
				if (i + u * step < end)
					survey_logit(r, v, i + u * step + e,
					             unpack_float(quads[u].at[e]));
	}
	for (i = end + threadIdx.x; i < r->n; i += SAMPLE_THREADS)
		survey_logit(r, v, i, r->x[i]);
}

DEVICE void survey_row(struct sample_shared *s, struct sample_row *r)
{
	struct sample_survey v = { unpack_float(0xff800000u), unpack_float(0x7f800000u), -1, 0,
		                   r->n };
	int32_t t = threadIdx.x;

	survey_quads(r, &v);
	s->list[t] = v.best < 0 ? UINT64_MAX : make_candidate(make_key(v.most), v.best);
	s->list[SAMPLE_THREADS + t] = v.best < 0 ? 0 : make_key(v.least);
	s->low[t] = (uint32_t)v.odd;
	s->high[t] = (uint32_t)v.first_odd;
	merge_row_parts(s, t);
	r->most = open_key((uint32_t)(s->list[0] >> 32));
	r->least = open_key((uint32_t)s->list[SAMPLE_THREADS]);
	r->odd = (int32_t)s->low[0];
	r->first_odd = r->odd ? (int32_t)s->high[0] : -1;
	r->largest = r->odd == r->n ? 0 : (int32_t)(uint32_t)s->list[0];
	sync_block();
}

/* ---- where a sum passes a number ------------------------------------------------------------- */

DEVICE int32_t find_bucket(const struct sample_range *g, float x, int32_t i)
{
	double at = (g->most - x) * g->scale;

	if (g->each)
		return i / g->each;
	return at < SAMPLE_BUCKETS - 1 ? (int32_t)at : SAMPLE_BUCKETS - 1;
}

DEVICE struct sample_range make_range(uint32_t first, uint32_t last, float most, float least)
{
	double width = (double)most - least;
	struct sample_range g = { first, last, most, width > 0 ? SAMPLE_BUCKETS / width : 0, 0 };

	return g;
}

/* Returns whether logit i is a candidate in the range; *key: its key. */
DEVICE int is_candidate(const struct sample_row *r, const struct sample_range *g, float x,
                        int32_t i, uint32_t *key)
{
	*key = make_key(x);
	return *key >= g->first && *key <= g->last && make_candidate(*key, i) <= r->end;
}

DEVICE uint64_t get_sum(const struct sample_shared *s, int32_t i)
{
	return (uint64_t)s->high[i] << 32 | s->low[i];
}

/* Adds the amounts of a range to its buckets. */
DEVICE void fill_buckets(struct sample_shared *s, const struct sample_row *r,
                         const struct sample_range *g)
{
	int32_t t = threadIdx.x;

	s->low[t] = s->high[t] = 0;
	sync_block();
	UNROLL_BY(2)
	for (int32_t i = t; i < r->n; i += SAMPLE_THREADS) {
		float x = get_logit(r, i);
		uint32_t key, low, was, high;
		uint64_t amount;
		int32_t b;

		if (!is_candidate(r, g, x, i, &key))
			continue;
		amount = measure_amount(r, x);
		low = (uint32_t)amount;
		if (!amount)
			continue;
		b = find_bucket(g, x, i);
		was = add_atomic(&s->low[b], low);
		high = (uint32_t)(amount >> 32) + (was + low < was);
		if (high)
			add_atomic(&s->high[b], high);
	}
	sync_block();
}

/* Sums groups of the sums; returns their total. */
DEVICE uint64_t sum_groups(struct sample_shared *s)
{
	const int32_t each = SAMPLE_BUCKETS / SAMPLE_GROUPS;
	int32_t t = threadIdx.x;
	uint64_t sum = 0;

	if (t < SAMPLE_GROUPS) {
		UNROLL_BY(4)
		for (int32_t i = 0; i < each; i++) /* no two threads read the same bank */
			sum += get_sum(s, t * each + (i + t) % each);
		s->group[t] = sum;
	}
	sync_block();
	sum = 0;
	UNROLL_BY(4)
	for (int32_t i = 0; i < SAMPLE_GROUPS; i++)
		sum += s->group[i];
	return sum;
}

/*
 * Returns which sum contains `target`, which is less than their total; *before: the sum of earlier
 * ones.
 */
DEVICE int32_t find_sum(const struct sample_shared *s, uint64_t target, uint64_t *before)
{
	const int32_t each = SAMPLE_BUCKETS / SAMPLE_GROUPS;
	int32_t i = 0, g = 0;

	while (g < SAMPLE_GROUPS - 1 && *before + s->group[g] <= target)
		*before += s->group[g++];
	i = g * each;
	while (i < SAMPLE_BUCKETS - 1 && *before + get_sum(s, i) <= target)
		*before += get_sum(s, i++);
	return i;
}

/* Lists the candidates of bucket b, up to the capacity, and fills the rest with UINT64_MAX. */
DEVICE void list_candidates(struct sample_shared *s, const struct sample_row *r,
                            const struct sample_range *g, int32_t b)
{
	int32_t t = threadIdx.x;
	uint32_t first = UINT32_MAX, last = 0;

	EACH(i, SAMPLE_EACH)
		s->list[i * SAMPLE_THREADS + t] = UINT64_MAX;
	if (t == 0) {
		s->count = s->last = 0;
		s->first = UINT32_MAX;
	}
	sync_block();
	UNROLL_BY(4)
	for (int32_t i = t; i < r->n; i += SAMPLE_THREADS) {
		float x = get_logit(r, i);
		uint32_t key, at;

		if (!is_candidate(r, g, x, i, &key) || find_bucket(g, x, i) != b)
			continue;
		at = add_atomic(&s->count, 1u);
		if (at < SAMPLE_LIST)
			s->list[at] = make_candidate(key, i);
		first = key < first ? key : first;
		last = key > last ? key : last;
	}
	if (first <= last) {
		lower_atomic(&s->first, first);
		raise_atomic(&s->last, last);
	}
	sync_block();
}

/* Sorts the list by a bitonic sort of a power of two of elements. */
DEVICE void sort_list(struct sample_shared *s)
{
	uint64_t *x = s->list;

	for (uint32_t run = 2; run < 2 * s->count; run *= 2) {
		for (uint32_t step = run / 2; step; step /= 2) {
			for (uint32_t i = threadIdx.x; i < SAMPLE_LIST / 2 && i < s->count;
			     i += SAMPLE_THREADS) {
				uint32_t at = 2 * i - (i & (step - 1));
				uint64_t a = x[at], b = x[at + step];

				if ((b < a) == !(at & run)) {
					x[at] = b;
					x[at + step] = a;
				}
			}
			sync_block();
		}
	}
}

DEVICE uint64_t measure_listed(const struct sample_shared *s, const struct sample_row *r,
                               uint32_t i)
{
	return measure_amount(r, open_key((uint32_t)(s->list[i] >> 32)));
}

/*
 * Returns which candidate of the sorted list contains `target`; *before: the sum of earlier ones.
 */
DEVICE uint32_t find_listed(struct sample_shared *s, const struct sample_row *r, uint64_t target,
                            uint64_t *before)
{
	uint32_t t = threadIdx.x, i;
	uint64_t sum = 0;

	UNROLL_BY(1)
	for (uint32_t j = t * SAMPLE_EACH; j < (t + 1) * SAMPLE_EACH && j < s->count; j++)
		sum += measure_listed(s, r, j);
	s->low[t] = (uint32_t)sum;
	s->high[t] = (uint32_t)(sum >> 32);
	sync_block();
	sum_groups(s);
	i = (uint32_t)find_sum(s, target, before) * SAMPLE_EACH;
	while (i + 1 < s->count && *before + measure_listed(s, r, i) <= target)
		*before += measure_listed(s, r, i++);
	return i;
}

/*
 * Returns the candidate in which the ordered sum of amounts passes `share` of the total. If
 * candidates are counted: the one at `place`, or the last one with an equal logit.
 */
DEVICE uint64_t find_candidate(struct sample_shared *s, const struct sample_row *r, double share,
                               uint64_t place)
{
	float far = r->most - (float)(40 * r->temperature); /* the rest has no significant weight */
	struct sample_range g = make_range(0, UINT32_MAX, r->most, far > r->least ? far : r->least);
	uint64_t before = 0, target = place - 1, found;

	for (int level = 0;; level++) {
		uint64_t all;
		int32_t b;

		fill_buckets(s, r, &g);
		all = sum_groups(s);
		if (!level && r->unit > 0) {
			target = (uint64_t)(share * (double)all);
			target = target < all ? target : all - 1;
		}
		b = find_sum(s, target, &before);
		list_candidates(s, r, &g, b);
		if (s->count <= SAMPLE_LIST)
			break;
		g = make_range(s->first, s->last, open_key(s->first), open_key(s->last));
		if (s->first == s->last)
			g.each = (r->n + SAMPLE_BUCKETS - 1) / SAMPLE_BUCKETS;
		sync_block();
	}
	sort_list(s);
	found = s->list[find_listed(s, r, target, &before)];
	sync_block();
	return r->unit > 0 ? found : found | UINT32_MAX;
}

/* ---- the rule -------------------------------------------------------------------------------- */

/* Keeps the candidates whose weight is at least p. */
DEVICE void keep_min_p(struct sample_row *r, double p)
{
	double least = r->most + r->temperature * logf((float)p);
	uint32_t key = make_key((float)least);
	uint64_t end = make_candidate(key - (open_key(key) < least), -1);

	r->end = end < r->end ? end : r->end;
}

enum { SEARCH_TOP_K, SEARCH_TOP_P, SEARCH_DRAWN, SEARCHES };

DEVICE int32_t draw_id(struct sample_shared *s, struct sample_row *r, const double *how)
{
	double unit = 0x1p62; /* keeps the sum of all amounts below 2^63 */
	double top_k = how[TESS_SAMPLE_TOP_K], top_p = how[TESS_SAMPLE_TOP_P];

	r->temperature = how[TESS_SAMPLE_TEMPERATURE];
	r->penalty = how[TESS_SAMPLE_PENALTY];
	survey_row(s, r);
	if (r->odd || r->temperature < 1e-30)
		return r->largest;
	for (int32_t n = 1; n < r->n; n *= 2)
		unit /= 2;
	r->rate = 1 / r->temperature;
	r->end = UINT64_MAX;
	for (int search = SEARCH_TOP_K; search < SEARCHES; search++) {
		double share = search == SEARCH_TOP_P ? top_p : how[TESS_SAMPLE_NUMBER];

		if ((search == SEARCH_TOP_K && !(top_k > 0 && top_k < r->n)) ||
		    (search == SEARCH_TOP_P && !(top_p < 1)))
			continue;
		if (search == SEARCH_DRAWN && how[TESS_SAMPLE_MIN_P] > 0)
			keep_min_p(r, how[TESS_SAMPLE_MIN_P]);
		r->unit = search == SEARCH_TOP_K ? 0 : unit;
		r->end = find_candidate(s, r, share, (uint64_t)top_k);
	}
	return (int32_t)(uint32_t)r->end;
}

KERNEL(SAMPLE_THREADS, draw_ids, sample_args)
{
	SHARED struct sample_shared s;
	const double *how = a.how + (int64_t)blockIdx.x * a.how_pitch;
	double penalty = how[TESS_SAMPLE_PENALTY];
	int32_t *y = a.y + (int64_t)blockIdx.x * a.y_pitch, id;
	struct sample_row r;

	r.x = a.x + (int64_t)blockIdx.x * a.x_pitch;
	r.n = a.columns;
	/* a compiled version for each, so that rows without a penalty do not check for one */
	if (penalty != 0 && penalty != 1) {
		uint32_t *seen = a.seen + (int64_t)how[TESS_SAMPLE_SET] * a.seen_pitch;

		r.seen = seen;
		id = draw_id(&s, &r, how);
		sync_block(); /* `seen` has been read */
		if (!threadIdx.x)
			seen[id / 32] |= 1u << id % 32;
	} else {
		r.seen = 0;
		id = draw_id(&s, &r, how);
	}
	if (threadIdx.x)
		return;
	y[TESS_SAMPLE_ID] = id;
	y[TESS_SAMPLE_ODD] = r.odd;
	y[TESS_SAMPLE_FIRST_ODD] = r.first_odd;
	y[TESS_SAMPLE_NAN] = r.odd && r.x[r.first_odd] != r.x[r.first_odd];
}

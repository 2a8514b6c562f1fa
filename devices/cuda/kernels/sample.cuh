/*
 * sample.cuh - the next ids: a block draws that of a row of logits by the rule of nn/generate/sample.c.
 *
 * Candidates are kept in the order of the scores, which is that of the logits, then of the ids. So
 * what is kept begins with the best, and each filter only says which candidate is the last. To find
 * that, as to find the one that is drawn, is to find where a sum over candidates in their order
 * passes a number: amounts are integers, which give the same sum in any order. First they are added
 * in buckets of logits; then the candidates of one bucket are sorted. Where the number is so near a
 * candidate's end that the CPU's sums of doubles may have rounded to its other side, the row is in
 * doubt.
 *
 * A logit with the penalty is a double. Its key and its bucket are those of the nearest float; where
 * keys are equal the scores decide.
 */
#ifdef __CUDACC__
#define inline __device__ __forceinline__
#include <tessera/util/exp.h>
#undef inline
#else
#include <tessera/util/exp.h>
#endif
#include <tessera/device.h>

enum { SAMPLE_GROUPS = 32, SAMPLE_EACH = SAMPLE_LIST / SAMPLE_THREADS };

struct sample_shared {
	uint64_t list[SAMPLE_LIST]; /* candidates: a key, then the id in the lower half */
	uint32_t low[SAMPLE_BUCKETS], high[SAMPLE_BUCKETS]; /* 64-bit sums */
	uint64_t group[SAMPLE_GROUPS]; /* sums of so many of them */
	uint32_t count, first, last; /* candidates that were listed; their least and largest key */
};

struct sample_row { /* alike in all threads of a block */
	const float *x;
	const uint32_t *seen; /* a bit for each id: its logit has the penalty; NULL: none has */
	int32_t n;
	float most, least; /* rounded */
	double penalty, top; /* top: the largest logit */
	double temperature, rate, best; /* 1 / temperature; the best score */
	double unit; /* the amount that is a weight of 1; 0: each candidate counts 1 */
	uint64_t end; /* the last candidate that is kept */
	int32_t odd, first_odd, largest; /* logits that are not finite; the id of the largest */
};

struct sample_range { /* keys of a bucket, or of all */
	uint32_t first, last;
	double most, scale; /* the largest logit; buckets per difference from it */
};

/* Rises as x falls; of 0 and -0 alike. */
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

DEVICE int is_penalized(const struct sample_row *r, int32_t i)
{
	return r->seen && r->seen[i / 32] >> i % 32 & 1;
}

/* With the penalty, and rounded as in nn/generate/sample.c. */
DEVICE double get_logit(const struct sample_row *r, int32_t i)
{
	double x = r->x[i];

	if (!is_penalized(r, i))
		return x;
	return x < 0 ? x * r->penalty : x / r->penalty;
}

/* The nearest finite float. */
DEVICE float round_logit(const struct sample_row *r, int32_t i)
{
	const double limit = 0x1.fffffep127;
	double x;

	if (!is_penalized(r, i))
		return r->x[i];
	x = get_logit(r, i);
	return (float)(x > limit ? limit : x < -limit ? -limit : x);
}

DEVICE double get_score(const struct sample_row *r, int32_t i)
{
	return get_logit(r, i) / r->temperature + 0.0;
}

DEVICE double weigh_id(const struct sample_row *r, int32_t i)
{
	return tess_exp_f64(get_score(r, i) - r->best);
}

/* In the order of scores. Without a penalty that of the keys is the same. */
DEVICE int is_before(const struct sample_row *r, uint64_t a, uint64_t b)
{
	if (r->seen && a != b && a >> 32 == b >> 32) {
		double x = get_score(r, (int32_t)(uint32_t)a);
		double y = get_score(r, (int32_t)(uint32_t)b);

		if (x != y)
			return x > y;
	}
	return a < b;
}

/*
 * Its weight times r->unit, in a third of the operations but not with the CPU's bits: the relative
 * error is below 2^-40 + |r->best| * 2^-50. Taylor as in tess_exp_f64.
 */
DEVICE uint64_t measure_amount(const struct sample_row *r, double x)
{
	const double whole = 0x1.8p52; /* its ulp is 1: adding it rounds to an integer */
	const double c[] = { 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
		             1.0 / 120,     1.0 / 24,     1.0 / 6,     1.0 / 2,    1.0 };
	double distance = (x - r->top) * r->rate, k, power, sum = c[0];
	uint64_t bits;

	if (r->unit == 0)
		return 1;
	if (distance < -44) /* less than a half */
		return 0;
	k = fma(distance, 1 / (TESS_LN2_HI + TESS_LN2_LO), whole);
	memcpy(&bits, &k, sizeof bits);
	bits = (bits + 1023) << 52;
	memcpy(&power, &bits, sizeof power);
	distance = fma(whole - k, TESS_LN2_HI + TESS_LN2_LO, distance);
	EACH(i, 9)
		sum = fma(sum, distance, c[i + 1]);
	return (uint64_t)fma(fma(sum, distance, 1.0) * power, r->unit, 0.5);
}

/* ---- what a row has -------------------------------------------------------------------------- */

/* The parts of all threads, which lie in shared memory: candidates, least keys, counts, ids. */
DEVICE void merge_row_parts(struct sample_shared *s, const struct sample_row *r, int32_t t)
{
	for (int32_t n = SAMPLE_THREADS / 2; n; n /= 2) {
		uint64_t *best = s->list, *worst = s->list + SAMPLE_THREADS;

		sync_block();
		if (t >= n)
			continue;
		best[t] = is_before(r, best[t + n], best[t]) ? best[t + n] : best[t];
		worst[t] = worst[t + n] > worst[t] ? worst[t + n] : worst[t];
		s->low[t] += s->low[t + n];
		s->high[t] = s->high[t + n] < s->high[t] ? s->high[t + n] : s->high[t];
	}
	sync_block();
}

DEVICE void survey_row(struct sample_shared *s, struct sample_row *r)
{
	float most = unpack_float(0xff800000u), least = unpack_float(0x7f800000u);
	int32_t t = threadIdx.x, best = -1, count = 0, lowest = r->n;

	UNROLL_BY(8)
	for (int32_t i = t; i < r->n; i += SAMPLE_THREADS) {
		float v = r->x[i];

		if ((pack_float(v) & 0x7f800000u) == 0x7f800000u) {
			lowest = count++ ? lowest : i;
			continue;
		}
		v = round_logit(r, i);
		if (r->seen && v == most && get_score(r, i) > get_score(r, best))
			best = i;
		best = v > most ? i : best;
		most = v > most ? v : most;
		least = v < least ? v : least;
	}
	s->list[t] = best < 0 ? UINT64_MAX : make_candidate(make_key(most), best);
	s->list[SAMPLE_THREADS + t] = best < 0 ? 0 : make_key(least);
	s->low[t] = (uint32_t)count;
	s->high[t] = (uint32_t)lowest;
	merge_row_parts(s, r, t);
	r->most = open_key((uint32_t)(s->list[0] >> 32));
	r->least = open_key((uint32_t)s->list[SAMPLE_THREADS]);
	r->odd = (int32_t)s->low[0];
	r->first_odd = r->odd ? (int32_t)s->high[0] : -1;
	r->largest = r->odd == r->n ? 0 : (int32_t)(uint32_t)s->list[0];
	r->top = get_logit(r, r->largest);
	sync_block();
}

/* ---- where a sum passes a number ------------------------------------------------------------- */

DEVICE int32_t find_bucket(const struct sample_range *g, float x)
{
	double at = (g->most - x) * g->scale;

	return at < SAMPLE_BUCKETS - 1 ? (int32_t)at : SAMPLE_BUCKETS - 1;
}

DEVICE struct sample_range make_range(uint32_t first, uint32_t last, float most, float least)
{
	double width = (double)most - least;
	struct sample_range g = { first, last, most, width > 0 ? SAMPLE_BUCKETS / width : 0 };

	return g;
}

/* Whether logit i is a candidate in the range; *key: its own. */
DEVICE int is_candidate(const struct sample_row *r, const struct sample_range *g, float x,
                        int32_t i, uint32_t *key)
{
	*key = make_key(x);
	return *key >= g->first && *key <= g->last &&
	       !is_before(r, r->end, make_candidate(*key, i));
}

DEVICE uint64_t get_sum(const struct sample_shared *s, int32_t i)
{
	return (uint64_t)s->high[i] << 32 | s->low[i];
}

/* Adds the amounts of a range in its buckets. */
DEVICE void fill_buckets(struct sample_shared *s, const struct sample_row *r,
                         const struct sample_range *g)
{
	int32_t t = threadIdx.x;

	s->low[t] = s->high[t] = 0;
	sync_block();
	UNROLL_BY(2)
	for (int32_t i = t; i < r->n; i += SAMPLE_THREADS) {
		float x = round_logit(r, i);
		uint32_t key, low, was, high;
		uint64_t amount;
		int32_t b;

		if (!is_candidate(r, g, x, i, &key))
			continue;
		amount = measure_amount(r, r->seen ? get_logit(r, i) : x);
		low = (uint32_t)amount;
		if (!amount)
			continue;
		b = find_bucket(g, x);
		was = add_atomic(&s->low[b], low);
		high = (uint32_t)(amount >> 32) + (was + low < was);
		if (high)
			add_atomic(&s->high[b], high);
	}
	sync_block();
}

/* Sums over groups of the sums; their own sum. */
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

/* Which of the sums has `target`, which is less than all of them; *before: what precedes it. */
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

/* The candidates of bucket b, as far as there is room; the rest of the list is full of UINT64_MAX. */
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
		float x = round_logit(r, i);
		uint32_t key, at;

		if (!is_candidate(r, g, x, i, &key) || find_bucket(g, x) != b)
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

/* Bitonic, of a power of two that holds the list. */
DEVICE void sort_list(struct sample_shared *s, const struct sample_row *r)
{
	uint64_t *x = s->list;

	for (uint32_t run = 2; run < 2 * s->count; run *= 2) {
		for (uint32_t step = run / 2; step; step /= 2) {
			for (uint32_t i = threadIdx.x; i < SAMPLE_LIST / 2 && i < s->count;
			     i += SAMPLE_THREADS) {
				uint32_t at = 2 * i - (i & (step - 1));
				uint64_t a = x[at], b = x[at + step];

				if (is_before(r, b, a) == !(at & run)) {
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
	uint64_t c = s->list[i];

	return measure_amount(r, r->seen ? get_logit(r, (int32_t)(uint32_t)c)
	                                 : open_key((uint32_t)(c >> 32)));
}

/* Which candidate of the sorted list has `target`; *before: what precedes it. */
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

/* The last candidate of the sorted list that is equal to candidate i. */
DEVICE uint32_t find_last_equal(const struct sample_shared *s, const struct sample_row *r,
                                uint32_t i)
{
	uint32_t key = (uint32_t)(s->list[i] >> 32);

	while (i + 1 < s->count && s->list[i + 1] >> 32 == key &&
	       (!r->seen || get_score(r, (int32_t)(uint32_t)s->list[i + 1]) ==
	                            get_score(r, (int32_t)(uint32_t)s->list[i])))
		i++;
	return i;
}

/*
 * The candidate in which the sum of amounts in their order passes `share` of all, or the count
 * `place` if candidates are counted. *doubt is set where the CPU's sums might say another one.
 */
DEVICE uint64_t find_candidate(struct sample_shared *s, const struct sample_row *r, double share,
                               uint64_t place, int *doubt)
{
	float far =
		r->most - (float)(40 * r->temperature); /* the rest weighs nothing to speak of */
	struct sample_range g = make_range(0, UINT32_MAX, r->most, far > r->least ? far : r->least);
	uint64_t before = 0, target = place - 1, room = 0, after, found;
	uint32_t at;

	for (int level = 0;; level++) {
		uint64_t all;
		int32_t b;

		fill_buckets(s, r, &g);
		all = sum_groups(s);
		if (!level && r->unit > 0) {
			target = (uint64_t)(share * (double)all);
			target = target < all ? target : all - 1;
			/* amounts: a half each and their errors, in the sum and in all of them; the
			 * CPU: four sums */
			room = 2 * (uint64_t)r->n +
			       (uint64_t)((double)all *
			                  (r->n * 0x1p-50 + 0x1p-39 + fabs(r->best) * 0x1p-49));
		}
		b = find_sum(s, target, &before);
		list_candidates(s, r, &g, b);
		if (s->count <= SAMPLE_LIST)
			break;
		*doubt |= s->first == s->last; /* so many equal ones */
		if (s->first == s->last)
			return r->end;
		g = make_range(s->first, s->last, open_key(s->first), open_key(s->last));
		sync_block();
	}
	sort_list(s, r);
	at = find_listed(s, r, target, &before);
	after = before + measure_listed(s, r, at);
	*doubt |= (before && target - before < room) || after - target < room;
	if (r->unit == 0) /* with all that are equal to it */
		at = find_last_equal(s, r, at);
	found = s->list[at];
	sync_block();
	return found;
}

/* ---- the rule -------------------------------------------------------------------------------- */

/* Up to the last candidate whose weight is at least p. */
DEVICE void keep_min_p(struct sample_shared *s, struct sample_row *r, double p)
{
	/* a difference from the best above which no weight is so large; of more than any rounding */
	double far = r->temperature * (1.0 - logf((float)p));
	uint64_t last = 0;
	int32_t t = threadIdx.x;

	for (int32_t i = t; i < r->n; i += SAMPLE_THREADS) {
		uint64_t c = make_candidate(make_key(round_logit(r, i)), i);

		if (is_before(r, last, c) && !is_before(r, r->end, c) &&
		    r->top - get_logit(r, i) < far && weigh_id(r, i) >= p)
			last = c;
	}
	s->list[t] = last;
	for (int32_t n = SAMPLE_THREADS / 2; n; n /= 2) {
		sync_block();
		if (t < n && is_before(r, s->list[t], s->list[t + n]))
			s->list[t] = s->list[t + n];
	}
	sync_block();
	r->end = s->list[0];
	sync_block();
}

enum { SEARCH_TOP_K, SEARCH_TOP_P, SEARCH_DRAWN, SEARCHES };

DEVICE int32_t draw_id(struct sample_shared *s, struct sample_row *r, const double *how, int *doubt)
{
	double unit = 0x1p62; /* so that the sum of all amounts is less than 2^63 */
	double top_k = how[TESS_SAMPLE_TOP_K], top_p = how[TESS_SAMPLE_TOP_P];

	r->temperature = how[TESS_SAMPLE_TEMPERATURE] == 0 ? 1 : how[TESS_SAMPLE_TEMPERATURE];
	r->penalty = how[TESS_SAMPLE_PENALTY];
	survey_row(s, r);
	if (r->odd || how[TESS_SAMPLE_TEMPERATURE] == 0)
		return r->largest;
	for (int32_t n = 1; n < r->n; n *= 2)
		unit /= 2;
	r->rate = 1 / r->temperature;
	r->best = get_score(r, r->largest);
	r->end = UINT64_MAX;
	*doubt = r->temperature < 1e-30; /* scores may overflow */
	for (int search = SEARCH_TOP_K; search < SEARCHES && !*doubt; search++) {
		double share = search == SEARCH_TOP_P ? top_p : how[TESS_SAMPLE_NUMBER];

		if ((search == SEARCH_TOP_K && !(top_k > 0 && top_k < r->n)) ||
		    (search == SEARCH_TOP_P && !(top_p < 1)))
			continue;
		if (search == SEARCH_DRAWN && how[TESS_SAMPLE_MIN_P] > 0)
			keep_min_p(s, r, how[TESS_SAMPLE_MIN_P]);
		r->unit = search == SEARCH_TOP_K ? 0 : unit;
		r->end = find_candidate(s, r, share, (uint64_t)top_k, doubt);
	}
	return *doubt ? r->largest : (int32_t)(uint32_t)r->end;
}

KERNEL(SAMPLE_THREADS, draw_ids, sample_args)
{
	SHARED struct sample_shared s;
	const double *how = a.how + (int64_t)blockIdx.x * a.how_pitch;
	double penalty = how[TESS_SAMPLE_PENALTY];
	int32_t *y = a.y + (int64_t)blockIdx.x * a.y_pitch, id;
	struct sample_row r;
	int doubt = 0;

	r.x = a.x + (int64_t)blockIdx.x * a.x_pitch;
	r.n = a.columns;
	/* compiled for each, so that rows without a penalty look for none */
	if (penalty != 0 && penalty != 1) {
		uint32_t *seen = a.seen + (int64_t)how[TESS_SAMPLE_SET] * a.seen_pitch;

		r.seen = seen;
		id = draw_id(&s, &r, how, &doubt);
		sync_block(); /* all scores have been computed */
		if (!threadIdx.x)
			seen[id / 32] |= 1u << id % 32;
	} else {
		r.seen = 0;
		id = draw_id(&s, &r, how, &doubt);
	}
	if (threadIdx.x)
		return;
	y[TESS_SAMPLE_ID] = id;
	y[TESS_SAMPLE_ODD] = r.odd;
	y[TESS_SAMPLE_FIRST_ODD] = r.first_odd;
	y[TESS_SAMPLE_FLAG] = doubt ? TESS_SAMPLE_DOUBT : 0;
	if (r.odd && r.x[r.first_odd] != r.x[r.first_odd])
		y[TESS_SAMPLE_FLAG] = TESS_SAMPLE_NAN;
}

#include "nn/generate/sample.h"

#include "core/base/math.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/base/thread_state.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/util/random.h>

enum { BUCKETS = 1024 };

struct score_bucket { /* the candidates with about equal distance from the best score */
	int64_t count;
	double weight;
};

struct tess_sampler {
	int64_t first, vocab; /* ids [first, first + vocab), counted from 0 in arrays */
	int64_t n; /* candidates left, best first */
	struct tess_candidate *list, *other;
	double *score, *weight; /* by id; weights are relative to the best one */
	bool weighed; /* `weight` is set for all ids */
	double best, scale; /* the best score; buckets per unit of distance from it */
	double rest; /* weights outside the list; 0 once top-p removed them */
	double doubt; /* how far another order of adding `rest` may move a probability */
	struct score_bucket *bucket; /* best first */
	float *probability;
	bool *seen;
};

static tess_status check_range(const char *name, double v, double lo, double hi)
{
	if (v >= lo && v <= hi) /* false for NaN */
		return TESS_OK;
	return tess_fail(TESS_EINVAL, "%s %g: must be from %g to %g", name, v, lo, hi);
}

tess_status tess_sampling_check(const struct tess_sampling *s)
{
	tess_status st = TESS_REQUIRE(s);

	if (!st)
		st = check_range("temperature", s->temperature, 0, 1e6);
	if (!st)
		st = check_range("top-p", s->top_p, 0, 1);
	if (!st)
		st = check_range("min-p", s->min_p, 0, 1);
	if (!st)
		st = check_range("repetition penalty", s->repetition_penalty, 0, 1e6);
	return st             ? st
	       : s->top_k < 0 ? tess_fail(TESS_EINVAL, "top-k %lld: must be 0 or more",
	                                  (long long)s->top_k)
	                      : st;
}

tess_status tess_sampler_new(int64_t vocab, struct tess_sampler **out)
{
	tess_status st = TESS_REQUIRE(out);

	if (!st && (vocab < 1 || vocab > INT32_MAX))
		st = tess_fail(TESS_EINVAL, "sampling: a vocabulary of %lld ids", (long long)vocab);
	return st ? st : tess_sampler_new_part(0, vocab, out);
}

tess_status tess_sampler_new_part(int64_t first, int64_t vocab, struct tess_sampler **out)
{
	struct tess_sampler *s = calloc(1, sizeof *s);

	if (s) {
		s->first = first;
		s->vocab = vocab;
		s->list = calloc((size_t)vocab, sizeof *s->list);
		s->other = calloc((size_t)vocab, sizeof *s->other);
		s->probability = calloc((size_t)vocab, sizeof *s->probability);
		s->score = calloc((size_t)vocab, sizeof *s->score);
		s->weight = calloc((size_t)vocab, sizeof *s->weight);
		s->bucket = calloc(BUCKETS, sizeof *s->bucket);
		s->seen = calloc((size_t)vocab, sizeof *s->seen);
	}
	if (!s || !s->list || !s->other || !s->probability || !s->score || !s->weight ||
	    !s->bucket || !s->seen) {
		tess_sampler_free(s);
		return tess_fail(TESS_ENOMEM, "sampling: out of memory");
	}
	*out = s;
	return TESS_OK;
}

void tess_sampler_free(struct tess_sampler *s)
{
	if (!s)
		return;
	free(s->list);
	free(s->other);
	free(s->probability);
	free(s->score);
	free(s->weight);
	free(s->bucket);
	free(s->seen);
	free(s);
}

bool tess_sampling_has_penalty(const struct tess_sampling *s)
{
	return s->repetition_penalty != 0 && s->repetition_penalty != 1;
}

/*
 * Penalizes seen ids as transformers does: divides a positive logit and multiplies a negative one,
 * once per distinct id.
 */
static void apply_penalty(struct tess_sampler *s, const struct tess_sampling *sampling,
                          const float *logits, const int32_t *seen, int64_t nseen)
{
	double p = sampling->repetition_penalty;

	for (int64_t i = 0; i < s->vocab; i++)
		s->score[i] = logits[i];
	if (!tess_sampling_has_penalty(sampling))
		return;
	memset(s->seen, 0, (size_t)s->vocab * sizeof *s->seen);
	for (int64_t i = 0; i < nseen; i++) {
		int64_t at = seen[i] - s->first;

		if (at < 0 || at >= s->vocab || s->seen[at])
			continue;
		s->seen[at] = true;
		s->score[at] = s->score[at] < 0 ? s->score[at] * p : s->score[at] / p;
	}
}

/* Makes a key that increases as scores decrease. */
static uint64_t make_sort_key(double score)
{
	uint64_t bits;

	memcpy(&bits, &score, sizeof bits);
	return bits >> 63 ? bits : ~bits & INT64_MAX;
}

/* Sorts by radix: best first, ties by lowest id (each pass is stable). */
static void sort_candidates(struct tess_sampler *s)
{
	enum { BITS = 11, MASK = (1 << BITS) - 1 };
	int64_t at[MASK + 1];

	for (int shift = 0; shift < 64; shift += BITS) {
		struct tess_candidate *from = s->list, *to = s->other;
		int64_t sum = 0, n;

		memset(at, 0, sizeof at);
		for (int64_t i = 0; i < s->n; i++)
			at[make_sort_key(from[i].score) >> shift & MASK]++;
		for (int i = 0; i <= MASK; i++, sum += n) {
			n = at[i];
			at[i] = sum;
		}
		for (int64_t i = 0; i < s->n; i++)
			to[at[make_sort_key(from[i].score) >> shift & MASK]++] = from[i];
		s->list = to;
		s->other = from;
	}
}

/* Keeps the k best of the sorted list, and all that tie with the last of them. */
static void keep_top_k(struct tess_sampler *s, int64_t k)
{
	if (k <= 0 || k >= s->n)
		return;
	while (k < s->n && s->list[k].score == s->list[k - 1].score)
		k++;
	s->n = k;
}

/* Sums the weights from the smallest to the largest. */
static double sum_weights(const struct tess_sampler *s)
{
	double sum = s->rest;

	for (int64_t i = s->n - 1; i >= 0; i--)
		sum += s->weight[s->list[i].id];
	return sum;
}

/*
 * Removes the worst candidates, of probability 1 - p at most in total; the best one stays. Returns
 * false if the result depends on the order in which `rest` is added.
 */
static bool keep_top_p(struct tess_sampler *s, double p)
{
	double total, below;

	if (p >= 1)
		return true;
	total = sum_weights(s);
	below = s->rest / total;
	if (below > 1 - p - s->doubt)
		return false;
	while (s->n > 1) {
		below += s->weight[s->list[s->n - 1].id] / total;
		if (fabs(below - (1 - p)) < s->doubt)
			return false;
		if (below > 1 - p)
			break;
		s->n--;
	}
	s->rest = s->doubt = 0;
	return true;
}

static void keep_min_p(struct tess_sampler *s, double p)
{
	while (p > 0 && s->n > 1 && s->weight[s->list[s->n - 1].id] < p)
		s->n--;
}

/* ---- candidates that may be kept ------------------------------------------------------------- */

/* Returns a bucket, monotonic in the distance: each operation rounds to the nearest. */
static int find_bucket(const struct tess_sampler *s, double distance)
{
	double at = distance * s->scale;

	return at < BUCKETS - 1 ? (int)at : BUCKETS - 1; /* the last one also for NaN */
}

static int find_bucket_of_id(const struct tess_sampler *s, int64_t id)
{
	return find_bucket(s, s->best - s->score[id]);
}

static void score_ids(struct tess_sampler *s, const struct tess_sampling *sampling,
                      const float *logits, const int32_t *seen, int64_t nseen)
{
	double t = sampling->temperature > 0 ? sampling->temperature : 1, worst;

	apply_penalty(s, sampling, logits, seen, nseen);
	for (int64_t i = 0; i < s->vocab; i++) /* + 0 turns -0, which would sort after 0, into 0 */
		s->score[i] = s->score[i] / t + 0.0;
	s->weighed = false;
	s->best = worst = s->score[0];
	for (int64_t i = 1; i < s->vocab; i++) {
		s->best = s->score[i] > s->best ? s->score[i] : s->best;
		worst = s->score[i] < worst ? s->score[i] : worst;
	}
	s->scale = BUCKETS / (s->best - worst);
}

static int find_bucket_of_count(struct tess_sampler *s, int64_t k)
{
	int last = 0;

	memset(s->bucket, 0, BUCKETS * sizeof *s->bucket);
	for (int64_t i = 0; i < s->vocab; i++)
		s->bucket[find_bucket_of_id(s, i)].count++;
	for (; last < BUCKETS - 1 && s->bucket[last].count < k; last++)
		k -= s->bucket[last].count;
	return last;
}

/* Returns the bucket that completes this share of all weights; sums those after it in `rest`. */
static int find_bucket_of_share(struct tess_sampler *s, double share)
{
	double total = 0, upto = 0;
	int last = 0;

	memset(s->bucket, 0, BUCKETS * sizeof *s->bucket);
	for (int64_t i = 0; i < s->vocab; i++) {
		s->weight[i] = tess_exp_f64(s->score[i] - s->best);
		s->bucket[find_bucket_of_id(s, i)].weight += s->weight[i];
	}
	s->weighed = true;
	for (int i = 0; i < BUCKETS; i++)
		total += s->bucket[i].weight;
	/* four sums of at most 2^-53 an addend: two here, two after sorting all candidates */
	s->doubt = (double)s->vocab * 0x1p-50;
	for (; last < BUCKETS - 1; last++) {
		upto += s->bucket[last].weight;
		if (upto >= (share + 2 * s->doubt) * total)
			break;
	}
	for (int i = BUCKETS - 1; i > last; i--)
		s->rest += s->bucket[i].weight;
	return last;
}

/*
 * Collects the candidates in buckets up to the one that is sure to contain the last candidate that
 * can be kept, or, without a filter, drawn by `u`. all: collects every candidate.
 */
static void collect_candidates(struct tess_sampler *s, const struct tess_sampling *sampling,
                               double u, bool all)
{
	int last = BUCKETS - 1;

	s->rest = s->doubt = 0;
	if (all)
		;
	else if (sampling->top_k > 0)
		last = find_bucket_of_count(s, sampling->top_k);
	else if (sampling->top_p < 1 || sampling->min_p == 0)
		last = find_bucket_of_share(s, sampling->top_p < 1 ? sampling->top_p : u);
	else /* others have weights below min_p, by more than rounding */
		last = find_bucket(s, 1e-6 - tess_log_f64(sampling->min_p));
	s->n = 0;
	for (int64_t i = 0; i < s->vocab; i++)
		if (last == BUCKETS - 1 || find_bucket_of_id(s, i) <= last)
			s->list[s->n++] = (struct tess_candidate){ s->score[i], i };
	if (last == BUCKETS - 1)
		s->doubt = 0;
}

/* Applies the filters; false: all candidates are needed. */
static bool filter_candidates(struct tess_sampler *s, const struct tess_sampling *sampling)
{
	sort_candidates(s);
	keep_top_k(s, sampling->top_k);
	for (int64_t i = 0; i < s->n && !s->weighed; i++)
		s->weight[s->list[i].id] = tess_exp_f64(s->list[i].score - s->best);
	if (!keep_top_p(s, sampling->top_p))
		return false;
	keep_min_p(s, sampling->min_p);
	return true;
}

static bool select_candidates(struct tess_sampler *s, const struct tess_sampling *sampling,
                              double u, bool all)
{
	collect_candidates(s, sampling, u, all);
	return filter_candidates(s, sampling);
}

const float *tess_sampler_compute_probabilities(struct tess_sampler *s,
                                                const struct tess_sampling *sampling,
                                                const float *logits, const int32_t *seen,
                                                int64_t nseen)
{
	double total;

	score_ids(s, sampling, logits, seen, nseen);
	select_candidates(s, sampling, 0, true);
	total = sum_weights(s);
	memset(s->probability, 0, (size_t)s->vocab * sizeof *s->probability);
	for (int64_t i = 0; i < s->n; i++)
		s->probability[s->list[i].id] = (float)(s->weight[s->list[i].id] / total);
	return s->probability;
}

/* Draws a number in [0, 1): 53 bits of Philox of (step, 0, 0, 0) under the seed. */
static double draw_uniform(uint64_t seed, uint64_t step)
{
	uint32_t c[4] = { (uint32_t)step, (uint32_t)(step >> 32), 0, 0 };

	tess_philox((uint32_t)seed, (uint32_t)(seed >> 32), c);
	return (double)(((uint64_t)c[0] << 32 | c[1]) >> 11) / 9007199254740992.0;
}

/* Draws a candidate; -1: the result depends on the order in which `rest` is added. */
static int32_t draw_candidate(const struct tess_sampler *s, double u)
{
	double total = sum_weights(s), left = u * total;

	for (int64_t i = 0; i < s->n - !s->doubt; i++) {
		left -= s->weight[s->list[i].id];
		if (fabs(left) < s->doubt * total)
			return -1;
		if (left < 0)
			return (int32_t)s->list[i].id;
	}
	return s->doubt > 0 ? -1 : (int32_t)s->list[s->n - 1].id;
}

/* Returns the index of the best score; the lowest of equal ones. */
static int64_t find_best_score(const struct tess_sampler *s)
{
	int64_t best = 0;

	for (int64_t i = 1; i < s->vocab; i++)
		if (s->score[i] > s->score[best])
			best = i;
	return best;
}

/* Returns the index of the best logit, in lanes that compilers vectorize. */
static int64_t find_best_logit(const float *x, int64_t n)
{
	enum { LANES = 32 };
	float lane[LANES], best = x[0];
	int64_t i = 0;

	for (int j = 0; j < LANES; j++)
		lane[j] = best;
	for (; i + LANES <= n; i += LANES)
		for (int j = 0; j < LANES; j++)
			lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
	for (; i < n; i++)
		lane[0] = x[i] > lane[0] ? x[i] : lane[0];
	for (int j = 0; j < LANES; j++)
		best = lane[j] > best ? lane[j] : best;
	for (i = 0; i < n && x[i] != best; i++)
		;
	return i < n ? i : 0; /* i is n after a NaN */
}

/* Returns the id for temperature 0; *score: its score. */
static int64_t find_greedy_id(struct tess_sampler *s, const struct tess_sampling *sampling,
                              const float *logits, const int32_t *seen, int64_t nseen,
                              double *score)
{
	int64_t id;

	if (!tess_sampling_has_penalty(sampling)) {
		id = find_best_logit(logits, s->vocab);
		*score = logits[id];
		return id;
	}
	apply_penalty(s, sampling, logits, seen, nseen);
	id = find_best_score(s);
	*score = s->score[id];
	return id;
}

int32_t tess_sampler_draw_number(struct tess_sampler *s, const struct tess_sampling *sampling,
                                 const float *logits, const int32_t *seen, int64_t nseen, double u)
{
	int32_t id = -1;
	double score;

	if (sampling->temperature == 0)
		return (int32_t)find_greedy_id(s, sampling, logits, seen, nseen, &score);
	score_ids(s, sampling, logits, seen, nseen);
	for (int all = 0; all < 2 && id < 0; all++)
		if (select_candidates(s, sampling, u, all))
			id = draw_candidate(s, u);
	return id;
}

int32_t tess_sampler_draw(struct tess_sampler *s, const struct tess_sampling *sampling,
                          const float *logits, const int32_t *seen, int64_t nseen, uint64_t step)
{
	struct tess_thread_state callers;
	int32_t id;

	if (TESS_REQUIRE(s, sampling, logits) || tess_sampling_check(sampling))
		return -1;
	if (nseen < 0 || (nseen && !seen)) {
		tess_fail(TESS_EINVAL, "tess_sampler_draw: %lld ids%s", (long long)nseen,
		          seen ? "" : " without a list");
		return -1;
	}
	tess_thread_state_begin(&callers);
	id = tess_sampler_draw_number(s, sampling, logits, seen, nseen,
	                              draw_uniform(sampling->seed, step));
	tess_thread_state_restore(&callers);
	return id;
}

struct tess_draw tess_sampling_get_draw(const struct tess_sampling *s, uint64_t step)
{
	if (s->temperature == 0)
		return (struct tess_draw){ .penalty = s->repetition_penalty };
	return (struct tess_draw){ .temperature = s->temperature,
		                   .top_p = s->top_p,
		                   .min_p = s->min_p,
		                   .top_k = (double)s->top_k,
		                   .number = draw_uniform(s->seed, step),
		                   .penalty = s->repetition_penalty };
}

/* ---- a vocabulary in parts ------------------------------------------------------------------- */

int64_t tess_sampler_find_candidates(struct tess_sampler *s, const struct tess_sampling *sampling,
                                     const float *logits, const int32_t *seen, int64_t nseen,
                                     struct tess_candidate *out)
{
	int64_t n;

	if (sampling->temperature == 0) {
		n = find_greedy_id(s, sampling, logits, seen, nseen, &out->score);
		out->id = s->first + n;
		return 1;
	}
	score_ids(s, sampling, logits, seen, nseen);
	collect_candidates(s, sampling, 0, false);
	sort_candidates(s);
	keep_top_k(s, sampling->top_k);
	n = s->n < sampling->top_k ? s->n : sampling->top_k;
	for (int64_t i = 0; i < n; i++)
		out[i] = (struct tess_candidate){ s->list[i].score, s->first + s->list[i].id };
	return s->n;
}

int32_t tess_sampler_draw_candidates(struct tess_sampler *s, const struct tess_sampling *sampling,
                                     const struct tess_candidate *list, int64_t n, uint64_t step)
{
	const struct tess_candidate *best = list;

	for (int64_t i = 1; i < n; i++)
		if (list[i].score > best->score)
			best = &list[i];
	if (sampling->temperature == 0 || n == 1)
		return (int32_t)best->id;
	s->n = n;
	s->best = best->score;
	s->rest = s->doubt = 0;
	s->weighed = false;
	memcpy(s->list, list, (size_t)n * sizeof *list);
	filter_candidates(s, sampling);
	return draw_candidate(s, draw_uniform(sampling->seed, step));
}

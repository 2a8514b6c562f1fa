/* explain_fit.c - finds whether a plan fits the memory of its ranks, and how many sequences fit. */
#include "api/explaining.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "nn/generate/kv_cache.h"

#include <fenv.h>

struct fit_question { /* how many sequences fit */
	const struct explanation *x;
	uint64_t memory;
	int64_t positions; /* of a sequence; unused in training */
};

/* ---- the memory of a rank -------------------------------------------------------------------- */

/* Counts the bytes of a rank's pages for n sequences; UINT64_MAX: more. */
static uint64_t count_cache_bytes(const struct fit_question *q, const struct explained_pages *rank,
                                  int64_t n)
{
	uint64_t bytes = 0, all;

	for (int32_t i = 0; i < q->x->program->nclasses; i++) {
		const struct tess_page_class *class = &rank->page_class[i];

		bytes += class->bytes *
		         (uint64_t)tess_kv_count_pages(class->window, q->positions, q->x->e.tokens);
	}
	return __builtin_mul_overflow(bytes, (uint64_t)n, &all) ? UINT64_MAX : all;
}

/* Returns the bytes that the most loaded rank of `x` uses for n sequences. */
static uint64_t find_most_used(const struct fit_question *q, const struct explanation *x, int64_t n,
                               int32_t *rank)
{
	uint64_t most = 0, pages = 0, bytes;

	for (int32_t r = 0; r < x->e.nranks; r++) {
		if (!x->training)
			pages = count_cache_bytes(q, (const void *)x->e.ranks[r], n);
		if (__builtin_add_overflow(pages, x->e.ranks[r]->total, &bytes))
			bytes = UINT64_MAX;
		if (bytes > most) {
			most = bytes;
			*rank = r;
		}
	}
	return most;
}

/* ---- the number of sequences ----------------------------------------------------------------- */

/*
 * Measures the most loaded rank with n sequences: in training for each replica, else in a step of
 * one row for each of them, or as many rows as explained.
 */
static tess_status measure_sequences(const struct fit_question *q, int64_t n, uint64_t *used)
{
	struct explanation other = tess_explaining_copy(q->x);
	int64_t tokens = q->x->e.tokens;
	int32_t rank;
	tess_status st;

	if (other.training) {
		other.e.sequences = n * tess_explaining_count_replicas(&other);
		other.e.tokens = tokens / q->x->e.sequences * other.e.sequences;
	} else {
		other.e.tokens = n > tokens ? n : tokens;
		other.nselected = n;
	}
	st = tess_explaining_measure_copy(&other);
	if (!st)
		*used = find_most_used(q, &other, n, &rank);
	tess_explaining_free_copy(&other);
	return st;
}

/* Returns the number that fits if a sequence uses `each` bytes, from lo + 1 to end - 1. */
static int64_t extrapolate_fit(int64_t lo, int64_t end, uint64_t unused, double each)
{
	double n = (double)lo + (double)unused / (each < 1 ? 1 : each);

	if (n >= (double)end - 1)
		return end - 1;
	return n < (double)lo + 1 ? lo + 1 : (int64_t)n;
}

/*
 * Finds a number below `end` that fits; the next one does not, or is `end`. 0: none. Extends
 * a line through the last two numbers, and bisects now and then.
 */
static tess_status find_fitting(const struct fit_question *q, int64_t end, int64_t *out)
{
	uint64_t used = 0, used_next = 0;
	int64_t lo = 0, next = 1;

	for (int i = 0; lo + 1 < end; i++) {
		tess_status st = measure_sequences(q, next, &used_next);
		double each = ((double)used_next - (double)used) / (double)(next - lo);

		if (st)
			return st;
		if (used_next <= q->memory) {
			lo = next;
			used = used_next;
		} else {
			end = next;
		}
		next = i % 4 == 3 ? lo + (end - lo) / 2
		                  : extrapolate_fit(lo, end, q->memory - used, each);
	}
	*out = lo;
	return TESS_OK;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* Returns 1 + the maximum number of sequences of a step. */
static int64_t find_rows_end(const struct explanation *x)
{
	int64_t each =
		x->training ? x->e.tokens / x->e.sequences * tess_explaining_count_replicas(x) : 1;

	return TESS_EXPLAINED_ROWS / each + 1;
}

static tess_status measure_fit(const struct fit_question *q, struct tess_explained_fit *out)
{
	const struct tess_explanation *e = &q->x->e;
	struct fit_question longest = *q;
	tess_status st;

	*out = (struct tess_explained_fit){ .memory = q->memory, .positions = q->positions };
	out->used = find_most_used(q, q->x, 1, &out->rank);
	st = find_fitting(q, find_rows_end(q->x), &out->sequences);
	if (q->x->training)
		out->sequences *= tess_explaining_count_replicas(q->x);
	if (st || q->x->training)
		return st;
	longest.positions = e->positions;
	if (e->positions == q->positions)
		out->longest = out->sequences;
	else if (e->positions)
		st = find_fitting(&longest, find_rows_end(q->x), &out->longest);
	return st;
}

tess_status tess_explanation_fit(struct tess_explanation *e, uint64_t memory, int64_t positions)
{
	struct explanation *x = (struct explanation *)e;
	struct fit_question q = { .x = x, .memory = memory };
	struct tess_explained_fit fit;
	fenv_t callers;
	tess_status st = TESS_REQUIRE(e);

	if (!st && (!memory || positions < 0))
		st = tess_fail(TESS_EINVAL,
		               "%llu bytes of memory for sequences of %lld positions: use 1 or "
		               "more bytes, and 0 or more positions",
		               (unsigned long long)memory, (long long)positions);
	if (st)
		return st;
	q.positions = x->training ? e->tokens / e->sequences
	              : positions ? positions
	                          : e->shown_positions;
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = measure_fit(&q, &fit);
	fesetenv(&callers);
	if (st)
		return st;
	x->fit = fit;
	e->fit = &x->fit;
	return TESS_OK;
}

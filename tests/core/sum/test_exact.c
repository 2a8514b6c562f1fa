/*
 * test_exact.c - the exact reduction: equal bits for any number of ranks, compared with a recursion
 * over single units, without ranks.
 */
#include "core/base/status.h"
#include "core/sum/exact.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"
#include "tests/support/tree_sum.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <tessera/reduce.h>
#include <tessera/split.h>

enum { TREES_MAX = 7, COUNT_MAX = 40000, RANKS_MAX = 8 };

struct sum_case {
	struct tess_sum sum;
	int64_t n[TREES_MAX];
	bool share;
	const float *want;
};

struct element { /* element k of the vectors of a tree */
	int32_t tree;
	uint64_t k;
};

/* Computes the value of unit u: very different magnitudes, some zeros of either sign. */
static float compute_tree_leaf(const void *arg, const struct tess_tree *tree, int64_t u)
{
	const struct element *e = arg;
	uint32_t h = (uint32_t)e->tree * 2654435761u ^ (uint32_t)u * 2246822519u ^
	             (uint32_t)e->k * 3266489917u;
	float x;

	(void)tree;
	h ^= h >> 15;
	h *= 2246822519u;
	h ^= h >> 13;
	if (h % 16 == 0)
		return h & 16 ? -0.0f : 0.0f;
	x = (float)(int32_t)h / 2147483648.0f;
	return h % 8 == 1 ? x * 1e6f : h % 8 == 2 ? x * 1e-6f : x;
}

static bool sum_tree_by_definition(int32_t t, int64_t n, int depth, int64_t i, uint64_t k,
                                   float *out)
{
	const struct tess_tree tree = { .n = n, .hi = n };
	const struct element e = { t, k };

	return tree_sum_node(&tree, 0, n, depth, i, compute_tree_leaf, &e, out);
}

static bool sum_trees_by_definition(const struct sum_case *p, int depth, int64_t i, uint64_t k,
                                    float *out)
{
	int64_t n = p->sum.ntree, lo = tess_edge(n, INT64_C(1) << depth, i);
	int64_t hi = tess_edge(n, INT64_C(1) << depth, i + 1);
	float left, right;
	bool has_left, has_right;

	if (lo >= hi)
		return false;
	if (hi - lo == 1) {
		if (!sum_tree_by_definition((int32_t)lo, p->n[lo], 0, 0, k, out))
			return false;
		*out += 0.0f;
		return true;
	}
	has_left = sum_trees_by_definition(p, depth + 1, 2 * i, k, &left);
	has_right = sum_trees_by_definition(p, depth + 1, 2 * i + 1, k, &right);
	*out = has_left && has_right ? left + right : has_left ? left : right;
	return has_left || has_right;
}

/* Returns the sum of units [lo, hi), which are one node, below node (depth, i). */
static float sum_unit_range(int32_t t, const struct tess_node *node, uint64_t k, int64_t n)
{
	float out = 0;

	sum_tree_by_definition(t, n, node->depth, node->at, k, &out);
	return out;
}

/* Computes this rank's Partial. */
static float *make_partial_sums(const struct sum_case *p, int32_t nranks, int32_t rank)
{
	uint64_t count = p->sum.count;
	float *nodes = malloc(
		      (size_t)tess_sum_nodes(&p->sum, nranks, rank) * count * sizeof *nodes + 4),
	      *to = nodes;

	for (int32_t t = 0; t < p->sum.ntree; t++) {
		int64_t at = tess_edge(p->n[t], nranks, rank),
			hi = tess_edge(p->n[t], nranks, rank + 1), lo = at;
		struct tess_node node;

		while (tess_node_next(p->n[t], lo, hi, &at, &node))
			for (uint64_t k = 0; k < count; k++)
				*to++ = sum_unit_range(t, &node, k, p->n[t]);
	}
	return nodes;
}

static float *compute_expected_sums(const struct sum_case *p)
{
	float *want = malloc(p->sum.count * sizeof *want + 4);

	for (uint64_t k = 0; k < p->sum.count; k++)
		want[k] = sum_trees_by_definition(p, 0, 0, k, &want[k]) ? want[k] + 0.0f : 0.0f;
	return want;
}

/* Makes shares of very different sizes, some empty. */
static void make_shares(uint64_t count, int32_t nranks, uint64_t *share)
{
	uint64_t left = count;

	for (int32_t r = 0; r < nranks; r++) {
		share[r] = r == nranks - 1 ? left : r % 3 == 1 ? 0 : left / 2;
		left -= share[r];
	}
}

/* Starts two sums that are completed out of order, with a call of the group between them. */
static tess_status check_started_sums(struct tess_group *g, const struct tess_sum *s,
                                      const float *nodes, const float *want, uint64_t len)
{
	float *out[2] = { malloc(len * sizeof **out + 4), malloc(len * sizeof **out + 4) };
	struct tess_sum_work *work[2] = { NULL };
	int32_t zero = 0;
	tess_status st = TESS_OK, tested;

	for (int i = 0; i < 2 && !st; i++) {
		memset(out[i], 0xff, len * sizeof **out);
		st = tess_sum_start(g, s, nodes, out[i], &work[i]);
	}
	if (!st)
		st = tess_all_reduce(g, &zero, &zero, 1, TESS_I32, TESS_SUM, "tests:between");
	while (!st && (tested = tess_sum_test(work[1])))
		st = tested == TESS_PENDING ? TESS_OK : tested;
	for (int i = 1; i >= 0 && !st; i--) {
		st = tess_sum_wait(work[i]);
		if (!st && memcmp(out[i], want, len * sizeof **out))
			st = tess_fail(TESS_EBUG, "sum %d that was started: other bits", i);
		if (!st)
			free(out[i]);
	}
	return st;
}

static tess_status check_rank_sum(struct tess_world *w, void *arg)
{
	const struct sum_case *p = arg;
	int32_t rank = tess_world_rank(w), n = tess_world_size(w);
	uint64_t share[RANKS_MAX], at = 0, len = p->sum.count;
	struct tess_sum s = p->sum;
	float *nodes = make_partial_sums(p, n, rank), *out;
	tess_status st;

	if (p->share) {
		make_shares(s.count, n, share);
		for (int32_t r = 0; r < rank; r++)
			at += share[r];
		len = share[rank];
		s.share = share;
	}
	out = malloc(len * sizeof *out + 4);
	memset(out, 0xff, len * sizeof *out);
	st = tess_group_sum(tess_world_group(w), &s, nodes, out);
	if (!st && memcmp(out, p->want + at, len * sizeof *out))
		st = tess_fail(TESS_EBUG,
		               "%d trees, n = %" PRId64 ", %" PRIu64
		               " elements%s: other bits than by definition",
		               s.ntree, p->n[0], s.count, s.share ? ", shared out" : "");
	if (!st)
		st = check_started_sums(tess_world_group(w), &s, nodes, p->want + at, len);
	if (!st) { /* after a failure they belong to the group */
		free(nodes);
		free(out);
	}
	return st;
}

static void check_sum_on_all_sizes(struct sum_case *p, bool share)
{
	float *want;

	p->sum.n = p->n;
	p->sum.where = "tests:sum";
	p->share = share;
	p->want = want = compute_expected_sums(p);
	for (int32_t n = 1 + TSAN; n <= RANKS_MAX; n += 1 + THIN / 2)
		spawn_ranks(n, check_rank_sum, p);
	free(want);
}

static const int64_t units[] = { 1, 3, 8, 14, 25, 28, 32, 40, 86 };
enum { NUNITS = sizeof units / sizeof *units };

START_TEST(one_tree)
{
	static const uint64_t counts[] = { 0, 1, 2, 7, 300 };

	for (size_t i = 0; i < NUNITS; i++)
		for (size_t c = 0; c < 5; c++)
			for (int share = 0; share < 2; share++) {
				struct sum_case p = { .sum = { .ntree = 1, .count = counts[c] },
					              .n = { units[i] } };

				check_sum_on_all_sizes(&p, share);
			}
}
END_TEST

/* Reduces vectors larger than the limit of a plain gather, and than the part added at a time. */
START_TEST(large_vectors)
{
	for (size_t i = 0; i < NUNITS; i += 2) {
		struct sum_case p = { .sum = { .ntree = 1, .count = 20001 }, .n = { units[i] } };

		check_sum_on_all_sizes(&p, i % 4 == 0);
		check_sum_on_all_sizes(&p, i % 4 != 0);
	}
}
END_TEST

START_TEST(started_over_messages)
{
	struct sum_case p = { .sum = { .ntree = 1, .count = 20001 }, .n = { 25 } };

	use_minimal_backend("minimal");
	check_sum_on_all_sizes(&p, false);
	check_sum_on_all_sizes(&p, true);
}
END_TEST

START_TEST(several_trees)
{
	static const int64_t n[][TREES_MAX] = {
		{ 14, 2 }, { 1, 1, 1, 1, 1, 1, 1 },    { 5, 0, 3 },
		{ 0, 0 },  { 32, 8, 25, 3, 0, 1, 40 }, { 0, 7 },
	};
	static const int32_t ntree[] = { 2, 7, 3, 2, 7, 2 };

	for (size_t i = 0; i < 6; i++)
		for (int share = 0; share < 2; share++) {
			struct sum_case p = { .sum = { .ntree = ntree[i],
				                       .count = i == 4 ? 17000 : 33 } };

			memcpy(p.n, n[i], sizeof p.n);
			check_sum_on_all_sizes(&p, share);
		}
}
END_TEST

/* Checks that a unit of zeros of either sign gives the bits of a missing unit: never -0. */
static tess_status check_sum_of_zeros(struct tess_world *w, void *arg)
{
	static const int64_t n[1] = { 5 };
	const float *units_of = arg;
	struct tess_sum s = { .ntree = 1, .n = n, .count = 1, .where = "tests:zeros" };
	int32_t rank = tess_world_rank(w), nranks = tess_world_size(w);
	int64_t lo = tess_edge(5, nranks, rank), hi = tess_edge(5, nranks, rank + 1), at = lo;
	float nodes[5], out = 1;
	struct tess_node node;
	int held = 0;
	tess_status st;

	while (tess_node_next(5, lo, hi, &at, &node)) {
		nodes[held] = units_of[node.lo];
		for (int64_t u = node.lo + 1; u < node.hi; u++)
			nodes[held] += units_of[u];
		held++;
	}
	st = tess_group_sum(tess_world_group(w), &s, nodes, &out);
	if (!st && (out != 0 || memcmp(&out, &(float){ 0.0f }, sizeof out)))
		st = tess_fail(TESS_EBUG, "a sum of zeros is %g", (double)out);
	return st;
}

START_TEST(no_minus_zero)
{
	float minus[5] = { -0.0f, -0.0f, -0.0f, -0.0f, -0.0f },
	      mixed[5] = { -0.0f, 0.0f, -0.0f, -0.0f, 0.0f };

	for (int32_t n = 1; n <= RANKS_MAX; n++) {
		spawn_ranks(n, check_sum_of_zeros, minus);
		spawn_ranks(n, check_sum_of_zeros, mixed);
	}
}
END_TEST

/* Checks TESSERA_REDUCE=fast: close, and exact for integers. */
static tess_status check_fast_sum(struct tess_world *w, void *arg)
{
	static const int64_t n[2] = { 14, 3 };
	struct tess_sum s = { .ntree = 2, .n = n, .count = 50, .where = "tests:fast" };
	int32_t rank = tess_world_rank(w), nranks = tess_world_size(w);
	int64_t held = tess_sum_nodes(&s, nranks, rank), all = 0;
	float nodes[17 * 50], out[50];
	tess_status st;

	(void)arg;
	for (int64_t i = 0; i < held * 50; i++)
		nodes[i] = (float)(i % 50);
	for (int32_t r = 0; r < nranks; r++)
		all += tess_sum_nodes(&s, nranks, r);
	st = tess_group_sum(tess_world_group(w), &s, nodes, out);
	for (int64_t k = 0; k < 50 && !st; k++)
		if (out[k] != (float)(k * all))
			st = tess_fail(TESS_EBUG, "element %" PRId64 " of the fast sum is %g", k,
			               (double)out[k]);
	return st;
}

START_TEST(fast_ones)
{
	ck_assert_int_eq(setenv("TESSERA_REDUCE", "fast", 1), 0);
	for (int32_t n = 1; n <= RANKS_MAX; n++)
		spawn_ranks(n, check_fast_sum, NULL);
}
END_TEST

/*
 * Checks that floats are added pairwise in the order of ranks, whichever rank adds them and
 * whichever arrives first.
 */
static tess_status check_order_of_sum(struct tess_world *w, void *arg)
{
	static const float values[] = { 1e8f, 1, -1e8f, 3, 1e-3f, 16777216, -7, 1e8f };
	struct tess_group *g = tess_world_group(w);
	int32_t n = tess_group_size(g), me = tess_group_rank(g);
	const void *part[8];
	float got = 0, want;
	tess_status st = TESS_OK;

	(void)arg;
	for (int32_t i = 0; i < n; i++)
		part[i] = &values[i];
	tess_reduce(TESS_F32, TESS_SUM, part, n, 1, &want);
	for (int i = 0; i < 2 && !st; i++, got = i ? values[me] : 0) {
		st = tess_all_reduce(g, i ? &got : &values[me], &got, 1, TESS_F32, TESS_SUM,
		                     "order");
		if (!st && memcmp(&got, &want, sizeof got))
			st = tess_fail(TESS_EBUG, "%d ranks: %.9g, not %.9g", n, (double)got,
			               (double)want);
	}
	return st;
}

START_TEST(added_by_rank)
{
	for (int32_t n = 1; n <= RANKS_MAX; n++)
		spawn_ranks(n, check_order_of_sum, NULL);
}
END_TEST

START_TEST(added_by_rank_from_messages)
{
	use_minimal_backend("minimal");
	for (int32_t n = 1; n <= RANKS_MAX; n++)
		spawn_ranks(n, check_order_of_sum, NULL);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("exact", 120, &r);

	tcase_add_test(t, one_tree);
	tcase_add_test(t, large_vectors);
	tcase_add_test(t, several_trees);
	tcase_add_test(t, no_minus_zero);
	tcase_add_test(t, fast_ones);
	tcase_add_test(t, added_by_rank);
	if (getenv("TESSERA_BACKEND"))
		return suite_end(r);
	/* these use a backend of their own */
	tcase_add_test(t, started_over_messages);
	tcase_add_test(t, added_by_rank_from_messages);
	return suite_end(r);
}
